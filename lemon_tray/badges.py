"""Small rounded marks with a glyph and a word, and the switches made of them."""

from __future__ import annotations

from typing import Final

from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QLabel, QWidget

from lemon_tray.buttons import Button
from lemon_tray.paint import draw_glyph, focus_ring
from lemon_tray.placing import flipped, mirrored, worded
from lemon_tray.present_settings import LIVE, NEXT_LOAD, RESTART
from lemon_tray.theme import Look, Role
from lemon_tray.words import translate

KINDS: Final = (LIVE, NEXT_LOAD, RESTART)
_STYLE: Final = {LIVE: ("bolt", "good"), NEXT_LOAD: ("clock", "info"), RESTART: ("power", "warning")}


def badge_text(kind: str) -> str:
    """The badge's word."""
    return {
        LIVE: translate("Settings", "Live"),
        NEXT_LOAD: translate("Settings", "Next load"),
        RESTART: translate("Settings", "Restart"),
    }[kind]


def _width(look: Look, text: str) -> int:
    return look.metrics(Role.SMALL).horizontalAdvance(text) + look.px(8 + 12 + 6 + 10)


def _paint(painter: QPainter, widget: QWidget, look: Look, kind: str, text: str) -> None:
    area = QRectF(widget.rect())
    glyph, state = _STYLE[kind]
    px = look.px
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(look.colour(f"{state}.ground"))
    painter.drawRoundedRect(area, area.height() / 2, area.height() / 2)
    ink = look.colour(f"{state}.ink")
    draw_glyph(painter, glyph, QPointF(flipped(widget, px(14)), area.center().y()), px(12), ink)
    painter.setPen(ink)
    painter.setFont(look.font(Role.SMALL))
    room = mirrored(widget, area.adjusted(px(26), 0, 0, 0))
    painter.drawText(room, int(Qt.AlignmentFlag.AlignVCenter), worded(widget, text))


class Badge(QLabel):
    """When a change of a setting acts. A label, so that it is read out."""

    def __init__(self, look: Look, kind: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.look = look
        self.kind = kind
        self.setAccessibleName(badge_text(kind))
        self.restyle()

    def restyle(self) -> None:
        self.setFixedSize(_width(self.look, badge_text(self.kind)), self.look.px(20))
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        _paint(QPainter(self), self, self.look, self.kind, badge_text(self.kind))


class BadgeFilter(Button):
    """A badge with a number that shows only settings of its kind while it is on."""

    def __init__(self, look: Look, kind: str, parent: QWidget | None = None) -> None:
        super().__init__(look, parent=parent)
        self.kind = kind
        self.setCheckable(True)
        self.show_count(0)

    def show_count(self, count: int) -> None:
        self.setText(f"{badge_text(self.kind)} {count}")
        self.setAccessibleName(
            translate("Settings", "Show only {kind}").format(kind=badge_text(self.kind).lower())
        )
        self.restyle()

    def restyle(self) -> None:
        self.setFixedSize(self.sizeHint())
        self.update()

    def sizeHint(self) -> QSize:
        return QSize(_width(self.look, self.text()), self.look.px(24))

    def paintEvent(self, event: QPaintEvent) -> None:
        look, painter = self.look, QPainter(self)
        area = QRectF(self.rect())
        _paint(painter, self, look, self.kind, self.text())
        if self.isChecked():
            state = _STYLE[self.kind][1]
            painter.setPen(QPen(look.colour(f"{state}.ink"), 1.5))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            inner = area.adjusted(0.75, 0.75, -0.75, -0.75)
            painter.drawRoundedRect(inner, inner.height() / 2, inner.height() / 2)
        if self.has_ring:
            focus_ring(painter, look, area, area.height() / 2)
