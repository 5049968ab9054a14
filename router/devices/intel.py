"""Intel GPUs on Linux: named. Their drivers tell unprivileged programs nothing of their memory."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from router.devices.base import DeviceInfo, DeviceReading
from router.devices.host import HostMemory, shared_memory
from router.devices.roster import Roster
from router.devices.sampler import Source
from router.devices.sysfs import SYS, Card, cards_of_maker, name_of

INTEL: Final = "0x8086"
INTEGRATED: Final = "0000:00:02.0"
"""Where the GPU inside a processor is, on all of Intel's."""

UNTOLD: Final = "its driver does not report memory"


class Intel:
    """A source of readings of Intel GPUs. The one inside the processor has the host's memory."""

    def __init__(self, host: Source | None = None, sysfs: Path = SYS) -> None:
        """`host` is read for the GPU inside the processor."""
        self._host = host or HostMemory()
        self._sysfs = sysfs
        self._roster = Roster()

    @property
    def devices(self) -> tuple[DeviceInfo, ...]:
        """Those that were last known."""
        return self._roster.devices

    def sample(self, started: float) -> tuple[DeviceReading, ...]:
        """One reading of each GPU, in the order of their addresses."""
        cards = cards_of_maker(INTEL, self._sysfs)
        readings = [self._reading(card, index, started) for index, card in enumerate(cards)]
        return self._roster.complete(readings, started)

    def _reading(self, card: Card, index: int, started: float) -> DeviceReading:
        is_integrated = card.address == INTEGRATED
        device = DeviceInfo(
            card.address,
            name_of(card, "Intel GPU"),
            f"INTEL{index}",
            "gpu",
            "vulkan",
            pci=card.address,
            unified=is_integrated,
        )
        total, free = shared_memory(self._host, started) if is_integrated else (None, None)
        return DeviceReading(device, total, free, started, reason="" if total is not None else UNTOLD)
