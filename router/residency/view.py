"""The reconciler's part of the snapshot: pure functions from the table to what is shown."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs

from router.catalog.model import LLM
from router.devices.base import DeviceReading
from router.residency.admission import UNBOUNDED, Memory, margin_of
from router.residency.desire import Desired
from router.residency.narrate import pool_of
from router.residency.table import Resident, Table
from router.residency.world import ResidentRow, World
from router.settings.schema import Settings
from router.snapshot import (
    DeviceState,
    DeviceView,
    PolicyView,
    PoolView,
    QueueView,
    ResidentState,
    ResidentView,
    SegmentView,
)


def residents_view(desired: Desired, table: Table) -> tuple[ResidentView, ...]:
    waiting = table.waiting_by_model()
    return tuple(_resident(r, desired, table, waiting.get(r.model.name, 0)) for r in table.residents.values())


def _resident(resident: Resident, desired: Desired, table: Table, waiting: int) -> ResidentView:
    state = resident.state
    drain = resident.evicted or resident.drain
    if state is ResidentState.READY and resident.drain is not None:
        state = ResidentState.DRAINING
    worker = resident.worker
    helper = resident.model.name in desired.helpers or resident.helper_leases > 0
    return ResidentView(
        model=resident.model.name,
        type=resident.model.type,
        state=state,
        bytes=sum(resident.charged.values()),
        devices=dict(resident.charged),
        memberships=(*(("standard",) if resident.standard else ()), *(("helper",) if helper else ())),
        pinned=resident.model.name in table.pinned,
        in_use=len(resident.leases),
        waiting=waiting,
        slots=resident.spec.parallel,
        last_use=resident.last_use_wall,
        progress=resident.progress if state is ResidentState.LOADING else None,
        reason=drain.why if drain else "",
        stuck=resident.stuck,
        pid=worker.pid if worker else None,
        backend_url=f"http://{worker.host}:{worker.port}/v1" if worker else None,
        launch_command=worker.launch_command if worker else (),
        options={
            name: value for name, value in structs.asdict(resident.options).items() if value is not None
        },
        tokens_per_s=resident.tokens_per_s,
        keep_alive_s=desired.keep_s(resident.wanted_keep_alive_s),
    )


def pool_view(desired: Desired, table: Table, room_for: int | None = None) -> PoolView:
    members = [r for r in table.residents.values() if r.standard and r.model.type == LLM]
    pool = pool_of(
        desired,
        loaded=sum(r.state is ResidentState.READY for r in members),
        loading=sum(r.state is ResidentState.LOADING for r in members),
    )
    return structs.replace(pool, room_for=room_for)


def policies_view(desired: Desired) -> tuple[PolicyView, ...]:
    return tuple(
        PolicyView(
            name=p.name,
            enabled=p.enabled,
            candidates=p.candidates,
            count=p.count,
            default_model=p.default_model,
            unresolved=p.unresolved,
        )
        for p in desired.policies
    )


def queue_view(table: Table) -> QueueView:
    return QueueView(len(table.waiters), table.waiting_bytes, table.waiting_by_model())


def devices_view(world: World, settings: Settings, claims: Mapping[str, int]) -> tuple[DeviceView, ...]:
    """The devices: what each holds, keeps and has left. `claims` are bytes kept for loads that wait."""
    memory = Memory(world, settings, 0.0)
    return tuple(_device(reading, world, settings, memory, claims) for reading in world.readings)


def _device(
    reading: DeviceReading, world: World, settings: Settings, memory: Memory, claims: Mapping[str, int]
) -> DeviceView:
    device = reading.device
    segments = tuple(
        SegmentView(row.model, size, _not_arrived(row, device.id))
        for row in world.residents
        if (size := row.bytes.get(device.id, 0))
    )
    reserved = sum(s.reserved for s in segments)
    ours = sum(s.bytes for s in segments) - reserved
    known = reading.total is not None and reading.free is not None
    used = (reading.total or 0) - (reading.free or 0)
    claimed = claims.get(device.id, 0)
    room = memory.now.get(device.id)
    return DeviceView(
        id=device.id,
        name=device.name,
        label=device.label,
        kind=device.kind,
        total=reading.total,
        free=reading.free,
        ours=ours,
        reserved=reserved,
        others=max(0, used - ours) if known else 0,
        margin=margin_of(reading.total, settings) if room is not None else 0,
        state=DeviceState.OK if known else DeviceState.UNKNOWN,
        reason=reading.reason,
        segments=segments,
        usable=room is not None,
        claimed=claimed,
        available=max(0, room - claimed) if room is not None and room < UNBOUNDED else None,
    )


def _not_arrived(row: ResidentRow, device: str) -> int:
    """Bytes of a load that are still to come, as the device or the worker itself shows. What is only not seen
    yet, of one that is ready, has come."""
    if row.state is not ResidentState.LOADING:
        return 0
    planned = row.bytes.get(device, 0)
    return min(row.reserves.get(device, 0), planned - int(planned * row.progress))
