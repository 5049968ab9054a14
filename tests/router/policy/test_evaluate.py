"""Which candidate a request goes to."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.policy.document import Policy, Rule
from router.policy.evaluate import Decision, RequestView, decide, request_text
from router.policy.parse import parse_policy

POLICY = Policy(
    name="p",
    components=("a", "b", "c"),
    candidates=("a", "b", "c"),
    default_model="a",
    rules=(
        Rule("first", ("shared", "Code"), "b", {"tier": [1, {"x": None}]}),
        Rule("second", ("shared", "straße", "λ", "two words"), "c"),
    ),
)


@pytest.mark.parametrize(
    ("text", "rule", "candidate"),
    [
        ("write CODE", "first", "b"),
        ("encoded", "first", "b"),
        ("shared matter", "first", "b"),
        ("die Straße", "second", "c"),
        ("DIE STRASSE", "", "a"),
        ("λ", "second", "c"),
        ("Λ", "", "a"),
        ("two  words", "", "a"),
        ("Two Words", "second", "c"),
        ("", "", "a"),
        ("lone \ud800 half", "", "a"),
    ],
)
def test_the_first_rule_that_matches_decides(text: str, rule: str, candidate: str) -> None:
    decision = decide(POLICY, RequestView(text))
    assert (decision.matched_rule, decision.route_to) == (rule, candidate)
    assert decision.default_used == (rule == "")
    assert decision.version == "1"


def test_outputs_are_passed_on_as_written() -> None:
    assert decide(POLICY, RequestView("code")).outputs == {"tier": [1, {"x": None}]}
    assert decide(POLICY, RequestView("nothing")) == Decision("a", "", True, {})


@given(st.text(), st.text(min_size=1))
def test_only_ascii_letters_are_folded(text: str, keyword: str) -> None:
    def fold(value: str) -> str:
        return "".join(chr(ord(c) + 32) if "A" <= c <= "Z" else c for c in value)

    policy = Policy("p", ("a", "b"), ("a", "b"), "a", (Rule("r", (keyword,), "b"),))
    assert decide(policy, RequestView(text)).default_used == (fold(keyword) not in fold(text))


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"messages": [user("one"), {"role": "assistant", "content": "no"}, user("two")]}, "two"),
        ({"messages": [user("one"), {"role": "assistant", "content": "last"}]}, "one"),
        ({"messages": [{"role": "system", "content": "s"}], "prompt": "p"}, ""),
        ({"messages": [], "prompt": "p"}, ""),
        ({"messages": None, "prompt": "p"}, "p"),
        ({"messages": [user([{"type": "text", "text": "a"}, {"type": "image_url"}, {"text": "b"}])]}, "a\nb"),
        ({"messages": [user(None)]}, ""),
        ({"messages": [user([{"type": "text", "text": 3}])]}, ""),
        ({"messages": ["x", user("y")]}, "y"),
        ({"prompt": "p", "input": "i"}, "p"),
        ({"prompt": ["p", 3, ["no"], "q"]}, "p\nq"),
        ({"prompt": {"x": 1}}, ""),
        ({"input": "i"}, "i"),
        ({"input": [user("one"), user([{"type": "input_text", "text": "two"}]), {"role": "system"}]}, "two"),
        (
            {
                "input": [
                    {"type": "input_text", "text": "a"},
                    {"role": "system", "content": "s"},
                    {"text": "b"},
                ]
            },
            "a\nb",
        ),
        ({"input": 3}, ""),
        ({}, ""),
    ],
)
def test_the_text_that_rules_look_at(body: dict[str, Any], text: str) -> None:
    assert request_text(body) == text


def test_a_document_from_parse_to_decision() -> None:
    """Resolution order, folding and outputs over one whole document, decisions written by hand."""
    document = {
        "version": "1",
        "recipe": "collection.router",
        "model_name": "user.Desk",
        "components": ["near", "far"],
        "routing": {
            "candidates": ["near", "far"],
            "default_model": "near",
            "rules": [
                {
                    "id": "r1",
                    "match": {"keywords_any": ["invoice", "TAX"]},
                    "route_to": "far",
                    "outputs": {"q": 1},
                },
                {"id": "r2", "match": {"keywords_any": ["tax", "été"]}, "route_to": "near"},
            ],
        },
    }
    policy = parse_policy(copy.deepcopy(document))
    expected = {
        "my Taxi": ("far", "r1", False, {"q": 1}),
        "l'été": ("near", "r2", False, {}),
        "L'ÉTÉ": ("near", "", True, {}),
        "hello": ("near", "", True, {}),
    }
    for text, fields in expected.items():
        found = decide(policy, RequestView(request_text({"messages": [user(text)]})))
        assert (found.route_to, found.matched_rule, found.default_used, found.outputs) == fields
