"""The panel's devices."""

from __future__ import annotations

from PySide6.QtCore import QPointF
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import QWidget

from lemon_tray.bars import DeviceBlock
from lemon_tray.labels import Text
from lemon_tray.paint import draw_glyph
from lemon_tray.placing import flipped, put
from lemon_tray.section import Section
from lemon_tray.theme import Look, Role
from lemon_tray.view import Bar


class DevicesSection(Section):
    """A bar for each device."""

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(look, parent)
        self.blocks: list[DeviceBlock] = []
        self.note = Text(look, Role.SMALL, "ink2", wrap=True, parent=self)

    def show_bars(self, bars: tuple[Bar, ...], note: str) -> list[DeviceBlock]:
        """Show the bars; returns the blocks that are new."""
        new = []
        while len(self.blocks) < len(bars):
            block = DeviceBlock(self.look, self)
            self.blocks.append(block)
            new.append(block)
        for block, bar in zip(self.blocks, bars, strict=False):
            block.show_bar(bar)
            block.show()
        for block in self.blocks[len(bars) :]:
            block.hide()
        self.note.show_text(note)
        self.note.setVisible(bool(note))
        self.setVisible(bool(bars) or bool(note))
        self.arrange()
        return new

    def shown(self) -> list[DeviceBlock]:
        return [b for b in self.blocks if not b.isHidden()]

    def arrange(self) -> None:
        px, y = self.look.px, 1
        for index, block in enumerate(self.shown()):
            y += px(12) if index == 0 else px(8) if block.legend.rows() == 0 else px(12)
            put(block, self.inset, y)
            y += block.height()
        if not self.note.isHidden():
            y += px(6)
            y += self.note.place(self.inset + px(22), y, self.content - px(22))
        self.set_height(y + px(8))

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        if not self.note.isHidden():
            px = self.look.px
            centre = QPointF(flipped(self, self.inset + px(7)), self.note.y() + px(8))
            draw_glyph(QPainter(self), "info", centre, px(14), self.look.colour("ink2"))
