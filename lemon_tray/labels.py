"""Text as the panel writes it: runs of one style, lines of the design's heights, shortened or wrapped."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from PySide6.QtCore import QEvent, QPointF, QSize, Qt
from PySide6.QtGui import QPainter, QPaintEvent, QResizeEvent, QTextCharFormat, QTextLayout, QTextOption
from PySide6.QtWidgets import QLabel, QWidget

from lemon_tray.theme import Look, Role


class Run(Struct, frozen=True):
    """A stretch of text in one style. `colour` is a token name; None: the text's own.

    A `marked` one stands on a ground of its own, as what a search has found.
    """

    text: str
    role: Role | None = None
    colour: str | None = None
    marked: bool = False


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
        self._layout: tuple[int, QTextLayout] | None = None
        self._elided = False
        self.setTextFormat(Qt.TextFormat.PlainText)

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
        return self.look.line_height(self._role)

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

    def hasHeightForWidth(self) -> bool:
        return self._wrap

    def heightForWidth(self, width: int) -> int:
        return self.height_for(width)

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
            if run.marked:
                style.setBackground(self.look.colour("lemon"))
                style.setForeground(self.look.colour("on_lemon"))
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
