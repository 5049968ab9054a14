"""The engine in use, which may change while workers of another still run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from router.devices.base import HOST_ID, DeviceInfo, DeviceProvider, DeviceReading
from router.engines.arguments import check_arguments, embedded_settings
from router.engines.base import Capabilities, EngineDevice, Worker, WorkerSpec
from router.engines.embedded import EmbeddedEngine
from router.engines.factory import make_engine
from router.engines.llama import LlamaEngine
from router.engines.reach import Reach, match_devices


class Fleet:
    """An engine made of engines: new workers are started by the one in use, old ones stay with theirs.

    Make it, use it and close it on one loop.
    """

    name = "llama.cpp"

    def __init__(self, *, logs_dir: Path, state_dir: Path) -> None:
        self._logs_dir = logs_dir
        self._state_dir = state_dir
        self._first = EmbeddedEngine(logs_dir=logs_dir, state_dir=state_dir)
        self._engines: dict[tuple[str, str], LlamaEngine] = {}
        self._current: LlamaEngine = self._first
        self._found: Capabilities | None = None
        self._running: dict[str, int] = {}
        self._devices: tuple[DeviceInfo, ...] = ()
        self.reach = Reach({}, {})

    def capabilities(self) -> Mapping[str, Any]:
        """Those of the engine in use."""
        return self._current.capabilities()

    def check_arguments(self, given: Iterable[str]) -> tuple[str, ...]:
        """Further arguments of a model, as the engine in use takes them. From any thread.

        Raises:
            BadRequest: naming the one that is not allowed, or that this engine does not take.
        """
        args = check_arguments(given)
        if isinstance(self._current, EmbeddedEngine):
            embedded_settings(args)
        return args

    async def reap_leftovers(self) -> tuple[int, ...]:
        """End workers that an earlier, dead router left behind, whatever engine they were of."""
        return await self._first.reap_leftovers()

    def choose(self, found: Capabilities) -> bool:
        """Start workers with this engine from now on. Returns whether what it reaches is new."""
        if found == self._found:
            return False
        self._found = found
        key = (found.path, found.version)
        if not found.path:
            self._current = self._first
        elif key not in self._engines:
            self._engines[key] = make_engine(found, logs_dir=self._logs_dir, state_dir=self._state_dir)
            self._current = self._engines[key]
        else:
            self._current = self._engines[key]
        return self._match()

    def unknown_devices(self) -> Mapping[str, EngineDevice]:
        """The engine's devices that nothing else on this machine knows, by an id made up for each."""
        return self.reach.unknown

    def observe(self, devices: Iterable[DeviceInfo]) -> bool:
        """Take the machine's devices, as read. Returns whether what the engine reaches is new."""
        known = tuple(device for device in devices if device.id not in self.reach.unknown)
        if known == self._devices:
            return False
        self._devices = known
        return self._match()

    def is_used(self, id: str) -> bool:
        """Whether workers of the engine of that id run, or start."""
        return self._running.get(id, 0) > 0

    async def start(
        self,
        spec: WorkerSpec,
        progress: Callable[[float], None],
        launched: Callable[[int], None] = lambda pid: None,
    ) -> Worker:
        """As every engine."""
        id = self._found.id if self._found is not None else ""
        self._running[id] = self._running.get(id, 0) + 1
        try:
            worker = await self._current.start(spec, progress, launched)
        except BaseException:
            self._ended(id)
            raise
        worker.exited.add_done_callback(lambda _: self._ended(id))
        return worker

    async def aclose(self) -> None:
        """Stop all workers of all engines; no load starts after."""
        await asyncio.gather(*(engine.aclose() for engine in (self._first, *self._engines.values())))

    def _ended(self, id: str) -> None:
        self._running[id] -= 1

    def _match(self) -> bool:
        before = self.reach
        self.reach = match_devices(self._devices, self._found.devices if self._found is not None else ())
        self._current.use(self.reach.all)
        return self.reach != before


class WithEngineDevices:
    """A provider that adds the devices which only the engine knows: there is no driver here that reads them.

    Their memory is what the engine told when it was probed; what other programs hold on them is not known.
    """

    def __init__(self, inner: DeviceProvider, unknown: Callable[[], Mapping[str, EngineDevice]]) -> None:
        self._inner = inner
        self._unknown = unknown

    async def read(self) -> tuple[DeviceReading, ...]:
        """One sample of every device, host last."""
        readings = await self._inner.read()
        started = min((reading.started for reading in readings), default=asyncio.get_running_loop().time())
        added = tuple(_reading(id, device, started) for id, device in self._unknown().items())
        gpus = tuple(reading for reading in readings if reading.device.id != HOST_ID)
        return (*gpus, *added, *readings[len(gpus) :])

    async def close(self) -> None:
        """As the provider within."""
        await self._inner.close()


def _reading(id: str, device: EngineDevice, started: float) -> DeviceReading:
    name = device.description or device.name
    info = DeviceInfo(id, name, device.name, "gpu", backend=device.backend)
    reason = "the engine uses it, but nothing here can read how much of it is free"
    return DeviceReading(info, device.total or None, None, started, reason=reason)
