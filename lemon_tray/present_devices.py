"""The devices' bars: who holds how much of which memory.

Numbers are GiB with one decimal, and the parts of a bar add up to its total.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from msgspec import Struct, structs

from lemon_tray.names import Clock, local_clock, plain
from lemon_tray.view import Bar, Segment, SegmentKind
from lemon_tray.words import counted, translate
from router.snapshot import DeviceState, DeviceView, ResidentState, ResidentView, Snapshot
from router.units import GIB, MIB, NBSP, gib

MAX_SEGMENTS: Final = 6
MAX_FULL_BARS: Final = 4
HOST: Final = "host"
PART_FROM: Final = 0.25
"""With a smaller share of its memory on the host, a model on a card counts as being there."""


class Reading(Struct, frozen=True):
    """What a device said last: `time` in Unix seconds, the rest in bytes."""

    time: float
    total: int
    used: int


def last_readings(known: Mapping[str, Reading], snapshot: Snapshot, now: float) -> dict[str, Reading]:
    """Each device's last reading by its id, for the time when it does not answer.

    A device keeps what it said for as long as the snapshot names it.
    """
    readings = {}
    for device in snapshot.devices:
        if device.state is DeviceState.OK and device.total is not None and device.free is not None:
            readings[device.id] = Reading(now, device.total, max(0, device.total - device.free))
        elif device.id in known:
            readings[device.id] = known[device.id]
    return readings


def device_title(device: DeviceView) -> str:
    """A device's name as a heading."""
    if device.kind == HOST:
        return translate("Bar", "Host memory")
    return plain(device.name or device.label or device.id, 40)


def device_labels(snapshot: Snapshot) -> dict[str, str]:
    """Each device's short name, by its id."""
    return {d.id: plain(d.label or d.name, 24) for d in snapshot.devices}


def places(resident: ResidentView, hosts: Collection[str]) -> list[str]:
    """The ids of the devices that a model lives on.

    `hosts` are those of host memory: it counts only with a share that is felt, for a model on a card always
    has something there.
    """
    held = [device for device, count in resident.devices.items() if count > 0]
    cards = [device for device in held if device not in hosts]
    on_host = sum(resident.devices[device] for device in held if device in hosts)
    if cards and on_host < PART_FROM * sum(resident.devices.values()):
        return cards
    return held


def usable_devices(snapshot: Snapshot) -> list[DeviceView]:
    """The host, and the cards that the engine can load on."""
    return [d for d in snapshot.devices if d.kind == HOST or d.usable]


def _shown_devices(snapshot: Snapshot) -> list[DeviceView]:
    usable = usable_devices(snapshot)
    gpus = [d for d in usable if d.kind != HOST]
    if not gpus:
        return usable
    # The host's bar joins the cards' once a model lives there alone: its memory is then at stake too.
    hosts = {d.id for d in usable if d.kind == HOST}
    alone = any(r.devices and hosts.issuperset(r.devices) for r in snapshot.residents)
    return usable if alone else gpus


def devices_note(snapshot: Snapshot) -> str:
    """What is worth knowing of the devices as a whole; "" for nothing."""
    if snapshot.simulated:
        return translate("Bar", "These devices are simulated.")
    if not snapshot.devices:
        return ""
    idle = ", ".join(device_title(d) for d in idle_cards(snapshot))
    if any(d.kind != HOST for d in usable_devices(snapshot)):
        if not idle:
            return ""
        return translate("Bar", "{names} found, but this engine cannot use it.").format(names=idle)
    if idle:
        return translate("Bar", "{names} found, but this engine runs models on the CPU.").format(names=idle)
    return translate("Bar", "No GPU found: models run on the CPU, more slowly.")


def idle_cards(snapshot: Snapshot) -> list[DeviceView]:
    """The cards that are there and that the engine cannot load on."""
    return [d for d in snapshot.devices if d.kind != HOST and not d.usable]


def present_bars(
    snapshot: Snapshot,
    numbers: Mapping[str, int],
    readings: Mapping[str, Reading] | None = None,
    clock: Clock = local_clock,
) -> tuple[Bar, ...]:
    """A bar for each device that is shown, in the snapshot's order.

    `readings` are those of `last_readings`; `clock` writes their time.
    """
    devices = _shown_devices(snapshot)
    compact = len(devices) > MAX_FULL_BARS
    states = {r.model: r for r in snapshot.residents}
    last = readings or {}
    hosts = {d.id for d in snapshot.devices if d.kind == HOST}
    bars = []
    for device in devices:
        if device.state is DeviceState.UNKNOWN or device.total is None:
            bars.append(_unknown_bar(device, last.get(device.id), clock, compact))
        else:
            bars.append(_bar(device, device.total, states, numbers, hosts, compact))
    return tuple(bars)


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


