"""Where parts stand, measured from the leading edge: the left one, or the right where text runs from there.

Layouts of Qt mirror themselves; what is placed or painted by hand goes through here.
"""

from __future__ import annotations

import html
from typing import Final

from PySide6.QtCore import QRectF, Qt
from PySide6.QtWidgets import QWidget

from lemon_tray.names import is_sentence_right_to_left

ONE_LINE: Final = 80
_OWN_WAY: Final = "\N{LEFT-TO-RIGHT ISOLATE}{}\N{POP DIRECTIONAL ISOLATE}"


def put(widget: QWidget, x: int, y: int, width: int | None = None, height: int | None = None) -> None:
    """Place `widget` with its leading edge `x` from that of its parent; the parent's width must be settled.

    Without `width` and `height` it keeps its size.
    """
    width = widget.width() if width is None else width
    height = widget.height() if height is None else height
    parent = widget.parentWidget()
    if parent is not None and parent.isRightToLeft():
        x = parent.width() - x - width
    if (widget.x(), widget.y(), widget.width(), widget.height()) != (x, y, width, height):
        widget.setGeometry(x, y, width, height)


def flipped(widget: QWidget, x: float, width: float = 0.0) -> float:
    """The left edge, in `widget`, of what is `width` wide and begins `x` from its leading edge."""
    return widget.width() - x - width if widget.isRightToLeft() else x


def mirrored(widget: QWidget, area: QRectF) -> QRectF:
    """`area`, which is measured from the leading edge of `widget`, as it is painted."""
    return QRectF(flipped(widget, area.x(), area.width()), area.y(), area.width(), area.height())


def worded(widget: QWidget, text: str) -> str:
    """`text` as `widget` paints it: in a mirrored app what is not of its language keeps its own way."""
    if not widget.isRightToLeft() or is_sentence_right_to_left(text):
        return text
    return _OWN_WAY.format(text)


def tip_text(text: str) -> str:
    """`text` as a tool tip: nothing in it is read as markup, and a long one is broken into lines."""
    if len(text) <= ONE_LINE and "<" not in text:
        return text
    return f"<p>{html.escape(text)}</p>"


def forward(widget: QWidget, key: int) -> int:
    """The key as it is meant: left and right change places where everything else has."""
    if not widget.isRightToLeft():
        return key
    return {Qt.Key.Key_Left: Qt.Key.Key_Right, Qt.Key.Key_Right: Qt.Key.Key_Left}.get(Qt.Key(key), key)
