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

import functools
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

from msgspec import Struct, structs

from router.catalog.model import Model
from router.catalog.options import CTX_AUTO, NO_OPTIONS, LoadOptions
from router.errors import RouterError, ShuttingDown, Unavailable
from router.residency import refusals
from router.residency.admission import Ask, Choice, Memory, Outcome, choose, fewest
from router.residency.desire import Desired
from router.residency.placement import Placement
from router.residency.world import (
    RECOVERY_S,
    Action,
    BeginStandard,
    Drain,
    EndStandard,
    Evict,
    Grant,
    Intent,
    Load,
    Plan,
    Refuse,
    ResidentRow,
    Wait,
    WaiterRow,
    Wants,
    Why,
    World,
)
from router.settings.schema import UNLIMITED
from router.snapshot import ResidentState

FORGIVEN_AFTER_S = 300.0
"""Seconds after its back-off ends until a model that failed may again have another one unload for it."""

LOADING, READY, EVICTING = ResidentState.LOADING, ResidentState.READY, ResidentState.EVICTING


def plan(desired: Desired, world: World, now: float) -> Plan:
    """What to do at `now` (seconds on the loop's clock)."""
    return _Planner(desired, world, now).run()


class Preview(Struct, frozen=True):
    """What loading a model would take now, and what would have to happen first. Nothing is done.

    Attributes:
        placement: where it would go; None if it cannot be laid out.
        verdict: `fits`, `evicts`, `waits`, `refused` or `loaded`.
        victims: names of models that would have to go.
        devices: the table of `refusals.device_table`.
        reason: why it is refused or waits, or what it would do, in a sentence.
    """

    placement: Placement | None
    verdict: str
    victims: tuple[str, ...]
    devices: tuple[Mapping[str, Any], ...]
    reason: str


def preview(desired: Desired, world: World, now: float, model: str, options: LoadOptions) -> Preview:
    """What a request for the model would do at `now`, if it came alone.

    Raises:
        RouterError: the model cannot be laid out with these options.
    """
    waiter = WaiterRow(id=-1, model=model, wants=Wants.LOAD, deadline=now + 1, options=options)
    return _Planner(desired, structs.replace(world, waiters=(waiter,)), now).preview(waiter)


class _Resident:
    """A resident as this plan leaves it."""

    def __init__(self, row: ResidentRow, pinned: bool) -> None:
        self.row = row
        self.pinned = pinned
        self.state = row.state
        self.standard = row.standard
        self.leases = row.leases
        self.helper_leases = row.helper_leases
        self.drain: Drain | None = None
        self.wanted_ahead = False
        self.spoken_for = False

    @property
    def standard_leases(self) -> int:
        return self.leases - self.helper_leases

    @property
    def holds(self) -> Mapping[str, int]:
        """Bytes charged, by device id."""
        return self.row.bytes

    @property
    def in_pool(self) -> bool:
        """Counts in the standard pool of its type."""
        return self.standard and self.state in (LOADING, READY)

    @property
    def holds_slot(self) -> bool:
        """No other load may have its slot yet: a process that is being stopped has not gone."""
        return self.standard and (self.state is not EVICTING or not self.row.stuck)

    @property
    def is_leaving(self) -> bool:
        return self.holds_slot and (self.state is EVICTING or self.drain is not None)


class _Slot(Enum):
    """Whether a pool has a slot for a load: now, when somebody has gone who goes anyway, or not."""

    OPEN = "open"
    COMING = "coming"
    FULL = "full"


