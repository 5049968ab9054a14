"""A state machine that does to the reconciler whatever users, clients, disks and workers do, in any order,
and looks after each step whether everything that must always hold does.

Every invariant has a name, so that a test of a mutation can ask which one caught it.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import structs

from router.catalog.model import EMBEDDING, by_every_name
from router.catalog.options import LoadOptions
from router.devices.base import DeviceInfo, DeviceReading
from router.errors import RouterError
from router.residency.plan import plan
from router.residency.reconciler import Reconciler
from router.residency.table import Lease, Resident
from router.residency.view import policies_view, pool_view, queue_view, residents_view
from router.residency.world import Action, Evict, Grant, Load, WaiterRow, Wants, Why
from router.settings.schema import Settings
from router.snapshot import ResidentState
from router.units import GIB
from tests.support.simulation import House, SimEngine, model, policy
from tests.support.virtual_loop import VirtualLoop, until_quiet

LOADING, READY, EVICTING = ResidentState.LOADING, ResidentState.READY, ResidentState.EVICTING

MODELS = (model("A"), model("B", aliases=("bee",)), model("C"), model("D"), model("E", type=EMBEDDING))
NAMES = st.sampled_from([m.name for m in MODELS])
HOST = DeviceInfo("host", "Host memory", "CPU", "host")

BOUND_S = 60.0
"""load_queue_timeout_s in these runs."""


class Violation(AssertionError):
    """An invariant does not hold. Its name comes first in the message."""

    def __init__(self, name: str, detail: object = "") -> None:
        super().__init__(f"{name}: {detail}")
        self.name = name


def check(holds: bool, name: str, detail: object = "") -> None:
    if not holds:
        raise Violation(name, detail)


class WatchfulReconciler(Reconciler):
    """Looks at each action before it is applied. Keeps what it finds: the reconciler survives faults."""

    violations: list[Violation]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.violations = []
        super().__init__(*args, **kwargs)

    def _apply(self, action: Action) -> None:
        try:
            self._look_at(action)
        except Violation as violation:
            self.violations.append(violation)
        super()._apply(action)

    def _look_at(self, action: Action) -> None:
        """Raise a violation if this must not happen."""
        raise NotImplementedError

    def _free_at_once(self, model: str) -> Resident | None:
        """What is granted without a pass is what a pass would grant."""
        free = super()._free_at_once(model)
        if free is not None:
            now = self._loop.time()
            asks = WaiterRow(id=10**9, model=model, wants=Wants.REQUEST, deadline=now + BOUND_S)
            world = structs.replace(self.table.world(self.readings, self._placer), waiters=(asks,))
            actions = plan(self.desired, world, now).actions
            if Grant(asks.id, free.id) not in actions:
                self.violations.append(Violation("granted_as_planned", actions))
        return free


class WatchedReconciler(WatchfulReconciler):
    """Looks at slots, and at who comes first."""

    gone: Counter[int]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.gone = Counter()
        super().__init__(*args, **kwargs)

    def _look_at(self, action: Action) -> None:
        table = self.table
        if isinstance(action, Evict):
            resident = table.residents[action.resident]
            check(not resident.leases, "no_busy_victim", resident.model.name)
            asked = action.why in (Why.UNLOADED, Why.OPTIONS, Why.DELETED, Why.SHUTDOWN)
            check(asked or resident.model.name not in table.pinned, "no_pinned_victim", resident.model.name)
            wanted = [w for w in table.waiting_for(resident.model.name) if not w.future.done()]
            check(
                asked or resident.state is not LOADING or not wanted, "no_loading_victim", resident.model.name
            )
        elif isinstance(action, Load):
            loading = sum(r.state is LOADING for r in table.residents.values())
            check(loading < self.desired.settings.max_parallel_loads, "loads_in_parallel", loading)
            alive = [r for r in table.of_model(action.model) if not r.stuck]
            check(not alive, "one_process_a_model", action.model)
            if action.standard:
                kind = self.desired.models[action.model].type
                limit = self.desired.limit(kind)
                held = sum(
                    r.standard and r.model.type == kind and not r.stuck for r in table.residents.values()
                )
                check(limit == -1 or held < limit, "no_load_beyond_limit", (held, limit))
                self._nobody_older_is_passed(action.model, kind)

    def _nobody_older_is_passed(self, name: str, kind: str) -> None:
        """A slot goes to whoever has waited for one the longest."""
        asking = [w for w in self.table.waiters.values() if w.wants is not Wants.HELPER]
        since = min(w.id for w in asking if w.model == name)
        here = {r.model.name for r in self.table.residents.values() if not r.stuck}
        passed = {
            w.model
            for w in asking
            if w.id < since
            and w.model not in here
            and w.model in self.desired.models
            and self.desired.models[w.model].type == kind
        }
        check(not passed, "first_come_first_loaded", (name, passed))

    def _book_gone(self, resident: Any, *, then_pass: bool = True) -> None:
        before = len(self.table.freed)
        super()._book_gone(resident, then_pass=False)
        self.gone[resident.id] += len(self.table.freed) - before
        if then_pass:
            self._pass()


class Client:
    """One request, from asking to the last byte."""

    def __init__(self, reconciler: Reconciler, name: str, seconds: float, wants: Wants) -> None:
        self.since = asyncio.get_running_loop().time()
        self.granted: float | None = None
        self.seconds = seconds
        self.wants = wants
        self.lease: Lease | None = None
        self.task = asyncio.ensure_future(self._run(reconciler, name, wants))

    async def _run(self, reconciler: Reconciler, name: str, wants: Wants) -> None:
        loop = asyncio.get_running_loop()
        try:
            self.lease = await reconciler.acquire(name, wants=wants)
        except RouterError:
            return
        self.granted = loop.time()
        try:
            # Ends with its answer, or when told to.
            await asyncio.wait([self.lease.cut], timeout=self.seconds)
        finally:
            self.lease.release()
            self.lease = None


class Machine(RuleBasedStateMachine):
    """Clients and a reconciler on a loop whose time is virtual. Subclasses of the machines swap in broken
    parts."""

    planner = staticmethod(plan)
    reconciler: WatchfulReconciler

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=VirtualLoop)
        self.clients: list[Client] = []
        self.loads: list[asyncio.Task[None]] = []

    def run(self, step: Any, seconds: float = 0.05) -> None:
        async def all_of_it() -> None:
            result = step()
            if asyncio.iscoroutine(result):
                await result
            await asyncio.sleep(seconds)
            await until_quiet()

        self.runner.run(all_of_it())

    def raise_what_was_found(self) -> None:
        for violation in self.reconciler.violations:
            raise violation

    def check_waiting_is_bounded(self, now: float) -> None:
        table = self.reconciler.table
        for waiter in table.waiters.values():
            admitted = any(r.state is LOADING for r in table.of_model(waiter.model))
            check(admitted or waiter.deadline >= now, "waiting_is_bounded", (waiter.model, waiter.wants))

    async def everyone_is_answered(self, within_s: float) -> list[asyncio.Task[None]]:
        """Liveness: with loads and answers that end, everybody is answered. Returns all tasks."""
        loop = asyncio.get_running_loop()
        tasks = [c.task for c in self.clients] + self.loads
        pending = [t for t in tasks if not t.done()]
        started = loop.time()
        if pending:
            await asyncio.wait(pending, timeout=within_s)
        check(all(t.done() for t in tasks), "everyone_is_answered", loop.time() - started)
        return tasks


class ResidencyMachine(Machine):
    """Models that need slots."""

    reconciler_class: type[WatchedReconciler] = WatchedReconciler
    reconciler: WatchedReconciler

    def __init__(self) -> None:
        super().__init__()
        self.catalog = {m.name: m for m in MODELS}

    @initialize(limit=st.sampled_from([1, 1, 2, 3]), autosize=st.booleans())
    def start(self, limit: int, autosize: bool) -> None:
        def make() -> None:
            self.house = House(
                *MODELS,
                settings=Settings(
                    max_loaded_models=limit,
                    llm_pool_autosize=autosize,
                    load_queue_timeout_s=int(BOUND_S),
                    evict_idle_timeout_s=-1,
                ),
                engine=SimEngine(load_s=1.0),
                planner=self.planner,
                make=self.reconciler_class,
            )
            self.reconciler = self.house.reconciler

        self.run(make)

    # What clients do

    @rule(name=NAMES, seconds=st.sampled_from([0.0, 0.1, 3.0, 20.0]), burst=st.integers(1, 4))
    def request(self, name: str, seconds: float, burst: int) -> None:
        def ask() -> None:
            for _ in range(burst):
                self.clients.append(Client(self.reconciler, name, seconds, Wants.REQUEST))

        self.run(ask)

    @rule(name=NAMES, seconds=st.sampled_from([0.0, 1.0]))
    def ask_helper(self, name: str, seconds: float) -> None:
        self.run(lambda: self.clients.append(Client(self.reconciler, name, seconds, Wants.HELPER)))

    @precondition(lambda self: any(not c.task.done() for c in self.clients))
    @rule(which=st.integers(0, 50), turns=st.integers(0, 3))
    def client_leaves(self, which: int, turns: int) -> None:
        here = [c for c in self.clients if not c.task.done()]

        async def leave() -> None:
            for _ in range(turns):
                await asyncio.sleep(0)
            here[which % len(here)].task.cancel()

        self.run(leave)

    @rule(name=NAMES, turns=st.integers(0, 4))
    def come_and_go(self, name: str, turns: int) -> None:
        """A client that leaves within a few turns of the loop: at, before or after its grant."""

        async def both() -> None:
            client = Client(self.reconciler, name, 5.0, Wants.REQUEST)
            self.clients.append(client)
            for _ in range(turns):
                await asyncio.sleep(0)
            client.task.cancel()

        self.run(both)

    # What users do

    @rule(name=NAMES, ctx=st.sampled_from([None, 2048, 8192]), parallel=st.sampled_from([None, 2]))
    def load(self, name: str, ctx: int | None, parallel: int | None) -> None:
        async def ask() -> None:
            options = LoadOptions(ctx_size=ctx, parallel=parallel)
            self.loads.append(asyncio.ensure_future(self.reconciler.load(name, options)))

        self.run(ask)

    @rule(
        limit=st.sampled_from([-1, 1, 1, 2, 3]),
        autosize=st.booleans(),
        idle=st.sampled_from([-1, 0, 5]),
        at_once=st.sampled_from([1, 2]),
    )
    def edit(self, limit: int, autosize: bool, idle: int, at_once: int) -> None:
        self.run(
            lambda: self.house.set(
                max_loaded_models=limit,
                llm_pool_autosize=autosize,
                evict_idle_timeout_s=idle,
                max_parallel_loads=at_once,
            )
        )

    @rule(first=NAMES, second=NAMES, seconds=st.sampled_from([0.0, 20.0]))
    def squeeze(self, first: str, second: str, seconds: float) -> None:
        """The limit falls while two models load."""

        async def ask_then_lower() -> None:
            self.house.set(max_loaded_models=3, max_parallel_loads=2)
            for name in (first, second):
                self.clients.append(Client(self.reconciler, name, seconds, Wants.REQUEST))
            await asyncio.sleep(0.1)
            self.house.set(max_loaded_models=1, llm_pool_autosize=False)

        self.run(ask_then_lower)

    @rule(names=st.permutations(["A", "B", "C", "D"]))
    def rush(self, names: list[str]) -> None:
        """Two models stand idle in a full pool, and two others are asked for at once."""

        async def ask_all() -> None:
            self.house.set(
                max_loaded_models=2,
                llm_pool_autosize=False,
                max_parallel_loads=2,
                evict_idle_timeout_s=-1,
            )
            for pair in (names[:2], names[2:]):
                await asyncio.sleep(3)
                for name in pair:
                    self.clients.append(Client(self.reconciler, name, 0.0, Wants.REQUEST))

        self.run(ask_all)

    @rule(
        first=st.lists(st.sampled_from(["A", "B", "bee", "C", "D", "nobody"]), min_size=1, max_size=3),
        helper=st.sampled_from([(), ("D",), ("A",)]),
        enabled=st.booleans(),
    )
    def edit_policies(self, first: list[str], helper: tuple[str, ...], enabled: bool) -> None:
        asked = (policy("p", *first, enabled=enabled, helpers=helper),)
        self.run(lambda: self.reconciler.configure(policies=asked))

    @rule(name=NAMES, pinned=st.booleans())
    def pin(self, name: str, pinned: bool) -> None:
        self.run(lambda: self.reconciler.pin(name, pinned))

    @rule(name=st.one_of(st.none(), NAMES), force=st.booleans())
    def unload(self, name: str | None, force: bool) -> None:
        self.run(lambda: self.reconciler.unload(name, wait=False, force=force))

    @rule(paused=st.booleans())
    def pause(self, paused: bool) -> None:
        self.run(lambda: self.reconciler.pause(paused))

    @rule(on=st.booleans(), free=st.sampled_from([0, 1, 4, 30]))
    def memory(self, on: bool, free: int) -> None:
        def sample() -> tuple[DeviceReading, ...]:
            started = asyncio.get_running_loop().time()
            return (DeviceReading(HOST, 32 * GIB, free * GIB, started),)

        async def read() -> None:
            self.house.set(auto_evict=on)
            self.house.sample = sample
            readings = sample()
            await asyncio.sleep(0.01)
            self.reconciler.observe(readings)

        self.run(read)

    # What the world does

    @rule(name=NAMES, there=st.booleans())
    def catalog_changes(self, name: str, there: bool) -> None:
        if there:
            self.catalog[name] = next(m for m in MODELS if m.name == name)
        else:
            self.catalog.pop(name, None)
        self.run(lambda: self.reconciler.configure(lookup=by_every_name(self.catalog.values())))

    @rule(name=NAMES, seconds=st.sampled_from([0.2, 1.0, 10.0]), broken=st.booleans())
    def loads_become(self, name: str, seconds: float, broken: bool) -> None:
        self.house.engine.load_s_of[name] = seconds
        (self.house.engine.broken.add if broken else self.house.engine.broken.discard)(name)

    @rule(name=NAMES)
    def worker_dies(self, name: str) -> None:
        def die() -> None:
            for worker in self.house.engine.workers_of(name):
                worker.end(-9)

        self.run(die)

    @rule(seconds=st.sampled_from([0.3, 2.0, 15.0]))
    def time_passes(self, seconds: float) -> None:
        self.run(lambda: None, seconds)

    # What must always hold

    @invariant()
    def everything_holds(self) -> None:
        if not hasattr(self, "reconciler"):
            return
        self.raise_what_was_found()
        self._look(self.runner.get_loop().time())

    def _look(self, now: float) -> None:
        table, desired = self.reconciler.table, self.reconciler.desired
        check(not self.reconciler.degraded, "never_degraded", self.reconciler.degraded)
        check(desired.settings == self.house.settings, "last_edit_wins", desired.settings)
        self._pools_are_in_their_limits()
        for resident in table.residents.values():
            check(
                len(resident.leases) <= resident.spec.parallel + 1, "grants_are_bounded", resident.model.name
            )
            if resident.drain is not None:
                check(bool(resident.leases), "only_busy_ones_drain", resident.model.name)
                check(self._has_reason_to_drain(resident), "drains_have_a_reason", resident.model.name)
        held = sum(c.lease is not None and not c.lease.cut.done() for c in self.clients)
        leased = sum(len(r.leases) for r in table.residents.values())
        check(held == leased, "leases_are_held_by_someone", (held, leased))
        waiting = sum(not c.task.done() and c.lease is None for c in self.clients)
        waiting += sum(not t.done() for t in self.loads)
        check(waiting == len(table.waiters), "waiters_are_clients", (waiting, len(table.waiters)))
        self.check_waiting_is_bounded(now)
        self._nobody_waits_for_nothing()
        self._idle_ones_make_room()
        check(all(n == 1 for n in self.reconciler.gone.values()), "freed_once", self.reconciler.gone)
        check(
            all(f.at <= now for f in table.freed) and len(self.house.engine.alive) <= len(table.residents),
            "processes_are_residents",
            (len(self.house.engine.alive), len(table.residents)),
        )
        lifeless = [r.model.name for r in table.residents.values() if r.task is None or r.task.done()]
        check(not lifeless, "residents_have_lives", lifeless)
        shown = residents_view(desired, table)
        check(len(shown) == len(table.residents), "snapshot_is_table")
        check(queue_view(table).waiting == len(table.waiters), "snapshot_is_table")
        pool = pool_view(desired, table)
        named = {
            c for p in policies_view(desired) if p.enabled for c in p.candidates if self._is_language_model(c)
        }
        check(pool.candidate_floor == len(named), "snapshot_is_one_moment", (pool, named))

    def _is_language_model(self, name: str) -> bool:
        known = self.reconciler.desired.models.get(name)
        return (known.type if known else self.reconciler.table.resident_types().get(name)) == "llm"

    def _pools_are_in_their_limits(self) -> None:
        table, desired = self.reconciler.table, self.reconciler.desired
        for kind in ("llm", "embedding"):
            limit = desired.limit(kind)
            if limit == -1:
                continue
            pool = [
                r
                for r in table.residents.values()
                if r.standard and r.model.type == kind and r.state is not EVICTING
            ]
            excused = sum(
                r.drain is not None
                or r.model.name in table.pinned
                or (r.state is LOADING and bool(table.waiting_for(r.model.name)))
                for r in pool
            )
            check(
                len(pool) - limit <= excused,
                "pool_within_limit",
                ([r.model.name for r in pool], limit, excused),
            )

    def _has_reason_to_drain(self, resident: Any) -> bool:
        table, desired = self.reconciler.table, self.reconciler.desired
        if resident.unload or resident.model.name not in desired.models:
            return True
        kind = resident.model.type
        pool = [
            r
            for r in table.residents.values()
            if r.standard and r.model.type == kind and r.state is not EVICTING
        ]
        limit = desired.limit(kind)
        surplus = limit != -1 and len(pool) > limit
        # A helper's load takes no place, but memory, once devices are read.
        others_wait = any(
            w.wants is not Wants.HELPER or self.house.sample is not None for w in table.waiters.values()
        )
        orphan = not resident.standard
        return surplus or others_wait or orphan

    def _nobody_waits_for_nothing(self) -> None:
        """A ready model with room and no reason to drain leaves nobody waiting for it, unless it would have
        to become standard first, or waits to be reloaded."""
        table = self.reconciler.table
        if math.isfinite(table.wanted_since):
            # Until it is there, whoever is likely to go takes nobody new.
            return
        for resident in table.residents.values():
            if resident.state is not READY or resident.drain is not None:
                continue
            if len(resident.leases) > resident.spec.parallel:
                continue
            stuck = [
                w
                for w in table.waiting_for(resident.model.name)
                if resident.standard and w.wants is Wants.REQUEST
            ]
            check(not stuck, "ready_serves_its_queue", resident.model.name)

    def _idle_ones_make_room(self) -> None:
        """Each load that waits for a slot has one coming, as long as idle models hold any."""
        table, desired = self.reconciler.table, self.reconciler.desired
        loading = sum(r.state is LOADING for r in table.residents.values())
        here = {r.model.name for r in table.residents.values()}
        limit = desired.limit("llm")
        # A load for a helper takes no slot. Who asked for the same model later takes one when it is there.
        first: dict[str, Wants] = {}
        for waiter in table.waiters.values():
            first.setdefault(waiter.model, waiter.wants)
        waiting = {
            model
            for model, wants in first.items()
            if wants is not Wants.HELPER and model not in here and self._is_language_model(model)
        }
        # Until a newer reading of the devices has come, nobody is sent away.
        if limit == -1 or table.paused or not waiting or math.isfinite(table.wanted_since):
            return
        held = [r for r in table.residents.values() if r.standard and r.model.type == "llm" and not r.stuck]
        coming = limit - sum(r.state is not EVICTING and r.drain is None for r in held)
        idle = [
            r.model.name
            for r in held
            if r.state is READY
            and not r.leases
            and r.model.name not in table.pinned
            and not table.waiting_for(r.model.name)
        ]
        needed = min(len(waiting), desired.settings.max_parallel_loads - loading)
        check(needed <= coming or not idle, "idle_ones_make_room", (waiting, coming, idle))

    def teardown(self) -> None:
        if not hasattr(self, "reconciler"):
            self.runner.close()
            return
        try:
            self.run(self._end, 0.0)
        finally:
            self.runner.close()

    async def _end(self) -> None:
        """Everybody is answered; then nothing is left."""
        tasks = await self.everyone_is_answered(BOUND_S + 200)
        self.raise_what_was_found()
        await self.reconciler.shutdown()
        check(not self.house.engine.alive and not self.house.engine.starting, "nothing_left_running")
        check(not self.reconciler.table.residents, "nothing_left_running")
        left = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        check(not left, "no_task_left", left)
        await asyncio.gather(*tasks, return_exceptions=True)
