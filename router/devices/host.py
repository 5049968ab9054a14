"""The machine's own memory, within the limits that a container or a service manager sets."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from router.devices.base import HOST_ID, DeviceInfo, DeviceReading
from router.devices.sampler import Source

HOST: Final = DeviceInfo(id=HOST_ID, name="Host memory", label="CPU", kind="host")
SYSTEM: Final[str] = sys.platform


class HostMemory:
    """Reads total and available bytes. Available is what programs can get without swapping."""

    devices = (HOST,)

    def __init__(self, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> None:
        self._proc = proc
        self._cgroups = cgroups

    def sample(self, started: float) -> tuple[DeviceReading, ...]:
        """One reading. Blocks for a moment.

        Raises:
            OSError, ValueError: the system does not tell.
        """
        total, free = self._read()
        return (DeviceReading(HOST, total, max(min(free, total), 0), started),)

    def _read(self) -> tuple[int, int]:
        if SYSTEM == "linux":
            return self._linux()
        if SYSTEM == "darwin":
            return _darwin()
        if SYSTEM == "win32":
            return _windows()
        raise OSError(f"memory cannot be read on {SYSTEM}")

    def _linux(self) -> tuple[int, int]:
        text = (self._proc / "meminfo").read_text()
        fields = {
            name: int(number) << 10 for name, number in re.findall(r"^(\w+): +(\d+) kB$", text, re.MULTILINE)
        }
        try:
            total, free = fields["MemTotal"], fields["MemAvailable"]
        except KeyError as missing:
            raise ValueError(f"/proc/meminfo has no {missing}") from None
        for limit, used in self._limits():
            total, free = min(total, limit), min(free, max(limit - used, 0))
        return total, free

    def _limits(self) -> Iterator[tuple[int, int]]:
        """Limit and use, in bytes, of each control group that this process is in and that has a limit.

        Both versions of control groups are looked at, from the process's own group up to the root: a limit
        anywhere on the way binds. Inside a container the path may be the host's; then only the root is seen.
        """
        try:
            lines = (self._proc / "self" / "cgroup").read_text().splitlines()
        except OSError:
            return
        for line in lines:
            number, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if number == "0" and not controllers:
                for root in (self._cgroups, self._cgroups / "unified"):
                    yield from _walk(root, path, "memory.max", "memory.current", "inactive_file")
            elif "memory" in controllers.split(","):
                yield from _walk(
                    self._cgroups / "memory",
                    path,
                    "memory.limit_in_bytes",
                    "memory.usage_in_bytes",
                    "total_inactive_file",
                )


def shared_memory(host: Source, started: float) -> tuple[int | None, int | None]:
    """Total and free bytes of the host, for a device that shares them; None if the system does not tell."""
    try:
        (reading,) = host.sample(started)
    except (OSError, ValueError):
        return None, None
    return reading.total, reading.free


def _walk(root: Path, path: str, limit: str, use: str, cached: str) -> Iterator[tuple[int, int]]:
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    for depth in range(len(parts), -1, -1):
        group = root.joinpath(*parts[:depth])
        try:
            allowed = int((group / limit).read_text())
            used = int((group / use).read_text())
        except (OSError, ValueError):
            # No such group or controller here, or the limit is the word "max".
            continue
        yield allowed, used - _cached(group, cached)


def _cached(group: Path, key: str) -> int:
    """File pages that count as used but are given up as soon as memory is wanted."""
    try:
        text = (group / "memory.stat").read_text()
    except OSError:
        return 0
    found = re.search(rf"^{key} (\d+)$", text, re.MULTILINE)
    return int(found[1]) if found else 0


def _darwin() -> tuple[int, int]:
    def told(*command: str) -> str:
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout

    total = int(told("/usr/sbin/sysctl", "-n", "hw.memsize"))
    shown = told("/usr/bin/vm_stat")
    page = re.search(r"page size of (\d+) bytes", shown)
    pages = {name: int(count) for name, count in re.findall(r"^(.+?): +(\d+)\.$", shown, re.MULTILINE)}
    if page is None:
        raise ValueError("vm_stat tells no page size")
    kinds = ("Pages free", "Pages inactive", "Pages speculative", "Pages purgeable")
    return total, int(page[1]) * sum(pages.get(kind, 0) for kind in kinds)


class _MemoryStatus(ctypes.Structure):
    _fields_ = (
        ("length", ctypes.c_uint32),
        ("load", ctypes.c_uint32),
        ("total", ctypes.c_uint64),
        ("available", ctypes.c_uint64),
        ("rest", ctypes.c_uint64 * 5),
    )


def _windows() -> tuple[int, int]:
    status = _MemoryStatus()
    status.length = ctypes.sizeof(status)
    kernel = getattr(ctypes, "windll").kernel32  # noqa: B009  # the attribute exists on Windows only
    if not kernel.GlobalMemoryStatusEx(ctypes.byref(status)):
        raise OSError("the system does not tell its memory")
    return int(status.total), int(status.available)
