"""Anthropic's own client, against the endpoint; and what becomes of requests before the engine reads them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import msgspec
import pytest

from router.errors import (
    BadRequest,
    InsufficientMemory,
    LoadFailed,
    RouterError,
    SlotsPinned,
    TooLarge,
    Unavailable,
)
from router.web.anthropic import Mender, mended, told_stop
from router.web.options import WebOptions
from router.web.shapes import ANTHROPIC, OLLAMA, OPENAI, body_of, shape_of
from tests.router.web.fakes import Peer, Script, Site, site

USER: Any = [{"role": "user", "content": "hi"}]
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0K"}}
TOOLS: Any = [
    {"name": "weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}},
    {"name": "time", "input_schema": {"type": "object"}},
]
USAGE = {"input_tokens": 4, "output_tokens": 2}


@asynccontextmanager
async def served(script: Script, **more: Any) -> AsyncIterator[tuple[Site, anthropic.AsyncAnthropic]]:
    # To read the certificates of the world takes longer than the test.
    http = anthropic.DefaultAsyncHttpxClient(verify=False)
    options = {"api_key": "unused", "max_retries": 0, "http_client": http, **more}
    async with (
        site(script) as s,
        anthropic.AsyncAnthropic(base_url=s.endpoint.url, **options) as client,
    ):
        yield s, client


async def read(stream: Any, seen: list[str]) -> None:
    async for event in stream:
        seen.append(event.type)


def message(*content: dict[str, Any], stop: str = "end_turn", model: str = "alpha") -> dict[str, Any]:
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": model}
    return {**head, "content": list(content), "stop_reason": stop, "stop_sequence": None, "usage": USAGE}


def answering(body: Any, status: int = 200) -> Script:
    async def script(peer: Peer) -> None:
        await peer.answer(json.dumps(body).encode(), status)

    return script


def streaming(*events: dict[str, Any], hang_up: bool = False) -> Script:
    async def script(peer: Peer) -> None:
        await peer.begin_stream()
        for event in events:
            await peer.chunk(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
        if hang_up:
            peer.hang_up()
        else:
            await peer.end_stream()

    return script


def started() -> dict[str, Any]:
    return {"type": "message_start", "message": {**message(), "stop_reason": None}}


def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def ended(stop: str) -> list[dict[str, Any]]:
    delta = {"stop_reason": stop, "stop_sequence": None}
    return [{"type": "message_delta", "delta": delta, "usage": USAGE}, {"type": "message_stop"}]


async def test_a_whole_answer_with_a_call_of_a_tool() -> None:
    use = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "北京"}}
    async with served(answering(message(use, stop="tool_use"))) as (s, client):
        made = await client.messages.create(model="alpha", max_tokens=9, messages=USER, tools=TOOLS)
        assert made.stop_reason == "tool_use"
        [called] = made.content
        assert called.type == "tool_use"
        assert called.input == {"city": "北京"}
        sent = json.loads(s.worker.requests[0].body)
        assert [tool["name"] for tool in sent["tools"]] == ["weather", "time"]
        assert made.usage.output_tokens == 2
        assert s.api.leases[0].tokens == 2


async def test_a_stream_with_text_and_a_call() -> None:
    text = block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": "Let me see 🙂"})
    part = [{"type": "input_json_delta", "partial_json": piece} for piece in ('{"ci', 'ty": "Rom"}')]
    use = block(1, {"type": "tool_use", "id": "t1", "name": "weather", "input": {}}, *part)
    async with served(streaming(started(), *text, *use, *ended("tool_use"))) as (_, client):
        async with client.messages.stream(model="alpha", max_tokens=9, messages=USER, tools=TOOLS) as stream:
            texts = [piece async for piece in stream.text_stream]
            final = await stream.get_final_message()
        assert texts == ["Let me see 🙂"]
        assert final.content[1].type == "tool_use"
        assert final.content[1].input == {"city": "Rom"}
        assert final.stop_reason == "tool_use"


@pytest.mark.fault("F07")
async def test_a_stream_that_breaks_raises() -> None:
    text = block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": "Hal"})[:2]
    async with served(streaming(started(), *text, hang_up=True)) as (s, client):
        stream = await client.messages.create(model="alpha", max_tokens=9, messages=USER, stream=True)
        seen: list[str] = []
        with pytest.raises(anthropic.APIStatusError) as caught:
            await read(stream, seen)
        assert seen[-1] == "content_block_delta"
        assert isinstance(caught.value.body, dict)
        assert caught.value.body["error"]["type"] == "api_error"
        assert "not complete" in caught.value.body["error"]["message"]
        await s.api.leases[0].released.wait()


async def test_tokens_are_counted() -> None:
    async with served(answering({"input_tokens": 12})) as (s, client):
        counted = await client.messages.count_tokens(model="alpha", messages=USER)
        assert counted.input_tokens == 12
        assert s.worker.requests[0].path == "/v1/messages/count_tokens"


async def test_a_policy_is_a_model_and_the_candidate_is_asked() -> None:
    async with served(answering(message({"type": "text", "text": "x"}, model="beta"))) as (s, client):
        wanted: Any = [{"role": "user", "content": [{"type": "text", "text": "some python please"}]}]
        made = await client.messages.with_raw_response.create(model="auto", max_tokens=9, messages=wanted)
        assert made.headers["x-lemonade-route"] == "code"
        assert (await made.parse()).model == "beta"
        assert json.loads(s.worker.requests[0].body)["model"] == "beta"


@pytest.mark.parametrize(
    ("error", "raised", "kind"),
    [
        (BadRequest("wrong"), anthropic.BadRequestError, "invalid_request_error"),
        (SlotsPinned("pinned"), anthropic.ConflictError, "invalid_request_error"),
        (TooLarge("large"), anthropic.RequestTooLargeError, "request_too_large"),
        (Unavailable("later", retry_after_s=5), anthropic.InternalServerError, "overloaded_error"),
        (LoadFailed("broken"), anthropic.InternalServerError, "api_error"),
        (InsufficientMemory("no room"), anthropic.InternalServerError, "api_error"),
        (RouterError("many", status=429), anthropic.RateLimitError, "rate_limit_error"),
    ],
)
async def test_errors_are_the_clients_own(error: RouterError, raised: Any, kind: str) -> None:
    async with served(answering({})) as (s, client):
        s.api.refusal = error
        with pytest.raises(raised) as caught:
            await client.messages.create(model="alpha", max_tokens=9, messages=USER)
        assert caught.value.status_code == error.status
        body = caught.value.body
        assert (body["type"], body["error"]["type"]) == ("error", kind)
        assert body["error"]["message"] == error.message
        assert body["error"]["code"] == error.code


async def test_errors_before_any_model_have_the_form_too() -> None:
    async with served(answering({})) as (s, client):
        with pytest.raises(anthropic.NotFoundError, match="nope"):
            await client.messages.create(model="nope", max_tokens=9, messages=USER)
        with pytest.raises(anthropic.BadRequestError, match="messages"):
            await client.messages.count_tokens(model="alpha", messages=[])
        await s.api.set_settings({"require_api_key": True})
        with pytest.raises(anthropic.AuthenticationError):
            await client.messages.create(model="alpha", max_tokens=9, messages=USER)
        for path in ("/v1/messages", "/api/v1/messages/count_tokens", "/v1/messages/batches"):
            answer = await s.ask("GET", path, headers={"Origin": "https://evil.example"})
            assert (answer.status, answer.json()["type"]) == (403, "error")
            assert answer.json()["error"]["type"] == "permission_error"


async def test_an_error_of_the_engine_keeps_its_words() -> None:
    said = {"error": {"message": "the request exceeds the context", "type": "exceed_context_size_error"}}
    async with served(answering(said, 400)) as (_, client):
        with pytest.raises(anthropic.BadRequestError, match="exceeds the context") as caught:
            await client.messages.create(model="alpha", max_tokens=9, messages=USER)
        assert isinstance(caught.value.body, dict)
        assert caught.value.body["error"]["type"] == "invalid_request_error"


def test_forms_by_path() -> None:
    for path in ("/v1/messages", "/api/v0/messages", "/v1/messages/count_tokens"):
        assert shape_of(path) == ANTHROPIC
    for path in ("/api/chat", "/api/tags", "/api/v2", "/api/whatever", "/api/"):
        assert shape_of(path) == OLLAMA
    for path in ("/v1/chat/completions", "/api/v1/models", "/api/v1", "/", "/v1/messagesx", "/internal/set"):
        assert shape_of(path) == OPENAI
    error = RouterError("It failed.", hint="Do this.", status=418)
    assert body_of(error) == error.body()
    assert body_of(error, OLLAMA) == {"error": "It failed. Do this."}
    assert body_of(error, ANTHROPIC)["error"]["type"] == "invalid_request_error"


# Requests


async def changed(**given: Any) -> tuple[dict[str, Any], bool]:
    """What is sent, and whether its bytes are those that came."""
    body = msgspec.json.encode({"model": "m", "max_tokens": 9, "messages": USER, **given})
    sent = await mended(body, WebOptions())
    return msgspec.json.decode(sent), bytes(sent) == body


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"tools": TOOLS, "tool_choice": {"type": "auto"}},
        {"tools": TOOLS, "tool_choice": {"type": "any"}},
        {"system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]},
        {"output_config": {"effort": "low"}, "mcp_servers": [], "metadata": {"user_id": "u"}},
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "see"},
                        {
                            "type": "image",
                            "source": {"type": "base64", "media_type": "image/png", "data": "iV"},
                        },
                        {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
                    ],
                },
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "hm", "signature": "s"},
                        {"type": "redacted_thinking", "data": "s"},
                        {"type": "tool_use", "id": "t", "name": "time", "input": {}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "t", "content": "noon"},
                        {
                            "type": "tool_result",
                            "tool_use_id": "u",
                            "content": [{"type": "text", "text": "x"}],
                        },
                        {"type": "tool_result", "tool_use_id": "v"},
                    ],
                },
            ]
        },
    ],
)
async def test_what_the_engine_understands_stays_as_it_came(given: dict[str, Any]) -> None:
    assert (await changed(**given))[1]


async def test_no_tools_may_be_chosen() -> None:
    sent, _ = await changed(tools=TOOLS, tool_choice={"type": "none"})
    assert not {"tools", "tool_choice"} & set(sent)


async def test_one_tool_may_be_chosen() -> None:
    sent, _ = await changed(tools=TOOLS, tool_choice={"type": "tool", "name": "time"})
    assert sent["tools"] == [TOOLS[1]]
    with pytest.raises(BadRequest) as caught:
        await changed(tools=TOOLS, tool_choice={"type": "tool", "name": "nope"})
    assert caught.value.param == "tool_choice.name"
    with pytest.raises(BadRequest):
        await changed(tool_choice={"type": "tool", "name": "nope"})


@pytest.mark.parametrize(("kind", "expected"), [("enabled", True), ("adaptive", True), ("disabled", False)])
async def test_thinking_is_told_to_the_template(kind: str, expected: bool) -> None:
    sent, _ = await changed(thinking={"type": kind, "budget_tokens": 2000})
    assert sent["chat_template_kwargs"] == {"enable_thinking": expected}
    assert sent["thinking"] == {"type": kind, "budget_tokens": 2000}
    kept, _ = await changed(thinking={"type": kind}, chat_template_kwargs={"enable_thinking": 1, "x": 2})
    assert kept["chat_template_kwargs"] == {"enable_thinking": 1, "x": 2}


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        (
            {"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "base64"}}]}]},
            "messages[0].content[0]",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "file"}}]}]},
            "messages[0].content[0].source",
        ),
        (
            {
                "messages": [
                    *USER,
                    {"role": "user", "content": [{"type": "tool_result", "content": [{"type": "document"}]}]},
                ]
            },
            "messages[1].content[0].content[0]",
        ),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"tools": [*TOOLS, {"type": "web_search_20250305", "name": "web_search"}]}, "tools[2].type"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {}}}}, "output_config.format"),
        ({"output_format": {"type": "json_schema", "schema": {}}}, "output_format"),
        ({"mcp_servers": [{"type": "url"}]}, "mcp_servers"),
        ({"container": "c"}, "container"),
        ({"system": [{"type": "text", "text": "x"}, {"type": "image"}]}, "system[1]"),
        ({"system": 5}, "system"),
    ],
)
async def test_what_the_engine_would_leave_out_is_refused_by_name(given: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        await changed(**given)
    assert caught.value.param == param


# Streams


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def passed(data: bytes, size: int = 1 << 20, *, stops: bool = True) -> bytes:
    mender = Mender("m", stops=stops)
    return b"".join(map(mender.feed, pieces(data, size))) + mender.flush()


def sse(*events: dict[str, Any]) -> bytes:
    parts = [
        f"event: {event['type']}\ndata: {json.dumps(event, separators=(',', ':'))}\n\n" for event in events
    ]
    return "".join(parts).encode()


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_a_stop_sequence_is_told_from_the_end_of_the_turn(size: int) -> None:
    def stream(reason: str, sequence: str | None) -> bytes:
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        last = {"type": "message_delta", "delta": delta, "usage": USAGE}
        return b": a comment\n\n" + sse(started(), last, {"type": "message_stop"})

    assert passed(stream("end_turn", "weather"), size) == stream("stop_sequence", "weather")
    for kept in (stream("end_turn", None), stream("max_tokens", "x"), stream("tool_use", None)):
        assert passed(kept, size) == kept
    assert passed(stream("end_turn", "weather"), size, stops=False) == stream("end_turn", "weather")


@pytest.mark.parametrize("stops", [True, False])
def test_a_stream_without_its_first_event_gets_one(stops: bool) -> None:
    made = passed(sse(*ended("end_turn")), 5, stops=stops)
    first, rest = made.split(b"\n\n", 1)
    assert rest == sse(*ended("end_turn"))
    assert first.startswith(b"event: message_start\n")
    assert json.loads(first.partition(b"data: ")[2])["message"]["model"] == "m"


@pytest.mark.fault("F28")
def test_what_is_written_otherwise_passes_as_it_is() -> None:
    for data in (
        sse(started(), *ended("end_turn")).replace(b"\n", b"\r\n"),
        b"data: x\n\nevent: message_delta\ndata: {nonsense\n\nevent: message_delta\ndata: [1]\n\nrest",
        sse(started()) + b"event: content_block_delta\ndata: " + b"x" * (3 << 20),
    ):
        for size in (3 << 10, 1 << 22):
            assert passed(data, size) == data


def test_a_whole_answer_tells_why_it_stopped() -> None:
    def whole(reason: str, sequence: str | None) -> bytes:
        return json.dumps({"stop_reason": reason, "stop_sequence": sequence}, separators=(",", ":")).encode()

    assert told_stop(whole("end_turn", "x")) == whole("stop_sequence", "x")
    for kept in (whole("end_turn", None), whole("max_tokens", "x"), b"{}", b"[", b"[1]"):
        assert told_stop(kept) == kept


async def test_a_large_request_is_changed_off_the_loop() -> None:
    said = [{"role": "user", "content": "x" * 400_000}]
    sent, _ = await changed(messages=said, tools=TOOLS, tool_choice={"type": "none"})
    assert sent["messages"] == said
