"""The window that gets models: what is on its way, what fits this machine, and one by its name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from lemon_tray.actions import Actions
from lemon_tray.edits import Edits
from lemon_tray.get_window import GetWindow
from lemon_tray.present_get import left_text, present_get, pull_progress, stage_text
from lemon_tray.theme import Look
from lemon_tray.view import Banner, Command, Kind
from lemon_tray.window_set import GET, WindowSet
from router.errors import BadRequest, RouterError
from router.paths import Paths
from router.snapshot import DownloadView, Snapshot, SuggestionView
from router.units import GIB, MIB, NBSP
from tests.ui import canned
from tests.ui.conftest import until
from tests.ui.fake_door import FakeDoor

Run = Callable[[Coroutine[Any, Any, Any]], Any]


def suggestion(name: str, needs_gib: float, fits: bool | None = True, here: bool = False) -> SuggestionView:
    size = int(needs_gib * GIB * 0.7)
    return SuggestionView(f"o/{name}:Q4_0", name, "general", size, int(needs_gib * GIB), fits, here)


SUGGESTED = (
    suggestion("Small", 2.0),
    suggestion("Middle", 12.0),
    suggestion("Here", 13.0, here=True),
    suggestion("Large", 90.0),
    suggestion("Huge", 400.0, fits=False),
    suggestion("Odd", 0.0, fits=None),
)


def offering(*downloads: DownloadView, **more: Any) -> Snapshot:
    return msgspec.structs.replace(
        canned.full(), suggestions=SUGGESTED, downloads=downloads, **{"generation": 99, **more}
    )


def pull(name: str = "o/Small:Q4_0", state: str = "running", **more: Any) -> DownloadView:
    given: dict[str, Any] = {"done": 0, "total": None, "kind": "model", **more}
    return DownloadView(name, state, **given)


# What is shown


def test_the_best_that_fits_comes_first_and_what_does_not_fit_is_left_out() -> None:
    rows = present_get(offering())
    assert [row.title for row in rows] == ["Middle", "Small", "Large", "Odd"]
    assert rows[0].state == "Best fit: all of it on your GPU"
    assert rows[1].state == "Fits on your GPU"
    assert rows[2].state == "Partly on the processor: slower"
    assert rows[0].options[0].command == Command(Kind.PULL, "o/Middle:Q4_0")
    assert f"8.4{NBSP}GiB to fetch · needs about 12.0{NBSP}GiB" in rows[0].detail
    assert rows[0].detail.endswith("o/Middle:Q4_0")


def test_a_machine_without_cards_begins_with_the_smallest() -> None:
    devices = tuple(d for d in canned.full().devices if d.kind == "host")
    rows = present_get(offering(devices=devices))
    assert [row.title for row in rows][:2] == ["Small", "Middle"]
    assert rows[0].state == "Runs on the processor"


def test_what_is_on_its_way_comes_before_all_and_is_not_offered_twice() -> None:
    running = pull("o/small:q4_0", done=GIB, total=4 * GIB, stage="downloading", per_s=50.0 * MIB)
    failed = pull("o/other", "failed", error="The hub has no repository o/other.")
    stopped = pull("o/Middle:Q4_0", "cancelled")
    rows = present_get(
        offering(running, failed, stopped, pull("o/x", "done"), DownloadView("GPU build", "running", 0, None))
    )
    assert [row.title for row in rows] == ["o/Middle:Q4_0", "o/other", "o/small:q4_0", "Large", "Odd"]
    assert rows[0].state == "Stopped; what has arrived is kept"
    assert (rows[0].options[0].label, rows[0].options[0].command) == (
        "Go on",
        Command(Kind.PULL, "o/Middle:Q4_0"),
    )
    assert rows[1].problem == "The hub has no repository o/other."
    assert rows[1].options[0].command == Command(Kind.PULL, "o/other")
    assert rows[2].options[0].command == Command(Kind.CANCEL_DOWNLOAD, "o/small:q4_0")
    assert rows[2].progress is not None
    assert rows[2].progress.fraction == 0.25
    assert rows[2].progress.text == f"1.0 of 4.0{NBSP}GiB, 50.0{NBSP}MiB/s, 2{NBSP}min{NBSP}left"


def test_the_demo_model_is_tried_again_by_its_own_name() -> None:
    (row,) = present_get(
        msgspec.structs.replace(offering(pull("SmolLM2-135M-Instruct.Q4_1", "failed")), suggestions=())
    )
    assert row.options[0].command == Command(Kind.PULL, "demo")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(5, "under a minute left"), (61, "2 min left"), (3599, "1 h 0 min left"), (7500, "2 h 6 min left")],
)
def test_how_long_it_takes(seconds: float, text: str) -> None:
    assert left_text(seconds).replace(NBSP, " ") == text


def test_each_stage_has_words() -> None:
    words = {
        stage_text(pull(stage=stage)) for stage in ("", "resolving", "waiting", "downloading", "placing")
    }
    assert len(words) == 4
    assert pull_progress(pull(done=41 << 20, total=94 << 20)).text == f"41 of 94{NBSP}MiB"


# The window


@pytest.fixture
def window(look: Look, qtbot: QtBot) -> Iterator[GetWindow]:
    made = GetWindow(look)
    qtbot.addWidget(made)
    made.show_snapshot(offering())
    made.open()
    QApplication.processEvents()
    yield made
    made.hide()


@pytest.fixture
def asked(window: GetWindow) -> list[Command]:
    commands: list[Command] = []
    window.asked.connect(commands.append)
    return commands


def test_a_card_gets_its_model(window: GetWindow, asked: list[Command]) -> None:
    QTest.mouseClick(window.column.by_id["o/Middle:Q4_0"].buttons[0], Qt.MouseButton.LeftButton)
    assert asked == [Command(Kind.PULL, "o/Middle:Q4_0")]


def test_a_name_is_asked_for_by_button_and_by_return(window: GetWindow, asked: list[Command]) -> None:
    assert not window.get.isEnabled()
    QTest.keyClicks(window.name, " hf.co/o/r:Q8_0 ")
    assert window.get.isEnabled()
    QTest.mouseClick(window.get, Qt.MouseButton.LeftButton)
    QTest.keyClick(window.name, Qt.Key.Key_Return)
    assert asked == [Command(Kind.PULL, "hf.co/o/r:Q8_0")] * 2
    window.answer("hf.co/o/r:Q8_0", "")
    assert window.name.text() == ""
    QTest.keyClick(window.name, Qt.Key.Key_Return)
    assert len(asked) == 2


def test_a_refusal_is_shown_until_something_else_is_typed(window: GetWindow) -> None:
    QTest.keyClicks(window.name, "llama")
    QTest.keyClick(window.name, Qt.Key.Key_Return)
    window.answer("other", "not for this one")
    assert window.refusal.isHidden()
    window.answer("llama", "llama names no repository.")
    assert window.refusal.isVisible()
    assert window.refusal.text() == "llama names no repository."
    assert window.name.text() == "llama"
    QTest.keyClicks(window.name, "x")
    assert window.refusal.isHidden()


def test_progress_goes_on_in_the_same_card_and_ends(window: GetWindow, asked: list[Command]) -> None:
    window.show_snapshot(offering(pull(done=GIB, total=4 * GIB)))
    card = window.column.by_id["o/Small:Q4_0"]
    window.show_snapshot(offering(pull(done=2 * GIB, total=4 * GIB), generation=100))
    assert window.column.by_id["o/Small:Q4_0"] is card
    assert card.bar.isVisible()
    QTest.mouseClick(card.buttons[0], Qt.MouseButton.LeftButton)
    assert asked == [Command(Kind.CANCEL_DOWNLOAD, "o/Small:Q4_0")]
    window.show_snapshot(offering(pull(state="done"), generation=101))
    assert window.column.cards
    assert not window.column.by_id["o/Small:Q4_0"].bar.isVisible()


def test_everything_has_a_name_for_screen_readers(window: GetWindow) -> None:
    assert window.name.accessibleName()
    assert all(card.accessibleName() for card in window.column.by_id.values())


def test_it_is_one_of_the_apps_windows(look: Look, qtbot: QtBot, tmp_path: Path) -> None:
    windows = WindowSet(look, Edits(), Paths.under(tmp_path), lambda work: work.close())
    windows.show_snapshot(offering())
    windows.show_pull("o/r", "not open yet: nobody is told")
    windows.open(GET)
    window = windows.get(GET)
    assert isinstance(window, GetWindow)
    QTest.keyClicks(window.name, "o/r")
    QTest.keyClick(window.name, Qt.Key.Key_Return)
    windows.show_pull("o/r", "It cannot be had.")
    assert window.refusal.text() == "It cannot be had."
    assert list(window.column.by_id)
    windows.restyle()
    windows.close()


# From the window to the router


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RouterError("The disk is full.", code="disk_full"), ["o/r did not arrive"]),
        (RouterError("The pull was cancelled.", code="cancelled"), []),
    ],
)
def test_a_pull_that_fails_later_is_told_in_the_panel(
    qloop: Run, qapp: QApplication, error: RouterError, told: list[str]
) -> None:
    async def flow() -> None:
        door = FakeDoor(canned.full())
        actions = Actions(door, asyncio.get_running_loop())
        faults: list[Banner] = []
        actions.failed.connect(faults.append)
        actions.pulled.connect(lambda _name, _refusal: setattr(door, "refuse", error))
        actions.run(Command(Kind.PULL, "o/r"))
        await until(lambda: door.refuse is None and ("wait", "o/r") in door.asked)
        await actions.close()
        assert [fault.title for fault in faults] == told
        if faults:
            assert [option.command.kind for option in faults[0].options] == [Kind.PULL, Kind.DISMISS]

    qloop(flow())


def test_a_name_that_is_none_is_told_where_it_was_typed(qloop: Run, qapp: QApplication) -> None:
    async def flow() -> None:
        door = FakeDoor(canned.full())
        actions = Actions(door, asyncio.get_running_loop())
        answers: list[tuple[str, str]] = []
        faults: list[Banner] = []
        actions.pulled.connect(lambda name, refusal: answers.append((name, refusal)))
        actions.failed.connect(faults.append)
        door.refuse = BadRequest("llama names no repository.", hint="Write owner/repo.")
        actions.run(Command(Kind.PULL, "llama"))
        await until(lambda: answers)
        await actions.close()
        assert answers == [("llama", "llama names no repository. Write owner/repo.")]
        assert not faults

    qloop(flow())
