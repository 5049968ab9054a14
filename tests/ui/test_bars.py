"""The memory bar: where segments lie, what has the keyboard, what is said."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from PySide6.QtCore import QEvent, QObject, Qt
from PySide6.QtGui import QPaintEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QWidget
from pytestqt.qtbot import QtBot

from lemon_tray.bars import GAP, LEAST, DeviceBlock, segment_spans
from lemon_tray.panel import Panel
from lemon_tray.theme import DARK, LIGHT, Look, Pattern, high_contrast, segment_style
from router.snapshot import Snapshot
from tests.ui import canned
from tests.ui.conftest import LONGEST_MS, Paints, active, contrast, exposed, view_of


@pytest.mark.parametrize(
    ("sizes", "total", "widths"),
    [
        ((0,), 10, [100]),
        ((5, 5), 10, [50, 50]),
        ((10, 0), 10, [100, 0]),
        ((0, 10), 10, [0, 100]),
        ((1, 9_999), 10_000, [LEAST, 100 - LEAST]),
        ((1, 1, 9_998), 10_000, [LEAST, LEAST, 100 - 2 * LEAST]),
        ((9_999, 1, 0), 10_000, [100 - LEAST, LEAST, 0]),
        ((5, 5), 0, [LEAST, 100 - LEAST]),
    ],
)
def test_segment_widths(sizes: tuple[int, ...], total: int, widths: list[float]) -> None:
    spans = segment_spans(sizes, total, 100)
    assert [w for _, w in spans] == pytest.approx(widths)
    assert spans[0][0] == 0
    for (x, w), (following, _) in itertools.pairwise(spans):
        assert following == pytest.approx(x + w)


def test_a_gap_fits_into_the_narrowest_segment() -> None:
    assert GAP < LEAST


def test_six_models_differ_in_colour_and_pattern_and_no_pair_repeats_before_36() -> None:
    for tokens in (LIGHT, DARK):
        styles = [segment_style(tokens, n) for n in range(36)]
        assert len(set(styles)) == 36
        assert len({c for c, _ in styles[:6]}) == len({p for _, p in styles[:6]}) == 6
        assert styles[6] == (tokens.segments[0], Pattern.UPRIGHT)


@pytest.mark.parametrize("tokens", [LIGHT, DARK], ids=["light", "dark"])
def test_texts_and_lines_have_contrast(tokens: object) -> None:
    t = LIGHT if tokens is LIGHT else DARK
    for ground in (t.bg, t.sunk, t.warning.ground, t.error.ground):
        assert contrast(t.ink, ground) >= 4.5
        assert contrast(t.ink2, ground) >= 4.5
    assert contrast(t.warning.ink, t.warning.ground) >= 4.5
    assert contrast(t.error.ink, t.error.ground) >= 4.5
    assert contrast(t.error.ink, t.bg) >= 4.5
    for state in (t.good, t.info):
        assert contrast(state.ink, state.ground) >= 4.5
        assert contrast(state.ink, t.bg) >= 4.5
    assert contrast(t.bg, t.switch_on) >= 4.5  # the chosen word of a row of words
    assert contrast(t.on_lemon, t.lemon) >= 4.5
    for colour in (*t.segments, t.others):
        assert contrast(colour, t.track) >= 3
    assert contrast(t.ctl, t.bg) >= 3


def test_high_contrast_takes_the_systems_colours(qapp: object) -> None:
    from PySide6.QtGui import QPalette

    palette = QPalette()
    tokens = high_contrast(palette)
    assert tokens.bg == palette.color(QPalette.ColorRole.Window).name()
    assert len({p for _, p in (segment_style(tokens, n) for n in range(6))}) == 6


@pytest.fixture
def block(look: Look, qtbot: QtBot) -> DeviceBlock:
    made = DeviceBlock(look)
    qtbot.addWidget(made)
    made.show_bar(view_of(canned.loading()).bars[0])
    made.show()
    return made


def test_names_for_a_screen_reader(block: DeviceBlock) -> None:
    assert block.bar.accessibleName() == "RTX 4090, CUDA0: 17.3 of 24.0 gibibytes spoken for"
    assert [stop.accessibleName() for stop in block.bar.shown_stops()] == [
        "Qwen3-8B: 9.1 gibibytes",
        "Gemma-3-4B, loading: 5.2 gibibytes, of which 2.2 arrived",
        "Other programs: 3.0 gibibytes",
        "Free: 6.7 gibibytes",
        "Margin: 1.0\N{NO-BREAK SPACE}GiB kept free",
    ]


def test_a_bar_is_one_stop_and_arrows_go_through_its_segments(panel: Panel, qtbot: QtBot) -> None:
    panel.show_view(view_of(canned.loading()))
    panel.open()
    active(panel, qtbot)
    stops = panel.devices.blocks[0].bar.shown_stops()
    assert [s.focusPolicy() for s in stops].count(Qt.FocusPolicy.TabFocus) == 1
    stops[0].setFocus(Qt.FocusReason.TabFocusReason)
    for key, at in (
        (Qt.Key.Key_Right, 1),
        (Qt.Key.Key_End, 4),
        (Qt.Key.Key_Right, 4),
        (Qt.Key.Key_Left, 3),
        (Qt.Key.Key_Home, 0),
        (Qt.Key.Key_Left, 0),
    ):
        QTest.keyClick(panel.focusWidget(), key)
        assert panel.focusWidget() is stops[at]
        assert [s.focusPolicy() for s in stops].count(Qt.FocusPolicy.TabFocus) == 1
        assert panel.tip.isVisible()
        assert panel.tip.lines() == stops[at].tip
    QTest.keyClick(panel.focusWidget(), Qt.Key.Key_Tab)
    following = panel.devices.blocks[1].bar.shown_stops()[0]
    assert panel.focusWidget() is following
    assert panel.tip.lines() == following.tip
    panel.pool.details.setFocus(Qt.FocusReason.TabFocusReason)
    assert not panel.tip.isVisible()


def test_only_the_bar_that_changed_is_repainted(panel: Panel, qtbot: QtBot) -> None:
    before = canned.loading()
    panel.show_view(view_of(before))
    panel.open()
    exposed(panel, qtbot)
    paints = Paints(panel)
    first, second = panel.devices.blocks
    changed = msgspec.structs.replace(
        before,
        devices=(
            canned.device(0, "RTX 4090", {"Qwen3-8B": (9.1, 0), "Gemma-3-4B": (5.2, 2.0)}, 3.0),
            *before.devices[1:],
        ),
        generation=2,
    )
    panel.show_view(view_of(changed))
    qtbot.waitUntil(lambda: first.bar in paints.painted, timeout=LONGEST_MS)
    assert second.bar not in paints.painted
    assert panel.controls.autosize not in paints.painted


def test_the_same_view_repaints_nothing(panel: Panel, qtbot: QtBot) -> None:
    panel.show_view(view_of(canned.loading()))
    panel.open()
    exposed(panel, qtbot)
    paints = Paints(panel)
    for _ in range(5):
        panel.show_view(view_of(canned.loading()))
        QApplication.processEvents()
    assert [type(w).__name__ for w in paints.painted] == []


def test_the_tick_never_stands_nearer_than_three_pixels_to_the_end(look: Look, qtbot: QtBot) -> None:
    bar = msgspec.structs.replace(view_of(canned.loading()).bars[0], margin=1)
    block = DeviceBlock(look)
    qtbot.addWidget(block)
    block.show_bar(bar)
    tick = block.bar.shown_stops()[-1].geometry()
    assert tick.left() + 2 + 2 <= block.bar.width()
    assert block.bar.width() - (tick.left() + 3) >= 3


def test_a_bar_becomes_unknown_and_known_again(look: Look, qtbot: QtBot) -> None:
    block = DeviceBlock(look)
    qtbot.addWidget(block)
    known, unknown = view_of(canned.loading()).bars[1], view_of(canned.lost()).bars[1]
    for bar, stops in ((known, 3), (unknown, 0), (known, 3)):
        block.show_bar(bar)
        assert len(block.bar.shown_stops()) == stops
        block.grab()


def test_kept_memory_looks_and_reads_like_nothing_else(look: Look, qtbot: QtBot) -> None:
    block = DeviceBlock(look)
    qtbot.addWidget(block)
    bar = view_of(canned.full()).bars[1]
    block.show_bar(bar)
    names = [stop.accessibleName() for stop in block.bar.shown_stops()]
    assert names[3] == "Kept for a load: 2.8 gibibytes"
    area = block.bar.shown_stops()[3].geometry()
    picture = block.bar.grab().toImage()
    inside = [
        picture.pixelColor(x, y).name()
        for x in range(area.left() + 3, area.right() - 20)
        for y in range(area.top() + 3, area.bottom() - 3)
    ]
    assert inside.count(LIGHT.bg.lower()) > len(inside) / 2
    assert any(colour not in (LIGHT.bg.lower(), LIGHT.track.lower()) for colour in inside)
    assert block.note.isVisibleTo(block)
    assert block.note.y() >= block.legend.y() + block.legend.height()


def test_a_note_to_a_name_gives_way_to_the_name(look: Look, qtbot: QtBot) -> None:
    block = DeviceBlock(look)
    qtbot.addWidget(block)
    block.show_bar(view_of(canned.full()).bars[0])
    block.legend.grab()
    assert block.legend.cut == {}


def moved(of: Snapshot, others: int, progress: float) -> Snapshot:
    """The same devices with other readings: other programs hold `others` MiB more, a load is further on."""
    devices = []
    for d in of.devices:
        segments = tuple(
            msgspec.structs.replace(s, reserved=int(s.bytes * (1 - progress))) if s.reserved else s
            for s in d.segments
        )
        free = d.free - (others << 20) if d.free is not None else None
        devices.append(
            msgspec.structs.replace(d, others=d.others + (others << 20), free=free, segments=segments)
        )
    return msgspec.structs.replace(of, devices=tuple(devices))


@pytest.mark.parametrize("mirror", [False, True])
def test_what_is_painted_in_part_is_the_same_as_painted_whole(
    mirror: bool, panel: Panel, qtbot: QtBot
) -> None:
    of = canned.loading()
    block = DeviceBlock(panel.look)
    qtbot.addWidget(block)
    if mirror:
        block.setLayoutDirection(Qt.LayoutDirection.RightToLeft)
    block.setAutoFillBackground(True)
    block.show_bar(view_of(of).bars[0])
    block.show()
    exposed(block, qtbot)
    steps = [(1, 0.5), (300, 0.6), (5_000, 0.6), (0, 0.61), (700, 0.9), (1, 0.9)]
    parts = []
    for others, progress in steps:
        with_paints = Areas(block.bar)
        block.show_bar(view_of(moved(of, others, progress)).bars[0])
        QApplication.processEvents()
        parts.append(with_paints.widest / block.bar.width())
        on_screen = block.screen().grabWindow(block.winId()).toImage()
        whole = block.grab().toImage()
        assert on_screen.convertToFormat(whole.format()) == whole, (others, progress)
    assert min(parts) < 0.5  # what stands still is left alone


class Areas(QObject):
    """The widest stretch of a widget that is painted from now on, in px."""

    def __init__(self, widget: QWidget) -> None:
        super().__init__(widget)
        self.widest = 0
        widget.installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if isinstance(event, QPaintEvent):
            self.widest = max(self.widest, event.rect().width())
        return False
