#!/usr/bin/env python3
"""Draws the program's icon for Windows (.ico) and macOS (.icns) from its SVG, with Qt: `icons.py OUT`."""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import Final

from PySide6.QtCore import QBuffer, QByteArray, QIODevice, Qt
from PySide6.QtGui import QGuiApplication, QImage, QPainter
from PySide6.QtSvg import QSvgRenderer

SVG: Final = Path(__file__).resolve().parent.parent / "resources" / "icons" / "icon-idle.svg"
ICO_SIZES: Final = (16, 24, 32, 48, 64, 256)
#: Apple's names for a PNG of each size.
ICNS_TYPES: Final = {16: b"icp4", 32: b"icp5", 128: b"ic07", 256: b"ic08", 512: b"ic09", 1024: b"ic10"}


def png(size: int) -> bytes:
    """The icon as a square PNG of so many pixels."""
    image = QImage(size, size, QImage.Format.Format_ARGB32)
    image.fill(Qt.GlobalColor.transparent)
    painter = QPainter(image)
    QSvgRenderer(str(SVG)).render(painter)
    painter.end()
    data = QByteArray()
    buffer = QBuffer(data)
    buffer.open(QIODevice.OpenModeFlag.WriteOnly)
    image.save(buffer, "PNG")  # type: ignore[call-overload]  # the stubs take bytes, the binding a text
    return bytes(data.data())


def ico() -> bytes:
    """An icon file of Windows: a directory of PNGs."""
    images = [(size, png(size)) for size in ICO_SIZES]
    offset = 6 + 16 * len(images)
    head = struct.pack("<HHH", 0, 1, len(images))
    for size, data in images:
        side = size % 256  # 0 means 256
        head += struct.pack("<BBBBHHII", side, side, 0, 0, 1, 32, len(data), offset)
        offset += len(data)
    return head + b"".join(data for _, data in images)


def icns() -> bytes:
    """An icon file of macOS: blocks of a type, a length and a PNG."""
    blocks = b"".join(
        kind + struct.pack(">I", len(data) + 8) + data
        for kind, data in ((kind, png(size)) for size, kind in ICNS_TYPES.items())
    )
    return b"icns" + struct.pack(">I", len(blocks) + 8) + blocks


def main() -> int:
    out = Path(sys.argv[1])
    app = QGuiApplication.instance() or QGuiApplication([sys.argv[0], "-platform", "offscreen"])
    out.write_bytes(ico() if out.suffix == ".ico" else icns())
    del app
    return 0


if __name__ == "__main__":
    sys.exit(main())
