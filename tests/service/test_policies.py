"""Policies on real workers: conditions, helpers, fallback, and how decisions are told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.service.live import Live, live, request, write_models
from tests.support import gguf, policies

JUDGE = {"type": "llm", "model": "judge", "prompt": "Choose."}


def document(name: str, routing: dict[str, Any], *components: str) -> dict[str, Any]:
    return policies.document(name, ("alpha", "beta"), *components, **routing)


def rule(id: str, match: dict[str, Any], to: str = "beta") -> dict[str, Any]:
    return {"id": id, "match": match, "route_to": to}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three tiny language models, one of them to decide, and a tiny encoder for embeddings."""
    folder = write_models(tmp_path_factory.mktemp("policies"), ("alpha", "beta", "judge"))
    gguf.write_encoder(folder / "encoder.gguf")
    return folder


@pytest.fixture
async def router(tmp_path: Path, models: Path) -> AsyncIterator[Live]:
    async with live(tmp_path, models) as running:
        yield running


async def ask(router: Live, policy: str, text: str, **more: Any) -> tuple[str, str, dict[str, Any]]:
    """Rule and model of an answer, and what it tells of the route."""
    body = request(policy, text, route_trace=True, **more)
    async with router.session.post(router.url + "/v1/chat/completions", json=body) as answer:
        told = await answer.json()
        assert answer.status == 200, told
        route = told["x_lemonade_route"]
        assert route["route_to"] == told["model"]
        return answer.headers["x-lemonade-route"], told["model"], route


async def test_a_request_goes_where_the_rules_say(router: Live) -> None:
    rules = [
        rule("private", {"metadata": {"key": "consent", "equals": "denied"}}, "alpha"),
        rule("code", {"keywords_any": ["def "]}),
        rule("digits", {"regex": r"\d{4}"}),
        rule("long", {"min_chars": 100}),
        rule("tools", {"has_tools": True}),
    ]
    await router.post("/v1/pull", document("auto", {"rules": rules}))
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    assert (await ask(router, "auto", "hello"))[:2] == ("default", "alpha")
    assert (await ask(router, "auto", "def f"))[:2] == ("code", "beta")
    assert (await ask(router, "auto", "in 1999"))[:2] == ("digits", "beta")
    assert (await ask(router, "auto", "x" * 100))[:2] == ("long", "beta")
    consent = {"metadata": {"consent": "denied"}}
    assert (await ask(router, "auto", "def f", **consent))[:2] == ("private", "alpha")
    validated = await router.post(
        "/v1/routing/validate",
        {"policy": document("auto", {"rules": rules}), "prompt": "hi", "has_tools": bool(tools)},
    )
    assert validated["decision"]["matched_rule"] == "tools"
    assert [each["condition"] for each in validated["decision"]["trace"]][-1] == "has_tools"


async def test_the_first_event_of_a_stream_tells_the_route(router: Live) -> None:
    await router.post("/v1/pull", document("auto", {"rules": [rule("code", {"keywords_any": ["def"]})]}))
    body = request("auto", "def f", stream=True, route_trace=True)
    async with router.session.post(router.url + "/v1/chat/completions", json=body) as answer:
        assert answer.headers["x-lemonade-route"] == "code"
        events = [line[6:] for line in (await answer.text()).splitlines() if line.startswith("data: ")]
    first = json.loads(events[0])
    assert first["x_lemonade_route"]["trace"] == [{"condition": "keywords_any", "result": True}]
    assert events[-1] == "[DONE]"
    assert not any("x_lemonade_route" in event for event in events[1:])


SIMILAR = {
    "classifiers": [
        {
            "id": "topic",
            "type": "semantic_similarity",
            "model": "encoder",
            "reference_phrases": {"code": ["fix this bug", "write a test"], "law": ["a contract"]},
        }
    ],
    "rules": [rule("code", {"classifier": "topic", "label": "code", "min_score": 0.999})],
}


