"""Desktop notifications: one for each cause, grouped, never a flood."""

from __future__ import annotations

import pytest

from lemon_tray.notify import LEAST_APART_S, SAME_CAUSE_S, Message, Notifier
from router.snapshot import FeedEntry, Severity

pytestmark = pytest.mark.fault("F31")


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def failed(
    number: int, model: str | None = "M", code: str = "load_failed", text: str = "It failed."
) -> FeedEntry:
    return FeedEntry(number, 0.0, code, text, Severity.ERROR, model=model)


def test_what_was_there_before_is_old_news() -> None:
    notifier = Notifier(Clock())
    assert notifier.consider((failed(1),), panel_visible=False) is None
    assert notifier.consider((failed(1),), panel_visible=False) is None


def test_a_new_failure_is_told_once() -> None:
    notifier = Notifier(Clock())
    notifier.consider((), panel_visible=False)
    feed = (failed(1),)
    assert notifier.consider(feed, panel_visible=False) == Message("Lemon Tray", "It failed.")
    assert notifier.consider(feed, panel_visible=False) is None


def test_the_same_cause_twenty_times_is_one_message() -> None:
    clock = Clock()
    notifier = Notifier(clock)
    notifier.consider((), panel_visible=False)
    told = 0
    for number in range(1, 21):
        clock.now += LEAST_APART_S + 1
        told += notifier.consider((failed(number),), panel_visible=False) is not None
    assert told == 1
    clock.now += SAME_CAUSE_S
    assert notifier.consider((failed(99),), panel_visible=False) is not None


def test_five_at_once_are_one_message_and_the_next_has_to_wait() -> None:
    clock = Clock()
    notifier = Notifier(clock)
    notifier.consider((), panel_visible=False)
    feed = tuple(failed(n, f"M{n}", "worker_died") for n in range(1, 6))
    message = notifier.consider(feed, panel_visible=False)
    assert message == Message("Lemon Tray: 5 problems", "It failed. And 4 more.")
    assert notifier.consider((*feed, failed(6, "other")), panel_visible=False) is None
    clock.now += LEAST_APART_S
    assert notifier.consider((failed(7, "third"),), panel_visible=False) is not None


def test_nothing_is_told_that_the_panel_shows_or_that_is_no_failure() -> None:
    notifier = Notifier(Clock())
    notifier.consider((), panel_visible=False)
    assert notifier.consider((failed(1),), panel_visible=True) is None
    changes = tuple(FeedEntry(n, 0.0, "settings_changed", "x") for n in range(2, 52))
    assert notifier.consider(changes, panel_visible=False) is None


def test_a_message_is_short_and_has_no_markup() -> None:
    notifier = Notifier(Clock())
    notifier.consider((), panel_visible=False)
    text = "<b>bold</b> " + "long " * 400 + "\nend"
    message = notifier.consider((failed(1, text=text),), panel_visible=False)
    assert message is not None
    assert len(message.text) <= 200
    assert "<" not in message.text
    assert "\n" not in message.text
