"""What the panel's sections have in common."""

from __future__ import annotations

from typing import Any

from PySide6.QtCore import Signal
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import QWidget

from lemon_tray.theme import CONTENT, INSET, WIDTH, Look
from lemon_tray.view import Command, Kind


class Section(QWidget):
    """A part of the panel as wide as it, with a hairline on top. `relaid` tells that its height changed."""

    relaid = Signal()
    asked = Signal(object)
    has_line = True

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.look = look
        self.setFixedWidth(look.px(WIDTH) - 2)  # parts are placed from either edge

    @property
    def inset(self) -> int:
        return self.look.px(INSET) - 1  # the panel's border is the first pixel

    @property
    def content(self) -> int:
        return self.look.px(CONTENT)

    def set_height(self, height: int) -> None:
        width = self.look.px(WIDTH) - 2
        if (self.width(), self.height()) != (width, height):
            self.setFixedSize(width, height)
            self.relaid.emit()

    def arrange(self) -> None:
        """Place the parts and set the height."""
        raise NotImplementedError  # Qt's metaclass leaves no room for the one of abstract classes

    def restyle(self) -> None:
        self.setFixedWidth(self.look.px(WIDTH) - 2)
        self.arrange()
        self.update()

    def ask(self, kind: Kind, target: str = "", value: Any = None) -> None:
        self.asked.emit(Command(kind, target, value))

    def paintEvent(self, event: QPaintEvent) -> None:
        if self.has_line:
            painter = QPainter(self)
            painter.fillRect(0, 0, self.width(), 1, self.look.colour("line"))
