"""Which candidate a request goes to."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.policy import evaluate
from router.policy.document import Keywords, Policy, Regex, Rule
from router.policy.evaluate import (
    AskScores,
    AskSearch,
    Decision,
    Scores,
    Step,
    decide,
    evaluation,
)
from router.policy.parse import parse_policy
from router.policy.request import RequestView, request_text, request_view
from tests.support.policies import document

POLICY = Policy(
    name="p",
    components=("a", "b", "c"),
    candidates=("a", "b", "c"),
    default_model="a",
    rules=(
        Rule("first", Keywords(("shared", "Code")), "b", {"tier": [1, {"x": None}]}),
        Rule("second", Keywords(("shared", "straße", "λ", "two words")), "c"),
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
    nothing = decide(POLICY, RequestView("nothing"))
    assert nothing == Decision("a", "", True, {}, trace=(Step("keywords_any", False),) * 2)
    assert "trace" not in nothing.document(trace=False)


@given(st.text(), st.text(min_size=1))
def test_only_ascii_letters_are_folded(text: str, keyword: str) -> None:
    def fold(value: str) -> str:
        return "".join(chr(ord(c) + 32) if "A" <= c <= "Z" else c for c in value)

    policy = Policy("p", ("a", "b"), ("a", "b"), "a", (Rule("r", Keywords((keyword,)), "b"),))
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


@pytest.mark.parametrize("kind", [[], {}, None, 3])
def test_a_part_whose_type_is_no_text_is_no_image(kind: Any) -> None:
    part = {"type": kind, "text": "t"}
    seen = request_view({"messages": [user([part])], "input": [part]})
    assert (seen.text, seen.has_images) == ("t", False)


def test_a_document_from_parse_to_decision() -> None:
    """Resolution order, folding and outputs over one whole document, decisions written by hand."""
    rules = [
        {"id": "r1", "match": {"keywords_any": ["invoice", "TAX"]}, "route_to": "far", "outputs": {"q": 1}},
        {"id": "r2", "match": {"keywords_any": ["tax", "été"]}, "route_to": "near"},
    ]
    policy = parse_policy(document("user.Desk", ("near", "far"), rules=rules))
    expected = {
        "my Taxi": ("far", "r1", False, {"q": 1}),
        "l'été": ("near", "r2", False, {}),
        "L'ÉTÉ": ("near", "", True, {}),
        "hello": ("near", "", True, {}),
    }
    for text, fields in expected.items():
        found = decide(policy, RequestView(request_text({"messages": [user(text)]})))
        assert (found.route_to, found.matched_rule, found.default_used, found.outputs) == fields


def asked_of(policy: Policy, view: RequestView, *answers: Any) -> tuple[list[Any], Decision]:
    """What an evaluation asks for, and what it decides with these answers."""
    running, questions = evaluation(policy, view), []
    try:
        questions.append(next(running))
        for answer in answers:
            questions.append(running.send(answer))
    except StopIteration as end:
        return questions, end.value
    raise AssertionError("it asks for more")


CLASSIFIED = parse_policy(
    document(
        "p",
        ("a", "b"),
        "m",
        classifiers=[
            {"id": "one", "type": "classifier", "model": "m", "labels": ["x", "y"]},
            {"id": "two", "type": "classifier", "model": "m", "labels": ["x"]},
        ],
        rules=[
            {"id": "1", "match": {"classifier": "one", "label": "x"}, "route_to": "b"},
            {"id": "2", "match": {"classifier": "one", "label": "y"}, "route_to": "b"},
            {
                "id": "3",
                "match": {"any": [{"keywords_any": ["quick"]}, {"classifier": "two"}]},
                "route_to": "b",
            },
            {"id": "4", "match": {"classifier": "two", "max_score": 0}, "route_to": "b"},
        ],
    )
)


def test_each_classifier_is_asked_once() -> None:
    low = Scores({"x": 0.1, "y": 0.1})
    questions, decision = asked_of(CLASSIFIED, RequestView("slow"), low, low)
    assert [q.classifier.id for q in questions if isinstance(q, AskScores)] == ["one", "two"]
    assert decision.default_used


def test_a_classifier_that_does_not_matter_is_not_asked() -> None:
    questions, decision = asked_of(CLASSIFIED, RequestView("quick"), Scores({"x": 0.1, "y": 0.1}))
    assert len(questions) == 1
    assert decision.matched_rule == "3"


def searching(source: str) -> Policy:
    return Policy("p", ("a", "b"), ("a", "b"), "a", (Rule("r", Regex(source), "b"),))


ENDLESS = "(?:a|aa)+c"


@pytest.mark.parametrize(
    ("answer", "rule", "error"), [(True, "r", None), (False, "", None), (None, "", "it took too long")]
)
def test_a_search_that_takes_time_is_handed_out(answer: bool | None, rule: str, error: str | None) -> None:
    questions, decision = asked_of(searching(ENDLESS), RequestView("a" * 80), answer)
    assert questions == [AskSearch(ENDLESS)]
    assert decision.matched_rule == rule
    assert (decision.trace[0].error or "").startswith(error or "")
    assert (decision.trace[0].error is None) == (error is None)


def test_a_long_text_is_searched_elsewhere_from_the_start() -> None:
    questions, _ = asked_of(searching("b"), RequestView("a" * (evaluate.QUICK_INPUT + 1)), False)
    assert questions == [AskSearch("b")]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("b" + "a" * ((1 << 20) - 1), "r"),
        ("b" + "a" * (1 << 20), ""),
        ("b" + "é" * ((1 << 19) - 1) + "a", "r"),
        ("b" + "é" * (1 << 19), ""),
    ],
)
def test_beyond_a_mebibyte_nothing_is_found(text: str, rule: str) -> None:
    decision = decide(searching("^b"), RequestView(text))
    assert decision.matched_rule == rule
    assert (decision.trace[0].error is not None) == (rule == "")


def test_a_search_without_end_is_given_up() -> None:
    decision = decide(searching(ENDLESS), RequestView("a" * 200))
    assert decision.default_used
    assert decision.trace[0].error == "it took too long"


def test_a_document_of_a_decision() -> None:
    decision = decide(CLASSIFIED, RequestView("slow"), {"one": Scores({"x": 0.1, "y": 0.7}, "why")})
    assert decision.document(trace=True) == {
        "version": "1",
        "route_to": "b",
        "matched_rule": "2",
        "default_used": False,
        "outputs": {},
        "trace": [
            {
                "condition": "classifier:one",
                "result": False,
                "score": 0.1,
                "label": "x",
                "rationale": "why",
            },
            {"condition": "classifier:one", "result": True, "score": 0.7, "label": "y", "rationale": "why"},
        ],
    }
