"""Makes the pictures of the documentation: `python -m tests.e2e.shots [FOLDER]`.

Panels and windows are drawn from canned snapshots, panels at two pixels a point and windows at one and a
half; the last ones are of the real program in a real tray on a virtual screen. Look at each of them before
committing it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final

from msgspec.structs import replace
from PySide6.QtCore import QRect, Qt
from PySide6.QtGui import QFontDatabase, QImage
from PySide6.QtWidgets import QApplication, QWidget

from lemon_tray.edits import Edits
from lemon_tray.engines_window import EnginesWindow
from lemon_tray.models_window import ModelsWindow
from lemon_tray.panel import Panel
from lemon_tray.policies_window import PoliciesWindow
from lemon_tray.present_catalog import present_plan
from lemon_tray.present_devices import last_readings
from lemon_tray.present_policies import present_decision
from lemon_tray.presenter import model_numbers, present
from lemon_tray.settings_window import SettingsWindow
from lemon_tray.theme import DARK, LIGHT, Look
from router.settings import schema
from tests.ui.canned import GIB, NOON, STATES, catalog, routed

ROOT: Final = Path(__file__).parents[2]
FAMILIES: Final = ("Inter", "Noto Sans", "DejaVu Sans")
PANELS: Final = {
    "panel-light": ("loading", False),
    "panel-dark": ("loading", True),
    "panel-warning": ("warning", False),
    "panel-notice": ("notice", False),
    "panel-empty": ("empty", False),
    "panel-full": ("full", False),
    "panel-full-dark": ("full", True),
    "panel-engine": ("engine", False),
    "panel-lost": ("lost", True),
    "panel-cpu": ("cpu", True),
    "panel-right-to-left": ("right-to-left", False),
}


def use_a_font(app: QApplication) -> None:
    """Take the first of the families that is installed."""
    font = app.font()
    font.setFamily(next((f for f in FAMILIES if f in QFontDatabase.families()), font.family()))
    app.setFont(font)


def save(widget: QWidget, target: Path) -> None:
    """Save a widget's picture with its 256 most frequent colours, which are nearly all that it has."""
    picture = widget.grab().toImage().convertToFormat(QImage.Format.Format_ARGB32)
    pixels = memoryview(picture.constBits()).cast("I")
    table = [colour for colour, _ in Counter(pixels).most_common(256)]
    flags = Qt.ImageConversionFlag.ThresholdDither | Qt.ImageConversionFlag.AvoidDither
    picture.convertToFormat(QImage.Format.Format_Indexed8, table, flags).save(str(target), quality=0)
    print(target, f"{widget.width()} x {widget.height()}")


def clock(moment: float) -> str:
    return time.strftime("%H:%M", time.gmtime(moment + 11 * 3600))


def draw_panels(folder: Path) -> None:
    """Draw the canned panels. Needs a process of its own: the scale is set before Qt starts."""
    app = QApplication([])
    use_a_font(app)

    class TallScreen:
        @staticmethod
        def availableGeometry() -> QRect:
            return QRect(0, 0, 2000, 3000)

    readings = last_readings({}, STATES["loading"](), NOON + 240)
    for name, (state, dark) in PANELS.items():
        snapshot = STATES[state]()
        panel = Panel(Look(DARK if dark else LIGHT, motion=False), Edits(), rounded=True)
        panel._screen = TallScreen  # type: ignore[assignment, method-assign]  # the offscreen one is low
        numbers = model_numbers({}, snapshot)
        panel.show_view(present(snapshot, numbers=numbers, readings=readings, clock=clock))
        panel.open()
        save(panel, folder / f"{name}.png")
        panel.hide()


def draw_windows(folder: Path) -> None:
    """Draw the windows with canned contents, in a process of its own too."""
    app = QApplication([])
    use_a_font(app)
    settings = {
        **schema.defaults(),
        "auto_evict": True,
        "vram_margin": 1 << 30,
        "models_dirs": ["/home/ada/models"],
    }
    for dark in (False, True):
        look = Look(DARK if dark else LIGHT, motion=False)
        ending = "-dark" if dark else ""
        changed = SettingsWindow(look, Edits())
        changed.starts_at_login = True
        changed.at_start = settings
        changed.show_snapshot(
            replace(STATES["loading"](), settings=settings, overridden={"host": "LEMON_TRAY_HOST"})
        )
        models = ModelsWindow(look)
        models.show_snapshot(catalog())
        policies = PoliciesWindow(look)
        policies.show_snapshot(routed())
        engines = EnginesWindow(look)
        engines.show_snapshot(STATES["fetching"]())
        for name, window, size in (
            ("settings", changed, (920, 1000)),
            ("models", models, (1060, 900)),
            ("policies", policies, (760, 640)),
            ("engines", engines, (760, 360)),
        ):
            window.resize(*size)
            window.open()
            for _ in range(40):  # the rows of the settings come a few at a time
                app.processEvents()
            if window is models:
                at = next(i for i, row in enumerate(models.table.catalog.rows) if row.model == "Mistral-7B")
                models.table.setCurrentIndex(models.table.catalog.index(at, 0))
                models.details.form.fields["ctx_size"].combo.setEditText("16384")
                models.show_plan("Mistral-7B", present_plan(PLAN))
            if window is policies:
                policies.box.prompt.setText("Write a function that sorts a list in Python")
                policies.show_answer(present_decision(DECISION))
            app.processEvents()
            save(window, folder / f"window-{name}{ending}.png")
            window.hide()


PLAN: Final = {
    "verdict": "evicts",
    "reason": "Qwen3-8B would be unloaded first.",
    "devices": [{"label": "CUDA0", "needed": int(8.6 * GIB), "available": int(5.7 * GIB)}],
}
DECISION: Final = {
    "route_to": "Qwen3-8B",
    "matched_rule": "python",
    "trace": [
        {"condition": "keywords_any", "result": True},
        {"condition": "max_chars", "result": True},
    ],
}


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
    if arguments[:1] == ["--windows"]:
        draw_windows(Path(arguments[1]))
        return 0
    folder = Path(arguments[0]) if arguments else ROOT / "docs" / "images"
    folder.mkdir(parents=True, exist_ok=True)
    for what, scale in (("--panels", "2"), ("--windows", "1.5")):
        environ = {**os.environ, "QT_QPA_PLATFORM": "offscreen", "QT_SCALE_FACTOR": scale}
        command = [sys.executable, "-m", "tests.e2e.shots", what, str(folder)]
        subprocess.run(command, env=environ, cwd=ROOT, check=True)
    shoot_desktop(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
