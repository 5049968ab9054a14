"""Requests that are answered without a task: the same happens to them, whatever comes in between."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from router.errors import ShuttingDown
from router.web import quick
from router.web.connection import Connection
from router.web.quick import Quick
from router.web.relay import Exchange
from tests.router.web.fakes import CHAT, REPLY, SAFETY_S, Answer, Peer, Script, Site, chat, reply, site

DONE = b"data: [DONE]\n\n"
CHUNK = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'


class Watched:
    """A site with a connection to its worker, and what became of its requests."""

    def __init__(self, s: Site, noted: list[int], slowly: list[Quick]) -> None:
        self.site = s
        self.noted = noted
        self.slowly = slowly

    @property
    def is_clean(self) -> bool:
        parts = self.site.endpoint._parts
        leases = self.site.api.leases
        return (
            not len(parts.inflight)
            and not parts.inference.running
            and parts.bodies.held == 0
            and all(lease.released.is_set() for lease in leases)
            and not any(lease.cut._callbacks for lease in leases if not lease.cut.done())
        )

    async def until(self, what: Callable[[], object]) -> None:
        async with asyncio.timeout(SAFETY_S):
            while not what():  # noqa: ASYNC110  # a few turns of the loop
                await asyncio.sleep(0)


@asynccontextmanager
async def warm(
    monkeypatch: pytest.MonkeyPatch, script: Script, *, is_quick: bool = True, first: Script = reply
) -> AsyncIterator[Watched]:
    """A site that has answered one request by `first`, so it keeps a connection; then `script` answers."""
    noted: list[int] = []
    slowly: list[Quick] = []
    go_on = Quick._go_on_slowly

    def going_on(self: Quick) -> None:
        slowly.append(self)
        go_on(self)

    async with site(first) as s:
        s.api.is_never_free = not is_quick
        assert (await s.ask("POST", CHAT, chat())).status == 200
        s.api.leases.clear()
        s.worker.requests.clear()
        s.worker.asked.clear()
        s.worker.script = script
        count = s.endpoint._parts.tally.request

        def counted(model: str, status: int, seconds: float) -> None:
            noted.append(status)
            count(model, status, seconds)

        monkeypatch.setattr(s.endpoint._parts.tally, "request", counted)
        monkeypatch.setattr(Quick, "_go_on_slowly", going_on)
        yield Watched(s, noted, slowly)


async def in_pieces(peer: Peer) -> None:
    await peer.send(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(REPLY)
    )
    await asyncio.sleep(0)
    await peer.send(REPLY[:5])
    await asyncio.sleep(0)
    await peer.send(REPLY[5:])


async def chunked(peer: Peer) -> None:
    await peer.send(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    await peer.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(REPLY), REPLY))


async def refused(peer: Peer) -> None:
    await peer.answer(
        b'{"error":{"code":400,"message":"max_tokens is odd","type":"invalid_request_error"}}', 400
    )


async def streamed(peer: Peer) -> None:
    await peer.begin_stream()
    for _ in range(3):
        await peer.chunk(CHUNK)
    await peer.chunk(DONE)
    await peer.end_stream()


async def garbage(peer: Peer) -> None:
    await peer.send(b"not HTTP at all\r\n\r\n")


async def half(peer: Peer) -> None:
    await peer.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 5000\r\n\r\n{")
    peer.hang_up()


async def cut_stream(peer: Peer) -> None:
    await peer.begin_stream()
    await peer.chunk(CHUNK)
    peer.hang_up()


async def empty(peer: Peer) -> None:
    await peer.answer(b"")


async def odd_status(peer: Peer) -> None:
    await peer.answer(b"{}", 302)


async def large(peer: Peer) -> None:
    await peer.answer(b'{"x":"' + b"a" * (3 << 20) + b'"}')


async def closing(peer: Peer) -> None:
    await peer.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n" + REPLY)
    peer.writer.close()


def told(answer: Answer) -> tuple[Any, ...]:
    headers = {name: value for name, value in answer.headers.items() if name != "date"}
    return answer.status, bytes(answer.body), headers, answer.whole


SCRIPTS = [
    reply,
    in_pieces,
    chunked,
    refused,
    streamed,
    garbage,
    half,
    cut_stream,
    empty,
    odd_status,
    large,
    closing,
]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda s: s.__name__)
async def test_answers_are_the_same_as_by_a_task(
    script: Script, stream: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seen = {}
    for is_quick in (True, False):
        with monkeypatch.context() as patch:
            async with warm(patch, script, is_quick=is_quick) as w:
                answer = await w.site.ask("POST", CHAT, chat(stream))
                seen[is_quick] = told(answer), [r.body for r in w.site.worker.requests]
                await w.until(lambda w=w: w.is_clean)
                await w.until(lambda w=w: len(w.noted) == 1)
                assert w.noted == [answer.status]
    assert seen[True] == seen[False]
    assert not [record for record in caplog.records if record.exc_info]


async def test_a_whole_answer_needs_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    async with warm(monkeypatch, reply) as w, w.site.client() as client:
        for _ in range(3):
            await client.send("POST", CHAT, chat())
            assert bytes((await client.answer()).body) == REPLY
        assert not w.slowly
        assert w.noted == [200] * 3
        assert w.is_clean
        (tokens,) = {lease.tokens for lease in w.site.api.leases}
        assert tokens > 0
        assert w.site.endpoint._parts.relay.idle == 1


@pytest.mark.fault("F02")
async def test_who_leaves_before_the_answer_lets_the_worker_go(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    left = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.left()
        left.set()

    async with warm(monkeypatch, script) as w:
        async with w.site.client() as client:
            await client.send("POST", CHAT, chat())
            await w.until(w.site.worker.asked.is_set)
            assert not w.slowly
        await w.until(left.is_set)
        await w.until(lambda: w.is_clean and w.noted)
        assert w.noted == [499]
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


@pytest.mark.fault("F02")
async def test_who_leaves_in_the_moment_in_which_a_task_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that is cancelled before its first step never runs, so it cannot give anything back."""
    async with warm(monkeypatch, in_pieces) as w:
        go_on = Quick._go_on_slowly

        def and_leave(self: Quick) -> None:
            go_on(self)
            self._client.connection_lost(None)  # type: ignore[attr-defined]  # as its transport does

        monkeypatch.setattr(Quick, "_go_on_slowly", and_leave)
        async with w.site.client() as client:
            await client.send("POST", CHAT, chat())
            await w.until(lambda: w.noted)
        assert w.noted == [499]
        await w.until(lambda: w.is_clean)
        assert w.site.api.leases[0].released.is_set()


