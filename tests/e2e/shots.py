"""Makes the pictures of the documentation: `python -m tests.e2e.shots [FOLDER]`.

Panels and windows are drawn from canned snapshots, panels at two pixels a point and windows at one and a
half; the last ones are of the real program in a real tray on a virtual screen. Look at each of them before
committing it.
"""

from __future__ import annotations

import argparse
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
from PySide6.QtGui import QColor, QFontDatabase, QImage, QPainter
from PySide6.QtWidgets import QApplication, QWidget

from lemon_tray.edits import Edits
from lemon_tray.engines_window import EnginesWindow
from lemon_tray.icons import mark_svg, render
from lemon_tray.log_window import LogWindow
from lemon_tray.models_window import ModelsWindow
from lemon_tray.panel import Panel
from lemon_tray.policies_window import PoliciesWindow
from lemon_tray.present_catalog import present_plan
from lemon_tray.present_devices import last_readings
from lemon_tray.present_policies import present_decision
from lemon_tray.presenter import model_numbers, present
from lemon_tray.settings_window import SettingsWindow
from lemon_tray.theme import DARK, LIGHT, Look
from lemon_tray.view import Mark
from lemon_tray.words import use_translator
from router.settings import schema
from router.snapshot import Snapshot, Status
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
    "panel-lost-light": ("lost", False),
    "panel-cpu": ("cpu", True),
    "panel-downloading": ("downloading", False),
    "panel-names": ("right-to-left", False),
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

    def open_panel(snapshot: Snapshot, *, dark: bool, dismissed: frozenset[str] = frozenset()) -> Panel:
        panel = Panel(Look(DARK if dark else LIGHT, motion=False), Edits(), rounded=True)
        panel._screen = TallScreen  # type: ignore[assignment, method-assign]  # the offscreen one is low
        numbers = model_numbers({}, snapshot)
        view = present(snapshot, numbers=numbers, readings=readings, clock=clock, dismissed=dismissed)
        panel.show_view(view)
        panel.open()
        return panel

    for name, (state, dark) in PANELS.items():
        panel = open_panel(STATES[state](), dark=dark)
        save(panel, folder / f"{name}.png")
        panel.hide()
    unknown = STATES["unresolved"]()
    banner = present(unknown, numbers={}).banner
    assert banner is not None
    panel = open_panel(unknown, dark=False, dismissed=frozenset((banner.id,)))
    panel.pool.details.setChecked(True)
    app.processEvents()
    panel.devices.blocks[0].bar.shown_stops()[1].setFocus(Qt.FocusReason.TabFocusReason)
    save(panel, folder / "panel-focus.png")
    panel.hide()
    use_translator(lambda _context, text, _count: HEBREW.get(text, text))
    app.setLayoutDirection(Qt.LayoutDirection.RightToLeft)
    of = STATES["loading"]()
    for dark in (False, True):
        panel = open_panel(replace(of, feed=()), dark=dark)
        save(panel, folder / f"panel-right-to-left{'-dark' if dark else ''}.png")
        panel.hide()


MARKS: Final = ((16, 1.0), (22, 1.0), (16, 1.5), (22, 1.5), (16, 2.0), (24, 2.0), (32, 2.0), (48, 2.0))
"""Size in points and pixels a point."""


