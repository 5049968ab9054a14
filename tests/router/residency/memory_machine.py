"""A state machine about memory: models of many sizes, on devices that lag, fail and are used by others.

Processes take what was planned for them, or a little less; so whatever goes beyond a device's memory is the
router's own doing, unless it could not know what other programs took meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from msgspec import structs

from router.catalog.options import LoadOptions
from router.devices.base import HOST_ID
from router.errors import InsufficientMemory, RouterError
from router.residency.table import Waiter
from router.residency.view import devices_view
from router.residency.world import RECOVERY_S, Action, Evict, Load, Refuse, Wants, Why
from router.service.sampling import Wanted, keep_reading
from router.settings.schema import Settings
from router.snapshot import DeviceState, ResidentState
from router.units import GIB, MIB
from tests.router.residency.machine import Client, Machine, WatchfulReconciler, check
from tests.support.sim_memory import BLIND_S, NEVER, SimDevice, SimMemory, gpu, host
from tests.support.simulation import House, SimEngine, model, policy

LOADING, READY, EVICTING = ResidentState.LOADING, ResidentState.READY, ResidentState.EVICTING

SIZES = {"A": 8, "B": 8, "C": 5, "D": 3, "E": 18, "F": 60}
"""GiB. E needs both GPUs, and F fits nowhere."""

MODELS = tuple(structs.replace(model(name), size_bytes=size * GIB) for name, size in SIZES.items())
NAMES = st.sampled_from(list(SIZES))
GPUS = st.sampled_from(["gpu0", "gpu1"])
DEVICES = st.sampled_from(["gpu0", "gpu1", "host"])
TOTALS: Mapping[str, int] = {"gpu0": 12 * GIB, "gpu1": 10 * GIB, "host": 16 * GIB}

BOUND_S = 30.0
"""load_queue_timeout_s in these runs."""


class MemoryReconciler(WatchfulReconciler):
    """Looks at victims, refusals and what loads take."""

    memory: SimMemory | None = None

    def _look_at(self, action: Action) -> None:
        if isinstance(action, Evict):
            self._look_at_victim(action)
        elif isinstance(action, Load):
            self._look_at_load(action)
        elif isinstance(action, Refuse) and isinstance(action.error, InsufficientMemory):
            self._look_at_refusal(self.table.waiters[action.waiter], action.error)

    def _apply(self, action: Action) -> None:
        if isinstance(action, Load) and self.memory is not None:
            proceeds = self.desired.settings.admission == "proceed"
            unread = {r.device.id for r in self.readings if r.free is None}
            self.memory.admitted(action.placement.booking, unread, at_risk=proceeds)
        super()._apply(action)

    def charged(self, device: str) -> int:
        """What every process of ours was planned to hold, until it has exited."""
        return sum(r.spec.booking.get(device, 0) for r in self.table.residents.values())

    def promised(self, device: str, held: Mapping[int, int]) -> int:
        """What processes hold, by pid, those that have ended too until the driver has it back; and what loads
        are still to take."""
        residents = self.table.residents.values()
        more = sum(max(r.spec.booking.get(device, 0) - held.get(r.pid or 0, 0), 0) for r in residents)
        return sum(held.values()) + more

    def room(self, device: str, besides: str) -> int | None:
        """What a load could take, by the sheet; None if nothing is known of the device."""
        reading = next(r for r in self.readings if r.device.id == device)
        residents = self.table.residents.values()
        charged = sum(r.charged.get(device, 0) for r in residents)
        reserved = sum(r.reserves.get(device, 0) for r in residents)
        reserved += sum(f.reserves.get(device, 0) for f in self.table.freed if reading.started < f.at + 2.0)
        intents = (i for name, i in self.table.intents.items() if name != besides)
        claims = sum(intent.placement.booking.get(device, 0) for intent in intents)
        settings = self.desired.settings
        margin = settings.vram_margin
        if settings.auto_evict:
            margin = max(margin, int((1 - settings.auto_evict_threshold_pct) * TOTALS[device]))
        bounds = [b - charged for b in (TOTALS[device], settings.vram_cap or None) if b is not None]
        if reading.free is not None:
            bounds.append(reading.free - reserved)
        return min(bounds) - claims - margin if bounds else None

    def _look_at_victim(self, action: Evict) -> None:
        victim = self.table.residents[action.resident]
        name = victim.model.name
        check(not victim.leases, "no_busy_victim", name)
        if action.why not in (Why.MAKE_ROOM, Why.PRESSURE):
            return
        check(name not in self.table.pinned, "no_pinned_victim", name)
        if action.why is not Why.MAKE_ROOM or action.room_for is None:
            return
        asking = action.room_for
        intent = self.table.intents.get(asking)
        check(intent is not None, "victims_are_for_somebody", asking)
        assert intent is not None
        booking = intent.placement.booking
        for device, needs in booking.items():
            check(needs <= TOTALS[device], "no_victim_for_the_impossible", (asking, device))
        if asking in self.table.short:
            short = list(booking)
        else:
            short = [d for d, n in booking.items() if (r := self.room(d, asking)) is not None and r < n]
        check(
            any(victim.charged.get(device, 0) for device in short),
            "victims_on_short_devices",
            (name, dict(victim.charged), asking, dict(booking), short),
        )

    def _look_at_refusal(self, waiter: Waiter, error: InsufficientMemory) -> None:
        """Whoever would have room if all of ours were gone waits for it."""
        settings = self.desired.settings
        is_bounded = settings.vram_cap or settings.auto_evict or self.table.pinned or self._placer.extra
        if self.memory is None or waiter.wants is not Wants.REQUEST or is_bounded:
            return
        options = waiter.options.over(self.table.options.get(waiter.model, LoadOptions()))
        now = self._loop.time()
        gpus = {name: device for name, device in self.memory.devices.items() if name != HOST_ID}
        for name, device in (gpus or self.memory.devices).items():
            if options.device and name not in options.device:
                continue
            is_told = device.others_settled_at + BLIND_S + RECOVERY_S < now and not device.was_lost
            room = device.total - device.others - settings.vram_margin
            needs = SIZES[waiter.model] * GIB
            check(not is_told or needs > room, "only_the_impossible_is_refused", (name, room, error))

    def _look_at_load(self, action: Load) -> None:
        if self.desired.settings.admission == "proceed":
            return
        since = min(w.id for w in self.table.waiting_for(action.model))
        for device, needs in action.placement.booking.items():
            left = TOTALS[device] - self.charged(device) - needs
            check(left >= 0, "charges_hold_until_exit", (action.model, device, left))
            older = {
                name: intent.placement.booking.get(device, 0)
                for name, intent in self.table.intents.items()
                if any(w.id < since for w in self.table.waiting_for(name))
            }
            check(left >= sum(older.values()), "claims_are_kept", (action.model, device, left, older))


class CrowdMachine(Machine):
    """Models are asked for, and devices are as they are."""

    reconciler_class: type[MemoryReconciler] = MemoryReconciler
    reconciler: MemoryReconciler
    use_first = True
    slowest_s = 0.05

    @initialize(
        seed=st.integers(0, 1 << 16),
        lags=st.tuples(st.sampled_from([0.0, 0.3, 2.0]), st.sampled_from([0.0, 2.0])),
        pid_lags=st.tuples(st.sampled_from([0.0, 1.0, NEVER]), st.sampled_from([0.0, NEVER])),
        others=st.integers(0, 3),
        has_gpus=st.sampled_from([True, True, True, False]),
    )
    def start(
        self,
        seed: int,
        lags: tuple[float, float],
        pid_lags: tuple[float, float],
        others: int,
        has_gpus: bool,
    ) -> None:
        async def make() -> None:
            gpus = [
                gpu(n, TOTALS[f"gpu{n}"], lag_s=lags[n], pid_lag_s=pid_lags[n], others=others * GIB)
                for n in range(2)
            ]
            memory = SimMemory(*(gpus if has_gpus else ()), host(TOTALS["host"]), seed=seed)
            memory.use_first, memory.slowest_s = self.use_first, self.slowest_s
            for device in memory.devices.values():
                self.adjust(device)
                device.note(0.0)
            self.memory = memory
            takes = {name: memory.random.uniform(0.8, 1.0) for name in SIZES}
            self.house = House(
                *MODELS,
                settings=Settings(
                    max_loaded_models=-1,
                    load_queue_timeout_s=int(BOUND_S),
                    evict_idle_timeout_s=-1,
                    max_parallel_loads=3,
                ),
                engine=SimEngine(load_s=1.0, memory=memory, takes=takes),
                planner=self.planner,
                make=self._make,
            )
            self.reconciler = self.house.reconciler
            first = await memory.read()
            self.reconciler.observe(first)
            self.reader = asyncio.ensure_future(
                keep_reading(memory, first, self.reconciler.observe, self._is_busy, self.wanted.wait)
            )

        self.run(make)

    def adjust(self, device: SimDevice) -> None:
        """Make a device more like those on which a fault shows."""

    def _make(self, *args: Any, **kwargs: Any) -> MemoryReconciler:
        self.wanted = Wanted()
        reconciler = self.reconciler_class(*args, **{**kwargs, "want_sample": self.wanted.set})
        reconciler.memory = self.memory
        return reconciler

    def _is_busy(self) -> bool:
        return any(r.state in (LOADING, EVICTING) for r in self.reconciler.table.residents.values())

    # What clients do

    @rule(name=NAMES, seconds=st.sampled_from([0.0, 0.1, 5.0]))
    def request(self, name: str, seconds: float) -> None:
        self.run(lambda: self.clients.append(Client(self.reconciler, name, seconds, Wants.REQUEST)))

    @rule(
        first=NAMES,
        second=NAMES,
        third=NAMES,
        gap=st.sampled_from([0.01, 0.2, 0.5]),
        later=st.sampled_from([0.2, 1.0, 2.5]),
    )
    def one_after_another(self, first: str, second: str, third: str, gap: float, later: float) -> None:
        """Three requests: the founding fault, and what is freed for one that another could take."""

        async def ask() -> None:
            for name, pause in ((first, gap), (second, later), (third, 0.0)):
                self.clients.append(Client(self.reconciler, name, 0.5, Wants.REQUEST))
                await asyncio.sleep(pause)

        self.run(ask)

    # What the world does

    @rule(device=GPUS, lag=st.sampled_from([0.0, 0.5, 2.0]), pid_lag=st.sampled_from([0.0, 1.0, NEVER]))
    def driver_changes(self, device: str, lag: float, pid_lag: float) -> None:
        if device in self.memory.devices:
            # From less to more would show what was, again, as no driver does by more than its lag.
            found = self.memory.devices[device]
            found.lag_s, found.pid_lag_s = lag, pid_lag

    @rule(device=GPUS, size=st.integers(0, 4))
    def others_hold(self, device: str, size: int) -> None:
        """They take what nobody of ours holds or was promised."""
        if device not in self.memory.devices:
            return
        found = self.memory.devices[device]
        promised = self.reconciler.promised(device, found.held)
        size = max(0, min(size * GIB, found.total - promised))
        self.run(lambda: self.memory.others_hold(device, size))

    @rule(seconds=st.sampled_from([0.1, 0.1, 2.0]))
    def stops_take(self, seconds: float) -> None:
        self.house.engine.stop_s = seconds

    @rule(seconds=st.sampled_from([0.3, 2.5, 10.0]))
    def time_passes(self, seconds: float) -> None:
        self.run(lambda: None, seconds)

    # What must always hold

    @invariant()
    def everything_holds(self) -> None:
        if not hasattr(self, "reader"):
            return
        self.raise_what_was_found()
        check(not self.memory.overruns, "no_device_over_memory", self.memory.overruns)
        check(not self.reader.done(), "readings_go_on")
        check(not self.reconciler.degraded, "never_degraded", self.reconciler.degraded)
        table = self.reconciler.table
        self.check_waiting_is_bounded(self.runner.get_loop().time())
        for resident in table.residents.values():
            for device, size in resident.reserves.items():
                check(0 <= size <= resident.charged.get(device, 0), "reserves_are_parts", resident.model.name)
        if not table.waiters:
            check(not any(self.reconciler.claims.values()), "no_claim_without_waiter", self.reconciler.claims)
        self._sums_hold()

    def _sums_hold(self) -> None:
        world = self.reconciler.table.world(self.reconciler.readings, self.house.placer)
        for view in devices_view(world, self.house.settings, self.reconciler.claims):
            parts = sum(s.bytes for s in view.segments)
            check(view.ours + view.reserved == parts, "shown_sums_hold", view)
            check(min(view.ours, view.reserved, view.others, view.claimed) >= 0, "shown_sums_hold", view)
            if view.state is not DeviceState.OK:
                continue
            assert view.total is not None
            assert view.free is not None
            shown = view.ours + view.others + view.free
            check(shown == view.total if view.others else shown >= view.total, "shown_sums_hold", view)
            if view.available is not None:
                check(view.available <= view.free, "shown_sums_hold", view)

    def teardown(self) -> None:
        try:
            if hasattr(self, "reader"):
                self.run(self._end, 0.0)
        finally:
            self.runner.close()

    async def _end(self) -> None:
        """Liveness: with loads, answers and drivers that come to their end, everybody is answered; then
        nothing is claimed, reserved or left."""
        tasks = await self.everyone_is_answered(BOUND_S + 60)
        self.memory.hangs = 0
        for device in self.memory.devices.values():
            device.is_lost = False
        await asyncio.sleep(10)
        table = self.reconciler.table
        check(not self.reconciler.claims and not table.intents, "nothing_claimed_at_rest", table.intents)
        kept = {r.model.name: r.reserves for r in table.residents.values() if any(r.reserves.values())}
        check(not kept, "nothing_reserved_at_rest", kept)
        self.raise_what_was_found()
        check(not self.memory.overruns, "no_device_over_memory", self.memory.overruns)
        self.reader.cancel()
        await self.reconciler.shutdown()
        check(not self.house.engine.alive and not table.residents, "nothing_left_running")
        await asyncio.gather(*tasks, self.reader, return_exceptions=True)


class MemoryMachine(CrowdMachine):
    """And everything else that may happen."""

    @rule(name=st.sampled_from(["C", "D"]), seconds=st.sampled_from([0.0, 1.0]))
    def ask_helper(self, name: str, seconds: float) -> None:
        self.run(lambda: self.clients.append(Client(self.reconciler, name, seconds, Wants.HELPER)))

    @precondition(lambda self: any(not c.task.done() for c in self.clients))
    @rule(which=st.integers(0, 50))
    def client_leaves(self, which: int) -> None:
        here = [c for c in self.clients if not c.task.done()]
        self.run(lambda: here[which % len(here)].task.cancel())

    # What users do

    @rule(name=NAMES, where=st.sampled_from([("gpu0",), ("gpu1",), ("gpu0",), None]))
    def load(self, name: str, where: tuple[str, ...] | None) -> None:
        if not all(device in self.memory.devices for device in where or ()):
            return

        async def load() -> None:
            with contextlib.suppress(RouterError):
                await self.reconciler.load(name, LoadOptions(device=where))

        self.run(lambda: self.loads.append(asyncio.ensure_future(load())))

    @rule(
        admission=st.sampled_from(["wait", "wait", "wait", "reject", "proceed"]),
        auto_evict=st.sampled_from([False, False, True]),
        cap=st.sampled_from([0, 0, 9]),
        margin=st.sampled_from([0, 512, 2048]),
    )
    def edit(self, admission: str, auto_evict: bool, cap: int, margin: int) -> None:
        changes = {
            "admission": admission,
            "auto_evict": auto_evict,
            "vram_cap": cap * GIB,
            "vram_margin": margin * MIB,
        }
        self.run(lambda: self.house.set(**changes))

    @rule(name=NAMES, pinned=st.booleans())
    def pin(self, name: str, pinned: bool) -> None:
        self.run(lambda: self.reconciler.pin(name, pinned))

    @rule(name=NAMES)
    def unload(self, name: str) -> None:
        self.run(lambda: self.reconciler.unload(name, wait=False))

    @rule(names=st.permutations(["A", "B", "C", "D"]))
    def edit_policies(self, names: list[str]) -> None:
        asked = (policy("p", *names[:2], helpers=(names[3],)),)
        self.run(lambda: self.reconciler.configure(policies=asked))

    @rule(device=DEVICES, lost=st.booleans())
    def device_fails(self, device: str, lost: bool) -> None:
        if device in self.memory.devices:
            found = self.memory.devices[device]
            found.is_lost, found.was_lost = lost, True
            self.run(lambda: None, 0.3)

    @rule(hangs=st.integers(1, 2))
    def driver_hangs(self, hangs: int) -> None:
        self.memory.hangs = hangs

    @rule(
        name=NAMES,
        seconds=st.sampled_from([0.2, 1.0, 4.0]),
        fault=st.sampled_from(["", "", "broken", "short"]),
    )
    def loads_become(self, name: str, seconds: float, fault: str) -> None:
        engine = self.house.engine
        engine.load_s_of[name] = seconds
        (engine.broken.add if fault == "broken" else engine.broken.discard)(name)
        (engine.runs_short.add if fault == "short" else engine.runs_short.discard)(name)

    @rule(name=NAMES)
    def worker_dies(self, name: str) -> None:
        def die() -> None:
            for worker in self.house.engine.workers_of(name):
                worker.end(-9)

        self.run(die)
