"""The panel's buttons, drawn flat: bordered, a glyph alone, a word with a chevron."""

from __future__ import annotations

from typing import Final

from PySide6.QtCore import QEvent, QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QEnterEvent, QFocusEvent, QKeyEvent, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QAbstractButton, QWidget

from lemon_tray.paint import draw_glyph, focus_ring
from lemon_tray.placing import flipped, mirrored, worded
from lemon_tray.theme import Look, Role

_KEYBOARD: Final = (
    Qt.FocusReason.TabFocusReason,
    Qt.FocusReason.BacktabFocusReason,
    Qt.FocusReason.ShortcutFocusReason,
    Qt.FocusReason.OtherFocusReason,
)


def by_keyboard(event: QFocusEvent) -> bool:
    """Whether the focus came by a key; only then is its ring shown."""
    return event.reason() in _KEYBOARD


class Button(QAbstractButton):
    """A push button with a border: plain, or the view's one primary button."""

    def __init__(self, look: Look, role: Role = Role.BODY, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.look = look
        self._role = role
        self._primary = False
        self._glyph = ""
        self._ring = False
        self.is_grave = False  # what it does cannot be taken back
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setCursor(Qt.CursorShape.ArrowCursor)

    def show_as(self, label: str, *, primary: bool = False, glyph: str = "", accessible: str = "") -> None:
        if (label, primary, glyph) != (self.label, self._primary, self._glyph):
            self.show_label(label)
            self._primary, self._glyph = primary, glyph
            self.update()
        self.setAccessibleName(accessible or label)

    @property
    def label(self) -> str:
        """The words on the button, as they are read."""
        return self.text().replace("&&", "&")

    def show_label(self, label: str) -> None:
        """Put these words on the button; an `&` among them marks no letter."""
        self.setText(label.replace("&", "&&"))

    def restyle(self) -> None:
        self.update()

    def natural_width(self) -> int:
        """Width that label, glyph and padding need."""
        px = self.look.px
        role = Role.NAME if self._primary else self._role
        glyph = px(24) if self._glyph else 0
        return self.look.metrics(role).horizontalAdvance(self.label) + glyph + px(24)

    def sizeHint(self) -> QSize:
        return QSize(self.natural_width(), self.look.px(32))

    def minimumSizeHint(self) -> QSize:
        return self.sizeHint()  # words on buttons are never cut

    def focusInEvent(self, event: QFocusEvent) -> None:
        self._ring = by_keyboard(event)
        super().focusInEvent(event)
        self.update()

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        self.update()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self.click()
            return
        if event.key() in (Qt.Key.Key_Up, Qt.Key.Key_Down, Qt.Key.Key_Left, Qt.Key.Key_Right):
            event.ignore()  # moving between rows is the panel's business
            return
        super().keyPressEvent(event)

    def enterEvent(self, event: QEnterEvent) -> None:
        super().enterEvent(event)
        self.update()

    def leaveEvent(self, event: QEvent) -> None:
        super().leaveEvent(event)
        self.update()

    @property
    def has_ring(self) -> bool:
        return self._ring and self.hasFocus()

    def paint_ground(self, painter: QPainter, radius: float) -> None:
        """What an edgeless button stands on, where it is checked or about to be pressed; and the ring."""
        if self.isChecked() or (self.isEnabled() and (self.isDown() or self.underMouse())):
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(self.look.colour("track"))
            painter.drawRoundedRect(QRectF(self.rect()), radius, radius)
        if self.has_ring:
            focus_ring(painter, self.look, QRectF(self.rect()), radius)

    def paintEvent(self, event: QPaintEvent) -> None:
        look, painter = self.look, QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        rect = QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5)
        radius = look.px(6)
        ground, edge, ink = look.colour("bg"), look.colour("ctl"), look.colour("ink")
        if self._primary and self.isEnabled():
            ground, edge, ink = look.colour("lemon"), look.colour("accedge"), look.colour("on_lemon")
        elif self.isEnabled() and (self.isDown() or self.underMouse()):
            ground = look.colour("hover")
        if self.is_grave:
            edge = ink = look.colour("error.ink")
        if not self.isEnabled():
            ink = look.colour("ctl")
        painter.setPen(QPen(edge, 1))
        painter.setBrush(ground)
        painter.drawRoundedRect(rect, radius, radius)
        if self.has_ring:
            focus_ring(painter, look, QRectF(self.rect()), radius)
        role = Role.NAME if self._primary else self._role
        painter.setFont(look.font(role))
        painter.setPen(ink)
        text = self.label
        width = look.metrics(role).horizontalAdvance(text)
        glyph = look.px(16) + look.px(8) if self._glyph else 0
        x = (self.width() - width - glyph) / 2
        if self._glyph:
            centre = QPointF(flipped(self, x + look.px(8)), self.height() / 2)
            draw_glyph(painter, self._glyph, centre, look.px(16), ink)
        area = mirrored(self, QRectF(x + glyph, 0, width + 4, self.height()))
        painter.drawText(area, int(Qt.AlignmentFlag.AlignVCenter), worded(self, text))


