"""The reviewed pictures of the panel: `python -m tests.ui.pictures` draws them anew into tests/ui/reviewed.

Look at each of them beside the one before, and commit what is right.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

from PySide6.QtCore import QRect, Qt
from PySide6.QtGui import QFont, QImage
from PySide6.QtWidgets import QApplication

from lemon_tray.edits import Edits
from lemon_tray.panel import Panel
from lemon_tray.present_devices import last_readings
from lemon_tray.theme import DARK, LIGHT, Look
from tests.ui import canned
from tests.ui.conftest import view_of

FOLDER: Final = Path(__file__).parent / "reviewed"
FONT: Final = "DejaVu Sans"
PICTURES: Final = {
    "loading": ("loading", False),
    "full-dark": ("full", True),
    "warning": ("warning", False),
    "engine": ("engine", False),
    "lost-dark": ("lost", True),
    "mirrored": ("full", False),
}


class _TallScreen:
    @staticmethod
    def availableGeometry() -> QRect:
        return QRect(0, 0, 2000, 3000)


def draw(app: QApplication, name: str) -> QImage:
    """One picture, in shades of grey, which do not depend on how letters are coloured at their edges."""
    state, dark = PICTURES[name]
    before = app.font()
    app.setFont(QFont(FONT))
    if name == "mirrored":
        app.setLayoutDirection(Qt.LayoutDirection.RightToLeft)
    panel = Panel(Look(DARK if dark else LIGHT, motion=False), Edits())
    try:
        panel._screen = _TallScreen  # type: ignore[assignment, method-assign]  # the offscreen one is low
        readings = last_readings({}, canned.loading(), canned.NOON)
        panel.show_view(view_of(canned.STATES[state](), readings=readings))
        panel.open()
        return panel.grab().toImage().convertToFormat(QImage.Format.Format_Grayscale8)
    finally:
        panel.hide()
        panel.deleteLater()
        app.setFont(before)
        app.setLayoutDirection(Qt.LayoutDirection.LeftToRight)


def blocks(picture: QImage, side: int = 8) -> list[int]:
    """The mean shade of each square of `side` px, row by row."""
    small = picture.scaled(
        picture.width() // side,
        picture.height() // side,
        Qt.AspectRatioMode.IgnoreAspectRatio,
        Qt.TransformationMode.SmoothTransformation,
    )
    return [small.pixelColor(x, y).lightness() for y in range(small.height()) for x in range(small.width())]


def main() -> int:
    app = QApplication([])
    FOLDER.mkdir(exist_ok=True)
    for name in PICTURES:
        draw(app, name).save(str(FOLDER / f"{name}.png"), quality=0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
