"""Names and sentences from outside are text: nothing in them is read as markup."""

from __future__ import annotations

from pathlib import Path

import msgspec
from PySide6.QtCore import QPoint, Qt
from PySide6.QtWidgets import QApplication, QLabel, QTableView, QWidget
from pytestqt.qtbot import QtBot

from lemon_tray.placing import tip_text
from lemon_tray.theme import Look
from router.snapshot import Severity, Snapshot
from tests.ui import canned
from tests.ui.conftest import view_of
from tests.ui.faces import open_panel, open_windows

NAME = "<b>bold</b><img src=/etc/hostname>-and-a-name-that-is-much-too-long-for-its-place-in-any-row-Q4_K_M"


def marked() -> Snapshot:
    """Markup wherever something from outside is shown."""
    of = canned.catalog()
    failed = canned.entry(
        9, 1, f"{NAME} failed.", severity=Severity.ERROR, code="load_failed", model=f"2{NAME}"
    )
    return msgspec.structs.replace(
        of,
        models=(
            canned.model(NAME, 1.0, 1.0, source=NAME, foreign=f"{NAME} is another's."),
            canned.model(f"2{NAME}", 1.0, 1.0, broken=NAME),
        ),
        residents=(canned.resident(NAME, 1.0, {"gpu0": 1.0}),),
        policies=(msgspec.structs.replace(canned.routed().policies[0], name=NAME),),
        settings={**of.settings, "models_dirs": [NAME]},
        feed=(*of.feed, failed),
        problems=(NAME,),
    )


def tips(root: QWidget) -> list[str]:
    found = []
    for widget in (root, *root.findChildren(QWidget)):
        found.append(widget.toolTip())
        if isinstance(widget, QLabel) and widget.text():
            assert widget.textFormat() is Qt.TextFormat.PlainText or "<" not in widget.text()
        if isinstance(widget, QTableView):
            model = widget.model()
            for row in range(model.rowCount()):
                for column in range(model.columnCount()):
                    found.append(model.index(row, column).data(Qt.ItemDataRole.ToolTipRole) or "")
    return [tip for tip in found if tip]


def test_no_tool_tip_has_markup_from_outside(look: Look, qtbot: QtBot, tmp_path: Path) -> None:
    found = []
    with open_panel(look, marked()) as panel:
        panel.grab()  # what is cut short has its tip since it was painted
        found += tips(panel)
    with open_windows(look, marked(), tmp_path) as windows:
        for window in windows.values():
            window.grab()
            found += tips(window)
    of_names = [tip for tip in found if "bold" in tip]
    assert len(of_names) > 5
    assert not [tip for tip in of_names if "<b>" in tip or "<img" in tip]
    assert "<" not in view_of(marked()).menu.tooltip


def test_a_tip_shows_what_it_was_given(qtbot: QtBot) -> None:
    assert tip_text("Unload A & B") == "Unload A & B"
    label = QLabel(tip_text(NAME))
    qtbot.addWidget(label)
    label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    label.move(QPoint(0, 0))
    label.setSelection(0, 0)
    label.show()
    QApplication.processEvents()
    label.setSelection(0, len(NAME))
    assert label.selectedText().replace("\n", "") == NAME
