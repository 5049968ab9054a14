"""Many clients, and slow ones: none of them keeps others out, and none costs much."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from router.web import crowd
from router.web.crowd import Crowd
from router.web.options import WebOptions
from tests.router.web.fakes import CHAT, SAFETY_S, Answer, Client, Peer, Site, chat, reply, site, snapshot

FEW = WebOptions(silence_s=30.0, stalled_client_s=0.2, max_clients=10)
QUICK = WebOptions(silence_s=30.0, stalled_client_s=0.2, idle_client_s=0.05)


@asynccontextmanager
async def connected(s: Site, *starts: bytes) -> AsyncIterator[list[Client]]:
    """Clients that have sent these bytes."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(s.client()) for _ in starts]
        for client, start in zip(clients, starts, strict=True):
            client.writer.write(start)
            await client.writer.drain()
        yield clients


async def closed(client: Client) -> None:
    """Wait until the other side has closed it."""
    async with asyncio.timeout(SAFETY_S):
        try:
            while await client.reader.read(4096):
                pass
        except ConnectionError:
            return


SILENT = (b"", b"P", b"GET /live HTTP/1.1\r\nHo", b"POST /v1/load HTTP/1.1\r\nHost: localhost\r\n")


async def test_who_says_nothing_gives_way_to_who_asks() -> None:
    async with site(reply, FEW) as s:
        async with connected(s, *(SILENT * 10)[:30]) as silent:
            for _ in range(30):
                assert (await s.ask("POST", CHAT, chat())).status == 200
            for early in silent[:20]:
                await closed(early)
        assert (await s.ask("GET", "/live")).status == 200


async def test_who_has_been_answered_gives_way_as_well() -> None:
    async with site(reply, FEW) as s, connected(s, *[b""] * 10) as kept:
        for client in kept:
            assert (await client.ask("POST", CHAT, chat())).status == 200
            assert (await client.ask("GET", "/live")).status == 200
        assert (await s.ask("POST", CHAT, chat())).status == 200
        await closed(kept[0])
        # One had to go, and no more.
        for client in kept[2:]:
            assert (await client.ask("POST", CHAT, chat())).status == 200


async def test_nobody_who_waits_for_an_answer_gives_way() -> None:
    go_on = asyncio.Event()

    async def script(peer: Peer) -> None:
        await go_on.wait()
        await reply(peer)

    async with site(script, FEW) as s, connected(s, *[b""] * 10) as busy:
        for number, client in enumerate(busy):
            # In both ways to read a request, with its body whole and not.
            path = CHAT + "?x" * (number % 2)
            if number < 8:
                await client.send("POST", path, chat())
            else:
                await client.send("POST", path, None, {"Content-Length": "500000"})
                client.writer.write(b"{")
        async with asyncio.timeout(SAFETY_S):
            while len(s.worker.requests) < 8:  # noqa: ASYNC110  # the worker tells of its first only
                await asyncio.sleep(0)
            while len(s.endpoint._parts.inflight) < 10:  # noqa: ASYNC110  # nobody is told
                await asyncio.sleep(0)
        async with s.client() as late:
            await late.send("GET", "/live")
            answer = await late.answer()
            assert (answer.status, answer.error["code"]) == (503, "too_many_clients")
            assert answer.headers["retry-after"]
        go_on.set()
        for client in busy[:8]:
            assert (await client.answer()).status == 200
        assert (await s.ask("GET", "/live")).status == 200


@pytest.mark.parametrize("start", SILENT)
async def test_who_says_nothing_for_long_is_disconnected(start: bytes) -> None:
    async with site(reply, QUICK) as s, connected(s, start) as (client,):
        await closed(client)


@pytest.mark.parametrize("path", [CHAT, CHAT + "?x", "/nope"])
async def test_who_asks_no_more_is_disconnected(path: str) -> None:
    async with site(reply, QUICK) as s, s.client() as client:
        assert (await client.ask("POST", path, chat())).status in (200, 404)
        await closed(client)


async def test_who_waits_for_an_answer_is_not() -> None:
    async with site(reply, QUICK) as s, connected(s, b"", b"") as (plain, other):
        s.api.gate.clear()
        await plain.send("POST", CHAT, chat())
        await other.send("POST", CHAT + "?x", chat())
        # Both have waited longer than a silent one that came after them.
        async with s.client() as silent:
            await closed(silent)
        s.api.gate.set()
        assert (await plain.answer()).status == 200
        assert (await other.answer()).status == 200


