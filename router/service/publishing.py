"""The newest snapshot, made when somebody looks, and those who want to be told of each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from router.snapshot import Snapshot

log = logging.getLogger(__name__)

INTERVAL_S: Final = 0.02
"""Least time between two tellings: what changes more often than that is told once, as it is then."""


class Publisher:
    """Counts changes, and makes a picture of the newest state for whoever asks.

    A busy router changes hundreds of times a second, and nobody looks that often. All that is in a picture is
    of one moment nevertheless: nothing changes while it is made.

    Args:
        first: what is shown before the first change.
        make: the picture of now, with that generation. It must not await.
    """

    def __init__(self, first: Snapshot, make: Callable[[int], Snapshot]) -> None:
        self._snapshot = first
        self._make = make
        self._subscribers: dict[object, Callable[[Snapshot], None]] = {}
        self._telling: asyncio.Handle | None = None
        self._told_at = float("-inf")
        self.generation = first.generation

    @property
    def snapshot(self) -> Snapshot:
        """The newest snapshot."""
        if self._snapshot.generation != self.generation:
            self._snapshot = self._make(self.generation)
        return self._snapshot

    def changed(self) -> None:
        """Something that is shown has changed."""
        self.generation += 1
        if not self._subscribers or self._telling is not None:
            return
        loop = asyncio.get_running_loop()
        wait = self._told_at + INTERVAL_S - loop.time()
        self._telling = loop.call_later(wait, self._tell) if wait > 0 else loop.call_soon(self._tell)

    def subscribe(self, callback: Callable[[Snapshot], None]) -> Callable[[], None]:
        """Call back with new snapshots, the newest always among them; the returned function ends that."""
        token = object()
        self._subscribers[token] = callback

        def end() -> None:
            self._subscribers.pop(token, None)

        return end

    def close(self) -> None:
        """Tell everybody the last state, and nothing after."""
        if self._telling is not None:
            self._telling.cancel()
            self._tell()
        self._subscribers.clear()

    def _tell(self) -> None:
        self._telling = None
        self._told_at = asyncio.get_running_loop().time()
        snapshot = self.snapshot
        for callback in list(self._subscribers.values()):
            try:
                callback(snapshot)
            except Exception:
                # One viewer's fault must not keep the others, or the router, from going on.
                log.exception("A subscriber failed")
