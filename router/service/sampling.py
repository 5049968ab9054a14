"""Readings of the devices, taken again and again while the router runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from router.devices.base import DeviceProvider, DeviceReading
from router.units import MIB

IDLE_S: Final = 1.0
BUSY_S: Final = 0.25
"""Seconds between two readings: at rest, and while a load or an unload moves memory."""

SOONEST_S: Final = 0.05
"""Seconds between two readings at first, while a decision waits for memory; the pauses grow to `BUSY_S`."""

NOTICEABLE: Final = 8 * MIB
"""A change of free memory that is worth a new picture."""


class Wanted:
    """Somebody waits for newer readings."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        """Ask for a reading as soon as may be."""
        self._event.set()

    async def wait(self, at_most_s: float) -> bool:
        """Wait until somebody asks. False if nobody did in time."""
        try:
            async with asyncio.timeout(at_most_s):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True


async def keep_reading(
    provider: DeviceProvider,
    shown: tuple[DeviceReading, ...],
    take: Callable[[tuple[DeviceReading, ...], bool], None],
    is_busy: Callable[[], bool],
    wanted: Callable[[float], Awaitable[bool]],
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Read until cancelled, after a pause and again after each.

    `take` gets each reading, and whether it differs noticeably from the last one that did; before the first
    those are `shown`. `wanted` waits so many seconds for somebody who wants a reading at once, and tells
    whether there is one. Wanted readings come at once after a rest, then with growing pauses.
    """
    at_least = 0.0
    while True:
        if at_least:
            await pause(at_least)
        rest = (BUSY_S if is_busy() else IDLE_S) - at_least
        is_wanted = rest <= 0 or await wanted(rest)
        at_least = min(max(at_least * 1.5, SOONEST_S), BUSY_S) if is_wanted else 0.0
        readings = await provider.read()
        changed = differs(shown, readings)
        if changed:
            shown = readings
        take(readings, changed)


def differs(before: tuple[DeviceReading, ...], after: tuple[DeviceReading, ...]) -> bool:
    """Whether anyone would notice: devices came, went or changed state, or memory moved."""
    if len(before) != len(after):
        return True
    for old, new in zip(before, after, strict=True):
        if (old.device, old.total, old.reason) != (new.device, new.total, new.reason):
            return True
        if (old.free is None) != (new.free is None):
            return True
        if old.free is not None and new.free is not None and abs(old.free - new.free) >= NOTICEABLE:
            return True
    return False
