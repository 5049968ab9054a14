"""The mark: told apart by shape, sharp at every size."""

from __future__ import annotations

import hashlib

import pytest
from PySide6.QtGui import QImage
from PySide6.QtWidgets import QApplication

from lemon_tray.assets import icon_svg, resource_root
from lemon_tray.icons import SIZES, loading_svg, mark_icon, mark_svg, render
from lemon_tray.view import Mark
from router.snapshot import Status


def shape(image: QImage) -> str:
    """The picture in black and white, so that colour tells nothing."""
    grey = image.convertToFormat(QImage.Format.Format_Grayscale8)
    bits = bytes(
        grey.pixelColor(x, y).lightness() > 110 for y in range(grey.height()) for x in range(grey.width())
    )
    return hashlib.sha256(bits).hexdigest()


@pytest.mark.parametrize("size", SIZES)
def test_states_differ_in_shape_at_every_size(size: int, qapp: QApplication) -> None:
    marks = [Mark(s) for s in (Status.READY, Status.WARNING, Status.ERROR)]
    marks += [Mark(Status.LOADING, n) for n in range(6)]
    assert len({shape(render(mark_svg(m), size).toImage()) for m in marks}) == len(marks)


def test_every_icon_has_every_size(qapp: QApplication) -> None:
    sizes = {s.width() for s in mark_icon(Mark(Status.READY)).availableSizes()}
    assert sizes == set(SIZES)


def test_it_is_rendered_at_the_screens_ratio(qapp: QApplication) -> None:
    pixmap = render(icon_svg("icon-idle"), 22, 1.5)
    assert pixmap.width() == 33
    assert pixmap.devicePixelRatio() == 1.5


def test_half_a_load_looks_like_the_drawn_icon(qapp: QApplication) -> None:
    made = render(loading_svg(3), 64).toImage()
    drawn = render(icon_svg("icon-loading"), 64).toImage()
    far = sum(
        abs(made.pixelColor(x, y).lightness() - drawn.pixelColor(x, y).lightness()) > 60
        for x in range(64)
        for y in range(64)
    )
    assert far < 64 * 64 * 0.03


def test_the_resources_are_found() -> None:
    assert (resource_root() / "icons" / "icon-idle.svg").is_file()
    with pytest.raises(FileNotFoundError):
        icon_svg("icon-missing")