async def test_a_body_that_comes_byte_by_byte_is_given_up() -> None:
    """It is never silent for long, but it would keep its share of the memory for days."""
    options = WebOptions(upload_stall_s=0.1, slowest_upload=1 << 20)
    async with site(reply, options) as s, s.client() as client:
        await client.send("POST", CHAT, None, {"Content-Length": str(400 << 20)})
        answering = asyncio.ensure_future(client.answer())
        while not answering.done():
            client.writer.write(b" ")
            await asyncio.wait([answering], timeout=0.01)
        answer = await answering
        assert (answer.status, answer.error["code"]) == (408, "upload_stalled")
        assert s.endpoint._parts.bodies.held == 0


def _narrow(client: Client) -> None:
    client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)


@pytest.mark.parametrize("path", [CHAT, CHAT + "?x"])
@pytest.mark.parametrize("stream", [True, False])
async def test_who_reads_no_more_does_not_keep_its_model_busy(path: str, stream: bool) -> None:
    left = asyncio.Event()

    async def script(peer: Peer) -> None:
        if stream:
            await peer.begin_stream()
        else:
            await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while True:
                await (peer.chunk if stream else peer.send)(b"data: " + b"x" * 65000 + b"\n\n")
        left.set()

    options = WebOptions(silence_s=30.0, unread_s=0.05)
    async with site(script, options) as s, s.client() as client:
        _narrow(client)
        await client.send("POST", path, chat(stream))
        async with asyncio.timeout(SAFETY_S):
            await left.wait()
            await s.api.leases[0].released.wait()


async def test_a_subscriber_that_reads_no_more_makes_place_for_others() -> None:
    wide = {"settings": {"filler": "x" * 500_000}}
    options = WebOptions(snapshots_s=0.0, keep_alive_s=30.0, unread_s=0.05, max_subscribers=1)
    async with site(reply, options) as s, s.client() as client:
        _narrow(client)
        await client.send("GET", "/v1/events")
        async with asyncio.timeout(SAFETY_S):
            generation = 2
            while not s.api.unsubscribed.is_set():
                s.api.publish(snapshot(generation, **wide))
                generation += 1
                await asyncio.sleep(0.001)
        async with s.client() as other:
            await other.send("GET", "/v1/events")
            assert (await other.answer(lambda a: b"snapshot" in a.body)).status == 200


async def test_who_reads_slowly_is_served_to_the_end() -> None:
    total = 4 << 20

    async def script(peer: Peer) -> None:
        await peer.begin_stream()
        for _ in range(total >> 16):
            await peer.chunk(b"x" * (1 << 16))
        await peer.chunk(b"\n\ndata: [DONE]\n\n")
        await peer.end_stream()

    async with site(script, WebOptions(silence_s=30.0, unread_s=SAFETY_S)) as s, s.client() as client:
        _narrow(client)
        await client.send("POST", CHAT, chat(stream=True))
        answer = Answer()
        while not answer.whole:
            answer.feed(await client.reader.read(5000))
            await asyncio.sleep(0)
        assert len(answer.body) == total + len(b"\n\ndata: [DONE]\n\n")


class Guest:
    def __init__(self, idle: bool = True) -> None:
        self.is_idle = idle
        self.gone = False

    def give_way(self) -> None:
        self.gone = True


def test_the_first_of_the_idle_ones_goes() -> None:
    clients = Crowd(3)
    guests = [Guest(idle=False), Guest(), Guest()]
    assert all(clients.enter(guest) for guest in guests)
    assert clients.enter(Guest(idle=False))
    assert [guest.gone for guest in guests] == [False, True, False]
    assert clients.enter(Guest(idle=False))
    assert not clients.enter(Guest())
    assert len(clients) == 3
    clients.leave(guests[0])
    clients.leave(guests[0])
    assert clients.enter(Guest())


def test_there_is_room_for_some_and_files_for_twice_as_many() -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = crowd.room()
    after = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert after[1] == before[1]
    assert after[0] >= before[0]
    assert most >= 32
    assert 2 * most < after[0] or most == 32
