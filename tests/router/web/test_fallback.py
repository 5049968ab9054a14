"""Candidates that give way to the next one."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from router.catalog.model import Model
from router.errors import InsufficientMemory, LoadFailed, RouterError, ShuttingDown, Unavailable
from router.policy.document import Keywords, Policy, Rule
from router.policy.fit import GaveWay
from tests.router.web.fakes import (
    CHAT,
    OPTIONS,
    FakeApi,
    FakeLease,
    Peer,
    chat,
    data_of,
    events_of,
    model,
    site,
)

RULES = (Rule("code", Keywords(("python",)), "beta"),)
NAMES = ("alpha", "beta", "gamma")


def policy(**more: Any) -> Policy:
    fields = {"components": NAMES, "candidates": NAMES, "default_model": "alpha", "rules": RULES, **more}
    return Policy(name="auto", **{"fallback": True, **fields})


async def answers(peer: Peer) -> None:
    """A script: the model's name, streamed if that is asked for."""
    asked = msgspec.json.decode(peer.body)
    if asked.get("stream"):
        await peer.begin_stream()
        await peer.chunk(b'data: {"model":"%s"}\n\ndata: [DONE]\n\n' % asked["model"].encode())
        await peer.end_stream()
    else:
        await peer.answer(b'{"model":"%s"}' % asked["model"].encode())


def too_long_for(*names: str) -> Any:
    """A script: the worker of one of these models says that the request is too large."""

    async def script(peer: Peer) -> None:
        asked = msgspec.json.decode(peer.body)
        if asked["model"] not in names:
            return await answers(peer)
        error = {
            "code": 400,
            "message": "the request exceeds the available context size, try increasing it",
            "type": "exceed_context_size_error",
            "n_prompt_tokens": 9_000,
            "n_ctx": 4_096,
        }
        await peer.answer(msgspec.json.encode({"error": error}), status=400)

    return script


class Refusing:
    """Makes the router refuse some models."""

    def __init__(self, api: FakeApi, **errors: RouterError) -> None:
        acquire = api.acquire

        async def refuse(name: str, **how: Any) -> FakeLease:
            if name in errors:
                api.asked.append({"model": name, **how})
                raise errors[name]
            return await acquire(name, **how)

        api.acquire = refuse  # type: ignore[method-assign]  # for as long as this site lives


def with_gamma(api: FakeApi, **more: Any) -> None:
    api.models["gamma"] = model("gamma", **more)
    api.policies["auto"] = policy()


def asked(api: FakeApi) -> list[str]:
    return [each["model"] for each in api.asked]