@pytest.mark.fault("F16")
@pytest.mark.parametrize("stream", [False, True])
async def test_a_kept_connection_that_was_closed_meanwhile_is_replaced(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung_up = []

    async def script(peer: Peer) -> None:
        if not hung_up:
            hung_up.append(True)
            peer.hang_up()
        else:
            await (streamed if stream else reply)(peer)

    async with warm(monkeypatch, script) as w:
        answer = await w.site.ask("POST", CHAT, chat(stream))
        assert answer.status == 200
        assert len(w.site.worker.requests) == 2
        assert len(w.site.api.leases) == 1
        await w.until(lambda: w.is_clean)


@pytest.mark.parametrize("why", ["unloaded", "worker_died", "shutting_down"])
async def test_a_lease_that_is_cut_ends_it_with_an_error(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(peer: Peer) -> None:
        await peer.left()

    async with warm(monkeypatch, script) as w, w.site.client() as client:
        await client.send("POST", CHAT, chat())
        await w.until(w.site.worker.asked.is_set)
        w.site.api.leases[0].cut.set_result(why)
        answer = await client.answer()
        assert answer.status == (502 if why == "worker_died" else 503)
        assert answer.error
        await w.until(lambda: w.is_clean)


async def test_the_end_of_the_router_ends_it_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(peer: Peer) -> None:
        await peer.left()

    async with warm(monkeypatch, script) as w, w.site.client() as client:
        await client.send("POST", CHAT, chat())
        await w.until(w.site.worker.asked.is_set)
        w.site.endpoint._parts.inference.end_all(ShuttingDown("The router is shutting down."))
        assert (await client.answer()).status == 503
        await w.until(lambda: w.is_clean)


async def test_the_end_of_the_router_in_the_moment_in_which_a_task_takes_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def script(peer: Peer) -> None:
        await peer.begin_stream()
        await peer.left()

    async with warm(monkeypatch, script) as w:
        go_on = Quick._go_on_slowly

        def and_end(self: Quick) -> None:
            go_on(self)
            w.site.endpoint._parts.inference.end_all(ShuttingDown("The router is shutting down."))

        monkeypatch.setattr(Quick, "_go_on_slowly", and_end)
        answer = await w.site.ask("POST", CHAT, chat(stream=True))
        assert answer.whole
        assert b"shutting" in bytes(answer.body)
        await w.until(lambda: w.is_clean)


async def test_a_fault_here_is_met_again_where_it_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def break_down(self: Exchange) -> None:
        raise RuntimeError("made to fail")

    async with warm(monkeypatch, reply) as w:
        monkeypatch.setattr(Exchange, "headers", break_down)
        answer = await w.site.ask("POST", CHAT, chat())
        assert answer.status == 500
        assert "made to fail" in caplog.text
        await w.until(lambda: w.is_clean)


async def test_stopping_waits_for_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = asyncio.Event()

    async def script(peer: Peer) -> None:
        await go_on.wait()
        await reply(peer)

    async with warm(monkeypatch, script) as w, w.site.client() as client:
        await client.send("POST", CHAT, chat())
        await w.until(w.site.worker.asked.is_set)
        stopping = asyncio.ensure_future(w.site.endpoint.stop(SAFETY_S))
        await w.until(lambda: w.site.endpoint._parts.inflight.closing)
        go_on.set()
        answer = await client.answer()
        assert (answer.status, bytes(answer.body)) == (200, REPLY)
        assert answer.headers["connection"] == "close"
        await stopping
        assert w.is_clean


async def test_what_is_cut_off_at_the_end_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(peer: Peer) -> None:
        await peer.left()

    async with warm(monkeypatch, script) as w, w.site.client() as client:
        await client.send("POST", CHAT, chat())
        await w.until(w.site.worker.asked.is_set)
        assert w.site.endpoint._parts.inflight.cancel() == 1
        assert not (await client.answer()).status
        assert w.is_clean
        assert w.noted == [499]


async def test_pipelined_requests_are_answered_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    count = iter(range(100))

    async def script(peer: Peer) -> None:
        number = next(count)
        await (refused if number % 3 == 2 else in_pieces if number % 3 else reply)(peer)

    body = chat()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    wire = head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body
    async with warm(monkeypatch, script) as w, w.site.client() as client:
        data = wire * 9
        rng = random.Random(7)
        while data:
            cut = rng.randint(1, 900)
            client.writer.write(data[:cut])
            await client.writer.drain()
            await asyncio.sleep(0)
            data = data[cut:]
        answered: list[int] = []
        read = b""
        async with asyncio.timeout(SAFETY_S):
            while read.count(b"HTTP/1.1 ") < 9 or len(w.noted) < 9:
                read += await client.reader.read(65536)
        answered = [int(part[:3]) for part in read.split(b"HTTP/1.1 ")[1:]]
        assert answered == [200, 200, 400] * 3
        await w.until(lambda: w.is_clean)


@pytest.mark.parametrize("is_quick", [True, False])
async def test_who_sends_on_without_reading_gets_no_further_answers(
    is_quick: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its answers would gather in memory without bound."""
    body = b'{"x":"' + b"a" * (256 << 10) + b'"}'
    waits = asyncio.Event()
    drained = Connection.drained

    async def noting(self: Connection) -> None:
        waits.set()
        await drained(self)

    async def script(peer: Peer) -> None:
        await peer.answer(body)

    monkeypatch.setattr(Connection, "drained", noting)
    count = 200
    async with warm(monkeypatch, script, is_quick=is_quick) as w, w.site.client() as client:
        asked = chat()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        client.writer.write((head + b"Content-Length: %d\r\n\r\n" % len(asked) + asked) * count)
        await w.until(waits.is_set)
        assert len(w.site.worker.requests) < count
        read = 0
        async with asyncio.timeout(SAFETY_S):
            while read < count * len(body):
                read += len(await client.reader.read(1 << 20))
        await w.until(lambda: len(w.noted) == count and w.is_clean)
        assert w.noted == [200] * count


@pytest.mark.parametrize(
    "body",
    [
        chat(model="auto"),
        chat(keep_alive=5),
        chat(route_trace=True),
        chat(model="nobody"),
        chat(model="embed"),
        b"{",
        b'{"model":"alpha"}',
    ],
)
async def test_what_needs_more_is_not_answered_so(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[bool] = []
    begin = quick.begin

    def noting(*given: Any, **more: Any) -> bool:
        taken.append(begin(*given, **more))
        return taken[-1]

    monkeypatch.setattr(quick, "begin", noting)
    async with warm(monkeypatch, reply) as w:
        before = len(w.site.api.leases)
        await w.site.ask("POST", CHAT, body)
        assert taken[-1] is False
        assert len(w.site.api.leases) - before <= 1
        await w.until(lambda: w.is_clean)


async def test_settings_that_forbid_hold_for_a_head_that_was_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with warm(monkeypatch, reply) as w, w.site.client() as client:
        for _ in range(2):
            await client.send("POST", CHAT, chat(), {"Host": "my.box"}, host=None)
            assert (await client.answer()).status == 403
            await w.site.api.set_settings({"allowed_hosts": ["my.box"]})
            w.site.api.bound_hosts = ("my.box",)
            await client.send("POST", CHAT, chat(), {"Host": "my.box"}, host=None)
            assert (await client.answer()).status == 200
            await w.site.api.set_settings({"allowed_hosts": []})
            w.site.api.bound_hosts = ()


@pytest.mark.parametrize("give", ["right", "wrong", "none"])
async def test_a_key_is_asked_for_here_too(give: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with warm(monkeypatch, reply) as w:
        keys = w.site.endpoint._parts.keys
        monkeypatch.setattr(keys, "accepts", lambda given: given == "right")
        await w.site.api.set_settings({"require_api_key": True})
        headers = {} if give == "none" else {"Authorization": f"Bearer {give}"}
        answer = await w.site.ask("POST", CHAT, chat(), headers)
        assert answer.status == (200 if give == "right" else 401)


async def test_bodies_beyond_the_bound_for_all_are_refused_here_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(peer: Peer) -> None:
        await peer.left()

    async with warm(monkeypatch, script) as w, w.site.client() as client:
        most = w.site.api.settings.max_queue_bytes
        await client.send("POST", CHAT, chat())
        await w.until(w.site.worker.asked.is_set)
        w.site.endpoint._parts.bodies.held += most
        answer = await w.site.ask("POST", CHAT, chat())
        assert (answer.status, answer.error["code"]) == (503, "too_many_bytes")
        w.site.endpoint._parts.bodies.held -= most
