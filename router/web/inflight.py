"""The requests that are being answered, so that the end can wait for them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Protocol


class Ongoing(Protocol):
    """Whatever answers a request: a task, or what needs none."""

    def cancel(self) -> Any:
        """End it. The client gets nothing more."""


class Inflight:
    """The requests being answered. `closing`: no new ones are to be taken."""

    def __init__(self) -> None:
        self._all: set[Ongoing] = set()
        self._drained = asyncio.Event()
        self._drained.set()
        self.closing = False

    def __len__(self) -> int:
        return len(self._all)

    def enter(self, ongoing: Ongoing | None = None) -> Ongoing | None:
        """Note what answers a request: the current task, if nothing else is given."""
        ongoing = ongoing or asyncio.current_task()
        if ongoing is not None:
            self._all.add(ongoing)
            self._drained.clear()
        return ongoing

    def leave(self, ongoing: Ongoing | None) -> None:
        """Its request has been answered. Idempotent."""
        if ongoing is not None:
            self._all.discard(ongoing)
        if not self._all:
            self._drained.set()

    async def drained(self, within_s: float) -> bool:
        """Wait until all are answered, at most `within_s`; whether they are."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._drained.wait()
        return not self._all

    def cancel(self) -> int:
        """Cancel those that are left; how many they were."""
        left = list(self._all)
        for ongoing in left:
            ongoing.cancel()
        return len(left)
