"""OpenAI's own client, against the endpoint."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import openai
import pytest

from router.errors import SlotsPinned
from router.web.options import WebOptions
from tests.router.web.fakes import Peer, Script, Site, site

pytestmark = pytest.mark.fault("F21")

USER: Any = [{"role": "user", "content": "hi"}]


def chunk(delta: dict[str, Any], finish: str | None = None, index: int = 0, **more: Any) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "alpha"}
    return {**head, "choices": [choice], **more}


def stream_of(*chunks: dict[str, Any]) -> Script:
    async def script(peer: Peer) -> None:
        await peer.begin_stream()
        for part in chunks:
            await peer.chunk(b"data: " + json.dumps(part).encode() + b"\n\n")
        await peer.chunk(b"data: [DONE]\n\n")
        await peer.end_stream()

    return script


@asynccontextmanager
async def served(
    script: Script, options: WebOptions | None = None
) -> AsyncIterator[tuple[Site, openai.AsyncOpenAI]]:
    async with site(script, *((options,) if options else ())) as s:
        base = f"{s.endpoint.url}/v1"
        async with openai.AsyncOpenAI(base_url=base, api_key="unused", max_retries=2) as client:
            yield s, client


async def test_a_stream_with_usage() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    last = {**chunk({}), "choices": [], "usage": usage}
    script = stream_of(
        chunk({"role": "assistant", "content": "a"}), chunk({"content": "b"}), chunk({}, "stop"), last
    )
    async with served(script) as (s, client):
        stream = await client.chat.completions.create(
            model="alpha", messages=USER, stream=True, stream_options={"include_usage": True}
        )
        chunks = [c async for c in stream]
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "ab"
        assert [c.choices[0].finish_reason for c in chunks if c.choices] == [None, None, "stop"]
        assert chunks[-1].choices == []
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.total_tokens == 5
        assert {c.id for c in chunks} == {"c1"}
        assert {c.model for c in chunks} == {"alpha"}
        asked = msgspec.json.decode(s.worker.requests[0].body)
        assert asked["stream_options"] == {"include_usage": True}


async def test_a_stream_without_usage_gets_none() -> None:
    async with served(stream_of(chunk({"content": "a"}), chunk({}, "length"))) as (_, client):
        stream = await client.chat.completions.create(model="alpha", messages=USER, stream=True)
        chunks = [c async for c in stream]
        assert all(c.usage is None and c.choices for c in chunks)
        assert chunks[-1].choices[0].finish_reason == "length"


async def test_tool_calls_split_over_many_chunks() -> None:
    text = '{"city":"北京 🙂"}'
    first = {"index": 0, "id": "t1", "type": "function", "function": {"name": "weather", "arguments": ""}}
    parts = [{"index": 0, "function": {"arguments": c}} for c in text]
    script = stream_of(
        chunk({"tool_calls": [first]}), *(chunk({"tool_calls": [p]}) for p in parts), chunk({}, "tool_calls")
    )
    async with served(script) as (_, client):
        stream = await client.chat.completions.create(model="alpha", messages=USER, stream=True)
        arguments, finishes = "", []
        async for c in stream:
            for call in c.choices[0].delta.tool_calls or []:
                assert call.function is not None
                arguments += call.function.arguments or ""
            finishes.append(c.choices[0].finish_reason)
        assert arguments == text
        assert [f for f in finishes if f] == ["tool_calls"]


async def test_two_choices() -> None:
    script = stream_of(
        chunk({"content": "a"}),
        chunk({"content": "b"}, index=1),
        chunk({}, "stop"),
        chunk({}, "stop", index=1),
    )
    async with served(script) as (_, client):
        stream = await client.chat.completions.create(model="alpha", messages=USER, stream=True, n=2)
        finishes = [(c.choices[0].index, c.choices[0].finish_reason) async for c in stream]
        assert finishes == [(0, None), (1, None), (0, "stop"), (1, "stop")]


async def test_an_empty_answer() -> None:
    async with served(stream_of(chunk({}, "stop"))) as (_, client):
        stream = await client.chat.completions.create(model="alpha", messages=USER, stream=True)
        assert len([c async for c in stream]) == 1


async def test_comments_while_it_waits_are_no_chunks() -> None:
    async with served(stream_of(chunk({"content": "a"}, "stop")), WebOptions(silence_s=0.01)) as (s, client):
        s.api.gate.clear()
        stream = await client.chat.completions.create(model="alpha", messages=USER, stream=True)
        s.api.gate.set()
        assert [c.choices[0].delta.content async for c in stream] == ["a"]


async def test_a_policys_name_comes_back_as_the_candidates() -> None:
    async def script(peer: Peer) -> None:
        asked = msgspec.json.decode(peer.body)
        message = {"role": "assistant", "content": "hello"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        head = {"id": "c1", "object": "chat.completion", "created": 1, "model": asked["model"]}
        await peer.answer(msgspec.json.encode({**head, "choices": [choice]}))

    async with served(script) as (_, client):
        raw = await client.chat.completions.with_raw_response.create(model="auto", messages=USER)
        assert raw.headers["x-lemonade-route"] == "default"
        assert raw.parse().model == "alpha"


async def test_a_worker_that_streams_unasked_is_passed_on() -> None:
    async with served(stream_of(chunk({"content": "a"}, "stop"))) as (_, client):
        raw = await client.chat.completions.with_raw_response.create(
            model="alpha", messages=USER, stream=False
        )
        assert raw.headers["content-type"] == "text/event-stream"


async def test_an_error_in_a_stream_is_raised() -> None:
    async def script(peer: Peer) -> None:
        await peer.begin_stream()
        await peer.chunk(b"data: " + json.dumps(chunk({"content": "a"})).encode() + b"\n\n")
        peer.hang_up()

    async with served(script) as (_, client):
        stream = await client.chat.completions.create(model="alpha", messages=USER, stream=True)
        with pytest.raises(openai.APIError, match="not complete"):
            [c async for c in stream]


async def test_pinned_slots_are_told_once() -> None:
    async with served(stream_of()) as (s, client):
        s.api.refusal = SlotsPinned("alpha and beta are pinned.")
        with pytest.raises(openai.ConflictError, match="pinned"):
            await client.chat.completions.create(model="alpha", messages=USER)
        assert len(s.api.asked) == 1


async def test_models_and_errors() -> None:
    async with served(stream_of()) as (_, client):
        names = [m.id async for m in client.models.list()]
        assert names == ["alpha", "beta", "embed", "rank", "auto"]
        assert (await client.models.retrieve("a")).id == "alpha"
        with pytest.raises(openai.NotFoundError) as caught:
            await client.models.retrieve("nope")
        assert caught.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model="embed", messages=USER)
        assert refused.value.param == "model"


async def test_embeddings() -> None:
    async def script(peer: Peer) -> None:
        data = [{"object": "embedding", "index": 0, "embedding": [0.5, 1.0]}]
        usage = {"prompt_tokens": 1, "total_tokens": 1}
        await peer.answer(
            msgspec.json.encode({"object": "list", "data": data, "model": "embed", "usage": usage})
        )

    async with served(script) as (_, client):
        answer = await client.embeddings.create(model="embed", input="x", encoding_format="float")
        assert answer.data[0].embedding == [0.5, 1.0]
