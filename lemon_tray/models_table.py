"""The table of the model browser: drawn row by row, so that a thousand models cost as much as the visible."""

from __future__ import annotations

from typing import Any, Final

from PySide6.QtCore import (
    QAbstractTableModel,
    QEvent,
    QModelIndex,
    QPersistentModelIndex,
    QPointF,
    QRectF,
    QSize,
    Qt,
    Signal,
)
from PySide6.QtGui import (
    QColor,
    QFocusEvent,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QResizeEvent,
)
from PySide6.QtWidgets import (
    QAbstractItemView,
    QHeaderView,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QTableView,
    QWidget,
)

from lemon_tray.paint import draw_glyph, focus_ring, hatch_fill, rounded
from lemon_tray.placing import tip_text, worded
from lemon_tray.present_catalog import CatalogRow, FitBar, Verdict
from lemon_tray.theme import Look, Role
from lemon_tray.words import translate

MODEL, NEEDS, DEVICES, FIT, ACTION = range(5)
LEAST_TEXT: Final = 320
"""Width of the names and verdicts together; the bars give way to them."""
ROW: Final = 60
VERDICTS: Final = {
    Verdict.GOOD: ("check", "good.ink"),
    Verdict.BUSY: ("clock", "info.ink"),
    Verdict.AFTER: ("eject", "info.ink"),
    Verdict.PARTLY: ("warning", "warning.ink"),
    Verdict.BAD: ("cross", "error.ink"),
    Verdict.UNKNOWN: ("info", "ink2"),
}
_Index = QModelIndex | QPersistentModelIndex


