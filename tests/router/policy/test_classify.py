"""Classifiers: what models are asked, what their answers mean, and what happens when there is none."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from router.catalog.model import EMBEDDING, LLM, RERANKING
from router.errors import BadRequest, RouterError, SlotsPinned, Unavailable
from router.policy import classify
from router.policy.classify import (
    Decider,
    HelperModel,
    check_models,
    chosen_label,
    is_too_long,
    rated_labels,
    shortened,
)
from router.policy.document import Policy, Regex, Rule
from router.policy.evaluate import Decision
from router.policy.parse import PolicyFault, parse_policy
from router.policy.request import RequestView
from router.policy.vectors import Vectors
from tests.support.policies import document

Answer = Callable[[str, Mapping[str, Any]], Any]


class FakeHelpers:
    """Models whose answers are the test's to say."""

    def __init__(self) -> None:
        self.types = {"judge": LLM, "encoder": EMBEDDING, "ranker": RERANKING}
        self.identity = "1"
        self.asked: list[tuple[str, str, str, Mapping[str, Any]]] = []
        self.answer: Answer = lambda path, body: None

    def model(self, name: str) -> HelperModel | None:
        kind = self.types.get(name)
        return None if kind is None else HelperModel(kind, f"{name}|{self.identity}")

    async def ask(self, policy: str, model: str, path: str, body: Mapping[str, Any]) -> Any:
        self.asked.append((policy, model, path, body))
        answer = self.answer(path, body)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def helpers() -> FakeHelpers:
    return FakeHelpers()


@pytest.fixture
async def decider(helpers: FakeHelpers, tmp_path: Path) -> AsyncIterator[Decider]:
    made = Decider(helpers, Vectors(tmp_path / "vectors"))
    yield made
    made.close()


def policy(*classifiers: dict[str, Any], rules: list[dict[str, Any]] | None = None, **routing: Any) -> Policy:
    given = dict(routing)
    if rules is not None:
        given["rules"] = rules
    if classifiers:
        given["classifiers"] = list(classifiers)
        given["rules"] = rules or [
            {"id": c["id"], "match": {"classifier": c["id"]}, "route_to": "b"} for c in classifiers
        ]
    return parse_policy(document("p", ("a", "b"), "judge", "encoder", "ranker", "gone", **given))


async def decided(decider: Decider, asking: Policy, text: str = "hello", **more: Any) -> Decision:
    return await decider.decide(asking, RequestView(text, **more))


def said(content: str | None) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": content}}]}


# Replies of language models

LABELS = ("law", "code")


@pytest.mark.parametrize(
    ("reply", "label"),
    [
        ('{"label": "code"}', "code"),
        ('  {"label": "law", "rationale": "since"}\n', "law"),
        ('```json\n{"label": "code"}\n```', "code"),
        ('```\n{"label": "code"}\n```', "code"),
        ('"code"', "code"),
        ("code", None),
        ('{"label": "CODE"}', None),
        ('{"label": "code "}', None),
        ('{"label": ["code"]}', None),
        ('{"label": "other"}', None),
        ('{"model": "code"}', None),
        ('Sure: {"label": "code"}', None),
        ('{"label": "code"} I hope this helps', None),
        ('```json\n{"label": "code"}\n```\n```json\n{"label": "law"}\n```', None),
        ('{"label": "code"', None),
        ("", None),
        ("[" * 5000, None),
    ],
)
def test_a_reply_names_a_label_or_none(reply: str, label: str | None) -> None:
    assert chosen_label(reply, LABELS)[0] == label


def test_a_rationale_is_kept_short() -> None:
    assert chosen_label('{"label": "law", "rationale": "' + "x" * 999 + '"}', LABELS)[1] == "x" * 300
    assert chosen_label('{"label": "law", "rationale": 5}', LABELS)[1] is None


def test_scores_in_a_reply() -> None:
    assert rated_labels('{"law": 0.25, "code": 1, "else": 7}', LABELS) == {"law": 0.25, "code": 1.0}
    assert rated_labels('```\n{"law": 0}\n```', LABELS) == {"law": 0.0}
    for wrong in ('{"law": 1.5}', '{"law": true}', '{"law": "1"}', "[]", "nothing", '{"law": -0.1}'):
        with pytest.raises(ValueError, match="score"):
            rated_labels(wrong, LABELS)


CHOICE = {"id": "topic", "type": "llm", "model": "judge", "prompt": "Which?", "labels": list(LABELS)}


