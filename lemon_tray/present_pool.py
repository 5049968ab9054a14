"""The pool of language models: its slots, its sentence, and why there is room for so many."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lemon_tray.names import plain
from lemon_tray.view import Pool, PoolRow, Slot
from lemon_tray.words import counted, translate
from router.snapshot import ResidentState, Snapshot

MAX_SLOTS: Final = 16
LLM: Final = "llm"


def present_pool(snapshot: Snapshot, numbers: Mapping[str, int]) -> Pool:
    """Slots, sentence and breakdown of the pool."""
    pool = snapshot.pool
    residents = [r for r in snapshot.residents if r.type == LLM]
    unlimited = pool.effective_limit < 0
    count = len(residents) + 1 if unlimited else max(pool.effective_limit, len(residents))
    limit = pool.configured_limit
    slots = []
    for index in range(min(count, MAX_SLOTS)):
        resident = residents[index] if index < len(residents) else None
        slots.append(
            Slot(
                number=numbers.get(resident.model, 0) if resident else None,
                loading=resident is not None and resident.state is ResidentState.LOADING,
                within_limit=limit < 0 or index < limit,
                unlimited=unlimited and resident is None,
            )
        )
    shown = len(slots)
    floor = pool.candidate_floor
    loaded = counted("Pool", "{count} loaded", pool.loaded).format(count=pool.loaded)
    if pool.loading:
        spoken_loaded = translate("Pool", "{loaded} loaded, {loading} loading").format(
            loaded=pool.loaded, loading=pool.loading
        )
    else:
        spoken_loaded = loaded
    named, held = _held(snapshot)
    if held is not None:
        room = translate("Pool", "room for {held} of {count}").format(held=held, count=named)
    elif unlimited:
        room = translate("Pool", "room for any number")
    else:
        room = counted("Pool", "room for {count}", pool.effective_limit)
        room = room.format(count=pool.effective_limit)
    limit_text = (
        translate("Pool", "no limit of yours")
        if limit < 0
        else translate("Pool", "your limit {count}").format(count=limit)
    )
    floor_text = translate("Pool", "floor {count}").format(count=floor)
    rows, total, remarks = _breakdown(snapshot)
    return Pool(
        slots=tuple(slots),
        limit_at=limit if 1 <= limit <= shown and not unlimited else None,
        floor_at=floor if 1 <= floor <= shown and not unlimited else None,
        loaded=loaded,
        room=room,
        limit=limit_text,
        floor=floor_text,
        details_name=translate("Pool", "Why {room}").format(room=room),
        rows=rows,
        total=total,
        remarks=remarks,
        accessible=translate("Pool", "LLM pool: {parts}").format(
            parts=", ".join((spoken_loaded, room, limit_text, floor_text))
        ),
    )


def _held(snapshot: Snapshot) -> tuple[int, int | None]:
    """How many candidates the limit lets stay, and how many of them memory holds; None if it holds all."""
    pool = snapshot.pool
    named = pool.candidate_floor
    if pool.effective_limit >= 0:
        named = min(named, pool.effective_limit)
    return named, pool.room_for if pool.room_for is not None and pool.room_for < named else None


def unknown_candidates(snapshot: Snapshot) -> list[str]:
    """A sentence for each model that a policy in force names and nobody knows."""
    return [
        translate("Pool", "Not counted: {model} in {policy} is not a known model").format(
            model=plain(missing, 60), policy=plain(policy.name, 40)
        )
        for policy in snapshot.policies
        if policy.enabled
        for missing in policy.unresolved
    ]


def _breakdown(snapshot: Snapshot) -> tuple[tuple[PoolRow, ...], PoolRow | None, tuple[str, ...]]:
    rows = []
    remarks = unknown_candidates(snapshot)
    for policy in snapshot.policies:
        name = plain(policy.name, 40)
        label = name if policy.enabled else translate("Pool", "{policy} (off)").format(policy=name)
        unresolved = set(policy.unresolved)
        known = [plain(c, 60) for c in policy.candidates if c not in unresolved]
        rows.append(PoolRow(label, ", ".join(known), str(policy.count)))
    if not rows:
        remarks.append(translate("Pool", "No policy is registered, so the floor is 0."))
        return (), None, tuple(remarks)
    if not snapshot.pool.autosize:
        remarks.append(translate("Pool", "Autosize is off, so your limit holds."))
    named, held = _held(snapshot)
    if held is not None:
        text = translate("Pool", "Memory holds {held} of these {count} at once; more take turns.")
        remarks.append(text.format(held=held, count=named))
    floor = str(snapshot.pool.candidate_floor)
    total = PoolRow(translate("Pool", "Different local models (floor)"), "", floor)
    return tuple(rows), total, tuple(remarks)
