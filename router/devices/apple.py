"""Macs with Apple's processors: processor and GPU share one memory, so they are one device."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

from router.devices.base import HOST_ID, DeviceInfo, DeviceReading
from router.devices.host import HostMemory
from router.devices.sampler import Source
from router.units import GIB, MIB


def sysctl(name: str) -> str:
    """A value of the kernel.

    Raises:
        OSError, subprocess.SubprocessError: there is none of that name, or it could not be read.
    """
    command = ("/usr/sbin/sysctl", "-n", name)
    return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()


class UnifiedMemory:
    """A source with one device, in place of the host: what models may use of the memory that all share."""

    def __init__(self, host: Source | None = None, read: Callable[[str], str] = sysctl) -> None:
        self._host = host or HostMemory()
        self._read = read
        self.devices: tuple[DeviceInfo, ...] = (_device("Unified memory"),)
        self._is_named = False

    def sample(self, started: float) -> tuple[DeviceReading, ...]:
        """One reading.

        Raises:
            OSError, ValueError: the system does not tell.
        """
        if not self._is_named:
            self._is_named = True
            chip = self._told("machdep.cpu.brand_string")
            if chip:
                self.devices = (_device(f"{chip}, unified memory"),)
        (host,) = self._host.sample(started)
        if host.total is None or host.free is None:
            return (DeviceReading(self.devices[0], None, None, started, reason=host.reason),)
        total = min(host.total, self._limit(host.total))
        return (DeviceReading(self.devices[0], total, min(host.free, total), started),)

    def _limit(self, memory: int) -> int:
        """Bytes that the GPU may hold: as set by the user, else the share that the system allows it."""
        told = self._told("iogpu.wired_limit_mb")
        if told.isdecimal() and int(told):
            return int(told) * MIB
        return memory * 3 // 4 if memory > 36 * GIB else memory * 2 // 3

    def _told(self, name: str) -> str:
        try:
            return self._read(name)
        except (OSError, subprocess.SubprocessError):
            return ""


def _device(name: str) -> DeviceInfo:
    return DeviceInfo(HOST_ID, name, "CPU", "host", "metal", unified=True)
