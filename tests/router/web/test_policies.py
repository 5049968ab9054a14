"""Requests through a policy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from router.policy.document import Keywords, Policy, Rule
from router.policy.evaluate import Decision
from router.policy.request import RequestView
from router.web.options import WebOptions
from tests.router.web.fakes import (
    CHAT,
    OPTIONS,
    SAFETY_S,
    Peer,
    Site,
    chat,
    data_of,
    events_of,
    policy,
    reply,
    site,
)


async def echo(peer: Peer) -> None:
    """A script: an answer that repeats the request's model."""
    asked = msgspec.json.decode(peer.body)
    if asked.get("stream"):
        await peer.begin_stream()
        for part in (
            b": hello\n\nda",
            b'ta: {"model":"%s"}\n' % asked["model"].encode(),
            b"\ndata: [DONE]\n\n",
        ):
            await peer.chunk(part)
        await peer.end_stream()
    else:
        await peer.answer(b' {"model":"%s","x":1.50}' % asked["model"].encode())


@pytest.mark.fault("F21")
@pytest.mark.parametrize(
    ("text", "rule", "model"), [("Python please", "code", "beta"), ("hi", "default", "alpha")]
)
@pytest.mark.parametrize("stream", [False, True])
async def test_the_answer_names_the_rule_and_the_candidate(
    text: str, rule: str, model: str, stream: bool
) -> None:
    async with site(echo) as s:
        answer = await s.ask("POST", CHAT, chat(stream, "auto", text))
        assert answer.status == 200
        assert answer.headers["x-lemonade-route"] == rule
        assert s.api.asked[0]["model"] == model
        assert s.api.asked[0]["policy"] == "auto"
        named = data_of(events_of(answer.body)[0]) if stream else answer.json()
        assert named["model"] == model
        assert "x_lemonade_route" not in named


@pytest.mark.parametrize("stream", [False, True])
async def test_the_trace_is_in_the_answer_on_request(stream: bool) -> None:
    async with site(echo) as s:
        answer = await s.ask("POST", CHAT, chat(stream, "auto", "python", route_trace=True))
        told = data_of(events_of(answer.body)[0]) if stream else answer.json()
        assert told["x_lemonade_route"] == {
            "version": "1",
            "route_to": "beta",
            "matched_rule": "code",
            "default_used": False,
            "outputs": {},
            "trace": [{"condition": "keywords_any", "result": True}],
        }
        assert told["model"] == "beta"
        if stream:
            assert len(events_of(answer.body)) == 2
            assert answer.body.startswith(b": hello\n\ndata: {")
        else:
            assert answer.body.endswith(b'"x":1.50}')
        assert "route_trace" not in msgspec.json.decode(s.worker.requests[0].body)


SLOWLY = msgspec.structs.replace(OPTIONS, route_silence_s=0.01)


@asynccontextmanager
async def slow_choice(options: WebOptions) -> AsyncIterator[tuple[Site, asyncio.Event]]:
    """A site whose policies choose when the event is set."""
    go_on = asyncio.Event()
    async with site(echo, options) as s:
        choose = s.api.decide

        async def slowly(policy: Policy, view: RequestView) -> Decision:
            await go_on.wait()
            return await choose(policy, view)

        s.api.decide = slowly  # type: ignore[method-assign]  # for as long as this site lives
        yield s, go_on


async def test_a_stream_begins_before_a_slow_choice_and_then_tells_it() -> None:
    async with slow_choice(SLOWLY) as (s, go_on), s.client() as client:
        await client.send("POST", CHAT, chat(True, "auto", "python"))
        answer = await client.answer(lambda a: b": keep-alive" in a.body)
        assert answer.status == 200
        assert "x-lemonade-route" not in answer.headers
        go_on.set()
        answer = await client.more(answer)
        assert answer.whole
        first = data_of(events_of(answer.body)[0])
        assert first["x_lemonade_route"]["route_to"] == "beta"
        assert first["x_lemonade_route"]["matched_rule"] == "code"


