"""The model browser's rows: every model, what it needs, and whether it fits, device by device. No Qt."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct

from lemon_tray.names import percent, plain
from lemon_tray.present_devices import HOST, device_labels, usable_devices
from lemon_tray.present_models import load_progress, why_it_failed
from lemon_tray.view import Command, Kind
from lemon_tray.words import counted, translate
from router.snapshot import (
    DeletionView,
    DeviceState,
    DeviceView,
    ModelView,
    ResidentState,
    ResidentView,
    Severity,
    Snapshot,
)
from router.units import GIB, MIB, NBSP, gib

MAX_BARS: Final = 3
MAX_FILES: Final = 4
_NUMBERS: Final = re.compile(r"([0-9]{1,18})")
PARTLY_FROM: Final = 0.4
"""With a larger share of its memory on the host, a model on cards runs notably slower."""


class Verdict(StrEnum):
    """How an answer to "will it fit?" is drawn: each has a glyph and a colour of its own."""

    GOOD = "good"
    BUSY = "busy"
    AFTER = "after"
    PARTLY = "partly"
    BAD = "bad"
    UNKNOWN = "unknown"


class FitBar(Struct, frozen=True):
    """One device as it would be with the model loaded, in shares of its memory."""

    label: str
    others: float
    own: float
    short: float
    tick: float


class CatalogRow(Struct, frozen=True):
    """One model. `action` is what its button does; None where nothing can be done."""

    model: str
    label: str
    about: str
    needs: str
    bars: tuple[FitBar, ...]
    verdict: Verdict
    title: str
    reason: str
    action_label: str
    action: Command | None
    type: str
    loaded: bool
    pinned: bool
    accessible: str
    keeps: str = ""
    """Why its files cannot be deleted now; "" if they can."""


class Fact(Struct, frozen=True):
    label: str
    text: str


class Deletion(Struct, frozen=True):
    """A deletion as it is asked about: `lines` name the files, `stays` says why nothing is deleted."""

    title: str
    lines: tuple[str, ...] = ()
    warning: str = ""
    button: str = ""
    stays: str = ""


class PlanView(Struct, frozen=True):
    """What a plan with chosen options says."""

    verdict: Verdict
    text: str


def type_text(kind: str) -> str:
    """A type of models as people say it."""
    known = {
        "llm": translate("Catalog", "Language"),
        "embedding": translate("Catalog", "Embedding"),
        "reranking": translate("Catalog", "Reranking"),
    }
    return known.get(kind, plain(kind, 24).capitalize())


def present_catalog(snapshot: Snapshot) -> tuple[CatalogRow, ...]:
    """A row for each model, by name; those that are loaded or loading first."""
    residents = {r.model: r for r in snapshot.residents}
    devices = _devices(snapshot)
    labels = device_labels(snapshot)
    failures = _failures(snapshot, residents)
    models = sorted(snapshot.models, key=lambda m: (m.name not in residents, in_order(m.name)))
    known = {m.name for m in models}
    gone = [ModelView(r.model, r.type, 0, 0) for r in snapshot.residents if r.model not in known]
    return tuple(
        _row(m, residents.get(m.name), devices, labels, failures.get(m.name, "")) for m in (*gone, *models)
    )


def shown_rows(rows: Iterable[CatalogRow], query: str, kind: str) -> list[CatalogRow]:
    """Those of a type ("" for all) whose name or description has every word of the query."""
    words = query.casefold().split()
    found = []
    for row in rows:
        text = f"{row.model} {row.about} {row.title}".casefold()
        if kind in ("", row.type) and all(word in text for word in words):
            found.append(row)
    return found


def types_of(snapshot: Snapshot) -> list[tuple[str, int]]:
    """The types that there are and how many models have each, the most frequent first."""
    counts: dict[str, int] = {}
    for model in snapshot.models:
        counts[model.type] = counts.get(model.type, 0) + 1
    return sorted(counts.items(), key=lambda item: -item[1])


def in_order(name: str) -> list[tuple[int, int, str]]:
    """What names are sorted by: letters of either case alike, numbers by their value."""
    parts = [part for part in _NUMBERS.split(name.casefold()) if part]
    return [(0, int(p), p) if _NUMBERS.fullmatch(p) else (1, 0, p) for p in parts]


def _devices(snapshot: Snapshot) -> list[DeviceView]:
    usable = usable_devices(snapshot)
    return [d for d in usable if d.kind != HOST] or usable


def _failures(snapshot: Snapshot, residents: Mapping[str, ResidentView]) -> dict[str, str]:
    found: dict[str, str] = {}
    for entry in snapshot.feed:
        if entry.model is None:
            continue
        if entry.code in ("load_failed", "worker_died") and entry.severity is Severity.ERROR:
            found[entry.model] = why_it_failed(entry, 300)
        elif entry.code == "ready":
            found.pop(entry.model, None)
    return {model: why for model, why in found.items() if model not in residents}


def _about(model: ModelView) -> str:
    parts = [type_text(model.type)]
    if model.size_bytes:
        parts.append(_size_text(model.size_bytes))
    if model.context_length:
        parts.append(translate("Catalog", "{count} context").format(count=f"{model.context_length:,}"))
    if model.source:
        parts.append(plain(model.source, 30))
    return " · ".join(parts)


def _row(
    model: ModelView,
    resident: ResidentView | None,
    devices: list[DeviceView],
    labels: Mapping[str, str],
    failure: str,
) -> CatalogRow:
    needs = resident.bytes if resident is not None else model.needs
    target: DeviceView | None = None
    if resident is not None:
        verdict, title, reason = _resident_verdict(resident, devices, labels)
        action_label, action = _resident_action(resident)
    else:
        verdict, title, reason, target = _verdict(model, devices)
        if failure and verdict is not Verdict.BAD:
            reason = translate("Catalog", "Last load failed: {why}").format(why=failure)
        action_label, action = translate("Catalog", "Load"), Command(Kind.LOAD, model.name)
        if model.broken:
            action_label, action = "", None
    name = plain(model.name)
    bars = tuple(_fit_bar(d, model.name, needs, target, verdict) for d in devices[:MAX_BARS])
    return CatalogRow(
        model=model.name,
        label=name,
        about=_about(model),
        needs=f"{needs / GIB:.1f}" if needs else "–",
        bars=() if model.broken else bars,
        verdict=verdict,
        title=title,
        reason=reason,
        action_label=action_label,
        action=action,
        type=model.type,
        loaded=resident is not None,
        pinned=resident is not None and resident.pinned,
        accessible=f"{name}: {title}" + (f"; {reason}" if reason else ""),
        keeps=_why_kept(model, resident),
    )


def _why_kept(model: ModelView, resident: ResidentView | None) -> str:
    if resident is not None:
        return translate("Catalog", "Unload it first.")
    if model.foreign:
        return translate("Catalog", "Not deleted here: {reason}").format(reason=plain(model.foreign, 300))
    return ""


def _resident_verdict(
    resident: ResidentView, devices: list[DeviceView], labels: Mapping[str, str]
) -> tuple[Verdict, str, str]:
    cards = {d.id for d in devices if d.kind != HOST}
    held = [d for d, count in resident.devices.items() if count > 0]
    on_cards = [labels.get(d, d) for d in held if d in cards]
    where = " + ".join(on_cards) or translate("Catalog", "the CPU")
    if resident.state is ResidentState.LOADING:
        title = translate("Catalog", "Loading on {where}").format(where=where)
        return Verdict.BUSY, title, percent(load_progress(resident))
    if resident.state is not ResidentState.READY:
        return Verdict.BUSY, translate("Catalog", "Unloading"), plain(resident.reason, 120)
    state = (
        counted("Catalog", "{count} running", resident.in_use).format(count=resident.in_use)
        if resident.in_use
        else translate("Catalog", "Idle")
    )
    parts = [state]
    if resident.pinned:
        parts.append(translate("Catalog", "pinned"))
    if resident.tokens_per_s is not None:
        parts.append(f"{resident.tokens_per_s:.1f}{NBSP}tok/s")
    on_host = sum(resident.devices[d] for d in held if d not in cards)
    if on_cards and on_host > PARTLY_FROM * sum(resident.devices.values()):
        parts.insert(0, translate("Catalog", "{size} on the host").format(size=gib(on_host)))
        return (
            Verdict.PARTLY,
            translate("Catalog", "Loaded, partly on {where}").format(where=where),
            " · ".join(parts),
        )
    return Verdict.GOOD, translate("Catalog", "Loaded on {where}").format(where=where), " · ".join(parts)


def _resident_action(resident: ResidentView) -> tuple[str, Command | None]:
    if resident.state is ResidentState.LOADING:
        return translate("Catalog", "Cancel"), Command(Kind.UNLOAD, resident.model)
    if resident.state is ResidentState.READY:
        return translate("Catalog", "Unload"), Command(Kind.UNLOAD, resident.model)
    return translate("Catalog", "Unload"), None


def _label(device: DeviceView) -> str:
    return plain(device.label or device.name, 24)


def _verdict(model: ModelView, devices: list[DeviceView]) -> tuple[Verdict, str, str, DeviceView | None]:
    """The verdict in words, and the device that it speaks of."""
    if model.broken:
        title = translate("Catalog", "Cannot be loaded")
        return Verdict.BAD, title, plain(model.broken, 200), None
    if not model.needs:
        return (
            Verdict.UNKNOWN,
            translate("Catalog", "Not known yet"),
            translate("Catalog", "What it needs is being worked out"),
            None,
        )
    known = [d for d in devices if d.state is DeviceState.OK and d.total is not None]
    roomiest = max(known, key=lambda d: (d.total or 0) - d.margin, default=None)
    if model.fits is False:
        title = translate("Catalog", "Does not fit: needs {size}").format(size=gib(model.needs))
        reason = translate("Catalog", "A smaller context or file may help")
        if len(known) == 1 and roomiest is not None and roomiest.total is not None:
            most = max(0, roomiest.total - roomiest.margin)
            if model.needs > most:
                title = translate("Catalog", "Does not fit: {size} short").format(
                    size=gib(model.needs - most)
                )
        return Verdict.BAD, title, reason, roomiest
    free = [d for d in known if d.available is not None]
    best = max(free, key=lambda d: d.available or 0, default=None)
    if best is not None and best.available is not None:
        if best.available >= model.needs:
            return (
                Verdict.GOOD,
                translate("Catalog", "Fits on {device}").format(device=_label(best)),
                translate("Catalog", "{size} stays usable").format(size=gib(best.available - model.needs)),
                best,
            )
        if model.fits and sum(d.available or 0 for d in free) >= model.needs:
            where = " + ".join(_label(d) for d in free)
            spread = translate("Catalog", "Spread over several devices")
            return Verdict.GOOD, translate("Catalog", "Fits on {device}").format(device=where), spread, best
        if model.fits:
            usable = translate("Catalog", "{size} is usable on {device} now").format(
                size=gib(best.available), device=_label(best)
            )
            return Verdict.AFTER, translate("Catalog", "Fits after unloading others"), usable, roomiest
    if model.fits:
        return Verdict.GOOD, translate("Catalog", "Fits"), "", roomiest
    return Verdict.UNKNOWN, translate("Catalog", "Not known"), translate("Catalog", "No reading"), None


def _fit_bar(
    device: DeviceView, model: str, needs: int, target: DeviceView | None, verdict: Verdict
) -> FitBar:
    total = device.total or 0
    if device.state is DeviceState.UNKNOWN or total <= 0:
        return FitBar(_label(device), 0.0, 0.0, 0.0, 1.0)
    held = sum(s.bytes for s in device.segments if s.model == model)
    ours = sum(s.bytes for s in device.segments)
    others = max(0, device.ours + device.reserved + device.others - ours) + ours - held
    own, short = held, 0
    if target is not None and device.id == target.id and needs and not held:
        if verdict is Verdict.AFTER:
            others = min(others, max(0, total - device.margin - needs))  # what could go has gone
        room = max(0, total - device.margin - others)
        own = min(needs, room)
        short = min(needs - own, max(0, total - others - own)) if verdict is Verdict.BAD else 0
    return FitBar(
        label=_label(device),
        others=min(1.0, others / total),
        own=min(1.0, own / total),
        short=min(1.0, short / total),
        tick=max(0.0, 1.0 - device.margin / total),
    )


def facts(snapshot: Snapshot, name: str) -> tuple[Fact, ...]:
    """What is known of one model beyond its row."""
    model = next((m for m in snapshot.models if m.name == name), None)
    if model is None:
        return ()
    found = []
    if model.broken:
        found.append(Fact(translate("Catalog", "Broken"), plain(model.broken, 400)))
    residents = {r.model: r for r in snapshot.residents}
    if failure := _failures(snapshot, residents).get(name):
        found.append(Fact(translate("Catalog", "Last load failed"), failure))
    if model.source:
        found.append(Fact(translate("Catalog", "Found in"), plain(model.source, 100)))
    if model.aliases:
        found.append(Fact(translate("Catalog", "Aliases"), ", ".join(plain(a, 60) for a in model.aliases)))
    if model.options:
        words = ", ".join(f"{key}={_option_text(value)}" for key, value in model.options.items())
        found.append(Fact(translate("Catalog", "Its options"), plain(words, 400)))
    named = [p.name for p in snapshot.policies if p.enabled and name in p.candidates]
    if named:
        found.append(Fact(translate("Catalog", "Named by"), ", ".join(plain(n, 40) for n in named)))
    return tuple(found)


def present_deletion(model: str, answer: DeletionView | str) -> Deletion:
    """What a deletion would take away, or why it does not come to one."""
    name = plain(model)
    if isinstance(answer, str):
        title = translate("Catalog", "{model} is not deleted").format(model=name)
        return Deletion(title, stays=plain(answer, 400))
    size = _size_text(answer.freed)
    lines = [f"`{plain(file)}`" for file in answer.files[:MAX_FILES]]
    if (more := len(answer.files) - MAX_FILES) > 0:
        text = counted("Catalog", "and {count} more files", more, one="and {count} more file")
        lines.append(text.format(count=more))
    if answer.freed:
        warning = translate("Catalog", "This frees {size} and cannot be undone.").format(size=size)
        button = translate("Catalog", "Delete {size}").format(size=size)
    else:
        warning = translate("Catalog", "Another model or program uses the same data: no space gets free.")
        button = translate("Catalog", "Delete")
    title = counted(
        "Catalog",
        "Delete {model} and its {count} files?",
        len(answer.files),
        one="Delete {model} and its file?",
    ).format(model=name, count=len(answer.files))
    return Deletion(title, tuple(lines), warning, button)


def _size_text(count: int) -> str:
    return f"{count / MIB:.0f}{NBSP}MiB" if count < GIB // 10 else gib(count)


def _option_text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "+".join(str(item) for item in value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def load_options(fields: Mapping[str, str]) -> dict[str, Any]:
    """The options of a load from what stands in the form; empty fields leave theirs open."""
    options: dict[str, Any] = {}
    for key, text in fields.items():
        word = text.strip()
        if not word:
            continue
        if key == "device":
            options[key] = [part.strip() for part in word.split(",") if part.strip()]
        elif word.isascii() and word.isdigit():
            options[key] = int(word)
        else:
            options[key] = word
    return options


def present_plan(table: Mapping[str, Any]) -> PlanView:
    """A plan of the router in a sentence or two."""
    verdict = {
        "fits": Verdict.GOOD,
        "evicts": Verdict.AFTER,
        "waits": Verdict.BUSY,
        "refused": Verdict.BAD,
        "loaded": Verdict.GOOD,
    }.get(str(table.get("verdict")), Verdict.UNKNOWN)
    parts = []
    for row in table.get("devices") or ():
        if row.get("needed"):
            label = plain(str(row.get("label") or row.get("id")), 24)
            available = row.get("available")
            text = translate("Catalog", "{device}: needs {needed}")
            if available is not None:
                text = translate("Catalog", "{device}: needs {needed}, {available} is usable")
            parts.append(
                text.format(device=label, needed=gib(row["needed"]), available=gib(int(available or 0)))
            )
    titles = {
        Verdict.GOOD: translate("Catalog", "Fits now."),
        Verdict.AFTER: translate("Catalog", "Fits after unloading."),
        Verdict.BUSY: translate("Catalog", "Would wait."),
        Verdict.BAD: translate("Catalog", "Does not fit."),
        Verdict.UNKNOWN: "",
    }
    if table.get("verdict") == "loaded":
        titles[Verdict.GOOD] = translate("Catalog", "Loaded so already.")
    reason = plain(str(table.get("reason") or ""), 300)
    needs = f"{'; '.join(parts)}." if parts else ""
    return PlanView(verdict, " ".join(part for part in (titles[verdict], needs, reason) if part))
