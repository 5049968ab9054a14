"""Which candidates a request may fall back to."""

from __future__ import annotations

from typing import Any

import pytest

from router.policy.document import Policy
from router.policy.fit import CONTEXT, GaveWay, Size, fitting, in_order, request_size
from router.policy.request import conversation
from router.policy.switches import Switches

POLICY = Policy("p", ("a", "b", "c"), ("a", "b", "c", "b"), "a", ())


@pytest.mark.parametrize(("chosen", "order"), [("a", "abc"), ("b", "bca"), ("c", "cab")])
def test_the_chosen_comes_first_then_the_next_ones(chosen: str, order: str) -> None:
    assert in_order(POLICY, chosen) == list(order)


WINDOWS = {"small": 4096, "middle": 16_384, "big": 131_072, "unknown": 0}


@pytest.mark.fault("F37")
@pytest.mark.parametrize(
    ("names", "prompt", "answer", "kept", "passed"),
    [
        (["small", "big"], 3_000, 0, ["small", "big"], []),
        (["small", "big"], 4_095, 0, ["small", "big"], []),
        (["small", "big"], 4_096, 0, ["big"], ["small"]),
        (["small", "middle", "big"], 10_000, 0, ["middle", "big"], ["small"]),
        (["small", "middle", "big"], 20_000, 0, ["big"], ["small", "middle"]),
        # The answer should fit as well; where it fits nowhere, its limit says nothing.
        (["small", "big"], 3_000, 2_000, ["big", "small"], ["small"]),
        (["small", "big"], 3_000, 10**9, ["small", "big"], []),
        # An estimate may be wrong: the largest is asked, unless that surely is too small.
        (["small", "big"], 200_000, 0, ["big"], ["small"]),
        (["big", "small"], 200_000, 0, ["big"], []),
        (["small", "big"], 300_000, 0, [], ["small", "big"]),
        (["small", "unknown"], 300_000, 0, ["unknown"], ["small"]),
    ],
)
def test_candidates_that_cannot_hold_a_request_are_passed_over(
    names: list[str], prompt: int, answer: int, kept: list[str], passed: list[str]
) -> None:
    found, gave_way = fitting(names, Size(prompt, answer), WINDOWS.__getitem__)
    assert found == kept
    assert gave_way == tuple(GaveWay(name, CONTEXT) for name in passed)


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


@pytest.mark.fault("F37")
@pytest.mark.parametrize(
    ("body", "size"),
    [
        ({}, Size(0, 0)),
        ({"messages": [user("x" * 4_000)]}, Size(1_002, 0)),
        ({"messages": [user("漢" * 100)]}, Size(101, 0)),
        ({"prompt": ["x" * 40, "x" * 40], "max_tokens": 9}, Size(20, 9)),
        ({"input": "x" * 40, "max_output_tokens": 7}, Size(10, 7)),
        ({"prompt": "x" * 40, "max_tokens": True}, Size(10, 0)),
        ({"prompt": "x" * 40, "max_tokens": -1}, Size(10, 0)),
        ({"system": "x" * 40, "tools": [{"function": {"description": "y" * 40}}]}, Size(20, 0)),
    ],
)
def test_the_size_of_a_request(body: dict[str, Any], size: Size) -> None:
    found = request_size(body)
    assert found.prompt == pytest.approx(size.prompt, abs=2)
    assert found.answer == size.answer


def test_the_bytes_of_images_are_no_text() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 1_000_000}}
    size = request_size({"messages": [user([{"type": "text", "text": "what is this?"}, image])]})
    assert 1_000 <= size.prompt < 1_020


def test_the_earlier_turns_count() -> None:
    talk = [user("x" * 4_000), {"role": "assistant", "content": "y" * 4_000}, user("z")]
    assert request_size({"messages": talk}).prompt > 2_000


def test_a_conversation_is_known_by_its_beginning() -> None:
    first = {"messages": [{"role": "system", "content": "s"}, user("hello")]}
    later = {"messages": [*first["messages"], {"role": "assistant", "content": "x"}, user("more")]}
    assert conversation(first) == conversation(later) is not None
    assert conversation({"messages": [user("hello")]}) != conversation(first)
    assert conversation({"messages": [{"role": "system", "content": "s"}]}) is None
    assert conversation({"prompt": "hello"}) is None
    assert conversation({"messages": ["hello"]}) is None


def test_switches_are_those_within_a_conversation() -> None:
    switches = Switches(kept=2)
    assert not switches.note("p", 1, "a")
    assert not switches.note("p", 1, "a")
    assert switches.note("p", 1, "b")
    assert not switches.note("q", 1, "a")
    assert switches.note("p", 1, "a")
    assert not switches.note("p", None, "b")
    # The oldest is forgotten.
    switches.note("p", 2, "a")
    assert not switches.note("q", 1, "b")
