"""The actual state: residents, leases and waiters. Changed only synchronously, on the loop."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from router.catalog.model import Model
from router.catalog.options import NO_OPTIONS, LoadOptions
from router.devices.base import DeviceReading
from router.engines.base import Worker, WorkerSpec
from router.residency.failures import Failures
from router.residency.placement import Placer
from router.residency.world import (
    RECOVERY_S,
    SETTLE_S,
    Drain,
    Freed,
    Intent,
    ResidentRow,
    WaiterRow,
    Wants,
    World,
)
from router.snapshot import ResidentState


class Lease:
    """One request's hold on a resident, from grant to the last byte."""

    def __init__(
        self,
        resident: Resident,
        helper: bool,
        cut: asyncio.Future[str],
        on_release: Callable[[Lease, int, float], None],
        on_condemn: Callable[[Resident], None],
    ) -> None:
        if resident.worker is None:
            raise ValueError(f"{resident.model.name} has no worker to lease")
        self.resident = resident
        self.model = resident.model
        self.worker = resident.worker
        self.helper = helper
        self._cut = cut
        self._on_release: Callable[[Lease, int, float], None] | None = on_release
        self._on_condemn = on_condemn

    @property
    def cut(self) -> asyncio.Future[str]:
        """Done when the answer must end now; the result says why."""
        return self._cut

    def end(self, why: str) -> None:
        """Ask whoever holds the lease to end its answer."""
        if not self._cut.done():
            self._cut.set_result(why)

    def condemn(self) -> None:
        """Tell that the worker refuses connections although its process runs: it is to be replaced."""
        self._on_condemn(self.resident)

    def release(self, *, tokens: int = 0, seconds: float = 0.0) -> None:
        """Give the hold back. Only the first call counts."""
        on_release, self._on_release = self._on_release, None
        if on_release is not None:
            on_release(self, tokens, seconds)


class Resident:
    """A model with a worker process, from the decision to load it until the process has gone.

    Times are seconds on the loop's clock, those ending in `_wall` Unix seconds.
    """

    def __init__(
        self,
        id: int,
        model: Model,
        spec: WorkerSpec,
        options: LoadOptions,
        asked: LoadOptions,
        standard: bool,
        now: float,
        gone: asyncio.Future[None],
    ) -> None:
        self.id = id
        self.model = model
        self.spec = spec
        self.options = options
        self.asked = asked
        self.standard = standard
        self.state = ResidentState.LOADING
        self.leases: set[Lease] = set()
        self.load_started = now
        self.ready_at = 0.0
        self.pid: int | None = None
        #: Bytes by device id: planned or measured, whichever is more; and what of them no sample has shown.
        self.charged: Mapping[str, int] = spec.booking
        self.reserves: Mapping[str, int] = spec.booking
        self.outgrown: set[str] = set()
        self.load_s = 0.0
        self.last_use = now
        self.last_use_wall = 0.0
        self.use_order = 0
        self.progress = 0.0
        self.worker: Worker | None = None
        self.newcomer = False
        self.unload = False
        self.unreachable = False
        self.stuck = False
        self.served = 0
        self.drain: Drain | None = None
        self.evicted: Drain | None = None
        self.keep_alive_s: float | None = None
        self.tokens_per_s: float | None = None
        self.gone = gone
        self.stop = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    @property
    def wanted_keep_alive_s(self) -> float | None:
        """How long it is to stay when idle, by its last client, else by its options; None if neither says."""
        return self.options.keep_alive if self.keep_alive_s is None else self.keep_alive_s

    @property
    def can_lease(self) -> bool:
        """A slot that nothing stands against is free: it is neither to go nor a helper, and has settled."""
        return (
            self.state is ResidentState.READY
            and self.standard
            and self.drain is None
            and not (self.unload or self.unreachable or self.stuck or self.newcomer)
            and len(self.leases) <= self.spec.parallel
        )

    @property
    def helper_leases(self) -> int:
        return sum(lease.helper for lease in self.leases)

    def row(self) -> ResidentRow:
        return ResidentRow(
            id=self.id,
            model=self.model.name,
            type=self.model.type,
            state=self.state,
            standard=self.standard,
            leases=len(self.leases),
            helper_leases=self.helper_leases,
            slots=self.spec.parallel,
            last_use=self.last_use,
            use_order=self.use_order,
            load_s=self.load_s,
            options=self.options,
            asked=self.asked,
            bytes=self.charged,
            reserves=self.reserves,
            settles_at=self.ready_at + SETTLE_S if self.reserves and self.ready_at else 0.0,
            progress=self.progress,
            newcomer=self.newcomer,
            unload=self.unload,
            unreachable=self.unreachable,
            was_draining=self.drain is not None,
            stuck=self.stuck,
            keep_alive_s=self.wanted_keep_alive_s,
            evict_weight=self.options.evict_weight or 1.0,
        )

    def measure(self, device: str, size: int) -> None:
        """A device was seen to hold so many bytes of this process."""
        if size > self.charged.get(device, 0):
            self.charged = {**self.charged, device: size}

    def take(self, reading: DeviceReading) -> None:
        """Learn from a sample of a device what the process holds there, and what it is still to take.

        A reserve is lessened only by what the same sample shows of the process, and ends with one that was
        begun long enough after the load to show all of it.
        """
        device = reading.device.id
        shown = reading.by_pid.get(self.pid, 0) if self.pid is not None else 0
        if shown:
            self.measure(device, shown)
        if device not in self.reserves:
            return
        settled = self.ready_at and reading.started >= self.ready_at + SETTLE_S
        left = 0 if settled else self.spec.booking.get(device, 0) - shown
        # Kept at nothing until then: drivers are late by more at one time than at another.
        others = {name: size for name, size in self.reserves.items() if name != device}
        self.reserves = others if settled else {**others, device: max(left, 0)}


