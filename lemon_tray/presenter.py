"""From a snapshot to what is shown: pure functions, no Qt.

Numbers follow the panel's rules: GiB with one decimal, parts that add up to the total, never a sum across
devices, units off by a no-break space.
"""

from __future__ import annotations

import re
import shlex
import time
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from lemon_tray.view import (
    Banner,
    BannerKind,
    Bar,
    Command,
    Controls,
    FeedRow,
    Head,
    Kind,
    Mark,
    MenuModel,
    MenuView,
    ModelRow,
    Option,
    PanelView,
    Pool,
    PoolRow,
    Progress,
    Segment,
    SegmentKind,
    Slot,
)
from lemon_tray.words import translate
from router.settings.schema import UNLIMITED
from router.snapshot import (
    DeviceState,
    DeviceView,
    DownloadView,
    FeedEntry,
    NoticeView,
    PoolView,
    ResidentState,
    ResidentView,
    Severity,
    Snapshot,
    Status,
)
from router.units import GIB, MIB, NBSP, gib

MAX_SEGMENTS: Final = 6
MAX_FULL_BARS: Final = 4
MAX_SLOTS: Final = 16
FEED_ROWS: Final = 30
LLM: Final = "llm"
HOST: Final = "host"
_UNSEEN: Final = frozenset({"Cc", "Cf", "Zl", "Zp"})
_SPACES: Final = re.compile(r" {2,}")
LIFE_CODES: Final = frozenset({"load_failed", "worker_died", "ready", "admit"})
DOWNLOAD_OVER: Final = frozenset({"done", "cancelled"})
DOWNLOAD_FAILED: Final = "failed"

Clock = Callable[[float], str]


def local_clock(moment: float) -> str:
    """`14:03`, in the user's time zone."""
    return time.strftime("%H:%M", time.localtime(moment))


# Names ------------------------------------------------------------------------------------------------------


def plain(text: str, limit: int = 300) -> str:
    """`text` on one line, without control characters or backticks, shortened in the middle.

    A text with letters written from right to left is isolated, so that it cannot reorder its neighbours.
    """
    line = "".join(" " if unicodedata.category(c) in _UNSEEN else c for c in text)
    line = _SPACES.sub(" ", line).strip().replace("`", "'")
    if len(line) > limit:
        half = (limit - 1) // 2
        line = f"{line[:half]}…{line[-half:]}"
    if any(unicodedata.bidirectional(c) in ("R", "AL") for c in line):
        line = f"\N{FIRST STRONG ISOLATE}{line}\N{POP DIRECTIONAL ISOLATE}"
    return line


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


def base_url(endpoint: str) -> str:
    """What an app is to be told: the endpoint with `/v1`; "" while there is none."""
    return f"{endpoint.rstrip('/').removesuffix('/v1')}/v1" if endpoint else ""


def curl_example(endpoint: str, model: str) -> str:
    """A shell command that asks `model` for an answer."""
    body = msgspec.json.encode({"model": model, "messages": [{"role": "user", "content": "Hello"}]}).decode()
    header = "-H 'Content-Type: application/json'"
    return f"curl {shlex.quote(base_url(endpoint) + '/chat/completions')} {header} -d {shlex.quote(body)}"


# The whole --------------------------------------------------------------------------------------------------


