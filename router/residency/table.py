"""The actual state: residents, leases and waiters. Changed only synchronously, on the loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from router.catalog.model import Model
from router.catalog.options import NO_OPTIONS, LoadOptions
from router.devices.base import DeviceReading
from router.engines.base import Worker, WorkerSpec
from router.residency.failures import Failures
from router.residency.world import Drain, Freed, ResidentRow, WaiterRow, Wants, World
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
        standard: bool,
        now: float,
        gone: asyncio.Future[None],
    ) -> None:
        self.id = id
        self.model = model
        self.spec = spec
        self.options = options
        self.standard = standard
        self.state = ResidentState.LOADING
        self.leases: set[Lease] = set()
        self.load_started = now
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
            bytes=self.spec.booking,
            newcomer=self.newcomer,
            unload=self.unload,
            unreachable=self.unreachable,
            was_draining=self.drain is not None,
            stuck=self.stuck,
            keep_alive_s=self.keep_alive_s,
        )


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
        self.freed: list[Freed] = []
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

    def charged(self) -> dict[str, int]:
        """Planned bytes of all residents by device id; a process counts until it has gone."""
        total: dict[str, int] = {}
        for resident in self.residents.values():
            for device, count in resident.spec.booking.items():
                total[device] = total.get(device, 0) + count
        return total

    def world(self, readings: tuple[DeviceReading, ...]) -> World:
        """The frozen picture that `plan` looks at."""
        return World(
            residents=tuple(r.row() for r in self.residents.values()),
            waiters=tuple(w.row() for w in self.waiters.values()),
            pinned=frozenset(self.pinned),
            failures=self.failures.rows(),
            readings=readings,
            freed=tuple(self.freed),
            paused=self.paused,
            closing=self.closing,
        )
