"""Background tasks that somebody owns: kept from being collected, and never failing in silence."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger(__name__)


class Tasks:
    """The tasks of one owner. `running` are those that have not ended."""

    def __init__(self) -> None:
        self.running: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run `work` as a task on the running loop. If it fails, that is logged under its name."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self.running.add(task)
        task.add_done_callback(self._ended)
        return task

    async def cancel(self, timeout_s: float | None = None) -> None:
        """Cancel all and wait until they have ended, but no longer than `timeout_s`."""
        for task in self.running:
            task.cancel()
        if self.running:
            await asyncio.wait(self.running, timeout=timeout_s)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.running.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("%s failed", task.get_name(), exc_info=task.exception())
