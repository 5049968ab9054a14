"""Admission: whether a load fits, on which devices, and who must go for it. Pure.

For each device, what a further load could take is

    min(free - reserves, total - charged, cap - charged) - claims - margin

`free` is what the last sample showed; `reserves` is what loads in flight have not been seen to take in that
sample; `charged` is what every process of ours is planned or measured to hold, whichever is more, until it
has exited. The second bound does not trust the sample (memory-mapped weights do not lower the host's free
memory, and drivers are late), the first does not trust the plan (other programs use the device too). A load
in flight is charged in full against the second and reserved against the first, so it counts once in each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final, Protocol, TypeVar

from msgspec import Struct

from router.devices.base import HOST_ID, DeviceReading
from router.residency.placement import Placement
from router.residency.world import RECOVERY_S, SETTLE_S, Freed, ResidentRow, World
from router.settings.schema import Settings
from router.snapshot import ResidentState

SAMPLE_AGE_S: Final = 0.25
"""A decision uses no sample that was begun longer ago; or, where a driver is too slow for that, one that was
begun after the decision was found to need it."""

UNBOUNDED: Final = 1 << 60
"""The room of a device of which nothing is known and whose use was allowed nevertheless."""


class Holder(Protocol):
    """Something that holds bytes on devices: a resident."""

    @property
    def holds(self) -> Mapping[str, int]:
        """Bytes charged, by device id."""

    @property
    def unseen(self) -> Mapping[str, int]:
        """Of those, what a load may not have taken yet, by device id."""


H = TypeVar("H", bound=Holder)

Ask = Callable[[Mapping[str, int]], Iterable[Placement]]
"""From the room by device to the layouts of a model that are worth trying."""


def margin_of(total: int | None, settings: Settings) -> int:
    """Bytes that admission keeps free on a device: enough that loading causes no pressure eviction."""
    if settings.auto_evict and total:
        return max(settings.vram_margin, int((1 - settings.auto_evict_threshold_pct) * total))
    return settings.vram_margin


def emptied(total: int, settings: Settings, others: int = 0) -> int:
    """What models of ours could have on a device of that size, were none of them loaded."""
    return min(total - others, settings.vram_cap or total) - margin_of(total, settings)


def others_on(reading: DeviceReading, residents: Iterable[ResidentRow]) -> int:
    """Bytes that other programs hold on a device, as far as its sample tells; 0 if it does not."""
    if reading.total is None or reading.free is None:
        return 0
    device = reading.device.id
    seen = sum(row.bytes.get(device, 0) - row.reserves.get(device, 0) for row in residents)
    return max(0, reading.total - reading.free - seen)


def _add(sums: Counter[str], sizes: Mapping[str, int]) -> None:
    """What `Counter.update` does, in a fraction of the time."""
    for device, size in sizes.items():
        sums[device] += size


class Memory:
    """The room on each device as a pass goes on: what is admitted or claimed in it lessens the room."""

    def __init__(self, world: World, settings: Settings, now: float) -> None:
        reserved, settling, leaving = Counter[str](), Counter[str](), Counter[str]()
        self.held = Counter[str]()
        for row in world.residents:
            _add(self.held, row.bytes)
            if row.reserves:
                _add(reserved, row.reserves)
                if row.state is not ResidentState.LOADING and not row.stuck:
                    _add(settling, row.reserves)
            if row.state is ResidentState.EVICTING and not row.stuck:
                _add(leaving, row.bytes)
        back = Counter[str]()
        unseen: list[Freed] = []
        for freed in world.freed:
            if now < freed.at + RECOVERY_S:
                _add(back, freed.bytes)
            if any(freed.reserves.values()):
                unseen.append(freed)
        self.reserved = reserved
        #: Of what is held, what processes hold that are being stopped.
        self._leaving = leaving
        self.claims: dict[str, int] = {}
        #: What this pass has admitted or claimed.
        self.taken: dict[str, int] = {}
        self.unknown: set[str] = set()
        self.is_fresh = True
        #: What a load could take now, and soon, when what is under way has ended.
        self.now: dict[str, int] = {}
        self.soon: dict[str, int] = {}
        #: The two bounds of `soon`: who goes gives back what is charged, and what was only reserved.
        self.late: dict[str, tuple[int, int]] = {}
        #: What is kept free beyond the plain margin, so that loading causes no pressure.
        self.slack: dict[str, int] = {}
        for reading in world.readings:
            device = reading.device.id
            if device != HOST_ID and not world.placer.reaches(reading.device):
                continue
            ours = self.held[device]
            unsettled = sum(
                freed.reserves.get(device, 0) for freed in unseen if reading.started < freed.at + SETTLE_S
            )
            reserved[device] += unsettled
            total = world.totals.get(device) if reading.total is None else reading.total
            bounds = [bound - ours for bound in (total, settings.vram_cap or None) if bound is not None]
            margin = margin_of(total, settings)
            self.slack[device] = margin - settings.vram_margin
            by_charges = min(bounds) - margin + leaving[device] if bounds else UNBOUNDED
            by_sample = UNBOUNDED
            if reading.free is not None:
                free = reading.free - reserved[device]
                bounds.append(free)
                shown = free + unsettled + settling[device]
                by_sample = shown + leaving[device] + back[device] - margin
                is_young = now - reading.started <= SAMPLE_AGE_S
                self.is_fresh &= is_young or reading.started >= world.wanted_since
            else:
                self.unknown.add(device)
                if settings.unknown_device == "refuse":
                    bounds.append(0)
                    by_sample = -UNBOUNDED
            self.now[device] = min(bounds) - margin if bounds else UNBOUNDED
            self.late[device] = (by_charges, by_sample)
            self.soon[device] = min(by_charges, by_sample)

    def fits(self, placement: Placement, room: Mapping[str, int], held: Mapping[str, int]) -> bool:
        """Whether there is room for it. Where it would be alone, only the plain margin is kept free."""
        return not any(self._shortages(placement, room, held))

    def shortages(self, placement: Placement, room: Mapping[str, int]) -> dict[str, int]:
        """Bytes that are missing, by device that is short."""
        return dict(self._shortages(placement, room, self.held))

    def _shortages(
        self, placement: Placement, room: Mapping[str, int], held: Mapping[str, int]
    ) -> Iterable[tuple[str, int]]:
        for device, needs in placement.booking.items():
            # Without any reading of the host there is nothing to go by; a GPU that is not read has gone.
            lacks = needs - room.get(device, UNBOUNDED if device == HOST_ID else 0)
            if lacks > 0 and held.get(device, 0) <= 0:
                lacks -= self.slack.get(device, 0)
            if lacks > 0:
                yield device, lacks

    def take(self, placement: Placement, *, claim: bool) -> None:
        """Nobody else gets these bytes any more: they are admitted, or kept for a load that waits."""
        for device, needs in placement.booking.items():
            if device in self.now:
                self.now[device] -= needs
                by_charges, by_sample = self.late[device]
                self.late[device] = (by_charges - needs, by_sample - needs)
                self.soon[device] = min(self.late[device])
            self.held[device] += needs
            self.taken[device] = self.taken.get(device, 0) + needs
            if claim:
                self.claims[device] = self.claims.get(device, 0) + needs

    def staying(self, device: str) -> int:
        """What is held on a device and not about to come back."""
        return self.held.get(device, 0) - self._leaving.get(device, 0)

    def leaves(self, holder: Holder) -> None:
        """A process is told to stop: its bytes come back, though not in this step."""
        for device, size in holder.holds.items():
            self._leaving[device] += size
            if device in self.late:
                by_charges, by_sample = self.late[device]
                self.late[device] = (by_charges + size, by_sample + size + holder.unseen.get(device, 0))
                self.soon[device] = min(self.late[device])

    @property
    def holds(self) -> Mapping[str, int]:
        """What this pass has given to others, who will be where they are wanted, and may go after that."""
        return self.taken

    @property
    def unseen(self) -> Mapping[str, int]:
        """Nothing: it lessens the room by no more than that."""
        return {}

    def without(self, holders: Iterable[Holder]) -> tuple[dict[str, int], dict[str, int]]:
        """The room, and what is held, after these have gone too."""
        room, held = dict(self.soon), {name: size - self._leaving[name] for name, size in self.held.items()}
        late = dict(self.late)
        for holder in holders:
            for device, size in holder.holds.items():
                if device in late:
                    by_charges, by_sample = late[device]
                    late[device] = (by_charges + size, by_sample + size + holder.unseen.get(device, 0))
                    room[device] = min(late[device])
                held[device] = held.get(device, 0) - size
        return room, held


class Outcome(Enum):
    """What stands between a load and its memory."""

    FITS = "fits"
    COMING = "coming"
    VICTIMS = "victims"
    LOADING = "loading"
    NEVER = "never"


class Choice(Struct, frozen=True):
    """Where a load goes, and what must happen first.

    `victims` must go, idle or not; they are empty unless the outcome says so. `placement` is None for NEVER
    if there is none at all.
    """

    outcome: Outcome
    placement: Placement | None
    victims: tuple[Any, ...] = ()


def choose(
    ask: Ask,
    memory: Memory,
    idle: Sequence[H],
    busy: Sequence[H],
    loading: Sequence[H],
    kept: Placement | None = None,
) -> Choice:
    """The best way to load a model.

    A layout for which nobody goes comes before one for which somebody does, and idle ones go before busy ones
    are waited for. Layers stay on the host only if the whole model has no room even then.

    Args:
        ask: the layouts for a given room.
        idle, busy: who may be chosen to go, in the order in which they would.
        loading: who holds memory, cannot go now, but may later.
        kept: the layout chosen before, for which others may have gone already.
    """
    for whole in (True, False):
        found = _choose(ask, memory, idle, busy, loading, kept, whole)
        if found is not None:
            return found
    return Choice(Outcome.NEVER, next(iter(ask(memory.now)), None))


def _choose(
    ask: Ask,
    memory: Memory,
    idle: Sequence[H],
    busy: Sequence[H],
    loading: Sequence[H],
    kept: Placement | None,
    whole: bool,
) -> Choice | None:
    def those(room: Mapping[str, int]) -> Iterator[Placement]:
        if kept is not None and kept.is_whole is whole:
            yield kept
        for placement in ask(room):
            if placement.is_whole is whole:
                yield placement
            elif whole:
                # Those that are not whole come last, and finding them takes time.
                return

    for placement in those(memory.now):
        if memory.fits(placement, memory.now, memory.held):
            return Choice(Outcome.FITS, placement)
    if memory.soon != memory.now:
        room, held = memory.without(())
        for placement in those(room):
            if memory.fits(placement, room, held):
                return Choice(Outcome.COMING, placement)
    for candidates in (idle, (*idle, *busy)) if busy else (idle,):
        if not candidates:
            continue
        room, held = memory.without(candidates)
        best: Choice | None = None
        there: dict[str, list[int]] = {}
        for place, holder in enumerate(candidates):
            for device in holder.holds:
                there.setdefault(device, []).append(place)
        for placement in those(room):
            if not memory.fits(placement, room, held):
                continue
            places = {place for device in placement.booking for place in there.get(device, ())}
            victims = fewest(placement, memory, [candidates[place] for place in sorted(places)])
            if best is None or len(victims) < len(best.victims):
                best = Choice(Outcome.VICTIMS, placement, victims)
            if len(best.victims) <= 1:
                break
        if best is not None:
            return best
    if loading or memory.taken:
        room, held = memory.without((*idle, *busy, *loading, memory))
        for placement in those(room):
            if memory.fits(placement, room, held):
                return Choice(Outcome.LOADING, placement)
    return None


def fewest(
    placement: Placement, memory: Memory, ordered: Sequence[H], going: Sequence[H] = ()
) -> tuple[H, ...]:
    """Who goes for a placement: in order, only from devices that are short, and none that is not needed.

    Args:
        ordered: who may go, in the order in which they would.
        going: who goes anyway.
    """
    tally = _Tally(placement, memory)
    for holder in going:
        tally.give(holder)
    chosen: list[H] = []
    short = tally.short()
    for holder in ordered:
        if not short:
            break
        holds = holder.holds
        for device in short:
            if holds.get(device, 0):
                chosen.append(holder)
                tally.give(holder)
                short = tally.short()
                break
    for holder in reversed(chosen.copy()):
        tally.give(holder, -1)
        if tally.short():
            tally.give(holder)
        else:
            chosen.remove(holder)
    return tuple(chosen)


class _Tally:
    """The room on the devices of one placement, as one after the other goes for it."""

    def __init__(self, placement: Placement, memory: Memory) -> None:
        self._needs = placement.booking
        self._slack = memory.slack
        none, unknown = (0, 0), (UNBOUNDED, UNBOUNDED)
        self._known = {device for device in placement.booking if device in memory.late}
        self._late = {
            device: memory.late.get(device, unknown if device == HOST_ID else none)
            for device in placement.booking
        }
        self._held = {device: memory.staying(device) for device in placement.booking}

    def give(self, holder: Holder, sign: int = 1) -> None:
        """What it holds has come back, or with -1 is held again."""
        holds = holder.holds
        for device, (by_charges, by_sample) in self._late.items():
            size = sign * holds.get(device, 0)
            if size:
                self._held[device] -= size
                if device in self._known:
                    unseen = sign * holder.unseen.get(device, 0)
                    self._late[device] = (by_charges + size, by_sample + size + unseen)

    def short(self) -> list[str]:
        """The devices without enough room."""
        found = []
        for device, needs in self._needs.items():
            lacks = needs - min(self._late[device])
            if lacks > 0 and (self._held[device] > 0 or lacks > self._slack.get(device, 0)):
                found.append(device)
        return found
