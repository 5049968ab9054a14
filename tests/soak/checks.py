"""What must hold in every snapshot of a soak, and on the pretended devices; each fault is one sentence."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from router.devices.simulated import SimulatedDevices
from router.service.status import status_of
from router.snapshot import ResidentState, ResidentView, Snapshot
from router.units import gib
from tests.support.sim_memory import BLIND_S

LLM: Final = "llm"
#: Seconds within which a pool that a lower limit made too large begins to shrink. A pass follows at once.
SOON_S: Final = 3.0
#: Seconds within which a process that was told to stop has ended, or is told of as stuck.
GONE_S: Final = 30.0
_POOLED: Final = (ResidentState.READY, ResidentState.DRAINING)


class Checks:
    """Looks at each snapshot. What it finds is in `faults`."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.seen = 0
        self._before: Snapshot | None = None
        self._over_since: dict[str, float] = {}
        self._going_since: dict[str, float] = {}

    def look(self, snapshot: Snapshot, now: float) -> None:
        """Look at the next snapshot, which was published at `now`, in seconds of a steady clock."""
        self.seen += 1
        before, self._before = self._before, snapshot
        if before is not None and snapshot.generation <= before.generation:
            self._fault(f"generation {snapshot.generation} came after {before.generation}")
        if snapshot.degraded:
            self._fault(f"degraded: {snapshot.degraded}")
        if snapshot.status is not status_of(snapshot):
            self._fault(f"status {snapshot.status} where it is {status_of(snapshot)}")
        self._residents(snapshot, before)
        self._pool(snapshot)
        self._limits(snapshot, now)
        self._going(snapshot, now)
        self._queue(snapshot)
        self._devices(snapshot)

    def _fault(self, sentence: str) -> None:
        self.faults.append(sentence)

    def _residents(self, snapshot: Snapshot, before: Snapshot | None) -> None:
        staying = Counter(
            r.model for r in snapshot.residents if r.state is not ResidentState.EVICTING and not r.stuck
        )
        for name, count in staying.items():
            if count > 1:
                self._fault(f"{name} is there {count} times")
        for resident in snapshot.residents:
            if resident.in_use > resident.slots + 1:
                self._fault(f"{resident.model} serves {resident.in_use} with {resident.slots} slots")
            if resident.stuck:
                self._fault(f"{resident.model} cannot be stopped")
        loading, allowed = _loading(snapshot), snapshot.settings["max_parallel_loads"]
        # A lower limit ends no load that goes on.
        if loading > max(allowed, _loading(before) if before is not None else 0):
            self._fault(f"{loading} models load at once, {allowed} may")

    def _pool(self, snapshot: Snapshot) -> None:
        pool, settings = snapshot.pool, snapshot.settings
        if (pool.configured_limit, pool.autosize, pool.auto_evict) != (
            settings["max_loaded_models"],
            settings["llm_pool_autosize"],
            settings["auto_evict"],
        ):
            self._fault("the pool and the settings are of two moments")
        standard = [r for r in snapshot.residents if r.type == LLM and "standard" in r.memberships]
        counts = (
            sum(r.state in _POOLED for r in standard),
            sum(r.state is ResidentState.LOADING for r in standard),
        )
        if counts != (pool.loaded, pool.loading):
            self._fault(f"the pool counts {pool.loaded} and {pool.loading}, there are {counts}")
        names = {n: m.name for m in snapshot.models for n in (m.name, *m.aliases) if m.type == LLM}
        named = {names[c] for p in snapshot.policies if p.enabled for c in p.candidates if c in names}
        if pool.candidate_floor != len(named):
            self._fault(f"the floor is {pool.candidate_floor}, policies name {len(named)}")
        limit = pool.configured_limit
        if limit != -1 and pool.autosize:
            limit = max(limit, pool.candidate_floor)
        if pool.effective_limit != limit:
            self._fault(f"the limit is {pool.effective_limit}, it should be {limit}")

    def _limits(self, snapshot: Snapshot, now: float) -> None:
        for kind, limit in {**snapshot.effective_limits, LLM: snapshot.pool.effective_limit}.items():
            pool = [
                r
                for r in snapshot.residents
                if r.type == kind and "standard" in r.memberships and r.state is not ResidentState.EVICTING
            ]
            if limit == -1 or len(pool) - limit <= sum(_is_excused(r) for r in pool):
                self._over_since.pop(kind, None)
            elif now > self._over_since.setdefault(kind, now) + SOON_S:
                states = [f"{r.model} {r.state} {r.in_use}/{r.waiting} {r.memberships}" for r in pool]
                self._fault(f"{', '.join(states)} where {limit} may be, generation {snapshot.generation}")

    def _going(self, snapshot: Snapshot, now: float) -> None:
        going = {r.model for r in snapshot.residents if r.state is ResidentState.EVICTING and not r.stuck}
        self._going_since = {name: self._going_since.get(name, now) for name in going}
        for name, since in self._going_since.items():
            if now > since + GONE_S:
                self._fault(f"{name} has been going for more than {GONE_S:g} s")

    def _queue(self, snapshot: Snapshot) -> None:
        queue = snapshot.queue
        if queue.waiting != sum(queue.by_model.values()):
            self._fault(f"{queue.waiting} wait, by model {dict(queue.by_model)}")
        for resident in snapshot.residents:
            if resident.waiting != queue.by_model.get(resident.model, 0):
                self._fault(f"{resident.waiting} wait for {resident.model}, the queue says otherwise")

    def _devices(self, snapshot: Snapshot) -> None:
        for device in snapshot.devices:
            held = sum(s.bytes for s in device.segments)
            if held != device.ours + device.reserved:
                self._fault(f"{device.label} shows {device.ours} and {device.reserved} of {held}")
            charged = Counter[str]()
            for resident in snapshot.residents:
                charged[resident.model] += resident.devices.get(device.id, 0)
            shown = Counter[str]()
            for segment in device.segments:
                shown[segment.model] += segment.bytes
            if +charged != +shown:
                self._fault(f"{device.label} shows {dict(+shown)}, models hold {dict(+charged)}")


