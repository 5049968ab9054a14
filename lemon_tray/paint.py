"""Drawing that several widgets share: patterned fills, focus rings and the small line glyphs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QPainter, QPainterPath, QPen, QPixmap

from lemon_tray.theme import Look, Pattern, segment_style

_PITCH: Final = {
    Pattern.PLAIN: 6,
    Pattern.UPRIGHT: 6,
    Pattern.DOTS: 6,
    Pattern.LEVEL: 6,
    Pattern.CROSSES: 8,
    Pattern.CHEVRONS: 8,
}
_HATCH_PITCH: Final = 6
_CLAIM_PITCH: Final = 5
_TILE_CACHE: dict[tuple[str, str, str, float, int], QPixmap] = {}


def _pen(colour: QColor, width: float, cap: Qt.PenCapStyle = Qt.PenCapStyle.FlatCap) -> QPen:
    pen = QPen(colour, width)
    pen.setCapStyle(cap)
    pen.setJoinStyle(Qt.PenJoinStyle.RoundJoin)
    return pen


def _tile(
    key: tuple[str, str, str, float, int],
    pitch: int,
    ground: QColor,
    draw: Callable[[QPainter, float], None],
) -> QPixmap:
    """A seamless square of `pitch` px at the screen's pixel ratio, made once for each key."""
    found = _TILE_CACHE.get(key)
    if found is not None:
        return found
    side = max(1, round(pitch * key[3]))
    pixmap = QPixmap(side, side)
    pixmap.fill(ground)
    painter = QPainter(pixmap)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.scale(side / pitch, side / pitch)
    draw(painter, float(pitch))
    painter.end()
    pixmap.setDevicePixelRatio(side / pitch)
    _TILE_CACHE[key] = pixmap
    return pixmap


def _draw_pattern(pattern: Pattern, ink: QColor) -> Callable[[QPainter, float], None]:
    def draw(painter: QPainter, p: float) -> None:
        painter.setBrush(Qt.BrushStyle.NoBrush)
        match pattern:
            case Pattern.PLAIN:
                return
            case Pattern.UPRIGHT:
                painter.fillRect(QRectF(p - 2, 0, 2, p), ink)
            case Pattern.DOTS:
                painter.setPen(Qt.PenStyle.NoPen)
                painter.setBrush(ink)
                painter.drawEllipse(QPointF(p / 2, p / 2), 1.25, 1.25)
            case Pattern.LEVEL:
                painter.fillRect(QRectF(0, p - 1.5, p, 1.5), ink)
            case Pattern.CROSSES:
                painter.setPen(_pen(ink, 1.25))
                painter.drawLine(QPointF(p / 2 - 2.5, p / 2), QPointF(p / 2 + 2.5, p / 2))
                painter.drawLine(QPointF(p / 2, p / 2 - 2.5), QPointF(p / 2, p / 2 + 2.5))
            case Pattern.CHEVRONS:
                painter.setPen(_pen(ink, 1.5, Qt.PenCapStyle.SquareCap))
                for offset in (-p, 0.0, p):  # neighbours reach into the tile, which keeps it seamless
                    painter.drawPolyline(
                        [
                            QPointF(0, p * 0.75 + offset),
                            QPointF(p / 2, p * 0.25 + offset),
                            QPointF(p, p * 0.75 + offset),
                        ]
                    )

    return draw


def _draw_hatch(ink: QColor) -> Callable[[QPainter, float], None]:
    def draw(painter: QPainter, p: float) -> None:
        # The pitch is measured along the edge, so a line 1.75 wide repeats every p px.
        painter.setPen(_pen(ink, 1.75, Qt.PenCapStyle.SquareCap))
        for offset in (-p, 0.0, p):
            painter.drawLine(QPointF(offset, p), QPointF(offset + p, 0))

    return draw


def pattern_tile(look: Look, number: int, ratio: float) -> QPixmap:
    """The tile of the model with this number."""
    colour, pattern = segment_style(look.tokens, number)
    ink = QColor(look.tokens.pattern_ink)
    ink.setAlphaF(look.tokens.pattern_alpha)
    pitch = look.px(_PITCH[pattern])
    key = (colour, pattern.value, look.tokens.pattern_ink, ratio, pitch)
    return _tile(key, pitch, QColor(colour), _draw_pattern(pattern, ink))


