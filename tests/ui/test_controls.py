"""Live controls: they act at once, show the value in force, and spring back with the reason."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtTest import QTest
from pytestqt.qtbot import QtBot

from lemon_tray.actions import Actions
from lemon_tray.bridge import Bridge
from lemon_tray.edits import Edits
from lemon_tray.panel import Panel
from lemon_tray.switches import Stepper
from lemon_tray.theme import Look
from lemon_tray.view import Banner, Command, Kind
from router.errors import BadRequest, LoadFailed, RouterError
from tests.ui import canned
from tests.ui.conftest import until, view_of
from tests.ui.fake_door import FakeDoor

Run = Callable[[Coroutine[Any, Any, Any]], Any]


class Desk:
    """A door, its actions, and a panel that shows both."""

    def __init__(self, look: Look, qtbot: QtBot, door: FakeDoor) -> None:
        self.door = door
        self.actions = Actions(door, asyncio.get_running_loop())
        self.panel = Panel(look, self.actions.edits)
        qtbot.addWidget(self.panel)
        self.bridge = Bridge(door, self.panel, least_ms=1)
        self.faults: list[Banner] = []
        self.bridge.changed.connect(self.show)
        self.actions.edited.connect(self.show)
        self.actions.failed.connect(self.faults.append)
        self.panel.asked.connect(self.actions.run)
        self.show()
        self.panel.open()

    def show(self, *_: object) -> None:
        self.actions.edits.seen(self.door.snapshot.generation)
        self.panel.show_view(view_of(self.door.snapshot))

    @property
    def controls(self) -> Any:
        return self.panel.controls

    async def idle(self) -> None:
        """Wait until all that was asked is answered, and the last snapshot has come to the panel."""
        await until(lambda: not self.actions._tasks and not self.bridge._timer.isActive())


def test_a_switch_acts_at_once_and_shows_what_is_in_force(qloop: Run, look: Look, qtbot: QtBot) -> None:
    async def flow() -> None:
        desk = Desk(look, qtbot, FakeDoor(canned.warning()))
        desk.controls.autosize.click()
        await desk.idle()
        assert desk.door.asked == [("set", {"llm_pool_autosize": False})]
        assert not desk.controls.autosize.isChecked()
        desk.controls.auto_evict.click()
        await desk.idle()
        assert desk.controls.auto_evict.isChecked()
        assert desk.door.snapshot.pool.auto_evict

    qloop(flow())


def test_a_refused_edit_springs_back_and_says_why(qloop: Run, look: Look, qtbot: QtBot) -> None:
    async def flow() -> None:
        desk = Desk(look, qtbot, FakeDoor(canned.warning()))
        desk.door.refuse = BadRequest("The settings file cannot be written.", hint="Free some space.")
        desk.controls.auto_evict.click()
        await desk.idle()
        assert not desk.controls.auto_evict.isChecked()
        reason = desk.controls.labels["auto_evict"][2]
        assert reason.isVisible()
        assert reason.text() == "The settings file cannot be written. Free some space."
        assert desk.faults == []
        desk.controls.auto_evict.click()
        await desk.idle()
        assert desk.controls.auto_evict.isChecked()
        assert not reason.isVisible()

    qloop(flow())


def test_a_reason_is_gone_when_the_panel_opens_again(qloop: Run, look: Look, qtbot: QtBot) -> None:
    async def flow() -> None:
        desk = Desk(look, qtbot, FakeDoor(canned.warning()))
        desk.door.refuse = BadRequest("No.")
        desk.controls.autosize.click()
        await desk.idle()
        assert desk.controls.labels["llm_pool_autosize"][2].isVisible()
        assert desk.controls.autosize.isChecked()
        desk.panel.hide()
        desk.panel.open()
        assert not desk.controls.labels["llm_pool_autosize"][2].isVisible()

    qloop(flow())


def test_a_change_made_elsewhere_is_followed(qloop: Run, look: Look, qtbot: QtBot) -> None:
    async def flow() -> None:
        desk = Desk(look, qtbot, FakeDoor(canned.warning()))
        desk.door.publish_pool(autosize=False, configured_limit=7, auto_evict=True)
        await until(lambda: desk.controls.stepper.value() == 7)
        assert not desk.controls.autosize.isChecked()
        assert desk.controls.auto_evict.isChecked()

    qloop(flow())


def test_quick_steps_build_on_each_other(qloop: Run, look: Look, qtbot: QtBot) -> None:
    async def flow() -> None:
        desk = Desk(look, qtbot, FakeDoor(canned.warning()))
        desk.door.gate = asyncio.Event()
        for expected in (2, 3, 4):
            desk.controls.stepper.stepBy(1)
            await until(lambda expected=expected: desk.controls.stepper.value() == expected)
        desk.door.gate.set()
        await desk.idle()
        assert [a[1] for a in desk.door.asked] == [{"max_loaded_models": n} for n in (2, 3, 4)]
        assert desk.door.snapshot.pool.configured_limit == 4
        assert desk.controls.stepper.value() == 4

    qloop(flow())


def test_no_limit_is_a_toggle_and_goes_back_to_what_was(qloop: Run, look: Look, qtbot: QtBot) -> None:
    async def flow() -> None:
        desk = Desk(look, qtbot, FakeDoor(canned.snapshot(pool=canned.pool(configured_limit=5))))
        desk.controls.unlimited.click()
        await desk.idle()
        assert desk.door.snapshot.pool.configured_limit == -1
        assert desk.controls.unlimited.isChecked()
        assert desk.controls.stepper.target(1) is None
        desk.controls.unlimited.click()
        await desk.idle()
        assert desk.door.snapshot.pool.configured_limit == 5

    qloop(flow())


def test_leaving_no_limit_for_the_first_time_unloads_nothing(qloop: Run, look: Look, qtbot: QtBot) -> None:
    async def flow() -> None:
        of = canned.loading()
        door = FakeDoor(of)
        door.publish_pool(configured_limit=-1, effective_limit=-1)
        desk = Desk(look, qtbot, door)
        desk.controls.unlimited.click()
        await desk.idle()
        assert door.asked == [("set", {"max_loaded_models": 2})]

    qloop(flow())


@pytest.mark.parametrize(
    ("value", "steps", "target"),
    [
        (1, -1, None),
        (1, 1, 2),
        (16, 1, None),
        (16, -1, 15),
        (40, 1, None),
        (40, -1, 16),
        (0, 1, 1),
        (0, -1, None),
        (-1, 1, None),
        (5, 16, 16),
        (5, -16, 1),
    ],
)
def test_where_a_step_leads(value: int, steps: int, target: int | None, look: Look, qtbot: QtBot) -> None:
    stepper = Stepper(look)
    qtbot.addWidget(stepper)
    stepper.show_value(value)
    asked: list[int] = []
    stepper.asked.connect(asked.append)
    stepper.stepBy(steps)
    assert asked == ([] if target is None else [target])
    assert stepper.value() == value  # it only asked


def test_stepper_with_mouse_and_keys(look: Look, qtbot: QtBot) -> None:
    stepper = Stepper(look)
    qtbot.addWidget(stepper)
    stepper.show_value(5)
    stepper.show()
    asked: list[int] = []
    stepper.asked.connect(asked.append)
    for x in (stepper.width() - 5, 5, stepper.width() // 2):
        QTest.mouseClick(stepper, Qt.MouseButton.LeftButton, pos=QPoint(x, 10))
    for key in (Qt.Key.Key_Up, Qt.Key.Key_Down, Qt.Key.Key_Home, Qt.Key.Key_End, Qt.Key.Key_7):
        QTest.keyClick(stepper, key)
    assert asked == [6, 4, 6, 4, 1, 16]
    assert stepper.text() == "5"


@pytest.mark.parametrize(
    ("command", "asked"),
    [
        (Command(Kind.LOAD, "A"), ("load", "A", {})),
        (Command(Kind.UNLOAD, "A"), ("unload", "A")),
        (Command(Kind.FREE_ALL), ("free_all",)),
        (Command(Kind.PIN, "A", True), ("pin", "A", True)),
        (Command(Kind.PAUSE, "", True), ("pause", True)),
        (Command(Kind.GET_DEMO), ("pull_demo",)),
        (Command(Kind.CANCEL_DOWNLOAD, "demo"), ("cancel_download", "demo")),
        (Command(Kind.SET, "models_dirs", ["/m"]), ("set", {"models_dirs": ["/m"]})),
    ],
)
def test_commands_reach_the_router(
    command: Command, asked: tuple[Any, ...], qloop: Run, look: Look, qtbot: QtBot
) -> None:
    async def flow() -> None:
        desk = Desk(look, qtbot, FakeDoor(canned.empty()))
        assert desk.actions.run(command)
        await desk.idle()
        assert desk.door.asked == [asked]

    qloop(flow())


@pytest.mark.parametrize("kind", [Kind.QUIT, Kind.COPY, Kind.ADD_FOLDER, Kind.DISMISS, Kind.OPEN_PANEL])
def test_commands_of_the_app_are_left_to_it(kind: Kind, qloop: Run, look: Look, qtbot: QtBot) -> None:
    async def flow() -> None:
        desk = Desk(look, qtbot, FakeDoor(canned.empty()))
        assert not desk.actions.run(Command(kind))
        assert desk.door.asked == []

    qloop(flow())


@pytest.mark.parametrize(
    ("command", "title"),
    [
        (Command(Kind.LOAD, "Qwen"), "Qwen was not loaded"),
        (Command(Kind.UNLOAD, "Qwen"), "Qwen was not unloaded"),
        (Command(Kind.SET, "models_dirs", ["/gone"]), "models_dirs was not changed"),
        (Command(Kind.CANCEL_DOWNLOAD, "demo"), "The download goes on"),
        (Command(Kind.GET_DEMO), "The demo model did not arrive"),
    ],
)
def test_what_failed_is_told_with_its_reason(
    command: Command, title: str, qloop: Run, look: Look, qtbot: QtBot
) -> None:
    async def flow() -> None:
        desk = Desk(look, qtbot, FakeDoor(canned.empty()))
        desk.door.refuse = LoadFailed("It is broken.", hint="Mend it.")
        desk.actions.run(command)
        await desk.idle()
        (fault,) = desk.faults
        assert fault.title == title
        assert fault.text == "It is broken. Mend it."
        assert fault.options[0].command == Command(Kind.DISMISS, fault.id)

    qloop(flow())


def test_a_load_that_the_user_cancelled_is_no_failure(qloop: Run, look: Look, qtbot: QtBot) -> None:
    async def flow() -> None:
        desk = Desk(look, qtbot, FakeDoor(canned.loading()))
        desk.door.gate = asyncio.Event()
        desk.door.refuse = RouterError("cancelled")
        desk.actions.run(Command(Kind.LOAD, "Gemma-3-4B"))
        await until(lambda: bool(desk.door.asked))
        desk.actions.run(Command(Kind.UNLOAD, "Gemma-3-4B"))
        await until(lambda: len(desk.door.asked) == 2)
        desk.door.gate.set()  # whoever waits longest is refused: the load
        await desk.idle()
        assert desk.faults == []

    qloop(flow())


@pytest.mark.fault("F06")
def test_closing_ends_what_is_under_way(qloop: Run, look: Look, qtbot: QtBot) -> None:
    async def flow() -> None:
        desk = Desk(look, qtbot, FakeDoor(canned.loading()))
        desk.door.gate = asyncio.Event()  # never set: a load that takes for ever
        for _ in range(3):
            desk.actions.run(Command(Kind.LOAD, "Mistral-7B"))
        await until(lambda: len(desk.door.asked) == 3)
        await desk.actions.close()
        assert not desk.actions._tasks
        desk.actions.run(Command(Kind.LOAD, "Mistral-7B"))
        assert not desk.actions._tasks

    qloop(flow())


# Edits


def test_edits_by_table() -> None:
    edits = Edits()
    assert edits.shown("k", 1) == 1
    first = edits.begin("k", 2)
    assert edits.shown("k", 1) == 2
    second = edits.begin("k", 3)
    edits.refused("k", first, "late news of an older edit")
    assert edits.shown("k", 1) == 3
    assert edits.refusal("k") == ""
    edits.done("k", second, generation=7, current=6)
    assert edits.shown("k", 1) == 3  # the snapshot that shows it is not here yet
    edits.seen(7)
    assert edits.shown("k", 1) == 1
    third = edits.begin("k", 9)
    edits.refused("k", third, "too large")
    assert edits.shown("k", 1) == 1
    assert edits.refusal("k") == "too large"
    edits.forget_refusals()
    assert edits.refusal("k") == ""


# Bridge


def test_snapshots_come_at_most_ten_times_a_second_and_the_last_one_comes(qloop: Run) -> None:
    async def flow() -> None:
        door = FakeDoor(canned.loading())
        bridge = Bridge(door, least_ms=100)
        seen: list[int] = []
        bridge.changed.connect(lambda s: seen.append(s.generation))
        for _ in range(200):
            door.publish()
            await asyncio.sleep(0)
        last = door.snapshot.generation
        await until(lambda: bool(seen) and seen[-1] == last)
        assert seen[0] == 2  # the first one came at once
        assert len(seen) <= 10
        assert seen == sorted(set(seen))
        bridge.close()
        bridge.close()
        door.publish()
        assert seen[-1] == last

    qloop(flow())
