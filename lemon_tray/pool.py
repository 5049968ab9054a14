"""The pool of language models: its slots, the sentence below with its signs, and the breakdown."""

from __future__ import annotations

from typing import Final

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPen, QPolygonF
from PySide6.QtWidgets import QLabel, QWidget

from lemon_tray.labels import Text
from lemon_tray.paint import draw_glyph, fill_model, rounded
from lemon_tray.placing import flipped, mirrored, worded
from lemon_tray.theme import CONTENT, Look, Role
from lemon_tray.view import Pool, Slot

FULL_SIZE_SLOTS: Final = 6
SMALLEST: Final = (10, 4)
ROOM: Final = 208


def slot_size(count: int) -> tuple[float, float]:
    """Width of a slot and the gap after it, in px of the design: 28 and 8 up to six, smaller above."""
    if count <= FULL_SIZE_SLOTS:
        return 28.0, 8.0
    room = max(float(sum(SMALLEST)), ROOM / count)
    gap = float(max(SMALLEST[1], round(room * 8 / 36)))
    return max(float(SMALLEST[0]), room - gap), gap


class _PoolPart(QLabel):
    """What draws the pool: painted anew, and named anew, when it changes. A label, so that it is read out."""

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.look = look
        self._pool: Pool | None = None

    def show_pool(self, pool: Pool) -> None:
        if pool != self._pool:
            self._pool = pool
            self.setAccessibleName(self.spoken(pool))
            self.update()

    def restyle(self) -> None:
        self.update()

    def spoken(self, pool: Pool) -> str:
        """The accessible name."""
        raise NotImplementedError  # Qt's metaclass leaves no room for the one of abstract classes


class Slots(_PoolPart):
    """The pool drawn as places. The bar after a slot is the user's limit, the triangle below is the floor."""

    def spoken(self, pool: Pool) -> str:
        return pool.accessible

    def slot_rects(self) -> list[QRectF]:
        """Where each slot stands."""
        if self._pool is None:
            return []
        px = self.look.px
        width, gap = slot_size(len(self._pool.slots))
        return [
            mirrored(self, QRectF(px(2) + px(i * (width + gap)), px(4), px(width), px(20)))
            for i in range(len(self._pool.slots))
        ]

    def paintEvent(self, event: QPaintEvent) -> None:
        pool = self._pool
        if pool is None:
            return
        look, painter = self.look, QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        rects = self.slot_rects()
        _, gap = slot_size(len(rects))
        for slot, rect in zip(pool.slots, rects, strict=True):
            self._paint_slot(painter, slot, rect)
        if pool.limit_at is not None:
            x = round(self._after(rects[pool.limit_at - 1], gap)) - 1
            painter.fillRect(QRectF(x, 0, 2, look.px(28)), look.colour("ink"))
        if pool.floor_at is not None:
            tip = QPointF(self._after(rects[pool.floor_at - 1], gap), look.px(26))
            paint_triangle(painter, tip, look.px(8), look.colour("ink"))

    def _after(self, slot: QRectF, gap: float) -> float:
        """The middle of the gap after a slot."""
        half = self.look.px(gap) / 2
        return slot.left() - half if self.isRightToLeft() else slot.right() + half

    def _paint_slot(self, painter: QPainter, slot: Slot, rect: QRectF) -> None:
        look = self.look
        radius = look.px(4)
        pen = QPen(look.colour("ink" if slot.within_limit else "ctl"), 1.5)
        if not slot.within_limit:
            pen.setDashPattern([2.4, 2.0])
        painter.setPen(pen)
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.drawRoundedRect(rect.adjusted(0.75, 0.75, -0.75, -0.75), radius, radius)
        if slot.unlimited:
            draw_glyph(painter, "infinity", rect.center(), look.px(14), look.colour("ink2"))
        elif slot.number is not None:
            inset = look.px(4) if rect.width() >= look.px(20) else look.px(2.5)
            inner = rounded(rect.adjusted(inset, inset, -inset, -inset), look.px(2))
            fill_model(painter, look, inner, slot.number, 0.0 if slot.loading else 1.0, rect.left() + inset)


def paint_triangle(painter: QPainter, top: QPointF, width: float, colour: QColor) -> None:
    """The sign of the floor, its tip at `top`."""
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(colour)
    low = top.y() + width * 0.7
    painter.drawPolygon(
        QPolygonF([top, QPointF(top.x() + width / 2, low), QPointF(top.x() - width / 2, low)])
    )


