"""The panel against pictures that somebody looked at, with room for fonts of another version."""

from __future__ import annotations

from typing import Final

import pytest
from PySide6.QtGui import QFontDatabase, QImage
from PySide6.QtWidgets import QApplication

from tests.ui.pictures import FOLDER, FONT, PICTURES, blocks, draw

FAR: Final = 12
MEAN: Final = 3.0
"""A word or a bar that went elsewhere changes dozens of squares by much; a font's version, all by little."""


def distance(one: QImage, other: QImage) -> tuple[int, float]:
    """How many squares differ by much, and by how much all differ on average."""
    differences = [abs(a - b) for a, b in zip(blocks(one), blocks(other), strict=True)]
    return sum(difference > 48 for difference in differences), sum(differences) / len(differences)


@pytest.mark.parametrize("name", PICTURES)
def test_the_panel_looks_as_it_was_reviewed(name: str, qapp: QApplication) -> None:
    if FONT not in QFontDatabase.families():
        pytest.skip(f"the font {FONT} is not installed")
    reviewed, now = QImage(str(FOLDER / f"{name}.png")), draw(qapp, name)
    assert not reviewed.isNull()
    assert now.size() == reviewed.size()
    far, mean = distance(now, reviewed)
    assert (far < FAR, mean < MEAN) == (True, True), (
        far,
        mean,
        "python -m tests.ui.pictures draws them anew",
    )


def test_what_went_elsewhere_is_noticed(qapp: QApplication) -> None:
    picture = draw(qapp, "loading")
    moved = picture.copy(8, 0, picture.width(), picture.height())
    far, mean = distance(picture, moved)
    assert far >= FAR
    assert mean >= MEAN
