"""Engines, policies and the log as windows, and the set that they are kept in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QWidget
from pytestqt.qtbot import QtBot

from lemon_tray.actions import Actions
from lemon_tray.edits import Edits
from lemon_tray.engines_window import EnginesWindow
from lemon_tray.labels import Text
from lemon_tray.log_window import LogWindow
from lemon_tray.policies_window import PoliciesWindow
from lemon_tray.present_engines import present_engines
from lemon_tray.present_policies import decisions, present_decision, present_policies
from lemon_tray.theme import DARK, LIGHT, Look
from lemon_tray.view import Command, Kind
from lemon_tray.window_set import WindowSet
from router.errors import NotFound, RouterError
from router.paths import Paths
from router.snapshot import DownloadView, Snapshot
from router.units import NBSP
from tests.ui import canned
from tests.ui.conftest import until, utc_clock
from tests.ui.fake_door import FakeDoor

Run = Callable[[Coroutine[Any, Any, Any]], Any]

BROKEN = msgspec.structs.replace(
    canned.OFFER, id="llama.cpp-b6700-vulkan", title="llama.cpp b6700 for Vulkan", kind="build"
)


def with_builds() -> Snapshot:
    of = canned.fetching()
    build = msgspec.structs.replace(BROKEN, problem="libvulkan.so.1 is missing", devices=("RTX 4090",))
    return msgspec.structs.replace(of, engines=(*of.engines, build))


def test_rows_of_engines() -> None:
    found = [(r.id, r.state, r.problem, [o.label for o in r.options]) for r in present_engines(with_builds())]
    assert found == [
        ("embedded", "In use", "", []),
        (BROKEN.id, "Cannot be used", "libvulkan.so.1 is missing", ["Remove"]),
        (canned.OFFER.id, "On its way", "", ["Cancel"]),
    ]
    build = msgspec.structs.replace(BROKEN, problem="")
    rows = present_engines(canned.engine(engines=(canned.EMBEDDED, canned.OFFER, build)))
    assert [[o.command for o in r.options] for r in rows] == [
        [],
        [Command(Kind.USE_ENGINE, build.id), Command(Kind.REMOVE_ENGINE, build.id)],
        [Command(Kind.GET_ENGINE, canned.OFFER.id)],
    ]
    assert rows[2].detail == f"b6740 · CUDA · 431{NBSP}MiB to fetch"
    failed = canned.engine(downloads=(DownloadView(f"GPU build {canned.OFFER.id}", "failed", 1, 2, "Full."),))
    assert (present_engines(failed)[1].problem, present_engines(failed)[1].options[0].label) == (
        "Full.",
        "Try again",
    )


def test_engines_are_got_used_and_removed(look: Look, qtbot: QtBot) -> None:
    window = EnginesWindow(look)
    qtbot.addWidget(window)
    asked: list[Command] = []
    window.asked.connect(asked.append)
    build = msgspec.structs.replace(BROKEN, problem="")
    window.show_snapshot(canned.engine(engines=(canned.EMBEDDED, canned.OFFER, build)))
    window.open()
    for id in (canned.OFFER.id, build.id):
        for button in window.column.by_id[id].buttons:
            button.click()
    window.look_up.click()
    window.show_snapshot(with_builds())
    window.column.by_id[canned.OFFER.id].buttons[0].click()
    assert asked == [
        Command(Kind.GET_ENGINE, canned.OFFER.id),
        Command(Kind.USE_ENGINE, build.id),
        Command(Kind.REMOVE_ENGINE, build.id),
        Command(Kind.REFRESH_ENGINES),
        Command(Kind.CANCEL_DOWNLOAD, f"GPU build {canned.OFFER.id}"),
    ]
    window.show_snapshot(canned.engine(engines=(canned.EMBEDDED,)))
    assert list(window.column.by_id) == ["embedded"]


def with_policies() -> Snapshot:
    night = msgspec.structs.replace(canned.POLICIES[0], name="Night", enabled=False, count=1)
    routed = (
        canned.entry(7, 1, "chat sent a request to Qwen3-8B by the rule code.", code="route"),
        canned.entry(9, 2, "chat sent a request to Gemma-3-4B as its default.", code="fallback"),
        canned.entry(8, 2, "Loaded something.", code="ready"),
    )
    return msgspec.structs.replace(canned.loading(), policies=(night, *canned.WITH_UNKNOWN), feed=routed)


def test_cards_of_policies() -> None:
    cards = present_policies(with_policies())
    assert [(c.name, c.enabled, c.candidates, c.unresolved) for c in cards] == [
        ("chat", True, "Qwen3-8B (loaded), Gemma-3-4B (loading)", ""),
        ("code", True, "Qwen3-8B (loaded), Llama-3.3-70B (loaded)", "Not found: phi-5"),
        ("Night", False, "Qwen3-8B (loaded), Gemma-3-4B (loading)", ""),
    ]
    assert cards[0].summary == "2 local language models · default Qwen3-8B"
    assert cards[2].summary == "1 local language model · default Qwen3-8B"
    assert [row.text for row in decisions(with_policies(), utc_clock)] == [
        "chat sent a request to Gemma-3-4B as its default.",
        "chat sent a request to Qwen3-8B by the rule code.",
    ]


@pytest.mark.parametrize(
    ("told", "title", "steps"),
    [
        (
            {"route_to": "A", "matched_rule": "code", "default_used": False},
            "Goes to A by the rule code.",
            (),
        ),
        (
            {
                "route_to": "A",
                "matched_rule": "",
                "default_used": True,
                "trace": [
                    {"condition": "keywords_any", "result": False},
                    {"condition": {"min_chars": 3}, "result": True},
                    {"condition": "classifier", "result": None, "error": "no model"},
                ],
            },
            "Goes to A: no rule matched, so the default.",
            ("no: keywords_any", 'yes: {"min_chars": 3}', "unclear: classifier (no model)"),
        ),
    ],
)
def test_a_decision_in_words(told: dict[str, Any], title: str, steps: tuple[str, ...]) -> None:
    answer = present_decision(told)
    assert (answer.title, answer.steps) == (title, steps)


def test_a_long_trace_is_cut() -> None:
    trace = [{"condition": f"c{i}", "result": False} for i in range(40)]
    steps = present_decision({"route_to": "A", "trace": trace}).steps
    assert steps[-1] == "and 28 more"


def test_policies_are_switched_and_tried(qloop: Run, look: Look, qtbot: QtBot) -> None:
    async def flow() -> None:
        door = FakeDoor(with_policies())
        actions = Actions(door, asyncio.get_running_loop())
        window = PoliciesWindow(look)
        qtbot.addWidget(window)
        window.asked.connect(actions.run)
        window.try_wanted.connect(actions.try_policy)
        actions.tried.connect(window.show_answer)
        door.subscribe(window.show_snapshot)
        window.show_snapshot(door.snapshot)
        window.open()
        window.widgets["code"].switch.click()
        await until(lambda: not window.widgets["code"].switch.isChecked())
        assert door.asked == [("enable_policy", "code", False)]
        assert list(window.widgets) == ["chat", "code", "Night"]
        window.box.policy.setCurrentText("chat")
        QTest.keyClicks(window.box.prompt, "Write code")
        QTest.keyClick(window.box.prompt, Qt.Key.Key_Return)
        await until(lambda: window.box.result.isVisible())
        assert door.asked[-1] == ("test_policy", "chat", "Write code")
        assert window.box.result.text() == "Goes to Qwen3-8B by the rule code."
        assert window.box.steps.text() == "yes: keywords_any"
        door.refuse = NotFound("There is no policy chat.")
        window.box.run.click()
        await until(lambda: window.box.result.text() == "There is no policy chat.")
        assert not window.box.steps.isVisible()
        await actions.close()

    qloop(flow())


def test_without_policies_it_says_how_to_get_one(look: Look, qtbot: QtBot) -> None:
    window = PoliciesWindow(look)
    qtbot.addWidget(window)
    window.show_snapshot(canned.cpu())
    window.open()
    assert window.nothing.isVisible()
    assert window.none_yet.isVisible()
    assert not window.box.run.isEnabled()
    window.show_snapshot(with_policies())
    assert not window.nothing.isVisible()


def test_commands_about_engines_reach_the_router(qloop: Run, qapp: QApplication) -> None:
    async def flow() -> None:
        door = FakeDoor(canned.engine())
        actions = Actions(door, asyncio.get_running_loop())
        faults: list[Any] = []
        actions.failed.connect(faults.append)
        for kind, target in (
            (Kind.REFRESH_ENGINES, ""),
            (Kind.GET_ENGINE, ""),
            (Kind.GET_ENGINE, "x"),
            (Kind.USE_ENGINE, "x"),
            (Kind.REMOVE_ENGINE, "x"),
        ):
            assert actions.run(Command(kind, target))
        await until(lambda: not actions._tasks)
        assert door.asked == [
            ("refresh_engines",),
            ("get_engine", None),
            ("get_engine", "x"),
            ("use_engine", "x"),
            ("remove_engine", "x"),
        ]
        door.refuse = RouterError("It is in use.")
        actions.run(Command(Kind.REMOVE_ENGINE, "x"))
        await until(lambda: not actions._tasks)
        assert [(f.title, f.text) for f in faults] == [("The engine was not removed", "It is in use.")]
        await actions.close()

    qloop(flow())


LINES = [
    f"2026-01-31T12:00:{i:02}.000 {'WARNING' if i % 10 == 0 else 'INFO'} router.catalog: line {i}"
    for i in range(60)
]


def test_the_log_is_followed_filtered_and_copied(
    qloop: Run, look: Look, qtbot: QtBot, tmp_path: Path
) -> None:
    async def flow() -> None:
        path = tmp_path / "log"
        path.write_text("\n".join(LINES) + "\n")
        loop = asyncio.get_running_loop()
        tasks: list[asyncio.Task[None]] = []
        window = LogWindow(look, path, lambda work: tasks.append(loop.create_task(work)))
        qtbot.addWidget(window)
        window._timer.setInterval(5)
        window.open()
        await until(lambda: window.note.text().startswith("60 of 60 lines"))
        bar = window.text.verticalScrollBar()
        assert bar.value() == bar.maximum()
        window.levels.asked.emit(1)
        assert window.text.toPlainText().splitlines() == LINES[::10]
        window.search.setText("00:20.000")
        await until(lambda: window.note.text().startswith("1 of 60 lines"))
        window.copy.click()
        assert QGuiApplication.clipboard().text() == LINES[20]
        with path.open("a") as file:
            file.write("2026-01-31T12:00:20.000 WARNING router.x: again\n")
            file.write("2026-01-31T12:01:00.000 INFO router.x: other\n")
        await until(lambda: window.note.text().startswith("2 of 62 lines"))
        window.levels.asked.emit(0)
        window.search.clear()
        await until(lambda: window.note.text().startswith("62 of 62 lines"))
        window.follow.click()
        bar.setValue(0)
        with path.open("a") as file:
            file.write("more\n")
        await until(lambda: window.note.text().startswith("63 of 63 lines"))
        assert bar.value() == 0  # who reads further up is left there
        window.hide()
        await asyncio.gather(*tasks)
        assert not window._timer.isActive()  # hidden, it reads nothing

    qloop(flow())


def test_a_log_that_cannot_be_read_says_so(qloop: Run, look: Look, qtbot: QtBot, tmp_path: Path) -> None:
    async def flow() -> None:
        folder = tmp_path / "a folder"
        folder.mkdir()
        loop = asyncio.get_running_loop()
        tasks: list[asyncio.Task[None]] = []
        window = LogWindow(look, folder, lambda work: tasks.append(loop.create_task(work)))
        qtbot.addWidget(window)
        window.open()
        await until(lambda: "directory" in window.note.text().lower())
        window.hide()
        await asyncio.gather(*tasks)

    qloop(flow())


WINDOWS = ("settings", "models", "engines", "policies", "log")


@pytest.mark.parametrize("tokens", [LIGHT, DARK], ids=["light", "dark"])
def test_every_window_opens_restyles_and_closes(
    tokens: Any, qtbot: QtBot, qapp: QApplication, tmp_path: Path
) -> None:
    look = Look(LIGHT, motion=False)
    windows = WindowSet(look, Edits(), Paths.under(tmp_path), lambda work: work.close())
    asked: list[Command] = []
    windows.asked.connect(asked.append)
    windows.show_snapshot(with_policies())
    for name in WINDOWS:
        windows.open(name)
        window = windows.get(name)
        assert window is not None
        assert window.isVisible()
        assert window.windowTitle()
    look.tokens = tokens
    look._colours.clear()
    windows.restyle()
    for name in WINDOWS:
        window = windows.get(name)
        assert window is not None
        picture = window.grab().toImage()
        ground = picture.pixelColor(picture.width() - 4, picture.height() - 3).name()
        assert ground == tokens.bg.lower(), name
        for widget in window.findChildren(QWidget):
            if widget.isVisible() and widget.focusPolicy() & Qt.FocusPolicy.TabFocus:
                assert widget.accessibleName() or type(widget).__name__ == "Button", (name, widget)
    windows.close()
    assert windows.get("settings") is None
    with pytest.raises(KeyError):
        windows.open("no such window")


def test_texts_of_cards_fit_and_do_not_overlap(look: Look, qtbot: QtBot) -> None:
    engines, policies = EnginesWindow(look), PoliciesWindow(look)
    for window, of in ((engines, with_builds()), (policies, with_policies())):
        qtbot.addWidget(window)
        window.show_snapshot(of)
        for width in (560, 900):
            window.resize(width, 500)
            window.open()
            QApplication.processEvents()
            for card in (*engines.column.by_id.values(), *policies.widgets.values()):
                texts = [t for t in card.findChildren(Text) if not t.isHidden() and t.text()]
                for text in texts:
                    assert not text._elided, text.text()
                    assert text.geometry().bottom() < card.height()
                for i, one in enumerate(texts):
                    for other in texts[i + 1 :]:
                        assert not one.geometry().intersects(other.geometry()), (one.text(), other.text())
