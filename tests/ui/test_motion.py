"""A number on its way: where it is, and that a hidden widget waits for nothing."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QAbstractAnimation
from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from lemon_tray.motion import Motion


@pytest.fixture
def widget(qtbot: QtBot) -> QWidget:
    made = QWidget()
    qtbot.addWidget(made)
    return made


def test_a_hidden_widget_jumps(widget: QWidget) -> None:
    motion = Motion(widget)
    motion.go(0.7, 160)
    assert motion.at == 0.7
    assert motion.state() is QAbstractAnimation.State.Stopped


def test_it_is_fast_first_and_a_new_goal_starts_from_where_it_is(widget: QWidget) -> None:
    widget.show()
    motion = Motion(widget)
    motion.go(1.0, 10_000)
    motion.pause()
    motion.setCurrentTime(5_000)
    assert motion.at == pytest.approx(0.875)
    motion.go(0.0, 10_000)
    assert motion.at == pytest.approx(0.875)
    motion.finish()
    assert motion.at == 0.0
    assert motion.state() is QAbstractAnimation.State.Stopped


def test_a_start_of_its_own(widget: QWidget) -> None:
    widget.show()
    motion = Motion(widget, 1.0)
    motion.go(1.0, 10_000, start=0.0)
    assert motion.at == 0.0
    motion.finish()
    assert motion.at == 1.0
