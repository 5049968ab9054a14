"""The settings window: every setting, applied at once, never over what is being typed."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from PySide6.QtCore import QPoint, QRect, QSize, Qt
from PySide6.QtGui import QFont, QFontDatabase
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QWidget
from pytestqt.qtbot import QtBot

from lemon_tray.actions import Actions
from lemon_tray.edits import Edits
from lemon_tray.fields import ChoiceEditor, FoldersEditor, SizeEditor, SwitchEditor, TextEditor
from lemon_tray.labels import Text
from lemon_tray.settings_window import AT_A_TIME, SettingsWindow
from lemon_tray.theme import DARK, LIGHT, Look
from lemon_tray.view import Command, Kind
from router.errors import BadRequest
from router.settings import schema
from router.snapshot import Snapshot
from router.units import GIB, MIB
from tests.ui import canned
from tests.ui.conftest import LONGEST_MS, Paints, active, until
from tests.ui.fake_door import FakeDoor

Run = Callable[[Coroutine[Any, Any, Any]], Any]


def snapshot(**settings: Any) -> Snapshot:
    return canned.snapshot(settings={**schema.defaults(), **settings})


def complete(window: SettingsWindow, qtbot: QtBot, more: int = 1) -> None:
    """Wait until all rows are there; they are made a few at a time."""
    count = len(schema.describe()) + more
    qtbot.waitUntil(lambda: len(window.body.rows) == count, timeout=LONGEST_MS)


@pytest.fixture
def window(look: Look, qtbot: QtBot) -> Iterator[SettingsWindow]:
    made = SettingsWindow(look, Edits())
    qtbot.addWidget(made)
    made.starts_at_login = False
    made.at_start = schema.defaults()
    made.show_snapshot(snapshot())
    made.open()
    complete(made, qtbot)
    yield made
    made.hide()


@pytest.fixture
def asked(window: SettingsWindow) -> list[Command]:
    commands: list[Command] = []
    window.asked.connect(commands.append)
    return commands


def entry(window: SettingsWindow, key: str) -> Any:
    editor = window.body.rows[key].editor
    assert isinstance(editor, TextEditor)
    return editor.entry


def type_into(field: Any, text: str, *, enter: bool = True) -> None:
    field.setFocus()
    field.selectAll()
    QTest.keyClicks(field, text)
    if enter:
        QTest.keyClick(field, Qt.Key.Key_Return)


def test_every_setting_has_the_editor_of_its_type(window: SettingsWindow) -> None:
    kinds = {
        "bool": SwitchEditor,
        "choice": ChoiceEditor,
        "size": SizeEditor,
        "list": FoldersEditor,
        "int": TextEditor,
        "float": TextEditor,
        "str": TextEditor,
    }
    for info in schema.describe():
        row = window.body.rows[info.key]
        kind = TextEditor if info.items not in ("", "folder") else kinds[info.type]
        assert type(row.editor) is kind, info.key
        assert row.title.text() == info.title
        assert row.help.text() == info.help
        assert row.key_line.text().startswith(info.key)
    assert list(window.side) == [*dict.fromkeys(i.group for i in schema.describe()), "Tray"]


def test_each_editor_asks_for_what_was_chosen(window: SettingsWindow, asked: list[Command]) -> None:
    rows = window.body.rows
    rows["auto_evict"].editor.switch.click()  # type: ignore[attr-defined]
    rows["admission"].editor.segmented.parts[1].click()  # type: ignore[attr-defined]
    type_into(entry(window, "parallel"), "4")
    type_into(entry(window, "vram_margin"), "2 GiB")
    type_into(entry(window, "vram_cap"), "700")
    type_into(entry(window, "max_loaded_models"), "no limit")
    type_into(entry(window, "auto_evict_threshold_pct"), "0.75")
    type_into(entry(window, "host"), "localhost")
    rows["models_dirs"].editor.add.click()  # type: ignore[attr-defined]
    rows["start_at_login"].editor.switch.click()  # type: ignore[attr-defined]
    assert asked == [
        Command(Kind.SET, "auto_evict", True),
        Command(Kind.SET, "admission", "reject"),
        Command(Kind.SET, "parallel", 4),
        Command(Kind.SET, "vram_margin", 2 * GIB),
        Command(Kind.SET, "vram_cap", 700 * MIB),
        Command(Kind.SET, "max_loaded_models", -1),
        Command(Kind.SET, "auto_evict_threshold_pct", 0.75),
        Command(Kind.SET, "host", "localhost"),
        Command(Kind.ADD_FOLDER, "models_dirs"),
        Command(Kind.START_AT_LOGIN, "", True),
    ]


def test_a_word_can_be_picked_for_a_special_value(window: SettingsWindow, asked: list[Command]) -> None:
    editor = window.body.rows["evict_idle_timeout_s"].editor
    assert isinstance(editor, TextEditor)
    combo = editor.combo
    assert combo is not None
    assert [combo.itemText(i) for i in range(combo.count())] == ["never", "when idle"]
    combo.setCurrentIndex(0)
    combo.activated.emit(0)
    assert asked == [Command(Kind.SET, "evict_idle_timeout_s", -1)]


def test_other_lists_are_typed_with_commas(window: SettingsWindow, asked: list[Command]) -> None:
    window.show_snapshot(snapshot(cors_origins=["http://a:1"]))
    entry = window.body.rows["cors_origins"].editor.entry  # type: ignore[attr-defined]
    assert entry.text() == "http://a:1"
    type_into(entry, "http://a:1, app://b")
    assert asked == [Command(Kind.SET, "cors_origins", ("http://a:1", "app://b"))]


def test_folders_are_removed_one_by_one(window: SettingsWindow, asked: list[Command]) -> None:
    window.show_snapshot(snapshot(models_dirs=["/a", "/b", "/c"]))
    editor = window.body.rows["models_dirs"].editor
    assert isinstance(editor, FoldersEditor)
    shown = [text.text() for text, _ in editor._rows if not text.isHidden()]
    assert shown == ["/a", "/b", "/c"]
    editor._rows[1][1].click()
    assert asked == [Command(Kind.SET, "models_dirs", ["/a", "/c"])]
    window.show_snapshot(snapshot(models_dirs=["/a"]))
    assert [t.text() for t, _ in editor._rows if not t.isHidden()] == ["/a"]


def test_another_unit_shows_the_same_size(window: SettingsWindow, asked: list[Command]) -> None:
    editor = window.body.rows["vram_margin"].editor
    assert isinstance(editor, SizeEditor)
    assert (editor.entry.text(), editor.units.currentText()) == ("512", "MiB")
    editor.units.setCurrentText("GiB")
    editor.units.activated.emit(1)
    assert editor.entry.text() == "0.5"
    assert asked == []
    window.show_snapshot(snapshot(vram_margin=3 * GIB))
    assert (editor.entry.text(), editor.units.currentText()) == ("3", "GiB")


def test_what_is_no_value_is_told_in_the_row_and_stays_to_be_mended(
    window: SettingsWindow, asked: list[Command]
) -> None:
    row, field = window.body.rows["port"], entry(window, "port")
    type_into(field, "99999")
    assert asked == []
    assert field.text() == "99999"
    assert row.error.isVisible()
    assert row.error.text().startswith("expected a whole number from 1 to 65535")
    type_into(field, "8080")
    assert asked == [Command(Kind.SET, "port", 8080)]
    assert not row.error.isVisible()


@pytest.mark.fault("F27")
def test_an_edit_elsewhere_shows_at_once_and_never_over_what_is_being_typed(
    window: SettingsWindow, asked: list[Command]
) -> None:
    field, row = entry(window, "parallel"), window.body.rows["parallel"]
    window.show_snapshot(snapshot(parallel=6))
    assert field.text() == "6"
    type_into(field, "12", enter=False)
    window.show_snapshot(snapshot(parallel=9, auto_evict=True))
    assert field.text() == "12"
    assert window.body.rows["auto_evict"].editor.switch.isChecked()  # type: ignore[attr-defined]
    assert row.error.text() == "It is 9 now, set elsewhere. Esc takes that over."
    QTest.keyClick(field, Qt.Key.Key_Escape)
    assert window.isVisible()  # the first Escape is the field's
    assert field.text() == "9"
    assert not row.error.isVisible()
    assert asked == []


def test_nothing_is_asked_for_when_the_keyboard_just_passes(
    window: SettingsWindow, asked: list[Command]
) -> None:
    for key in ("parallel", "vram_margin", "host"):
        field = entry(window, key)
        field.setFocus()
        QTest.keyClick(field, Qt.Key.Key_Tab)
    assert asked == []


def test_leaving_a_field_applies_what_was_typed(window: SettingsWindow, asked: list[Command]) -> None:
    field = entry(window, "parallel")
    type_into(field, "3", enter=False)
    window.search.setFocus()
    field.editingFinished.emit()  # the offscreen platform may keep the focus where it was
    assert asked == [Command(Kind.SET, "parallel", 3)]


def test_a_value_that_the_environment_decides_cannot_be_edited_here(window: SettingsWindow) -> None:
    of = msgspec.structs.replace(snapshot(host="0.0.0.0"), overridden={"host": "LEMON_TRAY_HOST"})
    window.show_snapshot(of)
    row = window.body.rows["host"]
    assert not row.editor.isEnabled()
    assert row.origin.text() == "Set by LEMON_TRAY_HOST"
    assert not row.reset.isVisible()
    window.show_snapshot(snapshot())
    assert row.editor.isEnabled()
    assert not row.origin.isVisible()


def test_a_changed_value_can_be_reset_alone_or_with_all(window: SettingsWindow, asked: list[Command]) -> None:
    window.show_snapshot(snapshot(auto_evict=True, vram_margin=GIB, models_dirs=["/a"]))
    rows = window.body.rows
    assert "changed, default is 512" in rows["vram_margin"].key_line.text()
    assert rows["vram_margin"].reset.isVisible()
    assert not rows["port"].reset.isVisible()
    rows["vram_margin"].reset.click()
    assert asked == [Command(Kind.SET, "vram_margin", 512 * MIB)]
    asked.clear()
    window.reset_all.click()
    assert asked == []  # once more, to be sure
    assert window.reset_all.text() == "Reset 3?"
    window.reset_all.click()
    assert {(c.target, str(c.value)) for c in asked} == {
        ("auto_evict", "False"),
        ("vram_margin", str(512 * MIB)),
        ("models_dirs", "[]"),
    }


def shown(window: SettingsWindow) -> list[str]:
    return [key for key in window.body.order() if window.body.rows[key].isVisible()]


def test_search_badges_and_changed_narrow_the_list(window: SettingsWindow) -> None:
    everything = shown(window)
    assert len(everything) == len(schema.describe()) + 1
    QTest.keyClicks(window.search, "threshold")
    assert shown(window) == ["auto_evict_threshold_pct"]
    QTest.keyClick(window.search, Qt.Key.Key_Escape)
    assert window.isVisible()
    assert shown(window) == everything
    QTest.keyClick(window.search, Qt.Key.Key_Escape)
    assert not window.isVisible()
    window.open()
    window.filters["restart"].click()
    assert set(shown(window)) == {i.key for i in schema.describe() if i.applies == "restart"}
    window.filters["restart"].click()
    window.show_snapshot(snapshot(auto_evict=True))
    window.changed.click()
    assert shown(window) == ["auto_evict"]
    window.go_to("Memory")
    assert len(shown(window)) == len(everything)
    assert window.side["Memory"].isChecked()
    window.search.setText("no such thing at all")
    assert window.body.nothing.isVisible()


def test_a_change_that_waits_for_a_restart_says_so_and_offers_it(
    window: SettingsWindow, asked: list[Command]
) -> None:
    assert not window.restart.isVisible()
    window.show_snapshot(snapshot(port=8080))
    assert window.note.text() == "1 change waits for a restart: port"
    window.restart.click()
    window.open_file.click()
    assert asked == [Command(Kind.RESTART), Command(Kind.OPEN_FILE, "settings")]


def test_a_hidden_window_does_nothing(look: Look, qtbot: QtBot) -> None:
    window = SettingsWindow(look, Edits())
    qtbot.addWidget(window)
    window.show_snapshot(snapshot())
    assert window.body.rows == {}
    window.open()
    complete(window, qtbot, 0)
    window.hide()
    paints = Paints(window)
    window.show_snapshot(snapshot(parallel=7))
    assert entry(window, "parallel").text() == "1"
    assert paints.painted == []
    window.open()
    assert entry(window, "parallel").text() == "7"


def test_rows_are_made_a_few_at_a_time(look: Look, qtbot: QtBot) -> None:
    window = SettingsWindow(look, Edits())
    qtbot.addWidget(window)
    window.show_snapshot(snapshot())
    window.open()
    assert len(window.body.rows) <= AT_A_TIME  # the loop that makes them carries every client's answer
    complete(window, qtbot, 0)
    assert sorted(window.body.order()) == sorted(i.key for i in schema.describe())


def test_the_same_values_repaint_nothing(window: SettingsWindow, qtbot: QtBot) -> None:
    QApplication.processEvents()
    window.search.clearFocus()
    QApplication.processEvents()
    paints = Paints(window.body)
    for generation in range(5):
        window.show_snapshot(msgspec.structs.replace(snapshot(), generation=generation))
        QApplication.processEvents()
    assert [type(w).__name__ for w in paints.painted] == []


def test_closing_hides_and_escape_closes(window: SettingsWindow) -> None:
    window.close()
    assert not window.isVisible()
    window.open()
    QTest.keyClick(window.search, Qt.Key.Key_Escape)
    assert not window.isVisible()


def test_everything_that_takes_the_keyboard_has_a_name(window: SettingsWindow) -> None:
    for widget in window.findChildren(QWidget):
        if widget.isVisible() and widget.focusPolicy() & Qt.FocusPolicy.TabFocus:
            assert widget.accessibleName() or type(widget).__name__ == "Button", widget


@pytest.mark.parametrize("family", ["DejaVu Sans", "Inter"])
@pytest.mark.parametrize("tokens", [LIGHT, DARK], ids=["light", "dark"])
def test_no_text_is_clipped_and_none_overlap(
    family: str, tokens: Any, qtbot: QtBot, qapp: QApplication
) -> None:
    if family not in QFontDatabase.families():
        pytest.skip(f"the font {family} is not installed")
    before = qapp.font()
    qapp.setFont(QFont(family))
    try:
        window = SettingsWindow(Look(tokens, motion=False), Edits())
        qtbot.addWidget(window)
        of = snapshot(auto_evict=True, vram_margin=GIB, models_dirs=["/home/ada/Models"], port=8080)
        window.show_snapshot(msgspec.structs.replace(of, overridden={"host": "LEMON_TRAY_HOST"}))
        for width in (720, 920):
            window.resize(width, 700)
            window.open()
            complete(window, qtbot, 0)
            QApplication.processEvents()
            check_rows(window)
        window.grab()
    finally:
        qapp.setFont(before)


def check_rows(window: SettingsWindow) -> None:
    for key, row in window.body.rows.items():
        places: list[tuple[QRect, str]] = [(row.badge.geometry(), "badge"), (row.editor.geometry(), "editor")]
        for text in row.findChildren(Text):
            if text.parent() is row and not text.isHidden() and text.text():
                assert not text._elided, (key, text.text())
                width = text.width() if text._wrap else min(text.width(), text.natural_width())
                places.append((QRect(text.pos(), QSize(width, text.height())), text.text()))
        for (one, a), (other, b) in itertools.combinations(places, 2):
            assert not one.intersects(other), (key, a, b)
        for place, _ in places:
            assert place.right() < row.width(), key
            assert place.bottom() < row.height(), key
        assert row.mapTo(window.body, QPoint(0, row.height())).y() <= window.body.minimumHeight()


def test_a_refusal_of_the_router_stands_in_the_row(qloop: Run, look: Look, qtbot: QtBot) -> None:
    async def flow() -> None:
        door = FakeDoor(snapshot())
        actions = Actions(door, asyncio.get_running_loop())
        faults: list[object] = []
        actions.failed.connect(faults.append)
        window = SettingsWindow(look, actions.edits)
        actions.shows_refusals = window.isVisible
        qtbot.addWidget(window)
        window.asked.connect(actions.run)
        actions.edited.connect(window.refresh)
        door.subscribe(window.show_snapshot)
        window.show_snapshot(door.snapshot)
        window.open()
        await until(lambda: "parallel" in window.body.rows)
        door.refuse = BadRequest("The disk is full.")
        row = window.body.rows["parallel"]
        type_into(entry(window, "parallel"), "4")
        assert entry(window, "parallel").text() == "4"  # what was asked for, until the answer
        await until(lambda: not actions._tasks)
        assert row.error.text() == "The disk is full."
        assert entry(window, "parallel").text() == "1"
        assert faults == []
        type_into(entry(window, "parallel"), "4")
        await until(lambda: not actions._tasks)
        actions.edits.seen(door.snapshot.generation)
        window.refresh()
        assert not row.error.isVisible()
        assert entry(window, "parallel").text() == "4"
        await actions.close()

    qloop(flow())


def test_the_keyboard_goes_as_the_eye_does(window: SettingsWindow, qtbot: QtBot) -> None:
    active(window, qtbot)
    window.search.setFocus()
    seen: list[str] = []
    for _ in range(16):
        QTest.keyClick(window.focusWidget(), Qt.Key.Key_Tab)
        widget = window.focusWidget()
        assert widget is not None
        seen.append(widget.accessibleName())
    assert seen[:3] == ["Show only live", "Show only next load", "Show only restart"]
    groups = list(dict.fromkeys(i.group for i in schema.describe()))
    assert [name.partition(",")[0] for name in seen[3 : 3 + len(groups)]] == groups
    rows = seen[3 + len(groups) + 2 :]
    assert rows[:2] == ["Autosize the pool", "Max loaded models"]


def test_a_broken_file_is_told_where_its_settings_are(window: SettingsWindow) -> None:
    fine = window.note.text()
    window.config_file = "/c/config.json"
    window.show_snapshot(replace(snapshot(), problems=("/c/config.json: it is no JSON", "another")))
    assert window.note.text() == "Settings file: it is no JSON"
    window.show_snapshot(snapshot())
    assert window.note.text() == fine
