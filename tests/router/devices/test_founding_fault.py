"""Two models are asked for on one device, the second before the first has taken its memory.

Real worker processes take memory of a pretended driver, which kills whoever takes more than there is. The
real binding reads it, late; the real sampler and engine are in between.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct, structs

from router.catalog.model import Model, by_every_name
from router.catalog.options import LoadOptions
from router.devices.base import DeviceReading
from router.devices.nvml import Nvml
from router.devices.sampler import Sampler
from router.engines.base import Worker
from router.engines.embedded import EmbeddedEngine
from router.engines.process import StopLimits
from router.errors import RouterError
from router.residency.reconciler import Reconciler
from router.residency.table import Resident
from router.residency.world import Wants
from router.service.sampling import Wanted, keep_reading
from router.settings.schema import Settings
from router.snapshot import ResidentState
from router.units import GIB
from tests.router.devices.conftest import Host, Sysfs
from tests.support.fake_nvml import FakeNvml
from tests.support.simulation import SimPlacer, model

WORKER = Path(__file__).parents[1] / "engines" / "fake_gpu_worker.py"

TOTAL = 24 * GIB
NEVER = -1


class Schedule(Struct, frozen=True):
    """When what happens on one card.

    Each model fits beside what others hold, but not both of them. By the charges alone both would fit.
    """

    slot: int
    others: int
    sizes: tuple[int, int]
    gap_s: float
    step_s: float
    linger_s: float
    answer_s: float
    lag_s: float
    pid_lag_ms: int

    @classmethod
    def made(cls, slot: int, chance: random.Random, *, late: bool) -> Schedule:
        """With `late`, readings are as late as they may be, and never show a process."""
        return cls(
            slot=slot,
            others=chance.randint(8, 9) * GIB,
            sizes=(chance.randint(8, 11) * GIB, chance.randint(8, 11) * GIB),
            gap_s=chance.uniform(0.01, 0.5),
            step_s=chance.uniform(0.02, 0.2),
            linger_s=chance.choice((0.0, 0.3)),
            answer_s=chance.uniform(0.0, 0.5),
            lag_s=2.0 if late else chance.uniform(0.0, 2.0),
            pid_lag_ms=NEVER if late else chance.choice((0, 1000, NEVER)),
        )

    @property
    def names(self) -> tuple[str, str]:
        return f"A{self.slot}", f"B{self.slot}"

    @property
    def uuid(self) -> str:
        return f"GPU-0000-{self.slot:04}"

    def plan(self, size: int) -> dict[str, Any]:
        """What a worker does."""
        steps = [size * share // 4 for share in (1, 2, 3, 4)]
        return {"slot": self.slot, "steps": steps, "step_s": self.step_s, "linger_s": self.linger_s}


class Machine:
    """Cards, each with a schedule and a reconciler of its own, read by one sampler."""

    def __init__(
        self,
        schedules: list[Schedule],
        fake: FakeNvml,
        host: Host,
        sysfs: Sysfs,
        folder: Path,
        make: Callable[..., Reconciler],
        setenv: Callable[[str, str], None],
    ) -> None:
        self.schedules = schedules
        self.fake = fake
        for name, value in fake.keep_account({s.slot: s.others for s in schedules}).items():
            setenv(name, value)
        for s in schedules:
            bus = f"00000000:{s.slot + 1:02x}:00.0"
            lags = {"lagms": int(s.lag_s * 1000), "pidlagms": s.pid_lag_ms}
            fake.card(s.slot, name="Card", uuid=s.uuid, bus=bus, total=TOTAL, **lags)
        plans = {name: s.plan(size) for s in schedules for name, size in zip(s.names, s.sizes, strict=True)}
        (folder / "plans.json").write_text(json.dumps(plans))
        command = (sys.executable, "-S", "-E", str(WORKER), str(folder / "libnvidia-ml.so.1"))
        self.engine = EmbeddedEngine(
            command=(*command, str(folder / "plans.json")), limits=StopLimits(5.0, 5.0, 5.0)
        )
        self.sampler = Sampler([Nvml(host, sysfs.root, sysfs.proc)])
        self.wanted = Wanted()
        self.houses = {s.uuid: self._house(s, make) for s in schedules}

    def _house(self, schedule: Schedule, make: Callable[..., Reconciler]) -> Reconciler:
        settings = Settings(max_loaded_models=-1, load_queue_timeout_s=60, evict_idle_timeout_s=-1)
        house = make(self.engine, SimPlacer(), settings, lambda: None, want_sample=self.wanted.set)
        models: list[Model] = [
            structs.replace(
                model(name), size_bytes=size, options=LoadOptions(device=(schedule.uuid,), parallel=1)
            )
            for name, size in zip(schedule.names, schedule.sizes, strict=True)
        ]
        house.configure(lookup=by_every_name(models))
        return house

    def _take(self, readings: tuple[DeviceReading, ...], changed: bool) -> None:
        for reading in readings:
            if reading.device.id in self.houses:
                self.houses[reading.device.id].observe((reading,), changed)

    def _is_busy(self) -> bool:
        moving = (ResidentState.LOADING, ResidentState.EVICTING)
        return any(r.state in moving for h in self.houses.values() for r in h.table.residents.values())

    async def run(self) -> list[str]:
        """Do it all. Returns what went wrong for clients."""
        first = await self.sampler.read()
        self._take(first, True)
        reading = asyncio.ensure_future(
            keep_reading(self.sampler, first, self._take, self._is_busy, self.wanted.wait)
        )
        try:
            found = await asyncio.gather(*(self._both(s) for s in self.schedules))
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await asyncio.gather(*(house.shutdown() for house in self.houses.values()))
            await self.sampler.close()
            await self.engine.aclose()
        return [problem for problems in found for problem in problems]

    async def _both(self, schedule: Schedule) -> list[str]:
        async def use(name: str) -> None:
            lease = await self.houses[schedule.uuid].acquire(name, wants=Wants.REQUEST)
            await asyncio.wait([lease.cut], timeout=schedule.answer_s)
            lease.release()

        first = asyncio.ensure_future(use(schedule.names[0]))
        await asyncio.sleep(schedule.gap_s)
        ended = await asyncio.gather(first, use(schedule.names[1]), return_exceptions=True)
        return [f"{schedule}: {error}" for error in ended if isinstance(error, RouterError)]


class NoReserve(Reconciler):
    """What is under way is not counted until it can be seen."""

    def _one_pass(self) -> None:
        for resident in self.table.residents.values():
            resident.reserves = {}
        super()._one_pass()


class ReserveEndsAtReady(Reconciler):
    """What a load has taken is believed to be shown as soon as it is ready."""

    def _book_ready(self, resident: Resident, worker: Worker) -> None:
        resident.reserves = {}
        super()._book_ready(resident, worker)


Build = Callable[..., Machine]


@pytest.fixture
def build(fake: FakeNvml, host: Host, sysfs: Sysfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Build:
    def make(
        count: int, seed: int, reconciler: Callable[..., Reconciler] = Reconciler, *, late: bool = False
    ) -> Machine:
        chance = random.Random(seed)
        schedules = [Schedule.made(slot, chance, late=late) for slot in range(count)]
        return Machine(schedules, fake, host, sysfs, tmp_path, reconciler, monkeypatch.setenv)

    return make


@pytest.mark.fault("F01")
async def test_no_worker_takes_more_than_there_is(build: Build) -> None:
    machine = build(12, seed=1)
    assert await machine.run() == []
    assert machine.fake.killed() == []


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(20))
async def test_no_worker_takes_more_than_there_is_in_two_hundred_schedules(build: Build, seed: int) -> None:
    machine = build(10, seed=100 + seed)
    assert await machine.run() == []
    assert machine.fake.killed() == []


@pytest.mark.fault("F01")
@pytest.mark.parametrize("broken", [NoReserve, ReserveEndsAtReady])
async def test_it_is_the_reserve_that_saves_them(
    build: Build, broken: type[Reconciler], caplog: pytest.LogCaptureFixture
) -> None:
    machine = build(3, seed=2, reconciler=broken, late=True)
    with caplog.at_level(logging.CRITICAL):
        await machine.run()
    assert machine.fake.killed()