def hatch_tile(look: Look, number: int, ratio: float) -> QPixmap:
    """The tile of memory that is reserved for the model with this number and has not arrived."""
    colour, _ = segment_style(look.tokens, number)
    pitch = look.px(_HATCH_PITCH)
    key = (colour, "hatch", look.tokens.bg, ratio, pitch)
    return _tile(key, pitch, QColor(look.tokens.bg), _draw_hatch(QColor(colour)))


def rounded(rect: QRectF, radius: float, *, left: bool = True, right: bool = True) -> QPainterPath:
    """A rectangle with round corners on the sides that are asked for."""
    path = QPainterPath()
    radius = min(radius, rect.width() / 2, rect.height() / 2)
    path.addRoundedRect(rect, radius, radius)
    if not left:
        path.addRect(QRectF(rect.left(), rect.top(), rect.width() / 2, rect.height()))
    if not right:
        path.addRect(QRectF(rect.center().x(), rect.top(), rect.width() / 2, rect.height()))
    return path.simplified() if not (left and right) else path


def fill_model(
    painter: QPainter,
    look: Look,
    shape: QPainterPath,
    number: int,
    arrived: float = 1.0,
    origin: float = 0.0,
    *,
    mirror: bool = False,
) -> None:
    """Fill `shape` as the model's memory: its pattern as far as it has arrived, then the hatch.

    It arrives from the left, or from the right with `mirror`. `origin` is where the tiles start, so that
    neighbouring fills do not crawl when a width changes.
    """
    rect = shape.boundingRect()
    ratio = painter.device().devicePixelRatioF()
    painter.save()
    painter.setClipPath(shape, Qt.ClipOperation.IntersectClip)
    there = rect.width() * min(1.0, max(0.0, arrived))
    begin = rect.right() - there if mirror else rect.left()
    rest = rect.left() if mirror else rect.left() + there
    for x, width, tile in ((begin, there, pattern_tile), (rest, rect.width() - there, hatch_tile)):
        if width > 0:
            part = QRectF(x, rect.top(), width, rect.height())
            painter.drawTiledPixmap(part, tile(look, number, ratio), QPointF(x - origin, 0))
    painter.restore()
    if arrived < 1.0:
        colour, _ = segment_style(look.tokens, number)
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setClipPath(shape, Qt.ClipOperation.IntersectClip)
        painter.strokePath(shape, _pen(QColor(colour), 3.0))  # half of it lies outside the clip: 1.5
        painter.restore()


def hatch_fill(painter: QPainter, look: Look, area: QRectF, colour: str) -> None:
    """Fill `area` with slanted lines of a colour on ground: what is missing."""
    ink = look.colour(colour)
    ratio = painter.device().devicePixelRatioF()
    key = (ink.name(), "hatch", look.tokens.bg, ratio, look.px(_HATCH_PITCH))
    tile = _tile(key, look.px(_HATCH_PITCH), QColor(look.tokens.bg), _draw_hatch(ink))
    painter.drawTiledPixmap(area, tile)


def fill_claim(painter: QPainter, look: Look, shape: QPainterPath) -> None:
    """Fill `shape` as memory that is kept for a load which waits: dots on ground within a dashed line."""
    rect = shape.boundingRect()
    ratio = painter.device().devicePixelRatioF()
    ink, ground = look.tokens.ink2, look.tokens.bg
    pitch = look.px(_CLAIM_PITCH)

    def dot(tile: QPainter, p: float) -> None:
        tile.setPen(Qt.PenStyle.NoPen)
        tile.setBrush(QColor(ink))
        tile.drawEllipse(QPointF(p / 2, p / 2), 0.9, 0.9)

    painter.save()
    painter.setClipPath(shape, Qt.ClipOperation.IntersectClip)
    painter.drawTiledPixmap(rect, _tile((ink, "claim", ground, ratio, pitch), pitch, QColor(ground), dot))
    pen = _pen(QColor(ink), 3.0)  # half of it lies outside the clip: 1.5
    pen.setDashPattern([1.4, 1.0])
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.strokePath(shape, pen)
    painter.restore()