async def test_an_error_after_a_slow_choice_is_an_event() -> None:
    async with slow_choice(SLOWLY) as (s, go_on), s.client() as client:
        await client.send("POST", CHAT, chat(True, "auto", "python"))
        answer = await client.answer(lambda a: b": keep-alive" in a.body)
        del s.api.models["beta"]
        go_on.set()
        answer = await client.more(answer)
        assert answer.whole
        assert data_of(events_of(answer.body)[-1])["error"]["code"] == "model_not_found"


async def test_who_wants_no_stream_waits_for_a_slow_choice() -> None:
    async with slow_choice(SLOWLY) as (s, go_on), s.client() as client:
        await client.send("POST", CHAT, chat(False, "auto", "python"))
        asyncio.get_running_loop().call_later(5 * SLOWLY.route_silence_s, go_on.set)
        answer = await client.answer()
        assert answer.headers["x-lemonade-route"] == "code"


async def test_headers_wait_for_the_choice_and_then_for_the_model_in_turn() -> None:
    options = msgspec.structs.replace(OPTIONS, route_silence_s=SAFETY_S, silence_s=0.01)
    async with slow_choice(options) as (s, go_on), s.client() as client:
        s.api.gate.clear()
        await client.send("POST", CHAT, chat(True, "auto", "python"))
        asyncio.get_running_loop().call_later(5 * options.silence_s, go_on.set)
        answer = await client.answer(lambda a: b": keep-alive" in a.body)
        assert answer.headers["x-lemonade-route"] == "code"
        s.api.gate.set()
        assert (await client.more(answer)).whole
        assert "x_lemonade_route" not in data_of(events_of(answer.body)[0])


async def test_a_trace_without_a_policy_is_no_matter() -> None:
    async with site(reply) as s:
        answer = await s.ask("POST", CHAT, chat(route_trace=True))
        assert answer.status == 200
        assert "x-lemonade-route" not in answer.headers
        assert "route_trace" not in msgspec.json.decode(s.worker.requests[0].body)


async def test_a_request_without_a_policy_keeps_its_bytes() -> None:
    body = b' {"messages":[{"role":"user","content":"x"}],"model":"a"}'
    async with site(reply) as s:
        assert (await s.ask("POST", CHAT, body)).status == 200
        assert s.worker.requests[0].body == body
        assert s.api.asked[0] == {
            "model": "alpha",
            "policy": None,
            "keep_alive_s": None,
        }


async def test_a_candidate_that_is_gone_is_a_404_that_names_the_policy() -> None:
    async with site(reply) as s:
        s.api.policies["auto"] = policy(rules=(Rule("gone", Keywords(("hello",)), "gamma"),))
        answer = await s.ask("POST", CHAT, chat(model="auto"))
        assert answer.status == 404
        assert "auto" in answer.error["message"]
        assert "gamma" in answer.error["message"]
        assert answer.headers["x-lemonade-route"] == "gone"


async def test_of_a_long_rule_the_start_is_named() -> None:
    async with site(reply) as s:
        s.api.policies["auto"] = policy(rules=(Rule("r" * 5000, Keywords(("hello",)), "beta"),))
        answer = await s.ask("POST", CHAT, chat(model="auto"))
        assert answer.status == 200
        assert answer.headers["x-lemonade-route"] == "r" * 256


async def test_a_candidate_of_the_wrong_type_is_a_400() -> None:
    async with site(reply) as s:
        s.api.policies["auto"] = policy(default_model="embed", rules=())
        answer = await s.ask("POST", CHAT, chat(model="auto"))
        assert answer.status == 400
        assert "embed" in answer.error["message"]


async def test_a_large_request_is_routed_by_its_text_too() -> None:
    async with site(echo) as s:
        answer = await s.ask("POST", CHAT, chat(model="auto", text="x" * (1 << 20) + " python"))
        assert answer.headers["x-lemonade-route"] == "code"


async def test_the_prompt_and_the_input_are_looked_at_as_well() -> None:
    async with site(echo) as s:
        for path, field in (("/v1/completions", "prompt"), ("/v1/responses", "input")):
            answer = await s.post(path, {"model": "auto", field: "python"})
            assert answer.headers["x-lemonade-route"] == "code"
