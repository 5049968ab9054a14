"""Streams that wait: a status while there can be one, then signs of life at the right places."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from router.web.options import WebOptions
from router.web.stream import EventStream
from tests.router.web.fakes import CHAT, SAFETY_S, Answer, Peer, chat, events_of, reply, site

COMMENT = b": keep-alive\n\n"
SLOW = WebOptions(silence_s=0.01)
DONE = b"data: [DONE]\n\n"


Ticks = Callable[[int], Awaitable[None]]


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> Ticks:
    """Wait until some more intervals of silence are over."""
    over = asyncio.Semaphore(0)
    tick = EventStream._tick

    def counted(stream: EventStream) -> None:
        tick(stream)
        over.release()

    monkeypatch.setattr(EventStream, "_tick", counted)

    async def wait(count: int) -> None:
        async with asyncio.timeout(SAFETY_S):
            for _ in range(count):
                await over.acquire()

    return wait


def _comments(answer: Answer, at_least: int) -> bool:
    return answer.body.count(COMMENT) >= at_least


async def test_headers_and_comments_come_while_the_model_loads() -> None:
    async def script(peer: Peer) -> None:
        await peer.begin_stream()
        await peer.chunk(b'data: {"n":1}\n\n')
        await peer.chunk(DONE)
        await peer.end_stream()

    async with site(script, SLOW) as s, s.client() as client:
        s.api.gate.clear()
        await client.send("POST", CHAT, chat(stream=True, model="auto"))
        answer = await client.answer(lambda a: _comments(a, 3))
        assert answer.status == 200
        assert answer.headers["content-type"] == "text/event-stream"
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["x-accel-buffering"] == "no"
        assert answer.headers["x-lemonade-route"] == "default"
        assert not events_of(answer.body)
        s.api.gate.set()
        await client.more(answer)
        assert answer.whole
        assert events_of(answer.body) == [b'data: {"n":1}', b"data: [DONE]"]


async def test_comments_come_while_the_worker_reads_a_long_prompt() -> None:
    go_on = asyncio.Event()

    async def script(peer: Peer) -> None:
        await go_on.wait()
        await peer.begin_stream()
        await peer.chunk(DONE)
        await peer.end_stream()

    async with site(script, SLOW) as s, s.client() as client:
        await client.send("POST", CHAT, chat(stream=True))
        answer = await client.answer(lambda a: _comments(a, 2))
        go_on.set()
        await client.more(answer)
        assert answer.whole
        assert bytes(answer.body).replace(COMMENT, b"") == DONE


async def test_comments_come_between_events_only(ticks: Ticks) -> None:
    go_on = asyncio.Event()
    quiet = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.begin_stream()
        await peer.chunk(b'data: {"half')
        await quiet.wait()
        await peer.chunk(b'":1}\n\n')
        await go_on.wait()
        await peer.chunk(DONE)
        await peer.end_stream()

    async with site(script, SLOW) as s, s.client() as client:
        await client.send("POST", CHAT, chat(stream=True))
        answer = await client.answer(lambda a: b"half" in a.body)
        await ticks(5)
        quiet.set()
        await client.more(answer, lambda a: _comments(a, 2) and b'":1}' in a.body)
        go_on.set()
        await client.more(answer)
        assert bytes(answer.body).replace(COMMENT, b"") == b'data: {"half":1}\n\n' + DONE
        assert b'data: {"half":1}\n\n' in answer.body


async def test_a_plain_answer_gets_no_comments() -> None:
    async with site(reply, SLOW) as s, s.client() as client:
        s.api.gate.clear()
        await client.send("POST", CHAT, chat())
        await s.api.waiting.wait()
        # Beside it a stream waits as long, and that one is told so.
        async with s.client() as other:
            await other.send("POST", CHAT, chat(stream=True))
            await other.answer(lambda a: _comments(a, 3))
        s.api.gate.set()
        answer = await client.answer()
        assert answer.headers["content-type"] == "application/json"
        assert answer.body.startswith(b"{")


async def test_a_prompt_answer_gets_no_comments() -> None:
    async def script(peer: Peer) -> None:
        await peer.begin_stream()
        await peer.chunk(DONE)
        await peer.end_stream()

    async with site(script) as s:
        answer = await s.ask("POST", CHAT, chat(stream=True))
        assert bytes(answer.body) == DONE


async def test_http_1_0_gets_a_stream_to_the_connections_end() -> None:
    async def script(peer: Peer) -> None:
        await peer.begin_stream()
        await peer.chunk(DONE)
        await peer.end_stream()

    async with site(script) as s, s.client() as client:
        body = chat(stream=True)
        client.writer.write(
            b"POST %s HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), len(body)) + body
        )
        raw = await client.reader.read(-1)
        head, _, rest = raw.partition(b"\r\n\r\n")
        assert b"chunked" not in head.lower()
        assert rest == DONE