def focus_ring(painter: QPainter, look: Look, rect: QRectF, radius: float) -> None:
    """The ring around what has the keyboard's focus: 2 px of ink with 1 px of ground inside."""
    painter.save()
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setBrush(Qt.BrushStyle.NoBrush)
    painter.setPen(_pen(look.colour("bg"), 1))
    painter.drawRoundedRect(rect.adjusted(2.5, 2.5, -2.5, -2.5), max(0, radius - 2), max(0, radius - 2))
    painter.setPen(_pen(look.colour("ink"), 2))
    painter.drawRoundedRect(rect.adjusted(1, 1, -1, -1), radius, radius)
    painter.restore()


# Glyphs on a grid of 16, lines 1.5 wide with round caps. ------------------------------------------------

_Stroke = tuple[tuple[float, float], ...]
_STRAIGHT: Final[dict[str, tuple[_Stroke, ...]]] = {
    "check": (((3, 8.5), (6.5, 12), (13, 4.5)),),
    "pin": (
        ((5.75, 2.25), (10.25, 2.25)),
        ((6.5, 2.25), (6.5, 6.5), (4.5, 9.75), (11.5, 9.75), (9.5, 6.5), (9.5, 2.25)),
        ((8, 9.75), (8, 14)),
    ),
    "eject": (((8, 3.25), (13, 9.25), (3, 9.25), (8, 3.25)), ((3, 12.5), (13, 12.5))),
    "chevron-right": (((6, 3.75), (10.25, 8), (6, 12.25)),),
    "chevron-left": (((10, 3.75), (5.75, 8), (10, 12.25)),),
    "chevron-down": (((3.75, 6), (8, 10.25), (12.25, 6)),),
    "minus": (((3.5, 8), (12.5, 8)),),
    "plus": (((3.5, 8), (12.5, 8)), ((8, 3.5), (8, 12.5))),
    "warning": (
        ((8, 2.5), (14.25, 13.25), (1.75, 13.25), (8, 2.5)),
        ((8, 6.5), (8, 9.25)),
        ((8, 11.2), (8, 11.3)),
    ),
    "download": (
        ((8, 2.5), (8, 10)),
        ((4.5, 6.75), (8, 10.25), (11.5, 6.75)),
        ((2.75, 13.25), (13.25, 13.25)),
    ),
    "folder": (
        ((1.75, 12.75), (1.75, 3.5), (6, 3.5), (7.75, 5.5), (14.25, 5.5), (14.25, 12.75), (1.75, 12.75)),
    ),
    "bolt": (((9, 1.75), (3.75, 9.25), (7.75, 9.25), (7, 14.25), (12.25, 6.75), (8.25, 6.75), (9, 1.75)),),
    "cross": (((4, 4), (12, 12)), ((12, 4), (4, 12))),
    "cube": (
        ((8, 1.75), (13.5, 4.9), (13.5, 11.1), (8, 14.25), (2.5, 11.1), (2.5, 4.9), (8, 1.75)),
        ((2.5, 4.9), (8, 8), (13.5, 4.9)),
        ((8, 8), (8, 14.25)),
    ),
    "menu": (((2.5, 4.5), (13.5, 4.5)), ((2.5, 8), (13.5, 8)), ((2.5, 11.5), (13.5, 11.5))),
}


def _strokes(p: QPainterPath, *strokes: _Stroke) -> None:
    """Lines from point to point; a stroke that ends where it began is closed."""
    for start, *others in strokes:
        p.moveTo(*start)
        for point in others:
            p.lineTo(*point)


def _copy(p: QPainterPath) -> None:
    p.addRoundedRect(QRectF(5.75, 5.75, 7.5, 7.5), 1.5, 1.5)
    p.moveTo(3.5, 10.25)
    p.cubicTo(2.9, 10.25, 2.75, 9.9, 2.75, 9.25)
    p.lineTo(2.75, 4.25)
    p.cubicTo(2.75, 3.3, 3.3, 2.75, 4.25, 2.75)
    p.lineTo(9.25, 2.75)
    p.cubicTo(9.9, 2.75, 10.25, 2.9, 10.25, 3.5)


def _infinity(p: QPainterPath) -> None:
    p.moveTo(8, 8)
    p.cubicTo(6.4, 5.6, 5.4, 5, 4.2, 5)
    p.cubicTo(2.5, 5, 1.25, 6.3, 1.25, 8)
    p.cubicTo(1.25, 9.7, 2.5, 11, 4.2, 11)
    p.cubicTo(5.4, 11, 6.4, 10.4, 8, 8)
    p.cubicTo(9.6, 5.6, 10.6, 5, 11.8, 5)
    p.cubicTo(13.5, 5, 14.75, 6.3, 14.75, 8)
    p.cubicTo(14.75, 9.7, 13.5, 11, 11.8, 11)
    p.cubicTo(10.6, 11, 9.6, 10.4, 8, 8)


