"""What a pass has before it and changes as it goes on: residents, who waits, slots, memory, decisions.

Here are the small questions and deeds that the steps of a plan are made of.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum

from router.catalog.options import LoadOptions
from router.errors import RouterError
from router.residency import refusals
from router.residency.admission import Memory, Outcome
from router.residency.desire import Desired
from router.residency.world import (
    Action,
    Drain,
    EndStandard,
    Evict,
    Grant,
    Intent,
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

LOADING, READY, EVICTING = ResidentState.LOADING, ResidentState.READY, ResidentState.EVICTING


class Planned:
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
    def unseen(self) -> Mapping[str, int]:
        """Of those, what a load may not have taken yet. What a ready one took only has to show."""
        return self.row.reserves if self.state is LOADING else {}

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


class Slot(Enum):
    """Whether a pool has a slot for a load: now, when somebody has gone who goes anyway, or not."""

    OPEN = "open"
    COMING = "coming"
    FULL = "full"


class Board:
    """The working picture of one pass."""

    def __init__(self, desired: Desired, world: World, now: float) -> None:
        self.desired = desired
        self.settings = desired.settings
        self.world = world
        self.now = now
        self.residents: list[Planned] = []
        self.by_name: dict[str, list[Planned]] = defaultdict(list)
        self.by_type: dict[str, list[Planned]] = defaultdict(list)
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

    # Small questions

    def _resident_of(self, model: str) -> Planned | None:
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

    def _waiters(self, resident: Planned) -> list[WaiterRow]:
        return self._group(resident.row.model)

    def _is_unwanted(self, resident: Planned) -> bool:
        return not self._waiters(resident)

    def _is_unwanted_load(self, resident: Planned) -> bool:
        """A load that may be cancelled: nobody waits for it, and no pin keeps it."""
        return resident.state is LOADING and self._is_unwanted(resident) and not resident.pinned

    def _is_helper(self, resident: Planned) -> bool:
        """Has helper membership: an active policy names it, or a decision uses it or waits for it."""
        return (
            resident.row.model in self.desired.helpers
            or resident.helper_leases > 0
            or any(w.wants is Wants.HELPER for w in self._waiters(resident))
        )

    def _can_grant(self, waiter: WaiterRow, resident: Planned) -> bool:
        """A load takes no lease, so it needs none to be left."""
        return waiter.wants is Wants.LOAD or resident.leases < resident.row.grants_max

    def _occupied(self, model_type: str) -> int:
        return sum(r.holds_slot for r in self.by_type[model_type])

    # Small deeds

    def _add(self, row: ResidentRow) -> None:
        resident = Planned(row, row.model in self.world.pinned)
        self.residents.append(resident)
        self.by_name[row.model].append(resident)
        self.by_type[row.type].append(resident)

    def _claim(
        self, model: str, model_type: str | None, why: str, *, brief: bool = True, kind: str = ""
    ) -> None:
        """Keep a slot for a model against all that come after it in the queue."""
        self.blocked.setdefault(model, Wait(f"{model} {why}", brief, kind))
        if model not in self.claimed:
            self.claimed.add(model)
            if model_type is not None:
                self.claims[model_type] += 1

    def _end_standard(self, resident: Planned, why: Why, room_for: str | None = None) -> None:
        """End its membership in the standard pool; a resident that stays as a helper keeps its process."""
        if self._is_helper(resident) and resident.state is READY:
            if resident.standard_leases:
                resident.drain = Drain(why, room_for)
            else:
                resident.standard = False
                self.actions.append(EndStandard(resident.row.id, why))
            return
        self._let_go(resident, why, room_for)

    def _let_go(self, resident: Planned, why: Why, room_for: str | None = None) -> None:
        """Stop it if it is idle or only loading, else let it drain."""
        if resident.leases:
            resident.drain = Drain(why, room_for)
            return
        resident.state = EVICTING
        resident.drain = None
        self.memory.leaves(resident)
        self.actions.append(Evict(resident.row.id, why, room_for))

    def _grant(self, waiter: WaiterRow, resident: Planned) -> None:
        del self.waiting[waiter.id]
        if waiter.wants is not Wants.LOAD:
            resident.leases += 1
        if waiter.wants is Wants.HELPER:
            resident.helper_leases += 1
        self.actions.append(Grant(waiter.id, resident.row.id))

    def _refuse_all(self, model: str, error: RouterError, asked: LoadOptions | None = None) -> None:
        """Refuse all who wait for the model, or those of them who asked for it with these options."""
        for waiter in self._group(model):
            if asked is None or waiter.options == asked:
                self._refuse(waiter, error)

    def _refuse(self, waiter: WaiterRow, error: RouterError) -> None:
        del self.waiting[waiter.id]
        self.actions.append(Refuse(waiter.id, error))

    # Slots

    def _take_slot(self, model: str, model_type: str) -> bool:
        """Whether the pool has a slot for a model with a process. If not, see to it that it will, and keep
        it."""
        if self._slot(model_type, ()) is Slot.OPEN:
            return True
        if self._refuse_if_pinned(model, model_type):
            return False
        surplus = self._surplus(model_type, ())
        if surplus is not None:
            self._end_standard(surplus, Why.MAKE_ROOM, room_for=model)
            if self._slot(model_type, ()) is Slot.OPEN:
                return True
        self._keep_place(model, model_type, Outcome.FITS, (), surplus)
        return False

    def _slot(self, model_type: str, going: Sequence[Planned]) -> Slot:
        """Whether the pool has a slot for one more, or will have one when those have gone who go anyway."""
        limit = self.desired.limit(model_type)
        if limit == UNLIMITED:
            return Slot.OPEN
        room = limit - self._occupied(model_type) - self.claims[model_type]
        if room >= 1:
            return Slot.OPEN
        room += sum(r.is_leaving or (r.holds_slot and r in going) for r in self.by_type[model_type])
        return Slot.COMING if room >= 1 else Slot.FULL

    def _surplus(self, model_type: str, going: Sequence[Planned]) -> Planned | None:
        """Who has to go besides those, for one more to have a slot."""
        return self._victim(model_type, going) if self._slot(model_type, going) is Slot.FULL else None

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

    def _victim(self, model_type: str, besides: Sequence[Planned] = ()) -> Planned | None:
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

    def _keep_place(
        self,
        model: str,
        model_type: str | None,
        outcome: Outcome,
        victims: Sequence[Planned],
        surplus: Planned | None,
    ) -> None:
        """Keep a slot for a load that was not started, and tell what it waits for."""
        why, brief = waits_for(outcome, victims, surplus)
        nobody = not victims and surplus is None
        if nobody and model_type is not None and self._slot(model_type, ()) is Slot.COMING:
            why, brief = "waits for a slot that is being freed", True
        # Whose answers they are changes as one after the other ends.
        kind = "" if brief or nobody else "answers"
        self._claim(model, model_type, why, brief=brief, kind=kind)


def loading_row(model: str, model_type: str, options: LoadOptions, standard: bool, now: float) -> ResidentRow:
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


def agrees(waiter: WaiterRow, resident: Planned) -> bool:
    """The resident is what the waiter asks for."""
    return waiter.options.agrees_with(resident.row.asked, resident.row.options)


def listed(names: Iterable[str]) -> str:
    *most, last = sorted(set(names))
    return f"{', '.join(most)} and {last}" if most else last


def waits_for(outcome: Outcome, victims: Sequence[Planned], surplus: Planned | None) -> tuple[str, bool]:
    """What a load waits for, and whether that ends by itself."""
    going = [*victims, *([surplus] if surplus is not None else [])]
    busy = [v for v in going if v.standard_leases or (v.leases and v in victims)]
    if busy:
        running = sum(v.leases for v in busy)
        requests = f"{running} requests are" if running > 1 else "1 request is"
        return f"waits for {listed(v.row.model for v in busy)}: {requests} still running", False
    if going:
        return f"waits for {listed(v.row.model for v in going)} to unload", True
    if outcome is Outcome.LOADING:
        return "waits for memory that models hold which are loading or asked for", False
    if outcome is Outcome.COMING:
        return "waits for memory that is being freed", True
    return "waits for a slot", False
