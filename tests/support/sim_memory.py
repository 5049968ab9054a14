"""Pretended devices on a virtual clock that behave as badly as real ones, and a judge of what is put there.

Processes take memory bit by bit and give it back some time after they have ended; readings take time, lag,
fail and leave out processes; other programs come and go.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from router.devices.base import HOST_ID, DeviceInfo, DeviceReading
from router.residency.world import SETTLE_S
from router.units import GIB

NEVER = math.inf
"""A lag with which nothing is ever shown."""

BLIND_S = SETTLE_S + 0.5
"""For so long a decision may not know of what other programs took: readings lag, and have an age."""

LOAD_MAX_S = 60.0
"""No load takes longer here."""


@dataclass
class SimDevice:
    """One device.

    Free memory is shown up to `lag_s` late, processes `pid_lag_s` later than that. With `is_mapped`, what
    processes of ours take does not lower free memory.
    """

    info: DeviceInfo
    total: int
    others: int = 0
    lag_s: float = 0.0
    pid_lag_s: float = 0.0
    is_lost: bool = False
    was_lost: bool = False
    is_mapped: bool = False
    held: dict[int, int] = field(default_factory=dict)
    past: list[tuple[float, int, dict[int, int]]] = field(default_factory=lambda: [(-math.inf, 0, {})])
    others_grew_at: float = -math.inf
    others_settled_at: float = -math.inf
    is_excused: bool = False
    excused_at: float = -math.inf

    def note(self, now: float) -> None:
        """Remember what is held from now on."""
        used = self.others + (0 if self.is_mapped else sum(self.held.values()))
        self.past.append((now, used, dict(self.held)))

    def used_at(self, moment: float) -> int:
        return next(used for since, used, _ in reversed(self.past) if since <= moment)

    def shown_at(self, moment: float) -> dict[int, int]:
        return next(shown for since, _, shown in reversed(self.past) if since <= moment)


class SimMemory:
    """Devices, what processes do on them, and whether it was too much.

    Attributes:
        overruns: each time that processes of ours took more than there is, in words.
        hangs: how many of the next readings of the GPUs do not come.
        use_first: processes are read before free memory, as they must be.
    """

    def __init__(self, *devices: SimDevice, seed: int = 0) -> None:
        self.devices = {device.info.id: device for device in devices}
        self.random = random.Random(seed)
        self.overruns: list[str] = []
        self.hangs = 0
        self.use_first = True
        self.slowest_s = 0.05

    # What processes do

    def allocate(self, pid: int, amounts: Mapping[str, int]) -> None:
        """From now on the process holds so much."""
        now = asyncio.get_running_loop().time()
        for name, size in amounts.items():
            device = self.devices.get(name)
            if device is None or device.held.get(pid, 0) == size:
                continue
            grows = size > device.held.get(pid, 0)
            device.held[pid] = size
            used = sum(device.held.values()) + device.others
            if grows and used > device.total and not device.is_excused:
                self.overruns.append(f"{name}: {used / GIB:.2f} of {device.total / GIB:.2f} GiB at {now:.2f}")
            device.note(now)

    def end(self, pid: int) -> None:
        """The process has ended. The host has its memory back, the GPUs within two seconds."""
        self._free(pid, [d for d in self.devices.values() if d.is_mapped])
        gpus = [d for d in self.devices.values() if not d.is_mapped]
        if self.random.random() < 0.5:
            self._free(pid, gpus)
        else:
            asyncio.get_running_loop().call_later(self.random.uniform(0.0, 2.0), self._free, pid, gpus)

    def _free(self, pid: int, devices: Iterable[SimDevice]) -> None:
        now = asyncio.get_running_loop().time()
        for device in devices:
            if device.held.pop(pid, 0):
                # A load that was admitted at a risk may have taken nothing yet.
                is_recent = now < device.excused_at + LOAD_MAX_S
                device.is_excused &= is_recent or any(device.held.values())
                device.note(now)

    # What others do

    def others_hold(self, name: str, size: int) -> None:
        """Other programs hold so much from now on."""
        device = self.devices[name]
        now = asyncio.get_running_loop().time()
        if size > device.others:
            device.others_grew_at = now
        device.others, device.others_settled_at = size, now
        device.note(now)

    def admitted(self, booking: Mapping[str, int], unread: Collection[str], *, at_risk: bool) -> None:
        """A load was admitted. If the decision could not know what others hold, it is not to blame.

        Args:
            unread: the devices of which it had no reading.
            at_risk: the user wanted it whether it fits or not.
        """
        now = asyncio.get_running_loop().time()
        for name in booking:
            device = self.devices.get(name)
            if device is None:
                continue
            blind = name in unread and (device.others or sum(device.held.values()))
            if at_risk or blind or now < device.others_grew_at + BLIND_S:
                device.is_excused, device.excused_at = True, now

    # Readings

    async def read(self) -> tuple[DeviceReading, ...]:
        """One sample of every device."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        if self.hangs:
            self.hangs -= 1
            await asyncio.sleep(2.0)
            return tuple(
                self._reading(device, started, loop.time(), started)
                if device.info.id == HOST_ID
                else DeviceReading(device.info, None, None, started, reason="its driver does not answer")
                for device in self.devices.values()
            )
        pause = self.random.uniform(0.001, self.slowest_s)
        await asyncio.sleep(pause)
        first, second = started, loop.time()
        if not self.use_first:
            first, second = second, first
        return tuple(self._reading(device, first, second, started) for device in self.devices.values())

    def _reading(
        self, device: SimDevice, of_processes: float, of_free: float, started: float
    ) -> DeviceReading:
        if device.is_lost:
            return DeviceReading(device.info, None, None, started, reason="it cannot be read")
        lag = self.random.uniform(0.0, device.lag_s)
        used = device.used_at(of_free - lag)
        by_pid: Mapping[int, int] = {}
        if device.pid_lag_s != NEVER:
            by_pid = device.shown_at(of_processes - lag - device.pid_lag_s)
        return DeviceReading(device.info, device.total, max(device.total - used, 0), started, by_pid)

    async def close(self) -> None:
        pass


def gpu(number: int, total: int, **rest: float) -> SimDevice:
    """A GPU `gpu0`, labelled `CUDA0`."""
    info = DeviceInfo(f"gpu{number}", f"GPU {number}", f"CUDA{number}", "gpu", backend="cuda")
    return SimDevice(info, total, **rest)


def host(total: int, **rest: float) -> SimDevice:
    """The host's memory, where weights are mapped."""
    return SimDevice(DeviceInfo(HOST_ID, "Host memory", "CPU", "host"), total, is_mapped=True, **rest)
