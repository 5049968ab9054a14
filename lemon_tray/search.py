"""A field to search in what a window shows, and the windows that have one."""

from __future__ import annotations

from PySide6.QtCore import QPointF, Qt
from PySide6.QtGui import QKeyEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QWidget

from lemon_tray.fields import Entry
from lemon_tray.paint import draw_glyph
from lemon_tray.placing import flipped
from lemon_tray.theme import Look
from lemon_tray.windows import AppWindow


class SearchEntry(Entry):
    """A search field with its glyph."""

    def __init__(self, look: Look, hint: str, parent: QWidget | None = None) -> None:
        super().__init__(look, parent)
        self.setPlaceholderText(hint)
        self.setAccessibleName(hint)
        self.setClearButtonEnabled(False)
        self._leave_room()

    def _leave_room(self) -> None:
        room = self.look.px(22)
        self.setTextMargins(*((0, 0, room, 0) if self.isRightToLeft() else (room, 0, 0, 0)))

    def restyle(self) -> None:
        super().restyle()
        self._leave_room()

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        centre = QPointF(flipped(self, self.look.px(17)), self.height() / 2)
        draw_glyph(QPainter(self), "search", centre, self.look.px(16), self.look.colour("ink2"))

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape:
            if self.text():
                self.clear()
            else:
                event.ignore()
            return
        super().keyPressEvent(event)


class SearchWindow(AppWindow):
    """A window with a search field; Ctrl+F leads to it."""

    def __init__(
        self, look: Look, title: str, size: tuple[int, int], least: tuple[int, int], hint: str
    ) -> None:
        super().__init__(look, title, size, least)
        self.search = SearchEntry(look, hint)

    def go_to_search(self) -> None:
        """Put the keyboard into the search field."""
        self.search.setFocus(Qt.FocusReason.ShortcutFocusReason)
        self.search.selectAll()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.modifiers() == Qt.KeyboardModifier.ControlModifier and event.key() == Qt.Key.Key_F:
            self.go_to_search()
        else:
            super().keyPressEvent(event)
