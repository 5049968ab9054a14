"""The devices' bars: who holds how much of which memory.

Numbers are GiB with one decimal, and the parts of a bar add up to its total.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from lemon_tray.names import plain
from lemon_tray.view import Bar, Segment, SegmentKind
from lemon_tray.words import translate
from router.snapshot import DeviceState, DeviceView, ResidentView, Snapshot
from router.units import GIB, MIB, NBSP, gib

MAX_SEGMENTS: Final = 6
MAX_FULL_BARS: Final = 4
HOST: Final = "host"


def device_title(device: DeviceView) -> str:
    """A device's name as a heading."""
    if device.kind == HOST:
        return translate("Bar", "Host memory")
    return plain(device.name or device.label or device.id, 40)


def device_labels(snapshot: Snapshot) -> dict[str, str]:
    """Each device's short name, by its id."""
    return {d.id: plain(d.label or d.name, 24) for d in snapshot.devices}


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
    if not snapshot.devices or any(d.kind != HOST for d in usable_devices(snapshot)):
        return ""
    idle = [device_title(d) for d in snapshot.devices if not d.usable]
    if idle:
        text = translate("Bar", "{names} found, but this engine runs models on the CPU.")
        return text.format(names=", ".join(idle))
    return translate("Bar", "No GPU found: models run on the CPU, more slowly.")


def present_bars(snapshot: Snapshot, numbers: Mapping[str, int]) -> tuple[Bar, ...]:
    """A bar for each device that is shown, in the snapshot's order."""
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
    title, label = device_title(device), plain(device.label, 24)
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
