"""How far a load or a download is."""

from __future__ import annotations

from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QHideEvent, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QProgressBar, QWidget

from lemon_tray.motion import Motion
from lemon_tray.paint import rounded
from lemon_tray.placing import mirrored
from lemon_tray.theme import Look


def show_value(bar: QProgressBar, value: int, most: int) -> None:
    """Let `bar` have this value for screen readers; its drawing is its own.

    Qt would paint it at once, in the middle of whatever goes on.
    """
    if bar.maximum() != max(1, most):
        bar.setRange(0, max(1, most))
    if bar.value() != min(value, most):
        bar.setAttribute(Qt.WidgetAttribute.WA_UpdatesDisabled, True)  # `setUpdatesEnabled` paints all of it
        bar.setValue(min(value, most))
        bar.setAttribute(Qt.WidgetAttribute.WA_UpdatesDisabled, False)


class LoadBar(QProgressBar):
    """How far a load or a download is. Fractions only grow smoothly; an unknown one shows an empty track.

    It is a progress bar for its role and value; the drawing is its own.
    """

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.look = look
        self._colour = "ink"
        self._goal = 0.0
        self._shown = Motion(self)
        self.setTextVisible(False)
        self.setRange(0, 100)
        self.setValue(0)

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
        show_value(self, int(goal * 100), 100)
        self._shown.go(goal, self.look.duration(160) if forward else 0, reach=self.width())

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._shown.finish()

    def paintEvent(self, event: QPaintEvent) -> None:
        look, painter = self.look, QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        rect = QRectF(self.rect())
        radius = rect.height() / 2
        shape = rounded(rect.adjusted(0.5, 0.5, -0.5, -0.5), radius)
        painter.fillPath(shape, look.colour("track"))
        painter.setPen(QPen(look.colour("edge"), 1))
        painter.drawPath(shape)
        if self._shown.at > 0:
            painter.setClipRect(mirrored(self, QRectF(0, 0, rect.width() * self._shown.at, rect.height())))
            painter.fillPath(rounded(rect, radius), look.colour(self._colour))