def _loading(snapshot: Snapshot) -> int:
    return sum(r.state is ResidentState.LOADING for r in snapshot.residents)


def _is_excused(resident: ResidentView) -> bool:
    """Whether a model may be there beyond the limit: it goes, is pinned, or loads for somebody who waits."""
    return (
        resident.state is ResidentState.DRAINING
        or resident.pinned
        or (resident.state is ResidentState.LOADING and resident.waiting > 0)
    )


class JudgedDevices(SimulatedDevices):
    """Pretended devices that note each time that models take more than there is.

    A load is excused if it was admitted at a risk, if its device could not be read then, or if other programs
    took memory so shortly before, or later, that the decision could not know.
    """

    judged: ClassVar[list[JudgedDevices]] = []

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.faults: list[str] = []
        self.takes_risks = False
        #: Since when each load is there, and whether it is excused, by what holds the memory and device.
        self._loads: dict[tuple[object, str], tuple[float, bool]] = {}
        self._grew_at: dict[str, float] = {}
        self._unread_at: dict[str, float] = {}
        JudgedDevices.judged.append(self)

    def allocate(self, owner: object, amounts: Mapping[str, int], pid: int | None = None) -> None:
        now = asyncio.get_running_loop().time()
        before = {name: sum(size for size, _ in d.held.values()) for name, d in self._devices.items()}
        super().allocate(owner, amounts, pid)
        for name, device in self._devices.items():
            if not amounts.get(name, 0):
                self._loads.pop((owner, name), None)
                continue
            unread = device.is_lost or now < self._unread_at.get(name, -BLIND_S) + BLIND_S
            self._loads.setdefault((owner, name), (now, self.takes_risks or unread))
            ours = sum(size for size, _ in device.held.values())
            used = ours + device.others
            if ours <= before[name] or used <= device.total:
                continue
            grew_at = self._grew_at.get(name, float("-inf"))
            loads = [(at, excused) for (_, n), (at, excused) in self._loads.items() if n == name]
            if not any(excused or at < grew_at + BLIND_S + device.lag_s for at, excused in loads):
                self.faults.append(f"{device.info.label} holds {gib(used)} of {gib(device.total)}")

    def change(self, change: Mapping[str, Any]) -> dict[str, Any]:
        before = {name: device.others for name, device in self._devices.items()}
        now = asyncio.get_running_loop().time()
        told = super().change(change)
        for name, device in self._devices.items():
            if device.others > before[name]:
                self._grew_at[name] = now
            if device.is_lost or change.get("lost") is False:
                self._unread_at[name] = now
        return told
