"""Makes the pictures of the documentation: `python -m tests.e2e.shots [FOLDER]`.

Panels are drawn from canned snapshots at two pixels a point; the last ones are of the real program in a real
tray on a virtual screen. Look at each of them before committing it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
FAMILIES: Final = ("Inter", "Noto Sans", "DejaVu Sans")
PANELS: Final = {
    "panel-light": ("loading", False),
    "panel-dark": ("loading", True),
    "panel-warning": ("warning", False),
    "panel-empty": ("empty", False),
}


def draw_panels(folder: Path) -> None:
    """Draw the canned panels. Needs a process of its own: the scale is set before Qt starts."""
    from PySide6.QtCore import QRect
    from PySide6.QtGui import QFontDatabase
    from PySide6.QtWidgets import QApplication

    from lemon_tray.edits import Edits
    from lemon_tray.panel import Panel
    from lemon_tray.presenter import model_numbers, present
    from lemon_tray.theme import DARK, LIGHT, Look
    from tests.ui.canned import STATES

    app = QApplication([])
    font = app.font()
    font.setFamily(next((f for f in FAMILIES if f in QFontDatabase.families()), font.family()))
    app.setFont(font)

    class TallScreen:
        @staticmethod
        def availableGeometry() -> QRect:
            return QRect(0, 0, 2000, 3000)

    for name, (state, dark) in PANELS.items():
        snapshot = STATES[state]()
        panel = Panel(Look(DARK if dark else LIGHT, motion=False), Edits(), rounded=True)
        panel._screen = TallScreen  # type: ignore[assignment, method-assign]  # the offscreen one is low
        moment = lambda t: time.strftime("%H:%M", time.gmtime(t + 11 * 3600))  # noqa: E731
        panel.show_view(present(snapshot, numbers=model_numbers({}, snapshot), clock=moment))
        panel.open()
        panel.grab().save(str(folder / f"{name}.png"))
        print(folder / f"{name}.png", f"{panel.width()} x {panel.height()}")
        panel.hide()


def shoot_desktop(folder: Path) -> None:
    """The program in a tray: its icon, and with panel and menu."""
    from tests.e2e.desktop import desktop_with_tray, wait_for
    from tests.support.demo_model import cache_folder, fetch

    with tempfile.TemporaryDirectory() as root, desktop_with_tray(Path(root) / "desktop") as desktop:
        desktop.tool("display", "-size", "1280x1000", "-window", "root", "xc:#7B8794")
        model = fetch(cache_folder(), os.environ)
        app = desktop.app("--models-dir", str(model.parent)).ready()
        icon = wait_for("the icon", desktop.icon)
        panel = wait_for("the panel", desktop.panel)
        name = wait_for("the model", lambda: app.get("/v1/models")["data"])[0]["id"]
        app.post("/v1/load", {"model_name": name})
        question = {"model": name, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 32}
        app.post("/v1/chat/completions", question)
        low = panel.height
        panel = wait_for("its row", lambda: (p := desktop.panel()) and p.height > low and p)
        shot = desktop.picture()
        area = (panel.x - 40, 0, 1280 - panel.x + 40, panel.y + panel.height + 24)
        shot.copy(*area).save(str(folder / "desktop-panel.png"))
        desktop.key("Escape")
        wait_for("the panel to close", lambda: desktop.panel() is None)
        desktop.click(*icon.middle, button=3)
        menu = wait_for("the menu", desktop.menu)
        shot = desktop.picture()
        left = min(menu.x, icon.x) - 24
        shot.copy(left, 0, 1280 - left, menu.y + menu.height + 16).save(str(folder / "desktop-menu.png"))
        desktop.key("Escape")
        desktop.tool("xdotool", "mousemove", "200", "600")
        wait_for("the menu to close", lambda: desktop.menu() is None)
        shot = desktop.picture().copy(icon.x - 60, 0, 1280 - icon.x + 60, 28)
        shot.scaled(shot.width() * 4, shot.height() * 4).save(str(folder / "tray-icon.png"))
        for name in ("desktop-panel", "desktop-menu", "tray-icon"):
            print(folder / f"{name}.png")
        app.process.terminate()
        app.ended()


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--panels"]:
        draw_panels(Path(arguments[1]))
        return 0
    folder = Path(arguments[0]) if arguments else ROOT / "docs" / "images"
    folder.mkdir(parents=True, exist_ok=True)
    environ = {**os.environ, "QT_QPA_PLATFORM": "offscreen", "QT_SCALE_FACTOR": "2"}
    command = [sys.executable, "-m", "tests.e2e.shots", "--panels", str(folder)]
    subprocess.run(command, env=environ, cwd=ROOT, check=True)
    shoot_desktop(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
