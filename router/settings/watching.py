"""Noticing that files changed: by looking every few seconds, which works on every file system."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Final

log = logging.getLogger(__name__)

INTERVAL_S: Final = 3.0
SETTLE_S: Final = 2.0
# A look that takes long is repeated so seldom that looking takes at most a twentieth of one core.
SHARE: Final = 20


class Settling:
    """Holds back removals until they have lasted: editors save by delete and create, drives blink."""

    def __init__(self, settle_s: float = SETTLE_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._settle_s = settle_s
        self._clock = clock
        self._since: dict[str, float] = {}

    def due(self, missing: Collection[str]) -> frozenset[str]:
        """Those of the missing that have been missing at each look since long enough ago."""
        now = self._clock()
        self._since = {name: self._since.get(name, now) for name in missing}
        return frozenset(name for name, since in self._since.items() if now - since >= self._settle_s)

    @property
    def pending(self) -> bool:
        """Something was missing at the last look."""
        return bool(self._since)


class Waker:
    """Looks again and again until cancelled; `wake` makes the next look come at once."""

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        self.interval_s = interval_s
        self._woken = asyncio.Event()

    def wake(self) -> None:
        self._woken.set()

    async def run(self, look: Callable[[], Awaitable[object]], what: str) -> None:
        """Call `look` in turn. A failure is logged and does not end the watch."""
        while True:
            began = time.monotonic()
            try:
                await look()
            except Exception:
                log.exception("Looking for changes of %s failed; it goes on.", what)
            pause = max(self.interval_s, SHARE * (time.monotonic() - began))
            try:
                async with asyncio.timeout(pause):
                    await self._woken.wait()
            except TimeoutError:
                continue
            finally:
                self._woken.clear()
