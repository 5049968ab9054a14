"""An engine whose workers are real but whose memory is pretended: on devices that exist on paper only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from msgspec import structs

from router.engines.base import Engine, Exit, Worker, WorkerSpec


class Ledger(Protocol):
    """Pretend devices, as this engine needs them. Devices that it does not know are ignored."""

    def allocate(self, owner: object, amounts: Mapping[str, int], pid: int | None = None) -> None:
        """From now on `owner` holds these bytes, by device id; what it held before is replaced."""

    def free(self, owner: object) -> None:
        """`owner` holds nothing more. Unknown owners are ignored."""


class _Pretending:
    """A worker that tells nothing of the real memory that it takes: only the pretended counts."""

    measured: Mapping[str, int] = {}

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.host, self.port, self.api_key = worker.host, worker.port, worker.api_key
        self.pid, self.launch_command = worker.pid, worker.launch_command

    @property
    def exited(self) -> asyncio.Future[Exit]:
        return self._worker.exited

    async def stop(self) -> bool:
        return await self._worker.stop()


class SimulatingEngine:
    """Books what a worker would take on pretend devices: growing with the load, gone with the process."""

    def __init__(self, inner: Engine, devices: Ledger) -> None:
        self._inner = inner
        self._devices = devices
        self.name = inner.name

    def capabilities(self) -> Mapping[str, Any]:
        """Those of the engine within."""
        return {**self._inner.capabilities(), "simulated": True}

    async def start(
        self,
        spec: WorkerSpec,
        progress: Callable[[float], None],
        launched: Callable[[int], None] = lambda pid: None,
    ) -> Worker:
        """As the engine within."""
        owner = object()
        process: int | None = None

        def begun(pid: int) -> None:
            nonlocal process
            process = pid
            launched(pid)

        def grow(share: float) -> None:
            amounts = {device: int(size * share) for device, size in spec.booking.items()}
            self._devices.allocate(owner, amounts, process)
            progress(share)

        try:
            worker = await self._inner.start(_on_host(spec), grow, begun)
        except BaseException:
            self._devices.free(owner)
            raise

        def ended(_: object) -> None:
            self._devices.free(owner)

        if not worker.exited.done():
            self._devices.allocate(owner, spec.booking, worker.pid)
        worker.exited.add_done_callback(ended)
        return _Pretending(worker)


def _on_host(spec: WorkerSpec) -> WorkerSpec:
    """The same without the devices, which the engine within does not have."""
    return structs.replace(
        spec, devices=(), split_mode="none", main_gpu=0, tensor_split=(), n_gpu_layers=0, n_cpu_moe=0
    )
