"""The text menu: complete, current, safe under the pointer."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import msgspec
import pytest
from PySide6.QtCore import QPoint
from PySide6.QtGui import QAction, QColor, QPalette
from PySide6.QtWidgets import QApplication, QMenu
from pytestqt.qtbot import QtBot

from lemon_tray.edits import Edits
from lemon_tray.menu import TrayMenu
from lemon_tray.menu_text import escaped, escaped_for_panels
from lemon_tray.view import Command, Kind
from router.snapshot import ModelView, Snapshot
from router.units import NBSP
from tests.ui import canned
from tests.ui.conftest import LONGEST_MS, contrast, view_of


@pytest.fixture
def menu(qapp: QApplication, qtbot: QtBot) -> Iterator[TrayMenu]:
    made = TrayMenu(Edits())
    qtbot.addWidget(made.menu)
    yield made
    made.menu.hide()


def texts(menu: QMenu) -> list[str]:
    """The rows that are shown, checks and submenus marked, a line for a separator."""
    rows: list[str] = []
    for action in menu.actions():
        if not action.isVisible():
            continue
        if action.isSeparator():
            if rows and rows[-1] != "-":
                rows.append("-")
            continue
        text = action.text()
        if action.isChecked():
            text = f"[x] {text}"
        if action.menu() is not None:
            text += " >"
        if not action.isEnabled():
            text = f"({text})"
        rows.append(text)
    return rows


def find(menu: QMenu, text: str) -> QAction:
    return next(a for a in menu.actions() if a.text() == text and a.isVisible())


def test_all_of_it(menu: TrayMenu) -> None:
    menu.show_view(view_of(canned.loading()))
    assert texts(menu.menu) == [
        "Open panel",
        "-",
        f"(Loading Gemma-3-4B · 43{NBSP}%)",
        f"(RTX 4090 (CUDA0): 17.3 of 24.0{NBSP}GiB)",
        f"(RTX 3090 (CUDA1): 18.4 of 24.0{NBSP}GiB)",
        "(LLM pool: 2 loaded, room for 3, your limit 1, floor 3)",
        "-",
        "Cancel loading Gemma-3-4B",
        "Models >",
        "Free all VRAM now",
        "Pause loading",
        "Add a folder with models…",
        "-",
        "[x] Autosize the pool",
        "[x] Auto-evict",
        "Max loaded models: 1 >",
        "Why room for 3? >",
        "-",
        "Copy endpoint http://127.0.0.1:13305/v1",
        "Copy curl command",
        "Recent decisions >",
        "-",
        "All models…",
        "Get models…",
        "Policies…",
        "Engines…",
        "Settings…",
        "Log…",
        "(Start at login)",
        "-",
        "Quit Lemon Tray",
    ]
    assert texts(menu.models) == [
        f"Qwen3-8B: ready, 9.1{NBSP}GiB, 78.4{NBSP}tok/s >",
        f"Llama-3.3-70B: ready, pinned, 40.4{NBSP}GiB, 2.6{NBSP}tok/s >",
        f"Gemma-3-4B: loading 43{NBSP}% >",
        "-",
        "Load >",
    ]
    assert texts(menu.load) == ["Mistral-7B"]
    assert texts(menu.resident_menus["Llama-3.3-70B"]) == [
        f"(CUDA1 18.4{NBSP}GiB, CPU 22.0{NBSP}GiB)",
        "-",
        "[x] Pinned",
        "Unload",
        "Copy model name",
    ]
    assert texts(menu.limit) == ["[x] 1", *(str(n) for n in range(2, 17)), "-", "No limit"]
    assert texts(menu.why)[-1] == "(Different local models (floor): 3)"


def test_the_banner_and_its_buttons_are_the_first_rows(menu: TrayMenu) -> None:
    menu.show_view(view_of(canned.warning()))
    rows = texts(menu.menu)
    assert rows[0] == "(Warning: The pool may exceed your limit)"
    end = rows.index("Open panel")
    assert rows[end - 3 : end] == [
        "Let VRAM pressure unload idle models (auto_evict=true)",
        "Restore hard limit (llm_pool_autosize=false)",
        "-",
    ]
    menu.show_view(view_of(canned.empty()))
    rows = texts(menu.menu)
    assert rows[0] == "(No models yet)"
    assert rows[2:6] == [
        "Get a model that fits this machine…",
        "Get a small demo model",
        "Add a folder with models…",
        "-",
    ]
    menu.show_view(view_of(canned.notice()))
    rows = texts(menu.menu)
    end = rows.index("Open panel")
    assert rows[end - 5] == "Keep (changes no setting)"
    menu.show_view(view_of(canned.loading()))
    assert texts(menu.menu)[0] == "Open panel"


def test_the_banners_behind_the_first_are_reached_too(menu: TrayMenu) -> None:
    asked: list[Command] = []
    menu.asked.connect(asked.append)
    of = msgspec.structs.replace(canned.warning(), models=())
    menu.show_view(view_of(of))
    find(menu.menu, "Show the next (1 more)").trigger()
    assert asked == [Command(Kind.NEXT_BANNER)]
    menu.show_view(view_of(of, banner_index=1))
    assert texts(menu.menu)[0] == "(No models yet)"
    menu.show_view(view_of(canned.warning()))
    assert not any("Show the next" in row for row in texts(menu.menu))


def test_each_row_asks_for_what_it_says(menu: TrayMenu) -> None:
    asked: list[Command] = []
    menu.asked.connect(asked.append)
    menu.show_view(view_of(canned.warning()))
    find(menu.menu, "Restore hard limit (llm_pool_autosize=false)").trigger()
    menu.autosize.trigger()
    menu.auto_evict.trigger()
    menu.limit_actions[4].trigger()
    menu.limit_actions[-1].trigger()
    menu.load_actions["Mistral-7B"].trigger()
    menu.resident_menus["Qwen3-8B"].pinned.trigger()
    menu.resident_menus["Qwen3-8B"].unload.trigger()
    menu.resident_menus["Qwen3-8B"].copy_name.trigger()
    menu.free_all.trigger()
    menu.pause.trigger()
    menu.open_panel.trigger()
    menu.copy_endpoint.trigger()
    menu.copy_curl.trigger()
    menu.add_folder.trigger()
    menu.quit.trigger()
    menu.show_view(view_of(canned.loading()))
    menu.cancel_load.trigger()
    assert asked == [
        Command(Kind.SET, "llm_pool_autosize", False),
        Command(Kind.SET, "llm_pool_autosize", False),
        Command(Kind.SET, "auto_evict", True),
        Command(Kind.SET, "max_loaded_models", 4),
        Command(Kind.SET, "max_loaded_models", -1),
        Command(Kind.LOAD, "Mistral-7B"),
        Command(Kind.PIN, "Qwen3-8B", True),
        Command(Kind.UNLOAD, "Qwen3-8B"),
        Command(Kind.COPY, "text", "Qwen3-8B"),
        Command(Kind.FREE_ALL),
        Command(Kind.PAUSE, "", True),
        Command(Kind.OPEN_PANEL),
        Command(Kind.COPY, "endpoint"),
        Command(Kind.COPY, "curl"),
        Command(Kind.ADD_FOLDER),
        Command(Kind.QUIT),
        Command(Kind.UNLOAD, "Gemma-3-4B"),
    ]


def test_start_at_login_is_checked_once_it_is_known(menu: TrayMenu) -> None:
    asked: list[Command] = []
    menu.asked.connect(asked.append)
    menu.show_view(view_of(canned.loading()))
    menu.show_autostart(True)
    assert "[x] Start at login" in texts(menu.menu)
    menu.at_login.trigger()
    menu.windows["settings"].trigger()
    assert asked == [
        Command(Kind.START_AT_LOGIN, "", False),
        Command(Kind.OPEN_WINDOW, "settings"),
    ]


def test_checks_go_back_to_what_is_in_force(menu: TrayMenu) -> None:
    menu.show_view(view_of(canned.warning()))
    menu.auto_evict.trigger()
    menu.limit_actions[9].trigger()
    assert menu.auto_evict.isChecked()  # Qt did that
    menu.show_view(view_of(canned.warning()))  # refused: nothing changed
    assert not menu.auto_evict.isChecked()
    assert menu.limit_actions[1].isChecked()
    assert not menu.limit_actions[9].isChecked()


def test_a_limit_that_has_no_row_checks_none(menu: TrayMenu) -> None:
    menu.show_view(view_of(canned.warning()))
    menu.show_view(view_of(canned.snapshot(pool=canned.pool(configured_limit=40, effective_limit=40))))
    assert not any(a.isChecked() for a in menu.limit_actions.values())
    assert "Max loaded models: 40 >" in texts(menu.menu)
    menu.show_view(view_of(canned.warning()))
    assert menu.limit_actions[1].isChecked()


def many(count: int) -> Snapshot:
    names = [f"model-{i}" for i in range(count)]
    return canned.snapshot(
        residents=tuple(canned.resident(n, 1, {"gpu0": 1}) for n in names[: count // 2]),
        models=tuple(ModelView(n, "llm", 1, 1) for n in names),
    )


@pytest.mark.fault("F13")
def test_rows_survive_the_garbage_collector(menu: TrayMenu) -> None:
    for count in (30, 2, 30, 0, 30):
        menu.show_view(view_of(many(count)))
        gc.collect()
    assert len(texts(menu.load)) == 15
    assert len([r for r in texts(menu.models) if r.startswith("model-")]) == 15
    assert all(len(texts(m)) == 5 for m in menu.resident_menus.values())


@pytest.mark.fault("F13")
def test_it_follows_without_being_opened_and_rows_are_changed_in_place(menu: TrayMenu) -> None:
    menu.show_view(view_of(canned.loading()))
    kept = list(menu.menu.actions())
    qwen = menu.resident_menus["Qwen3-8B"]
    done = canned.resident("Gemma-3-4B", 5.2, {"gpu0": 5.2})
    after = msgspec.structs.replace(canned.loading(), residents=(canned.QWEN, done))
    menu.show_view(view_of(after))
    assert menu.menu.actions() == kept
    assert menu.resident_menus["Qwen3-8B"] is qwen
    assert [r for r in texts(menu.models) if "Gemma" in r] == [f"Gemma-3-4B: ready, 5.2{NBSP}GiB >"]
    assert sorted(texts(menu.load)) == ["Llama-3.3-70B", "Mistral-7B"]
    assert not any("Cancel loading" in row for row in texts(menu.menu))


@pytest.mark.fault("F13")
def test_nothing_moves_under_the_pointer(menu: TrayMenu, qtbot: QtBot) -> None:
    asked: list[Command] = []
    menu.asked.connect(asked.append)
    menu.show_view(view_of(canned.loading()))
    menu.menu.popup(menu.menu.pos())
    assert menu.is_open
    before, models = texts(menu.menu), [a for a in menu.models.actions() if a.isVisible()]
    load = menu.load_actions["Mistral-7B"]
    mistral = canned.resident("Mistral-7B", 4.4, {"gpu0": 4.4})
    after = msgspec.structs.replace(canned.warning(), residents=(canned.LLAMA, mistral))
    menu.show_view(view_of(after))
    now = texts(menu.menu)
    assert len(now) == len(before)
    assert "(Cancel loading Gemma-3-4B)" in now
    assert [a for a in menu.models.actions() if a.isVisible()] == models
    assert not menu.resident_menus["Qwen3-8B"].menuAction().isEnabled()
    assert not load.isEnabled()
    menu.resident_menus["Llama-3.3-70B"].unload.trigger()
    assert asked == [Command(Kind.UNLOAD, "Llama-3.3-70B")]
    menu.menu.hide()
    qtbot.waitUntil(lambda: "Mistral-7B" in menu.resident_menus, timeout=LONGEST_MS)
    assert "Qwen3-8B" not in menu.resident_menus
    assert texts(menu.menu)[0].startswith("(Warning")


@pytest.mark.fault("F13")
@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("R&D-7B", "R&&D-7B"),
        ("two\nlines", "two lines"),
        ("x" * 300, "x" * 29 + "…" + "x" * 29),
        ("שלום", "\u2068שלום\u2069"),
    ],
)
def test_odd_names(name: str, row: str, menu: TrayMenu) -> None:
    menu.show_view(view_of(canned.snapshot(models=(ModelView(name, "llm", 1, 1),))))
    assert texts(menu.load) == [row]
    asked: list[Command] = []
    menu.asked.connect(asked.append)
    menu.load.actions()[0].trigger()
    assert asked == [Command(Kind.LOAD, name)]


@pytest.mark.fault("F13")
def test_no_submenu_is_empty(menu: TrayMenu) -> None:
    menu.show_view(view_of(canned.empty()))
    for sub in menu.menu.findChildren(QMenu):
        assert texts(sub) or not sub.menuAction().isEnabled(), sub.title()
    assert texts(menu.models) == ["(None loaded)", "-", "(Load >)"]


@pytest.mark.fault("F13")
@pytest.mark.parametrize(
    ("text", "drawn_by_qt", "drawn_by_a_panel"),
    [
        ("Qwen3-8B-Q4_K_M", "Qwen3-8B-Q4_K_M", "Qwen3-8B-Q4__K__M"),
        ("a & b & c", "a && b && c", "a && b & c"),
        ("plain", "plain", "plain"),
        ("&", "&&", "&&"),
    ],
)
def test_signs_that_mark_letters_are_shown(text: str, drawn_by_qt: str, drawn_by_a_panel: str) -> None:
    assert escaped(text) == drawn_by_qt
    assert escaped_for_panels(text) == drawn_by_a_panel


def test_a_menu_that_a_panel_draws_is_written_for_it_but_when_it_pops_up(
    menu: TrayMenu, qtbot: QtBot
) -> None:
    name = "a_b"
    of = canned.snapshot(models=(ModelView(name, "llm", 1, 1),))
    menu.show_view(view_of(of))
    assert menu.load_actions[name].text() == "a_b"
    menu.export(True)
    assert menu.load_actions[name].text() == "a__b"
    menu.popup(QPoint(0, 0))
    assert menu.menu.isVisible()
    assert menu.load_actions[name].text() == "a_b"
    menu.menu.hide()
    qtbot.waitUntil(lambda: menu.load_actions[name].text() == "a__b", timeout=LONGEST_MS)


@pytest.mark.parametrize(("ink", "ground"), [("#1c1c1c", "#ffffff"), ("#eeeeee", "#202020")])
def test_rows_that_only_tell_something_can_be_read(
    ink: str, ground: str, menu: TrayMenu, qapp: QApplication
) -> None:
    before = qapp.palette()
    try:
        palette = QPalette(QColor(ground))
        palette.setColor(QPalette.ColorRole.WindowText, QColor(ink))
        palette.setColor(QPalette.ColorRole.Window, QColor(ground))
        qapp.setPalette(palette)
        menu.show_view(view_of(canned.loading()))
        menu.menu.popup(QPoint(0, 0))
        for shown in (menu.menu, menu.why, menu.resident_menus["Qwen3-8B"]):
            row = shown.palette().color(QPalette.ColorGroup.Disabled, QPalette.ColorRole.Text)
            assert 4.5 <= contrast(row.name(), ground) < contrast(ink, ground)
    finally:
        menu.menu.hide()
        qapp.setPalette(before)
