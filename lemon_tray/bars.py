"""A device's memory: its name and numbers, the bar, and the legend below."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from PySide6.QtCore import QEvent, QRect, QRectF, Qt, Signal
from PySide6.QtGui import (
    QEnterEvent,
    QFocusEvent,
    QHideEvent,
    QKeyEvent,
    QPainter,
    QPainterPath,
    QPaintEvent,
    QPen,
    QPixmap,
)
from PySide6.QtWidgets import QLabel, QProgressBar, QWidget

from lemon_tray.buttons import by_keyboard
from lemon_tray.labels import Run, Text
from lemon_tray.legend import Legend
from lemon_tray.load_bar import show_value
from lemon_tray.motion import Motion
from lemon_tray.paint import fill_claim, fill_model, focus_ring, rounded
from lemon_tray.placing import forward, mirrored, put, worded
from lemon_tray.theme import CONTENT, Look, Role
from lemon_tray.view import Bar, Segment, SegmentKind
from router.units import MIB

GAP: Final = 1.5
LEAST: Final = 4.5
TICK_FROM_END: Final = 3.0


def segment_spans(sizes: Sequence[int], total: int, width: float) -> list[tuple[float, float]]:
    """Left edge and width of each segment, gap included; the last size is what is free and takes the rest.

    No segment above zero bytes is narrower than `LEAST`; free memory pays for that, and when there is none
    left, the widest segment does.
    """
    widths = [size / total * width if total else 0.0 for size in sizes[:-1]]
    widths = [max(w, LEAST) if size > 0 else 0.0 for w, size in zip(widths, sizes, strict=False)]
    excess = sum(widths) - width
    while excess > 1e-6 and widths:
        widest = max(range(len(widths)), key=widths.__getitem__)
        if widths[widest] <= LEAST:
            break
        cut = min(excess, widths[widest] - LEAST)
        widths[widest] -= cut
        excess -= cut
    spans, x = [], 0.0
    for w in widths:
        spans.append((x, w))
        x += w
    spans.append((x, max(0.0, width - x)))
    return spans


class _Stop(QLabel):
    """One segment or the tick, for keyboard, pointer and screen reader. Draws nothing."""

    def __init__(self, bar: MemoryBar, index: int) -> None:
        super().__init__(bar)
        self._bar = bar
        self.index = index
        self.tip: tuple[str, ...] = ()
        self.ring = False

    def focusInEvent(self, event: QFocusEvent) -> None:
        self.ring = by_keyboard(event)
        self._bar.stop_focused(self)

    def focusOutEvent(self, event: QFocusEvent) -> None:
        self._bar.stop_left(self)

    def enterEvent(self, event: QEnterEvent) -> None:
        self._bar.tip_wanted.emit(self)

    def leaveEvent(self, event: QEvent) -> None:
        self._bar.tip_over.emit()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        self._bar.stop_key(self, event)


class MemoryBar(QProgressBar):
    """The bar itself: segments in their order, the margin's tick, or the reason why nothing is known.

    It is a progress bar for its role and value, MiB in use of all; the drawing is its own.
    """

    tip_wanted = Signal(QWidget)
    tip_over = Signal()

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.look = look
        self._bar: Bar | None = None
        self._stops: list[_Stop] = []
        self._current = 0
        self._empty: tuple[tuple[object, ...], QPixmap] | None = None
        self.setTextVisible(False)
        self.setAttribute(Qt.WidgetAttribute.WA_OpaquePaintEvent)  # a move paints nothing but this
        self._from: dict[str, tuple[float, float, float]] = {}
        self._to: dict[str, tuple[float, float, float]] = {}
        self._moving = QRect()
        self._phase = Motion(self, 1.0, lambda: self._moving)

    # What is shown

    def show_bar(self, bar: Bar) -> None:
        if bar == self._bar:
            return
        before, self._bar = self._bar, bar
        self._from = {key: self._at(key) for key in self._to}
        self._to = self._goals(bar)
        same_device = before is not None and before.id == bar.id and before.total == bar.total
        self._moving = self._what_moves(before, bar)
        for key, goal in self._to.items():
            self._from.setdefault(key, (goal[0], 0.0, goal[2]))
        duration = self.look.duration(160) if same_device else 0
        self.setAccessibleName(bar.accessible)
        self._tell_value(bar)
        self._place_stops()
        way = self._way()
        self._phase.go(1.0, duration if way else 0, start=0.0, reach=way)
        self.update(self._moving)

    def _what_moves(self, before: Bar | None, bar: Bar) -> QRect:
        """What has to be painted anew on the way from one bar to the next; what is free is bare ground."""
        if (
            before is None
            or _shape(before) != _shape(bar)
            or any(s.ring and s.hasFocus() for s in self._stops)
        ):
            return self.rect()
        moved = [
            place
            for segment in bar.segments
            if segment.kind is not SegmentKind.FREE and self._from[segment.key] != self._to[segment.key]
            for place in (self._from[segment.key], self._to[segment.key])
        ]
        if not moved:
            return QRect()
        left, right = min(x for x, _, _ in moved), max(x + w for x, w, _ in moved)
        area = mirrored(self, QRectF(left, 0, right - left, self.height()))
        return area.toAlignedRect().adjusted(-2, 0, 2, 0)

    def _tell_value(self, bar: Bar) -> None:
        used = sum(s.bytes for s in bar.segments if s.kind is not SegmentKind.FREE)
        show_value(self, used // MIB, (bar.total or 0) // MIB)

    def restyle(self) -> None:
        if self._bar is not None:
            self._to = self._goals(self._bar)
            self._from = dict(self._to)
            self._place_stops()
        self.update()

    def _way(self) -> float:
        """How far what moves most has to go, in px."""
        way = 0.0
        for key, (x, w, arrived) in self._to.items():
            old_x, old_w, old_arrived = self._from[key]
            way = max(way, abs(x - old_x), abs(w - old_w), abs(arrived - old_arrived) * w)
        return way

    def _goals(self, bar: Bar) -> dict[str, tuple[float, float, float]]:
        if bar.total is None:
            return {}
        spans = segment_spans([s.bytes for s in bar.segments], bar.total, self.width())
        goals = {}
        for segment, (x, w) in zip(bar.segments, spans, strict=True):
            arrived = 1.0 - segment.reserved / segment.bytes if segment.bytes else 1.0
            goals[segment.key] = (x, w, arrived)
        return goals

    def _at(self, key: str) -> tuple[float, float, float]:
        goal = self._to[key]
        start = self._from.get(key, goal)
        p = self._phase.at
        return tuple(s + (g - s) * p for s, g in zip(start, goal, strict=True))  # type: ignore[return-value]

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._phase.finish()

    def _trough(self) -> QRectF:
        height = self.look.px(12 if self._bar is not None and self._bar.compact else 20)
        return QRectF(0, (self.height() - height) / 2, self.width(), height)

    def _tick_x(self) -> float:
        assert self._bar is not None
        x = self.width() * (1 - self._bar.margin / (self._bar.total or 1))
        return round(min(x, self.width() - TICK_FROM_END) - 1)

    # Keyboard and pointer

    def _place_stops(self) -> None:
        bar = self._bar
        assert bar is not None
        wanted: list[tuple[QRectF, str, tuple[str, ...]]] = []
        trough = self._trough()
        if bar.total is not None:
            for segment in bar.segments:
                x, w, _ = self._to[segment.key]
                area = QRectF(x, trough.top(), max(0.0, w - (GAP if w > GAP else 0)), trough.height())
                if segment.bytes > 0:
                    wanted.append((area, segment.accessible, segment.tip))
            if bar.margin:
                tick = QRectF(self._tick_x() - 2, 0, 6, self.height())
                wanted.append((tick, bar.margin_tip, (bar.margin_tip,)))
        while len(self._stops) < len(wanted):
            self._stops.append(_Stop(self, len(self._stops)))
        self._current = min(self._current, max(0, len(wanted) - 1))
        for stop, (area, name, tip) in zip(self._stops, wanted, strict=False):
            place = mirrored(self, area).toAlignedRect()
            if place != stop.geometry():
                stop.setGeometry(place)
            if name != stop.accessibleName():
                stop.setAccessibleName(name)
            stop.tip = tip
            stop.show()
        for stop in self._stops[len(wanted) :]:
            stop.hide()
        self._roving()

    def _roving(self) -> None:
        """One stop of the bar is in the tab order; arrow keys reach the others."""
        for stop in self._stops:
            policy = Qt.FocusPolicy.TabFocus if stop.index == self._current else Qt.FocusPolicy.NoFocus
            if policy != stop.focusPolicy():
                stop.setFocusPolicy(policy)

    def shown_stops(self) -> list[_Stop]:
        return [s for s in self._stops if not s.isHidden()]

    def stop_focused(self, stop: _Stop) -> None:
        self._current = stop.index
        self._roving()
        self.update()
        if stop.ring:
            self.tip_wanted.emit(stop)

    def stop_left(self, stop: _Stop) -> None:
        self.update()
        self.tip_over.emit()

    def stop_key(self, stop: _Stop, event: QKeyEvent) -> None:
        stops = self.shown_stops()
        target = {
            Qt.Key.Key_Left: stop.index - 1,
            Qt.Key.Key_Right: stop.index + 1,
            Qt.Key.Key_Home: 0,
            Qt.Key.Key_End: len(stops) - 1,
        }.get(Qt.Key(forward(self, event.key())))
        if target is None:
            event.ignore()
            return
        chosen = stops[min(max(target, 0), len(stops) - 1)]
        chosen.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        QWidget.setTabOrder(stop, chosen)  # it takes over this one's place among all that Tab reaches
        chosen.setFocus(Qt.FocusReason.OtherFocusReason)

    # Painting

    def paintEvent(self, event: QPaintEvent) -> None:
        bar = self._bar
        if bar is None:
            return
        look, painter = self.look, QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        trough, radius = self._trough(), look.px(4)
        if bar.total is None:
            painter.fillRect(self.rect(), look.colour("bg"))
            self._paint_unknown(painter, bar, trough, radius)
            return
        painter.drawPixmap(0, 0, self._ground(trough, radius))
        clip = rounded(trough, radius)
        dirty = QRectF(event.rect())
        for segment in bar.segments:
            x, w, _ = self._at(segment.key)
            place = mirrored(self, QRectF(x - 1, 0, w + 2, self.height()))
            if segment.kind is not SegmentKind.FREE and place.intersects(dirty):
                self._paint_segment(painter, segment, trough, clip)
        if bar.margin:
            self._paint_tick(painter)
        focused = next((s for s in self._stops if s.hasFocus() and s.ring), None)
        if focused is not None:
            ring = QRectF(focused.geometry()).adjusted(-2, -2, 2, 2).intersected(QRectF(self.rect()))
            focus_ring(painter, look, ring, look.px(5))

    def _ground(self, trough: QRectF, radius: float) -> QPixmap:
        """The empty bar; it is drawn once, for it lies below every move."""
        look, ratio = self.look, self.devicePixelRatioF()
        key = (self.width(), self.height(), trough.height(), ratio, look.tokens)
        if self._empty is None or self._empty[0] != key:
            pixmap = QPixmap(round(self.width() * ratio), round(self.height() * ratio))
            pixmap.setDevicePixelRatio(ratio)
            pixmap.fill(look.colour("bg"))
            painter = QPainter(pixmap)
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            outline = rounded(trough.adjusted(0.5, 0.5, -0.5, -0.5), radius)
            painter.fillPath(outline, look.colour("track"))
            painter.setPen(QPen(look.colour("edge"), 1))
            painter.drawPath(outline)
            painter.end()
            self._empty = key, pixmap
        return self._empty[1]

    def _paint_segment(self, painter: QPainter, segment: Segment, trough: QRectF, clip: QPainterPath) -> None:
        look = self.look
        x, w, arrived = self._at(segment.key)
        if w <= 0:
            return
        # Edges on whole pixels are sharp, and the same whether all or a part is painted.
        begin, end = self._snapped(x), self._snapped(x + w)
        edge = self._snapped(x + w - GAP) if w > GAP else end
        painter.save()
        painter.setClipPath(clip)
        whole = mirrored(self, QRectF(begin, trough.top() - 1, end - begin, trough.height() + 2))
        painter.fillRect(whole, look.colour("bg"))
        shape = QPainterPath()
        shape.addRect(mirrored(self, QRectF(begin, trough.top(), edge - begin, trough.height())))
        if x < look.px(4) or x + w > trough.width() - look.px(4):
            shape = shape.intersected(clip)  # the ends are round
        match segment.kind:
            case SegmentKind.MODEL:
                fill_model(painter, look, shape, segment.number, arrived, mirror=self.isRightToLeft())
            case SegmentKind.MORE:
                painter.fillPath(shape, look.colour("ink"))
            case SegmentKind.CLAIM:
                fill_claim(painter, look, shape)
            case _:
                painter.fillPath(shape, look.colour("others"))
        painter.restore()

    def _snapped(self, x: float) -> float:
        """The whole pixel of the screen that is next to `x`."""
        ratio = self.devicePixelRatioF()
        return round(x * ratio) / ratio

    def _paint_tick(self, painter: QPainter) -> None:
        x = self._tick_x()
        for area, colour in (
            (QRectF(x - 1, 0, 4, self.height()), "bg"),
            (QRectF(x, 0, 2, self.height()), "ink"),
        ):
            painter.fillRect(mirrored(self, area), self.look.colour(colour))

    def _paint_unknown(self, painter: QPainter, bar: Bar, trough: QRectF, radius: float) -> None:
        look = self.look
        pen = QPen(look.colour("ctl"), 1.5)
        pen.setDashPattern([3, 2.5])
        painter.setPen(pen)
        painter.drawRoundedRect(trough.adjusted(0.75, 0.75, -0.75, -0.75), radius, radius)
        painter.setPen(look.colour("error.ink"))
        painter.setFont(look.font(Role.SMALL))
        room = int(trough.width()) - look.px(16)
        text = look.metrics(Role.SMALL).elidedText(bar.reason, Qt.TextElideMode.ElideRight, room)
        painter.drawText(trough, int(Qt.AlignmentFlag.AlignCenter), worded(self, text))


def _shape(bar: Bar) -> tuple[object, ...]:
    """What a bar looks like but for how wide its segments are."""
    looks = tuple((s.key, s.kind, s.number, s.reserved > 0) for s in bar.segments)
    return bar.id, bar.total, bar.margin, bar.compact, bar.reason, looks


class DeviceBlock(QWidget):
    """One device: head line, bar, legend."""

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.look = look
        self._view: Bar | None = None
        self._title = Text(look, Role.NAME, parent=self)
        self._label = Text(look, Role.SMALL, "ink2", parent=self)
        self._numbers = Text(look, Role.BODY, align=Qt.AlignmentFlag.AlignRight, parent=self)
        self.bar = MemoryBar(look, self)
        self.legend = Legend(look, self)
        self.note = Text(look, Role.SMALL, "ink2", wrap=True, parent=self)

    def show_bar(self, view: Bar) -> None:
        if view == self._view:
            return
        self._view = view
        self.note.show_text(view.note)
        self.note.setVisible(bool(view.note) and not view.compact)
        self._title.show_text(view.title)
        self._label.show_text(view.label)
        total = f" / {view.total_text}" if view.total_text else ""
        self._numbers.show_runs([Run(view.used, Role.NAME), Run(total, None, "ink2")])
        self.legend.show_segments(() if view.compact or view.total is None else view.segments)
        self._arrange()
        self.bar.show_bar(view)

    def restyle(self) -> None:
        self._arrange()

    def _arrange(self) -> None:
        px = self.look.px
        width = px(CONTENT)
        if self.width() != width:
            self.setFixedWidth(width)  # parts are placed from either edge
        numbers = self._numbers.natural_width()
        self._numbers.place(width - numbers, 0, numbers)
        label = min(self._label.natural_width(), width // 4)
        title = min(self._title.natural_width(), width - numbers - label - px(16))
        self._title.place(0, 0, title)
        self._label.place(title + px(8), px(2), label)
        y = px(20)
        put(self.bar, 0, y, width, px(28))
        y += px(28)
        rows = self.legend.rows()
        self.legend.setVisible(rows > 0)
        if rows:
            y += px(2)
            put(self.legend, 0, y, width, rows * px(20))
            y += rows * px(20)
        if not self.note.isHidden():
            y += px(2)
            y += self.note.place(0, y, width)
        self.setFixedSize(width, y)
