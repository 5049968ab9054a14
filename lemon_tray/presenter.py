"""From a snapshot to what is shown: pure functions, no Qt.

This is the whole, with head, controls and feed; each larger part has a module of its own. They share rules:
GiB with one decimal, parts that add up to the total, never a sum across devices, units off by a no-break
space.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from lemon_tray.names import Clock, base_url, is_right_to_left, isolated, local_clock, percent, plain
from lemon_tray.present_banners import present_banners
from lemon_tray.present_devices import Reading, device_labels, devices_note, present_bars, usable_devices
from lemon_tray.present_engines import ENGINE
from lemon_tray.present_menu import present_menu
from lemon_tray.present_models import failed_rows, load_progress, models_note, resident_row
from lemon_tray.present_pool import present_pool
from lemon_tray.present_providers import provider_rows
from lemon_tray.view import Banner, BannerKind, Controls, FeedRow, Head, Mark, PanelView
from lemon_tray.words import counted, translate
from router.snapshot import DeviceState, NoticeView, ResidentState, ResidentView, Snapshot, Status
from router.units import NBSP

FEED_ROWS: Final = 30
_UNIT: Final = re.compile(r"(\d) (GiB|MiB|ms|s|%)(?!\w)")


def model_numbers(known: Mapping[str, int], snapshot: Snapshot) -> dict[str, int]:
    """Each resident's number, which chooses its colour and pattern.

    A model keeps its number for as long as this run knows it; a new one gets the lowest free number.
    """
    residents = [r.model for r in snapshot.residents]
    alive = {m.name for m in snapshot.models}.union(residents)
    numbers = {model: number for model, number in known.items() if model in alive}
    taken = set(numbers.values())
    for model in residents:
        if model not in numbers:
            number = next(n for n in range(len(taken) + 1) if n not in taken)
            numbers[model] = number
            taken.add(number)
    return numbers


def present(
    snapshot: Snapshot,
    *,
    numbers: Mapping[str, int],
    dismissed: frozenset[str] = frozenset(),
    notices: tuple[NoticeView, ...] | None = None,
    fault: Banner | None = None,
    banner_index: int = 0,
    phase: str = "",
    readings: Mapping[str, Reading] | None = None,
    clock: Clock = local_clock,
) -> PanelView:
    """What to show.

    Args:
        snapshot: the router's newest picture.
        numbers: from `model_numbers`.
        dismissed: ids of faults and warnings that the user has put away.
        notices: those to show, if not just those that are due: what was told stays while the panel is open.
        fault: a failure of the app itself or of something the user asked for.
        banner_index: which of the banners that are due to show, worst first; wraps around.
        phase: a word for the head while the app starts or quits.
        readings: from `last_readings`, for devices that do not answer now.
        clock: writes a Unix time as people read it.
    """
    labels = device_labels(snapshot)
    banners = [
        b
        for b in present_banners(snapshot, fault, snapshot.notices if notices is None else notices)
        if b.id not in dismissed
    ]
    shown = _with_more(banners, banner_index)
    bars = present_bars(snapshot, numbers, readings, clock)
    head = _head(snapshot, banners, phase)
    pool = present_pool(snapshot, numbers)
    return PanelView(
        generation=snapshot.generation,
        head=head,
        banner=shown,
        bars=bars,
        devices_note="" if shown is not None and shown.id.startswith(ENGINE) else devices_note(snapshot),
        pool=pool,
        models=(
            *(resident_row(r, snapshot, numbers, labels) for r in snapshot.residents),
            *failed_rows(snapshot, clock),
        ),
        models_note=models_note(snapshot),
        controls=_controls(snapshot),
        feed=_feed(snapshot, clock),
        providers=provider_rows(snapshot),
        menu=present_menu(snapshot, head, bars, pool, labels),
    )


def _with_more(banners: Sequence[Banner], index: int) -> Banner | None:
    if not banners:
        return None
    return msgspec.structs.replace(banners[index % len(banners)], more=len(banners) - 1)


def _loading(snapshot: Snapshot) -> list[ResidentView]:
    return [r for r in snapshot.residents if r.state is ResidentState.LOADING]


def _head(snapshot: Snapshot, banners: Sequence[Banner], phase: str) -> Head:
    loading = _loading(snapshot)
    status = snapshot.status
    if any(b.kind is BannerKind.ERROR for b in banners):
        status = Status.ERROR
    elif status not in (Status.ERROR, Status.WARNING) and any(
        b.kind in (BannerKind.WARNING, BannerKind.NOTICE) for b in banners
    ):
        status = Status.WARNING
    if status is Status.READY and loading:
        status = Status.LOADING
    title = phase or _title(snapshot, banners, status, loading)
    sixths = 6
    if status is Status.LOADING:
        sixths = min(5, int(sum(map(load_progress, loading)) / max(1, len(loading)) * 6))
    spoken = title.replace(f"{NBSP}%", " percent").replace(" · ", ", ")
    return Head(
        title=title,
        endpoint=base_url(snapshot.endpoint),
        mark=Mark(status, sixths),
        accessible=translate("Head", "Lemon Tray: {state}").format(state=spoken),
    )


def _title(
    snapshot: Snapshot, banners: Sequence[Banner], status: Status, loading: Sequence[ResidentView]
) -> str:
    ready = translate("Head", "Paused") if snapshot.paused else translate("Head", "Ready")
    if status is Status.ERROR:
        return _error_title(snapshot, banners)
    if len(loading) == 1:
        name = plain(loading[0].model, 40)
        return translate("Head", "Loading {model} · {percent}").format(
            model=name, percent=percent(load_progress(loading[0]))
        )
    if loading:
        text = counted("Head", "Loading {count} models", len(loading), one="Loading {count} model")
        return text.format(count=len(loading))
    if any(b.kind is BannerKind.NOTICE for b in banners):
        return translate("Head", "{state} · 1 notice").format(state=ready)
    if status is Status.WARNING:
        count = max(1, sum(b.kind is BannerKind.WARNING for b in banners) + len(snapshot.failures))
        text = counted("Head", "{state} · {count} warnings", count, one="{state} · {count} warning")
        return text.format(state=ready, count=count)
    if not snapshot.scanned:
        return translate("Head", "Starting")
    if not snapshot.models:
        return translate("Head", "{state} · no models").format(state=ready)
    return ready


def _error_title(snapshot: Snapshot, banners: Sequence[Banner]) -> str:
    """Which device it is, if that is all that is wrong."""
    unknown = [d for d in usable_devices(snapshot) if d.state is DeviceState.UNKNOWN]
    errors = sum(banner.kind is BannerKind.ERROR for banner in banners)
    if len(unknown) != 1 or errors > 1 or snapshot.degraded:
        return translate("Head", "Error")
    name = plain(unknown[0].label or unknown[0].name, 24)
    return translate("Head", "Error · {device} unknown").format(device=name)


def _controls(snapshot: Snapshot) -> Controls:
    pool = snapshot.pool
    return Controls(autosize=pool.autosize, auto_evict=pool.auto_evict, max_loaded=pool.configured_limit)


def _feed(snapshot: Snapshot, clock: Clock) -> tuple[FeedRow, ...]:
    """The newest entries. Names written from right to left are kept from reordering the sentence."""
    newest = sorted(snapshot.feed, key=lambda e: -e.id)[:FEED_ROWS]
    names: list[str] = []
    if any(is_right_to_left(e.message) for e in newest):
        known = {plain_name for m in snapshot.models if is_right_to_left(plain_name := m.name)}
        names = sorted(known, key=len, reverse=True)
    rows = []
    for entry in newest:
        text = _UNIT.sub(rf"\1{NBSP}\2", plain(entry.message, 200))
        for name in names:
            text = text.replace(name, isolated(name))
        rows.append(FeedRow(id=entry.id, time=clock(entry.time), text=text, severity=entry.severity))
    return tuple(rows)
