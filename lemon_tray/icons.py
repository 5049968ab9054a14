"""The mark: from SVG to pictures of the right size, for the tray, the windows and the panel's head."""

from __future__ import annotations

import functools
import math
from typing import Final

from PySide6.QtCore import QByteArray, QRectF, Qt
from PySide6.QtGui import QIcon, QPainter, QPixmap
from PySide6.QtSvg import QSvgRenderer

from lemon_tray.assets import icon_svg
from lemon_tray.view import Mark
from router.snapshot import Status

SIZES: Final = (16, 22, 24, 32, 48, 64, 128)
_NAMES: Final = {
    Status.READY: "icon-idle",
    Status.LOADING: "icon-loading",
    Status.WARNING: "icon-warning",
    Status.ERROR: "icon-error",
}
_LEMON: Final = "#FFD93B"
_PITH: Final = "#24251F"


def _at(radius: float, degrees: float) -> str:
    angle = math.radians(degrees)
    return f"{8 + radius * math.cos(angle):.3f} {8 + radius * math.sin(angle):.3f}"


@functools.cache
def loading_svg(sixths: int) -> bytes:
    """The slice with `sixths` of six segments full, clockwise from the lower left, and pips in the rest."""
    start = 135.0
    parts = []
    if sixths > 0:
        large = 1 if sixths > 3 else 0
        parts.append(
            f'<path fill="none" stroke="{_LEMON}" d="M{_at(7.5, start)}'
            f'A7.5 7.5 0 {large} 1 {_at(7.5, start + 60 * sixths)}"/>'
        )
    for index in range(6):
        middle = start + 60 * index + 30
        if index < sixths:
            parts.append(
                f'<path fill="{_LEMON}" d="M{_at(1.0, middle)}L{_at(6.05, middle - 24.4)}'
                f'A6.05 6.05 0 0 1 {_at(6.05, middle + 24.4)}Z"/>'
            )
        else:
            x, y = _at(5.0, middle).split()
            parts.append(f'<circle cx="{x}" cy="{y}" r="0.9" fill="{_LEMON}"/>')
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" width="16" height="16" viewBox="0 0 16 16">'
        f'<circle cx="8" cy="8" r="8" fill="{_PITH}"/>{"".join(parts)}</svg>'
    ).encode()


def mark_svg(mark: Mark) -> bytes:
    """The picture of a mark: loading shows its real progress, the other states are files."""
    if mark.status is Status.LOADING:
        return loading_svg(mark.sixths)
    return icon_svg(_NAMES[mark.status])


def render(svg: bytes, size: int, ratio: float = 1.0) -> QPixmap:
    """The SVG at `size` device-independent pixels, sharp on a screen with this pixel ratio."""
    side = max(1, round(size * ratio))
    pixmap = QPixmap(side, side)
    pixmap.fill(Qt.GlobalColor.transparent)
    painter = QPainter(pixmap)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    QSvgRenderer(QByteArray(svg)).render(painter, QRectF(0, 0, side, side))
    painter.end()
    pixmap.setDevicePixelRatio(ratio)
    return pixmap


@functools.lru_cache(maxsize=32)
def mark_pixmap(mark: Mark, size: int, ratio: float) -> QPixmap:
    return render(mark_svg(mark), size, ratio)


@functools.lru_cache(maxsize=16)
def mark_icon(mark: Mark) -> QIcon:
    """The mark with a picture for each size that trays and task bars ask for, HiDPI ones among them."""
    icon = QIcon()
    for size in SIZES:
        icon.addPixmap(render(mark_svg(mark), size))
    return icon