def present(
    snapshot: Snapshot,
    *,
    numbers: Mapping[str, int],
    dismissed: frozenset[str] = frozenset(),
    notices: tuple[NoticeView, ...] | None = None,
    fault: Banner | None = None,
    banner_index: int = 0,
    phase: str = "",
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
        clock: writes a Unix time as people read it.
    """
    labels = {d.id: plain(d.label or d.name, 24) for d in snapshot.devices}
    banners = [
        b
        for b in _banners(snapshot, fault, snapshot.notices if notices is None else notices)
        if b.id not in dismissed
    ]
    shown = _with_more(banners, banner_index)
    bars = _bars(snapshot, numbers)
    head = _head(snapshot, banners, phase)
    pool = _pool(snapshot, numbers)
    return PanelView(
        generation=snapshot.generation,
        head=head,
        banner=shown,
        bars=bars,
        devices_note=_devices_note(snapshot),
        pool=pool,
        models=(
            *(_model_row(r, snapshot, numbers, labels) for r in snapshot.residents),
            *_failed_rows(snapshot, clock),
        ),
        models_note=_models_note(snapshot),
        controls=_controls(snapshot),
        feed=tuple(_feed_row(e, clock) for e in sorted(snapshot.feed, key=lambda e: -e.id)[:FEED_ROWS]),
        menu=_menu(snapshot, head, bars, pool),
    )


def _with_more(banners: Sequence[Banner], index: int) -> Banner | None:
    if not banners:
        return None
    return msgspec.structs.replace(banners[index % len(banners)], more=len(banners) - 1)


# Head -------------------------------------------------------------------------------------------------------


def percent(fraction: float) -> str:
    """`43 %`, never 100 before the end."""
    return f"{min(99, int(fraction * 100)) if fraction < 1 else 100}{NBSP}%"


def _loading(snapshot: Snapshot) -> list[ResidentView]:
    return [r for r in snapshot.residents if r.state is ResidentState.LOADING]


def _progress(resident: ResidentView) -> float:
    return min(1.0, max(0.0, resident.progress or 0.0))


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
        sixths = min(5, int(sum(map(_progress, loading)) / max(1, len(loading)) * 6))
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
        return translate("Head", "Error")
    if len(loading) == 1:
        name = plain(loading[0].model, 40)
        return translate("Head", "Loading {model} · {percent}").format(
            model=name, percent=percent(_progress(loading[0]))
        )
    if loading:
        return translate("Head", "Loading {count} models").format(count=len(loading))
    if any(b.kind is BannerKind.NOTICE for b in banners):
        return translate("Head", "{state} · 1 notice").format(state=ready)
    if status is Status.WARNING:
        count = sum(b.kind is BannerKind.WARNING for b in banners)
        if count > 1:
            return translate("Head", "{state} · {count} warnings").format(state=ready, count=count)
        return translate("Head", "{state} · 1 warning").format(state=ready)
    if not snapshot.scanned:
        return translate("Head", "Starting")
    if not snapshot.models:
        return translate("Head", "{state} · no models").format(state=ready)
    return ready


# Banner -----------------------------------------------------------------------------------------------------

_ORDER: Final = tuple(BannerKind)


def _banners(snapshot: Snapshot, fault: Banner | None, notices: tuple[NoticeView, ...]) -> list[Banner]:
    found: list[Banner] = []
    if fault is not None:
        found.append(fault)
    found.extend(_unknown_device(d) for d in snapshot.devices if d.state is DeviceState.UNKNOWN)
    if snapshot.degraded:
        text = plain(snapshot.degraded, 400)
        found.append(
            _plain_banner("degraded", BannerKind.ERROR, translate("Banner", "Lemon Tray is limited"), text)
        )
    found.extend(_notice(n, snapshot.pool) for n in notices)
    if snapshot.pool.at_risk:
        found.append(_exceeds(snapshot.pool))
    if snapshot.problems:
        title = translate("Banner", "A file could not be read")
        found.append(
            _plain_banner("problems", BannerKind.WARNING, title, plain(" ".join(snapshot.problems), 400))
        )
    unknown = _unknown_candidates(snapshot)
    if unknown:
        title = translate("Banner", "A policy names an unknown model")
        found.append(
            _plain_banner("unresolved", BannerKind.WARNING, title, plain(". ".join(unknown) + ".", 400))
        )
    if snapshot.scanned and not snapshot.models:
        found.append(_no_models(snapshot.downloads))
    return sorted(found, key=lambda b: _ORDER.index(b.kind))  # stable: the order above holds within a kind


def _plain_banner(key: str, kind: BannerKind, title: str, text: str) -> Banner:
    """A fact that can only be read and put away; another text of the same kind shows again."""
    target = f"{key}:{text}"
    hide = Option(label=translate("Banner", "Hide"), command=Command(Kind.DISMISS, target))
    return Banner(id=target, kind=kind, title=title, text=text, options=(hide,))


def _unknown_device(device: DeviceView) -> Banner:
    reason = plain(device.reason or translate("Banner", "No reading"), 200).rstrip(".")
    return Banner(
        id=f"device:{device.id}:{device.reason}",
        kind=BannerKind.ERROR,
        title=translate("Banner", "{name} cannot be read").format(name=_device_title(device)),
        text=translate("Banner", "{reason}. Its memory is unknown until it answers again.").format(
            reason=reason[:1].upper() + reason[1:]
        ),
        options=(
            Option(
                label=translate("Banner", "Hide"),
                command=Command(Kind.DISMISS, f"device:{device.id}:{device.reason}"),
                effect=translate("Banner", "Asked again all the time"),
            ),
        ),
    )


def _set(key: str, value: object) -> Command:
    return Command(Kind.SET, key, value)


def _evict_option(pool: PoolView) -> Option:
    return Option(
        label=translate("Banner", "Unload if short"),
        menu_label=translate("Banner", "Let VRAM pressure unload idle models (auto_evict=true)"),
        command=_set("auto_evict", True),
        key="`auto_evict=true`",
        effect=translate("Banner", "Up to {room}; idle ones go if short").format(room=pool.effective_limit),
    )


def _hard_limit_option(pool: PoolView) -> Option:
    surplus = pool.loaded - pool.configured_limit
    effect = translate("Banner", "Limit {limit}, as you set it").format(limit=pool.configured_limit)
    if surplus > 0:
        effect = translate("Banner", "Limit {limit}; unloads {surplus} now").format(
            limit=pool.configured_limit, surplus=surplus
        )
    return Option(
        label=translate("Banner", "Restore hard limit"),
        menu_label=translate("Banner", "Restore hard limit (llm_pool_autosize=false)"),
        command=_set("llm_pool_autosize", False),
        key="`llm_pool_autosize=false`",
        effect=effect,
    )


def _exceeds(pool: PoolView) -> Banner:
    return Banner(
        id="exceeds",
        kind=BannerKind.WARNING,
        title=translate("Banner", "The pool may exceed your limit"),
        text=translate(
            "Banner",
            "Up to {room} language models may stay loaded; your limit is {limit} "
            "(`max_loaded_models={limit}`). Idle models stay even when other programs need VRAM "
            "(`auto_evict=false`).",
        ).format(room=pool.effective_limit, limit=pool.configured_limit),
        options=(_evict_option(pool), _hard_limit_option(pool)),
    )


def _notice(notice: NoticeView, pool: PoolView) -> Banner:
    options = [
        Option(
            label=translate("Banner", "Keep"),
            menu_label=translate("Banner", "Keep (changes no setting)"),
            command=Command(Kind.DISMISS, f"notice:{notice.id}"),
            key=translate("Banner", "changes no setting"),
            effect=translate("Banner", "Up to {room} stay loaded").format(room=pool.effective_limit),
        )
    ]
    if pool.at_risk:
        options += [_hard_limit_option(pool), _evict_option(pool)]
    return Banner(
        id=f"notice:{notice.id}",
        kind=BannerKind.NOTICE,
        title=plain(notice.title, 60),
        text=plain(notice.text, 500),
        options=tuple(options),
        footer=translate("Banner", "Shown once. Both settings stay under Live controls."),
    )


def _no_models(downloads: Iterable[DownloadView]) -> Banner:
    title = translate("Banner", "No models yet")
    folder = Option(
        label=translate("Banner", "Add a folder"),
        menu_label=translate("Banner", "Add a folder with models…"),
        command=Command(Kind.ADD_FOLDER),
        key=translate("Banner", "GGUF files you have"),
        effect="`models_dirs`",
        glyph="folder",
    )
    failed: DownloadView | None = None
    for download in downloads:
        if download.state == DOWNLOAD_FAILED:
            failed = download
        elif download.state not in DOWNLOAD_OVER:
            return Banner(
                id="no-models",
                kind=BannerKind.INFO,
                title=title,
                text=translate("Banner", "Getting {model}.").format(model=plain(download.name, 60)),
                progress=_download_progress(download),
                options=(
                    Option(
                        label=translate("Banner", "Cancel"),
                        menu_label=translate("Banner", "Cancel the download"),
                        command=Command(Kind.CANCEL_DOWNLOAD, download.name),
                        effect=translate("Banner", "What has arrived is kept"),
                    ),
                ),
            )
    text = translate("Banner", "The endpoint is up, with nothing to load. Two ways on:")
    if failed is not None:
        reason = plain(failed.error or translate("Banner", "the connection broke"), 200).rstrip(".")
        text = translate("Banner", "{model} did not arrive: {reason}.").format(
            model=plain(failed.name, 60), reason=reason
        )
    get = Option(
        label=translate("Banner", "Try again") if failed else translate("Banner", "Get a demo model"),
        menu_label=translate("Banner", "Get a small demo model"),
        command=Command(Kind.GET_DEMO),
        key=translate("Banner", "A small one, to try"),
        effect=translate("Banner", "About {size} to fetch").format(size=f"90{NBSP}MiB"),
        primary=True,
        glyph="download",
    )
    return Banner(id="no-models", kind=BannerKind.INFO, title=title, text=text, options=(get, folder))


def _download_progress(download: DownloadView) -> Progress:
    done = f"{download.done / MIB:.0f}"
    if not download.total:
        return Progress(None, translate("Banner", "{done} MiB").format(done=done).replace(" ", NBSP))
    total = f"{download.total / MIB:.0f}{NBSP}MiB"
    return Progress(
        min(1.0, download.done / download.total),
        translate("Banner", "{done} of {total}").format(done=done, total=total),
    )


# Devices ----------------------------------------------------------------------------------------------------


def _device_title(device: DeviceView) -> str:
    if device.kind == HOST:
        return translate("Bar", "Host memory")
    return plain(device.name or device.label or device.id, 40)


def _shown_devices(snapshot: Snapshot) -> list[DeviceView]:
    gpus = [d for d in snapshot.devices if d.kind != HOST]
    if not gpus:
        return list(snapshot.devices)
    # The host's bar joins the cards' once a model lives there alone: its memory is then at stake too.
    hosts = {d.id for d in snapshot.devices if d.kind == HOST}
    alone = any(r.devices and hosts.issuperset(r.devices) for r in snapshot.residents)
    return list(snapshot.devices) if alone else gpus


def _devices_note(snapshot: Snapshot) -> str:
    if snapshot.simulated:
        return translate("Bar", "These devices are simulated.")
    if snapshot.devices and all(d.kind == HOST for d in snapshot.devices):
        return translate("Bar", "No GPU found: models run on the CPU, more slowly.")
    return ""


def _bars(snapshot: Snapshot, numbers: Mapping[str, int]) -> tuple[Bar, ...]:
    devices = _shown_devices(snapshot)
    compact = len(devices) > MAX_FULL_BARS
    states = {r.model: r for r in snapshot.residents}
    return tuple(_bar(d, states, numbers, compact) for d in devices)


def tenths(parts: Sequence[int], total: int) -> list[int]:
    """Each part in tenths of GiB, rounded so that they add up to `total`, rounded (largest remainders)."""
    exact = [part * 10 / GIB for part in parts]
    result = [int(value) for value in exact]
    missing = round(total * 10 / GIB) - sum(result)
    by_remainder = sorted(range(len(parts)), key=lambda i: result[i] - exact[i])
    for index in by_remainder[: max(0, missing)]:
        result[index] += 1
    return result


def _one_decimal(value: int) -> str:
    return f"{value // 10}.{value % 10}"


def _bar(
    device: DeviceView, residents: Mapping[str, ResidentView], numbers: Mapping[str, int], compact: bool
) -> Bar:
    title, label = _device_title(device), plain(device.label, 24)
    spoken_title = f"{title}, {label}" if label else title
    if device.state is DeviceState.UNKNOWN or device.total is None:
        reason = plain(device.reason or translate("Bar", "No reading"), 80)
        return Bar(
            id=device.id,
            title=title,
            label=label,
            used=translate("Bar", "Unknown"),
            total_text=gib(device.total) if device.total else "",
            total=None,
            segments=(),
            margin=0,
            margin_tip="",
            reason=reason,
            accessible=translate("Bar", "{device}: memory unknown, {reason}").format(
                device=spoken_title, reason=reason
            ),
            compact=compact,
        )
    total = device.total
    own = [s for s in device.segments if s.bytes > 0]
    owned = min(total, sum(s.bytes for s in own))
    used = min(total, max(owned, device.ours + device.reserved + device.others))
    others = max(0, used - owned)
    if others < MIB:  # readings of two drivers never agree to the byte
        others, used = 0, owned
    free = total - used
    shares = tenths([*(s.bytes for s in own), others, free], total)
    segments = [
        _model_segment(s.model, s.bytes, s.reserved, value, residents.get(s.model), numbers, label or title)
        for s, value in zip(own, shares, strict=False)
    ]
    segments = _fold(segments)
    if others:
        segments.append(
            _plain_segment(SegmentKind.OTHERS, translate("Bar", "Other programs"), others, shares[-2])
        )
    segments.append(_plain_segment(SegmentKind.FREE, translate("Bar", "Free"), free, shares[-1]))
    used_text = _one_decimal(round(total * 10 / GIB) - shares[-1])
    total_text = gib(total)
    return Bar(
        id=device.id,
        title=title,
        label=label,
        used=used_text,
        total_text=total_text,
        total=total,
        segments=tuple(segments),
        margin=min(device.margin, total),
        margin_tip=translate("Bar", "Margin: {size} kept free").format(size=_size(device.margin)),
        reason="",
        accessible=translate("Bar", "{device}: {used} of {total} gibibytes spoken for").format(
            device=spoken_title, used=used_text, total=_one_decimal(round(total * 10 / GIB))
        ),
        compact=compact,
    )


def _size(count: int) -> str:
    return gib(count) if count >= GIB else f"{count / MIB:.0f}{NBSP}MiB"


def _model_segment(
    model: str,
    count: int,
    reserved: int,
    share: int,
    resident: ResidentView | None,
    numbers: Mapping[str, int],
    where: str,
) -> Segment:
    name = plain(model)
    value = _one_decimal(share)
    note = ""
    if reserved > 0:
        note = translate("Bar", "reserved")
    elif resident is not None and sum(1 for b in resident.devices.values() if b > 0) > 1:
        note = translate("Bar", "part")
    head = translate("Bar", "{model} on {device}: {size}").format(
        model=name, device=where, size=f"{value}{NBSP}GiB"
    )
    lines = [head]
    if reserved > 0:
        lines.append(
            translate("Bar", "{arrived} arrived, {reserved} reserved").format(
                arrived=gib(count - reserved), reserved=gib(reserved)
            )
        )
        spoken = translate("Bar", "{model}, loading: {size} gibibytes, of which {arrived} arrived").format(
            model=name, size=value, arrived=f"{(count - reserved) / GIB:.1f}"
        )
    else:
        spoken = translate("Bar", "{model}: {size} gibibytes").format(model=name, size=value)
    return Segment(
        key=f"model:{model}",
        kind=SegmentKind.MODEL,
        label=name,
        bytes=count,
        value=value,
        number=numbers.get(model, 0),
        reserved=max(0, min(reserved, count)),
        note=note,
        tip=tuple(lines),
        accessible=spoken,
    )


def _plain_segment(kind: SegmentKind, label: str, count: int, share: int) -> Segment:
    value = _one_decimal(share)
    return Segment(
        key=kind.value,
        kind=kind,
        label=label,
        bytes=count,
        value=value,
        tip=(f"{label}: {value}{NBSP}GiB",),
        accessible=translate("Bar", "{model}: {size} gibibytes").format(model=label, size=value),
    )


def _fold(segments: list[Segment]) -> list[Segment]:
    """At most six: the five largest in their order, and the rest as one."""
    if len(segments) <= MAX_SEGMENTS:
        return segments
    keep = set(sorted(range(len(segments)), key=lambda i: -segments[i].bytes)[: MAX_SEGMENTS - 1])
    rest = [s for i, s in enumerate(segments) if i not in keep]
    share = sum(round(float(s.value) * 10) for s in rest)
    label = translate("Bar", "{count} more").format(count=len(rest))
    more = Segment(
        key="more",
        kind=SegmentKind.MORE,
        label=label,
        bytes=sum(s.bytes for s in rest),
        value=_one_decimal(share),
        tip=(label, *(f"{s.label}: {s.value}{NBSP}GiB" for s in rest)),
        accessible=translate("Bar", "{model}: {size} gibibytes").format(
            model=", ".join(s.label for s in rest), size=_one_decimal(share)
        ),
    )
    return [*(s for i, s in enumerate(segments) if i in keep), more]


# Pool -------------------------------------------------------------------------------------------------------


def _pool(snapshot: Snapshot, numbers: Mapping[str, int]) -> Pool:
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
    loaded = translate("Pool", "{count} loaded").format(count=pool.loaded)
    if pool.loading:
        spoken_loaded = translate("Pool", "{loaded} loaded, {loading} loading").format(
            loaded=pool.loaded, loading=pool.loading
        )
    else:
        spoken_loaded = loaded
    room = (
        translate("Pool", "room for any number")
        if unlimited
        else translate("Pool", "room for {count}").format(count=pool.effective_limit)
    )
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


def _unknown_candidates(snapshot: Snapshot) -> list[str]:
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
    remarks = _unknown_candidates(snapshot)
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
    floor = str(snapshot.pool.candidate_floor)
    total = PoolRow(translate("Pool", "Different local models (floor)"), "", floor)
    return tuple(rows), total, tuple(remarks)


# Models -----------------------------------------------------------------------------------------------------


def _models_note(snapshot: Snapshot) -> str:
    if snapshot.residents:
        return ""
    if snapshot.paused:
        return translate("Models", "None loaded. Paused: apps are refused models that are not loaded.")
    return translate("Models", "None loaded. A model loads by itself when an app asks for it.")


def _where(resident: ResidentView, labels: Mapping[str, str], snapshot: Snapshot) -> str:
    hosts = {d.id for d in snapshot.devices if d.kind == HOST}
    used = [d for d, count in resident.devices.items() if count > 0]
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
    return int(resident.bytes * _progress(resident))


def _state(resident: ResidentView, where: str) -> str:
    parts = []
    match resident.state:
        case ResidentState.LOADING:
            text = translate("Models", "Loading on {where}") if where else translate("Models", "Loading")
            parts.append(text.format(where=where))
        case ResidentState.DRAINING:
            parts.append(
                translate("Models", "Unloads after {count} running").format(count=resident.in_use)
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
                parts.append(translate("Models", "{count} running").format(count=resident.in_use))
    if resident.waiting:
        parts.append(translate("Models", "{count} waiting").format(count=resident.waiting))
    if resident.pinned:
        parts.append(translate("Models", "pinned"))
    if resident.type != LLM:
        parts.append(plain(resident.type, 20))
    if where and resident.state is not ResidentState.LOADING:
        parts.append(where)
    return " · ".join(parts)


def _model_row(
    resident: ResidentView, snapshot: Snapshot, numbers: Mapping[str, int], labels: Mapping[str, str]
) -> ModelRow:
    name = plain(resident.model)
    loading = resident.state is ResidentState.LOADING
    size, size_of, rate = gib(resident.bytes), "", ""
    if loading:
        size = f"{_arrived(resident, snapshot) / GIB:.1f}"
        size_of = " " + translate("Models", "of {size}").format(size=gib(resident.bytes))
        rate = percent(_progress(resident))
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
        progress=_progress(resident) if loading else None,
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


def _failed_rows(snapshot: Snapshot, clock: Clock) -> list[ModelRow]:
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
            time=clock(entry.time), reason=plain(entry.reason or entry.message, 200)
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


# Controls, feed, menu ---------------------------------------------------------------------------------------


def _controls(snapshot: Snapshot) -> Controls:
    pool = snapshot.pool
    return Controls(autosize=pool.autosize, auto_evict=pool.auto_evict, max_loaded=pool.configured_limit)


def _feed_row(entry: FeedEntry, clock: Clock) -> FeedRow:
    return FeedRow(
        id=entry.id, time=clock(entry.time), text=plain(entry.message, 200), severity=entry.severity
    )


def limit_text(limit: int) -> str:
    """A value of `max_loaded_models` in words."""
    return translate("Controls", "no limit") if limit == UNLIMITED else str(limit)


def _menu(snapshot: Snapshot, head: Head, bars: Sequence[Bar], pool: Pool) -> MenuView:
    status = [head.title]
    for bar in bars:
        device = f"{bar.title} ({bar.label})" if bar.label else bar.title
        if bar.total is None:
            status.append(translate("Menu", "{device}: {reason}").format(device=device, reason=bar.reason))
        else:
            status.append(
                translate("Menu", "{device}: {used} of {total}").format(
                    device=device, used=bar.used, total=bar.total_text
                )
            )
    status.append(
        translate("Menu", "LLM pool: {parts}").format(
            parts=", ".join((pool.loaded, pool.room, pool.limit, pool.floor))
        )
    )
    residents = tuple(_menu_model(r, snapshot) for r in snapshot.residents)
    loaded = {r.model for r in snapshot.residents}
    loadable = tuple(
        (m.name, plain(m.name, 60)) for m in snapshot.models if m.name not in loaded and not m.broken
    )
    tooltip = [translate("Menu", "Lemon Tray: {state}").format(state=head.title)]
    tooltip += [f"{bar.title}: {bar.used} / {bar.total_text}" for bar in bars if bar.total is not None]
    chat = [r.model for r in snapshot.residents if r.type == LLM]
    chat += [p.name for p in snapshot.policies if p.enabled]
    chat += [m.name for m in snapshot.models if m.type == LLM and not m.broken]
    return MenuView(
        status=tuple(status),
        residents=residents,
        loadable=loadable,
        tooltip="\n".join(tooltip),
        paused=snapshot.paused,
        curl=curl_example(snapshot.endpoint, chat[0] if chat else "MODEL"),
    )


def _menu_model(resident: ResidentView, snapshot: Snapshot) -> MenuModel:
    loading = resident.state is ResidentState.LOADING
    name = plain(resident.model, 60)
    parts = []
    if loading:
        parts.append(translate("Menu", "loading {percent}").format(percent=percent(_progress(resident))))
    elif resident.state is ResidentState.READY:
        parts.append(translate("Menu", "ready"))
    else:
        parts.append(translate("Menu", "unloading"))
    if resident.pinned:
        parts.append(translate("Menu", "pinned"))
    if not loading:
        parts.append(gib(resident.bytes))
        if resident.tokens_per_s is not None:
            parts.append(f"{resident.tokens_per_s:.1f}{NBSP}tok/s")
    labels = {d.id: plain(d.label or d.name, 24) for d in snapshot.devices}
    detail = ", ".join(f"{labels.get(d, d)} {gib(b)}" for d, b in resident.devices.items() if b > 0)
    return MenuModel(
        model=resident.model,
        label=f"{name}: {', '.join(parts)}",
        detail=detail or gib(resident.bytes),
        pinned=resident.pinned,
        loading=loading,
    )
