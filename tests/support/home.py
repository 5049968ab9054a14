"""A house on devices that behave as real ones, with the real loop that reads them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from msgspec import structs

from router.catalog.model import Model
from router.catalog.options import LoadOptions
from router.residency.reconciler import Reconciler
from router.service.sampling import Wanted, keep_reading
from router.settings.schema import Settings
from router.snapshot import ResidentState
from router.units import GIB
from tests.support.sim_memory import SimDevice, SimMemory
from tests.support.simulation import House, SimEngine, model


def sized(name: str, size: float, device: str = "", **rest: Any) -> Model:
    """A model of so many GiB, pinned to a device if one is named."""
    options = LoadOptions(device=(device,)) if device else LoadOptions()
    return structs.replace(model(name, **rest), size_bytes=int(size * GIB), options=options)


class Home(House):
    """A house with devices."""

    memory: SimMemory

    def reserved(self) -> dict[str, int]:
        """Bytes reserved by device, where there are any."""
        found: dict[str, int] = {}
        for resident in self.reconciler.table.residents.values():
            for device, size in resident.reserves.items():
                found[device] = found.get(device, 0) + size
        return {device: size for device, size in found.items() if size}

    def where(self, name: str) -> dict[str, float]:
        """GiB booked for a model by device."""
        resident = next(iter(self.reconciler.table.of_model(name)))
        return {device: size / GIB for device, size in resident.spec.booking.items()}

    def told(self) -> list[str]:
        """The sentences of the feed, oldest first."""
        return [
            entry.message.replace("\N{NO-BREAK SPACE}", " ")
            for entry in reversed(self.reconciler.feed.latest(500))
        ]


@asynccontextmanager
async def home(
    *models: Model,
    devices: tuple[SimDevice, ...],
    load_s: float = 1.0,
    takes: Mapping[str, float] | None = None,
    policies: tuple[Any, ...] = (),
    **settings: Any,
) -> AsyncIterator[Home]:
    """Runs until its end, when it looks whether anybody took too much, and that nothing stays reserved."""
    memory = SimMemory(*devices)
    for device in devices:
        device.note(0.0)
    wanted = Wanted()

    def make(*args: Any, **kwargs: Any) -> Reconciler:
        return Reconciler(*args, **{**kwargs, "want_sample": wanted.set})

    settings = {"max_loaded_models": -1, "evict_idle_timeout_s": -1, "max_parallel_loads": 4, **settings}
    house = Home(
        *models,
        settings=Settings(**settings),
        engine=SimEngine(load_s=load_s, memory=memory, takes=dict(takes or {})),
        make=make,
        policies=policies,
    )
    house.memory = memory
    reconciler = house.reconciler
    moving = (ResidentState.LOADING, ResidentState.EVICTING)

    def is_busy() -> bool:
        return any(r.state in moving for r in reconciler.table.residents.values())

    first = await memory.read()
    reconciler.observe(first)
    reading = asyncio.ensure_future(keep_reading(memory, first, reconciler.observe, is_busy, wanted.wait))
    try:
        yield house
        assert memory.overruns == []
        await asyncio.sleep(10)
        assert house.reserved() == {}
        assert not any(reconciler.claims.values())
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await reconciler.shutdown()
