"""The router that the relay benchmark measures: the real one, with one fake engine behind all its models.

`_relayed.py PORT serve ...` runs it without a screen, `_relayed.py PORT` in the tray app, whose panel is open
and shows other readings of memory ten times a second; how many times it was painted, it writes into the file
that PAINTED names. Loads start no process: the worker is the engine that listens on PORT.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import structs

from lemon_tray.__main__ import main
from router.engines.base import Exit, WorkerSpec
from router.engines.llama import LlamaEngine
from router.service import Router

PAINT_S = 0.1
#: Bytes by which memory moves each time: about a pixel of a bar, and a digit of its text.
STEP = 100 << 20


class FakeWorker:
    """A worker that is there already."""

    host = "127.0.0.1"
    api_key = "none"
    pid = 0
    launch_command: tuple[str, ...] = ()
    measured: Mapping[str, int] = {}

    def __init__(self, port: int) -> None:
        self.port = port
        self.exited: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()

    async def stop(self) -> bool:
        if not self.exited.done():
            self.exited.set_result(Exit(0, ()))
        return True


async def paint(router: Router, count: list[int]) -> None:
    """Move the readings of memory, ten times a second, and count how often the panel was painted for it."""
    from PySide6.QtCore import QEvent, QObject
    from PySide6.QtWidgets import QApplication

    class Counter(QObject):
        def eventFilter(self, watched: QObject, event: QEvent) -> bool:
            if event.type() is QEvent.Type.Paint:
                count[0] += 1
            return False

    app = QApplication.instance()
    assert isinstance(app, QApplication)
    # Of the windows' own events only: a look at each event of each widget would be most of the cost.
    counter, watched = Counter(), set[QObject]()
    readings = router._residency.readings
    for turn in itertools.count():
        moved = [
            structs.replace(reading, free=max(0, (reading.free or 0) - (turn % 50) * STEP))
            for reading in readings
        ]
        router._observe(tuple(moved), True)
        for window in app.topLevelWidgets():
            if window.isVisible():
                if window not in watched:
                    watched.add(window)
                    window.installEventFilter(counter)
                window.update()
        if told := os.environ.get("PAINTED"):
            Path(told).write_text(str(count[0]))
        await asyncio.sleep(PAINT_S)


def run(arguments: list[str]) -> int:
    port, rest = int(arguments[0]), arguments[1:]
    painted, tasks = [0], set[asyncio.Task[None]]()

    async def start(
        self: LlamaEngine,
        spec: WorkerSpec,
        progress: Callable[[float], None],
        launched: Callable[[int], None] = lambda pid: None,
    ) -> Any:
        progress(1.0)
        return FakeWorker(port)

    LlamaEngine.start = start  # type: ignore[method-assign,assignment]  # in this process only
    if "serve" not in rest:
        begin = Router.start

        async def begin_and_paint(self: Router) -> None:
            await begin(self)
            tasks.add(asyncio.create_task(paint(self, painted)))

        Router.start = begin_and_paint  # type: ignore[method-assign]  # in this process only
        end = Router.stop

        async def stop_painting(self: Router) -> None:
            for task in tasks:
                task.cancel()
            await end(self)

        Router.stop = stop_painting  # type: ignore[method-assign]  # in this process only
    try:
        return main(rest)
    finally:
        print(f"painted {painted[0]}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
