"""The model browser as a window."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import msgspec
import pytest
from PySide6.QtCore import QPoint, QPointF, QRect, QRectF, Qt
from PySide6.QtGui import QAccessible
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QWidget
from pytestqt.qtbot import QtBot

from lemon_tray.actions import Actions
from lemon_tray.models_table import ACTION, DEVICES, FIT
from lemon_tray.models_window import ModelsWindow
from lemon_tray.present_catalog import PlanView, Verdict
from lemon_tray.theme import DARK, LIGHT, Look
from lemon_tray.view import Command, Kind
from router.errors import BadRequest
from router.snapshot import DeletionView
from tests.ui import canned
from tests.ui.conftest import Paints, active, until
from tests.ui.fake_door import FakeDoor

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture
def window(look: Look, qtbot: QtBot) -> Iterator[ModelsWindow]:
    made = ModelsWindow(look)
    qtbot.addWidget(made)
    made.show_snapshot(canned.catalog())
    made.open()
    QApplication.processEvents()
    yield made
    made.hide()


@pytest.fixture
def asked(window: ModelsWindow) -> list[Command]:
    commands: list[Command] = []
    window.asked.connect(commands.append)
    return commands


def names(window: ModelsWindow) -> list[str]:
    return [row.model for row in window.table.catalog.rows]


def choose(window: ModelsWindow, model: str) -> None:
    window.table.setCurrentIndex(window.table.catalog.index(names(window).index(model), 0))


def click_button(window: ModelsWindow, model: str) -> None:
    index = window.table.catalog.index(names(window).index(model), ACTION)
    area = window.table.delegate.button_rect(QRectF(window.table.visualRect(index)))
    at = area.center().toPoint()
    QTest.mouseMove(window.table.viewport(), at)
    QTest.mouseClick(window.table.viewport(), Qt.MouseButton.LeftButton, pos=at)


def test_the_buttons_of_the_rows_do_what_they_say(window: ModelsWindow, asked: list[Command]) -> None:
    for model in ("Phi-4-mini", "Qwen3-8B", "Gemma-3-4B", "half-a-file"):
        click_button(window, model)
    assert asked == [
        Command(Kind.LOAD, "Phi-4-mini"),
        Command(Kind.UNLOAD, "Qwen3-8B"),
        Command(Kind.UNLOAD, "Gemma-3-4B"),
    ]


def test_a_click_beside_the_button_only_chooses(window: ModelsWindow, asked: list[Command]) -> None:
    index = window.table.catalog.index(names(window).index("Phi-4-mini"), FIT)
    at = window.table.visualRect(index).center()
    QTest.mouseClick(window.table.viewport(), Qt.MouseButton.LeftButton, pos=at)
    assert asked == []
    assert window.table.current() == "Phi-4-mini"
    assert window.details.name.text() == "Phi-4-mini"


def test_keys_move_and_act(window: ModelsWindow, asked: list[Command]) -> None:
    choose(window, "Phi-4-mini")
    QTest.keyClick(window.table, Qt.Key.Key_Return)
    QTest.keyClick(window.table, Qt.Key.Key_Up)
    QTest.keyClick(window.table, Qt.Key.Key_Space)
    assert asked == [Command(Kind.LOAD, "Phi-4-mini"), Command(Kind.LOAD, "nomic-embed")]
    QTest.keyClick(window.table, Qt.Key.Key_Escape)
    assert not window.isVisible()


def test_search_and_type_narrow_the_list(window: ModelsWindow) -> None:
    window.search.setText("qwen")
    assert names(window) == ["Qwen3-8B", "Qwen3-32B"]
    assert window.types is not None
    window.types.asked.emit("embedding")
    assert names(window) == []
    assert window.nothing.text() == "No model answers to that."
    assert not window.details.isVisible()
    window.search.clear()
    assert names(window) == ["nomic-embed"]
    assert [part.text() for part in window.types.parts] == ["All 9", "Language", "Embedding"]


def test_the_chosen_model_stays_chosen_while_rows_come_and_go(window: ModelsWindow) -> None:
    choose(window, "Phi-4-mini")
    window.details.form.fields["ctx_size"].combo.setEditText("4096")
    of = canned.catalog()
    fewer = tuple(m for m in of.models if m.name != "Mistral-7B")
    loaded = canned.resident("nomic-embed", 0.3, {"gpu0": 0.3}, type="embedding")
    window.show_snapshot(msgspec.structs.replace(of, models=fewer, residents=(*of.residents, loaded)))
    assert window.table.current() == "Phi-4-mini"
    assert window.details.form.options() == {"ctx_size": 4096}  # what was filled in stays
    choose(window, "Qwen3-32B")
    assert window.details.form.options() == {}  # for that model only


def test_a_model_is_loaded_with_the_options_of_the_form(window: ModelsWindow, asked: list[Command]) -> None:
    choose(window, "Phi-4-mini")
    form = window.details.form
    assert window.details.load.text() == "Load"
    form.fields["ctx_size"].combo.setEditText("8192")
    form.fields["device"].combo.setCurrentText("CUDA1")
    form.fields["cache_type"].combo.setCurrentText("q8_0")
    form.fields["keep_alive"].combo.setEditText("1h")
    form.save.click()
    assert window.details.load.text() == "Load with these"
    window.details.load.click()
    assert asked == [
        Command(
            Kind.LOAD,
            "Phi-4-mini",
            {
                "ctx_size": 8192,
                "device": ["CUDA1"],
                "keep_alive": "1h",
                "cache_type_k": "q8_0",
                "cache_type_v": "q8_0",
                "save_options": True,
            },
        )
    ]
    form.fields["device"].combo.setCurrentText("processor only")
    assert form.options()["device"] == ["cpu"]


def test_a_loaded_model_is_loaded_anew_only_with_other_options(
    window: ModelsWindow, asked: list[Command]
) -> None:
    choose(window, "Qwen3-8B")
    assert not window.details.load.isEnabled()
    window.details.form.fields["parallel"].combo.setEditText("4")
    assert window.details.load.isEnabled()
    assert window.details.load.text() == "Load anew with these"
    window.details.pin.click()
    window.details.copy.click()
    window.add_folder.click()
    assert asked == [
        Command(Kind.PIN, "Qwen3-8B", True),
        Command(Kind.COPY, "text", "Qwen3-8B"),
        Command(Kind.ADD_FOLDER),
    ]


def test_it_says_when_there_are_no_models(look: Look, qtbot: QtBot) -> None:
    window = ModelsWindow(look)
    qtbot.addWidget(window)
    window.show_snapshot(canned.empty())
    window.open()
    assert window.nothing.text().startswith("No models yet.")
    assert not window.details.isVisible()


def test_a_thousand_models_are_listed_and_only_the_visible_are_drawn(look: Look, qtbot: QtBot) -> None:
    window = ModelsWindow(look)
    qtbot.addWidget(window)
    many = tuple(canned.model(f"model-{i:04}", 1, 1) for i in range(1000))
    window.show_snapshot(canned.snapshot(models=many, devices=(canned.device(0, "X", {}),)))
    window.open()
    QApplication.processEvents()
    drawn: list[int] = []
    paint = window.table.delegate.paint

    def counted(painter: Any, option: Any, index: Any) -> None:
        drawn.append(index.row())
        paint(painter, option, index)

    window.table.delegate.paint = counted  # type: ignore[method-assign]
    window.table.viewport().grab()
    assert 0 < len(set(drawn)) < 40
    assert len(window.findChildren(QWidget)) < 150


def test_a_hidden_window_does_nothing_and_the_same_rows_repaint_nothing(
    look: Look, qtbot: QtBot, window: ModelsWindow
) -> None:
    hidden = ModelsWindow(look)
    qtbot.addWidget(hidden)
    hidden.show_snapshot(canned.catalog())
    assert names(hidden) == []
    window.table.setFocus()
    QApplication.processEvents()
    paints = Paints(window)
    for generation in range(5):
        window.show_snapshot(msgspec.structs.replace(canned.catalog(), generation=generation))
        QApplication.processEvents()
    assert [type(w).__name__ for w in paints.painted] == []


@pytest.mark.parametrize("tokens", [LIGHT, DARK], ids=["light", "dark"])
def test_every_verdict_is_drawn_by_glyph_and_word(tokens: Any, qtbot: QtBot, qapp: QApplication) -> None:
    window = ModelsWindow(Look(tokens, motion=False))
    qtbot.addWidget(window)
    window.show_snapshot(canned.catalog())
    window.resize(1060, 900)
    window.open()
    at = next(i for i, row in enumerate(window.table.catalog.rows) if row.model == "Mistral-7B")
    window.table.setCurrentIndex(window.table.catalog.index(at, 0))  # one that can be loaded
    picture = window.grab().toImage()
    colours = {
        picture.pixelColor(x, y).name()
        for x in range(0, picture.width(), 2)
        for y in range(0, picture.height(), 2)
    }
    for token in (tokens.others, tokens.segments[0], tokens.track, tokens.lemon):
        assert token.lower() in colours


def test_names_for_a_screen_reader(window: ModelsWindow) -> None:
    index = window.table.catalog.index(names(window).index("Phi-4-mini"), FIT)
    said = window.table.catalog.data(index, Qt.ItemDataRole.AccessibleTextRole)
    assert said.startswith("Phi-4-mini: Fits on CUDA0")
    assert QAccessible.queryAccessibleInterface(window.table) is not None
    for widget in window.findChildren(QWidget):
        if widget.isVisible() and widget.focusPolicy() & Qt.FocusPolicy.TabFocus:
            assert widget.accessibleName() or widget.metaObject().className() == "Button", widget


def test_the_button_is_not_pressed_by_a_row_that_slid_under_the_pointer(
    window: ModelsWindow, asked: list[Command]
) -> None:
    index = window.table.catalog.index(names(window).index("Phi-4-mini"), ACTION)
    at: QPoint = QPointF(
        window.table.delegate.button_rect(QRectF(window.table.visualRect(index))).center()
    ).toPoint()
    QTest.mousePress(window.table.viewport(), Qt.MouseButton.LeftButton, pos=at)
    of = canned.catalog()
    window.show_snapshot(
        msgspec.structs.replace(of, models=tuple(m for m in of.models if m.name != "Mistral-7B"))
    )
    QTest.mouseRelease(window.table.viewport(), Qt.MouseButton.LeftButton, pos=at)
    assert asked == []


def test_a_plan_is_asked_for_and_shown(qloop: Run, look: Look, qtbot: QtBot) -> None:
    async def flow() -> None:
        door = FakeDoor(canned.catalog())
        actions = Actions(door, asyncio.get_running_loop())
        window = ModelsWindow(look)
        qtbot.addWidget(window)
        window.plan_wanted.connect(actions.plan)
        actions.planned.connect(window.show_plan)
        window.show_snapshot(door.snapshot)
        window.open()
        choose(window, "Phi-4-mini")
        window.details.form.fields["parallel"].combo.setEditText("2")
        await until(lambda: window.details.plan_text.text() == "Fits now.")
        assert door.asked[-1] == ("plan", "Phi-4-mini", {"parallel": 2})
        door.refuse = BadRequest("ctx_size: expected a whole number.")
        window.details.form.fields["ctx_size"].combo.setEditText("lots")
        await until(lambda: "expected" in window.details.plan_text.text())
        window.show_plan("another", PlanView(Verdict.GOOD, "late"))
        assert "late" not in window.details.plan_text.text()
        await actions.close()

    qloop(flow())


def ask_to_delete(window: ModelsWindow, model: str, *files: str, freed: int = 3 << 30) -> None:
    choose(window, model)
    window.details.delete.click()
    window.details.show_deletion(model, DeletionView(model, files or (f"/m/{model}.gguf",), freed))


def test_files_are_deleted_only_after_they_were_named(window: ModelsWindow, asked: list[Command]) -> None:
    ask_to_delete(window, "Phi-4-mini", *(f"/m/Phi-{n}.gguf" for n in range(1, 7)))
    prompt = window.details.prompt
    assert asked == [Command(Kind.PLAN_DELETION, "Phi-4-mini")]
    assert prompt.title.text() == "Delete Phi-4-mini and its 6 files?"
    lines = [line.text() for line in prompt.files if line.isVisible()]
    assert lines == [*(f"/m/Phi-{n}.gguf" for n in range(1, 5)), "and 2 more files"]
    assert "3.0\N{NO-BREAK SPACE}GiB" in prompt.warning.text()
    assert not window.details.form.isVisible()
    prompt.sure.click()
    assert asked[1:] == [Command(Kind.DELETE, "Phi-4-mini")]
    assert not prompt.sure.isEnabled()  # it is under way: once is enough
    window.details.show_deletion("Phi-4-mini", "Phi-1.gguf cannot be deleted: Permission denied.")
    assert prompt.warning.text() == "Phi-1.gguf cannot be deleted: Permission denied."
    assert not prompt.sure.isVisible()
    prompt.keep.click()
    assert window.details.form.isVisible()


def test_a_question_about_files_is_put_away(window: ModelsWindow, asked: list[Command]) -> None:
    ask_to_delete(window, "Phi-4-mini")
    prompt = window.details.prompt
    QTest.keyClick(prompt.keep, Qt.Key.Key_Escape)
    assert prompt.isHidden()
    assert window.isVisible()  # one step back, not two
    ask_to_delete(window, "Phi-4-mini")
    choose(window, "nomic-embed")
    assert prompt.isHidden()
    window.details.show_deletion("Phi-4-mini", DeletionView("Phi-4-mini", ("/m/x",), 1))
    assert prompt.isHidden()  # an answer for another model than is chosen now
    window.table.setFocus()
    QTest.keyClick(window.table, Qt.Key.Key_Delete)
    assert asked[-1] == Command(Kind.PLAN_DELETION, "nomic-embed")
    assert not any(command.kind is Kind.DELETE for command in asked)


def test_what_cannot_be_deleted_says_why(window: ModelsWindow, asked: list[Command]) -> None:
    of = canned.catalog()
    foreign = "/o/m is not a file that Lemon Tray keeps (Ollama)."
    models = tuple(
        msgspec.structs.replace(m, foreign=foreign if m.name == "Mistral-7B" else "") for m in of.models
    )
    window.show_snapshot(msgspec.structs.replace(of, models=models))
    for model, why in (("Qwen3-8B", "Unload it first."), ("Mistral-7B", f"Not deleted here: {foreign}")):
        choose(window, model)
        assert not window.details.delete.isEnabled()
        assert window.details.delete.toolTip() == why
        assert window.details.delete.accessibleDescription() == why
        QTest.keyClick(window.table, Qt.Key.Key_Delete)
    choose(window, "half-a-file")
    assert window.details.delete.isEnabled()  # what cannot be loaded only takes up room
    assert asked == []


def test_deleting_goes_to_the_router_and_its_refusal_back(qloop: Run, window: ModelsWindow) -> None:
    door = FakeDoor(canned.catalog())

    async def work() -> None:
        actions = Actions(door, asyncio.get_running_loop())
        door.subscribe(window.show_snapshot)
        actions.deletion.connect(window.details.show_deletion)
        window.asked.connect(actions.run)
        choose(window, "Phi-4-mini")
        window.details.delete.click()
        await until(lambda: window.details.prompt.isVisible())
        door.refuse = BadRequest("It is loaded.")
        window.details.prompt.sure.click()
        await until(lambda: window.details.prompt.warning.text() == "It is loaded.")
        window.details.prompt.keep.click()
        window.details.delete.click()
        await until(lambda: window.details.prompt.sure.isVisible())
        window.details.prompt.sure.click()
        await until(lambda: not any(m.name == "Phi-4-mini" for m in door.snapshot.models))
        await until(lambda: window.details.prompt.isHidden())
        await actions.close()

    qloop(work())


def test_tab_goes_through_the_window_as_it_is_read(window: ModelsWindow) -> None:
    choose(window, "Phi-4-mini")
    details = window.details
    assert window.types is not None
    window.search.setFocus()
    wanted = [window.types.parts[0], window.get_models, window.add_folder, window.table, details.delete]
    wanted += [details.copy, details.pin, details.load, details.form.fields["ctx_size"].combo]
    reached = []
    for _ in wanted:
        QTest.keyClick(QApplication.focusWidget(), Qt.Key.Key_Tab)
        reached.append(QApplication.focusWidget())
    assert reached == wanted


@pytest.mark.parametrize("width", [640, 720, 860, 1200])
def test_everything_can_be_reached_in_a_small_window(window: ModelsWindow, width: int) -> None:
    choose(window, "Qwen3-32B")
    window.resize(width, 440)
    QApplication.processEvents()
    table, details = window.table, window.details
    table.scrollTo(table.currentIndex())
    at = table.visualRect(table.catalog.index(table.currentIndex().row(), ACTION))
    assert table.viewport().width() >= at.right()
    assert at.top() == 0 or table.height() > table.rowHeight(0)
    assert table.isColumnHidden(DEVICES) is (width < 760)
    shown = [*details.form.fields.values(), details.form.save_label]
    for part in (*shown, details.delete, details.load, details.plan_text, window.search, window.add_folder):
        area = QRect(part.mapTo(window, QPoint(0, 0)), part.size())
        assert window.rect().contains(area), part
    areas = [QRect(part.mapTo(window, QPoint(0, 0)), part.size()) for part in shown]
    assert not any(a.intersects(b) for a, b in itertools.combinations(areas, 2))


def test_the_ring_of_the_keyboard_is_around_the_whole_row(
    window: ModelsWindow, look: Look, qtbot: QtBot
) -> None:
    choose(window, "Phi-4-mini")
    active(window, qtbot)
    table = window.table
    row = table.visualRect(table.currentIndex())
    ends = [QPoint(x, row.center().y()) for x in (1, table.viewport().width() - 2)]

    def inked() -> list[bool]:
        picture = table.viewport().grab().toImage()
        return [picture.pixelColor(at).name() == look.colour("ink").name() for at in ends]

    table.setFocus(Qt.FocusReason.TabFocusReason)
    assert inked() == [True, True]
    window.search.setFocus()
    assert inked() == [False, False]
