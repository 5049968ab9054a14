"""The devices' bars: parts, sums, words."""

from __future__ import annotations

import msgspec
import pytest

from lemon_tray.present_devices import Reading, last_readings, tenths
from lemon_tray.view import SegmentKind
from router.snapshot import DeviceState
from router.units import GIB, NBSP
from tests.ui import canned
from tests.ui.canned import GIB as CANNED_GIB
from tests.ui.canned import device, host, resident, snapshot
from tests.ui.conftest import view_of

assert CANNED_GIB == GIB


def test_the_legend_adds_up_to_the_total() -> None:
    bar = view_of(canned.loading()).bars[0]
    assert bar.used == "17.3"
    assert bar.total_text == f"24.0{NBSP}GiB"
    assert [(s.label, s.value, s.note) for s in bar.segments] == [
        ("Qwen3-8B", "9.1", ""),
        ("Gemma-3-4B", "5.2", "reserved"),
        ("Other programs", "3.0", ""),
        ("Free", "6.7", ""),
    ]
    assert round(sum(float(s.value) for s in bar.segments), 1) == 24.0


@pytest.mark.parametrize(
    ("parts", "total"),
    [
        ([int(GIB * 0.05)] * 7, int(GIB * 1.0)),
        ([int(GIB * 0.349)] * 3, int(GIB * 1.047)),
        ([0, 0, GIB], GIB),
        ([1, 1, 1], 3),
        ([int(GIB * 8.06), int(GIB * 15.94)], 24 * GIB),
    ],
)
def test_rounded_parts_add_up(parts: list[int], total: int) -> None:
    rest = total - sum(parts)
    shown = tenths([*parts, rest], total)
    assert sum(shown) == round(total * 10 / GIB)
    for part, value in zip([*parts, rest], shown, strict=True):
        assert abs(part * 10 / GIB - value) < 1.0


def test_arrived_and_reserved_are_told_apart_in_the_tooltip() -> None:
    segment = view_of(canned.loading()).bars[0].segments[1]
    assert segment.tip == (
        f"Gemma-3-4B on CUDA0: 5.2{NBSP}GiB",
        f"2.2{NBSP}GiB arrived, 3.0{NBSP}GiB reserved",
    )
    assert segment.accessible == "Gemma-3-4B, loading: 5.2 gibibytes, of which 2.2 arrived"


def test_a_split_model_is_marked_as_a_part() -> None:
    assert view_of(canned.loading()).bars[1].segments[0].note == "part"


def test_a_machine_with_cards_hides_the_host_until_a_model_lives_there_alone() -> None:
    assert [b.label for b in view_of(canned.loading()).bars] == ["CUDA0", "CUDA1"]
    alone = resident("embed", 0.3, {"host": 0.3}, type="embedding")
    of = msgspec.structs.replace(canned.loading(), residents=(*canned.loading().residents, alone))
    assert [b.label for b in view_of(of).bars] == ["CUDA0", "CUDA1", "CPU"]


def test_a_machine_without_a_gpu_shows_host_memory_and_says_so() -> None:
    shown = view_of(canned.cpu())
    assert [(b.title, b.used) for b in shown.bars] == [("Host memory", "20.7")]
    assert "No GPU found" in shown.devices_note


def test_a_card_that_the_engine_cannot_use_is_named_and_not_drawn() -> None:
    card = canned.device(0, "RTX 4090", {}, usable=False)
    lost = canned.device(1, "RTX 3090", {}, usable=False, state=DeviceState.UNKNOWN, total=None, free=None)
    of = msgspec.structs.replace(canned.cpu(), devices=(card, lost, *canned.cpu().devices))
    shown = view_of(of)
    assert [b.title for b in shown.bars] == ["Host memory"]
    assert shown.devices_note == "RTX 4090, RTX 3090 found, but this engine runs models on the CPU."
    assert shown.banner is None or "RTX" not in shown.banner.title


def test_simulated_devices_are_said_to_be_simulated() -> None:
    of = msgspec.structs.replace(canned.loading(), simulated=True)
    assert view_of(of).devices_note == "These devices are simulated."


def test_an_unknown_device_shows_the_reason_and_no_numbers() -> None:
    bar = view_of(canned.lost()).bars[1]
    assert bar.total is None
    assert bar.segments == ()
    assert bar.reason == "GPU is lost (NVML error 15)"
    assert bar.used == "Unknown"
    assert bar.accessible == "RTX 3090, CUDA1: memory unknown, GPU is lost (NVML error 15)"