async def test_similarity_by_real_embeddings_is_kept_on_disk(tmp_path: Path, models: Path) -> None:
    async with live(tmp_path, models) as router:
        await router.post("/v1/pull", document("auto", SIMILAR, "encoder"))
        rule_id, model, route = await ask(router, "auto", "write a test")
        assert (rule_id, model) == ("code", "beta")
        assert route["trace"][0]["condition"] == "classifier:topic"
        assert route["trace"][0]["score"] == pytest.approx(1.0, abs=1e-3)
        assert (await ask(router, "auto", "zzzz qqqq 9"))[2]["trace"][0]["score"] < 0.999
        encoder = next(r for r in router.router.snapshot.residents if r.model == "encoder")
        assert encoder.memberships == ("helper",)
        kept = list((tmp_path / "cache" / "vectors").iterdir())
        assert len(kept) == 1
        written = kept[0].stat().st_mtime_ns
    async with live(tmp_path, models) as router:
        assert (await ask(router, "auto", "fix this bug"))[0] == "code"
        assert kept[0].stat().st_mtime_ns == written


async def test_a_router_model_that_is_a_candidate_is_one_process(router: Live) -> None:
    """The tiny model writes noise; held to the labels it still has to choose one."""
    routing = {"router": {"type": "llm", "model": "alpha", "prompt": "Choose."}}
    await router.post("/v1/pull", document("auto", routing))
    for _ in range(2):
        rule_id, model, route = await ask(router, "auto", "hello")
        assert (rule_id, model) in {("__route_0", "alpha"), ("__route_1", "beta")}
        scores = [step["score"] for step in route["trace"]]
        assert scores[-1] == 1.0
    alphas = [r for r in router.router.snapshot.residents if r.model == "alpha"]
    assert len(alphas) == 1


async def test_alternating_reloads_nothing(router: Live) -> None:
    """With a limit of one: the candidates have room by autosize, the helper by being one."""
    routing = {
        "classifiers": [
            {"id": "who", "type": "llm", "model": "judge", "prompt": "?", "labels": ["yes"]},
        ],
        "rules": [
            rule("b", {"all": [{"keywords_any": ["BETA"]}, {"classifier": "who"}]}),
            rule("a", {"classifier": "who"}, "alpha"),
        ],
    }
    await router.set(max_loaded_models=1)
    await router.post("/v1/pull", document("auto", routing, "judge"))
    for text, model in (("ALPHA", "alpha"), ("BETA", "beta")) * 3:
        assert (await ask(router, "auto", text))[1] == model
    assert sorted(str(m) for m in router.told("admit")) == ["alpha", "beta", "judge"]
    pools = {r.model: r.memberships for r in router.router.snapshot.residents}
    assert pools == {"alpha": ("standard",), "beta": ("standard",), "judge": ("helper",)}


async def test_a_helper_that_cannot_be_had_decides_by_on_error(router: Live, models: Path) -> None:
    routing = {
        "classifiers": [
            {**JUDGE, "id": "open", "labels": ["x"]},
            {**JUDGE, "id": "closed", "labels": ["x"], "on_error": "match_true"},
        ],
        "rules": [
            rule("open", {"classifier": "open"}, "alpha"),
            rule("closed", {"classifier": "closed"}),
        ],
    }
    await router.post("/v1/pull", document("auto", routing, "judge"))
    router.router.pause(True)
    await router.post("/v1/load", {"model_name": "beta"})
    rule_id, model, route = await ask(router, "auto", "hello")
    assert (rule_id, model) == ("closed", "beta")
    assert [step["result"] for step in route["trace"]] == [False, True]
    assert all("503 paused" in step["error"] for step in route["trace"])


async def test_a_helper_without_room_is_told_and_nothing_is_thrashed(tmp_path: Path, models: Path) -> None:
    simulate, settings = (3 << 29,), {"allow_partial_offload": False}
    async with live(tmp_path, models, simulate=simulate, settings=settings) as router:
        routing = {"candidates": ["alpha"], "router": JUDGE}
        await router.post("/v1/pull", document("auto", routing, "judge"))
        await router.chat("alpha")
        for _ in range(3):
            rule_id, model, route = await ask(router, "auto", "hello")
            assert (rule_id, model) == ("default", "alpha")
            assert route["trace"][0]["error"].startswith("507 insufficient_memory")
        assert router.told("admit") == ["alpha"]
        (shown,) = router.router.snapshot.policies
        assert shown.problem.startswith("auto cannot keep judge, which it asks, beside its candidates: ")
        await router.post("/v1/unload", {"model_name": "alpha"})
        assert (await router.router.test_policy("auto", "hello"))["matched_rule"] == "__route_0"
        await router.until(lambda s: s.policies[0].problem == "")