@pytest.mark.fault("F37")
@pytest.mark.parametrize(
    "error",
    [
        LoadFailed("broken"),
        LoadFailed("broken", code="model_broken", status=400),
        InsufficientMemory("no room"),
        RouterError("pinned", code="slots_pinned_error", status=409),
        Unavailable("waited", code="wait_bound"),
        Unavailable("paused", code="paused"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_candidate_that_cannot_be_had_gives_way(error: RouterError, stream: bool) -> None:
    async with site(answers) as s:
        with_gamma(s.api)
        Refusing(s.api, beta=error)
        answer = await s.ask("POST", CHAT, chat(stream, "auto", "python", route_trace=True))
        told = data_of(events_of(answer.body)[0]) if stream else answer.json()
        assert told["model"] == "gamma"
        assert answer.headers["x-lemonade-route"] == "code"
        route = told["x_lemonade_route"]
        assert (route["route_to"], route["matched_rule"]) == ("gamma", "code")
        assert route["fallback"] == [{"candidate": "beta", "reason": "cannot_be_loaded"}]
        gave_way = (GaveWay("beta", "cannot_be_loaded"),)
        assert ("routed", "auto", "code", "gamma", gave_way) in s.api.calls


async def test_the_next_ones_are_asked_in_turn_and_the_last_error_is_told() -> None:
    async with site(answers) as s:
        with_gamma(s.api)
        failed = LoadFailed("it is broken")
        Refusing(s.api, alpha=Unavailable("waited", code="wait_bound"), beta=failed, gamma=failed)
        answer = await s.ask("POST", CHAT, chat(model="auto", text="python"))
        assert asked(s.api) == ["beta", "gamma", "alpha"]
        assert (answer.status, answer.error["code"]) == (503, "wait_bound")


@pytest.mark.parametrize(
    "error",
    [ShuttingDown("bye"), Unavailable("full", code="queue_full"), Unavailable("odd", code="degraded")],
)
async def test_what_concerns_all_candidates_is_told_at_once(error: RouterError) -> None:
    async with site(answers) as s:
        with_gamma(s.api)
        Refusing(s.api, beta=error)
        assert (await s.ask("POST", CHAT, chat(model="auto", text="python"))).status == 503
        assert asked(s.api) == ["beta"]


async def test_without_fallback_all_is_as_ever() -> None:
    async with site(too_long_for("alpha")) as s:
        s.api.policies["auto"] = policy(fallback=False, candidates=("alpha", "beta"))
        s.api.windows = {"alpha": 10, "beta": 100_000}
        answer = await s.ask("POST", CHAT, chat(model="auto", text="x" * 4_000))
        assert answer.status == 400
        assert answer.error["type"] == "exceed_context_size_error"
        Refusing(s.api, beta=LoadFailed("broken"))
        assert (await s.ask("POST", CHAT, chat(model="auto", text="python"))).status == 502
        assert asked(s.api) == ["alpha", "beta"]


@pytest.mark.fault("F37")
async def test_a_context_that_is_too_small_by_estimate_is_not_asked() -> None:
    async with site(answers) as s:
        with_gamma(s.api)
        s.api.windows = {"alpha": 4_096, "beta": 8_192, "gamma": 131_072}
        for text, name in (("x" * 12_000, "alpha"), ("x" * 20_000, "beta"), ("x" * 80_000, "gamma")):
            answer = await s.ask("POST", CHAT, chat(model="auto", text=text, route_trace=True))
            assert answer.json()["model"] == name
        passed = answer.json()["x_lemonade_route"]["fallback"]
        assert passed == [{"candidate": n, "reason": "context_too_small"} for n in ("alpha", "beta")]
        none = await s.ask("POST", CHAT, chat(model="auto", text="x" * 4_000_000))
        assert (none.status, none.error["code"]) == (400, "context_too_small")
        assert "alpha 4096, beta 8192, gamma 131072" in none.error["message"]
        assert none.headers["x-lemonade-route"] == "default"
        assert asked(s.api) == ["alpha", "beta", "gamma"]


@pytest.mark.fault("F37")
@pytest.mark.parametrize("stream", [False, True])
async def test_a_worker_that_finds_a_request_too_large_gives_way_once(stream: bool) -> None:
    async with site(too_long_for("alpha")) as s:
        with_gamma(s.api)
        s.api.windows = {"alpha": 4_096, "beta": 4_096, "gamma": 131_072}
        answer = await s.ask("POST", CHAT, chat(stream, "auto", "hello", route_trace=True))
        told = data_of(events_of(answer.body)[0]) if stream else answer.json()
        assert told["model"] == "gamma"
        assert told["x_lemonade_route"]["fallback"] == [{"candidate": "alpha", "reason": "context_too_small"}]
        # What is as small is not tried. The request is otherwise the same.
        assert asked(s.api) == ["alpha", "gamma"]
        first, second = (msgspec.json.decode(peer.body) for peer in s.worker.requests)
        assert {**first, "model": ""} == {**second, "model": ""}
        assert all(lease.released.is_set() for lease in s.api.leases)


@pytest.mark.fault("F37")
@pytest.mark.parametrize("windows", [{"alpha": 4_096, "beta": 4_096}, {"alpha": 4_096, "beta": 8_192}])
async def test_too_large_for_all_is_told_with_the_limits(windows: dict[str, int]) -> None:
    async with site(too_long_for("alpha", "beta")) as s:
        s.api.policies["auto"] = policy(candidates=("alpha", "beta"))
        s.api.windows = windows
        answer = await s.ask("POST", CHAT, chat(model="auto"))
        assert (answer.status, answer.error["code"]) == (400, "context_too_small")
        assert f"alpha 4096, beta {windows['beta']}" in answer.error["message"]
        assert len(asked(s.api)) == (1 if windows["beta"] == 4_096 else 2)


@pytest.mark.fault("F37")
async def test_after_the_first_byte_nothing_gives_way() -> None:
    async def breaks(peer: Peer) -> None:
        await peer.begin_stream()
        await peer.chunk(b'data: {"model":"alpha"}\n\n')
        error = b'data: {"error":{"type":"exceed_context_size_error","message":"exceeds the context"}}\n\n'
        await peer.chunk(error)
        await peer.end_stream()

    async with site(breaks) as s:
        with_gamma(s.api)
        s.api.windows = {"alpha": 4_096, "beta": 8_192, "gamma": 131_072}
        answer = await s.ask("POST", CHAT, chat(True, "auto"))
        assert b"exceed_context_size_error" in answer.body
        assert asked(s.api) == ["alpha"]


async def test_a_stream_that_was_kept_alive_meanwhile_goes_on_with_the_next_one() -> None:
    """Its headers and comments are out; of an answer there was no byte."""
    options = msgspec.structs.replace(OPTIONS, silence_s=0.01)
    async with site(answers, options) as s:
        with_gamma(s.api)
        acquire, go = s.api.acquire, asyncio.Event()

        async def late(name: str, **how: Any) -> FakeLease:
            if name == "alpha":
                await go.wait()
                raise LoadFailed("broken")
            return await acquire(name, **how)

        s.api.acquire = late  # type: ignore[method-assign]  # for as long as this site lives
        async with s.client() as client:
            await client.send("POST", CHAT, chat(True, "auto", route_trace=True))
            answer = await client.answer(lambda a: b": keep-alive" in a.body)
            assert answer.headers["x-lemonade-route"] == "default"
            go.set()
            await client.more(answer)
        assert answer.whole
        told, done = events_of(answer.body)
        assert data_of(told)["x_lemonade_route"]["route_to"] == "beta"
        assert done == b"data: [DONE]"


@pytest.mark.parametrize(
    ("chosen", "remote", "allowed", "names"),
    [
        ("alpha", "beta", False, ["alpha", "gamma"]),
        ("alpha", "beta", True, ["alpha", "beta", "gamma"]),
        ("beta", "beta", False, ["beta", "gamma", "alpha"]),
    ],
)
async def test_from_local_to_remote_only_if_allowed(
    chosen: str, remote: str, allowed: bool, names: list[str]
) -> None:
    async with site(answers) as s:
        with_gamma(s.api)
        s.api.policies["auto"] = policy(default_model=chosen, fallback_remote=allowed)
        known: Model = s.api.models[remote]
        s.api.models[remote] = msgspec.structs.replace(known, remote=True)
        Refusing(s.api, **dict.fromkeys(NAMES, LoadFailed("broken")))
        assert (await s.ask("POST", CHAT, chat(model="auto"))).status == 502
        assert asked(s.api) == names


async def test_a_candidate_that_is_gone_gives_way() -> None:
    async with site(answers) as s:
        s.api.policies["auto"] = policy(default_model="gamma")
        answer = await s.ask("POST", CHAT, chat(model="auto", route_trace=True))
        assert answer.json()["model"] == "alpha"
        assert answer.json()["x_lemonade_route"]["fallback"] == [
            {"candidate": "gamma", "reason": "not_found"}
        ]


async def test_candidates_of_another_kind_are_no_way_out() -> None:
    async with site(answers) as s:
        s.api.policies["auto"] = policy(candidates=("alpha", "embed", "beta"))
        Refusing(s.api, alpha=LoadFailed("broken"))
        assert (await s.ask("POST", CHAT, chat(model="auto"))).status == 200
        assert asked(s.api) == ["alpha", "beta"]
        s.api.policies["auto"] = policy(candidates=("embed", "beta"), default_model="embed")
        told = (await s.ask("POST", CHAT, chat(model="auto", route_trace=True))).json()["x_lemonade_route"]
        assert told["fallback"] == [{"candidate": "embed", "reason": "other_type"}]


async def test_decisions_fallbacks_and_switches_are_counted() -> None:
    async with site(answers) as s:
        with_gamma(s.api)
        Refusing(s.api, beta=LoadFailed("broken"))
        for text in ("python", "hello", "python"):
            messages = [
                {"role": "user", "content": "begin"},
                {"role": "assistant", "content": "yes"},
                {"role": "user", "content": text},
            ]
            await s.post(CHAT, {"model": "auto", "messages": messages})
        metrics = bytes((await s.ask("GET", "/metrics")).body).decode()
        counted = 'lemonade_route_decisions_total{policy="auto",route_to="beta",rule="code"} 2.0'
        assert counted in metrics
        passed = (
            'lemonade_route_fallbacks_total{candidate="beta",policy="auto",reason="cannot_be_loaded"} 2.0'
        )
        assert passed in metrics
        assert 'lemonade_route_switches_total{policy="auto"} 2.0' in metrics
