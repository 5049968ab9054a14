"""A column of cards, each as high as its texts need."""

from __future__ import annotations

from PySide6.QtCore import QTimer, Signal
from PySide6.QtGui import QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QWidget

from lemon_tray.theme import Look


class Card(QWidget):
    """A part of the column. `asked` carries commands; `resized` tells that it needs another height."""

    asked = Signal(object)
    resized = Signal()

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.look = look

    def arrange(self, width: int) -> int:
        """Place the parts for this width; returns the height."""
        raise NotImplementedError  # Qt's metaclass leaves no room for the one of abstract classes

    def paintEvent(self, event: QPaintEvent) -> None:
        px = self.look.px
        QPainter(self).fillRect(px(24), self.height() - 1, self.width() - px(48), 1, self.look.colour("line"))


class Stack(QWidget):
    """Parts below each other, placed anew at another width, and by `later` once for all that has changed."""

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.look = look
        self.later = QTimer(self)
        self.later.setSingleShot(True)
        self.later.setInterval(0)
        self.later.timeout.connect(self.arrange)

    def arrange(self) -> None:
        """Place the parts and set the least height."""
        raise NotImplementedError  # Qt's metaclass leaves no room for the one of abstract classes

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if event.size().width() != event.oldSize().width():
            self.arrange()

    def restyle(self) -> None:
        self.later.start()


class Column(Stack):
    """Cards below each other."""

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(look, parent)
        self.cards: list[Card] = []

    def show_cards(self, cards: list[Card]) -> None:
        """Show these in this order; those that are not among them any more are taken away."""
        for card in self.cards:
            if card not in cards:
                card.hide()
                card.deleteLater()
        for card in cards:
            if card not in self.cards:
                card.setParent(self)
                card.resized.connect(self.later.start)
                card.show()
        self.cards = list(cards)
        self.arrange()

    def arrange(self) -> None:
        y = 0
        for card in self.cards:
            card.resize(self.width(), card.height())  # parts are placed from either edge
            height = card.arrange(self.width())
            card.setGeometry(0, y, self.width(), height)
            y += height
        self.setMinimumHeight(y)