def _info(p: QPainterPath) -> None:
    p.addEllipse(QPointF(8, 8), 6, 6)
    _strokes(p, ((8, 7.5), (8, 11)), ((8, 5), (8, 5.1)))


def _error(p: QPainterPath) -> None:
    angles = [math.pi / 8 + math.pi / 4 * n for n in range(8)]
    corners = [(8 + 6.5 * math.cos(a), 8 + 6.5 * math.sin(a)) for a in angles]
    _strokes(p, (*corners, corners[0]), ((5.9, 5.9), (10.1, 10.1)), ((10.1, 5.9), (5.9, 10.1)))


def _search(p: QPainterPath) -> None:
    p.addEllipse(QPointF(6.9, 6.9), 4.4, 4.4)
    _strokes(p, ((10.2, 10.2), (13.75, 13.75)))


def _clock(p: QPainterPath) -> None:
    p.addEllipse(QPointF(8, 8), 6, 6)
    _strokes(p, ((8, 4.5), (8, 8), (10.5, 9.5)))


def _power(p: QPainterPath) -> None:
    circle = QRectF(2.75, 3.25, 10.5, 10.5)
    p.arcMoveTo(circle, 125)
    p.arcTo(circle, 125, 290)
    _strokes(p, ((8, 1.75), (8, 7.5)))


def _undo(p: QPainterPath) -> None:
    _strokes(p, ((5.75, 2.75), (2.75, 5.75), (5.75, 8.75)))
    p.moveTo(2.75, 5.75)
    p.lineTo(9.75, 5.75)
    p.cubicTo(14.4, 5.75, 14.4, 12.75, 9.75, 12.75)
    p.lineTo(6.5, 12.75)


def _lock(p: QPainterPath) -> None:
    p.addRoundedRect(QRectF(3.25, 7, 9.5, 6.75), 1.25, 1.25)
    p.moveTo(5.25, 7)
    p.lineTo(5.25, 5)
    p.cubicTo(5.25, 1.5, 10.75, 1.5, 10.75, 5)
    p.lineTo(10.75, 7)


def _sliders(p: QPainterPath) -> None:
    _strokes(p, ((1.75, 4.75), (8.75, 4.75)), ((12.75, 4.75), (14.25, 4.75)))
    _strokes(p, ((1.75, 11.25), (3.25, 11.25)), ((7.25, 11.25), (14.25, 11.25)))
    p.addEllipse(QPointF(10.75, 4.75), 2, 2)
    p.addEllipse(QPointF(5.25, 11.25), 2, 2)


_CURVED: Final[dict[str, Callable[[QPainterPath], None]]] = {
    "copy": _copy,
    "infinity": _infinity,
    "info": _info,
    "error": _error,
    "search": _search,
    "clock": _clock,
    "power": _power,
    "undo": _undo,
    "lock": _lock,
    "sliders": _sliders,
}
_PATHS: dict[str, QPainterPath] = {}


def glyph_path(name: str) -> QPainterPath:
    """The outline of a glyph on its grid of 16.

    Raises:
        KeyError: there is no such glyph.
    """
    path = _PATHS.get(name)
    if path is None:
        path = QPainterPath()
        if name in _STRAIGHT:
            _strokes(path, *_STRAIGHT[name])
        else:
            _CURVED[name](path)
        _PATHS[name] = path
    return path


def draw_glyph(
    painter: QPainter, name: str, centre: QPointF, size: float, colour: QColor, *, filled: bool = False
) -> None:
    """Draw a glyph with its middle at `centre`, `size` px wide."""
    painter.save()
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.translate(centre.x() - size / 2, centre.y() - size / 2)
    painter.scale(size / 16, size / 16)
    painter.setPen(_pen(colour, 1.5, Qt.PenCapStyle.RoundCap))
    painter.setBrush(colour if filled else Qt.BrushStyle.NoBrush)
    painter.drawPath(glyph_path(name))
    painter.restore()
