"""The line that tells how far a fetch is."""

from __future__ import annotations

import pytest

from router.cli.progress import Bar, shown_size, shown_time
from router.units import GIB, MIB


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def plain(text: str) -> str:
    return text.replace("\N{NO-BREAK SPACE}", " ")


def test_share_rate_and_what_is_left() -> None:
    clock = Clock()
    bar = Bar("Checking", clock)
    total = 4 * GIB
    assert plain(bar.text(0, total)) == "Fetching:   0% of 4.0 GiB"
    clock.now = 2.0
    assert plain(bar.text(200 * MIB, total)) == "Fetching:   5% of 4.0 GiB, 100.0 MiB/s, 39 s left"
    # Only the last seconds count: a line that became slow is told as it is now.
    for _ in range(20):
        clock.now += 1.0
        text = bar.text(200 * MIB + int((clock.now - 2.0) * MIB), total)
    assert ", 1.0 MiB/s, 1 h 5 min left" in plain(text)
    assert bar.text(total, total) == "Checking"


def test_what_begins_anew_has_no_rate_yet() -> None:
    clock = Clock()
    bar = Bar("Checking", clock)
    bar.text(500 * MIB, GIB)
    clock.now = 3.0
    assert plain(bar.text(0, GIB)) == "Fetching:   0% of 1.0 GiB"
    assert plain(bar.text(30 * MIB, None)) == "Fetching: 30 MiB"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "1 s"), (59, "59 s"), (60.5, "2 min"), (3600, "1 h 0 min"), (7325, "2 h 3 min")],
)
def test_times(seconds: float, text: str) -> None:
    assert plain(shown_time(seconds)) == text


def test_sizes() -> None:
    assert plain(shown_size(94 * MIB)) == "94 MiB"
    assert plain(shown_size(5 * GIB // 2)) == "2.5 GiB"
