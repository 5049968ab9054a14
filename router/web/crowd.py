"""How many clients may be connected at once, and who goes when there are more.

A connection costs a file, and its request one more on the way to a worker. Anybody can open connections and
say nothing, also who has no key. Without a bound that would take all files of the process: nobody could
connect any more, and nothing could be read from disk.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Final, Protocol

log = logging.getLogger(__name__)

#: Files that are not for clients: models, settings, logs, libraries, pipes to workers.
_SPARE: Final = 160
_WANTED: Final = 10_240  # macOS allows no more.
_ELSEWHERE: Final = 4_000
_LEAST: Final = 32


class Guest(Protocol):
    """One connection."""

    @property
    def is_idle(self) -> bool:
        """Whether it waits for a request."""

    def give_way(self) -> None:
        """Close it now."""


def room() -> int:
    """How many connections this process can hold. Raises its limit of open files where that is low."""
    try:
        import resource
    except ImportError:  # Windows has no such limit.
        return _ELSEWHERE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    if soft == resource.RLIM_INFINITY:
        soft = _WANTED
    return max(_LEAST, (min(soft, _WANTED) - _SPARE) // 2)


class Crowd:
    """The clients that are connected, at most `most`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._guests: dict[Guest, None] = {}
        self._told = False

    def __len__(self) -> int:
        return len(self._guests)

    def enter(self, guest: Guest) -> bool:
        """Let one in. If it is full, the one that came first of those that wait for nothing goes.

        Returns False if there is none such: then the new one must go.
        """
        if len(self._guests) >= self._most:
            if not self._told:
                self._told = True
                log.warning("%d clients are connected, as many as there is room for", len(self._guests))
            idle = next((each for each in self._guests if each.is_idle), None)
            if idle is None:
                return False
            del self._guests[idle]
            idle.give_way()
        self._guests[guest] = None
        return True

    def leave(self, guest: Guest) -> None:
        """One has left. Idempotent."""
        self._guests.pop(guest, None)
        if len(self._guests) <= self._most // 2:
            self._told = False
