"""How far a fetch is, in one line of a terminal."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import Final

from router.units import MIB, NBSP, gib

#: The rate shown is that since so many seconds before.
_RATE_S: Final = 5.0
_HOUR: Final = 3600


class Bar:
    """Progress in one line of a terminal; nothing where the output is no terminal."""

    def __init__(
        self, whole: str = "Fetched; checking it", clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`whole` is shown when all is here and something else goes on."""
        self._whole = whole
        self._clock = clock
        self._shown = False
        self._marks: list[tuple[float, int]] = []

    def show(self, done: int, total: int | None, words: str = "") -> None:
        """So many bytes are here. `words` are shown in place of them."""
        if sys.stderr.isatty():
            text = words or self.text(done, total)
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
            self._shown = True

    def text(self, done: int, total: int | None) -> str:
        """What is shown: the share, the size, and after a while the rate and the time that is left."""
        if total and done >= total:
            return self._whole
        now = self._clock()
        if self._marks and done < self._marks[-1][1]:
            self._marks.clear()
        self._marks.append((now, done))
        while len(self._marks) > 2 and self._marks[1][0] <= now - _RATE_S:
            del self._marks[0]
        share = f"{done / total:4.0%} of {shown_size(total)}" if total else shown_size(done)
        return f"Fetching: {share}{self._rate(now, done, total)}"

    def end(self) -> None:
        """Clear the line."""
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._shown = False

    def _rate(self, now: float, done: int, total: int | None) -> str:
        since, before = self._marks[0]
        if now - since < 1 or done <= before:
            return ""
        per_s = (done - before) / (now - since)
        rate = f", {per_s / MIB:.1f}{NBSP}MiB/s"
        return f"{rate}, {shown_time((total - done) / per_s)} left" if total else rate


def shown_size(count: int) -> str:
    """Bytes in GiB, or in MiB if there are few."""
    return gib(count) if count >= 1 << 30 else f"{count / MIB:.0f}{NBSP}MiB"


def shown_time(seconds: float) -> str:
    """About how long: `40 s`, `3 min`, `2 h 5 min`."""
    whole = math.ceil(seconds)
    if whole < 60:
        return f"{whole}{NBSP}s"
    minutes = math.ceil(whole / 60)
    if whole < _HOUR:
        return f"{minutes}{NBSP}min"
    return f"{minutes // 60}{NBSP}h {minutes % 60}{NBSP}min"
