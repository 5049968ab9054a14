"""What a device is, and what one reading of it says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

HOST_ID = "host"


class DeviceInfo(Struct, frozen=True):
    """A device's identity.

    Attributes:
        id: stable: `host`, a GPU's UUID or, where it has none, its PCI address.
        label: the engine's name for it, such as `CUDA0`.
        kind: `host` or `gpu`.
        backend: what an engine must be built with to use it: `cuda`, `rocm`, `vulkan` or `metal`; `simulated`
            for devices on paper; "" for the host. An engine without that back end cannot reach the device.
        uuid: how to name it to its driver when pinning a worker; "" if it has none.
        pci: its address, such as `0000:01:00.0`; "" if it is not on that bus.
        unified: its memory is the host's, in whole or part. What is put there takes from the host as well.
    """

    id: str
    name: str
    label: str
    kind: str
    backend: str = ""
    uuid: str = ""
    pci: str = ""
    unified: bool = False


class DeviceReading(Struct, frozen=True):
    """One sample of one device.

    Attributes:
        total, free: bytes, or None when they cannot be read; then `reason` says why. With figures, a reason
            says what is odd about them, such as that the device sleeps.
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
