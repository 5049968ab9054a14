"""The box that names a part of a bar."""

from __future__ import annotations

from PySide6.QtCore import QPoint, QRectF, Qt
from PySide6.QtGui import QFontMetrics, QPainter, QPaintEvent
from PySide6.QtWidgets import QWidget

from lemon_tray.placing import worded
from lemon_tray.theme import Look, Role


class Tip(QWidget):
    """The dark box that names a segment and its bytes. A child of the panel, so it needs no window."""

    def __init__(self, look: Look, parent: QWidget) -> None:
        super().__init__(parent)
        self.look = look
        self._host = parent
        self._lines: tuple[str, ...] = ()
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self.hide()

    def show_at(self, stop: QWidget, lines: tuple[str, ...]) -> None:
        """Show `lines` below `stop`, or above it where there is no room."""
        if not lines:
            return
        self._lines = lines
        px, parent = self.look.px, self._host
        widest = max(self._metrics(i).horizontalAdvance(line) for i, line in enumerate(lines))
        width = min(widest + px(24), parent.width() - px(16))
        height = len(lines) * px(16) + px(16)
        middle = stop.mapTo(parent, QPoint(stop.width() // 2, 0))
        below = stop.mapTo(parent, QPoint(0, stop.height())).y() + px(8)
        y = below if below + height <= parent.height() - px(4) else middle.y() - height - px(8)
        x = min(max(middle.x() - width // 2, px(8)), parent.width() - width - px(8))
        self.setGeometry(x, y, width, height)
        self.raise_()
        self.show()
        self.update()

    def lines(self) -> tuple[str, ...]:
        return self._lines

    def _metrics(self, index: int) -> QFontMetrics:
        return self.look.metrics(Role.SMALL_BOLD if index == 0 and len(self._lines) > 1 else Role.SMALL)

    def paintEvent(self, event: QPaintEvent) -> None:
        look, painter, px = self.look, QPainter(self), self.look.px
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(look.colour("ink"))
        painter.drawRoundedRect(QRectF(self.rect()), px(6), px(6))
        painter.setPen(look.colour("bg"))
        for index, line in enumerate(self._lines):
            bold = index == 0 and len(self._lines) > 1
            painter.setFont(look.font(Role.SMALL_BOLD if bold else Role.SMALL))
            area = QRectF(px(12), px(8) + index * px(16), self.width() - px(24), px(16))
            text = self._metrics(index).elidedText(line, Qt.TextElideMode.ElideMiddle, int(area.width()) + 1)
            painter.drawText(area, int(Qt.AlignmentFlag.AlignVCenter), worded(self, text))
