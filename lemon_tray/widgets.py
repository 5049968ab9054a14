"""The panel's small parts, drawn flat: text, buttons, switch, stepper, load bar.

Every part takes the shared `Look`, paints from its tokens and is asked to `restyle()` when they change. It
repaints only when what it shows changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct
from PySide6.QtCore import (
    QAbstractAnimation,
    QEasingCurve,
    QEvent,
    QPointF,
    QRectF,
    QSize,
    Qt,
    QVariantAnimation,
    Signal,
)
from PySide6.QtGui import (
    QEnterEvent,
    QFocusEvent,
    QHideEvent,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QResizeEvent,
    QTextCharFormat,
    QTextLayout,
    QTextOption,
    QWheelEvent,
)
from PySide6.QtWidgets import QAbstractButton, QAbstractSpinBox, QLabel, QSpinBox, QWidget

from lemon_tray.paint import draw_glyph, focus_ring, rounded
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


class Run(Struct, frozen=True):
    """A stretch of text in one style. `colour` is a token name; None: the text's own."""

    text: str
    role: Role | None = None
    colour: str | None = None


def runs_of(text: str, mono: Role = Role.KEY) -> list[Run]:
    """Split a text at its backticks: what they enclose is set in monospace."""
    parts = text.split("`")
    return [Run(part, mono if index % 2 else None) for index, part in enumerate(parts) if part]


