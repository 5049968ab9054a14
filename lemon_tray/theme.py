"""Colours, type and lengths of the panel, and the system's wishes about them.

Lengths are device-independent pixels at a base font of 14 px; `Look.px` scales them with the application's.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from msgspec import Struct
from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QFont, QFontDatabase, QFontInfo, QFontMetrics, QGuiApplication, QPalette
from PySide6.QtWidgets import QApplication

WIDTH: Final = 400
INSET: Final = 16
CONTENT: Final = WIDTH - 2 * INSET
BASE_PX: Final = 14


class Pattern(StrEnum):
    """What is drawn over a segment's colour, so that colour is never the only sign."""

    PLAIN = "plain"
    UPRIGHT = "upright"
    DOTS = "dots"
    LEVEL = "level"
    CROSSES = "crosses"
    CHEVRONS = "chevrons"


PATTERNS: Final = tuple(Pattern)


class StateColours(Struct, frozen=True):
    """Ground, line and text of a banner in one state."""

    ground: str
    line: str
    ink: str


class Tokens(Struct, frozen=True):
    """One colour scheme, as `#RRGGBB`."""

    dark: bool
    bg: str
    sunk: str
    track: str
    hover: str
    line: str
    edge: str
    ctl: str
    ink: str
    ink2: str
    lemon: str
    on_lemon: str
    accedge: str
    switch_on: str
    knob_on: str
    warning: StateColours
    error: StateColours
    good: StateColours
    info: StateColours
    others: str
    segments: tuple[str, ...]
    pattern_ink: str
    pattern_alpha: float


LIGHT: Final = Tokens(
    dark=False,
    bg="#FFFFFF",
    sunk="#F4F4EF",
    track="#ECECE6",
    hover="#ECECE6",
    line="#E3E3DC",
    edge="#C9CAC2",
    ctl="#82847B",
    ink="#1E1F1A",
    ink2="#5A5C54",
    lemon="#FFD93B",
    on_lemon="#1E1F1A",
    accedge="#8A6D00",
    switch_on="#2B2C26",
    knob_on="#FFD93B",
    warning=StateColours("#FFF3D1", "#B87900", "#8A4B00"),
    error=StateColours("#FDEBE8", "#C4362B", "#A51C14"),
    good=StateColours("#E6F3E8", "#1F6B3A", "#1F6B3A"),
    info=StateColours("#E8EFFA", "#244F91", "#244F91"),
    others="#80827A",
    segments=("#3B82C8", "#0F6461", "#9C5100", "#6C1834", "#6E3FA6", "#8A7A00"),
    pattern_ink="#FFFFFF",
    pattern_alpha=0.52,
)

DARK: Final = Tokens(
    dark=True,
    bg="#1E1F1C",
    sunk="#2A2B27",
    track="#2E2F2B",
    hover="#363731",
    line="#363731",
    edge="#45463F",
    ctl="#85877D",
    ink="#F2F2EC",
    ink2="#B4B6AB",
    lemon="#F5D547",
    on_lemon="#1E1F1A",
    accedge="#F5D547",
    switch_on="#F5D547",
    knob_on="#1E1F1A",
    warning=StateColours("#3A2E12", "#C98F1E", "#FFC55C"),
    error=StateColours("#331F1D", "#C25C51", "#FF9A8F"),
    good=StateColours("#1F3526", "#86D79B", "#86D79B"),
    info=StateColours("#202F47", "#9CC1FF", "#9CC1FF"),
    others="#8A8C82",
    segments=("#6894FF", "#74F0C4", "#C57A12", "#DDACC6", "#9A64C2", "#9DC23A"),
    pattern_ink="#141512",
    pattern_alpha=0.55,
)


def high_contrast(palette: QPalette) -> Tokens:
    """Tokens made of the system's own high-contrast palette: patterns and shapes tell the segments apart."""

    def name(role: QPalette.ColorRole) -> str:
        return palette.color(role).name()

    bg, ink = name(QPalette.ColorRole.Window), name(QPalette.ColorRole.WindowText)
    accent, on_accent = name(QPalette.ColorRole.Highlight), name(QPalette.ColorRole.HighlightedText)
    state = StateColours(bg, ink, ink)
    return Tokens(
        dark=palette.color(QPalette.ColorRole.Window).lightness() < 128,
        bg=bg,
        sunk=bg,
        track=bg,
        hover=bg,
        line=ink,
        edge=ink,
        ctl=ink,
        ink=ink,
        ink2=ink,
        lemon=accent,
        on_lemon=on_accent,
        accedge=ink,
        switch_on=ink,
        knob_on=bg,
        warning=state,
        error=state,
        good=state,
        info=state,
        others=ink,
        segments=(ink,) * len(LIGHT.segments),
        pattern_ink=bg,
        pattern_alpha=1.0,
    )