def _names(device: DeviceView) -> tuple[str, str, str]:
    """Title, short name, and both together as they are spoken."""
    title, label = device_title(device), plain(device.label, 24)
    return title, label, f"{title}, {label}" if label else title


def _unknown_bar(device: DeviceView, last: Reading | None, clock: Clock, compact: bool) -> Bar:
    title, label, spoken_title = _names(device)
    reason = plain(device.reason or translate("Bar", "No reading"), 80)
    total = device.total or (last.total if last else None)
    note = ""
    if last is not None:
        note = translate("Bar", "Last reading {time}: {used} used, {free} free").format(
            time=clock(last.time), used=gib(last.used), free=gib(max(0, last.total - last.used))
        )
    spoken = translate("Bar", "{device}: memory unknown, {reason}").format(device=spoken_title, reason=reason)
    return Bar(
        id=device.id,
        title=title,
        label=label,
        used=translate("Bar", "Unknown"),
        total_text=gib(total) if total else "",
        total=None,
        segments=(),
        margin=0,
        margin_tip="",
        reason=reason,
        accessible=f"{spoken}. {note}" if note else spoken,
        compact=compact,
        note=note,
    )


def _bar(
    device: DeviceView,
    total: int,
    residents: Mapping[str, ResidentView],
    numbers: Mapping[str, int],
    hosts: Collection[str],
    compact: bool,
) -> Bar:
    title, label, spoken_title = _names(device)
    own = [s for s in device.segments if s.bytes > 0]
    owned = min(total, sum(s.bytes for s in own))
    used = min(total, max(owned, device.ours + device.reserved + device.others))
    others = max(0, used - owned)
    if others < MIB:  # readings of two drivers never agree to the byte
        others, used = 0, owned
    # What a claim holds of memory that is still taken shows as its owner's until that has let go of it.
    kept = min(max(0, device.claimed), total - used)
    free = total - used - kept
    shares = tenths([*(s.bytes for s in own), others, kept, free], total)
    segments = [
        _model_segment(
            s.model, s.bytes, s.reserved, value, residents.get(s.model), numbers, label or title, hosts
        )
        for s, value in zip(own, shares, strict=False)
    ]
    segments = _fold(segments)
    if others:
        segments.append(
            _plain_segment(SegmentKind.OTHERS, translate("Bar", "Other programs"), others, shares[-3])
        )
    claim, coming = "", device.claimed - kept
    if device.claimed > 0:
        claim = translate("Bar", "{size} kept for a load that waits").format(size=_size(device.claimed))
    if kept:
        lines = [translate("Bar", "Kept for a load that waits: {size}").format(size=_size(kept))]
        if coming > 0:
            lines.append(translate("Bar", "{size} more is being freed for it").format(size=_size(coming)))
        plain_claim = _plain_segment(SegmentKind.CLAIM, translate("Bar", "Kept for a load"), kept, shares[-2])
        segments.append(structs.replace(plain_claim, tip=tuple(lines)))
    segments.append(_plain_segment(SegmentKind.FREE, translate("Bar", "Free"), free, shares[-1]))
    used_text = _one_decimal(round(total * 10 / GIB) - shares[-1])
    spoken = translate("Bar", "{device}: {used} of {total} gibibytes spoken for").format(
        device=spoken_title, used=used_text, total=_one_decimal(round(total * 10 / GIB))
    )
    freeing = translate("Bar", "{size} is being freed for a load that waits.")
    return Bar(
        id=device.id,
        title=title,
        label=label,
        used=used_text,
        total_text=gib(total),
        total=total,
        segments=tuple(segments),
        margin=min(device.margin, total),
        margin_tip=translate("Bar", "Margin: {size} kept free").format(size=_size(device.margin)),
        reason="",
        accessible=f"{spoken}, {claim}" if claim else spoken,
        compact=compact,
        note=freeing.format(size=_size(coming)) if coming >= MIB else "",
        claim=claim,
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
    hosts: Collection[str],
) -> Segment:
    name = plain(model)
    value = _one_decimal(share)
    note = ""
    if reserved > 0:
        note = translate("Bar", "reserved")
    elif resident is not None and resident.state in (ResidentState.DRAINING, ResidentState.EVICTING):
        note = translate("Bar", "unloading")
    elif resident is not None and len(places(resident, hosts)) > 1:
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
    label = counted("Bar", "{count} more", len(rest)).format(count=len(rest))
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