class Text(QLabel):
    """A text of one or several lines at the design's line heights.

    A single line that is too long is shortened in the middle, with the whole in the tooltip; `wrap` makes
    several lines instead. The width is fixed by `place`, the height follows from it.
    """

    def __init__(
        self,
        look: Look,
        role: Role = Role.BODY,
        colour: str = "ink",
        *,
        align: Qt.AlignmentFlag = Qt.AlignmentFlag.AlignLeft,
        wrap: bool = False,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self.look = look
        self._role = role
        self._colour = colour
        self._align = align
        self._wrap = wrap
        self._runs: tuple[Run, ...] = ()
        self._line_height: int | None = None
        self._layout: tuple[int, QTextLayout] | None = None
        self._elided = False
        self.setTextFormat(Qt.TextFormat.PlainText)

    def set_line_height(self, height: float) -> None:
        """Another line height than the role's, in px of the design."""
        self._line_height = self.look.px(height)

    def show_text(self, text: str) -> None:
        """Show `text`; backticks enclose monospace."""
        self.show_runs(runs_of(text))

    def show_runs(self, runs: Sequence[Run]) -> None:
        if tuple(runs) == self._runs:
            return
        self._runs = tuple(runs)
        self.setText("".join(run.text for run in runs))  # for accessibility; painting is our own
        self._layout = None
        self.update()

    def set_colour(self, colour: str) -> None:
        if colour != self._colour:
            self._colour = colour
            self._layout = None
            self.update()

    def restyle(self) -> None:
        self._layout = None
        self.updateGeometry()
        self.update()

    def line_height(self) -> int:
        return self._line_height or self.look.line_height(self._role)

    def natural_width(self) -> int:
        """Width of the text on one line."""
        layout = self._laid_out(1 << 20)
        return int(layout.lineAt(0).naturalTextWidth() + 0.999) if layout.lineCount() else 0

    def place(self, x: int, y: int, width: int) -> int:
        """Put the text at `x`, `y`; returns the height that it takes."""
        height = self.height_for(width)
        self.setGeometry(x, y, width, height)
        return height

    def height_for(self, width: int) -> int:
        lines = max(1, self._laid_out(width).lineCount()) if self._wrap else 1
        return lines * self.line_height()

    def sizeHint(self) -> QSize:
        return QSize(self.natural_width(), self.line_height())

    def minimumSizeHint(self) -> QSize:
        return QSize(0, self.line_height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._layout = None

    def _formats(self) -> list[QTextLayout.FormatRange]:
        formats, start = [], 0
        for run in self._runs:
            length = len(run.text.encode("utf-16-le")) // 2  # Qt counts UTF-16 units
            piece = QTextLayout.FormatRange()
            piece.start, piece.length = start, length
            style = QTextCharFormat()
            if run.role is not None:
                style.setFont(self.look.font(run.role))
            style.setForeground(self.look.colour(run.colour or self._colour))
            piece.format = style
            formats.append(piece)
            start += length
        return formats

    def _laid_out(self, width: int) -> QTextLayout:
        if self._layout is not None and self._layout[0] == width:
            return self._layout[1]
        font = self.look.font(self._role)
        text = self.text()
        elide = False
        if not self._wrap:
            metrics = self.look.metrics(self._role)
            elide = len(self._runs) <= 1 and metrics.horizontalAdvance(text) > width
            if elide:
                text = metrics.elidedText(text, Qt.TextElideMode.ElideMiddle, width)
        self._elided = elide
        layout = QTextLayout(text, font)
        option = QTextOption()
        option.setWrapMode(
            QTextOption.WrapMode.WrapAtWordBoundaryOrAnywhere if self._wrap else QTextOption.WrapMode.NoWrap
        )
        layout.setTextOption(option)
        if not elide:
            layout.setFormats(self._formats())
        layout.beginLayout()
        while True:
            line = layout.createLine()
            if not line.isValid():
                break
            line.setLineWidth(width)
        layout.endLayout()
        self._layout = (width, layout)
        return layout

    def event(self, event: QEvent) -> bool:
        if event.type() == QEvent.Type.ToolTip:
            self.setToolTip(self.text() if self._elided else "")
        return super().event(event)

    def paintEvent(self, event: QPaintEvent) -> None:
        layout = self._laid_out(self.width())
        painter = QPainter(self)
        painter.setPen(self.look.colour(self._colour if self.isEnabled() else "ctl"))
        height = self.line_height()
        for index in range(layout.lineCount()):
            line = layout.lineAt(index)
            x = 0.0
            if self._align is Qt.AlignmentFlag.AlignRight:
                x = self.width() - line.naturalTextWidth()
            elif self._align is Qt.AlignmentFlag.AlignHCenter:
                x = (self.width() - line.naturalTextWidth()) / 2
            # Runs of another font share the base line; the role's own font decides where it lies.
            metrics = self.look.metrics(self._role)
            baseline = index * height + (height - metrics.height()) / 2 + metrics.ascent()
            line.draw(painter, QPointF(x, round(baseline - line.ascent())))


class Button(QAbstractButton):
    """A push button with a border: plain, or the view's one primary button."""

    def __init__(self, look: Look, role: Role = Role.BODY, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.look = look
        self._role = role
        self._primary = False
        self._glyph = ""
        self._ring = False
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setCursor(Qt.CursorShape.ArrowCursor)

    def show_as(self, label: str, *, primary: bool = False, glyph: str = "", accessible: str = "") -> None:
        if (label, primary, glyph) != (self.text(), self._primary, self._glyph):
            self.setText(label.replace("&", "&&"))
            self._primary, self._glyph = primary, glyph
            self.update()
        self.setAccessibleName(accessible or label)

    def restyle(self) -> None:
        self.update()

    def natural_width(self) -> int:
        """Width that label, glyph and padding need."""
        px = self.look.px
        role = Role.NAME if self._primary else self._role
        glyph = px(24) if self._glyph else 0
        return self.look.metrics(role).horizontalAdvance(self.text().replace("&&", "&")) + glyph + px(24)

    def sizeHint(self) -> QSize:
        return QSize(self.natural_width(), self.look.px(32))

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

    def paintEvent(self, event: QPaintEvent) -> None:
        look, painter = self.look, QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        rect = QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5)
        radius = look.px(6)
        ground, edge, ink = look.colour("bg"), look.colour("ctl"), look.colour("ink")
        if self._primary:
            ground, edge, ink = look.colour("lemon"), look.colour("accedge"), look.colour("on_lemon")
        elif self.isEnabled() and (self.isDown() or self.underMouse()):
            ground = look.colour("hover")
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
        text = self.text().replace("&&", "&")
        width = look.metrics(role).horizontalAdvance(text)
        glyph = look.px(16) + look.px(8) if self._glyph else 0
        x = (self.width() - width - glyph) / 2
        if self._glyph:
            centre = QPointF(x + look.px(8), self.height() / 2)
            draw_glyph(painter, self._glyph, centre, look.px(16), ink)
        painter.drawText(
            QRectF(x + glyph, 0, width + 4, self.height()), int(Qt.AlignmentFlag.AlignVCenter), text
        )


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
        if on or (self.isEnabled() and (self.isDown() or self.underMouse())):
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(look.colour("track"))
            painter.drawRoundedRect(QRectF(self.rect()), look.px(6), look.px(6))
        if self.has_ring:
            focus_ring(painter, look, QRectF(self.rect()), look.px(6))
        ink = look.colour("ctl" if not self.isEnabled() else "ink" if on else "ink2")
        centre = QPointF(self.width() / 2, self.height() / 2)
        draw_glyph(painter, self._glyph, centre, look.px(self._glyph_size), ink, filled=on)


class LinkButton(Button):
    """A word and a chevron, in the colour of headings."""

    def natural_width(self) -> int:
        return self.look.metrics(Role.SMALL).horizontalAdvance(self.text()) + self.look.px(14)

    def paintEvent(self, event: QPaintEvent) -> None:
        look, painter = self.look, QPainter(self)
        painter.setFont(look.font(Role.SMALL))
        ink = look.colour("ink" if self.underMouse() and self.isEnabled() else "ink2")
        painter.setPen(ink)
        width = look.metrics(Role.SMALL).horizontalAdvance(self.text())
        painter.drawText(
            QRectF(self.width() - look.px(14) - width, 0, width + 4, self.height()),
            int(Qt.AlignmentFlag.AlignVCenter),
            self.text(),
        )
        glyph = "chevron-down" if self.isChecked() else "chevron-right"
        draw_glyph(painter, glyph, QPointF(self.width() - look.px(4), self.height() / 2), look.px(14), ink)
        if self.has_ring:
            focus_ring(painter, look, QRectF(self.rect()), look.px(4))


class Switch(Button):
    """On or off. It shows the value it is given; a click only asks (`asked`) for the other one."""

    asked = Signal(bool)

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(look, parent=parent)
        self.setCheckable(True)
        self.setFixedSize(look.px(36), look.px(20))
        self._knob = 0.0
        self._motion = _motion(self, 120)
        self._motion.valueChanged.connect(self._move_knob)

    def restyle(self) -> None:
        self.setFixedSize(self.look.px(36), self.look.px(20))
        self.update()

    def show_value(self, on: bool) -> None:
        if on == self.isChecked():
            return
        self.setChecked(on)
        start_motion(self._motion, self._knob, 1.0 if on else 0.0, self.look.duration(120), self.isVisible())

    def nextCheckState(self) -> None:
        self.asked.emit(not self.isChecked())

    def _move_knob(self, value: object) -> None:
        self._knob = float(value)  # type: ignore[arg-type]  # Qt delivers the float as an object
        self.update()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        finish_motion(self._motion)

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
        x = inset + self._knob * (rect.width() - diameter - 2 * inset)
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
            area = QRectF(x, 0, side, rect.height())
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


class LoadBar(QWidget):
    """How far a load or a download is. Fractions only grow smoothly; an unknown one shows an empty track."""

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.look = look
        self._colour = "ink"
        self._shown = 0.0
        self._goal = 0.0
        self._motion = _motion(self, 160)
        self._motion.valueChanged.connect(self._move)

    def restyle(self) -> None:
        self.update()

    def show_progress(self, fraction: float | None, colour: str) -> None:
        """`colour` is a token name or `#RRGGBB`."""
        goal = fraction or 0.0
        if colour != self._colour:
            self._colour = colour
            self.update()
        if goal == self._goal:
            return
        forward = goal > self._goal
        self._goal = goal
        duration = self.look.duration(160) if forward else 0
        start_motion(self._motion, self._shown, goal, duration, self.isVisible())

    def _move(self, value: object) -> None:
        self._shown = float(value)  # type: ignore[arg-type]  # Qt delivers the float as an object
        self.update()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        finish_motion(self._motion)

    def paintEvent(self, event: QPaintEvent) -> None:
        look, painter = self.look, QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        rect = QRectF(self.rect())
        radius = rect.height() / 2
        shape = rounded(rect.adjusted(0.5, 0.5, -0.5, -0.5), radius)
        painter.fillPath(shape, look.colour("track"))
        painter.setPen(QPen(look.colour("edge"), 1))
        painter.drawPath(shape)
        if self._shown > 0:
            painter.setClipRect(QRectF(0, 0, rect.width() * self._shown, rect.height()))
            painter.fillPath(rounded(rect, radius), look.colour(self._colour))


def _motion(parent: QWidget, ms: int) -> QVariantAnimation:
    motion = QVariantAnimation(parent)
    motion.setDuration(ms)
    motion.setEasingCurve(QEasingCurve.Type.OutCubic)
    return motion


def start_motion(motion: QVariantAnimation, start: float, end: float, duration: int, visible: bool) -> None:
    """Move from `start` to `end`. A motion under way is retargeted; a hidden or still widget jumps."""
    motion.stop()
    motion.setStartValue(float(start))
    motion.setEndValue(float(end))
    motion.setDuration(duration if visible else 0)
    motion.start()


def finish_motion(motion: QVariantAnimation) -> None:
    """Jump to the end, so that nothing runs while hidden."""
    if motion.state() is QAbstractAnimation.State.Running:
        motion.setCurrentTime(motion.duration())
        motion.stop()
