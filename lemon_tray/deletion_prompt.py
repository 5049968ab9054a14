"""Whether a model's files are to be deleted: which ones, what that frees, and two ways on."""

from __future__ import annotations

from PySide6.QtCore import QPointF
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import QWidget

from lemon_tray.buttons import Button
from lemon_tray.labels import Text
from lemon_tray.paint import draw_glyph
from lemon_tray.placing import flipped, put
from lemon_tray.present_catalog import MAX_FILES, Deletion
from lemon_tray.theme import Look, Role
from lemon_tray.words import translate


class DeletionPrompt(QWidget):
    """Stands where the model's details stood. The keyboard is on the button that deletes nothing."""

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.look = look
        self.title = Text(look, Role.TITLE, wrap=True, parent=self)
        self.files = [Text(look, Role.SMALL, wrap=True, parent=self) for _ in range(MAX_FILES + 1)]
        self.warning = Text(look, Role.SMALL, wrap=True, parent=self)
        self.keep = Button(look, parent=self)
        self.sure = Button(look, parent=self)
        self.sure.is_grave = True

    def show_deletion(self, deletion: Deletion) -> None:
        """Ask about a deletion, or say why it does not come to one."""
        self.title.show_text(deletion.title)
        for line, text in zip(self.files, (*deletion.lines, *[""] * len(self.files)), strict=False):
            line.show_text(text)
            line.setVisible(bool(text))
        self.warning.show_text(deletion.stays or deletion.warning)
        self.sure.show_as(deletion.button)
        self.sure.setVisible(not deletion.stays)
        self.sure.setEnabled(True)
        self.keep.show_as(translate("Catalog", "Back") if deletion.stays else translate("Catalog", "Keep"))
        said = " ".join((deletion.title, *(line.text() for line in self.files), self.warning.text()))
        self.setAccessibleName(deletion.title)
        self.keep.setAccessibleDescription(said.strip())

    def show_busy(self) -> None:
        """The files are being deleted."""
        self.sure.setEnabled(False)
        self.sure.show_as(translate("Catalog", "Deleting…"))

    def place(self, width: int) -> int:
        """Take up the whole of `width`; returns the height that it needs."""
        px, x, y = self.look.px, self.look.px(24), self.look.px(12)
        self.resize(width, self.height())
        left, room = x + px(28), width - 2 * x - px(28)
        y += self.title.place(left, y + px(4), room) + px(10)
        for line in self.files:
            if not line.isHidden():
                y += line.place(left, y, room) + px(2)
        y += self.warning.place(left, y + px(2), room) + px(12)
        for button in (self.sure, self.keep):
            if not button.isHidden():
                natural = button.natural_width()
                put(button, left, y, natural, px(32))
                left += natural + px(8)
        y += px(32) + px(16)
        self.setFixedSize(width, y)
        self.move(0, 0)
        return y

    def restyle(self) -> None:
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        px = self.look.px
        centre = QPointF(flipped(self, px(34)), self.title.y() + self.title.line_height() / 2)
        draw_glyph(QPainter(self), "warning", centre, px(16), self.look.colour("warning.ink"))
