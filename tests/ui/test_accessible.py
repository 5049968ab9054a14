"""What a screen reader finds: everything that can be used has a name and says what it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QAccessible
from PySide6.QtWidgets import QAbstractButton, QLabel, QProgressBar, QWidget
from pytestqt.qtbot import QtBot

from lemon_tray.bars import MemoryBar
from lemon_tray.labels import Text
from lemon_tray.panel import Panel
from lemon_tray.pool import Slots
from lemon_tray.switches import Stepper, Switch
from lemon_tray.theme import Look
from tests.ui import canned
from tests.ui.faces import open_panel, open_windows

NOTHING = (QAccessible.Role.NoRole, QAccessible.Role.Client)


def said(widget: QWidget) -> tuple[str, QAccessible.Role]:
    """Name and role as a screen reader gets them."""
    found = QAccessible.queryAccessibleInterface(widget)
    return found.text(QAccessible.Text.Name), found.role()


def check(root: QWidget) -> int:
    """Look at everything in sight; returns how much of it can have the keyboard."""
    reached = 0
    for widget in root.findChildren(QWidget):
        if not widget.isVisible():
            continue
        if widget.focusPolicy() & Qt.FocusPolicy.TabFocus:
            name, role = said(widget)
            assert name.strip(), widget
            assert role not in NOTHING, (widget, name)
            reached += 1
        if isinstance(widget, QAbstractButton | QProgressBar | MemoryBar | Slots):
            assert said(widget)[0].strip(), widget
        if isinstance(widget, Text) and widget.text():
            assert said(widget) == (widget.accessibleName() or widget.text(), QAccessible.Role.StaticText)
        elif isinstance(widget, QLabel) and widget.accessibleName():
            assert said(widget)[1] not in NOTHING, widget
    return reached


@pytest.mark.parametrize("state", canned.STATES)
def test_the_panel(state: str, look: Look, qtbot: QtBot) -> None:
    with open_panel(look, canned.STATES[state]()) as panel:
        assert check(panel) > 8


@pytest.mark.parametrize("make", [canned.catalog, canned.routed, canned.fetching, canned.empty])
def test_the_windows(make: object, look: Look, qtbot: QtBot, tmp_path: Path) -> None:
    assert callable(make)
    with open_windows(look, make(), tmp_path) as windows:
        for name, window in windows.items():
            assert window.windowTitle(), name
            assert check(window) > 0, name


def test_roles_are_those_of_what_is_drawn(panel: Panel, qtbot: QtBot) -> None:
    role = QAccessible.Role
    with open_panel(panel.look, canned.loading()) as shown:
        rows, controls = shown.models.rows, shown.controls
        for widget, wanted, name in (
            (shown.head.mark, role.StaticText, "Lemon Tray: Loading Gemma-3-4B, 43 percent"),
            (shown.head.copy, role.Button, "Copy endpoint address"),
            (rows["Qwen3-8B"].pin, role.CheckBox, "Pin Qwen3-8B"),
            (rows["Qwen3-8B"].eject, role.Button, "Unload Qwen3-8B"),
            (rows["Gemma-3-4B"].load, role.ProgressBar, "Loading Gemma-3-4B"),
            (rows["Gemma-3-4B"].cancel, role.Button, "Cancel loading Gemma-3-4B"),
            (controls.autosize, role.CheckBox, "Autosize the pool"),
            (controls.stepper, role.SpinBox, "Max loaded models"),
            (shown.pool.details, role.CheckBox, "Why room for 3"),
        ):
            assert said(widget) == (name, wanted)
        bar = shown.devices.blocks[0].bar
        assert said(bar) == (bar.accessibleName(), role.ProgressBar)
        memory = QAccessible.queryAccessibleInterface(bar).valueInterface()
        assert (memory.currentValue(), memory.maximumValue()) == (int(17.3 * 1024), 24 * 1024)
        load = QAccessible.queryAccessibleInterface(rows["Gemma-3-4B"].load).valueInterface()
        assert load.currentValue() == 43
        assert isinstance(controls.autosize, Switch)
        assert isinstance(controls.stepper, Stepper)
        state = QAccessible.queryAccessibleInterface(controls.autosize).state()
        assert state.checked