ASKING = {
    "classifiers": [{**JUDGE, "id": "c", "labels": ["x"]}],
    "rules": [rule("x", {"classifier": "c"})],
}


async def test_a_helper_that_takes_too_long_decides_by_on_error(router: Live) -> None:
    await router.post("/v1/pull", document("auto", ASKING, "judge"))
    await router.post("/v1/load", {"model_name": "alpha"})
    await router.set(helper_wait_s=1)
    go = router.hold_loads()
    rule_id, model, route = await ask(router, "auto", "hello")
    assert (rule_id, model) == ("default", "alpha")
    assert route["trace"][0]["error"].startswith("503 ")
    # Its load goes on, for the next one who asks.
    go.set()
    await router.until(lambda s: any(r.model == "judge" and r.state == "ready" for r in s.residents))
    await router.set(helper_wait_s=20)
    assert (await ask(router, "auto", "hello"))[0] == "x"
    assert router.told("admit").count("judge") == 1


async def test_no_helper_is_held_while_the_candidate_is_waited_for(
    router: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    await router.post("/v1/pull", document("auto", ASKING, "judge"))
    acquire, held = router.router.acquire, []

    async def seen(*args: Any, **how: Any) -> Any:
        held.append([r.model for r in router.router._residency.table.residents.values() if r.leases])
        return await acquire(*args, **how)

    monkeypatch.setattr(router.router, "acquire", seen)
    assert (await ask(router, "auto", "hello"))[1] == "beta"
    assert held == [[]]


async def test_a_client_that_leaves_during_a_decision_leaves_nothing_behind(router: Live) -> None:
    await router.post("/v1/pull", document("auto", ASKING, "judge"))
    go = router.hold_loads()
    asking = asyncio.create_task(ask(router, "auto", "hello"))
    await router.until(lambda s: s.queue.waiting == 1)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await router.until(lambda s: s.queue.waiting == 0)
    go.set()
    assert (await ask(router, "auto", "hello"))[1] == "beta"


async def test_models_that_cannot_do_what_a_classifier_asks_are_refused(router: Live) -> None:
    wrong = json.loads(json.dumps(SIMILAR))
    wrong["classifiers"][0]["model"] = "judge"
    refused = await router.post("/v1/pull", document("auto", wrong, "judge"), status=400)
    assert refused["error"]["param"] == "$.routing.classifiers[0].model"
    assert "embedding model" in refused["error"]["message"]
    routing = {"router": {**JUDGE, "model": "encoder"}}
    refused = await router.post("/v1/pull", document("auto", routing, "encoder"), status=400)
    assert refused["error"]["param"] == "$.routing.router.model"


@pytest.mark.fault("F37")
async def test_a_prompt_too_long_for_the_small_one_goes_to_the_large_one(router: Live) -> None:
    await router.post("/v1/load", {"model_name": "alpha", "ctx_size": 512})
    await router.post("/v1/load", {"model_name": "beta", "ctx_size": 8192})
    await router.post("/v1/pull", document("plain", {"rules": []}))
    await router.post("/v1/pull", document("auto", {"rules": [], "fallback": True}))
    assert (await ask(router, "auto", "hi"))[1] == "alpha"
    # By estimate: some 1,000 tokens.
    _, model, route = await ask(router, "auto", "word " * 800)
    assert model == "beta"
    assert route["fallback"] == [{"candidate": "alpha", "reason": "context_too_small"}]
    # By what the worker says: this model has a token for each letter, so 1,500 letters are too many for 512.
    _, model, route = await ask(router, "auto", "x" * 1500)
    assert model == "beta"
    assert route["fallback"] == [{"candidate": "alpha", "reason": "context_too_small"}]
    async with router.stream("auto", tokens=2, messages=[{"role": "user", "content": "x" * 1500}]) as stream:
        assert (await stream.rest())[-1] == "[DONE]"
    # Without fallback all is as ever: the worker's own error.
    plain = await router.post("/v1/chat/completions", request("plain", "x" * 1500), status=400)
    assert plain["error"]["code"] != "context_too_small"
    none = await router.post("/v1/chat/completions", request("auto", "x" * 20_000), status=400)
    assert none["error"]["code"] == "context_too_small"
    assert "alpha 512, beta 8192" in none["error"]["message"]


async def test_a_candidate_that_cannot_load_gives_way(tmp_path: Path, models: Path) -> None:
    broken = tmp_path / "models"
    broken.mkdir()
    for file in models.iterdir():
        (broken / file.name).symlink_to(file)
    (broken / "alpha.gguf").unlink()
    gguf.write_header_only(broken / "alpha.gguf")
    async with live(tmp_path, broken) as router:
        await router.post("/v1/pull", document("auto", {"rules": [], "fallback": True}))
        rule_id, model, route = await ask(router, "auto", "hi")
        assert (rule_id, model) == ("default", "beta")
        assert route["default_used"] is True
        assert route["fallback"] == [{"candidate": "alpha", "reason": "cannot_be_loaded"}]
        assert router.told("fallback") == ["beta"]


@pytest.mark.fault("F05")
@pytest.mark.fault("F23")
async def test_policies_change_while_requests_run(router: Live) -> None:
    """A request keeps the policy that it began with, whatever becomes of it."""
    await router.post("/v1/pull", document("auto", {"rules": []}))
    async with router.stream("auto") as first:
        await first.event()
        await router.post("/v1/pull", document("auto", {"rules": [], "default_model": "beta"}))
        assert (await ask(router, "auto", "hi"))[1] == "beta"
        await router.post("/internal/policies/auto", {"enabled": False})
        off = await router.post("/v1/chat/completions", request("auto"), status=404)
        assert off["error"]["code"] == "policy_disabled"
        await router.until(lambda s: s.pool.candidate_floor == 0)
        exported = await router.get("/internal/policies/auto")
        assert exported["routing"]["default_model"] == "beta"
        assert exported["enabled"] is False
        await router.post("/internal/policies/auto", {"enabled": True})
        await router.until(lambda s: s.pool.candidate_floor == 2)
        # Its file is edited by hand: first into nonsense, then into another policy.
        (file,) = router.router._paths.policies_dir.iterdir()
        written = file.read_text()
        file.write_text(written.replace('"default_model"', '"default"'))
        router.router._policies.wake()
        said = await router.until(lambda s: any("$.routing" in problem for problem in s.problems))
        assert said.pool.candidate_floor == 2
        assert (await ask(router, "auto", "hi"))[1] == "beta"
        file.write_text(written.replace('"auto"', '"renamed"'))
        router.router._policies.wake()
        await router.until(lambda s: [p.name for p in s.policies] == ["renamed"] and not s.problems)
        assert (await ask(router, "renamed", "hi"))[1] == "beta"
        file.write_text(written)
        router.router._policies.wake()
        await router.until(lambda s: [p.name for p in s.policies] == ["auto"])
        await router.post("/v1/delete", {"model_name": "auto"})
        await router.post("/v1/chat/completions", request("auto"), status=404)
        await router.until(lambda s: s.pool.candidate_floor == 0 and s.pool.effective_limit == 1)
        assert "choices" in json.loads(await first.event())


@pytest.mark.long
async def test_decisions_are_counted_and_told(router: Live) -> None:
    rules = [rule("code", {"keywords_any": ["def"]})]
    await router.post("/v1/pull", document("auto", {"rules": rules}))
    talk = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "yes"}]
    for text in ("hi", "def f", "hi again"):
        messages = [*talk, {"role": "user", "content": text}]
        await router.chat("auto", messages=messages)
    async with router.session.get(router.url + "/metrics") as answer:
        metrics = await answer.text()
    assert 'lemonade_route_decisions_total{policy="auto",route_to="alpha",rule="default"} 2.0' in metrics
    assert 'lemonade_route_decisions_total{policy="auto",route_to="beta",rule="code"} 1.0' in metrics
    assert 'lemonade_route_switches_total{policy="auto"} 2.0' in metrics
    told = [e.message for e in router.router.feed_since(0) if e.code == "route"]
    assert told == [
        "auto sent a request to alpha as its default.",
        "auto sent a request to beta by the rule code.",
    ]


@pytest.mark.long
async def test_many_at_once_share_a_helper(router: Live) -> None:
    await router.post("/v1/pull", document("auto", SIMILAR, "encoder"))
    answers = await asyncio.gather(*(ask(router, "auto", "fix this bug") for _ in range(6)))
    assert {rule_id for rule_id, _, _ in answers} == {"code"}
    assert router.told("admit").count("encoder") == 1
