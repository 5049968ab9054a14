"""The actual state as `plan` sees it, and the actions that a plan is made of. All frozen."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct

from router.catalog.options import NO_OPTIONS, LoadOptions
from router.devices.base import DeviceReading
from router.errors import RouterError
from router.residency.placement import Placement, Placer
from router.snapshot import ResidentState

SETTLE_S: Final = 2.0
"""Seconds after which a driver shows what a process took or gave back: a reserve ends with a sample begun so
long after its load was ready, unless the sample itself shows the process's use."""

RECOVERY_S: Final = 5.0
"""Seconds for which memory of a process that has exited is expected to come back."""


class Wants(StrEnum):
    """What a waiter waits for.

    A `REQUEST` takes a lease and makes its model a standard resident; a `HELPER` takes a lease for a routing
    decision; a `LOAD` only waits until the model is ready, with the options that it names.
    """

    REQUEST = "request"
    HELPER = "helper"
    LOAD = "load"


class Why(StrEnum):
    """Why a resident goes. The machine-readable reason in the feed and in the metrics."""

    COUNT_LIMIT = "count_limit"
    MAKE_ROOM = "make_room"
    UNLOADED = "unloaded"
    IDLE = "idle"
    PRESSURE = "memory_pressure"
    OPTIONS = "options_changed"
    DELETED = "deleted"
    NO_MEMBERSHIP = "no_membership"
    UNREACHABLE = "unreachable"
    SHUTDOWN = "shutting_down"


class ResidentRow(Struct, frozen=True):
    """One resident. `state` is never DRAINING: that is derived in each pass.

    Attributes:
        standard: has standard membership.
        leases, helper_leases: holds in force, all of them and those of routing decisions.
        last_use: seconds on the loop's clock; `use_order` rises with every use, so that it tells who was used
            last even where the clock is too coarse to.
        load_s: how long the load took.
        options, asked: what it was loaded with, and what was asked for (a context may be `auto` there).
        newcomer: became READY in the very step that this pass belongs to, and has served nobody.
        unload: the user asked for it to go.
        unreachable: its worker takes no connection although its process runs.
        was_draining: the previous pass drained it.
        keep_alive_s: None for the setting's value.
        bytes: charged for each device id: planned or measured, whichever is more.
        reserves: of those, what no sample has shown to be taken yet.
        progress: 0..1 of a load, as its worker tells; it is shown, and decides nothing.
        settles_at: when the reserves of a READY one end for want of anything better.
    """

    id: int
    model: str
    type: str
    state: ResidentState
    standard: bool
    leases: int
    helper_leases: int
    slots: int
    last_use: float
    use_order: int
    load_s: float
    options: LoadOptions
    asked: LoadOptions
    bytes: Mapping[str, int]
    newcomer: bool = False
    unload: bool = False
    unreachable: bool = False
    was_draining: bool = False
    stuck: bool = False
    keep_alive_s: float | None = None
    evict_weight: float = 1.0
    reserves: Mapping[str, int] = {}
    settles_at: float = 0.0
    progress: float = 0.0

    @property
    def grants_max(self) -> int:
        """Leases that may be held at once: one above the slots, so that none stands idle between two."""
        return self.slots + 1


class WaiterRow(Struct, frozen=True):
    """One waiting request, in order of arrival by `id`.

    `boarded` is the resident whose load it waited for to the end: that resident serves it, even while it
    drains. `deadline` is on the loop's clock.
    """

    id: int
    model: str
    wants: Wants
    deadline: float
    options: LoadOptions = NO_OPTIONS
    boarded: int = 0
    policy: str | None = None


class Failure(Struct, frozen=True):
    """Failed loads in a row, and until when (loop's clock) the model is refused for them."""

    count: int
    until: float
    message: str


class Freed(Struct, frozen=True):
    """Bytes of a process that exited at `at`: a reading begun before does not show them as free yet.

    `reserves` are those of a process that had not settled: until a sample is begun late enough to show all
    that it did, memory may seem free that it has taken and not given back.
    """

    at: float
    bytes: Mapping[str, int]
    reserves: Mapping[str, int] = {}


class Intent(Struct, frozen=True):
    """The placement for which a load waits, and the options that it was made for."""

    options: LoadOptions
    placement: Placement


class World(Struct, frozen=True):
    """Everything that a plan may look at besides what is desired.

    Attributes:
        placer: knows what models need.
        options: what was asked for when each model was last loaded explicitly.
        intents: the placements for which loads waited after the pass before, by model.
        wanted_since: since when a decision waits for a newer sample, on the loop's clock; never: infinity.
        totals: bytes of each device, as last read: what there is does not change while it cannot be read.
        short: models whose worker has just died for want of memory, and which are tried once more when nobody
            idle is left on their devices.
    """

    placer: Placer
    residents: tuple[ResidentRow, ...] = ()
    waiters: tuple[WaiterRow, ...] = ()
    pinned: frozenset[str] = frozenset()
    failures: Mapping[str, Failure] = {}
    readings: tuple[DeviceReading, ...] = ()
    totals: Mapping[str, int] = {}
    freed: tuple[Freed, ...] = ()
    options: Mapping[str, LoadOptions] = {}
    intents: Mapping[str, Intent] = {}
    wanted_since: float = math.inf
    short: frozenset[str] = frozenset()
    paused: bool = False
    closing: bool = False


class Load(Struct, frozen=True):
    """Start a worker for a model, laid out so. `asked` is what the request asked for; `options` are complete
    but for what the settings say; `lacks` are bytes that devices are short of, where that stops nobody."""

    model: str
    asked: LoadOptions
    options: LoadOptions
    standard: bool
    placement: Placement
    lacks: Mapping[str, int] = {}


class Grant(Struct, frozen=True):
    """Give a waiter its lease (or, for a load, its answer). A request makes the resident standard."""

    waiter: int
    resident: int


class Refuse(Struct, frozen=True):
    waiter: int
    error: RouterError


class Evict(Struct, frozen=True):
    """Stop an idle resident's worker, or cancel a load that nobody waits for."""

    resident: int
    why: Why
    room_for: str | None = None


class EndStandard(Struct, frozen=True):
    """Take standard membership from a resident that stays as a helper."""

    resident: int
    why: Why


class BeginStandard(Struct, frozen=True):
    """Give standard membership to a resident that only its pin keeps: it counts in its pool from now on."""

    resident: int


Action = Load | Grant | Refuse | Evict | EndStandard | BeginStandard


class Drain(Struct, frozen=True):
    """Why a resident takes no new lease."""

    why: Why
    room_for: str | None = None


class Wait(Struct, frozen=True):
    """What a model that is asked for waits for, as a sentence without its full stop. A `brief` wait ends by
    itself, whatever the clients do. One with a `kind` is the same wait as others of that kind, although the
    sentences differ in names and counts."""

    sentence: str
    brief: bool = True
    kind: str = ""


class Plan(Struct, frozen=True):
    """What to do now, which residents drain, and when to look again if nothing happens before.

    `blocked` tells, by model, what each model that is asked for waits for. `intents` are the placements of
    those that wait for memory, `claims` the bytes kept for them by device. `wants_sample`: a decision waits
    for newer readings of the devices.
    """

    actions: tuple[Action, ...]
    draining: Mapping[int, Drain]
    next_deadline: float | None
    blocked: Mapping[str, Wait]
    intents: Mapping[str, Intent] = {}
    claims: Mapping[str, int] = {}
    wants_sample: bool = False