def test_a_seventh_segment_and_more_are_folded() -> None:
    segments = {f"m{i}": (0.5 + 0.1 * i, 0.0) for i in range(9)}
    of = snapshot(devices=(device(0, "X", segments),))
    bar = view_of(of).bars[0]
    kinds = [s.kind for s in bar.segments]
    assert kinds == [*[SegmentKind.MODEL] * 5, SegmentKind.MORE, SegmentKind.FREE]
    assert bar.segments[5].label == "4 more"
    assert len(bar.segments[5].tip) == 5
    assert [s.label for s in bar.segments[:5]] == ["m4", "m5", "m6", "m7", "m8"]
    assert round(sum(float(s.value) for s in bar.segments), 1) == 24.0


def test_more_than_four_devices_get_compact_bars() -> None:
    devices = tuple(device(i, "X", {}) for i in range(5))
    assert all(b.compact for b in view_of(snapshot(devices=devices)).bars)
    assert not any(b.compact for b in view_of(snapshot(devices=devices[:4])).bars)


def test_readings_that_contradict_each_other_stay_within_the_bar() -> None:
    odd = device(0, "X", {"A": (30.0, 0)}, 10.0, free=0)
    bar = view_of(snapshot(devices=(odd,))).bars[0]
    assert bar.used == "24.0"
    assert bar.segments[-1].bytes == 0


def test_hosts_alone_count_as_cpu() -> None:
    of = snapshot(devices=(host(8, {}, 2),))
    assert view_of(of).bars[0].label == "CPU"


def test_memory_kept_for_a_load_that_waits_is_drawn_apart_and_named() -> None:
    bar = view_of(canned.full()).bars[1]
    claim = next(s for s in bar.segments if s.kind is SegmentKind.CLAIM)
    assert (claim.label, claim.value) == ("Kept for a load", "2.8")
    assert claim.tip == (
        f"Kept for a load that waits: 2.8{NBSP}GiB",
        f"5.1{NBSP}GiB more is being freed for it",
    )
    assert bar.used == "24.0"
    assert round(sum(float(s.value) for s in bar.segments), 1) == 24.0
    assert [s.note for s in bar.segments[:2]] == ["", "unloading"]
    assert bar.note == f"5.1{NBSP}GiB is being freed for a load that waits."
    assert bar.accessible.endswith(f"7.9{NBSP}GiB kept for a load that waits")


@pytest.mark.parametrize(
    ("claimed", "kept", "note"),
    [(0.0, 0.0, False), (2.0, 2.0, False), (14.0, 14.0, False), (20.0, 14.0, True)],
)
def test_a_claim_takes_free_memory_first(claimed: float, kept: float, note: bool) -> None:
    of = snapshot(devices=(device(0, "X", {"A": (7.0, 0)}, 3.0, claimed=canned.gib(claimed)),))
    bar = view_of(of).bars[0]
    drawn = sum(s.bytes for s in bar.segments if s.kind is SegmentKind.CLAIM)
    assert drawn == canned.gib(kept)
    assert bool(bar.note) is note
    assert bar.segments[-1].bytes == canned.gib(14.0 - kept)


def test_some_cards_that_the_engine_cannot_use_are_named() -> None:
    odd = canned.device(2, "RX 7900", {}, usable=False)
    of = msgspec.structs.replace(canned.loading(), devices=(*canned.loading().devices, odd))
    shown = view_of(of)
    assert [b.label for b in shown.bars] == ["CUDA0", "CUDA1"]
    assert shown.devices_note == "RX 7900 found, but this engine cannot use it."


def test_a_device_that_does_not_answer_shows_what_it_said_last() -> None:
    readings = last_readings({}, canned.loading(), canned.NOON)
    assert readings["gpu1"] == Reading(canned.NOON, 24 * GIB, 24 * GIB - canned.gib(24 - 18.4))
    readings = last_readings(readings, canned.lost(), canned.NOON + 60)
    assert readings["gpu1"].time == canned.NOON
    assert readings["gpu0"].time == canned.NOON + 60
    bar = view_of(canned.lost(), readings=readings).bars[1]
    assert bar.total_text == f"24.0{NBSP}GiB"
    assert bar.note == f"Last reading 02:40: 18.4{NBSP}GiB used, 5.6{NBSP}GiB free"
    assert bar.accessible.endswith(bar.note)
    assert "gpu1" not in last_readings(readings, canned.cpu(), canned.NOON)
