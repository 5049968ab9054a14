"""The plan: from what is desired and what is, what to do now. Pure: no clock, no I/O, no await.

All policy of residency lives here. One pass goes through these steps, in this order:

1. refuse the waiters that nothing can help (time is up, the model is gone or keeps failing);
2. serve those who waited for a load that has ended (they *boarded* it), before anything drains;
3. send away what has a reason of its own to go (unload, deleted, unreachable, no membership left);
4. shrink each pool that is over its limit;
5. serve the queue in order of arrival, choosing victims for the loads that need room;
6. unload what was idle for too long, or what memory pressure asks for.

A draining resident is not a state that someone set: it is the outcome of this pass, derived anew each time.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from router.catalog.options import LoadOptions
from router.errors import RouterError, ShuttingDown, Unavailable
from router.residency import refusals
from router.residency.admitting import Admitting, Preview
from router.residency.board import EVICTING, LOADING, READY, Planned, agrees
from router.residency.desire import Desired
from router.residency.world import BeginStandard, Plan, Wait, WaiterRow, Wants, Why, World
from router.settings.schema import UNLIMITED


def plan(desired: Desired, world: World, now: float) -> Plan:
    """What to do at `now` (seconds on the loop's clock)."""
    return _Planner(desired, world, now).run()


def preview(desired: Desired, world: World, now: float, model: str, options: LoadOptions) -> Preview:
    """What a request for the model would do at `now`, if it came alone.

    Raises:
        RouterError: the model cannot be laid out with these options.
    """
    waiter = WaiterRow(id=-1, model=model, wants=Wants.LOAD, deadline=now + 1, options=options)
    return _Planner(desired, structs.replace(world, waiters=(waiter,)), now).preview(waiter)


class _Planner(Admitting):
    def run(self) -> Plan:
        if self.world.closing:
            for waiter in list(self.waiting.values()):
                self._refuse(waiter, ShuttingDown("Lemon Tray is shutting down."))
        else:
            self._refuse_hopeless()
            self._serve_boarded()
            self._send_away()
            for model_type in list(self.by_type):
                self._shrink(model_type)
            self._serve_queue()
            self._unload_idle()
            self._relieve_pressure()
        self.deadlines += [w.deadline for w in self.waiting.values() if not self._is_admitted(w)]
        return Plan(
            actions=tuple(self.actions),
            draining={r.row.id: r.drain for r in self.residents if r.drain and r.state is READY},
            next_deadline=min(self.deadlines, default=None),
            blocked=self.blocked,
            intents=self.intents,
            claims=self.memory.claims,
            wants_sample=self.wants_sample,
        )

    # What nothing can help

    def _refuse_hopeless(self) -> None:
        for waiter in list(self.waiting.values()):
            error = self._hopeless(waiter)
            if error is not None:
                self._refuse(waiter, error)

    def _hopeless(self, waiter: WaiterRow) -> RouterError | None:
        resident = self._resident_of(waiter.model)
        if resident is None:
            if waiter.model not in self.desired.models:
                return refusals.gone(waiter)
            failure = self.world.failures.get(waiter.model)
            if failure is not None and failure.until > self.now and waiter.wants is not Wants.LOAD:
                return refusals.failed_before(waiter.model, failure, self.now)
        if waiter.deadline <= self.now and not self._is_admitted(waiter):
            return Unavailable(
                f"{waiter.model} was not free within the time that a request may wait. Try again later.",
                code="queue_timeout",
                retry_after_s=30,
            )
        return None

    def _is_admitted(self, waiter: WaiterRow) -> bool:
        """Its load is under way, so the bound on waiting for admission no longer applies. A helper's always
        does: the request behind it waits too."""
        resident = self._resident_of(waiter.model)
        return resident is not None and resident.state is LOADING and waiter.wants is not Wants.HELPER

    # Those who waited for a load

    def _serve_boarded(self) -> None:
        ready = {r.row.id: r for r in self.residents if r.state is READY}
        for waiter in list(self.waiting.values()):
            resident = ready.get(waiter.boarded)
            if resident is None or not agrees(waiter, resident):
                continue
            # A load for helpers alone took no slot in the pool: a request must take one in its own turn.
            has_slot = resident.standard or waiter.wants is Wants.HELPER
            if has_slot and self._can_grant(waiter, resident):
                self._grant(waiter, resident)

    # Reasons of their own

    def _send_away(self) -> None:
        for resident in self.residents:
            if resident.state is EVICTING:
                continue
            if resident.row.unload:
                self._let_go(resident, Why.UNLOADED)
            elif resident.row.unreachable:
                self._let_go(resident, Why.UNREACHABLE)
            elif resident.row.model not in self.desired.models:
                # A load that somebody waits for goes on: the file was there when it began.
                if resident.state is READY or self._is_unwanted(resident):
                    self._let_go(resident, Why.DELETED)
            elif resident.state is READY and not resident.standard and not self._is_helper(resident):
                if resident.pinned:
                    resident.standard = True
                    self.actions.append(BeginStandard(resident.row.id))
                elif not self._waiters(resident):
                    self._let_go(resident, Why.NO_MEMBERSHIP)

    def _shrink(self, model_type: str) -> None:
        limit = self.desired.limit(model_type)
        if limit == UNLIMITED:
            return
        members = [r for r in self.by_type[model_type] if r.in_pool]
        surplus = len(members) - limit - sum(r.drain is not None for r in members)
        if surplus <= 0:
            return
        staying = [r for r in members if r.drain is None]
        unwanted = sorted((r for r in staying if self._is_unwanted_load(r)), key=lambda r: -r.row.id)
        free = [r for r in staying if r.state is READY and not r.pinned]
        idle = sorted(
            (r for r in free if not r.standard_leases),
            key=lambda r: (
                not (r.row.newcomer and self._is_unwanted(r)),
                not self._is_unwanted(r),
                r.row.use_order,
            ),
        )
        busy = sorted(
            (r for r in free if r.standard_leases), key=lambda r: (not r.row.was_draining, r.row.use_order)
        )
        for victim in (unwanted + idle + busy)[:surplus]:
            self._end_standard(victim, Why.COUNT_LIMIT)

    # The queue

    def _serve_queue(self) -> None:
        for waiter in list(self.waiting.values()):
            if waiter.id not in self.waiting:
                continue
            resident = self._resident_of(waiter.model)
            if resident is None:
                # What the first who asks for a model finds holds for all who ask for it.
                if waiter.model not in self.claimed:
                    self._admit(waiter)
            elif resident.state is READY:
                self._serve(waiter, resident)
            elif resident.state is LOADING:
                self._join(waiter, resident)
            else:
                self._claim(waiter.model, resident.row.type, "waits for its old process to end")

    def _serve(self, waiter: WaiterRow, resident: Planned) -> None:
        model, model_type = resident.row.model, resident.row.type
        if waiter.wants is Wants.LOAD and not agrees(waiter, resident):
            self._reload(waiter, resident)
            return
        if resident.drain is not None and (waiter.wants is not Wants.HELPER or not self._is_helper(resident)):
            self._claim(model, model_type, "is unloaded first, and then loaded again", brief=False)
            return
        if resident.spoken_for:
            self._claim(model, model_type, "waits for a reading of the devices")
            return
        if waiter.wants is not Wants.HELPER and not resident.standard:
            if model in self.claimed or not self._take_slot(model, model_type):
                return
            resident.standard = True
        if self._can_grant(waiter, resident):
            self._grant(waiter, resident)
        else:
            resident.wanted_ahead = True
            slots = resident.row.slots
            taken = "its slot is" if slots == 1 else f"all its {slots} slots are"
            self.blocked[model] = Wait(f"{model} has more requests than it can answer: {taken} taken")

    def _join(self, waiter: WaiterRow, resident: Planned) -> None:
        if waiter.wants is Wants.LOAD and not agrees(waiter, resident):
            others = (w for w in self._waiters(resident) if agrees(w, resident))
            if not any(others):
                self._reload(waiter, resident)
                return
        resident.wanted_ahead = True
        self.blocked[waiter.model] = Wait(f"{waiter.model} is loading")

    def _reload(self, waiter: WaiterRow, resident: Planned) -> None:
        """Load a model anew, with the options that the waiter names, if that is possible."""
        if resident.drain is None and self._can_reload(waiter, resident):
            self._let_go(resident, Why.OPTIONS)
        if waiter.id in self.waiting:
            self._claim(resident.row.model, resident.row.type, "is reloaded with other options")

    # Idle, and pressure

    def _unload_idle(self) -> None:
        for resident in self._idle_now():
            keep = self.desired.keep_s(resident.row.keep_alive_s)
            if keep < 0 or not resident.standard:
                continue
            deadline = resident.row.last_use + keep
            if self.now >= deadline:
                self._end_standard(resident, Why.IDLE)
            else:
                self.deadlines.append(deadline)

    def _relieve_pressure(self) -> None:
        if not self.settings.auto_evict:
            return
        for reading in self.world.readings:
            if not reading.total or reading.free is None:
                continue
            device = reading.device.id
            floor = reading.total * (1 - self.settings.auto_evict_threshold_pct)
            coming = sum(f.bytes.get(device, 0) for f in self.world.freed if f.at >= reading.started)
            coming += sum(r.row.bytes.get(device, 0) for r in self.residents if r.state is EVICTING)
            short = floor - reading.free - coming
            if short <= 0:
                continue
            ceiling = reading.total - floor
            victims = [
                r
                for r in self._idle_now()
                # A model that alone is above the ceiling is not unloaded for the pressure it makes itself.
                if 0 < r.row.bytes.get(device, 0) <= ceiling and not self._is_helper(r)
            ]
            for victim in _fewest(sorted(victims, key=self._pressure_order, reverse=True), device, short):
                self._let_go(victim, Why.PRESSURE)

    def _pressure_order(self, resident: Planned) -> float:
        """Idle time over what loading it again would cost."""
        cost = max(resident.row.load_s, 0.001) * resident.row.evict_weight
        return (self.now - resident.row.last_use) / cost

    def _idle_now(self) -> Iterator[Planned]:
        """READY, held and asked for by nobody, not pinned."""
        for resident in self.residents:
            if (
                resident.state is READY
                and resident.drain is None
                and not resident.leases
                and not resident.pinned
                and self._is_unwanted(resident)
            ):
                yield resident


def _fewest(ordered: list[Planned], device: str, short: float) -> list[Planned]:
    """The first few that free enough on the device, less those that turn out not to be needed."""
    chosen: list[Planned] = []
    for victim in ordered:
        if short <= 0:
            break
        chosen.append(victim)
        short -= victim.row.bytes.get(device, 0)
    for victim in reversed(chosen.copy()):
        if short + victim.row.bytes.get(device, 0) <= 0:
            chosen.remove(victim)
            short += victim.row.bytes.get(device, 0)
    return chosen
