"""Which banner is due, what it says and offers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

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
    dismissed = first.options[0].command
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


def test_no_models_offers_the_demo_and_a_folder() -> None:
    banner = view_of(empty()).banner
    assert banner is not None
    assert banner.title == "No models yet"
    assert [o.command.kind for o in banner.options] == [Kind.GET_DEMO, Kind.ADD_FOLDER]
    assert banner.options[0].menu_label == "Get a small demo model"
    assert [o.primary for o in banner.options] == [True, False]


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


@pytest.mark.parametrize("state", ["done", "cancelled"])
def test_a_download_that_is_over_is_no_longer_shown(state: str) -> None:
    banner = view_of(empty(downloads=(DownloadView("demo", state, 5, 10),))).banner
    assert banner is not None
    assert banner.options[0].label == "Get a demo model"
