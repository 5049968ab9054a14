"""From snapshot to view: by table, without Qt."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest

from lemon_tray.presenter import curl_example, model_numbers, percent, plain, present, tenths
from lemon_tray.view import BannerKind, Command, Kind, PanelView, SegmentKind
from router.snapshot import (
    DeviceState,
    DownloadView,
    FeedEntry,
    NoticeView,
    ResidentState,
    Snapshot,
    Status,
)
from router.units import GIB, NBSP
from tests.ui import canned
from tests.ui.canned import GIB as _GIB
from tests.ui.canned import device, empty, host, pool, resident, snapshot

assert _GIB == GIB


def view(of: Snapshot, **options: Any) -> PanelView:
    options.setdefault("numbers", model_numbers({}, of))
    return present(of, clock=lambda moment: f"t{moment:.0f}", **options)


def test_it_needs_no_qt() -> None:
    code = (
        "import sys; import lemon_tray.presenter, lemon_tray.notify, lemon_tray.edits;"
        "sys.exit(any(m.startswith(('PySide6', 'shiboken6', 'qasync')) for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# Head


@pytest.mark.parametrize(
    ("of", "title", "status"),
    [
        (snapshot(), "Ready", Status.READY),
        (snapshot(paused=True), "Paused", Status.READY),
        (snapshot(scanned=False, models=()), "Starting", Status.READY),
        (empty(), "Ready · no models", Status.READY),
        (canned.loading(), f"Loading Gemma-3-4B · 43{NBSP}%", Status.LOADING),
        (canned.warning(), "Ready · 1 warning", Status.WARNING),
        (canned.notice(), "Ready · 1 notice", Status.WARNING),
        (canned.lost(), "Error", Status.ERROR),
        (canned.unresolved(), f"Loading Gemma-3-4B · 43{NBSP}%", Status.WARNING),
    ],
)
def test_head_line(of: Snapshot, title: str, status: Status) -> None:
    head = view(of).head
    assert (head.title, head.mark.status) == (title, status)


def test_two_loads_are_counted_and_the_mark_shows_their_mean() -> None:
    residents = tuple(
        resident(n, 4, {"gpu0": 4}, state=ResidentState.LOADING, progress=p)
        for n, p in (("A", 0.2), ("B", 0.6))
    )
    head = view(snapshot(status=Status.LOADING, residents=residents)).head
    assert head.title == "Loading 2 models"
    assert head.mark.sixths == 2


def test_head_is_spoken_in_words() -> None:
    assert view(canned.loading()).head.accessible == "Lemon Tray: Loading Gemma-3-4B, 43 percent"


@pytest.mark.parametrize(
    ("fraction", "text"), [(0, "0"), (0.429, "42"), (0.999, "99"), (0.99999, "99"), (1, "100")]
)
def test_percent_is_never_100_before_the_end(fraction: float, text: str) -> None:
    assert percent(fraction) == f"{text}{NBSP}%"


# Banner


def everything() -> Snapshot:
    """An unknown device, a notice, a warning, and no models."""
    return msgspec.structs.replace(
        canned.notice(),
        models=(),
        devices=(device(0, "X", {}, state=DeviceState.UNKNOWN, total=None, free=None),),
    )


def test_the_worst_banner_comes_first_and_the_others_wait() -> None:
    of = everything()
    kinds = [view(of, banner_index=i).banner.kind for i in range(5)]  # type: ignore[union-attr]
    assert kinds == [
        BannerKind.ERROR,
        BannerKind.NOTICE,
        BannerKind.WARNING,
        BannerKind.INFO,
        BannerKind.ERROR,
    ]
    first = view(of).banner
    assert first is not None
    assert first.more == 3


def test_a_dismissed_banner_makes_room_for_the_next() -> None:
    of = everything()
    first = view(of).banner
    assert first is not None
    dismissed = first.options[0].command
    assert dismissed.kind is Kind.DISMISS
    after = view(of, dismissed=frozenset({dismissed.target})).banner
    assert after is not None
    assert after.kind is BannerKind.NOTICE


def test_no_banner_when_there_is_nothing_to_say() -> None:
    assert view(snapshot()).banner is None


def test_exceeding_the_limit_names_keys_and_numbers_and_has_both_ways_out() -> None:
    banner = view(canned.warning()).banner
    assert banner is not None
    assert banner.id == "exceeds"
    assert "Up to 3 language models" in banner.text
    assert "`max_loaded_models=1`" in banner.text
    assert "`auto_evict=false`" in banner.text
    assert [o.command for o in banner.options] == [
        Command(Kind.SET, "auto_evict", True),
        Command(Kind.SET, "llm_pool_autosize", False),
    ]
    assert "unloads 1 now" in banner.options[1].effect


@pytest.mark.parametrize(
    "changes",
    [
        {"autosize": False, "effective_limit": 1, "auto_evict": False},
        {"auto_evict": True},
        {"configured_limit": -1, "effective_limit": -1, "auto_evict": False},
        {"configured_limit": 3, "auto_evict": False},
    ],
)
def test_who_is_not_at_risk_sees_no_warning(changes: dict[str, Any]) -> None:
    assert view(snapshot(pool=pool(**changes))).banner is None


def test_the_notice_has_three_buttons_of_equal_weight_and_claims_no_more_than_is_true() -> None:
    banner = view(canned.notice()).banner
    assert banner is not None
    assert banner.kind is BannerKind.NOTICE
    assert [o.command.kind for o in banner.options] == [Kind.DISMISS, Kind.SET, Kind.SET]
    assert not any(o.primary for o in banner.options)
    assert "nothing bounds" not in banner.text.lower()


def test_a_notice_about_something_else_offers_no_pool_settings() -> None:
    of = snapshot(notices=(NoticeView("other", "News", "Something else."),))
    banner = view(of).banner
    assert banner is not None
    assert [o.command.kind for o in banner.options] == [Kind.DISMISS]


def test_what_makes_it_a_warning_is_said() -> None:
    for of, words in (
        (canned.unresolved(), "phi-5 in code"),
        (snapshot(problems=("settings.json is not JSON.",), status=Status.WARNING), "settings.json"),
    ):
        banner = view(of).banner
        assert banner is not None
        assert banner.kind is BannerKind.WARNING
        assert words in banner.text
        hidden = view(of, dismissed=frozenset({banner.id}))
        assert hidden.banner is None


def test_a_limited_router_is_an_error() -> None:
    banner = view(snapshot(degraded="The settings cannot be saved.", status=Status.ERROR)).banner
    assert banner is not None
    assert banner.kind is BannerKind.ERROR
    assert banner.text == "The settings cannot be saved."


def test_a_failed_model_has_a_row_until_it_is_back() -> None:
    row = view(canned.lost()).models[-1]
    assert (row.model, row.failed) == ("Llama-3.3-70B", True)
    assert row.state.endswith("worker ended, GPU lost")
    again = FeedEntry(9, 0.0, "admit", "Loading.", model="Llama-3.3-70B")
    of = msgspec.structs.replace(canned.lost(), feed=(*canned.lost().feed, again))
    assert not any(r.failed for r in view(of).models)


def test_no_models_offers_the_demo_and_a_folder() -> None:
    banner = view(empty()).banner
    assert banner is not None
    assert banner.title == "No models yet"
    assert [o.command.kind for o in banner.options] == [Kind.GET_DEMO, Kind.ADD_FOLDER]
    assert banner.options[0].menu_label == "Get a small demo model"
    assert [o.primary for o in banner.options] == [True, False]


def test_before_the_first_scan_nobody_says_that_there_are_no_models() -> None:
    assert view(empty(scanned=False)).banner is None


@pytest.mark.parametrize(
    ("done", "total", "fraction", "text"),
    [
        (0, None, None, f"0{NBSP}MiB"),
        (41 << 20, 94 << 20, 41 / 94, f"41 of 94{NBSP}MiB"),
        (95 << 20, 94 << 20, 1.0, f"95 of 94{NBSP}MiB"),
    ],
)
def test_a_download_shows_its_progress_and_can_be_cancelled(
    done: int, total: int | None, fraction: float | None, text: str
) -> None:
    banner = view(empty(downloads=(DownloadView("demo", "running", done, total),))).banner
    assert banner is not None
    assert banner.progress is not None
    assert banner.progress.fraction == fraction
    assert banner.progress.text == text
    assert [o.command for o in banner.options] == [Command(Kind.CANCEL_DOWNLOAD, "demo")]


def test_a_failed_download_says_why_and_can_be_tried_again() -> None:
    banner = view(empty(downloads=(DownloadView("demo", "failed", 5, 10, "the disk is full."),))).banner
    assert banner is not None
    assert banner.text == "demo did not arrive: the disk is full."
    assert banner.progress is None
    assert banner.options[0].label == "Try again"
    assert banner.options[0].command.kind is Kind.GET_DEMO


@pytest.mark.parametrize("state", ["done", "cancelled"])
def test_a_download_that_is_over_is_no_longer_shown(state: str) -> None:
    banner = view(empty(downloads=(DownloadView("demo", state, 5, 10),))).banner
    assert banner is not None
    assert banner.options[0].label == "Get a demo model"


# Bars


def test_the_legend_adds_up_to_the_total() -> None:
    bar = view(canned.loading()).bars[0]
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
    segment = view(canned.loading()).bars[0].segments[1]
    assert segment.tip == (
        f"Gemma-3-4B on CUDA0: 5.2{NBSP}GiB",
        f"2.2{NBSP}GiB arrived, 3.0{NBSP}GiB reserved",
    )
    assert segment.accessible == "Gemma-3-4B, loading: 5.2 gibibytes, of which 2.2 arrived"


def test_a_split_model_is_marked_as_a_part() -> None:
    assert view(canned.loading()).bars[1].segments[0].note == "part"


def test_a_machine_with_cards_hides_the_host_until_a_model_lives_there_alone() -> None:
    assert [b.label for b in view(canned.loading()).bars] == ["CUDA0", "CUDA1"]
    alone = resident("embed", 0.3, {"host": 0.3}, type="embedding")
    of = msgspec.structs.replace(canned.loading(), residents=(*canned.loading().residents, alone))
    assert [b.label for b in view(of).bars] == ["CUDA0", "CUDA1", "CPU"]


def test_a_machine_without_a_gpu_shows_host_memory_and_says_so() -> None:
    shown = view(canned.cpu())
    assert [(b.title, b.used) for b in shown.bars] == [("Host memory", "20.7")]
    assert "No GPU found" in shown.devices_note


def test_simulated_devices_are_said_to_be_simulated() -> None:
    of = msgspec.structs.replace(canned.loading(), simulated=True)
    assert view(of).devices_note == "These devices are simulated."


def test_an_unknown_device_shows_the_reason_and_no_numbers() -> None:
    bar = view(canned.lost()).bars[1]
    assert bar.total is None
    assert bar.segments == ()
    assert bar.reason == "GPU is lost (NVML error 15)"
    assert bar.used == "Unknown"
    assert bar.accessible == "RTX 3090, CUDA1: memory unknown, GPU is lost (NVML error 15)"


def test_a_seventh_segment_and_more_are_folded() -> None:
    segments = {f"m{i}": (0.5 + 0.1 * i, 0.0) for i in range(9)}
    of = snapshot(devices=(device(0, "X", segments),))
    bar = view(of).bars[0]
    kinds = [s.kind for s in bar.segments]
    assert kinds == [*[SegmentKind.MODEL] * 5, SegmentKind.MORE, SegmentKind.FREE]
    assert bar.segments[5].label == "4 more"
    assert len(bar.segments[5].tip) == 5
    assert [s.label for s in bar.segments[:5]] == ["m4", "m5", "m6", "m7", "m8"]
    assert round(sum(float(s.value) for s in bar.segments), 1) == 24.0


def test_more_than_four_devices_get_compact_bars() -> None:
    devices = tuple(device(i, "X", {}) for i in range(5))
    assert all(b.compact for b in view(snapshot(devices=devices)).bars)
    assert not any(b.compact for b in view(snapshot(devices=devices[:4])).bars)


def test_readings_that_contradict_each_other_stay_within_the_bar() -> None:
    odd = device(0, "X", {"A": (30.0, 0)}, 10.0, free=0)
    bar = view(snapshot(devices=(odd,))).bars[0]
    assert bar.used == "24.0"
    assert bar.segments[-1].bytes == 0


# Numbers that choose colours


def test_a_model_keeps_its_number_and_a_new_one_gets_the_lowest_free() -> None:
    names = ("Qwen3-8B", "Gemma-3-4B", "Mistral-7B")
    three = snapshot(residents=tuple(resident(n, 1, {"gpu0": 1}) for n in names), models=())
    numbers = model_numbers({}, three)
    assert numbers == {"Qwen3-8B": 0, "Gemma-3-4B": 1, "Mistral-7B": 2}
    two = snapshot(residents=three.residents[1:], models=())
    numbers = model_numbers(numbers, two)
    assert numbers == {"Gemma-3-4B": 1, "Mistral-7B": 2}
    new = snapshot(residents=(*two.residents, resident("New", 1, {"gpu0": 1})), models=())
    assert model_numbers(numbers, new)["New"] == 0


def test_a_model_that_was_unloaded_and_is_still_known_comes_back_in_its_colour() -> None:
    numbers = model_numbers({}, snapshot(residents=(canned.QWEN, canned.LLAMA)))
    numbers = model_numbers(numbers, snapshot(residents=(canned.GEMMA,)))
    assert numbers == {"Qwen3-8B": 0, "Llama-3.3-70B": 1, "Gemma-3-4B": 2}


# Pool


def test_pool_sentence_and_slots() -> None:
    shown = view(canned.loading()).pool
    assert shown.line == "2 loaded · room for 3 · your limit 1 · floor 3"
    assert [(s.number, s.loading, s.within_limit) for s in shown.slots] == [
        (0, False, True),
        (1, False, False),
        (2, True, False),
    ]
    assert (shown.limit_at, shown.floor_at) == (1, 3)
    assert shown.accessible == "LLM pool: 2 loaded, 1 loading, room for 3, your limit 1, floor 3"


def test_unlimited_pool_has_one_endless_slot_and_no_marks() -> None:
    of = snapshot(pool=pool(configured_limit=-1, effective_limit=-1, loaded=1), residents=(canned.QWEN,))
    shown = view(of).pool
    assert [s.unlimited for s in shown.slots] == [False, True]
    assert (shown.limit_at, shown.floor_at) == (None, None)
    assert shown.line == "1 loaded · room for any number · no limit of yours · floor 3"


@pytest.mark.parametrize("limit", [16, 17, 1024])
def test_no_more_than_sixteen_slots_are_drawn(limit: int) -> None:
    shown = view(snapshot(pool=pool(configured_limit=limit, effective_limit=limit))).pool
    assert len(shown.slots) == 16
    assert shown.limit_at == (16 if limit == 16 else None)


def test_only_language_models_are_in_the_pool() -> None:
    assert [s.number for s in view(canned.cpu()).pool.slots] == [0]


def test_the_breakdown_names_each_policy_and_what_was_not_counted() -> None:
    shown = view(canned.unresolved()).pool
    assert [(r.label, r.text, r.count) for r in shown.rows] == [
        ("chat", "Qwen3-8B, Gemma-3-4B", "2"),
        ("code", "Qwen3-8B, Llama-3.3-70B", "2"),
    ]
    assert shown.total is not None
    assert shown.total.count == "3"
    assert shown.remarks == ("Not counted: phi-5 in code is not a known model",)


# Models


def test_model_rows() -> None:
    rows = view(canned.loading()).models
    assert [(r.label, r.state, r.size + r.size_of, r.rate) for r in rows] == [
        ("Qwen3-8B", "Ready · CUDA0", f"9.1{NBSP}GiB", f"78.4{NBSP}tok/s"),
        ("Llama-3.3-70B", "Ready · pinned · CUDA1 + host", f"40.4{NBSP}GiB", f"2.6{NBSP}tok/s"),
        ("Gemma-3-4B", "Loading on CUDA0", f"2.2 of 5.2{NBSP}GiB", f"43{NBSP}%"),
    ]
    assert [r.unload_name for r in rows] == [
        "Unload Qwen3-8B",
        "Unload Llama-3.3-70B",
        "Cancel loading Gemma-3-4B",
    ]


@pytest.mark.parametrize(
    ("changes", "state", "can_unload"),
    [
        ({"in_use": 2}, "Ready · 2 running · CUDA0", True),
        ({"state": ResidentState.DRAINING, "in_use": 1}, "Unloads after 1 running · CUDA0", False),
        ({"state": ResidentState.DRAINING}, "Unloading · CUDA0", False),
        ({"state": ResidentState.EVICTING}, "Unloading · CUDA0", False),
        ({"state": ResidentState.EVICTING, "stuck": True}, "The worker does not end · CUDA0", False),
        ({"type": "embedding"}, "Ready · embedding · CUDA0", True),
        ({"waiting": 3}, "Ready · 3 waiting · CUDA0", True),
    ],
)
def test_model_states(changes: dict[str, Any], state: str, can_unload: bool) -> None:
    one = resident("M", 1, {"gpu0": 1}, **changes)
    row = view(snapshot(residents=(one,), devices=(device(0, "X", {}),))).models[0]
    assert (row.state, row.can_unload) == (state, can_unload)


# Feed, menu


def test_the_feed_shows_the_newest_first() -> None:
    entries = tuple(FeedEntry(i, float(i), "c", f"entry {i}") for i in range(1, 50))
    rows = view(snapshot(feed=entries)).feed
    assert [r.text for r in rows[:2]] == ["entry 49", "entry 48"]
    assert rows[0].time == "t49"
    assert len(rows) == 30


def test_menu_says_what_the_panel_says() -> None:
    menu = view(canned.loading()).menu
    assert menu.status == (
        f"Loading Gemma-3-4B · 43{NBSP}%",
        f"RTX 4090 (CUDA0): 17.3 of 24.0{NBSP}GiB",
        f"RTX 3090 (CUDA1): 18.4 of 24.0{NBSP}GiB",
        "LLM pool: 2 loaded, room for 3, your limit 1, floor 3",
    )
    assert [m.label for m in menu.residents] == [
        f"Qwen3-8B: ready, 9.1{NBSP}GiB, 78.4{NBSP}tok/s",
        f"Llama-3.3-70B: ready, pinned, 40.4{NBSP}GiB, 2.6{NBSP}tok/s",
        f"Gemma-3-4B: loading 43{NBSP}%",
    ]
    assert [name for name, _ in menu.loadable] == ["Mistral-7B"]


def test_a_broken_model_is_not_offered() -> None:
    broken = msgspec.structs.replace(canned.MODELS[2], broken="no header")
    assert view(snapshot(models=(broken,))).menu.loadable == ()


def test_the_curl_command_survives_a_shell() -> None:
    line = curl_example("http://127.0.0.1:1/v1", 'it\'s "odd" & $(rm)')
    script = f"curl() {{ printf '%s\\n' \"$5\"; }}; {line}"
    body = subprocess.run(["sh", "-c", script], capture_output=True, check=True).stdout
    assert msgspec.json.decode(body)["model"] == 'it\'s "odd" & $(rm)'


@pytest.mark.fault("F13")
@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("two\nlines\t", "two lines"),
        ("9.1\N{NO-BREAK SPACE}GiB", "9.1\N{NO-BREAK SPACE}GiB"),
        ("a\x1b[31mb\x00", "a [31mb"),
        ("tick`tick", "tick'tick"),
        ("\u202eevil", "evil"),
        ("שלום", "\u2068שלום\u2069"),
        ("", ""),
    ],
)
def test_names_from_outside_become_one_plain_line(name: str, shown: str) -> None:
    assert plain(name) == shown


@pytest.mark.fault("F13")
def test_a_long_name_keeps_both_ends() -> None:
    name = plain("A" * 200 + "Q4_K_M", 60)
    assert len(name) <= 60
    assert name.startswith("AAA")
    assert name.endswith("Q4_K_M")


def test_hosts_alone_count_as_cpu() -> None:
    of = snapshot(devices=(host(8, {}, 2),))
    assert view(of).bars[0].label == "CPU"