class PoolLine(_PoolPart):
    """`2 loaded · room for 3 · your limit 1 · floor 3`, the last two behind their signs."""

    def spoken(self, pool: Pool) -> str:
        return pool.line

    def natural_width(self) -> int:
        """Where the sentence ends."""
        return round(self._run(None))

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        self._run(painter)

    def _run(self, painter: QPainter | None) -> float:
        pool = self._pool
        if pool is None:
            return 0.0
        look, px = self.look, self.look.px
        plain, bold = look.metrics(Role.SMALL), look.metrics(Role.SMALL_BOLD)
        baseline = (px(16) - plain.height()) / 2 + plain.ascent()
        x = 0.0
        limit_sign = "limit" if pool.limit_at is not None else ""
        pieces = ((pool.loaded, ""), (pool.room, ""), (pool.limit, limit_sign), (pool.floor, "floor"))
        for index, (text, sign) in enumerate(pieces):
            if index:
                if painter:
                    painter.setFont(look.font(Role.SMALL))
                    painter.setPen(look.colour("ink2"))
                    dot = flipped(self, x, plain.horizontalAdvance(" · "))
                    painter.drawText(QPointF(dot, baseline), " · ")
                x += plain.horizontalAdvance(" · ")
            if sign == "limit":
                if painter:
                    area = mirrored(self, QRectF(round(x), px(2), 2, px(12)))
                    painter.fillRect(area, look.colour("ink"))
                x += px(6)
            elif sign == "floor":
                if painter:
                    tip = QPointF(flipped(self, x + px(4)), px(5))
                    paint_triangle(painter, tip, px(8), look.colour("ink"))
                x += px(11)
            role = Role.SMALL if index else Role.SMALL_BOLD
            width = (plain if index else bold).horizontalAdvance(text)
            if painter:
                painter.setFont(look.font(role))
                painter.setPen(look.colour("ink"))
                painter.drawText(QPointF(flipped(self, x, width), baseline), worded(self, text))
            x += width
        return x


class Breakdown(QWidget):
    """Why there is room for so many: each policy's models, the floor, and what was not counted."""

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.look = look
        self._pool: Pool | None = None
        self._texts: list[Text] = []
        self._lines: list[int] = []
        self._signs: list[int] = []

    def show_pool(self, pool: Pool) -> None:
        shown = self._pool and (self._pool.rows, self._pool.total, self._pool.remarks)
        if shown == (pool.rows, pool.total, pool.remarks):
            self._pool = pool
            return
        self._pool = pool
        self.restyle()

    def restyle(self) -> None:
        for text in self._texts:
            text.hide()
            text.deleteLater()
        self._texts, self._lines, self._signs = [], [], []
        pool, px = self._pool, self.look.px
        if pool is None:
            return
        width, y = px(CONTENT), px(4)
        self.setFixedWidth(width)  # parts are placed from either edge
        self._lines.append(0)
        for row in pool.rows:
            count = self._text(row.count, Role.SMALL, Qt.AlignmentFlag.AlignRight)
            count.place(width - px(32), y + px(4), px(32))
            self._text(row.label, Role.SMALL, colour="ink2").place(0, y + px(4), px(48))
            body = self._text(row.text, Role.SMALL, wrap=True)
            y += max(px(16), body.place(px(56), y + px(4), width - px(56) - px(40))) + px(8)
        if pool.total is not None:
            self._lines.append(y)
            self._text(pool.total.label, Role.SMALL_BOLD).place(0, y + px(4), width - px(40))
            total = self._text(pool.total.count, Role.SMALL_BOLD, Qt.AlignmentFlag.AlignRight)
            total.place(width - px(32), y + px(4), px(32))
            y += px(24)
        for remark in pool.remarks:
            self._signs.append(y + px(12))
            text = self._text(remark, Role.SMALL, colour="warning.ink" if pool.rows else "ink2", wrap=True)
            y += text.place(px(22), y + px(4), width - px(22)) + px(8)
        self.setFixedSize(width, y + px(4))
        self.update()

    def _text(
        self,
        text: str,
        role: Role,
        align: Qt.AlignmentFlag = Qt.AlignmentFlag.AlignLeft,
        *,
        colour: str = "ink",
        wrap: bool = False,
    ) -> Text:
        made = Text(self.look, role, colour, align=align, wrap=wrap, parent=self)
        made.show_text(text)
        made.show()
        self._texts.append(made)
        return made

    def paintEvent(self, event: QPaintEvent) -> None:
        look, painter = self.look, QPainter(self)
        for y in self._lines:
            painter.fillRect(QRectF(0, y, self.width(), 1), look.colour("line"))
        glyph, colour = ("warning", "warning.ink") if self._pool and self._pool.rows else ("info", "ink2")
        for y in self._signs:
            centre = QPointF(flipped(self, look.px(7)), y)
            draw_glyph(painter, glyph, centre, look.px(14), look.colour(colour))
