"""Anthropic's calls, passed to an engine that speaks them."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from router.web.options import WebOptions
from tests.router.web.fakes import Peer, reply, site

BODY = {"model": "alpha", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
START = b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":4}}}\n\n'
END = (
    b'event: message_delta\ndata: {"type":"message_delta","usage":{"input_tokens":4,"output_tokens":2}}\n\n'
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
)


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
async def test_they_reach_the_worker_as_they_came(path: str) -> None:
    async with site(reply) as s:
        headers = {"x-api-key": "users-secret", "anthropic-version": "2023-06-01"}
        answer = await s.post("/api" + path, BODY, headers)
        assert answer.status == 200
        sent = s.worker.requests[0]
        assert sent.path == path
        assert msgspec.json.decode(sent.body) == BODY
        assert sent.headers["anthropic-version"] == "2023-06-01"
        assert "x-api-key" not in sent.headers


async def test_a_stream_ends_with_its_own_last_event() -> None:
    async def script(peer: Peer) -> None:
        await peer.begin_stream()
        await peer.chunk(START)
        await peer.chunk(END)
        await peer.end_stream()

    async with site(script) as s:
        answer = await s.post("/v1/messages", {**BODY, "stream": True})
        assert bytes(answer.body) == START + END
        await s.api.leases[0].released.wait()
        assert s.api.leases[0].tokens == 2


@pytest.mark.fault("F07")
async def test_a_stream_that_breaks_ends_with_an_error_that_its_clients_notice() -> None:
    async def script(peer: Peer) -> None:
        await peer.begin_stream()
        await peer.chunk(START)
        peer.hang_up()

    async with site(script) as s:
        answer = await s.post("/v1/messages", {**BODY, "stream": True})
        name, data = bytes(answer.body).split(b"\n\n")[-2].split(b"\n")
        assert name == b"event: error"
        told = msgspec.json.decode(data.removeprefix(b"data: "))
        assert told["type"] == "error"
        assert told["error"]["type"] == "api_error"
        assert told["error"]["code"] == "worker_answer_broken"
        assert b"message_stop" not in answer.body


async def test_pings_come_while_it_waits() -> None:
    go_on = asyncio.Event()

    async def script(peer: Peer) -> None:
        await go_on.wait()
        await peer.begin_stream()
        await peer.chunk(START + END)
        await peer.end_stream()

    async with site(script, WebOptions(silence_s=0.01)) as s, s.client() as client:
        await client.send("POST", "/v1/messages", msgspec.json.encode({**BODY, "stream": True}))
        answer = await client.answer(lambda a: bytes(a.body).startswith(b"event: ping\ndata: {"))
        assert b": keep-alive" not in answer.body
        go_on.set()
        await client.more(answer)
        assert bytes(answer.body).endswith(START + END)


async def test_an_engine_that_does_not_know_a_call() -> None:
    async def script(peer: Peer) -> None:
        await peer.answer(b'{"error":{"message":"File Not Found","code":404}}', 404)

    async with site(script) as s:
        answer = await s.post("/v1/messages", BODY)
        assert answer.status == 501
        assert "/v1/messages" in answer.error["message"]
        assert "alpha" in answer.error["message"]


@pytest.mark.parametrize(
    ("change", "param"),
    [({"messages": []}, "messages"), ({"model": "embed"}, "model"), ({"messages": None}, "messages")],
)
async def test_wrong_ones(change: dict[str, object], param: str) -> None:
    async with site(reply) as s:
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            answer = await s.post(path, {**BODY, **change})
            assert (answer.status, answer.error["param"]) == (400, param)
        assert not s.api.asked
