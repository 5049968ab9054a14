"""Devices that exist on paper, for demonstrations, bug reports and tests (`--simulate 24GiB,24GiB`)."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from router.devices.base import DeviceInfo, DeviceProvider, DeviceReading
from router.errors import BadRequest
from router.units import MAX_BYTES, parse_size

MAX_DEVICES: Final = 16
MAX_LAG_S: Final = 3600.0
_FIELDS: Final = ("device", "others_bytes", "lost", "lag_s")


def parse_sizes(text: str) -> tuple[int, ...]:
    """Bytes of each device in a list such as `24GiB,24GiB`.

    Raises:
        BadRequest: naming the entry at fault.
    """
    entries = text.split(",")
    if len(entries) > MAX_DEVICES:
        raise BadRequest(f"--simulate: {len(entries)} devices are too many; at most {MAX_DEVICES}.")
    try:
        sizes = tuple(parse_size(entry) for entry in entries)
    except ValueError as error:
        raise BadRequest(f"--simulate: {error}.", param="simulate") from None
    if 0 in sizes:
        raise BadRequest("--simulate: a device needs more than 0 bytes.", param="simulate")
    return sizes


class _Device:
    """One pretend device: what is held on it now, and what readings that lag still show."""

    def __init__(self, number: int, total: int) -> None:
        self.info = DeviceInfo(
            f"sim{number}", f"Simulated GPU {number}", f"SIM{number}", "gpu", backend="simulated"
        )
        self.total = total
        self.others = 0
        self.is_lost = False
        self.lag_s = 0.0
        self.held: dict[object, tuple[int, int | None]] = {}
        self._past: deque[tuple[float, int, dict[int, int]]] = deque([(-math.inf, 0, {})])

    def note(self, now: float) -> None:
        """Remember what is held from now on; forget what no permitted lag can show any more."""
        used = self.others + sum(size for size, _ in self.held.values())
        by_pid: dict[int, int] = {}
        for size, pid in self.held.values():
            if pid is not None:
                by_pid[pid] = by_pid.get(pid, 0) + size
        self._past.append((now, used, by_pid))
        while len(self._past) > 1 and self._past[1][0] <= now - MAX_LAG_S:
            self._past.popleft()

    def reading(self, now: float) -> DeviceReading:
        if self.is_lost:
            return DeviceReading(self.info, None, None, now, reason="it was taken away by a simulated change")
        used, by_pid = next(
            (used, by_pid) for since, used, by_pid in reversed(self._past) if since <= now - self.lag_s
        )
        return DeviceReading(self.info, self.total, max(self.total - used, 0), now, by_pid)

    def state(self) -> dict[str, Any]:
        return {
            "device": self.info.id,
            "label": self.info.label,
            "total_bytes": self.total,
            "others_bytes": self.others,
            "ours_bytes": sum(size for size, _ in self.held.values()),
            "lost": self.is_lost,
            "lag_s": self.lag_s,
        }


class SimulatedDevices:
    """A provider of pretend devices `SIM0`, `SIM1`, ... and, last, the real host if one is given.

    Not for use from several threads.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        clock: Callable[[], float] = time.monotonic,
        host: DeviceProvider | None = None,
    ) -> None:
        """`sizes` in bytes. `clock` must be the loop's: readings carry its time."""
        self._devices = {f"sim{number}": _Device(number, size) for number, size in enumerate(sizes)}
        self._clock = clock
        self._host = host

    async def read(self) -> tuple[DeviceReading, ...]:
        """One sample of every device, host last."""
        now = self._clock()
        readings = tuple(device.reading(now) for device in self._devices.values())
        return readings + (await self._host.read() if self._host is not None else ())

    async def close(self) -> None:
        """Close the provider of the host."""
        if self._host is not None:
            await self._host.close()

    def allocate(self, owner: object, amounts: Mapping[str, int], pid: int | None = None) -> None:
        """From now on `owner` holds these bytes, by device id; what it held before is replaced.

        With `pid`, readings attribute them to that process. Devices that are not simulated are ignored.
        """
        now = self._clock()
        for name, device in self._devices.items():
            entry = (amounts.get(name, 0), pid)
            if entry[0] and device.held.get(owner) != entry:
                device.held[owner] = entry
                device.note(now)
            elif not entry[0] and owner in device.held:
                del device.held[owner]
                device.note(now)

    def free(self, owner: object) -> None:
        """`owner` holds nothing more. Unknown owners are ignored."""
        self.allocate(owner, {})

    def change(self, change: Mapping[str, Any]) -> dict[str, Any]:
        """Apply a change and return the state of all devices.

        Fields: `device` (id or label; absent: all), `others_bytes` (what other programs hold: a number of
        bytes or a text such as `3GiB`), `lost` (the device cannot be read), `lag_s` (readings are that old).
        All of it is applied, or on an error nothing.

        Raises:
            BadRequest: naming the field.
        """
        for field in change:
            if field not in _FIELDS:
                raise BadRequest(f"{field} is not a field; there are {', '.join(_FIELDS)}.", param=str(field))
        chosen = self._chosen(change["device"]) if "device" in change else list(self._devices.values())
        others = _bytes(change["others_bytes"]) if "others_bytes" in change else None
        lag_s = _lag(change["lag_s"]) if "lag_s" in change else None
        lost = change.get("lost")
        if "lost" in change and not isinstance(lost, bool):
            raise BadRequest("lost must be true or false.", param="lost")
        now = self._clock()
        for device in chosen:
            if others is not None:
                device.others = others
                device.note(now)
            if lag_s is not None:
                device.lag_s = lag_s
            if lost is not None:
                device.is_lost = lost
        return self.state()

    def state(self) -> dict[str, Any]:
        """What is pretended now, for JSON."""
        return {"devices": [device.state() for device in self._devices.values()]}

    def _chosen(self, wanted: Any) -> list[_Device]:
        for device in self._devices.values():
            if wanted in (device.info.id, device.info.label):
                return [device]
        known = ", ".join(device.info.label for device in self._devices.values())
        raise BadRequest(f"device must be one of {known}.", param="device")


def _bytes(value: Any) -> int:
    try:
        size = parse_size(value) if isinstance(value, str) else value
    except ValueError as error:
        raise BadRequest(f"others_bytes: {error}.", param="others_bytes") from None
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= MAX_BYTES:
        raise BadRequest(
            'others_bytes must be a number of bytes, or a text such as "3GiB".', param="others_bytes"
        )
    return size


def _lag(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_LAG_S:
        raise BadRequest(f"lag_s must be seconds from 0 to {MAX_LAG_S:g}.", param="lag_s")
    return float(value)
