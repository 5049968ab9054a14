"""Controls that show the value in force and only ask for another: switch, stepper, toggle."""

from __future__ import annotations

from typing import Final

from PySide6.QtCore import QEvent, QPointF, QRectF, Qt, Signal
from PySide6.QtGui import (
    QFocusEvent,
    QHideEvent,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QWheelEvent,
)
from PySide6.QtWidgets import QAbstractSpinBox, QSpinBox, QWidget

from lemon_tray.buttons import Button, by_keyboard
from lemon_tray.motion import Motion
from lemon_tray.paint import draw_glyph, focus_ring, rounded
from lemon_tray.placing import flipped, mirrored
from lemon_tray.theme import Look, Role


class Switch(Button):
    """On or off. It shows the value it is given; a click only asks (`asked`) for the other one."""

    asked = Signal(bool)

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(look, parent=parent)
        self.setCheckable(True)
        self.setFixedSize(look.px(36), look.px(20))
        self._knob = Motion(self)

    def restyle(self) -> None:
        self.setFixedSize(self.look.px(36), self.look.px(20))
        self.update()

    def show_value(self, on: bool) -> None:
        if on == self.isChecked():
            return
        self.setChecked(on)
        self._knob.go(1.0 if on else 0.0, self.look.duration(120))

    def nextCheckState(self) -> None:
        self.asked.emit(not self.isChecked())

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._knob.finish()

    def paintEvent(self, event: QPaintEvent) -> None:
        look, painter = self.look, QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        rect = QRectF(self.rect())
        radius = rect.height() / 2
        if self.isChecked():
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(look.colour("switch_on"))
            painter.drawRoundedRect(rect, radius, radius)
            knob, diameter = look.colour("knob_on"), look.px(14)
        else:
            painter.setPen(QPen(look.colour("ctl"), 1.5))
            painter.setBrush(look.colour("bg"))
            painter.drawRoundedRect(rect.adjusted(0.75, 0.75, -0.75, -0.75), radius, radius)
            knob, diameter = look.colour("ctl"), look.px(12)
        inset = (rect.height() - diameter) / 2 + (0 if self.isChecked() else 0.5)
        x = flipped(self, inset + self._knob.at * (rect.width() - diameter - 2 * inset), diameter)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(knob)
        painter.drawEllipse(QRectF(x, (rect.height() - diameter) / 2, diameter, diameter))
        if self.has_ring:
            ring = QPainter(self)
            focus_ring(ring, look, rect, radius)
            ring.end()