class _Planner:
    def __init__(self, desired: Desired, world: World, now: float) -> None:
        self.desired = desired
        self.settings = desired.settings
        self.world = world
        self.now = now
        self.residents: list[_Resident] = []
        self.by_name: dict[str, list[_Resident]] = defaultdict(list)
        self.by_type: dict[str, list[_Resident]] = defaultdict(list)
        for row in world.residents:
            self._add(row)
        self.waiting: dict[int, WaiterRow] = {w.id: w for w in world.waiters}
        self.by_model: dict[str, list[WaiterRow]] = defaultdict(list)
        for waiter in world.waiters:
            self.by_model[waiter.model].append(waiter)
        self.actions: list[Action] = []
        self.deadlines: list[float] = []
        self.blocked: dict[str, Wait] = {}
        self.claims: Counter[str] = Counter()
        self.claimed: set[str] = set()
        self.memory = Memory(world, desired.settings, now)
        self.intents: dict[str, Intent] = {}
        self.wants_sample = False

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
            if resident is None or not _agrees(waiter, resident):
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

    def _serve(self, waiter: WaiterRow, resident: _Resident) -> None:
        model, model_type = resident.row.model, resident.row.type
        if waiter.wants is Wants.LOAD and not _agrees(waiter, resident):
            if resident.drain is None and self._can_reload(waiter, resident):
                self._let_go(resident, Why.OPTIONS)
            if waiter.id in self.waiting:
                self._claim(model, model_type, "is reloaded with other options")
            return
        if resident.drain is not None and (waiter.wants is not Wants.HELPER or not self._is_helper(resident)):
            self._claim(model, model_type, "unloads first", brief=False)
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

    def _can_reload(self, waiter: WaiterRow, resident: _Resident) -> bool:
        """Whether the model fits with other options, its bytes given back. If not, the waiter is refused and
        the model stays as it is; while that cannot be told, it stays and the waiter waits."""
        if self.settings.admission == "proceed":
            return True
        if not self.memory.is_fresh:
            self._await_sample()
            return False
        model = self.desired.models[waiter.model]
        options = self._complete(model, waiter.options)
        ask = self._asker(model, options)
        idle, busy, later = self._who_may_go(waiter)
        others = [r for r in (*idle, *busy, *later) if r is not resident]
        try:
            choice = choose(ask, self.memory, [resident], others, ())
        except RouterError as impossible:
            self._refuse(waiter, impossible)
            return False
        if choice.outcome is not Outcome.NEVER:
            return True
        error = refusals.insufficient(
            model.name, choice.placement, self.memory, self.world, self.settings, given_back=resident.holds
        )
        self._refuse(waiter, error)
        return False

    def _join(self, waiter: WaiterRow, resident: _Resident) -> None:
        if waiter.wants is Wants.LOAD and not _agrees(waiter, resident):
            others = (w for w in self._waiters(resident) if _agrees(w, resident))
            if not any(others):
                self._let_go(resident, Why.OPTIONS)
                self._claim(resident.row.model, resident.row.type, "is reloaded with other options")
                return
        resident.wanted_ahead = True
        self.blocked[waiter.model] = Wait(f"{waiter.model} is loading")

    def _admit(self, waiter: WaiterRow) -> None:
        """Start the load of a model that has no process, or say what it waits for."""
        model = self.desired.models[waiter.model]
        group = self._group(waiter.model)
        # A helper needs no slot in the pool; a request for the same model takes one in its own turn.
        standard = waiter.wants is not Wants.HELPER
        if self.world.paused and not any(w.wants is Wants.LOAD for w in group):
            self._refuse_all(model.name, refusals.paused(model.name))
            return
        if standard and self._refuse_if_pinned(model.name, model.type):
            return
        in_flight = sum(r.state is LOADING for r in self.residents)
        if in_flight >= self.settings.max_parallel_loads:
            if not self._refuse_to_wait(model.name, "other models load"):
                self._claim(model.name, model.type if standard else None, "waits while other models load")
            return
        asked = next((w.options for w in group if w.wants is Wants.LOAD), waiter.options)
        options = self._complete(model, asked)
        if not self.memory.is_fresh:
            self._await_sample()
            self._spare_likely_victims(model, options, waiter, standard)
            self._claim(model.name, model.type if standard else None, "waits for a reading of the devices")
            return
        try:
            choice = self._choose(model, options, waiter)
        except RouterError as error:
            self._refuse_all(model.name, error)
            return
        if choice is None:
            return
        failure = self.world.failures.get(model.name)
        if failure is not None and self.now >= failure.until + FORGIVEN_AFTER_S:
            failure = None
        victims = list(choice.victims)
        slot = self._slot(model.type, victims) if standard else _Slot.OPEN
        surplus = None
        if slot is _Slot.FULL:
            surplus = self._victim(model.type, besides=victims)
            if surplus is not None and victims and choice.placement is not None:
                victims = list(fewest(choice.placement, self.memory, victims, going=[surplus]))
        # For a model that has failed lately nobody else has to go: one bad file must not cost others their
        # place again and again. Asking for the load explicitly forgets the failure.
        if failure is not None and (victims or surplus):
            self._refuse_all(model.name, refusals.not_worth_a_victim(model.name, failure))
            return
        placement = choice.placement
        busy = next((v for v in (*victims, surplus) if v is not None and v.leases), None)
        if (busy or choice.outcome is Outcome.LOADING) and self._refuse_to_wait(
            model.name, f"{busy.row.model} is answering" if busy else "other models load"
        ):
            return
        if slot is _Slot.FULL and surplus is None:
            # Nobody can give up a slot yet, so nobody gives up memory for nothing.
            victims = []
        for victim in victims:
            if victim.drain is None:
                self._let_go(victim, Why.MAKE_ROOM, room_for=model.name)
        if surplus is not None:
            self._end_standard(surplus, Why.MAKE_ROOM, room_for=model.name)
        if standard and slot is not _Slot.OPEN:
            slot = self._slot(model.type, ())
        if slot is _Slot.OPEN and choice.outcome is Outcome.FITS and placement is not None:
            self._start(model, asked, options, standard, placement)
            return
        self._keep_place(model.name, model.type if standard else None, choice.outcome, victims, surplus)
        if placement is not None:
            self.intents[model.name] = Intent(options, placement)
            self.memory.take(placement, claim=True)

    def _start(
        self, model: Model, asked: LoadOptions, options: LoadOptions, standard: bool, placement: Placement
    ) -> None:
        lacks = {}
        if self.settings.admission == "proceed":
            lacks = self.memory.shortages(placement, self.memory.now)
        self.memory.take(placement, claim=False)
        self.actions.append(Load(model.name, asked, options, standard, placement, lacks))
        self._add(_loading_row(model.name, model.type, options, standard, self.now))
        self.blocked[model.name] = Wait(f"{model.name} is loading")

    def _complete(self, model: Model, asked: LoadOptions) -> LoadOptions:
        """What was asked for, completed by what was asked for before, and by the model's own options."""
        before = self.world.options.get(model.name, NO_OPTIONS)
        return asked.over(before).over(self.world.placer.canonical(model.options))

    def preview(self, waiter: WaiterRow) -> Preview:
        """What the waiter would cause, alone."""
        model = self.desired.models[waiter.model]
        options = self._complete(model, waiter.options)
        resident = self._resident_of(model.name)
        memory = self.memory
        if resident is not None and _agrees(waiter, resident):
            placement = Placement(resident.holds)
            devices = refusals.device_table(placement, memory, self.world, self.settings)
            return Preview(placement, "loaded", (), tuple(devices), f"{model.name} is loaded.")
        pins = self._filling_pins(model.type)
        if resident is None and pins:
            return Preview(None, "refused", (), (), refusals.slots_pinned(model.name, pins).message)
        idle, busy, later = self._who_may_go(waiter)
        if resident is not None:
            # It would be reloaded: its own bytes come back first.
            idle = [resident, *(r for r in idle if r is not resident)]
        choice = choose(self._asker(model, options), memory, idle, busy, later)
        devices = refusals.device_table(choice.placement, memory, self.world, self.settings)
        victims = [r for r in choice.victims if r is not resident]
        if self._slot(model.type, victims) is _Slot.FULL and resident is None:
            surplus = self._victim(model.type, besides=victims)
            victims += [surplus] if surplus is not None else []
        names = tuple(r.row.model for r in victims)
        if choice.outcome is Outcome.NEVER:
            error = refusals.insufficient(model.name, choice.placement, memory, self.world, self.settings)
            return Preview(choice.placement, "refused", (), tuple(devices), error.message)
        if names:
            reason = f"{_and(names)} would be unloaded first."
            return Preview(choice.placement, "evicts", names, tuple(devices), reason)
        if choice.outcome is Outcome.FITS:
            return Preview(choice.placement, "fits", (), tuple(devices), f"{model.name} fits.")
        reason = f"{model.name} {_waits_for(choice.outcome, (), None)[0]}."
        return Preview(choice.placement, "waits", (), tuple(devices), reason)

    # Memory

    def _choose(self, model: Model, options: LoadOptions, waiter: WaiterRow) -> Choice | None:
        """Where the model goes and who must go for it. None if its waiters have been refused.

        Raises:
            RouterError: it cannot be laid out at all.
        """
        intent = self.world.intents.get(model.name)
        kept = intent.placement if intent is not None and intent.options == options else None
        ask = self._asker(model, options)
        if self.settings.admission == "proceed":
            best = next(iter(ask(self.memory.now)), None)
            return Choice(Outcome.FITS, best) if best else Choice(Outcome.NEVER, None)
        idle, busy, later = self._who_may_go(waiter)
        memory = self.memory
        if model.name in self.world.short:
            return self._choose_after_all(ask, idle, kept)
        choice = choose(ask, memory, idle, busy, later, kept)
        if choice.outcome is Outcome.COMING:
            self._await_sample()
            self.deadlines += [f.at + RECOVERY_S for f in self.world.freed if f.at + RECOVERY_S > self.now]
            self.deadlines += [r.row.settles_at for r in self.residents if r.row.settles_at > self.now]
        if choice.outcome is not Outcome.NEVER:
            return choice
        pinned = [r for r in self.residents if r.pinned and not r.row.stuck]
        blocked_by = choose(ask, memory, idle, busy, [*later, *pinned]) if pinned else choice
        names = sorted({r.row.model for r in pinned}) if blocked_by.outcome is Outcome.LOADING else []
        placement = (blocked_by if names else choice).placement
        error = refusals.insufficient(model.name, placement, memory, self.world, self.settings, names)
        for member in self._group(model.name):
            # A helper spares models that others need not: what it is refused may be possible for them.
            if waiter.wants is not Wants.HELPER or member.wants is Wants.HELPER:
                self._refuse(member, error)
        return None

    def _asker(self, model: Model, options: LoadOptions) -> Ask:
        """Asks for the model's layouts. An automatic context leaves room for its policies' candidates."""
        ask = functools.partial(self.world.placer.placements, model, options, self.settings)
        if options.ctx_size != CTX_AUTO:
            return ask
        others = {
            name
            for p in self.desired.policies
            if p.enabled and model.name in p.candidates
            for name in p.candidates
            if name != model.name and name in self.desired.models and name not in self.by_name
        }

        def ask_beside(room: Mapping[str, int]) -> Iterable[Placement]:
            left = dict(room)
            for name in sorted(others):
                other = self.desired.models[name]
                wanted = self._complete(other, NO_OPTIONS)
                if wanted.ctx_size == CTX_AUTO or other.header is None:
                    continue
                first = next(iter(self.world.placer.placements(other, wanted, self.settings, left)), None)
                for device, size in (first.booking if first else {}).items():
                    if device in left:
                        left[device] -= size
            return ask(left)

        return ask_beside

    def _spare_likely_victims(
        self, model: Model, options: LoadOptions, waiter: WaiterRow, standard: bool
    ) -> None:
        """Until a newer reading decides, keep new requests from those who are likely to go for this one:
        a later request must not pass it. Nobody goes yet."""
        idle, busy, later = self._who_may_go(waiter)
        try:
            choice = choose(self._asker(model, options), self.memory, idle, busy, later)
        except RouterError:
            # Told when the decision is made.
            return
        if choice.outcome is Outcome.NEVER:
            return
        likely = list(choice.victims)
        if standard and self._slot(model.type, likely) is _Slot.FULL:
            surplus = self._victim(model.type, besides=likely)
            likely += [surplus] if surplus is not None else []
        for resident in likely:
            resident.spoken_for = True

    def _choose_after_all(
        self,
        ask: Ask,
        idle: Sequence[_Resident],
        kept: Placement | None,
    ) -> Choice:
        """For a model whose worker ran out of memory: everybody idle on its devices goes first."""
        placement = kept or next(iter(ask(self.memory.now)), None)
        if placement is None:
            return Choice(Outcome.NEVER, None)
        there = [r for r in idle if any(r.holds.get(device, 0) for device in placement.booking)]
        if there:
            return Choice(Outcome.VICTIMS, placement, tuple(there))
        if self.memory.now != self.memory.soon:
            self._await_sample()
            going = any(r.state is EVICTING and not r.row.stuck for r in self.residents)
            recovering = [f.at + RECOVERY_S for f in self.world.freed if f.at + RECOVERY_S > self.now]
            self.deadlines += recovering
            if going or recovering:
                return Choice(Outcome.COMING, placement)
        return Choice(Outcome.FITS, placement)

    def _who_may_go(self, waiter: WaiterRow) -> tuple[list[_Resident], list[_Resident], list[_Resident]]:
        """Who holds memory and may go for a load, in order: idle ones, busy ones; and who may later."""
        spared: Collection[str] = ()
        if waiter.wants is Wants.HELPER:
            asking = [p for p in self.desired.policies if p.name == waiter.policy]
            spared = {name for p in asking for name in p.candidates}
        idle, busy, later = [], [], []
        for resident in self.residents:
            if resident.state is EVICTING or resident.pinned or resident.row.model in spared:
                continue
            if self._is_unwanted_load(resident):
                idle.append(resident)
            elif resident.state is LOADING or resident.wanted_ahead:
                later.append(resident)
            elif resident.leases or resident.drain is not None:
                busy.append(resident)
            else:
                idle.append(resident)
        idle.sort(key=lambda r: (r.state is READY, not self._is_unwanted(r), r.row.use_order))
        busy.sort(key=lambda r: (r.drain is None and not r.row.was_draining, r.row.use_order))
        return idle, busy, later

    def _await_sample(self) -> None:
        self.wants_sample = True

    def _refuse_to_wait(self, model: str, why: str) -> bool:
        """With `admission=reject` nobody waits for others to end."""
        if self.settings.admission != "reject":
            return False
        self._refuse_all(model, refusals.rejected(model, why))
        return True

    def _keep_place(
        self,
        model: str,
        model_type: str | None,
        outcome: Outcome,
        victims: Sequence[_Resident],
        surplus: _Resident | None,
    ) -> None:
        """Keep a slot for a load that was not started, and tell what it waits for."""
        why, brief = _waits_for(outcome, victims, surplus)
        nobody = not victims and surplus is None
        if nobody and model_type is not None and self._slot(model_type, ()) is _Slot.COMING:
            why, brief = "waits for a slot that is being freed", True
        self._claim(model, model_type, why, brief=brief)

    # Slots

    def _take_slot(self, model: str, model_type: str) -> bool:
        """Whether the pool has a slot for a model with a process. If not, see to it that it will, and keep
        it."""
        if self._slot(model_type, ()) is _Slot.OPEN:
            return True
        if self._refuse_if_pinned(model, model_type):
            return False
        surplus = None
        if self._slot(model_type, ()) is _Slot.FULL:
            surplus = self._victim(model_type)
            if surplus is not None:
                self._end_standard(surplus, Why.MAKE_ROOM, room_for=model)
                if self._slot(model_type, ()) is _Slot.OPEN:
                    return True
        self._keep_place(model, model_type, Outcome.FITS, (), surplus)
        return False

    def _slot(self, model_type: str, going: Sequence[_Resident]) -> _Slot:
        """Whether the pool has a slot for one more, or will have one when those have gone who go anyway."""
        limit = self.desired.limit(model_type)
        if limit == UNLIMITED:
            return _Slot.OPEN
        room = limit - self._occupied(model_type) - self.claims[model_type]
        if room >= 1:
            return _Slot.OPEN
        room += sum(r.is_leaving or (r.holds_slot and r in going) for r in self.by_type[model_type])
        return _Slot.COMING if room >= 1 else _Slot.FULL

    def _refuse_if_pinned(self, model: str, model_type: str) -> bool:
        pins = self._filling_pins(model_type)
        for waiter in self._group(model) if pins else ():
            if waiter.wants is not Wants.HELPER:
                self._refuse(waiter, refusals.slots_pinned(model, pins))
        return bool(pins)

    def _filling_pins(self, model_type: str) -> list[str]:
        """The pinned models of a pool, if they fill it."""
        limit = self.desired.limit(model_type)
        pins = sorted(r.row.model for r in self.by_type[model_type] if r.pinned and r.in_pool)
        return pins if limit != UNLIMITED and len(pins) >= limit else []

    def _victim(self, model_type: str, besides: Sequence[_Resident] = ()) -> _Resident | None:
        """Who goes for a load that needs a slot: a load that nobody waits for, else the least recently used,
        idle before busy. A victim that drains already stays the victim."""
        members = [
            r
            for r in self.by_type[model_type]
            if r.in_pool and r.drain is None and not r.wanted_ahead and not r.pinned and r not in besides
        ]
        unwanted = [r for r in members if self._is_unwanted_load(r)]
        if unwanted:
            return max(unwanted, key=lambda r: r.row.id)
        ready = [r for r in members if r.state is READY]
        idle = [r for r in ready if not r.standard_leases]
        if idle:
            return min(idle, key=lambda r: (not self._is_unwanted(r), r.row.use_order))
        return min(ready, key=lambda r: (not r.row.was_draining, r.row.use_order), default=None)

    # Idle, and pressure

    def _unload_idle(self) -> None:
        for resident in self._idle_now():
            keep = resident.row.keep_alive_s
            if keep is None:
                keep = self.settings.evict_idle_timeout_s
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

    def _pressure_order(self, resident: _Resident) -> float:
        """Idle time over what loading it again would cost."""
        cost = max(resident.row.load_s, 0.001) * resident.row.evict_weight
        return (self.now - resident.row.last_use) / cost

    def _idle_now(self) -> Iterator[_Resident]:
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

    # Small questions

    def _resident_of(self, model: str) -> _Resident | None:
        """The model's resident that a waiter can hope for: a live one, else one that is being stopped.

        One that cannot be stopped is in nobody's way.
        """
        leaving = None
        for resident in self.by_name.get(model, ()):
            if resident.state is not EVICTING:
                return resident
            if not resident.row.stuck:
                leaving = resident
        return leaving

    def _group(self, model: str) -> list[WaiterRow]:
        return [w for w in self.by_model.get(model, ()) if w.id in self.waiting]

    def _waiters(self, resident: _Resident) -> list[WaiterRow]:
        return self._group(resident.row.model)

    def _is_unwanted(self, resident: _Resident) -> bool:
        return not self._waiters(resident)

    def _is_unwanted_load(self, resident: _Resident) -> bool:
        """A load that may be cancelled: nobody waits for it, and no pin keeps it."""
        return resident.state is LOADING and self._is_unwanted(resident) and not resident.pinned

    def _is_helper(self, resident: _Resident) -> bool:
        """Has helper membership: an active policy names it, or a decision uses it or waits for it."""
        return (
            resident.row.model in self.desired.helpers
            or resident.helper_leases > 0
            or any(w.wants is Wants.HELPER for w in self._waiters(resident))
        )

    def _can_grant(self, waiter: WaiterRow, resident: _Resident) -> bool:
        """A load takes no lease, so it needs none to be left."""
        return waiter.wants is Wants.LOAD or resident.leases < resident.row.grants_max

    def _occupied(self, model_type: str) -> int:
        return sum(r.holds_slot for r in self.by_type[model_type])

    # Small deeds

    def _add(self, row: ResidentRow) -> None:
        resident = _Resident(row, row.model in self.world.pinned)
        self.residents.append(resident)
        self.by_name[row.model].append(resident)
        self.by_type[row.type].append(resident)

    def _claim(self, model: str, model_type: str | None, why: str, *, brief: bool = True) -> None:
        """Keep a slot for a model against all that come after it in the queue."""
        self.blocked.setdefault(model, Wait(f"{model} {why}", brief))
        if model not in self.claimed:
            self.claimed.add(model)
            if model_type is not None:
                self.claims[model_type] += 1

    def _end_standard(self, resident: _Resident, why: Why, room_for: str | None = None) -> None:
        """End its membership in the standard pool; a resident that stays as a helper keeps its process."""
        if self._is_helper(resident) and resident.state is READY:
            if resident.standard_leases:
                resident.drain = Drain(why, room_for)
            else:
                resident.standard = False
                self.actions.append(EndStandard(resident.row.id, why))
            return
        self._let_go(resident, why, room_for)

    def _let_go(self, resident: _Resident, why: Why, room_for: str | None = None) -> None:
        """Stop it if it is idle or only loading, else let it drain."""
        if resident.leases:
            resident.drain = Drain(why, room_for)
            return
        resident.state = EVICTING
        resident.drain = None
        self.memory.leaves(resident)
        self.actions.append(Evict(resident.row.id, why, room_for))

    def _grant(self, waiter: WaiterRow, resident: _Resident) -> None:
        del self.waiting[waiter.id]
        if waiter.wants is not Wants.LOAD:
            resident.leases += 1
        if waiter.wants is Wants.HELPER:
            resident.helper_leases += 1
        self.actions.append(Grant(waiter.id, resident.row.id))

    def _refuse_all(self, model: str, error: RouterError) -> None:
        for waiter in self._group(model):
            self._refuse(waiter, error)

    def _refuse(self, waiter: WaiterRow, error: RouterError) -> None:
        del self.waiting[waiter.id]
        self.actions.append(Refuse(waiter.id, error))


