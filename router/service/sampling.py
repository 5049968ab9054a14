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

NOTICEABLE: Final = 8 * MIB
"""A change of free memory that is worth a new picture."""


async def keep_reading(
    provider: DeviceProvider,
    shown: tuple[DeviceReading, ...],
    take: Callable[[tuple[DeviceReading, ...], bool], None],
    is_busy: Callable[[], bool],
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Read until cancelled, after a pause and again after each.

    `take` gets each reading, and whether it differs noticeably from the last one that did; before the first
    those are `shown`.
    """
    while True:
        await pause(BUSY_S if is_busy() else IDLE_S)
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