async def test_a_language_model_is_shown_the_request_and_held_to_the_labels(
    helpers: FakeHelpers, decider: Decider
) -> None:
    helpers.answer = lambda path, body: said('{"label": "code", "rationale": "a def"}')
    rules = [{"id": "r", "match": {"classifier": "topic", "label": "code"}, "route_to": "b"}]
    decision = await decided(decider, policy(CHOICE, rules=rules), "def f", has_tools=True)
    assert decision.matched_rule == "r"
    assert (decision.trace[0].score, decision.trace[0].rationale) == (1.0, "a def")
    ((named, model, path, body),) = helpers.asked
    assert (named, model, path) == ("p", "judge", "/v1/chat/completions")
    instructions, request = (message["content"] for message in body["messages"])
    assert instructions.startswith("Which?\n\nIt brings tools.\n\n")
    assert '"law", "code"' in instructions
    assert request.endswith("def f")
    schema = body["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["label"]["enum"] == ["law", "code"]
    assert body["temperature"] == 0
    assert body["stream"] is False


async def test_a_reply_without_a_label_scores_none(helpers: FakeHelpers, decider: Decider) -> None:
    helpers.answer = lambda path, body: said("I would say code.")
    rules = [
        {"id": "r", "match": {"classifier": "topic", "label": "code", "min_score": 0.1}, "route_to": "b"}
    ]
    # It is no failure: on_error does not count.
    decision = await decided(decider, policy({**CHOICE, "on_error": "match_true"}, rules=rules))
    assert decision.default_used
    assert decision.trace[0].score == 0.0


async def test_a_router_model_chooses_among_the_candidates(helpers: FakeHelpers, decider: Decider) -> None:
    helpers.answer = lambda path, body: said('{"label": "b"}')
    routed = policy(router={"type": "llm", "model": "judge", "prompt": "Choose."})
    decision = await decided(decider, routed)
    assert (decision.matched_rule, decision.route_to) == ("__route_1", "b")
    assert len(helpers.asked) == 1
    helpers.answer = lambda path, body: said("none of them")
    assert (await decided(decider, routed)).default_used


async def test_a_language_model_is_asked_for_scores(helpers: FakeHelpers, decider: Decider) -> None:
    helpers.answer = lambda path, body: said('{"law": 0.2, "code": 0.8}')
    rated = {
        "id": "c",
        "type": "classifier",
        "model": "judge",
        "labels": ["law", "code"],
        "default_label": "code",
    }
    decision = await decided(decider, policy(rated))
    assert decision.matched_rule == "c"
    assert decision.trace[0].score == 0.8
    schema = helpers.asked[0][3]["response_format"]["json_schema"]["schema"]
    assert list(schema["properties"]) == ["law", "code"]


async def test_labels_that_are_not_declared_are_those_of_the_conditions(
    helpers: FakeHelpers, decider: Decider
) -> None:
    helpers.answer = lambda path, body: said('{"x": 0.9, "y": 0.1}')
    rules = [
        {"id": "y", "match": {"classifier": "c", "label": "y"}, "route_to": "b"},
        {"id": "x", "match": {"not": {"not": {"classifier": "c", "label": "x"}}}, "route_to": "b"},
    ]
    asking = policy({"id": "c", "type": "classifier", "model": "judge"}, rules=rules)
    assert (await decided(decider, asking)).matched_rule == "x"
    assert list(helpers.asked[0][3]["response_format"]["json_schema"]["schema"]["properties"]) == ["y", "x"]


async def test_a_reranker_scores_labels(helpers: FakeHelpers, decider: Decider) -> None:
    helpers.answer = lambda path, body: {
        "results": [{"index": 1, "relevance_score": 3.0}, {"index": 0, "relevance_score": -800.0}]
    }
    ranked = {
        "id": "c",
        "type": "classifier",
        "model": "ranker",
        "labels": ["law", "code"],
        "default_label": "code",
    }
    decision = await decided(decider, policy(ranked), "def f")
    assert decision.trace[0].score == pytest.approx(0.9526, abs=1e-4)
    assert helpers.asked[0][2:] == (
        "/v1/rerank",
        {"model": "ranker", "query": "def f", "documents": ["law", "code"]},
    )


def test_a_long_text_is_shown_without_its_middle() -> None:
    assert shortened("x" * 6000) == "x" * 6000
    shown = shortened("a" * 5000 + "b" * 50_000 + "c" * 5000)
    assert len(shown) < 6100
    assert shown.startswith("a" * 4000)
    assert shown.endswith("c" * 2000)


# Embeddings

SIMILAR = {
    "id": "topic",
    "type": "semantic_similarity",
    "model": "encoder",
    "reference_phrases": {"code": ["bug", "test"], "law": ["contract", "bug"]},
    "default_label": "code",
}
SPACE = {"bug": [3.0, 0.0], "test": [1.0, 1.0], "contract": [0.0, 2.0]}


def embedded(path: str, body: Mapping[str, Any]) -> Any:
    found = [{"index": i, "embedding": SPACE.get(t, [1.0, 0.1])} for i, t in enumerate(body["input"])]
    return {"data": found[::-1]}


async def test_the_nearest_phrase_of_a_label_counts(helpers: FakeHelpers, decider: Decider) -> None:
    helpers.answer = embedded
    SPACE["it is broken"] = [5.0, 5.0]
    rules = [
        {"id": "law", "match": {"classifier": "topic", "label": "law", "min_score": 0.99}, "route_to": "b"},
        {"id": "code", "match": {"classifier": "topic", "min_score": 0.99}, "route_to": "b"},
    ]
    decision = await decided(decider, policy(SIMILAR, rules=rules), "it is broken")
    assert decision.matched_rule == "code"
    assert [step.score for step in decision.trace] == [pytest.approx(0.7071, abs=1e-4), pytest.approx(1.0)]


async def test_phrases_are_embedded_once_for_each_model(
    helpers: FakeHelpers, decider: Decider, tmp_path: Path
) -> None:
    helpers.answer = embedded
    asking = policy(SIMILAR)
    await asyncio.gather(*(decided(decider, asking, f"text {n}") for n in range(4)))
    inputs = [body["input"] for _, _, _, body in helpers.asked]
    assert sorted(map(tuple, inputs)) == sorted(
        [("bug", "test", "contract"), *((f"text {n}",) for n in range(4))]
    )
    # Another router finds them on disk.
    helpers.asked.clear()
    other = Decider(helpers, Vectors(tmp_path / "vectors"))
    await decided(other, asking)
    assert [body["input"] for _, _, _, body in helpers.asked] == [["hello"]]
    # A changed file makes other vectors.
    helpers.asked.clear()
    helpers.identity = "2"
    await decided(other, asking)
    assert len(helpers.asked) == 2
    other.close()


async def test_a_blank_text_resembles_nothing_and_asks_nobody(helpers: FakeHelpers, decider: Decider) -> None:
    decision = await decided(decider, policy(SIMILAR), " \n")
    assert decision.trace[0].score == 0.0
    assert helpers.asked == []


async def test_of_a_text_too_long_to_embed_the_beginning_counts(
    helpers: FakeHelpers, decider: Decider
) -> None:
    def answer(path: str, body: Mapping[str, Any]) -> Any:
        if any(len(text) > 3000 for text in body["input"]):
            return RouterError("input (9 tokens) is too large to process.", status=500)
        return embedded(path, body)

    helpers.answer = answer
    decision = await decided(decider, policy(SIMILAR), "x" * 100_000)
    assert decision.trace[0].error is None
    assert [len(body["input"][0]) for _, _, _, body in helpers.asked[1:]] == [8000, 4000, 2000]


# Failures


@pytest.mark.parametrize("on_error", ["match_false", "match_true"])
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (SlotsPinned("all pinned"), "409 slots_pinned_error: all pinned"),
        (RouterError("no room", code="insufficient_memory", status=507), "507 insufficient_memory: no room"),
        (Unavailable("waited", code="wait_bound"), "503 wait_bound: waited"),
        ({"data": []}, "0 embeddings for"),
        ({"data": [{"embedding": [0.0, 0.0]}] * 3}, "without a direction"),
        ({"data": [{"embedding": ["x"]}] * 3}, "gave no usable answer"),
        ({"data": [{"embedding": [1.0]}, {"embedding": [1.0, 2.0]}, {"embedding": [1.0]}]}, "dimensions"),
        ({}, "gave no usable answer"),
        (None, "gave no usable answer"),
    ],
)
async def test_a_failure_decides_by_on_error_and_is_named(
    answer: Any, words: str, on_error: str, helpers: FakeHelpers, decider: Decider, caplog: Any
) -> None:
    caplog.set_level(logging.DEBUG, "router.policy")

    def say(path: str, body: Mapping[str, Any]) -> Any:
        if isinstance(answer, dict) and len(body["input"]) == 1 and len(answer.get("data", ())) == 3:
            return {"data": [{"embedding": [1.0, 0.0]}]}
        return answer

    helpers.answer = say
    decision = await decided(decider, policy({**SIMILAR, "on_error": on_error}))
    assert decision.default_used == (on_error == "match_false")
    assert words in (decision.trace[0].error or "")
    await decided(decider, policy({**SIMILAR, "on_error": on_error}))
    told = [record.levelname for record in caplog.records if "could not be asked" in record.message]
    assert told == ["WARNING", "DEBUG"]


