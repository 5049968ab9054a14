"""A row for each resident, and for each model that failed and is not back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lemon_tray.names import Clock, percent, plain
from lemon_tray.present_devices import HOST, places
from lemon_tray.present_pool import LLM
from lemon_tray.view import ModelRow
from lemon_tray.words import counted, translate
from router.snapshot import FeedEntry, ResidentState, ResidentView, Severity, Snapshot
from router.units import GIB, NBSP, gib

LIFE_CODES: Final = frozenset({"load_failed", "worker_died", "ready", "admit"})


def why_it_failed(entry: FeedEntry, limit: int) -> str:
    """The sentence of an entry without its model's name, beside which it stands."""
    text = entry.message
    for beginning, instead in (
        (f"{entry.model} could not be loaded: ", ""),
        (f"Could not load {entry.model}: ", ""),
        (f"The worker of {entry.model} ", "Its worker "),
    ):
        if text.startswith(beginning):
            text = instead + text.removeprefix(beginning)
            break
    return plain(text[:1].upper() + text[1:], limit)


def load_progress(resident: ResidentView) -> float:
    """How far a load is, from 0 to 1."""
    return min(1.0, max(0.0, resident.progress or 0.0))


def models_note(snapshot: Snapshot) -> str:
    """Why no model is loaded; "" while one is."""
    if snapshot.residents:
        return ""
    if snapshot.paused:
        return translate("Models", "None loaded. Paused: apps are refused models that are not loaded.")
    return translate("Models", "None loaded. A model loads by itself when an app asks for it.")


def _where(resident: ResidentView, labels: Mapping[str, str], snapshot: Snapshot) -> str:
    hosts = {d.id for d in snapshot.devices if d.kind == HOST}
    used = places(resident, hosts)
    cards = [labels.get(d, d) for d in used if d not in hosts]
    host = any(d in hosts for d in used)
    if not cards:
        return translate("Models", "CPU") if host else ""
    if host:
        cards.append(translate("Models", "host"))
    return " + ".join(cards)


def _arrived(resident: ResidentView, snapshot: Snapshot) -> int:
    """Bytes of a load that are there: as the devices say, else by the engine's own progress."""
    seen = [s for d in snapshot.devices for s in d.segments if s.model == resident.model]
    if seen:
        return sum(s.bytes - s.reserved for s in seen)
    return int(resident.bytes * load_progress(resident))


def _state(resident: ResidentView, where: str) -> str:
    parts = []
    match resident.state:
        case ResidentState.LOADING:
            text = translate("Models", "Loading on {where}") if where else translate("Models", "Loading")
            parts.append(text.format(where=where))
        case ResidentState.DRAINING:
            parts.append(
                counted("Models", "Unloads after {count} running", resident.in_use).format(
                    count=resident.in_use
                )
                if resident.in_use
                else translate("Models", "Unloading")
            )
        case ResidentState.EVICTING:
            parts.append(
                translate("Models", "The worker does not end")
                if resident.stuck
                else translate("Models", "Unloading")
            )
        case ResidentState.READY:
            parts.append(translate("Models", "Ready"))
            if resident.in_use:
                text = counted("Models", "{count} running", resident.in_use)
                parts.append(text.format(count=resident.in_use))
    if resident.waiting:
        text = counted("Models", "{count} waiting", resident.waiting)
        parts.append(text.format(count=resident.waiting))
    if resident.pinned:
        parts.append(translate("Models", "pinned"))
    if resident.type != LLM:
        parts.append(plain(resident.type, 20))
    if where and resident.state is not ResidentState.LOADING:
        parts.append(where)
    return " · ".join(parts)


def resident_row(
    resident: ResidentView, snapshot: Snapshot, numbers: Mapping[str, int], labels: Mapping[str, str]
) -> ModelRow:
    """The row of a loaded or loading model; `labels` are the devices' short names by id."""
    name = plain(resident.model)
    loading = resident.state is ResidentState.LOADING
    size, size_of, rate = gib(resident.bytes), "", ""
    if loading:
        size = f"{_arrived(resident, snapshot) / GIB:.1f}"
        size_of = " " + translate("Models", "of {size}").format(size=gib(resident.bytes))
        rate = percent(load_progress(resident))
    elif resident.tokens_per_s is not None:
        rate = f"{resident.tokens_per_s:.1f}{NBSP}tok/s"
    return ModelRow(
        model=resident.model,
        label=name,
        number=numbers.get(resident.model, 0),
        state=_state(resident, _where(resident, labels, snapshot)),
        size=size,
        size_of=size_of,
        rate=rate,
        pinned=resident.pinned,
        loading=loading,
        progress=load_progress(resident) if loading else None,
        is_error=resident.stuck,
        can_unload=resident.state in (ResidentState.READY, ResidentState.LOADING),
        pin_name=(
            translate("Models", "Unpin {model}") if resident.pinned else translate("Models", "Pin {model}")
        ).format(model=name),
        unload_name=(
            translate("Models", "Cancel loading {model}")
            if loading
            else translate("Models", "Unload {model}")
        ).format(model=name),
        load_name=translate("Models", "Loading {model}").format(model=name),
    )


def failed_rows(snapshot: Snapshot, clock: Clock) -> list[ModelRow]:
    """A row for each known model whose last load or worker failed and that is not back since."""
    last = {str(e.model): e for e in snapshot.feed if e.model and e.code in LIFE_CODES}
    loaded = {r.model for r in snapshot.residents}
    known = {m.name for m in snapshot.models}
    rows = []
    for model, entry in last.items():
        if entry.severity is not Severity.ERROR or model in loaded or model not in known:
            continue
        name = plain(model)
        state = translate("Models", "Failed {time} · {reason}").format(
            time=clock(entry.time), reason=why_it_failed(entry, 200)
        )
        rows.append(
            ModelRow(
                model=model,
                label=name,
                number=-1,
                state=state,
                size="",
                size_of="",
                rate="",
                pinned=False,
                loading=False,
                progress=None,
                is_error=True,
                can_unload=False,
                pin_name="",
                unload_name=translate("Models", "Retry loading {model}").format(model=name),
                load_name="",
                failed=True,
            )
        )
    return rows
