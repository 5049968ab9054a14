"""The panel's head, with the mark, and the note below it."""

from __future__ import annotations

from PySide6.QtCore import QPointF
from PySide6.QtGui import QPainter, QPaintEvent, QPixmap
from PySide6.QtWidgets import QLabel, QWidget

from lemon_tray.buttons import IconButton
from lemon_tray.icons import mark_pixmap
from lemon_tray.labels import Run, Text
from lemon_tray.paint import draw_glyph
from lemon_tray.placing import flipped, put
from lemon_tray.section import Section
from lemon_tray.theme import Look, Role
from lemon_tray.view import Head, Kind
from lemon_tray.words import translate


class MarkView(QLabel):
    """The mark in the panel's head. A label, so that it is read out."""

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.look = look
        self._head: Head | None = None
        self.restyle()

    def restyle(self) -> None:
        self.setFixedSize(self.look.px(32), self.look.px(32))
        self.update()

    def show_head(self, head: Head) -> None:
        if self._head is None or head.mark != self._head.mark:
            self.update()
        self._head = head
        self.setAccessibleName(head.accessible)

    def drawn(self) -> QPixmap:
        assert self._head is not None
        return mark_pixmap(self._head.mark, self.width(), self.devicePixelRatioF())

    def paintEvent(self, event: QPaintEvent) -> None:
        if self._head is not None:
            QPainter(self).drawPixmap(0, 0, self.drawn())


class HeadSection(Section):
    """State and endpoint."""

    has_line = False

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(look, parent)
        self.mark = MarkView(look, self)
        self.title = Text(look, Role.TITLE, parent=self)
        self.endpoint = Text(look, Role.KEY, "ink2", parent=self)
        self.copy = IconButton(look, "copy", self, size=24, glyph_size=14)
        self.copy.setAccessibleName(translate("Head", "Copy endpoint address"))
        self.copy.setToolTip(translate("Head", "Copy endpoint address"))
        self.copy.clicked.connect(lambda: self.ask(Kind.COPY, "endpoint"))
        self.models = IconButton(look, "cube", self, size=32)
        self.settings = IconButton(look, "sliders", self, size=32)
        for button, name, window in (
            (self.models, translate("Head", "Models"), "models"),
            (self.settings, translate("Head", "Settings"), "settings"),
        ):
            button.setAccessibleName(name)
            button.setToolTip(name)
            button.clicked.connect(lambda _on=False, window=window: self.ask(Kind.OPEN_WINDOW, window))
        self.menu = IconButton(look, "menu", self, size=32)
        self.menu.setAccessibleName(translate("Head", "Menu"))
        self.menu.setToolTip(translate("Head", "Menu"))

    def show_menu(self, there: bool) -> None:
        """Have a button for the menu, where no tray icon has it."""
        self.menu.setVisible(there)
        self.arrange()

    def show_head(self, head: Head) -> None:
        self.mark.show_head(head)
        self.title.show_text(head.title)
        self.endpoint.show_runs([Run(head.endpoint)])
        self.copy.setAccessibleDescription(head.endpoint)
        self.copy.setVisible(bool(head.endpoint))
        self.arrange()

    def arrange(self) -> None:
        px, x = self.look.px, self.inset
        put(self.mark, x, px(15))
        buttons = [b for b in (self.models, self.settings, self.menu) if not b.isHidden()]
        left, room = x + px(44), self.content - px(44) - px(32) * len(buttons)
        self.title.place(left, px(11), room)
        width = min(self.endpoint.natural_width(), room - px(28))
        self.endpoint.place(left, px(35), width)
        put(self.copy, left + width + px(4), px(31))
        for index, button in enumerate(reversed(buttons)):
            put(button, x + self.content - px(32) * (index + 1), px(11))
        self.set_height(px(63))


class NoteSection(Section):
    """One line of information below the head, such as that there is no tray."""

    has_line = True

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(look, parent)
        self.text = Text(look, Role.SMALL, "ink2", wrap=True, parent=self)

    def show_text(self, text: str) -> None:
        self.text.show_text(text)
        self.setVisible(bool(text))
        self.arrange()

    def arrange(self) -> None:
        px = self.look.px
        height = self.text.place(self.inset + px(22), px(8), self.content - px(22))
        self.set_height(height + px(16))

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        px = self.look.px
        centre = QPointF(flipped(self, self.inset + px(7)), px(16))
        draw_glyph(QPainter(self), "info", centre, px(14), self.look.colour("ink2"))
