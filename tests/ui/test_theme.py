"""Colours: every text can be read on every ground that it stands on, and lines with a meaning are seen."""

from __future__ import annotations

import pytest

from lemon_tray.theme import DARK, LIGHT, Look, Tokens

TEXT = 4.5
LINE = 3.0

TEXTS = [
    *((ink, ground) for ink in ("ink", "ink2") for ground in ("bg", "sunk", "track", "hover")),
    *((ink, f"{state}.ground") for ink in ("ink", "ink2") for state in ("warning", "error")),
    *((f"{state}.ink", f"{state}.ground") for state in ("warning", "error", "good", "info")),
    *((f"{state}.ink", "bg") for state in ("warning", "error", "good", "info")),
    ("error.ink", "sunk"),
    ("on_lemon", "lemon"),
    ("bg", "ink"),  # tooltips
    ("bg", "switch_on"),  # the chosen word of a row of words
    ("knob_on", "switch_on"),
]
LINES = [
    ("ctl", "bg"),
    ("warning.line", "warning.ground"),
    ("error.line", "error.ground"),
    ("accedge", "bg"),
    ("switch_on", "bg"),
    ("others", "track"),
    ("ink", "track"),  # the tick
]


def luminance(look: Look, token: str) -> float:
    colour = look.colour(token)
    parts = (colour.redF(), colour.greenF(), colour.blueF())
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(look: Look, one: str, other: str) -> float:
    low, high = sorted((luminance(look, one), luminance(look, other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("tokens", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize(("ink", "ground"), TEXTS)
def test_texts_can_be_read(ink: str, ground: str, tokens: Tokens) -> None:
    assert contrast(Look(tokens), ink, ground) >= TEXT


@pytest.mark.parametrize("tokens", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize(("line", "ground"), LINES)
def test_lines_that_carry_meaning_are_seen(line: str, ground: str, tokens: Tokens) -> None:
    assert contrast(Look(tokens), line, ground) >= LINE


@pytest.mark.parametrize("tokens", [LIGHT, DARK], ids=["light", "dark"])
def test_segments_are_seen_on_what_is_free(tokens: Tokens) -> None:
    look = Look(tokens)
    for colour in tokens.segments:
        assert contrast(look, colour, "track") >= LINE, colour


def test_contrast_is_that_of_the_standard() -> None:
    look = Look(LIGHT)
    assert contrast(look, "#000000", "#FFFFFF") == pytest.approx(21.0)
    assert contrast(look, "#777777", "#FFFFFF") == pytest.approx(4.48, abs=0.01)
