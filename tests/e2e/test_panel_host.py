"""The real program on a desktop whose panel hosts icons over D-Bus, as those of KDE, Xfce and GNOME do."""

from __future__ import annotations

import shutil
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.desktop import App, Desktop, wait_for
from tests.e2e.upgrade import after_an_upgrade
from tests.support.gguf import write_header_only, write_model

pytest.importorskip("dbus_fast")

from tests.e2e.panel_host import PanelHost, Row, private_bus

SIMULATED = ("--simulate", "1600MiB,1600MiB")
pytestmark = pytest.mark.skipif(shutil.which("dbus-daemon") is None, reason="dbus-daemon is not installed")


@pytest.fixture
def bus(bare_desktop: Desktop) -> Iterator[str]:
    with private_bus(bare_desktop.root, bare_desktop.environ) as address:
        bare_desktop.environ["DBUS_SESSION_BUS_ADDRESS"] = address
        yield address


@pytest.fixture
def host(bus: str) -> Iterator[PanelHost]:
    with PanelHost(bus) as made:
        yield made


def health(app: App) -> dict[str, Any]:
    found = app.health()
    assert found is not None
    pool: dict[str, Any] = found["llm_pool_autosize"]
    return pool


def rows(menu: Row) -> list[Row]:
    return [row for row in menu.every() if row.id != 0]


def test_click_menu_switch_and_quit(bare_desktop: Desktop, host: PanelHost) -> None:
    desktop = bare_desktop
    app = desktop.app("--hidden", *SIMULATED).ready()
    wait_for("the icon", lambda: host.has_icon)
    properties = host.properties()
    assert properties["Category"] == "ApplicationStatus"
    assert properties["IconPixmap"] or properties["IconName"]
    tip = " ".join(str(part) for part in properties["ToolTip"])
    assert "Lemon Tray: " in tip
    assert "Simulated GPU 1: 0.0 / 1.6\N{NO-BREAK SPACE}GiB" in tip
    assert desktop.panel() is None

    host.activate()
    panel = wait_for("the panel", desktop.panel)
    assert panel.x >= 0
    assert panel.x + panel.width <= 1280
    host.activate()
    wait_for("the panel to close", lambda: desktop.panel() is None)

    menu = host.menu()
    plain = [row for row in rows(menu) if not row.separator]
    assert all(row.label.strip() for row in plain), plain  # a row that only a widget could draw has none
    switch = menu.find("Autosize the pool")
    assert switch.checked is True
    assert health(app)["enabled"] is True
    host.choose(switch)
    wait_for("the setting to change", lambda: health(app)["enabled"] is False)
    wait_for("the menu to show it", lambda: host.menu().find("Autosize the pool").checked is False)
    app.post("/internal/set", {"max_loaded_models": 7})  # from elsewhere
    wait_for("the menu to follow", lambda: any(r.label == "Max loaded models: 7" for r in rows(host.menu())))
    assert host.menu().find("7").checked is True

    host.choose(host.menu().find("Open panel"))
    wait_for("the panel", desktop.panel)
    children = app.children()
    host.choose(host.menu().find("Quit Lemon Tray"))
    assert app.ended() == 0
    assert app.complaints() == []
    assert not host.has_icon
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]
    assert app.health() is None
    assert not list((desktop.root / "runtime" / "lemon-tray").iterdir())
    assert not (desktop.root / "state" / "lemon-tray" / "instance.json").exists()


def test_the_pools_line_and_the_endpoint_agree(bare_desktop: Desktop, host: PanelHost) -> None:
    arguments = after_an_upgrade(bare_desktop.root)
    app = bare_desktop.app("--hidden", "--simulate", "24GiB,24GiB", *arguments).ready()
    wait_for("the icon", lambda: host.has_icon)

    def room() -> int | None:
        """What both say that there is room for; None while they do not say the same."""
        told = health(app)["effective_limit"]
        line = next(row.label for row in host.menu().rows if row.label.startswith("LLM pool: "))
        return told if f", room for {told}, your limit 1, floor 3" in line else None

    wait_for("room for all that the policy names", lambda: room() == 3)
    host.choose(host.menu().find("Autosize the pool"))
    wait_for("the hard limit", lambda: room() == 1)
    host.choose(host.menu().find("Autosize the pool"))
    wait_for("room for all again", lambda: room() == 3)
    app.process.terminate()
    assert app.ended() == 0


