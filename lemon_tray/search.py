"""A field to search in what a window shows."""

from __future__ import annotations

from PySide6.QtCore import QPointF, Qt
from PySide6.QtGui import QKeyEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QWidget

from lemon_tray.fields import Entry
from lemon_tray.paint import draw_glyph
from lemon_tray.theme import Look


class SearchEntry(Entry):
    """A search field with its glyph."""

    def __init__(self, look: Look, hint: str, parent: QWidget | None = None) -> None:
        super().__init__(look, parent)
        self.setPlaceholderText(hint)
        self.setAccessibleName(hint)
        self.setClearButtonEnabled(False)
        self.setTextMargins(look.px(22), 0, 0, 0)

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        centre = QPointF(self.look.px(17), self.height() / 2)
        draw_glyph(QPainter(self), "search", centre, self.look.px(16), self.look.colour("ink2"))

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape:
            if self.text():
                self.clear()
            else:
                event.ignore()
            return
        super().keyPressEvent(event)
