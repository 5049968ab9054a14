"""The pool: slots, sentence, breakdown."""

from __future__ import annotations

import pytest

from tests.ui import canned
from tests.ui.canned import pool, snapshot
from tests.ui.conftest import view_of


def test_pool_sentence_and_slots() -> None:
    shown = view_of(canned.loading()).pool
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
    shown = view_of(of).pool
    assert [s.unlimited for s in shown.slots] == [False, True]
    assert (shown.limit_at, shown.floor_at) == (None, None)
    assert shown.line == "1 loaded · room for any number · no limit of yours · floor 3"


@pytest.mark.parametrize("limit", [16, 17, 1024])
def test_no_more_than_sixteen_slots_are_drawn(limit: int) -> None:
    shown = view_of(snapshot(pool=pool(configured_limit=limit, effective_limit=limit))).pool
    assert len(shown.slots) == 16
    assert shown.limit_at == (16 if limit == 16 else None)


def test_only_language_models_are_in_the_pool() -> None:
    assert [s.number for s in view_of(canned.cpu()).pool.slots] == [0]


def test_the_breakdown_names_each_policy_and_what_was_not_counted() -> None:
    shown = view_of(canned.unresolved()).pool
    assert [(r.label, r.text, r.count) for r in shown.rows] == [
        ("chat", "Qwen3-8B, Gemma-3-4B", "2"),
        ("code", "Qwen3-8B, Llama-3.3-70B", "2"),
    ]
    assert shown.total is not None
    assert shown.total.count == "3"
    assert shown.remarks == ("Not counted: phi-5 in code is not a known model",)


@pytest.mark.parametrize(
    ("changes", "room"),
    [
        ({"room_for": 2}, "room for 2 of 3"),
        ({"room_for": 0}, "room for 0 of 3"),
        ({"room_for": 3}, "room for 3"),
        ({"room_for": None}, "room for 3"),
        ({"room_for": 2, "configured_limit": -1, "effective_limit": -1}, "room for 2 of 3"),
        ({"room_for": 2, "configured_limit": 5, "effective_limit": 5}, "room for 2 of 3"),
        ({"room_for": 2, "autosize": False, "effective_limit": 1}, "room for 1"),
        ({"room_for": 1, "autosize": False, "effective_limit": 2}, "room for 1 of 2"),
    ],
)
def test_it_does_not_promise_more_than_memory_holds(changes: dict[str, object], room: str) -> None:
    shown = view_of(snapshot(pool=pool(**changes)))
    assert shown.pool.room == room
    assert room in shown.menu.status[-1]
    held = any("Memory holds" in remark for remark in shown.pool.remarks)
    assert held is (" of " in room)
