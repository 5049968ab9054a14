"""The real program in a real tray."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lemon_tray.theme import LIGHT
from tests.e2e.desktop import App, Desktop, Window, alive, wait_for
from tests.e2e.upgrade import after_an_upgrade

SIMULATED = ("--simulate", "24GiB,24GiB")
KNOB = LIGHT.knob_on.lower()


def knob_of_a_switch_that_is_on(desktop: Desktop) -> tuple[int, int] | None:
    """The first yellow spot from the top at the panel's right edge, where the switches are."""
    panel = desktop.panel()
    if panel is None:
        return None
    picture = desktop.picture()
    x = panel.x + 374
    for y in range(panel.y + 100, panel.y + panel.height):
        if picture.pixelColor(x, y).name() == KNOB:
            return x, y + 4
    return None


def open_panel(desktop: Desktop) -> Window:
    icon = wait_for("the icon", desktop.icon)
    desktop.click(*icon.middle)
    return wait_for("the panel", desktop.panel)


def autosize(app: App) -> bool:
    health = app.health()
    assert health is not None
    enabled: bool = health["llm_pool_autosize"]["enabled"]
    return enabled


def test_icon_panel_switch_and_quit(desktop: Desktop) -> None:
    app = desktop.app("--hidden", *SIMULATED).ready()
    icon = wait_for("the icon", desktop.icon)
    assert desktop.panel() is None

    panel = open_panel(desktop)
    assert panel.x + panel.width <= 1280
    assert panel.y >= icon.y + icon.height
    desktop.click(icon.x + 2, icon.y + 2)  # so far away that it makes no double click
    wait_for("the panel to close", lambda: desktop.panel() is None)
    panel = open_panel(desktop)

    assert autosize(app)
    spot = wait_for("the switch", lambda: knob_of_a_switch_that_is_on(desktop))
    desktop.click(*spot)
    wait_for("the setting to change", lambda: not autosize(app))
    wait_for("the switch to show it", lambda: knob_of_a_switch_that_is_on(desktop) is None)
    app.post("/internal/set", {"llm_pool_autosize": True})  # from elsewhere
    wait_for("the switch to follow", lambda: knob_of_a_switch_that_is_on(desktop))

    desktop.key("Escape")
    wait_for("the panel to close", lambda: desktop.panel() is None)
    children = app.children()
    desktop.click(*icon.middle, button=3)
    wait_for("the menu", desktop.menu)
    desktop.key("Up", "Return")  # the last row: Quit
    assert app.ended() == 0
    assert app.complaints() == []
    assert not [pid for pid in children if alive(pid)]
    assert desktop.icon() is None
    assert app.health() is None


@pytest.mark.fault("F25")
def test_a_second_start_raises_the_first_and_ends_well(desktop: Desktop) -> None:
    app = desktop.app("--hidden", *SIMULATED).ready()
    wait_for("the icon", desktop.icon)
    assert desktop.panel() is None
    second = desktop.app("--hidden")
    assert second.ended() == 0
    wait_for("the panel", desktop.panel)
    assert second.complaints() == []
    assert second.health() is None
    assert app.health() is not None
    assert len([w for w in desktop.windows() if w.name == "Lemon Tray" and 8 < w.width < 64]) == 1


@pytest.mark.fault("F25")
def test_after_a_kill_it_starts_again(desktop: Desktop) -> None:
    first = desktop.app("--hidden", *SIMULATED).ready()
    first.process.send_signal(signal.SIGKILL)
    first.ended()
    again = desktop.app(*SIMULATED).ready()
    wait_for("the panel", desktop.panel)
    assert again.health() is not None


@pytest.mark.fault("F24")
def test_no_tray_then_one_then_none_then_one(bare_desktop: Desktop) -> None:
    desktop = bare_desktop
    app = desktop.app(*SIMULATED).ready()
    wait_for("the panel as a window", desktop.panel)
    assert desktop.icon() is None
    desktop.start_tray()
    wait_for("the icon", desktop.icon)
    desktop.stop_tray()
    wait_for("the icon to go", lambda: desktop.icon() is None)
    assert app.process.poll() is None
    desktop.start_tray()
    wait_for("the icon", desktop.icon)
    app.process.send_signal(signal.SIGTERM)
    assert app.ended() == 0


@pytest.mark.fault("F06")
@pytest.mark.fault("F08")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_end_it_in_order(number: signal.Signals, desktop: Desktop) -> None:
    app = desktop.app(*SIMULATED).ready()
    wait_for("the panel", desktop.panel)
    app.process.send_signal(number)
    assert app.ended() == 0
    assert app.complaints() == []


@pytest.mark.fault("F08")
def test_the_screen_goes_away(desktop: Desktop) -> None:
    app = desktop.app(*SIMULATED).ready()
    wait_for("the panel", desktop.panel)
    children = app.children()
    assert desktop.x_server is not None
    desktop.x_server.kill()
    app.ended()
    assert app.health() is None
    wait_for("its children to end", lambda: not [pid for pid in children if alive(pid)])


@pytest.mark.fault("F39")
@pytest.mark.parametrize("display", [None, ":4099"])
def test_without_a_screen_it_says_so_and_serves(display: str | None, desktop: Desktop) -> None:
    del desktop.environ["DISPLAY"]
    if display is not None:
        desktop.environ["DISPLAY"] = display
    app = desktop.app(*SIMULATED).ready()
    assert app.complaints()[0].endswith("serving without a tray.")
    app.process.send_signal(signal.SIGTERM)
    assert app.ended() == 0