def _fewest(ordered: list[_Resident], device: str, short: float) -> list[_Resident]:
    """The first few that free enough on the device, less those that turn out not to be needed."""
    chosen: list[_Resident] = []
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


def _loading_row(
    model: str, model_type: str, options: LoadOptions, standard: bool, now: float
) -> ResidentRow:
    return ResidentRow(
        id=0,
        model=model,
        type=model_type,
        state=LOADING,
        standard=standard,
        leases=0,
        helper_leases=0,
        slots=1,
        last_use=now,
        use_order=0,
        load_s=0.0,
        options=options,
        asked=options,
        bytes={},
    )


def _agrees(waiter: WaiterRow, resident: _Resident) -> bool:
    """The resident is what the waiter asks for."""
    return waiter.options.agrees_with(resident.row.asked, resident.row.options)


def _and(names: Iterable[str]) -> str:
    return " and ".join(names)


def _waits_for(outcome: Outcome, victims: Sequence[_Resident], surplus: _Resident | None) -> tuple[str, bool]:
    """What a load waits for, and whether that ends by itself."""
    going = [*victims, *([surplus] if surplus is not None else [])]
    busy = [v for v in going if v.standard_leases or (v.leases and v in victims)]
    if busy:
        running = sum(v.leases for v in busy)
        requests = f"{running} requests are" if running > 1 else "1 request is"
        return f"waits for {_and(v.row.model for v in busy)}: {requests} still running", False
    if going:
        return f"waits for {_and(v.row.model for v in going)} to unload", True
    if outcome is Outcome.LOADING:
        return "waits for memory that models hold which are loading or asked for", False
    if outcome is Outcome.COMING:
        return "waits for memory that is being freed", True
    return "waits for a slot", False