async def test_a_model_of_the_wrong_kind_or_none_is_a_failure(helpers: FakeHelpers, decider: Decider) -> None:
    wrong = {**CHOICE, "model": "encoder", "default_label": "law"}
    decision = await decided(decider, policy(wrong))
    assert "encoder is an embedding model; llm needs a language model" in (decision.trace[0].error or "")
    decision = await decided(decider, policy({**wrong, "model": "gone"}))
    assert "there is no model gone" in (decision.trace[0].error or "")
    assert helpers.asked == []


def test_what_a_model_cannot_do_is_told_at_registration(helpers: FakeHelpers) -> None:
    check_models(policy({**CHOICE, "default_label": "law"}, SIMILAR | {"id": "s"}), helpers)
    check_models(policy({**CHOICE, "model": "gone", "default_label": "law"}), helpers)
    with pytest.raises(PolicyFault) as caught:
        check_models(
            policy({**CHOICE, "default_label": "law"}, {**SIMILAR, "id": "s", "model": "judge"}), helpers
        )
    assert caught.value.param == "$.routing.classifiers[1].model"
    with pytest.raises(PolicyFault) as caught:
        check_models(policy(router={"type": "llm", "model": "ranker", "prompt": "?"}), helpers)
    assert caught.value.param == "$.routing.router.model"