class Waiter:
    """One waiting request. Its future gets a `Lease`, or None for a load."""

    def __init__(
        self,
        id: int,
        model: str,
        wants: Wants,
        deadline: float,
        future: asyncio.Future[Lease | None],
        *,
        options: LoadOptions = NO_OPTIONS,
        policy: str | None = None,
        body_bytes: int = 0,
        keep_alive_s: float | None = None,
    ) -> None:
        self.id = id
        self.model = model
        self.wants = wants
        self.deadline = deadline
        self.future = future
        self.options = options
        self.policy = policy
        self.body_bytes = body_bytes
        self.keep_alive_s = keep_alive_s
        self.boarded = 0

    def row(self) -> WaiterRow:
        return WaiterRow(
            id=self.id,
            model=self.model,
            wants=self.wants,
            deadline=self.deadline,
            options=self.options,
            boarded=self.boarded,
            policy=self.policy,
        )


class Table:
    """All that is actual. `residents` and `waiters` are in order of age."""

    def __init__(self) -> None:
        self.residents: dict[int, Resident] = {}
        self.waiters: dict[int, Waiter] = {}
        self.pinned: set[str] = set()
        self.failures = Failures()
        self.options: dict[str, LoadOptions] = {}
        self.intents: Mapping[str, Intent] = {}
        self.short: set[str] = set()
        self.wanted_since = math.inf
        self.freed: list[Freed] = []
        self.totals: Mapping[str, int] = {}
        self.paused = False
        self.resumes_on_request = False
        self.closing = False
        self._last_id = 0

    def next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def of_model(self, model: str) -> Iterator[Resident]:
        return (r for r in self.residents.values() if r.model.name == model)

    def waiting_for(self, model: str) -> list[Waiter]:
        return [w for w in self.waiters.values() if w.model == model]

    def waiting_by_model(self) -> dict[str, int]:
        """How many wait for each model that somebody waits for."""
        return dict(Counter(w.model for w in self.waiters.values()))

    @property
    def waiting_bytes(self) -> int:
        return sum(w.body_bytes for w in self.waiters.values())

    def resident_types(self) -> Mapping[str, str]:
        return {r.model.name: r.model.type for r in self.residents.values()}

    def observe(self, readings: tuple[DeviceReading, ...], now: float) -> None:
        """Learn from new readings."""
        totals = {r.device.id: r.total for r in readings if r.total is not None}
        if totals.items() - self.totals.items():
            self.totals = {**self.totals, **totals}
        for reading in readings:
            for resident in self.residents.values():
                resident.take(reading)
        self.freed = [f for f in self.freed if f.at > now - RECOVERY_S]

    def world(self, readings: tuple[DeviceReading, ...], placer: Placer, *, waiters: bool = True) -> World:
        """The frozen picture that `plan` looks at. Without waiters it is cheaper, and enough to be shown."""
        return World(
            placer=placer,
            residents=tuple(r.row() for r in self.residents.values()),
            waiters=tuple(w.row() for w in self.waiters.values()) if waiters else (),
            pinned=frozenset(self.pinned),
            failures=self.failures.rows(),
            readings=readings,
            totals=self.totals,
            freed=tuple(self.freed),
            options=self.options,
            intents=self.intents,
            wanted_since=self.wanted_since,
            short=frozenset(self.short),
            paused=self.paused,
            closing=self.closing,
        )
