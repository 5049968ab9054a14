"""What a device is, and what one reading of it says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

HOST_ID = "host"


class DeviceInfo(Struct, frozen=True):
    """A device's identity. `id` is stable (`host`, a GPU's UUID or PCI address); `label` is the engine's name
    for it (`CUDA0`); `kind` is `host` or `gpu`."""

    id: str
    name: str
    label: str
    kind: str


class DeviceReading(Struct, frozen=True):
    """One sample of one device.

    Attributes:
        total, free: bytes, or None when they cannot be read; then `reason` says why.
        by_pid: bytes by process id, where the driver tells.
        started: when the sample was begun, seconds on the loop's clock.
    """

    device: DeviceInfo
    total: int | None
    free: int | None
    started: float
    by_pid: Mapping[int, int] = {}
    reason: str = ""


class DeviceProvider(Protocol):
    """A source of readings."""

    async def read(self) -> tuple[DeviceReading, ...]:
        """One sample of every device, host last. Never raises for a device's fault: its reading tells."""

    async def close(self) -> None:
        """Let go of threads and handles. Does not wait for a driver that hangs."""
