"""Downloads under way: one of each at a time, joined by whoever asks again, shown in the snapshot."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from msgspec import structs

from router.errors import NotFound, RouterError
from router.snapshot import DownloadView

log = logging.getLogger(__name__)

Progress = Callable[[int, int | None], None]


class Downloads:
    """Runs downloads as tasks. `on_change` is called whenever `views` has changed."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._views: dict[str, DownloadView] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def views(self) -> tuple[DownloadView, ...]:
        return tuple(self._views.values())

    def begin(self, name: str, fetch: Callable[[Progress], Coroutine[Any, Any, object]]) -> Awaitable[None]:
        """Start a download, or join the one under way.

        The awaitable ends with it, raising what made it fail; giving up waiting does not end the download.
        """
        task = self._tasks.get(name)
        if task is None:
            self._show(DownloadView(name=name, state="running", done=0, total=None))
            task = asyncio.get_running_loop().create_task(self._run(name, fetch), name=f"download of {name}")
            # Its failure is in the views; nobody need be waiting for it.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
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

    async def close(self) -> None:
        """Cancel all and wait for them."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self, name: str, fetch: Callable[[Progress], Coroutine[Any, Any, object]]) -> None:
        def progress(done: int, total: int | None) -> None:
            view = self._views[name]
            # A hundredth is as much as a bar can show.
            if total is None or done == total or (done - view.done) * 100 >= total:
                self._show(structs.replace(view, done=done, total=total))

        try:
            await fetch(progress)
        except asyncio.CancelledError:
            self._show(structs.replace(self._views[name], state="cancelled"))
            raise
        except RouterError as error:
            log.warning("%s could not be downloaded: %s", name, error.message)
            self._show(structs.replace(self._views[name], state="failed", error=error.message))
            raise
        except Exception as error:
            log.exception("%s could not be downloaded", name)
            words = f"{type(error).__name__}: {error}"
            self._show(structs.replace(self._views[name], state="failed", error=words))
            raise
        else:
            self._show(structs.replace(self._views[name], state="done"))
        finally:
            del self._tasks[name]

    def _show(self, view: DownloadView) -> None:
        self._views[view.name] = view
        self._on_change()
