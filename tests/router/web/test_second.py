"""The second port, for apps that look for Ollama."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.router.web.fakes import Client, reply, site


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextmanager
def taken() -> Iterator[int]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        yield int(sock.getsockname()[1])


async def greeting(port: int) -> bytes:
    async with Client(port) as client:
        return bytes((await client.ask("GET", "/")).body)


async def is_refused(port: int) -> bool:
    try:
        async with Client(port):
            return False
    except ConnectionRefusedError:
        return True


async def test_all_calls_are_answered_there() -> None:
    async with site(reply) as s:
        port = free_port()
        await s.endpoint.listen_also(port)
        assert (s.endpoint.second.url, s.endpoint.second.problem) == (f"http://127.0.0.1:{port}", "")
        assert await greeting(port) == await greeting(s.endpoint.port) == b"Ollama is running"
        async with Client(port) as client:
            assert (await client.ask("GET", "/v1/models")).status == 200
            evil = await client.ask("GET", "/api/tags", headers={"Origin": "https://evil.example"})
            assert evil.status == 403
        await s.endpoint.stop(0.1)
        assert await is_refused(port)


async def test_a_port_that_is_taken_is_left_alone_and_told() -> None:
    async with site(reply) as s:
        with taken() as port:
            await s.endpoint.listen_also(port)
            problem = s.endpoint.second.problem
            assert str(port) in problem
            assert "taken by" in problem
            assert s.endpoint.url in problem
            assert s.endpoint.second.url == ""
            assert await greeting(s.endpoint.port)
        # Asked for again, it is tried again.
        await s.endpoint.listen_also(port)
        assert (s.endpoint.second.problem, await greeting(port)) == ("", b"Ollama is running")


async def test_it_moves_and_goes() -> None:
    async with site(reply) as s:
        first, second = free_port(), free_port()
        await s.endpoint.listen_also(first)
        async with Client(first) as client:
            await s.endpoint.listen_also(second)
            # A client that is there stays.
            assert (await client.ask("GET", "/api/version")).status == 200
        assert await is_refused(first)
        assert await greeting(second)
        await s.endpoint.listen_also(0)
        assert await is_refused(second)
        assert s.endpoint.second.url == ""


async def test_what_is_asked_for_last_holds() -> None:
    async with site(reply) as s:
        asked = [free_port() for _ in range(4)]
        await asyncio.gather(*[s.endpoint.listen_also(port) for port in asked])
        assert s.endpoint.second.url.endswith(f":{asked[-1]}")
        assert [await is_refused(port) for port in asked] == [True, True, True, False]


async def test_the_endpoints_own_port_needs_no_second_one() -> None:
    async with site(reply) as s:
        await s.endpoint.listen_also(s.endpoint.port)
        assert (s.endpoint.second.url, s.endpoint.second.problem) == ("", "")


@pytest.mark.fault("F06")
async def test_after_the_end_it_stays_closed() -> None:
    async with site(reply) as s:
        port = free_port()
        moving = asyncio.ensure_future(s.endpoint.listen_also(port))
        await s.endpoint.stop(0.1)
        await moving
        assert await is_refused(port)
        await s.endpoint.listen_also(port)
        assert await is_refused(port)
