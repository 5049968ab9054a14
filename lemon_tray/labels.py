"""Text as the panel writes it: runs of one style, lines of the design's heights, shortened or wrapped."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from PySide6.QtCore import QPointF, QSize, Qt
from PySide6.QtGui import QPainter, QPaintEvent, QTextCharFormat, QTextLayout, QTextOption
from PySide6.QtWidgets import QLabel, QWidget

from lemon_tray.names import is_sentence_right_to_left
from lemon_tray.placing import put, tip_text
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
    several lines instead. The width is fixed by `place`, the height follows from it. `AlignLeft` is the
    leading edge: the right one where the app is mirrored.
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
        self._whole: tuple[int, QTextLayout] | None = None
        self._fitted: tuple[int, QTextLayout] | None = None
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
        self._forget()

    def set_colour(self, colour: str) -> None:
        if colour != self._colour:
            self._colour = colour
            self._forget()

    def restyle(self) -> None:
        self._forget()
        self.updateGeometry()

    def _forget(self) -> None:
        self._whole = self._fitted = None
        self.update()

    @property
    def is_elided(self) -> bool:
        """The text is longer than its place, as of the last painting."""
        return self._elided

    def line_height(self) -> int:
        return self.look.line_height(self._role)

    def natural_width(self) -> int:
        """Width of the text on one line."""
        return self._one_line()[0]

    def place(self, x: int, y: int, width: int) -> int:
        """Put the text at `x` from the leading edge, and `y`; returns the height that it takes."""
        height = self.height_for(width)
        put(self, x, y, width, height)
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

    def _formats(self) -> list[QTextLayout.FormatRange]:
        if len(self._runs) == 1 and self._runs[0] == Run(self._runs[0].text):
            return []  # the painter's own pen and font will do
        formats, start = [], 0
        for run in self._runs:
            length = len(run.text.encode("utf-16-le")) // 2  # Qt counts UTF-16 units
            piece = QTextLayout.FormatRange()
            piece.start, piece.length = start, length
            style = QTextCharFormat()
            if run.role is not None:
                style.setFont(self.look.font(run.role))
            if run.colour is not None:
                style.setForeground(self.look.colour(run.colour))
            if run.marked:
                style.setBackground(self.look.colour("lemon"))
                style.setForeground(self.look.colour("on_lemon"))
            piece.format = style
            formats.append(piece)
            start += length
        return formats

    def _layout_of(self, text: str, width: int, formats: list[QTextLayout.FormatRange]) -> QTextLayout:
        layout = QTextLayout(text, self.look.font(self._role))
        option = QTextOption()
        mode = QTextOption.WrapMode
        option.setWrapMode(mode.WrapAtWordBoundaryOrAnywhere if self._wrap else mode.NoWrap)
        option.setAlignment(
            Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignAbsolute
        )  # `paintEvent` does it
        if self.isRightToLeft():
            # A sentence in the language of the app runs as it does; one of other letters keeps its own way.
            own_way = not is_sentence_right_to_left(text)
            direction = Qt.LayoutDirection.LeftToRight if own_way else Qt.LayoutDirection.RightToLeft
            option.setTextDirection(direction)
        layout.setTextOption(option)
        if formats:
            layout.setFormats(formats)
        layout.beginLayout()
        while True:
            line = layout.createLine()
            if not line.isValid():
                break
            line.setLineWidth(width)
        layout.endLayout()
        return layout

    def _one_line(self) -> tuple[int, QTextLayout]:
        """The width of the text on one line, and that line."""
        if self._whole is None:
            layout = self._layout_of(self.text(), 1 << 20, self._formats())
            width = int(layout.lineAt(0).naturalTextWidth() + 0.999) if layout.lineCount() else 0
            self._whole = width, layout
        return self._whole

    def _laid_out(self, width: int) -> QTextLayout:
        natural, whole = self._one_line()
        if natural <= width or (len(self._runs) > 1 and not self._wrap):
            self._elided = False
            return whole
        if self._fitted is None or self._fitted[0] != width:
            if self._wrap:
                self._fitted = width, self._layout_of(self.text(), width, self._formats())
            else:
                metrics = self.look.metrics(self._role)
                text = metrics.elidedText(self.text(), Qt.TextElideMode.ElideMiddle, width)
                self._fitted = width, self._layout_of(text, width, [])
        self._elided = not self._wrap
        return self._fitted[1]

    def paintEvent(self, event: QPaintEvent) -> None:
        layout = self._laid_out(self.width())
        tip = tip_text(self.text()) if self._elided else ""
        if tip != self.toolTip():
            self.setToolTip(tip)
        painter = QPainter(self)
        painter.setPen(self.look.colour(self._colour if self.isEnabled() else "ctl"))
        height = self.line_height()
        # Runs of another font share the base line; the role's own font decides where it lies.
        metrics = self.look.metrics(self._role)
        top = (height - metrics.height()) / 2 + metrics.ascent()
        trailing = (self._align is Qt.AlignmentFlag.AlignRight) is not self.isRightToLeft()
        for index in range(layout.lineCount()):
            line = layout.lineAt(index)
            x = 0.0
            if self._align is Qt.AlignmentFlag.AlignHCenter:
                x = (self.width() - line.naturalTextWidth()) / 2
            elif trailing:
                x = self.width() - line.naturalTextWidth()
            line.draw(painter, QPointF(x, round(index * height + top - line.ascent())))
