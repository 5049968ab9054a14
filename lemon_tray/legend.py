"""What the colours and patterns of a bar mean: the entries below it, and a model's square beside its name."""

from __future__ import annotations

from typing import Final

from PySide6.QtCore import QEvent, QPointF, QRectF, Qt
from PySide6.QtGui import QHelpEvent, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QToolTip, QWidget

from lemon_tray.paint import fill_claim, fill_model, rounded
from lemon_tray.placing import flipped, mirrored, tip_text, worded
from lemon_tray.theme import Look, Role
from lemon_tray.view import Segment, SegmentKind

LEGEND_COLUMNS: Final = (188, 156)


class Legend(QWidget):
    """Swatch, name and number of each segment, in two columns."""

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.look = look
        self._segments: tuple[Segment, ...] = ()
        self.cut: dict[int, str] = {}

    def show_segments(self, segments: tuple[Segment, ...]) -> None:
        before, self._segments = self._segments, segments
        if len(segments) != len(before):
            self.cut.clear()
            self.update()
            return
        for old, new, cell in zip(before, segments, self.cells(), strict=True):
            if new != old:
                self.update(mirrored(self, cell).toAlignedRect())

    def restyle(self) -> None:
        self.update()

    def rows(self) -> int:
        return (len(self._segments) + 1) // 2

    def cells(self) -> list[QRectF]:
        """Where each entry stands: row by row up to three entries, column by column from four on."""
        px, rows = self.look.px, self.rows()
        left, right = (px(w) for w in LEGEND_COLUMNS)
        cells = []
        for index in range(len(self._segments)):
            if len(self._segments) <= 3:
                row, column = divmod(index, 2)
            else:
                column, row = divmod(index, rows)
            x, width = (0, left) if column == 0 else (self.width() - right, right)
            cells.append(QRectF(x, row * px(20), width, px(20)))
        return cells

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        dirty = event.region()
        for index, (segment, cell) in enumerate(zip(self._segments, self.cells(), strict=True)):
            if dirty.intersects(mirrored(self, cell).toAlignedRect()):
                self.cut.pop(index, None)
                self._paint_entry(painter, index, segment, cell)

    def _paint_entry(self, painter: QPainter, index: int, segment: Segment, cell: QRectF) -> None:
        look, px = self.look, self.look.px
        metrics = look.metrics(Role.SMALL)
        side = px(12)
        swatch = mirrored(self, QRectF(cell.left(), cell.center().y() - side / 2, side, side))
        paint_swatch(painter, look, swatch, segment)
        painter.setFont(look.font(Role.SMALL))
        baseline = cell.top() + (cell.height() - metrics.height()) / 2 + metrics.ascent()
        number = metrics.horizontalAdvance(segment.value)
        painter.setPen(look.colour("ink"))
        painter.drawText(QPointF(flipped(self, cell.right() - number, number), baseline), segment.value)
        x = cell.left() + px(20)
        note = segment.note
        note_width = metrics.horizontalAdvance(note) + px(8) if note else 0
        room = int(cell.right() - number - px(8) - note_width - x)
        if note and metrics.horizontalAdvance(segment.label) > room:
            note, room = "", room + note_width  # the name matters more: the swatch and the tip say it too
        label = metrics.elidedText(segment.label, Qt.TextElideMode.ElideMiddle, room)
        if label != segment.label:
            self.cut[index] = segment.label
        width = metrics.horizontalAdvance(label)
        painter.drawText(QPointF(flipped(self, x, width), baseline), worded(self, label))
        if note:
            painter.setPen(look.colour("ink2"))
            beside = flipped(self, x + width + px(8), note_width - px(8))
            painter.drawText(QPointF(beside, baseline), worded(self, note))

    def event(self, event: QEvent) -> bool:
        if event.type() == QEvent.Type.ToolTip and isinstance(event, QHelpEvent):
            for index, cell in enumerate(self.cells()):
                if index in self.cut and mirrored(self, cell).contains(QPointF(event.pos())):
                    QToolTip.showText(event.globalPos(), tip_text(self.cut[index]), self)
                    return True
            return False
        return super().event(event)


def paint_swatch(painter: QPainter, look: Look, area: QRectF, segment: Segment) -> None:
    """The small square that ties a name to its segment."""
    shape = rounded(area, look.px(2))
    match segment.kind:
        case SegmentKind.MODEL:
            arrived = 0.0 if segment.reserved else 1.0
            fill_model(painter, look, shape, segment.number, arrived, area.left())
        case SegmentKind.FREE:
            painter.setPen(QPen(look.colour("ctl"), 1))
            painter.setBrush(look.colour("track"))
            painter.drawPath(rounded(area.adjusted(0.5, 0.5, -0.5, -0.5), look.px(2)))
        case SegmentKind.MORE:
            painter.fillPath(shape, look.colour("ink"))
        case SegmentKind.CLAIM:
            fill_claim(painter, look, shape)
        case SegmentKind.OTHERS:
            painter.fillPath(shape, look.colour("others"))


class Swatch(QWidget):
    """A model's square in front of its name."""

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.look = look
        self._number = 0
        self._hatched = False
        self.setFixedSize(look.px(12), look.px(12))

    def restyle(self) -> None:
        self.setFixedSize(self.look.px(12), self.look.px(12))
        self.update()

    def show_model(self, number: int, hatched: bool) -> None:
        if (number, hatched) != (self._number, self._hatched):
            self._number, self._hatched = number, hatched
            self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        shape = rounded(QRectF(self.rect()), self.look.px(2))
        fill_model(painter, self.look, shape, self._number, 0.0 if self._hatched else 1.0)