@pytest.mark.fault("F13")
def test_the_menu_follows_what_is_loaded(bare_desktop: Desktop, host: PanelHost, tmp_path: Path) -> None:
    folder = tmp_path / "models & more"
    folder.mkdir()
    for name in ("a_b & c", "plain"):
        write_model(folder / f"{name}.gguf")
        with (folder / f"{name}.gguf").open("ab") as file:
            file.write(name.encode())  # else both would be one model
    app = bare_desktop.app("--hidden", *SIMULATED, "--models-dir", str(folder)).ready()
    wait_for("the icon", lambda: host.has_icon)
    wait_for("the models", lambda: len(app.get("/v1/models")["data"]) == 2)

    def loadable() -> set[str]:
        return {row.label for row in host.menu().find("Load").rows}

    wait_for("both to be offered", lambda: loadable() == {"a_b & c", "plain"})
    host.choose(host.menu().find("plain"))
    wait_for("it to be shown as loaded", lambda: loadable() == {"a_b & c"})
    wait_for(
        "it to be ready",
        lambda: any(row.label.startswith("plain: ready, ") for row in host.menu().find("Models").rows),
    )
    loaded = next(row for row in host.menu().find("Models").rows if row.label.startswith("plain: "))
    host.choose(next(row for row in loaded.every() if row.label in ("Unload", "Cancel loading")))
    wait_for("both to be offered again", lambda: loadable() == {"a_b & c", "plain"})
    host.choose(host.menu().find("Pause loading"))
    wait_for("the pause", lambda: host.menu().find("Pause loading").checked is True)
    host.choose(host.menu().find("Quit Lemon Tray"))
    assert app.ended() == 0
    assert app.complaints() == []


@pytest.mark.fault("F24")
def test_a_panel_that_comes_late_ends_and_comes_back(bare_desktop: Desktop, bus: str) -> None:
    desktop = bare_desktop
    app = desktop.app(*SIMULATED).ready()
    wait_for("the panel as a window", desktop.panel)
    for _ in range(2):
        with PanelHost(bus) as host:
            wait_for("the icon", lambda host=host: host.has_icon)
            host.activate_with_the_middle_button()
        assert app.process.poll() is None
    with PanelHost(bus) as host:
        wait_for("the icon", lambda: host.has_icon)
        host.choose(host.menu().find("Quit Lemon Tray"))
        assert app.ended() == 0
    assert app.complaints() == []


@pytest.mark.engine
@pytest.mark.fault("F31")
def test_a_load_that_fails_again_and_again_is_told_once(
    bare_desktop: Desktop, host: PanelHost, tmp_path: Path
) -> None:
    name = "<b>bold</b> & <img src=x>".replace("/", "∕")
    write_header_only(tmp_path / f"{name}.gguf", layers=2, weights_bytes=8 << 20)
    app = bare_desktop.app("--hidden", *SIMULATED, "--models-dir", str(tmp_path)).ready()
    wait_for("the model", lambda: app.get("/v1/models")["data"])
    model = app.get("/v1/models")["data"][0]["id"]

    def failures() -> int:
        return sum(row.label.count("bold") for row in host.menu().find("Recent decisions").rows)

    for _ in range(4):
        with pytest.raises(urllib.error.HTTPError):
            app.post("/v1/load", {"model_name": model})
    wait_for("the notification", lambda: host.notifications)
    wait_for("the menu to tell of it", lambda: failures() >= 4)
    assert len(host.notifications) == 1
    shown = host.notifications[0]
    assert shown.title == "Lemon Tray"
    assert "bold" in shown.text
    assert "<" not in shown.text  # nothing that a server which reads markup would take for it
    app.process.terminate()
    assert app.ended() == 0
