"""How late the loop runs what is due: in the tray, whatever blocks the loop makes a hole in every stream."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Final

log = logging.getLogger(__name__)

INTERVAL_S: Final = 0.25
NOTEWORTHY_S: Final = 0.05
"""Lag above this is logged."""

KEPT: Final = 240
"""Measurements that `worst_s` looks back on: a minute."""


class LagProbe:
    """Measures until cancelled, once it runs."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=KEPT)

    @property
    def worst_s(self) -> float:
        """The worst lag of the last minute, in seconds."""
        return max(self._recent, default=0.0)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + INTERVAL_S
            await asyncio.sleep(INTERVAL_S)
            self.note(loop.time() - due)

    def note(self, lag_s: float) -> None:
        """Take one measurement. Timers of some loops are early by less than a millisecond."""
        self._recent.append(max(0.0, lag_s))
        if lag_s > NOTEWORTHY_S:
            log.warning("The event loop was blocked for %.0f ms.", lag_s * 1000)
