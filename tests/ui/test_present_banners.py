"""Which banner is due, what it says and offers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from lemon_tray.present_engines import is_engine_download
from lemon_tray.view import BannerKind, Command, Kind
from router.snapshot import DeviceState, DownloadView, NoticeView, Snapshot, Status
from router.units import NBSP
from tests.ui import canned
from tests.ui.canned import device, empty, pool, snapshot
from tests.ui.conftest import view_of


def everything() -> Snapshot:
    """An unknown device, a notice, a warning, and no models."""
    return msgspec.structs.replace(
        canned.notice(),
        models=(),
        devices=(device(0, "X", {}, state=DeviceState.UNKNOWN, total=None, free=None),),
    )


def test_the_worst_banner_comes_first_and_the_others_wait() -> None:
    of = everything()
    kinds = [view_of(of, banner_index=i).banner.kind for i in range(5)]  # type: ignore[union-attr]
    assert kinds == [
        BannerKind.ERROR,
        BannerKind.NOTICE,
        BannerKind.WARNING,
        BannerKind.INFO,
        BannerKind.ERROR,
    ]
    first = view_of(of).banner
    assert first is not None
    assert first.more == 3


def test_a_dismissed_banner_makes_room_for_the_next() -> None:
    of = everything()
    first = view_of(of).banner
    assert first is not None
    dismissed = first.options[-1].command
    assert dismissed.kind is Kind.DISMISS
    after = view_of(of, dismissed=frozenset({dismissed.target})).banner
    assert after is not None
    assert after.kind is BannerKind.NOTICE


def test_no_banner_when_there_is_nothing_to_say() -> None:
    assert view_of(snapshot()).banner is None


def test_exceeding_the_limit_names_keys_and_numbers_and_has_both_ways_out() -> None:
    banner = view_of(canned.warning()).banner
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
    assert view_of(snapshot(pool=pool(**changes))).banner is None


def test_the_notice_has_three_buttons_of_equal_weight_and_claims_no_more_than_is_true() -> None:
    banner = view_of(canned.notice()).banner
    assert banner is not None
    assert banner.kind is BannerKind.NOTICE
    assert [o.command.kind for o in banner.options] == [Kind.DISMISS, Kind.SET, Kind.SET]
    assert not any(o.primary for o in banner.options)
    assert "nothing bounds" not in banner.text.lower()


def test_a_notice_about_something_else_offers_no_pool_settings() -> None:
    of = snapshot(notices=(NoticeView("other", "News", "Something else."),))
    banner = view_of(of).banner
    assert banner is not None
    assert [o.command.kind for o in banner.options] == [Kind.DISMISS]


def test_what_makes_it_a_warning_is_said() -> None:
    for of, words in (
        (canned.unresolved(), "phi-5 in code"),
        (snapshot(problems=("settings.json is not JSON.",), status=Status.WARNING), "settings.json"),
    ):
        banner = view_of(of).banner
        assert banner is not None
        assert banner.kind is BannerKind.WARNING
        assert words in banner.text
        hidden = view_of(of, dismissed=frozenset({banner.id}))
        assert hidden.banner is None


def test_a_limited_router_is_an_error() -> None:
    banner = view_of(snapshot(degraded="The settings cannot be saved.", status=Status.ERROR)).banner
    assert banner is not None
    assert banner.kind is BannerKind.ERROR
    assert banner.text == "The settings cannot be saved."


def test_no_models_offers_one_that_fits_the_demo_and_a_folder() -> None:
    banner = view_of(empty()).banner
    assert banner is not None
    assert banner.title == "No models yet"
    assert [o.command.kind for o in banner.options] == [Kind.OPEN_WINDOW, Kind.GET_DEMO, Kind.ADD_FOLDER]
    assert banner.options[0].command.target == "get"
    assert banner.options[1].menu_label == "Get a small demo model"
    assert [o.primary for o in banner.options] == [True, False, False]


def test_before_the_first_scan_nobody_says_that_there_are_no_models() -> None:
    assert view_of(empty(scanned=False)).banner is None


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
    banner = view_of(empty(downloads=(DownloadView("demo", "running", done, total),))).banner
    assert banner is not None
    assert banner.progress is not None
    assert banner.progress.fraction == fraction
    assert banner.progress.text == text
    assert [o.command for o in banner.options] == [Command(Kind.CANCEL_DOWNLOAD, "demo")]


def test_a_failed_download_says_why_and_can_be_tried_again() -> None:
    banner = view_of(empty(downloads=(DownloadView("demo", "failed", 5, 10, "the disk is full."),))).banner
    assert banner is not None
    assert banner.text == "demo did not arrive: the disk is full."
    assert banner.progress is None
    assert banner.options[0].label == "Try again"
    assert banner.options[0].command.kind is Kind.GET_DEMO
    failed = DownloadView("o/r:Q4_0", "failed", 5, 10, "the disk is full.", kind="model")
    banner = view_of(empty(downloads=(failed,))).banner
    assert banner is not None
    assert banner.options[0].command == Command(Kind.PULL, "o/r:Q4_0")


@pytest.mark.parametrize("state", ["done", "cancelled"])
def test_a_download_that_is_over_is_no_longer_shown(state: str) -> None:
    banner = view_of(empty(downloads=(DownloadView("demo", state, 5, 10),))).banner
    assert banner is not None
    assert banner.options[1].label == "Get a demo model"


def test_an_unknown_device_offers_to_refuse_loads_there() -> None:
    banner = view_of(canned.lost()).banner
    assert banner is not None
    assert banner.options[0].command == Command(Kind.SET, "unknown_device", "refuse")
    refusing = msgspec.structs.replace(canned.lost(), settings={"unknown_device": "refuse"})
    banner = view_of(refusing).banner
    assert banner is not None
    assert [o.command.kind for o in banner.options] == [Kind.DISMISS]


def test_a_card_that_is_not_used_offers_a_build_for_it() -> None:
    shown = view_of(canned.engine())
    banner = shown.banner
    assert banner is not None
    assert banner.title == "RTX 4090 found, but this engine runs on the processor only"
    assert banner.options[0].label == "Get a GPU build"
    assert banner.options[0].command == Command(Kind.GET_ENGINE, canned.OFFER.id)
    assert banner.options[0].effect == f"About 431{NBSP}MiB to fetch"
    assert shown.devices_note == ""  # the banner says it
    hidden = view_of(canned.engine(), dismissed=frozenset({banner.id}))
    assert hidden.banner is None
    assert hidden.devices_note == "RTX 4090 found, but this engine runs models on the CPU."


def test_a_build_on_its_way_shows_how_far_it_is_and_can_be_cancelled() -> None:
    banner = view_of(canned.fetching()).banner
    assert banner is not None
    assert banner.progress is not None
    assert banner.progress.text == f"118 of 431{NBSP}MiB"
    assert [o.command for o in banner.options] == [
        Command(Kind.CANCEL_DOWNLOAD, f"GPU build {canned.OFFER.id}")
    ]


def test_a_build_that_did_not_arrive_says_why() -> None:
    failed = canned.engine(downloads=(DownloadView("GPU build", "failed", 1, 2, "The disk is full."),))
    banner = view_of(failed).banner
    assert banner is not None
    assert banner.text == "llama.cpp b6740 for CUDA could not be had: The disk is full."
    assert banner.options[0].label == "Try again"


def test_a_build_that_is_here_is_offered_for_use() -> None:
    build = msgspec.structs.replace(canned.OFFER, kind="build")
    banner = view_of(canned.engine(engines=(canned.EMBEDDED, build))).banner
    assert banner is not None
    assert banner.options[0].command == Command(Kind.USE_ENGINE, build.id)


def test_an_engine_that_fails_is_an_error_with_the_way_back() -> None:
    build = msgspec.structs.replace(
        canned.OFFER, kind="build", in_use=True, problem="libcuda.so.1 is missing"
    )
    spare = msgspec.structs.replace(canned.EMBEDDED, in_use=False)
    shown = view_of(canned.engine(engines=(spare, build)))
    banner = shown.banner
    assert banner is not None
    assert banner.kind is BannerKind.ERROR
    assert banner.text == "llama.cpp b6740 for CUDA: libcuda.so.1 is missing"
    assert banner.options[0].command == Command(Kind.USE_ENGINE, "embedded")
    assert shown.head.mark.status is Status.ERROR


@pytest.mark.parametrize(
    "changes",
    [
        {"engines": ()},
        {"devices": (canned.device(0, "RTX 4090", {}),)},
        {"simulated": True},
    ],
)
def test_nobody_else_is_offered_a_build(changes: dict[str, Any]) -> None:
    assert view_of(canned.engine(**changes)).banner is None


def test_the_download_of_an_engine_is_no_download_of_a_model() -> None:
    of = msgspec.structs.replace(canned.fetching(), models=(), residents=())
    first = view_of(of).banner
    assert first is not None
    assert first.id == "no-models"
    assert first.progress is None


def test_a_build_is_offered_before_it_is_known_which_there_are() -> None:
    banner = view_of(canned.engine(engines=(canned.EMBEDDED,))).banner
    assert banner is not None
    assert banner.options[0].command == Command(Kind.GET_ENGINE, "")
    assert banner.options[0].effect == "of llama.cpp"


def test_downloads_of_engines_are_called_as_the_router_calls_them() -> None:
    from router.engines.builds import download_name

    for wanted in (None, "cuda", canned.OFFER.id):
        assert is_engine_download(DownloadView(download_name(wanted), "running", 0, None))
    assert not is_engine_download(DownloadView("GPU builder-7B", "running", 0, None))