async def test_a_cancelled_decision_cancels_its_question(helpers: FakeHelpers, decider: Decider) -> None:
    asked, cancelled = asyncio.Event(), asyncio.Event()

    async def ask(*_: Any) -> Any:
        asked.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    helpers.ask = ask  # type: ignore[method-assign]  # a model that never answers
    task = asyncio.create_task(decided(decider, policy({**CHOICE, "default_label": "law"})))
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cancelled.is_set()


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (BadRequest("x", code="exceed_context_size_error"), True),
        (RouterError("the request exceeds the available context size, try increasing it"), True),
        (RouterError("input (600 tokens) is too large to process. increase the physical batch size"), True),
        (BadRequest("no such field"), False),
        (RouterError("context shift is disabled"), False),
    ],
)
def test_what_says_that_a_text_is_too_long(error: RouterError, result: bool) -> None:
    assert is_too_long(error) is result


# Slow searches

ENDLESS = "(?:a|aa)+c"


def searching(*sources: str) -> Policy:
    rules = tuple(Rule(f"r{n}", Regex(source), "b") for n, source in enumerate(sources))
    return Policy("p", ("a", "b"), ("a", "b"), "a", rules)


async def test_a_slow_search_leaves_the_loop_free(decider: Decider) -> None:
    steps = 0

    async def others() -> None:
        nonlocal steps
        while True:
            await asyncio.sleep(0)
            steps += 1

    busy = asyncio.create_task(others())
    decision = await decided(decider, searching(ENDLESS), "a" * 200)
    busy.cancel()
    assert decision.trace[0].error == "it took too long"
    assert steps > 100


async def test_all_searches_of_a_decision_are_bounded_together(
    decider: Decider, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[str] = []

    def found(source: str, text: str, budget_s: float, *, release: bool) -> bool | None:
        assert threading.current_thread() is not threading.main_thread()
        searched.append(source)
        return None

    class Clock:
        """Each search takes 0.4 s on this clock."""

        def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
            self.loop, self.at = loop, 0.0

        def time(self) -> float:
            self.at += 0.4
            return self.at

        def run_in_executor(self, *args: Any) -> Any:
            return self.loop.run_in_executor(*args)

    clock = Clock(asyncio.get_running_loop())
    monkeypatch.setattr(classify, "found", found)
    monkeypatch.setattr(classify.asyncio, "get_running_loop", lambda: clock)
    searches = classify._Searches(decider._searches, "text")
    monkeypatch.setattr(classify.asyncio, "timeout", lambda _: _Nothing())
    assert [await searches.find(str(n)) for n in range(5)] == [None] * 5
    assert searched == ["0", "1", "2"]


class _Nothing:
    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, *_: object) -> None:
        return None


async def test_a_large_text_is_looked_at_off_the_loop(
    decider: Decider, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    real = classify._step

    def step(*args: Any) -> Any:
        seen.append(threading.current_thread() is threading.main_thread())
        return real(*args)

    monkeypatch.setattr(classify, "_step", step)
    await decided(decider, searching("x"), "y" * 100)
    await decided(decider, searching("x"), "y" * 200_000)
    assert seen == [True, False, False]


async def test_a_policy_of_many_words_is_looked_at_off_the_loop(
    decider: Decider, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    real = classify._step

    def step(*args: Any) -> Any:
        seen.append(threading.current_thread() is threading.main_thread())
        return real(*args)

    monkeypatch.setattr(classify, "_step", step)
    words = [f"word {n}" for n in range(10_000)]
    wide = policy(rules=[{"id": "r", "match": {"not": {"keywords_any": words}}, "route_to": "b"}])
    assert wide.breadth == 10_000
    await decided(decider, wide, "short")
    await decided(decider, wide, "x" * 2_000)
    assert seen == [True, False]
