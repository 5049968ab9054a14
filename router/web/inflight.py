"""The requests that are being answered, so that the end can wait for them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from router.errors import ShuttingDown


class Inflight:
    """The requests being answered."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._drained = asyncio.Event()
        self._drained.set()
        self.closing = False

    def __len__(self) -> int:
        return len(self._tasks)

    def enter(self) -> asyncio.Task[Any] | None:
        """Note the current task as answering a request.

        Raises:
            ShuttingDown: no new ones are taken.
        """
        if self.closing:
            raise ShuttingDown("The router is shutting down.")
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            self._drained.clear()
        return task

    def leave(self, task: asyncio.Task[Any] | None) -> None:
        """Its request has been answered."""
        if task is not None:
            self._tasks.discard(task)
        if not self._tasks:
            self._drained.set()

    async def drained(self, within_s: float) -> bool:
        """Wait until all are answered, at most `within_s`; whether they are."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._drained.wait()
        return not self._tasks

    def cancel(self) -> int:
        """Cancel those that are left; how many they were."""
        for task in self._tasks:
            task.cancel()
        return len(self._tasks)
