"""Simulated workers, and a reconciler around them, on a virtual clock."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from router.catalog.model import LLM, Identity, Model, by_every_name
from router.catalog.options import LoadOptions
from router.devices.base import HOST_ID, DeviceInfo, DeviceReading
from router.engines.base import OUT_OF_MEMORY, Exit, WorkerSpec
from router.errors import LoadFailed
from router.policy.document import Policy
from router.residency.placement import Placement
from router.residency.plan import plan
from router.residency.reconciler import Reconciler
from router.service.sampling import BUSY_S
from router.settings.schema import Settings
from router.snapshot import ResidentState
from router.units import GIB
from tests.support.sim_memory import SimMemory

SAMPLE_S = 0.02
"""How long a reading of the devices takes that is wanted after a rest."""


def model(name: str, type: str = LLM, **rest: Any) -> Model:
    return Model(
        name=name,
        path=f"/models/{name}.gguf",
        type=type,
        size_bytes=GIB,
        identity=Identity(f"/models/{name}.gguf", GIB, 1),
        **rest,
    )


def policy(name: str, *candidates: str, **rest: Any) -> Policy:
    return Policy(
        name=name,
        components=candidates,
        candidates=candidates,
        default_model=candidates[0],
        rules=(),
        **rest,
    )


class SimWorker:
    """A worker that does nothing but exist."""

    host, port, api_key = "127.0.0.1", 1, "key"
    launch_command: tuple[str, ...] = ()
    measured: Mapping[str, int] = {}

    def __init__(self, engine: SimEngine, spec: WorkerSpec, pid: int) -> None:
        self._engine = engine
        self.spec = spec
        self.pid = pid
        self.exited: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self.stopping = False

    async def stop(self) -> bool:
        self.stopping = True
        if not self.exited.done():
            await asyncio.sleep(self._engine.stop_s)
        if self._engine.unkillable:
            return self.exited.done()
        self.end(0)
        return True

    def end(self, code: int) -> None:
        """The process ends."""
        self._engine.alive.pop(self.pid, None)
        if not self.exited.done():
            self._engine.memory_ends(self.pid)
            self.exited.set_result(Exit(code, ("last line",)))


@dataclass
class SimEngine:
    """Loads take `load_s` (by model, else the default) and end as `outcome` says."""

    load_s: float = 1.0
    stop_s: float = 0.1
    unkillable: bool = False
    load_s_of: dict[str, float] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    name: str = "simulated"
    last_pid: int = 100
    starts: list[str] = field(default_factory=list)
    starting: int = 0
    alive: dict[int, SimWorker] = field(default_factory=dict)
    #: Where processes take memory; they take `takes` of what is booked (by model, else all of it).
    memory: SimMemory | None = None
    takes: dict[str, float] = field(default_factory=dict)
    #: Models whose next load runs out of memory, as their engine says.
    runs_short: set[str] = field(default_factory=set)

    async def start(
        self,
        spec: WorkerSpec,
        progress: Callable[[float], None],
        launched: Callable[[int], None] = lambda pid: None,
    ) -> SimWorker:
        self.starts.append(spec.model)
        self.starting += 1
        self.last_pid += 1
        pid = self.last_pid
        launched(pid)
        try:
            load_s = self.load_s_of.get(spec.model, self.load_s)
            for step in range(4):
                await asyncio.sleep(load_s / 4)
                progress((step + 1) / 4)
                self.memory_grows(spec, pid, (step + 1) / 4)
            if spec.model in self.broken:
                raise LoadFailed(f"{spec.model} is broken")
            if spec.model in self.runs_short:
                self.runs_short.discard(spec.model)
                raise LoadFailed(f"{spec.model} ran out of memory", code=OUT_OF_MEMORY)
        except BaseException:
            self.memory_ends(pid)
            raise
        finally:
            self.starting -= 1
        self.alive[pid] = SimWorker(self, spec, pid)
        return self.alive[pid]

    def memory_grows(self, spec: WorkerSpec, pid: int, share: float) -> None:
        """A process has taken so much of what it takes in the end."""
        if self.memory is not None:
            share *= self.takes.get(spec.model, 1.0)
            self.memory.allocate(pid, {name: int(size * share) for name, size in spec.booking.items()})

    def memory_ends(self, pid: int) -> None:
        """A process has ended."""
        if self.memory is not None:
            self.memory.end(pid)

    def capabilities(self) -> Mapping[str, Any]:
        return {}

    def workers_of(self, name: str) -> list[SimWorker]:
        return [w for w in self.alive.values() if w.spec.model == name]


class SimPlacer:
    """Models need their size and nothing else: on the host, or on the GPU that their options name, else on
    the one with the most room, else split over two."""

    def __init__(self) -> None:
        self.shortages: list[str] = []
        self.extra: dict[str, int] = {}

    def reaches(self, device: DeviceInfo) -> bool:
        return True

    def canonical(self, options: LoadOptions) -> LoadOptions:
        return options

    def placements(
        self, model: Model, options: LoadOptions, settings: Settings, room: Mapping[str, int]
    ) -> Iterable[Placement]:
        needs = model.size_bytes + self.extra.get(model.name, 0)
        gpus = sorted((d for d in room if d != HOST_ID), key=lambda d: -room[d])
        if options.device is not None:
            gpus = list(options.device)
        if not gpus:
            yield Placement({HOST_ID: needs})
            return
        for gpu in gpus:
            yield Placement({gpu: needs})
        if options.device is None and len(gpus) > 1:
            both = max(room[gpus[0]] + room[gpus[1]], 1)
            first = min(max(needs * max(room[gpus[0]], 0) // both, 0), needs)
            yield Placement({gpus[0]: first, gpus[1]: needs - first})

    def spec(
        self, model: Model, options: LoadOptions, settings: Settings, placement: Placement
    ) -> WorkerSpec:
        return WorkerSpec(
            model=model.name,
            path=model.path,
            type=model.type,
            ctx_size=options.ctx_size or 4096,
            parallel=options.parallel or settings.parallel,
            booking=placement.booking,
            load_stall_s=settings.load_stall_timeout_s,
        )

    def measured(self, spec: WorkerSpec, held: Mapping[str, int]) -> None:
        pass

    def ran_short(self, spec: WorkerSpec) -> None:
        self.shortages.append(spec.model)
        self.extra[spec.model] = self.extra.get(spec.model, 0) + GIB


class House:
    """A reconciler with simulated workers and helpers to ask it things."""

    def __init__(
        self,
        *models: Model,
        settings: Settings | None = None,
        policies: tuple[Policy, ...] = (),
        engine: SimEngine | None = None,
        planner: Callable[..., Any] = plan,
        make: Callable[..., Reconciler] = Reconciler,
    ) -> None:
        self.engine = engine or SimEngine()
        self.placer = SimPlacer()
        self.published = 0
        self.samples_wanted = 0
        #: Gives the readings that decisions wait for. Without it, whoever waits for one waits on.
        self.sample: Callable[[], tuple[DeviceReading, ...]] | None = None
        self._sampling: asyncio.TimerHandle | None = None
        self._sampled_at, self._pause_s = float("-inf"), SAMPLE_S
        self.settings = settings or Settings()
        self.reconciler = make(
            self.engine,
            self.placer,
            self.settings,
            self._published,
            planner=planner,
            want_sample=self._wanted,
        )
        self.models = {m.name: m for m in models}
        self.policies = policies
        self.random = random.Random(0)
        self.reconciler.configure(policies=policies, lookup=by_every_name(models))

    def _published(self) -> None:
        self.published += 1

    def _wanted(self) -> None:
        self.samples_wanted += 1
        if self.sample is not None and self._sampling is None:
            loop = asyncio.get_running_loop()
            # Who still waits after a reading is given the next ones in ever longer steps.
            soon = loop.time() - self._sampled_at < 2 * self._pause_s
            self._pause_s = min(self._pause_s * 1.5, BUSY_S) if soon else SAMPLE_S
            self._sampling = loop.call_later(self._pause_s, self._sampled)

    def _sampled(self) -> None:
        self._sampling = None
        self._sampled_at = asyncio.get_running_loop().time()
        if self.sample is not None:
            self.reconciler.observe(self.sample())

    def set(self, **changes: Any) -> None:
        values = {name: getattr(self.settings, name) for name in Settings.__struct_fields__}
        self.settings = Settings(**(values | changes))
        self.reconciler.configure(settings=self.settings)

    def state(self, name: str) -> ResidentState | None:
        """What the last pass made of the model."""
        for resident in self.reconciler.table.of_model(name):
            if resident.state is ResidentState.READY and resident.drain is not None:
                return ResidentState.DRAINING
            return resident.state
        return None

    def resident(self) -> list[str]:
        """Models in the pools, oldest first."""
        return [
            r.model.name
            for r in self.reconciler.table.residents.values()
            if r.state is not ResidentState.EVICTING
        ]

    async def use(self, name: str, seconds: float = 0.0, **rest: Any) -> int:
        """One request: wait for the model, answer for a while. Returns the worker's pid."""
        lease = await self.reconciler.acquire(name, **rest)
        try:
            await asyncio.sleep(seconds)
            return lease.worker.pid
        finally:
            lease.release()

    def ask(self, name: str, seconds: float = 0.0, **rest: Any) -> asyncio.Task[int]:
        """`use` as a task."""
        return asyncio.ensure_future(self.use(name, seconds, **rest))

    def codes(self) -> list[str]:
        return [entry.code for entry in self.reconciler.feed.latest(500)]
