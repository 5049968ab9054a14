"""AMD GPUs on Linux, as their kernel driver tells them: no library, no rights, no GPU context."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from router.devices.base import DeviceInfo, DeviceReading
from router.devices.host import HostMemory, shared_memory
from router.devices.roster import ASLEEP, Roster
from router.devices.sampler import Source
from router.devices.sysfs import SYS, Card, cards_of_maker, name_of, number, text

AMD: Final = "0x1002"
UNTOLD: Final = "its driver does not report memory"


class Amd:
    """A source of readings of AMD GPUs.

    An APU has little memory of its own and uses the host's through a table: both parts are counted, and of
    the host's no more is free than the host has free.
    """

    def __init__(self, host: Source | None = None, sysfs: Path = SYS) -> None:
        """`host` is read for APUs."""
        self._host = host or HostMemory()
        self._sysfs = sysfs
        self._roster = Roster()

    @property
    def devices(self) -> tuple[DeviceInfo, ...]:
        """Those that were last known."""
        return self._roster.devices

    def sample(self, started: float) -> tuple[DeviceReading, ...]:
        """One reading of each GPU, in the order of their addresses."""
        readings: list[DeviceReading] = []
        for index, card in enumerate(cards_of_maker(AMD, self._sysfs)):
            if card.is_asleep:
                known = self._roster.asleep(card.address, started)
                unknown = DeviceReading(self._device(card, index), None, None, started, reason=ASLEEP)
                readings.extend(known or (unknown,))
            else:
                readings.append(self._reading(card, index, started))
        return self._roster.complete(readings, started)

    def _device(self, card: Card, index: int) -> DeviceInfo:
        serial = text(card.folder / "unique_id")
        return DeviceInfo(
            card.address,
            name_of(card, "AMD GPU"),
            f"ROCm{index}",
            "gpu",
            "rocm",
            f"GPU-{serial}" if serial else "",
            card.address,
            _is_apu(card),
        )

    def _reading(self, card: Card, index: int, started: float) -> DeviceReading:
        device = self._device(card, index)
        total, used = _memory(card, "vram")
        if total is None or used is None or used > total:
            return DeviceReading(device, None, None, started, reason=UNTOLD)
        free = total - used
        if device.unified:
            shared, taken = _memory(card, "gtt")
            if shared is not None and taken is not None:
                total += shared
                free += min(max(shared - taken, 0), shared_memory(self._host, started)[1] or 0)
        return DeviceReading(device, total, free, started)


def _memory(card: Card, kind: str) -> tuple[int | None, int | None]:
    """Total and used bytes of one kind of memory; None where the card was pulled or another driver has it."""
    total, used = (number(card.folder / f"mem_info_{kind}_{part}") for part in ("total", "used"))
    return total or None, used


def _is_apu(card: Card) -> bool:
    """Whether the GPU is a part of the processor: only then is there a sensor of the voltage they share.

    The amounts do not tell: a small card in a machine with much memory looks the same.
    """
    return any(text(label) == "vddnb" for label in card.folder.glob("hwmon/hwmon*/in*_label"))
