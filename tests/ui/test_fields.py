"""Fields and controls by themselves: what is typed and shown, and how they look from right to left."""

from __future__ import annotations

from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QImage
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from lemon_tray.fields import Segmented, TextEditor
from lemon_tray.load_bar import LoadBar
from lemon_tray.switches import Stepper, Switch
from lemon_tray.theme import Look, Role


def test_words_with_an_ampersand_are_shown_as_they_are(look: Look, qtbot: QtBot) -> None:
    row = Segmented(look, (("a", "Q & A"), ("b", "Q A")))
    qtbot.addWidget(row)
    row.name_parts("Show")
    assert row.parts[0].label == "Q & A"
    assert row.parts[0].accessibleName() == "Show: Q & A"
    assert row.parts[0].width() == look.metrics(Role.BODY).horizontalAdvance("Q & A") + look.px(24)
    assert row.parts[0].shortcut().isEmpty()  # no letter of it is a key
    row.resize(row.sizeHint())
    plain = Segmented(look, (("a", "Q && A"),))
    qtbot.addWidget(plain)
    plain.resize(plain.sizeHint())
    assert plain.grab().toImage() != row.grab().toImage()


def test_what_is_typed_into_a_choice_is_not_finished_by_itself(look: Look, qtbot: QtBot) -> None:
    editor = TextEditor(look, str, str, width=200, offers=("automatic", "embedded"))
    qtbot.addWidget(editor)
    editor.show()
    assert editor.combo is not None
    assert editor.combo.completer() is None
    editor.show_value("embedded")
    editor.entry.selectAll()
    QTest.keyClicks(editor.entry, "aut")
    assert editor.entry.text() == "aut"


def test_from_right_to_left_controls_are_mirrored_and_so_are_their_keys(
    look: Look, qtbot: QtBot, qapp: QApplication
) -> None:
    def pictures() -> list[QImage]:
        switch, stepper, load = Switch(look), Stepper(look), LoadBar(look)
        switch.show_value(True)
        stepper.show_value(1)  # minus leads nowhere, plus does: they differ
        load.resize(200, 8)
        load.show_progress(0.25, "ink")
        made = []
        for widget in (switch, stepper, load):
            qtbot.addWidget(widget)
            made.append(widget.grab().toImage().convertToFormat(QImage.Format.Format_RGB32))
        return made

    left = pictures()
    qapp.setLayoutDirection(Qt.LayoutDirection.RightToLeft)
    try:
        right = pictures()
        for one, other in zip(left, right, strict=True):
            mirror = one.flipped(Qt.Orientation.Horizontal)
            far = [
                (x, y)
                for x in range(mirror.width())
                for y in range(mirror.height())
                if abs(mirror.pixelColor(x, y).lightness() - other.pixelColor(x, y).lightness()) > 100
            ]
            assert len(far) < mirror.width() * mirror.height() * 0.01
            assert one != other
        asked: list[int] = []
        stepper = Stepper(look)
        qtbot.addWidget(stepper)
        stepper.show_value(3)
        stepper.asked.connect(asked.append)
        QTest.mouseClick(stepper, Qt.MouseButton.LeftButton, pos=QPoint(4, 8))
        assert asked == [4]  # plus is on the left now
        row = Segmented(look, (("a", "A"), ("b", "B")))
        qtbot.addWidget(row)
        row.show_value("a")
        chosen: list[str] = []
        row.asked.connect(chosen.append)
        QTest.keyClick(row.parts[0], Qt.Key.Key_Left)
        assert chosen == ["b"]
    finally:
        qapp.setLayoutDirection(Qt.LayoutDirection.LeftToRight)