@pytest.mark.fault("F25")
def test_a_taken_port_is_told_in_the_panel(desktop: Desktop, tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert holder.stdout is not None
        port = int(holder.stdout.readline().split(" port ")[1].split()[0])
        app = desktop.app("--hidden", port=port)
        wait_for("the panel, unasked", desktop.panel)
        wait_for("the error's ground", lambda: banner_ground(desktop) == LIGHT.error.ground.lower())
        app.process.send_signal(signal.SIGTERM)
        assert app.ended() == 0
    finally:
        holder.kill()
        holder.wait()
        if holder.stdout is not None:
            holder.stdout.close()


@pytest.mark.engine
@pytest.mark.fault("F08")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_real_model_is_shown_and_its_worker_ends_with_the_app(
    number: signal.Signals, desktop: Desktop, models_dir: Path
) -> None:
    app = desktop.app("--models-dir", str(models_dir)).ready()
    panel = wait_for("the panel", desktop.panel)
    wait_for("the model", lambda: app.get("/v1/models")["data"])
    name = app.get("/v1/models")["data"][0]["id"]
    before = panel.height
    app.post("/v1/load", {"model_name": name})
    wait_for("its row", lambda: (p := desktop.panel()) is not None and p.height > before)
    workers = app.children()
    assert workers
    app.process.send_signal(number)
    assert app.ended() == (0 if number is signal.SIGTERM else -number)
    wait_for("the worker to end", lambda: not [pid for pid in workers if alive(pid)])
    assert app.complaints() == []


def window(desktop: Desktop, title: str) -> Window | None:
    """The app's window of that title, if it is on the screen."""
    for found in desktop.windows():
        if found.name.startswith(title) and found.width > 300 and desktop.is_shown(found):
            return found
    return None


def choose(desktop: Desktop, rows_from_below: int) -> None:
    """Open the menu and take a row, counted from below."""
    desktop.open_menu()
    desktop.key(*["Up"] * rows_from_below, "Return")
    wait_for("the menu to close", lambda: desktop.menu() is None)


def with_keyboard(desktop: Desktop, title: str) -> Window:
    """The app's window of that title, once it has the keyboard."""

    def look() -> Window | None:
        active = desktop.tool("xdotool", "getactivewindow", "getwindowname")
        return window(desktop, title) if active.startswith(title) else None

    return wait_for(title, look)


@pytest.mark.fault("F27")
def test_windows_open_from_the_menu_and_a_setting_follows_the_endpoint(desktop: Desktop) -> None:
    app = desktop.app("--hidden", *SIMULATED).ready()
    for title, row in (("Log", 3), ("Engines", 5), ("Policies", 6), ("Get models", 7), ("Models", 8)):
        choose(desktop, row)
        with_keyboard(desktop, title)
        desktop.key("Escape")
        wait_for("it to close", lambda title=title: window(desktop, title) is None)
    choose(desktop, 4)
    settings = with_keyboard(desktop, "Settings")
    desktop.key("ctrl+f")
    desktop.tool("xdotool", "type", "autosize")

    def knob() -> tuple[int, int] | None:
        """Where the only switch is, while it is on."""
        picture = desktop.picture()
        x = settings.x + settings.width - 76 - 10
        for y in range(settings.y + 100, settings.y + 240):
            if picture.pixelColor(x, y).name() == KNOB:
                return x, y + 4
        return None

    spot = wait_for("its switch", knob)
    desktop.click(*spot)
    wait_for("the setting to change", lambda: not autosize(app))
    wait_for("the switch to show it", lambda: knob() is None)
    app.post("/internal/set", {"llm_pool_autosize": True})  # from elsewhere
    wait_for("the switch to follow", knob)
    desktop.key("Escape", "Escape")
    wait_for("the window to close", lambda: window(desktop, "Settings") is None)
    choose(desktop, 1)
    assert app.ended() == 0
    assert app.complaints() == []


NOTICE = LIGHT.sunk.lower()
WARNING = LIGHT.warning.ground.lower()


def banner_ground(desktop: Desktop) -> str:
    """The colour of the banner below the panel's head, wherever the panel is by now."""
    panel = desktop.panel()
    return desktop.pixel(panel.x + 20, panel.y + 70) if panel is not None else ""


def due(app: App) -> list[str]:
    """The notices that are due, by their ids."""
    return [notice["id"] for notice in app.get("/v1/notices")["notices"]]


def test_the_upgrade_notice_appears_once_and_again_after_a_crash_before_it_was_seen(
    desktop: Desktop,
) -> None:
    arguments = (*SIMULATED, *after_an_upgrade(desktop.root))
    told = desktop.root / "state" / "lemon-tray" / "state.json"
    app = desktop.app("--hidden", *arguments).ready()
    wait_for("the notice to be due", lambda: due(app))
    app.process.kill()  # nobody has seen it
    app.ended()

    app = desktop.app(*arguments).ready()
    wait_for("the panel", desktop.panel)
    wait_for("the notice in it", lambda: banner_ground(desktop) == NOTICE)
    wait_for("it to be recorded as told", lambda: json.loads(told.read_text()).get("told"))
    assert due(app) == []
    assert banner_ground(desktop) == NOTICE  # for whoever has not read it to its end
    app.process.kill()  # a crash now changes nothing any more
    app.ended()

    for _ in range(3):
        app = desktop.app(*arguments).ready()
        wait_for("the panel", desktop.panel)
        wait_for("the warning in its place", lambda: banner_ground(desktop) == WARNING)
        assert due(app) == []
        app.process.send_signal(signal.SIGTERM)
        assert app.ended() == 0
        assert all("router.residency: Up to 3" in line for line in app.complaints())
