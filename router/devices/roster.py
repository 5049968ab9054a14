"""Which devices a source knows, and what becomes of one that is suddenly missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import structs

from router.devices.base import DeviceInfo, DeviceReading

GONE: Final = "it is no longer there"
ASLEEP: Final = "it sleeps to save power"
GONE_S: Final = 60.0


def in_order(readings: Sequence[DeviceReading]) -> tuple[DeviceReading, ...]:
    """By address; those without one last. Parts of one card stay as they are."""
    return tuple(sorted(readings, key=lambda reading: (not reading.device.pci, reading.device.pci)))


class Roster:
    """The devices of one source, by id, with the last figures of each.

    A device that is missing from a sample stays, as unknown, for `GONE_S`: long enough for whoever uses it to
    see what happened.
    """

    def __init__(self) -> None:
        self.devices: tuple[DeviceInfo, ...] = ()
        self._seen: dict[str, float] = {}
        self._last: dict[str, DeviceReading] = {}

    def complete(
        self, readings: Sequence[DeviceReading], started: float, reason: str = GONE
    ) -> tuple[DeviceReading, ...]:
        """The readings, which are noted, and those that are missing among them, as unknown for `reason`.

        By address. Only a device that is gone is forgotten in the end; one that is missing for another
        reason stays.
        """
        present = {reading.device.id for reading in readings}
        for reading in readings:
            self._seen[reading.device.id] = started
            if reading.total is not None:
                self._last[reading.device.id] = reading
        missing = []
        for device in self.devices:
            if device.id in present:
                continue
            if reason != GONE:
                self._seen[device.id] = started
            if started - self._seen[device.id] < GONE_S:
                missing.append(DeviceReading(device, None, None, started, reason=reason))
            else:
                del self._seen[device.id]
                self._last.pop(device.id, None)
        result = in_order((*readings, *missing))
        self.devices = tuple(reading.device for reading in result)
        return result

    def asleep(self, pci: str, started: float) -> tuple[DeviceReading, ...]:
        """The devices at that address, with their last figures: a card that sleeps is not woken for new ones.

        Empty if none is known there.
        """
        return tuple(self._asleep(device, started) for device in self.devices if device.pci == pci)

    def _asleep(self, device: DeviceInfo, started: float) -> DeviceReading:
        last = self._last.get(device.id)
        if last is None:
            return DeviceReading(device, None, None, started, reason=ASLEEP)
        return structs.replace(last, started=started, by_pid={}, reason=f"{ASLEEP}; this is its last reading")