def draw_icons(folder: Path) -> None:
    """The mark in its four states at the sizes of trays, on light and dark, at 1, 1.5 and 2 px a point."""
    QApplication([])
    marks = (Mark(Status.READY), Mark(Status.LOADING, 3), Mark(Status.WARNING), Mark(Status.ERROR))
    sheet = QImage(1060, 4 * 116, QImage.Format.Format_RGB32)
    sheet.fill(QColor("#F2F2EC"))
    painter = QPainter(sheet)
    painter.fillRect(530, 0, 530, sheet.height(), QColor("#24251F"))
    for row, mark in enumerate(marks):
        for side in (0, 530):
            x = side + 16
            for size, ratio in (
                (16, 1.0),
                (22, 1.0),
                (16, 1.5),
                (22, 1.5),
                (16, 2.0),
                (24, 2.0),
                (32, 2.0),
                (48, 2.0),
            ):
                picture = render(mark_svg(mark), size, ratio)
                picture.setDevicePixelRatio(1.0)
                painter.drawPixmap(x, row * 116 + (116 - picture.height()) // 2, picture)
                x += picture.width() + 24
    painter.end()
    sheet.save(str(folder / "icons.png"))
    print(folder / "icons.png")


HEBREW: Final = {
    "Loading {model} · {percent}": "{model} נטען · {percent}",
    "LLM pool": "מאגר המודלים",
    "Details": "פרטים",
    "{count} loaded": "{count} טעונים",
    "room for {count}": "מקום ל־{count}",
    "your limit {count}": "המגבלה שלך {count}",
    "floor {count}": "רצפה {count}",
    "Models": "מודלים",
    "Pause": "השהיה",
    "Free all VRAM": "פינוי כל ה־VRAM",
    "Ready": "מוכן",
    "Loading on {where}": "נטען על {where}",
    "Cancel": "ביטול",
    "of {size}": "מתוך {size}",
    "pinned": "נעוץ",
    "host": "מארח",
    "part": "חלק",
    "reserved": "שמור",
    "Free": "פנוי",
    "Other programs": "תוכנות אחרות",
    "Live controls": "בקרה חיה",
    "Autosize the pool": "התאמת גודל המאגר",
    "Room for every model your policies name": "מקום לכל מודל שכללי הניתוב נוקבים בו",
    "Auto-evict": "פינוי אוטומטי",
    "Unload idle models when a device is short": "מודלים בטלים נפרקים כשחסר זיכרון",
    "Max loaded models": "מספר מודלים מרבי",
    "Per type, 1 to 16 or no limit": "לכל סוג, 1 עד 16 או ללא הגבלה",
    "Recent decisions": "החלטות אחרונות",
    "Nothing yet.": "עדיין אין.",
}
"""As much of a language from right to left as a picture of the panel needs."""

LOG: Final = """\
2026-11-02T14:01:07.112 INFO router.service: Lemon Tray 0.1.0 answers at http://127.0.0.1:13305
2026-11-02T14:01:07.340 INFO router.devices: Found 2 GPUs: RTX 4090 and RTX 3090, 24.0 GiB each.
2026-11-02T14:02:11.904 INFO router.residency: Loading Qwen3-8B on CUDA0: needs 9.1 GiB, 22.7 GiB is usable.
2026-11-02T14:02:15.020 INFO router.residency: Loaded Qwen3-8B on CUDA0 in 3.1 s.
2026-11-02T14:02:15.377 INFO router.web: POST /v1/chat/completions 200 Qwen3-8B 3472.6 ms
2026-11-02T14:03:40.018 WARNING router.residency: The worker of Gemma-3-4B ended; 1 request got an error.
2026-11-02T14:03:40.551 INFO router.residency: Loading Gemma-3-4B on CUDA0: needs 5.2 GiB, 10.9 GiB is usable.
2026-11-02T14:03:44.700 ERROR router.engines: Gemma-3-4B was not loaded: the file ends within the tensor data.
"""


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
        log = LogWindow(
            look, Path("/home/ada/.local/state/lemon-tray/log/lemon-tray.log"), lambda w: w.close()
        )
        log._lines.extend(LOG.splitlines())
        log._fill()
        for name, window, size in (
            ("settings", changed, (920, 1000)),
            ("models", models, (1060, 900)),
            ("policies", policies, (760, 640)),
            ("engines", engines, (760, 360)),
            ("log", log, (980, 340)),
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
        menu = desktop.open_menu()
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


#: What is drawn in a process of its own, each at its own scale.
DRAWN: Final = {"panels": (draw_panels, "2"), "windows": (draw_windows, "1.5"), "icons": (draw_icons, "1")}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="dev.py shots", description="Take the documentation's pictures.")
    parser.add_argument("folder", metavar="FOLDER", nargs="?", type=Path, default=ROOT / "docs" / "images")
    parser.add_argument("--only", choices=DRAWN, help="only these, at the scale that the environment sets")
    given = parser.parse_args(arguments)
    folder: Path = given.folder
    if given.only:
        DRAWN[given.only][0](folder)
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    for what, (_, scale) in DRAWN.items():
        environ = {**os.environ, "QT_QPA_PLATFORM": "offscreen", "QT_SCALE_FACTOR": scale}
        command = [sys.executable, "-m", "tests.e2e.shots", "--only", what, str(folder)]
        subprocess.run(command, env=environ, cwd=ROOT, check=True)
    shoot_desktop(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