class Stepper(QSpinBox):
    """Minus, value, plus. A step only asks (`asked`) for the new value; `show_value` shows the one in force.

    It is a spin box for its role and keys; the drawing is its own. No wheel: the panel scrolls.
    """

    asked = Signal(int)
    LOWEST: Final = 1
    HIGHEST: Final = 16

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.look = look
        self._shown = self.LOWEST
        self._down = 0
        self._hover = 0
        self._ring = False
        self.setButtonSymbols(QAbstractSpinBox.ButtonSymbols.NoButtons)
        self.setRange(-1, 1 << 20)  # what is in force may lie outside what a step may ask for
        self.setValue(self._shown)
        self.setFrame(False)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.lineEdit().hide()
        self.setMouseTracking(True)
        self.setContextMenuPolicy(Qt.ContextMenuPolicy.NoContextMenu)
        self.restyle()

    def restyle(self) -> None:
        px = self.look.px
        self.setFixedSize(px(28) * 2 + px(40) + 2, px(28))
        self.update()

    def show_value(self, value: int) -> None:
        """Show the value in force; -1 is no limit."""
        if value != self._shown:
            self._shown = value
            self.setValue(value)
            self.update()

    def target(self, steps: int) -> int | None:
        """What this many steps from the value shown ask for; None if that leads nowhere."""
        if self._shown < 0:
            return None
        wanted = min(max(self._shown + steps, self.LOWEST), self.HIGHEST)
        if wanted == self._shown or (wanted < self._shown) != (steps < 0):
            return None
        return wanted

    def stepBy(self, steps: int) -> None:
        wanted = self.target(steps)
        if wanted is not None:
            self.asked.emit(wanted)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        steps = {
            Qt.Key.Key_Up: 1,
            Qt.Key.Key_Down: -1,
            Qt.Key.Key_Plus: 1,
            Qt.Key.Key_Minus: -1,
            Qt.Key.Key_Home: -self.HIGHEST,
            Qt.Key.Key_End: self.HIGHEST,
        }.get(Qt.Key(event.key()))
        if steps is None:
            event.ignore()
        else:
            self.stepBy(steps)

    def _cell(self, x: float) -> int:
        side = self.look.px(28)
        x = flipped(self, x)
        return -1 if x < side else 1 if x >= self.width() - side else 0

    def mousePressEvent(self, event: QMouseEvent) -> None:
        if event.button() is Qt.MouseButton.LeftButton:
            self._down = self._cell(event.position().x())
            self.update()

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        cell, self._down = self._down, 0
        if (
            cell
            and cell == self._cell(event.position().x())
            and self.rect().contains(event.position().toPoint())
        ):
            self.stepBy(cell)
        self.update()

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        self.mousePressEvent(event)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        cell = self._cell(event.position().x())
        if cell != self._hover:
            self._hover = cell
            self.update()

    def leaveEvent(self, event: QEvent) -> None:
        super().leaveEvent(event)
        self._hover = 0
        self.update()

    def wheelEvent(self, event: QWheelEvent) -> None:
        event.ignore()

    def focusInEvent(self, event: QFocusEvent) -> None:
        self._ring = by_keyboard(event)
        super().focusInEvent(event)
        self.update()

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        look, painter = self.look, QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        rect = QRectF(self.rect())
        side = look.px(28)
        radius = look.px(6)
        shape = rounded(rect.adjusted(0.5, 0.5, -0.5, -0.5), radius)
        painter.fillPath(shape, look.colour("bg"))
        for cell, glyph in ((-1, "minus"), (1, "plus")):
            x = 0.0 if cell < 0 else rect.width() - side
            area = mirrored(self, QRectF(x, 0, side, rect.height()))
            can = self.isEnabled() and self.target(cell) is not None
            if can and cell in (self._down, self._hover):
                painter.save()
                painter.setClipPath(shape)
                painter.fillRect(area, look.colour("hover"))
                painter.restore()
            draw_glyph(painter, glyph, area.center(), look.px(12), look.colour("ink" if can else "ctl"))
        painter.setPen(QPen(look.colour("line"), 1))
        for x in (side + 0.5, rect.width() - side - 0.5):
            painter.drawLine(QPointF(x, 1), QPointF(x, rect.height() - 1))
        painter.setPen(QPen(look.colour("ctl"), 1))
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.drawPath(shape)
        painter.setPen(look.colour("ink"))
        painter.setFont(look.font(Role.NAME))
        text = "∞" if self._shown < 0 else str(self._shown)
        painter.drawText(rect, int(Qt.AlignmentFlag.AlignCenter), text)
        if self._ring and self.hasFocus():
            focus_ring(painter, look, rect, radius)


class ToggleBox(Button):
    """A bordered square with a glyph that is on or off, such as the one for no limit. A click only asks."""

    asked = Signal(bool)

    def __init__(self, look: Look, glyph: str, parent: QWidget | None = None) -> None:
        super().__init__(look, parent=parent)
        self._glyph = glyph
        self.setCheckable(True)
        self.setFixedSize(look.px(28), look.px(28))

    def restyle(self) -> None:
        self.setFixedSize(self.look.px(28), self.look.px(28))
        self.update()

    def show_value(self, on: bool) -> None:
        if on != self.isChecked():
            self.setChecked(on)

    def nextCheckState(self) -> None:
        self.asked.emit(not self.isChecked())

    def paintEvent(self, event: QPaintEvent) -> None:
        look, painter = self.look, QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        on = self.isChecked()
        rect = QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5)
        ground = "switch_on" if on else "hover" if self.underMouse() else "bg"
        painter.setPen(QPen(look.colour("switch_on" if on else "ctl"), 1))
        painter.setBrush(look.colour(ground))
        painter.drawRoundedRect(rect, look.px(6), look.px(6))
        ink = look.colour("knob_on" if on else "ink")
        draw_glyph(painter, self._glyph, QRectF(self.rect()).center(), look.px(16), ink)
        if self.has_ring:
            focus_ring(painter, look, QRectF(self.rect()), look.px(6))
