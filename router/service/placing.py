"""From a decision to load to what a worker is started with: context, slots, demand and device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from router.catalog.model import Model
from router.catalog.options import LoadOptions
from router.devices.base import HOST_ID, DeviceInfo, DeviceReading
from router.engines.base import WorkerSpec
from router.errors import LoadFailed
from router.memory.demand import default_ctx, demand
from router.settings.schema import Settings

BACKENDS: Final = frozenset({"simulated"})
"""Kinds of GPUs that the engine reaches: the embedded one runs on the processor."""


def is_usable(device: DeviceInfo) -> bool:
    """Whether the engine can load a model on the device."""
    return device.kind != "gpu" or device.backend in BACKENDS


def make_spec(
    model: Model,
    options: LoadOptions,
    settings: Settings,
    readings: tuple[DeviceReading, ...],
    charged: Mapping[str, int],
) -> WorkerSpec:
    """What to start for a model.

    Raises:
        LoadFailed: the model's file cannot be used.
    """
    if model.header is None:
        raise LoadFailed(f"{model.name} cannot be loaded: {model.broken or 'its header is unknown'}")
    ctx_size = default_ctx(model.header, options.ctx_size or settings.ctx_size)
    parallel = options.parallel or settings.parallel
    needs = demand(model.header, model.size_bytes, ctx_size, parallel).total
    return WorkerSpec(
        model=model.name,
        path=model.path,
        type=model.type,
        ctx_size=ctx_size,
        parallel=parallel,
        booking={place(readings, charged): needs},
        load_stall_s=settings.load_stall_timeout_s,
    )


def place(readings: Iterable[DeviceReading], charged: Mapping[str, int]) -> str:
    """The id of the GPU with the most memory left, counting what is booked but not yet visible.

    Without any GPU that the engine can use and whose memory is known, it is the host.
    """

    def left(reading: DeviceReading) -> int:
        free, total = reading.free or 0, reading.total or 0
        return min(free, total - charged.get(reading.device.id, 0))

    gpus = [
        r
        for r in readings
        if r.device.kind == "gpu" and is_usable(r.device) and r.total is not None and r.free is not None
    ]
    return max(gpus, key=left).device.id if gpus else HOST_ID
