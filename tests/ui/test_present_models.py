"""The rows of residents and of models that failed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from router.snapshot import FeedEntry, ResidentState
from router.units import NBSP
from tests.ui import canned
from tests.ui.canned import device, resident, snapshot
from tests.ui.conftest import view_of


def test_model_rows() -> None:
    rows = view_of(canned.loading()).models
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
    row = view_of(snapshot(residents=(one,), devices=(device(0, "X", {}),))).models[0]
    assert (row.state, row.can_unload) == (state, can_unload)


def test_a_failed_model_has_a_row_until_it_is_back() -> None:
    row = view_of(canned.lost()).models[-1]
    assert (row.model, row.failed) == ("Llama-3.3-70B", True)
    assert row.state.endswith("Its worker ended; 1 request got an error.")  # its name stands above
    again = FeedEntry(9, 0.0, "admit", "Loading.", model="Llama-3.3-70B")
    of = msgspec.structs.replace(canned.lost(), feed=(*canned.lost().feed, again))
    assert not any(r.failed for r in view_of(of).models)
