"""The head and the whole view, without Qt."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lemon_tray.presenter import model_numbers
from router.snapshot import FeedEntry, ResidentState, Severity, Snapshot, Status
from router.units import NBSP
from tests.ui import canned
from tests.ui.canned import empty, resident, snapshot
from tests.ui.conftest import view_of


def test_it_needs_no_qt() -> None:
    code = (
        "import sys; import lemon_tray.presenter, lemon_tray.notify, lemon_tray.edits;"
        "sys.exit(any(m.startswith(('PySide6', 'shiboken6', 'qasync')) for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def failing(*models: str) -> Snapshot:
    feed = tuple(
        canned.entry(n, 0, f"The worker of {m} ended.", severity=Severity.ERROR, code="worker_died", model=m)
        for n, m in enumerate(models)
    )
    return snapshot(status=Status.WARNING, feed=feed)


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
        (failing("A", "B"), "Ready · 2 warnings", Status.WARNING),
        (canned.lost(), "Error · CUDA1 unknown", Status.ERROR),
        (canned.unresolved(), f"Loading Gemma-3-4B · 43{NBSP}%", Status.WARNING),
    ],
)
def test_head_line(of: Snapshot, title: str, status: Status) -> None:
    head = view_of(of).head
    assert (head.title, head.mark.status) == (title, status)


def test_two_loads_are_counted_and_the_mark_shows_their_mean() -> None:
    residents = tuple(
        resident(n, 4, {"gpu0": 4}, state=ResidentState.LOADING, progress=p)
        for n, p in (("A", 0.2), ("B", 0.6))
    )
    head = view_of(snapshot(status=Status.LOADING, residents=residents)).head
    assert head.title == "Loading 2 models"
    assert head.mark.sixths == 2


def test_head_is_spoken_in_words() -> None:
    assert view_of(canned.loading()).head.accessible == "Lemon Tray: Loading Gemma-3-4B, 43 percent"


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


def test_the_feed_shows_the_newest_first() -> None:
    entries = tuple(FeedEntry(i, float(i), "c", f"entry {i}") for i in range(1, 50))
    rows = view_of(snapshot(feed=entries), clock=lambda moment: f"t{moment:.0f}").feed
    assert [r.text for r in rows[:2]] == ["entry 49", "entry 48"]
    assert rows[0].time == "t49"
    assert len(rows) == 30


def test_a_name_written_from_right_to_left_does_not_reorder_a_decision() -> None:
    rows = view_of(canned.right_to_left()).feed
    assert "\u2068שלום-8B-Q4_K_M\u2069 from CUDA0" in rows[0].text
    assert rows[0].text.endswith("\u2068سلام-4B\u2069.\u2069")


def test_a_number_in_the_feed_stays_with_its_unit() -> None:
    said = "Loaded A on SIM0 in 13.7 s: 0.8 GiB of 24 GiB, 3 % of it; 2 so far."
    feed = view_of(canned.snapshot(feed=(canned.entry(1, 0, said),))).feed
    assert feed[0].text == "Loaded A on SIM0 in 13.7_s: 0.8_GiB of 24_GiB, 3_% of it; 2 so far.".replace(
        "_", NBSP
    )
