"""The panel as a window: when it paints, where it stands, what keys do, whether texts fit."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from PySide6.QtCore import QPoint, QRect, QSize, Qt
from PySide6.QtGui import QFont, QFontDatabase
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QWidget
from pytestqt.qtbot import QtBot

from lemon_tray.buttons import Button
from lemon_tray.edits import Edits
from lemon_tray.labels import Text
from lemon_tray.panel import Panel, kept_inside, place_panel
from lemon_tray.theme import DARK, LIGHT, WIDTH, Look
from lemon_tray.view import Command, Kind
from tests.ui import canned
from tests.ui.conftest import Paints, active, exposed, view_of


@pytest.mark.parametrize("state", canned.STATES)
@pytest.mark.parametrize("tokens", [LIGHT, DARK], ids=["light", "dark"])
def test_every_state_is_drawn(state: str, tokens: Any, qtbot: QtBot, qapp: QApplication) -> None:
    panel = Panel(Look(tokens, motion=False), Edits())
    qtbot.addWidget(panel)
    panel.show_view(view_of(canned.STATES[state]()))
    panel.open()
    picture = panel.grab().toImage()
    assert panel.width() == WIDTH
    colours = {
        picture.pixelColor(x, y).name() for x in range(20, 380, 7) for y in range(5, picture.height(), 7)
    }
    assert len(colours) > 8


def test_a_hidden_panel_does_nothing_at_all(panel: Panel, qtbot: QtBot) -> None:
    panel.show_view(view_of(canned.loading()))
    paints = Paints(panel)
    for number in range(50):
        of = canned.warning() if number % 2 else canned.loading()
        panel.show_view(view_of(msgspec.structs.replace(of, generation=number)))
    probe = QWidget()
    qtbot.addWidget(probe)
    probe.show()
    exposed(probe, qtbot)
    assert paints.painted == []
    assert panel.head.title.text() == ""  # not even a text was set
    panel.open()
    assert panel.head.title.text() == "Ready · 1 warning"


def test_nothing_moves_after_hiding(qtbot: QtBot, qapp: QApplication) -> None:
    panel = Panel(Look(LIGHT, motion=True), Edits())
    qtbot.addWidget(panel)
    panel.show_view(view_of(canned.empty()))
    panel.open()
    exposed(panel, qtbot)
    panel.show_view(view_of(canned.loading()))
    panel.hide()
    from PySide6.QtCore import QAbstractAnimation, QVariantAnimation

    running = [
        m for m in panel.findChildren(QVariantAnimation) if m.state() == QAbstractAnimation.State.Running
    ]
    assert running == []


SCREEN = QRect(0, 30, 1280, 770)


@pytest.mark.parametrize(
    ("anchor", "corner"),
    [
        (QRect(1257, 1, 22, 26), QPoint(1280 - 8 - 400, 38)),  # tray at the top right
        (QRect(600, 1, 22, 26), QPoint(410, 38)),
        (QRect(2, 776, 22, 22), QPoint(8, 776 - 8 - 500)),  # at the bottom left
        (QRect(1270, 400, 1, 1), QPoint(872, 409)),  # a cursor
        (None, QPoint(872, 38)),
    ],
)
def test_where_the_panel_stands(anchor: QRect | None, corner: QPoint) -> None:
    at = place_panel(QSize(400, 500), SCREEN, anchor)
    if anchor is not None and anchor.x() == 1270:
        assert SCREEN.contains(QRect(at, QSize(400, 500)))
        assert at.x() == corner.x()
    else:
        assert at == corner


def test_a_panel_larger_than_the_screen_shows_its_head() -> None:
    assert place_panel(QSize(400, 5000), SCREEN, None) == QPoint(872, 38)
    assert place_panel(QSize(4000, 100), SCREEN, QRect(640, 790, 1, 1)).x() == 8


@pytest.mark.parametrize(
    ("frame", "corner"),
    [
        (QRect(100, 100, 400, 500), QPoint(100, 100)),
        (QRect(100, 600, 400, 500), QPoint(100, SCREEN.bottom() + 1 - 500)),
        (QRect(1200, 100, 400, 500), QPoint(SCREEN.right() + 1 - 400, 100)),
        (QRect(-50, -20, 400, 500), SCREEN.topLeft()),
        (QRect(100, 100, 400, 5000), QPoint(100, SCREEN.top())),  # its head can be reached
    ],
)
def test_a_window_is_kept_on_the_screen(frame: QRect, corner: QPoint) -> None:
    assert kept_inside(frame, SCREEN) == corner


def test_as_a_window_it_grows_upwards_at_the_end_of_the_screen(panel: Panel, qtbot: QtBot) -> None:
    panel.set_mode(as_window=True)
    panel.show_view(view_of(canned.cpu()))
    panel.open()
    room = panel.screen().availableGeometry()
    panel.move(0, room.bottom() - 50)
    panel.show_note("No tray here.")
    assert room.contains(panel.frameGeometry()) or panel.frameGeometry().top() == room.top()


def test_it_scrolls_when_the_screen_is_too_low(
    panel: Panel, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Low:
        @staticmethod
        def availableGeometry() -> QRect:
            return QRect(0, 0, 1024, 500)

    monkeypatch.setattr(panel, "_screen", lambda: Low)
    panel.show_view(view_of(canned.warning()))
    panel.open()
    exposed(panel, qtbot)
    assert panel.height() == 500 - 16
    bar = panel.scroller.verticalScrollBar()
    assert bar.maximum() > 0
    assert panel.scroller.viewport().width() >= WIDTH - 2 - 15  # the bar covers the inset only
    panel.feed.all.setFocus(Qt.FocusReason.TabFocusReason)
    for button in (panel.controls.unlimited, panel.head.copy):
        panel.scroller.ensureWidgetVisible(button)
    assert panel.head.y() == 1  # head and banner stay


def test_escape_closes_the_breakdown_first_then_the_panel(panel: Panel, qtbot: QtBot) -> None:
    panel.show_view(view_of(canned.loading()))
    panel.open()
    height = panel.body.height()
    panel.pool.details.click()
    assert panel.body.height() > height
    assert panel.pool.breakdown.isVisible()
    QTest.keyClick(panel, Qt.Key.Key_Escape)
    assert panel.isVisible()
    assert panel.body.height() == height
    QTest.keyClick(panel, Qt.Key.Key_Escape)
    assert not panel.isVisible()


def test_escape_closes_from_any_control(panel: Panel, qtbot: QtBot) -> None:
    for pick in ("copy", "stepper", "eject", "stop"):
        panel.show_view(view_of(canned.loading()))
        panel.open()
        widget: QWidget = {
            "copy": panel.head.copy,
            "stepper": panel.controls.stepper,
            "eject": panel.models.rows["Qwen3-8B"].eject,
            "stop": panel.devices.blocks[0].bar.shown_stops()[0],
        }[pick]
        QTest.keyClick(widget, Qt.Key.Key_Escape)
        assert not panel.isVisible(), pick


def test_tab_goes_through_everything_once_in_order(panel: Panel, qtbot: QtBot) -> None:
    panel.show_view(view_of(canned.warning()))
    panel.open()
    active(panel, qtbot)
    panel.setFocus()
    seen: list[str] = []
    for _ in range(40):
        QTest.keyClick(panel.focusWidget() or panel, Qt.Key.Key_Tab)
        widget = panel.focusWidget()
        assert widget is not None
        name = widget.accessibleName()
        if seen and name == seen[0]:
            break
        seen.append(name)
    assert seen == [
        "Copy endpoint address",
        "Models",
        "Settings",
        "Unload if short, auto_evict=true, Up to 3; idle ones go if short",
        "Restore hard limit, llm_pool_autosize=false, Limit 1; unloads 1 now",
        "Qwen3-8B: 9.1 gibibytes",
        "Llama-3.3-70B: 18.4 gibibytes",
        "Why room for 3",
        "Pause loading",
        "Free all VRAM now",
        "Pin Qwen3-8B",
        "Unload Qwen3-8B",
        "Unpin Llama-3.3-70B",
        "Unload Llama-3.3-70B",
        "Autosize the pool",
        "Auto-evict",
        "Max loaded models",
        "No limit",
        "All recent decisions",
    ]


def test_everything_that_takes_the_keyboard_has_a_name(panel: Panel, qtbot: QtBot) -> None:
    for make in canned.STATES.values():
        panel.show_view(view_of(make()))
        panel.open()
        for widget in panel.findChildren(QWidget):
            if widget.isVisible() and widget.focusPolicy() & Qt.FocusPolicy.TabFocus:
                assert widget.accessibleName(), widget


def test_the_ring_shows_for_the_keyboard_only(panel: Panel, qtbot: QtBot) -> None:
    panel.show_view(view_of(canned.loading()))
    panel.open()
    active(panel, qtbot)
    panel.head.copy.setFocus(Qt.FocusReason.MouseFocusReason)
    assert not panel.head.copy.has_ring
    panel.head.models.setFocus(Qt.FocusReason.TabFocusReason)
    assert panel.head.models.has_ring


def test_arrows_go_from_row_to_row_in_a_column(panel: Panel, qtbot: QtBot) -> None:
    panel.show_view(view_of(canned.loading()))
    panel.open()
    active(panel, qtbot)
    rows = panel.models.rows
    rows["Qwen3-8B"].pin.setFocus(Qt.FocusReason.TabFocusReason)
    for key, widget in (
        (Qt.Key.Key_Down, rows["Llama-3.3-70B"].pin),
        (Qt.Key.Key_Down, rows["Gemma-3-4B"].cancel),
        (Qt.Key.Key_Down, rows["Gemma-3-4B"].cancel),
        (Qt.Key.Key_Up, rows["Llama-3.3-70B"].eject),
    ):
        QTest.keyClick(panel.focusWidget(), key)
        assert panel.focusWidget() is widget


def test_buttons_ask_for_what_they_say(panel: Panel, qtbot: QtBot) -> None:
    asked: list[Command] = []
    panel.asked.connect(asked.append)
    panel.show_view(view_of(canned.loading()))
    panel.open()
    rows = panel.models.rows
    rows["Qwen3-8B"].pin.click()
    rows["Llama-3.3-70B"].pin.click()
    rows["Qwen3-8B"].eject.click()
    rows["Gemma-3-4B"].cancel.click()
    panel.head.copy.click()
    panel.head.menu.click()
    panel.head.models.click()
    panel.head.settings.click()
    panel.models.pause.click()
    panel.models.free_all.click()
    QTest.keySequence(panel, "Ctrl+C")
    QTest.keySequence(panel, "Ctrl+,")
    panel.show_view(view_of(canned.warning()))
    for button in panel.banner.buttons():
        button.click()
    assert asked == [
        Command(Kind.PIN, "Qwen3-8B", True),
        Command(Kind.PIN, "Llama-3.3-70B", False),
        Command(Kind.UNLOAD, "Qwen3-8B"),
        Command(Kind.UNLOAD, "Gemma-3-4B"),
        Command(Kind.COPY, "endpoint"),
        Command(Kind.OPEN_MENU),
        Command(Kind.OPEN_WINDOW, "models"),
        Command(Kind.OPEN_WINDOW, "settings"),
        Command(Kind.PAUSE, "", True),
        Command(Kind.FREE_ALL),
        Command(Kind.COPY, "endpoint"),
        Command(Kind.OPEN_WINDOW, "settings"),
        Command(Kind.SET, "auto_evict", True),
        Command(Kind.SET, "llm_pool_autosize", False),
    ]
    # A pin shows what is in force until the router says otherwise.
    assert not rows["Qwen3-8B"].pin.isChecked()
    assert rows["Llama-3.3-70B"].pin.isChecked()


def test_closing_the_window_hides_it(panel: Panel, qtbot: QtBot) -> None:
    panel.show_view(view_of(canned.cpu()))
    panel.open()
    panel.close()
    assert not panel.isVisible()
    panel.open()
    assert panel.isVisible()


@pytest.mark.parametrize(
    ("held", "as_window", "to_own_dialog", "stays"),
    [
        (False, False, False, False),
        (True, False, False, True),
        (False, True, False, True),
        (False, False, True, True),
    ],
)
def test_losing_the_keyboard_closes_it(
    held: bool,
    as_window: bool,
    to_own_dialog: bool,
    stays: bool,
    panel: Panel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    panel.show_view(view_of(canned.cpu()))
    panel.set_mode(as_window=as_window)
    panel.open()
    if held:
        panel.hold()
    dialog = QWidget()
    monkeypatch.setattr(panel, "isActiveWindow", lambda: False)
    monkeypatch.setattr(QApplication, "activeWindow", lambda: dialog if to_own_dialog else None)
    panel._lost_activation()
    assert panel.isVisible() is stays


def test_a_click_on_the_icon_that_closed_it_does_not_open_it_again(panel: Panel, qtbot: QtBot) -> None:
    panel.show_view(view_of(canned.cpu()))
    panel.toggle()
    assert panel.isVisible()
    panel.hide()
    panel._closed_for.start()  # as losing the keyboard to the click does
    panel.toggle()
    assert not panel.isVisible()
    panel._closed_for.invalidate()
    panel.toggle()
    assert panel.isVisible()


def test_as_a_window_it_has_a_frame_and_says_why(panel: Panel, qtbot: QtBot) -> None:
    panel.show_view(view_of(canned.cpu()))
    panel.set_mode(as_window=True)
    panel.show_note("No tray here.")
    panel.open()
    assert not panel.windowFlags() & Qt.WindowType.FramelessWindowHint
    assert panel.note.isVisible()
    assert panel.head.menu.isVisible()  # nothing else has the menu there
    panel.set_mode(as_window=False)
    panel.show_note("")
    assert panel.isVisible()
    assert panel.windowFlags() & Qt.WindowType.FramelessWindowHint
    assert not panel.note.isVisible()
    assert not panel.head.menu.isVisible()


def test_another_colour_scheme_takes_effect_at_once(qtbot: QtBot, qapp: QApplication) -> None:
    look = Look(LIGHT, motion=False)
    panel = Panel(look, Edits())
    qtbot.addWidget(panel)
    panel.show_view(view_of(canned.loading()))
    panel.open()
    assert panel.grab().toImage().pixelColor(200, 60).name() == LIGHT.bg.lower()
    look.tokens = DARK
    look._colours.clear()
    panel.restyle()
    picture = panel.grab().toImage()
    assert picture.pixelColor(200, 60).name() == DARK.bg.lower()
    assert picture.pixelColor(200, picture.height() - 4).name() == DARK.bg.lower()


@pytest.mark.parametrize("family", ["DejaVu Sans", "Inter"])
@pytest.mark.parametrize("state", canned.STATES)
def test_no_text_is_clipped_and_none_overlap(
    family: str, state: str, qtbot: QtBot, qapp: QApplication
) -> None:
    if family not in QFontDatabase.families():
        pytest.skip(f"the font {family} is not installed")
    before = qapp.font()
    qapp.setFont(QFont(family))
    try:
        panel = Panel(Look(LIGHT, motion=False), Edits())
        qtbot.addWidget(panel)
        panel.show_view(view_of(canned.STATES[state]()))
        panel.open()
        panel.pool.details.setChecked(True)
        panel.grab()
        check_texts(panel)
    finally:
        qapp.setFont(before)


def check_texts(panel: Panel) -> None:
    shown = [t for t in panel.findChildren(Text) if t.isVisible() and t.text()]
    assert len(shown) > 15
    places: list[tuple[QRect, str]] = []
    for text in shown:
        assert not text._elided, text.text()
        if not text._wrap:
            assert text.natural_width() <= text.width() + 1, text.text()
        used = min(text.width(), text.natural_width()) if not text._wrap else text.width()
        left = text.width() - used if text._align == Qt.AlignmentFlag.AlignRight else 0
        corner = text.mapTo(panel, QPoint(left, 0))
        places.append((QRect(corner, QSize(used, text.height())), text.text()))
        assert corner.x() >= 1
        assert corner.x() + used <= panel.width() - 1
    for (one, a), (other, b) in itertools.combinations(places, 2):
        assert not one.intersects(other), (a, b)
    for button in panel.findChildren(Button):
        if type(button) is Button and button.isVisible():
            assert button.width() >= button.natural_width() - 8, button.text()


def test_a_name_of_300_characters_leaves_the_numbers_whole(panel: Panel, qtbot: QtBot) -> None:
    name = "Very-" * 58 + "Q4_K_M"
    long = canned.resident(name, 9.1, {"gpu0": 9.1}, tokens_per_s=78.4)
    of = canned.snapshot(residents=(long,), devices=(canned.device(0, "RTX 4090", {name: (9.1, 0)}),))
    panel.show_view(view_of(of))
    panel.open()
    panel.grab()
    row = panel.models.rows[name]
    assert row.name._elided
    assert row.size_text.natural_width() <= row.size_text.width()
    assert row.name.geometry().right() < row.size_text.geometry().left()
    assert panel.devices.blocks[0].legend.cut


def test_larger_fonts_enlarge_everything(qtbot: QtBot, qapp: QApplication) -> None:
    panel = Panel(Look(LIGHT, base_px=21, motion=False), Edits())
    qtbot.addWidget(panel)
    panel.show_view(view_of(canned.loading()))
    panel.open()
    assert panel.width() == 600
    check_texts(panel)


def test_pause_shows_what_is_in_force_and_nothing_is_freed_where_nothing_is(
    panel: Panel, qtbot: QtBot
) -> None:
    panel.show_view(view_of(canned.empty()))
    panel.open()
    assert not panel.models.free_all.isEnabled()
    panel.models.pause.click()
    assert not panel.models.pause.isChecked()  # until the router says so
    panel.show_view(view_of(msgspec.structs.replace(canned.loading(), generation=2, paused=True)))
    assert panel.models.pause.isChecked()
    assert panel.models.free_all.isEnabled()
