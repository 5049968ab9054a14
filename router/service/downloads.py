"""Downloads under way: one of each at a time, joined by whoever asks again, shown in the snapshot."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Protocol

from msgspec import structs

from router.errors import NotFound, RouterError
from router.snapshot import DownloadView

log = logging.getLogger(__name__)

RUNNING: Final = "running"
#: A hundredth is as much as a bar can show, but large files take minutes for one.
_EVERY_S: Final = 0.5
#: The rate shown is that of about so many seconds.
_RATE_S: Final = 5.0
#: How many that have ended are still shown.
_ENDED: Final = 20


class Progress(Protocol):
    """Told of bytes done, of bytes in all as soon as they are known, and of what is being done."""

    def __call__(self, done: int, total: int | None, stage: str = "", /) -> None: ...


class Downloads:
    """Runs downloads as tasks. `on_change` is called whenever `views` has changed."""

    def __init__(self, on_change: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._on_change = on_change
        self._clock = clock
        self._views: dict[str, DownloadView] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def views(self) -> tuple[DownloadView, ...]:
        return tuple(self._views.values())

    def is_running(self, name: str) -> bool:
        """Whether one of that name is under way."""
        return name in self._tasks

    def begin(
        self, name: str, fetch: Callable[[Progress], Coroutine[Any, Any, object]], *, kind: str = ""
    ) -> Awaitable[None]:
        """Start a download, or join the one under way.

        The awaitable ends with it, raising what made it fail; giving up waiting does not end the download.
        """
        task = self._tasks.get(name)
        if task is None:
            # The newest comes last, also of those that were there before.
            self._views.pop(name, None)
            self._show(DownloadView(name=name, state=RUNNING, done=0, total=None, kind=kind))
            task = asyncio.get_running_loop().create_task(self._run(name, fetch), name=f"download of {name}")
            task.add_done_callback(lambda done: self._ended(name, done))
            self._tasks[name] = task
        return asyncio.shield(task)

    def cancel(self, name: str) -> None:
        """Stop a download; what has arrived is kept for the next time.

        Raises:
            NotFound: nothing of that name is being downloaded.
        """
        task = self._tasks.get(name)
        if task is None:
            raise NotFound(f"{name} is not being downloaded.", param="name")
        task.cancel()

    def forget(self, name: str) -> None:
        """No longer show a download that has ended. Idempotent."""
        view = self._views.get(name)
        if view is not None and view.state != RUNNING:
            del self._views[name]
            self._on_change()

    async def close(self) -> None:
        """Cancel all and wait for them."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self, name: str, fetch: Callable[[Progress], Coroutine[Any, Any, object]]) -> None:
        meter = _Meter(self._clock)

        def progress(done: int, total: int | None, stage: str = "", /) -> None:
            view = self._views[name]
            if stage != view.stage:
                # What was here before was not fetched in this moment.
                meter.restart()
            is_step = total is None or done == total or (done - view.done) * 100 >= total
            if is_step or stage != view.stage or total != view.total or meter.is_due():
                per_s = meter.count(done)
                self._show(structs.replace(view, done=done, total=total, stage=stage, per_s=per_s))

        try:
            await fetch(progress)
        except asyncio.CancelledError:
            self._end(name, "cancelled")
            raise
        except RouterError as error:
            log.warning("%s could not be downloaded: %s", name, error.message)
            words = " ".join(part for part in (error.message, error.hint) if part)
            self._end(name, "failed", words)
            raise
        except Exception as error:
            log.exception("%s could not be downloaded", name)
            self._end(name, "failed", f"{type(error).__name__}: {error}")
            raise
        else:
            self._end(name, "done")

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            # Its failure is in the views; nobody need be waiting for it.
            task.exception()
        elif self._tasks.get(name) is task:
            # Cancelled before it began.
            self._end(name, "cancelled")

    def _end(self, name: str, state: str, error: str = "") -> None:
        self._tasks.pop(name, None)
        ended = [view.name for view in self._views.values() if view.state != RUNNING and view.name != name]
        for old in ended[: max(0, len(ended) + 1 - _ENDED)]:
            del self._views[old]
        view = self._views[name]
        self._show(structs.replace(view, state=state, error=error, stage="", per_s=0.0))

    def _show(self, view: DownloadView) -> None:
        self._views[view.name] = view
        self._on_change()


class _Meter:
    """How fast bytes come."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._shown = clock()
        self._marks: list[tuple[float, int]] = []

    def restart(self) -> None:
        """Forget what was counted."""
        self._marks.clear()

    def is_due(self) -> bool:
        """It is time to show how far it is, whatever that is."""
        return self._clock() - self._shown >= _EVERY_S

    def count(self, done: int) -> float:
        """So many are here now. Returns bytes a second, 0 while that is unknown."""
        now = self._shown = self._clock()
        if self._marks and done < self._marks[-1][1]:
            self._marks.clear()
        self._marks.append((now, done))
        while len(self._marks) > 2 and self._marks[1][0] <= now - _RATE_S:
            del self._marks[0]
        (since, before) = self._marks[0]
        return (done - before) / (now - since) if now - since >= _EVERY_S else 0.0