class IconButton(Button):
    """A borderless square with a glyph; a checked one stands on a ground and its glyph is filled."""

    def __init__(
        self, look: Look, glyph: str, parent: QWidget | None = None, *, size: int = 28, glyph_size: int = 16
    ) -> None:
        super().__init__(look, parent=parent)
        self._glyph = glyph
        self._glyph_size = glyph_size
        self._side = size
        self.setFixedSize(look.px(size), look.px(size))

    def set_glyph(self, glyph: str) -> None:
        if glyph != self._glyph:
            self._glyph = glyph
            self.update()

    def restyle(self) -> None:
        self.setFixedSize(self.look.px(self._side), self.look.px(self._side))
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        look, painter = self.look, QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        on = self.isChecked()
        self.paint_ground(painter, look.px(6))
        ink = look.colour("ctl" if not self.isEnabled() else "ink" if on else "ink2")
        centre = QPointF(self.width() / 2, self.height() / 2)
        draw_glyph(painter, self._glyph, centre, look.px(self._glyph_size), ink, filled=on)


class WordButton(Button):
    """A word alone, in the colour of headings; a checked one stands on a ground."""

    def natural_width(self) -> int:
        return self.look.metrics(Role.SMALL).horizontalAdvance(self.label) + self.look.px(12)

    def paintEvent(self, event: QPaintEvent) -> None:
        look, painter = self.look, QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        on = self.isChecked()
        self.paint_ground(painter, look.px(4))
        painter.setFont(look.font(Role.SMALL))
        painter.setPen(look.colour("ctl" if not self.isEnabled() else "ink" if on else "ink2"))
        text = worded(self, self.label)
        painter.drawText(QRectF(self.rect()), int(Qt.AlignmentFlag.AlignCenter), text)


class LinkButton(Button):
    """A word and a chevron, in the colour of headings."""

    def natural_width(self) -> int:
        return self.look.metrics(Role.SMALL).horizontalAdvance(self.label) + self.look.px(14)

    def paintEvent(self, event: QPaintEvent) -> None:
        look, painter = self.look, QPainter(self)
        painter.setFont(look.font(Role.SMALL))
        ink = look.colour("ink" if self.underMouse() and self.isEnabled() else "ink2")
        painter.setPen(ink)
        width = look.metrics(Role.SMALL).horizontalAdvance(self.label)
        area = mirrored(self, QRectF(self.width() - look.px(14) - width - 4, 0, width + 4, self.height()))
        flags = int(Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignRight)
        painter.drawText(area, flags, worded(self, self.label))
        glyph = "chevron-down"
        if not self.isChecked():
            glyph = "chevron-left" if self.isRightToLeft() else "chevron-right"
        centre = QPointF(flipped(self, self.width() - look.px(4)), self.height() / 2)
        draw_glyph(painter, glyph, centre, look.px(14), ink)
        if self.has_ring:
            focus_ring(painter, look, QRectF(self.rect()), look.px(4))