class CatalogModel(QAbstractTableModel):
    """The rows for the view. Rows that stay in place are changed in place."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.rows: list[CatalogRow] = []

    def show_rows(self, rows: list[CatalogRow]) -> None:
        if rows == self.rows:
            return
        if [r.model for r in rows] == [r.model for r in self.rows]:
            before, self.rows = self.rows, rows
            for at, (old, new) in enumerate(zip(before, rows, strict=True)):
                if old != new:
                    self.dataChanged.emit(self.index(at, 0), self.index(at, ACTION))
            return
        self.beginResetModel()
        self.rows = rows
        self.endResetModel()

    def rowCount(self, parent: _Index = QModelIndex()) -> int:  # noqa: B008  # Qt's own signature
        return 0 if parent.isValid() else len(self.rows)

    def columnCount(self, parent: _Index = QModelIndex()) -> int:  # noqa: B008  # Qt's own signature
        return 0 if parent.isValid() else ACTION + 1

    def data(self, index: _Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if not index.isValid() or index.row() >= len(self.rows):
            return None
        row = self.rows[index.row()]
        texts = (row.label, row.needs, "", row.title, row.action_label)
        match role:
            case Qt.ItemDataRole.DisplayRole:
                return texts[index.column()]
            case Qt.ItemDataRole.AccessibleTextRole:
                return row.accessible if index.column() == FIT else texts[index.column()]
            case Qt.ItemDataRole.ToolTipRole if index.column() == MODEL:
                return tip_text(row.label)
            case Qt.ItemDataRole.ToolTipRole if index.column() == FIT:
                return tip_text(row.reason) or None
        return None

    def headerData(
        self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole
    ) -> Any:
        if orientation is not Qt.Orientation.Horizontal:
            return None
        if role == Qt.ItemDataRole.TextAlignmentRole:
            side = Qt.AlignmentFlag.AlignRight if section == NEEDS else Qt.AlignmentFlag.AlignLeft
            return side | Qt.AlignmentFlag.AlignVCenter
        if role == Qt.ItemDataRole.DisplayRole:
            return (
                translate("Catalog", "Model"),
                translate("Catalog", "Needs, GiB"),
                translate("Catalog", "Devices after loading"),
                translate("Catalog", "Will it fit?"),
                "",
            )[section]
        return None


class CatalogDelegate(QStyledItemDelegate):
    """Draws the cells."""

    def __init__(self, look: Look, table: CatalogTable) -> None:
        super().__init__(table)
        self._look = look
        self._table = table

    def sizeHint(self, option: QStyleOptionViewItem, index: _Index) -> QSize:
        return QSize(0, self._look.px(ROW))

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: _Index) -> None:
        row = self._table.catalog.rows[index.row()]
        look, px = self._look, self._look.px
        rect = QRectF(option.rect)
        state = option.state
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        selected = bool(state & QStyle.StateFlag.State_Selected)
        painter.fillRect(rect, look.colour("sunk" if selected else "bg"))
        painter.fillRect(QRectF(rect.left(), rect.bottom() - 1, rect.width(), 1), look.colour("line"))
        before = px(24) if index.column() == MODEL else px(8)
        inner = self._mirrored(rect, rect.adjusted(before, 0, -px(8), 0))
        match index.column():
            case 0:
                self._two_lines(painter, inner, row.label, row.about, Role.NAME)
            case 1:
                painter.setFont(look.font(Role.NAME))
                painter.setPen(look.colour("ink"))
                flags = int(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
                painter.drawText(inner, flags, row.needs)
            case 2:
                self._bars(painter, inner, row.bars)
            case 3:
                glyph, colour = VERDICTS[row.verdict]
                sign = self._mirrored(inner, QRectF(inner.left(), inner.top(), px(16), px(16)))
                centre = QPointF(sign.center().x(), inner.top() + px(20 if row.reason else 30))
                draw_glyph(painter, glyph, centre, px(16), look.colour(colour))
                room = self._mirrored(inner, inner.adjusted(px(26), 0, 0, 0))
                self._two_lines(painter, room, row.title, row.reason, Role.BODY)
            case _:
                self._button(painter, rect, row)
        painter.restore()

    def _two_lines(self, painter: QPainter, area: QRectF, first: str, second: str, role: Role) -> None:
        look, px = self._look, self._look.px
        lines = ((first, role, "ink", 10, 20), (second, Role.SMALL, "ink2", 31, 16))
        if not second:
            lines = ((first, role, "ink", 20, 20), ("", Role.SMALL, "ink2", 31, 16))
        for text, style, colour, top, height in lines:
            if not text:
                continue
            painter.setFont(look.font(style))
            painter.setPen(look.colour(colour))
            # The end of a name says how it is quantized; a sentence is best read from its beginning.
            elide = Qt.TextElideMode.ElideMiddle if style is Role.NAME else Qt.TextElideMode.ElideRight
            short = look.metrics(style).elidedText(text, elide, int(area.width()))
            place = QRectF(area.left(), area.top() + px(top), area.width(), px(height))
            painter.drawText(place, int(Qt.AlignmentFlag.AlignVCenter), worded(self._table, short))

    def _bars(self, painter: QPainter, area: QRectF, bars: tuple[FitBar, ...]) -> None:
        look, px = self._look, self._look.px
        pitch = px(18) if len(bars) > 2 else px(20)
        y = area.center().y() - pitch * len(bars) / 2
        label = max((look.metrics(Role.SMALL).horizontalAdvance(b.label) for b in bars), default=0)
        label = min(label + 2, px(80))
        for bar in bars:
            painter.setFont(look.font(Role.SMALL))
            painter.setPen(look.colour("ink2"))
            text = look.metrics(Role.SMALL).elidedText(bar.label, Qt.TextElideMode.ElideRight, label)
            name = self._mirrored(area, QRectF(area.left(), y, label, pitch))
            painter.drawText(name, int(Qt.AlignmentFlag.AlignVCenter), text)
            left = area.left() + label + px(8)
            trough = QRectF(left, y + (pitch - px(10)) / 2, area.right() - left, px(10))
            self._bar(painter, self._mirrored(area, trough), bar)
            y += pitch

    def _bar(self, painter: QPainter, trough: QRectF, bar: FitBar) -> None:
        look = self._look
        radius = look.px(3)
        shape = rounded(trough.adjusted(0.5, 0.5, -0.5, -0.5), radius)
        painter.fillPath(shape, look.colour("track"))
        painter.save()
        painter.setClipPath(rounded(trough, radius), Qt.ClipOperation.IntersectClip)
        x = trough.left()
        for share, colour in ((bar.others, "others"), (bar.own, look.tokens.segments[0])):
            width = share * trough.width()
            if share > 0:
                width = max(width, 2.0)
                part = QRectF(x, trough.top(), width - 1, trough.height())
                painter.fillRect(self._mirrored(trough, part), look.colour(colour))
                x += width
        if bar.short > 0:
            width = max(bar.short * trough.width(), 4.0)
            part = QRectF(x, trough.top(), width, trough.height())
            hatch_fill(painter, look, self._mirrored(trough, part), "error.ink")
        painter.restore()
        painter.setPen(QPen(look.colour("edge"), 1))
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.drawPath(shape)
        if bar.tick < 1:
            tick = round(min(trough.left() + bar.tick * trough.width(), trough.right() - 3) - 1)
            for x, width, colour in ((tick - 1, 4, "bg"), (tick, 2, "ink")):
                part = QRectF(x, trough.top() - 3, width, trough.height() + 6)
                painter.fillRect(self._mirrored(trough, part), look.colour(colour))

    def button_rect(self, rect: QRectF) -> QRectF:
        """Where the button of a row stands in its cell."""
        px = self._look.px
        place = QRectF(rect.left() + px(4), rect.center().y() - px(14), rect.width() - px(28), px(28))
        return self._mirrored(rect, place)

    def _mirrored(self, within: QRectF, area: QRectF) -> QRectF:
        """`area` as it is painted: at the other end of `within` where the app is mirrored."""
        if not self._table.isRightToLeft():
            return area
        return area.translated(within.left() + within.right() - area.left() - area.right(), 0)

    def _button(self, painter: QPainter, rect: QRectF, row: CatalogRow) -> None:
        look, px = self._look, self._look.px
        if not row.action_label:
            return
        area = self.button_rect(rect).adjusted(0.5, 0.5, -0.5, -0.5)
        enabled = row.action is not None
        hover = enabled and self._table.hovered == row.model
        painter.setPen(QPen(look.colour("ctl" if enabled else "line"), 1))
        painter.setBrush(look.colour("hover" if hover else "bg"))
        painter.drawRoundedRect(area, px(6), px(6))
        painter.setFont(look.font(Role.SMALL))
        painter.setPen(look.colour("ink" if enabled else "ctl"))
        painter.drawText(area, int(Qt.AlignmentFlag.AlignCenter), worded(self._table, row.action_label))


class CatalogTable(QTableView):
    """The list. Enter, Space or the button of a row act on it; `chosen` tells which one is current.

    `delete_wanted` tells that the current one is to be deleted.
    """

    act = Signal(object)
    delete_wanted = Signal()
    chosen = Signal(str)

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.look = look
        self.hovered = ""
        self._keep = ""
        self.catalog = CatalogModel(self)
        self.delegate = CatalogDelegate(look, self)
        self.setModel(self.catalog)
        self.setItemDelegate(self.delegate)
        self.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setShowGrid(False)
        self.setTabKeyNavigation(False)
        self.setMouseTracking(True)
        self.setWordWrap(False)
        self.setCornerButtonEnabled(False)
        self.setAccessibleName(translate("Catalog", "Models"))
        rows, head = self.verticalHeader(), self.horizontalHeader()
        rows.hide()
        rows.setSectionResizeMode(QHeaderView.ResizeMode.Fixed)
        head.setSectionsClickable(False)
        head.setHighlightSections(False)
        head.setSectionResizeMode(QHeaderView.ResizeMode.Fixed)
        self.selectionModel().currentRowChanged.connect(self._current_changed)
        self.restyle()

    def focusInEvent(self, event: QFocusEvent) -> None:
        super().focusInEvent(event)
        self.viewport().update()

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        self.viewport().update()

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        if self.hasFocus() and self.currentIndex().isValid():
            row = QRectF(self.visualRect(self.currentIndex().siblingAtColumn(MODEL)))
            row.setLeft(0)
            row.setWidth(self.viewport().width())  # a row is one thing, whatever its columns
            focus_ring(QPainter(self.viewport()), self.look, row.adjusted(1, 1, -1, -2), self.look.px(4))

    def restyle(self) -> None:
        px = self.look.px
        self.verticalHeader().setDefaultSectionSize(px(ROW))
        self.verticalHeader().setMinimumSectionSize(px(ROW))
        self.horizontalHeader().setFixedHeight(px(32))
        self._share_width()
        self.viewport().update()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._share_width()

    def _share_width(self) -> None:
        px = self.look.px
        needs, devices, action = px(96), px(208), px(132)
        whole = self.viewport().width()
        is_narrow = whole < px(LEAST_TEXT) + needs + devices + action
        if is_narrow is not self.isColumnHidden(DEVICES):
            self.setColumnHidden(DEVICES, is_narrow)
        rest = max(px(LEAST_TEXT), whole - needs - action - (0 if is_narrow else devices))
        for column, width in (
            (MODEL, rest // 2),
            (NEEDS, needs),
            (DEVICES, devices),
            (FIT, rest - rest // 2),
            (ACTION, action),
        ):
            self.setColumnWidth(column, width)

    def show_rows(self, rows: list[CatalogRow]) -> None:
        """Show these; the current row stays with its model."""
        current = self.current()
        self.catalog.show_rows(rows)
        if self.current() != current and current:
            at = next((i for i, row in enumerate(rows) if row.model == current), None)
            if at is not None:
                self.setCurrentIndex(self.catalog.index(at, 0))
        if not self.currentIndex().isValid() and rows:
            self.setCurrentIndex(self.catalog.index(0, 0))
        if not rows:
            self.chosen.emit("")

    def current(self) -> str:
        """The model of the current row; "" for none."""
        at = self.currentIndex().row()
        return self.catalog.rows[at].model if 0 <= at < len(self.catalog.rows) else ""

    def _current_changed(self, current: QModelIndex, _previous: QModelIndex) -> None:
        self.chosen.emit(self.current() if current.isValid() else "")

    def _act_on(self, at: int) -> None:
        if 0 <= at < len(self.catalog.rows) and (command := self.catalog.rows[at].action) is not None:
            self.act.emit(command)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter, Qt.Key.Key_Space):
            self._act_on(self.currentIndex().row())
            return
        if event.key() == Qt.Key.Key_Escape:
            event.ignore()
            return
        if event.key() == Qt.Key.Key_Delete:
            self.delete_wanted.emit()
            return
        super().keyPressEvent(event)

    def _over_button(self, event: QMouseEvent) -> int:
        """The row whose button is under the pointer; -1 for none."""
        index = self.indexAt(event.position().toPoint())
        if index.isValid() and index.column() == ACTION:
            area = self.delegate.button_rect(QRectF(self.visualRect(index)))
            if area.contains(event.position()):
                return index.row()
        return -1

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        super().mouseMoveEvent(event)
        at = self._over_button(event)
        hovered = self.catalog.rows[at].model if at >= 0 else ""
        if hovered != self.hovered:
            self.hovered = hovered
            self.viewport().update()

    def leaveEvent(self, event: QEvent) -> None:
        super().leaveEvent(event)
        if self.hovered:
            self.hovered = ""
            self.viewport().update()

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        super().mouseReleaseEvent(event)
        if event.button() is Qt.MouseButton.LeftButton:
            at = self._over_button(event)
            # The row may have come under the pointer since the press: only the one that was pressed acts.
            if at >= 0 and at == self.currentIndex().row():
                self._act_on(at)


def legend_colours(look: Look) -> tuple[tuple[str, QColor], ...]:
    """What the colours of the bars mean."""
    return (
        (translate("Catalog", "In use by others"), look.colour("others")),
        (translate("Catalog", "This model"), look.colour(look.tokens.segments[0])),
    )
