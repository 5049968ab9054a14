"""asyncio in Qt's loop."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

import pytest
from PySide6.QtCore import QEventLoop, QTimer
from PySide6.QtWidgets import QApplication

from lemon_tray.loop import make_loop

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it is qasync's")

SAFETY_S = 20.0


def run(app: QApplication, main: Callable[[], object]) -> object:
    async def bounded() -> object:
        async with asyncio.timeout(SAFETY_S):
            return await main()  # type: ignore[misc]  # a coroutine function

    with asyncio.Runner(loop_factory=lambda: make_loop(app)) as runner:
        return runner.run(bounded())


def test_slots_and_threads_and_timers_wake_it(qapp: QApplication) -> None:
    async def main() -> str:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[str] = loop.create_future()

        async def answer() -> None:
            await asyncio.sleep(0.001)
            done.set_result(await asyncio.to_thread(lambda: "from a slot"))

        tasks: list[asyncio.Task[None]] = []
        QTimer.singleShot(0, lambda: tasks.append(loop.create_task(answer())))
        return await done

    assert run(qapp, main) == "from a slot"


def test_qt_has_its_turn_however_busy_asyncio_is(qapp: QApplication) -> None:
    async def main() -> bool:
        fired = asyncio.Event()
        QTimer.singleShot(0, fired.set)
        while not fired.is_set():  # noqa: ASYNC110  # being busy is what this is about
            await asyncio.sleep(0)
        return True

    assert run(qapp, main) is True


def test_timers_fire_in_order_and_not_early(qapp: QApplication) -> None:
    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        order: list[int] = []
        began = loop.time()
        for number, delay in ((3, 0.03), (1, 0.005), (2, 0.015)):
            loop.call_later(delay, order.append, number)
        await asyncio.sleep(0.04)
        assert loop.time() - began >= 0.04
        return order

    assert run(qapp, main) == [1, 2, 3]


def test_it_cleans_up_without_qt_once_qt_has_ended(qapp: QApplication) -> None:
    cleaned = []

    async def main() -> None:
        QTimer.singleShot(0, qapp.quit)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.001)
            cleaned.append(True)

    with pytest.raises(RuntimeError, match="stopped before"):
        run(qapp, main)
    assert cleaned == [True]


def test_what_is_meant_for_the_runner_reaches_it(qapp: QApplication) -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_soon(sys.exit, 3)
        await asyncio.Event().wait()

    with pytest.raises(SystemExit) as end:
        run(qapp, main)
    assert end.value.code == 3


def test_a_nested_loop_of_qt_stops_asyncio_and_breaks_nothing(qapp: QApplication) -> None:
    async def main() -> list[str]:
        told: list[str] = []

        async def other() -> None:
            told.append("other")

        task = asyncio.ensure_future(other())
        nested = QEventLoop()
        QTimer.singleShot(10, nested.quit)
        nested.exec()
        told.append("nested loop over")
        await task
        return told

    assert run(qapp, main) == ["nested loop over", "other"]
