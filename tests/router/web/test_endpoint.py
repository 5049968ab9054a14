"""Listening, and ending in order."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest

from router.errors import InstanceError
from router.web.app import Endpoint
from router.web.options import WebOptions
from router.web.ports import next_free_port
from tests.router.web.fakes import (
    CHAT,
    SAFETY_S,
    Client,
    FakeApi,
    Peer,
    chat,
    data_of,
    events_of,
    reply,
    site,
)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


async def test_it_listens_on_both_loopback_addresses() -> None:
    if not _has_ipv6():
        pytest.skip("no IPv6 here")
    async with site(reply) as s:
        assert s.endpoint.url == f"http://127.0.0.1:{s.endpoint.port}"
        async with Client(s.endpoint.port, "::1") as client:
            await client.send("GET", "/live", host="[::1]")
            assert (await client.answer()).status == 200


async def test_a_busy_ipv6_port_is_no_failure() -> None:
    if not _has_ipv6():
        pytest.skip("no IPv6 here")
    port = _free_port()
    with socket.socket(socket.AF_INET6) as other:
        other.bind(("::1", port))
        other.listen()
        endpoint = Endpoint(FakeApi())
        assert await endpoint.start("127.0.0.1", port) == f"http://127.0.0.1:{port}"
        await endpoint.stop(0)


async def test_a_busy_port_names_its_holder_and_the_way_out() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(InstanceError) as caught:
            await Endpoint(FakeApi()).start("127.0.0.1", port)
    assert caught.value.code == "port_in_use"
    assert str(port) in caught.value.message
    assert f"pid {os.getpid()}" in caught.value.message
    free = next_free_port("127.0.0.1", port)
    assert "LEMON_TRAY_PORT=" in caught.value.message
    assert free is None or free > port


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])
async def test_an_address_that_is_not_ours(host: str) -> None:
    with pytest.raises(InstanceError) as caught:
        await Endpoint(FakeApi()).start(host, 0)
    assert caught.value.code == "bad_address"
    assert host in caught.value.message


async def test_all_interfaces_are_shown_as_loopback() -> None:
    endpoint = Endpoint(FakeApi())
    try:
        assert await endpoint.start("0.0.0.0", 0) == f"http://127.0.0.1:{endpoint.port}"
        async with Client(endpoint.port) as client:
            assert (await client.ask("GET", "/live")).status == 200
            await client.send("GET", "/live", host="evil.example")
            assert (await client.answer()).status == 403
    finally:
        await endpoint.stop(0)


async def test_it_can_start_again_on_the_same_port_at_once() -> None:
    port = _free_port()
    for _ in range(3):
        endpoint = Endpoint(FakeApi())
        await endpoint.start("127.0.0.1", port)
        async with Client(port) as client:
            assert (await client.ask("GET", "/live")).status == 200
            await endpoint.stop(1)
            await endpoint.stop(1)


async def test_what_is_under_way_may_finish() -> None:
    go_on = asyncio.Event()

    async def script(peer: Peer) -> None:
        await go_on.wait()
        await reply(peer)

    async with site(script) as s, s.client() as client, s.client() as idle:
        await idle.ask("GET", "/live")
        await client.send("POST", CHAT, chat())
        await s.worker.asked.wait()
        stopping = asyncio.ensure_future(s.endpoint.stop(SAFETY_S))
        await asyncio.sleep(0)
        await idle.send("GET", "/live")
        refused = await idle.answer()
        assert refused.status in (0, 503)  # The connection was closed before the request, or it was refused.
        go_on.set()
        answer = await client.answer()
        assert answer.status == 200
        assert answer.headers.get("connection", "close") == "close"
        await stopping


async def test_streams_end_with_an_error_event_after_the_grace() -> None:
    left = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.begin_stream()
        await peer.chunk(b'data: {"n":1}\n\n')
        await peer.left()
        left.set()

    async with site(script) as s, s.client() as client:
        await client.send("POST", CHAT, chat(stream=True))
        answer = await client.answer(lambda a: b"\n\n" in a.body)
        async with asyncio.timeout(SAFETY_S):
            await s.endpoint.stop(0.01)
            await left.wait()
        await client.more(answer)
        assert answer.whole
        assert data_of(events_of(answer.body)[-1])["error"]["code"] == "shutting_down"
        assert s.api.leases[0].released.is_set()


@pytest.mark.fault("F06")
async def test_it_ends_whatever_clients_do() -> None:
    async def script(peer: Peer) -> None:
        await peer.begin_stream()
        while True:
            await peer.chunk(b"data: " + b"x" * 65000 + b"\n\n")

    options = WebOptions(silence_s=0.01, stalled_client_s=0.05)
    async with (
        site(script, options) as s,
        s.client() as stalled,
        s.client() as waiting,
        s.client() as sleeping,
    ):
        await stalled.send("POST", CHAT, chat(stream=True))
        await s.worker.asked.wait()
        s.api.gate.clear()
        s.api.waiting.clear()
        await waiting.send("POST", CHAT, chat())
        await s.api.waiting.wait()
        await sleeping.send("GET", "/v1/events")
        await sleeping.answer(lambda a: b"snapshot" in a.body)
        async with s.client() as half:
            half.writer.write(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{"
            )
            async with asyncio.timeout(SAFETY_S):
                await s.endpoint.stop(0.01)
        assert s.api.leases[0].released.is_set()
        assert s.api.cancelled.is_set()
        rest = [t for t in asyncio.all_tasks() if "RequestHandler" in repr(t) or "_handle_request" in repr(t)]
        assert not rest