def segment_style(tokens: Tokens, number: int) -> tuple[str, Pattern]:
    """Colour and pattern of the model with this number (0 is the first).

    Six models differ in both; the seventh takes the first colour again with the second pattern, and so on.
    """
    count = len(tokens.segments)
    return tokens.segments[number % count], PATTERNS[(number + number // count) % len(PATTERNS)]


class Role(StrEnum):
    """What a text is for; decides size, weight, family and line height."""

    TITLE = "title"
    BODY = "body"
    NAME = "name"
    SMALL = "small"
    SMALL_BOLD = "small-bold"
    HEADING = "heading"
    KEY = "key"


_ROLES: Final[dict[Role, tuple[int, int, QFont.Weight, bool]]] = {
    # size, line height, weight, monospace
    Role.TITLE: (16, 24, QFont.Weight.DemiBold, False),
    Role.BODY: (14, 20, QFont.Weight.Normal, False),
    Role.NAME: (14, 20, QFont.Weight.DemiBold, False),
    Role.SMALL: (12, 16, QFont.Weight.Normal, False),
    Role.SMALL_BOLD: (12, 16, QFont.Weight.DemiBold, False),
    Role.HEADING: (12, 20, QFont.Weight.DemiBold, False),
    Role.KEY: (12, 16, QFont.Weight.Normal, True),
}


class Look:
    """The tokens in force with fonts and lengths at the right scale. Shared by all widgets of a panel."""

    def __init__(self, tokens: Tokens = LIGHT, *, base_px: int = BASE_PX, motion: bool = True) -> None:
        self.tokens = tokens
        self.motion = motion
        self._base_px = max(base_px, BASE_PX)  # nothing gets smaller than 12 px
        self._fonts: dict[Role, QFont] = {}
        self._colours: dict[str, QColor] = {}
        self._metrics: dict[Role, QFontMetrics] = {}
        self._lengths: dict[float, int] = {}

    @classmethod
    def of_system(cls) -> Look:
        """The look that the system's colour scheme, contrast, font and motion settings ask for."""
        look = cls()
        look.follow_system()
        return look

    def follow_system(self) -> None:
        """Read the system's settings again."""
        app = QGuiApplication.instance()
        assert isinstance(app, QGuiApplication)
        hints = app.styleHints()
        if hints.accessibility().contrastPreference() == Qt.ContrastPreference.HighContrast:
            self.tokens = high_contrast(app.palette())
        else:
            self.tokens = DARK if hints.colorScheme() == Qt.ColorScheme.Dark else LIGHT
        self._base_px = max(QFontInfo(app.font()).pixelSize(), BASE_PX)
        # The platform theme switches UI_General off where the desktop asks for no animations.
        self.motion = QApplication.isEffectEnabled(Qt.UIEffect.UI_General)
        self._fonts.clear()
        self._colours.clear()
        self._metrics.clear()
        self._lengths.clear()

    def px(self, length: float) -> int:
        """A length of the design in device-independent pixels, as a whole number."""
        found = self._lengths.get(length)
        if found is None:
            found = self._lengths[length] = round(length * self._base_px / BASE_PX)
        return found

    def duration(self, ms: int) -> int:
        """How long a motion lasts: `ms`, or 0 where the user wants none."""
        return ms if self.motion else 0

    def colour(self, value: str) -> QColor:
        """A colour by token name (`ink`, `warning.ink`) or as `#RRGGBB`."""
        found = self._colours.get(value)
        if found is None:
            found = self._colours[value] = QColor(value if value.startswith("#") else self._token(value))
        return found

    def _token(self, name: str) -> str:
        thing: object = self.tokens
        for part in name.split("."):
            thing = getattr(thing, part)
        assert isinstance(thing, str)
        return thing

    def line_height(self, role: Role) -> int:
        return self.px(_ROLES[role][1])

    def font(self, role: Role) -> QFont:
        """The system's font at the role's size, digits of one width where the font has them."""
        found = self._fonts.get(role)
        if found is None:
            size, _, weight, mono = _ROLES[role]
            found = (
                QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont)
                if mono
                else QFont(QGuiApplication.font())
            )
            found.setPixelSize(self.px(size))
            found.setWeight(weight)
            found.setFeature(QFont.Tag("tnum"), 1)
            self._fonts[role] = found
        return found

    def metrics(self, role: Role) -> QFontMetrics:
        found = self._metrics.get(role)
        if found is None:
            found = self._metrics[role] = QFontMetrics(self.font(role))
        return found
