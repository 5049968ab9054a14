"""Widgets without a screen, on the loop that the app runs on."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

os.environ["QT_QPA_PLATFORM"] = "offscreen"

from PySide6.QtCore import QEvent, QObject
from PySide6.QtWidgets import QApplication, QWidget
from pytestqt.qtbot import QtBot

from lemon_tray.edits import Edits
from lemon_tray.loop import make_loop
from lemon_tray.panel import Panel
from lemon_tray.presenter import model_numbers, present
from lemon_tray.theme import LIGHT, Look
from lemon_tray.view import PanelView
from router.snapshot import Snapshot

HERE = Path(__file__).parent
# The offscreen platform says these of things that it cannot do.
OFFSCREEN_SAYS = ("does not support (raise|grabbing)", "systemTrayWindowChanged")

LONGEST_MS: Final = 60_000
"""Only what hangs waits so long: a busy machine is slow."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.qt_log_ignore(*OFFSCREEN_SAYS, extend=True))


def utc_clock(moment: float) -> str:
    return time.strftime("%H:%M", time.gmtime(moment))


def view_of(snapshot: Snapshot, **options: Any) -> PanelView:
    """What is shown of a snapshot, at UTC."""
    options.setdefault("numbers", model_numbers({}, snapshot))
    options.setdefault("clock", utc_clock)
    return present(snapshot, **options)


@pytest.fixture
def look(qapp: QApplication) -> Look:
    return Look(LIGHT, motion=False)


@pytest.fixture
def panel(look: Look, qtbot: QtBot) -> Iterator[Panel]:
    made = Panel(look, Edits())
    qtbot.addWidget(made)
    yield made
    made.hide()


@pytest.fixture
def qloop(qapp: QApplication) -> Iterator[Callable[[Coroutine[Any, Any, Any]], Any]]:
    """Runs a coroutine on Qt's loop."""
    qapp.setQuitOnLastWindowClosed(False)
    loop = make_loop(qapp)
    asyncio.set_event_loop(loop)

    def run(work: Coroutine[Any, Any, Any]) -> Any:
        return loop.run_until_complete(asyncio.wait_for(work, LONGEST_MS / 1000))

    yield run
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    asyncio.set_event_loop(None)


class Paints(QObject):
    """Counts the paint events of a widget and all below it, by object."""

    def __init__(self, root: QWidget) -> None:
        super().__init__()
        self.painted: list[QWidget] = []
        for widget in (root, *root.findChildren(QWidget)):
            widget.installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.Paint and isinstance(watched, QWidget):
            self.painted.append(watched)
        return False


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition; the caller bounds the time."""
    while not condition():  # noqa: ASYNC110  # what a widget shows has no event to wait for
        await asyncio.sleep(0.002)


def active(window: QWidget, qtbot: QtBot) -> None:
    """Wait until the window has the keyboard."""
    qtbot.waitUntil(lambda: QApplication.activeWindow() is window, timeout=LONGEST_MS)


def exposed(window: QWidget, qtbot: QtBot) -> None:
    """Wait until the window has been painted, and nothing more is due."""
    with qtbot.waitExposed(window, timeout=LONGEST_MS):
        pass
    active(window, qtbot)
    paints = Paints(window)
    quiet = 0
    while quiet < 5:  # scroll bars settle a round or two later
        paints.painted.clear()
        QApplication.processEvents()
        quiet = 0 if paints.painted else quiet + 1


def contrast(one: str, other: str) -> float:
    """How well two colours, `#RRGGBB`, are told apart: 1 for the same, 21 for black and white (WCAG 2)."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
