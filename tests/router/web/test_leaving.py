"""Clients that leave: their work ends at once, at any moment, without noise."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
from pathlib import Path

import msgspec
import pytest

from router.web.options import WebOptions
from tests.router.web.fakes import CHAT, OPTIONS, SAFETY_S, Peer, chat, reply, site


async def _soon(event: asyncio.Event) -> None:
    async with asyncio.timeout(SAFETY_S):
        await event.wait()


def _quiet(caplog: pytest.LogCaptureFixture) -> bool:
    return not [r for r in caplog.records if r.levelno >= logging.WARNING or r.exc_info]


@pytest.mark.fault("F02")
@pytest.mark.fault("F16")
@pytest.mark.parametrize("stream", [False, True])
async def test_before_the_grant(stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    async with site(reply) as s:
        s.api.gate.clear()
        async with s.client() as client:
            await client.send("POST", CHAT, chat(stream))
            await _soon(s.api.waiting)
            client.leave()
            await _soon(s.api.cancelled)
        assert not s.api.leases
    assert _quiet(caplog)


@pytest.mark.fault("F16")
async def test_while_comments_keep_it_waiting(caplog: pytest.LogCaptureFixture) -> None:
    async with site(reply, WebOptions(silence_s=0.01)) as s:
        s.api.gate.clear()
        async with s.client() as client:
            await client.send("POST", CHAT, chat(stream=True))
            answer = await client.answer(lambda a: a.body.count(b": keep-alive") >= 3)
            assert answer.status == 200
            client.leave()
            await _soon(s.api.cancelled)
    assert _quiet(caplog)


@pytest.mark.fault("F02")
@pytest.mark.parametrize("stream", [False, True])
async def test_before_the_first_byte(stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    left = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.left()
        left.set()

    async with site(script) as s:
        async with s.client() as client:
            await client.send("POST", CHAT, chat(stream))
            await _soon(s.worker.asked)
            client.leave()
            await _soon(left)
        await _soon(s.api.leases[0].released)
    assert _quiet(caplog)


@pytest.mark.fault("F02")
async def test_in_the_middle_of_a_stream(caplog: pytest.LogCaptureFixture) -> None:
    left = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.begin_stream()
        for i in range(3):
            await peer.chunk(b'data: {"n":%d}\n\n' % i)
        await peer.left()
        left.set()

    async with site(script) as s:
        async with s.client() as client:
            await client.send("POST", CHAT, chat(stream=True))
            await client.answer(lambda a: a.body.count(b"\n\n") >= 3)
            assert not s.api.leases[0].released.is_set()
            client.leave()
            await _soon(left)
        await _soon(s.api.leases[0].released)
    assert _quiet(caplog)


@pytest.mark.fault("F02")
async def test_in_the_middle_of_a_stream_that_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def script(peer: Peer) -> None:
        await peer.begin_stream()
        while True:
            await peer.chunk(b'data: {"text":"' + b"x" * 2000 + b'"}\n\n')

    async with site(script) as s:
        async with s.client() as client:
            await client.send("POST", CHAT, chat(stream=True))
            await client.answer(lambda a: len(a.body) > 10_000)
            client.leave()
        await _soon(s.api.leases[0].released)
    assert _quiet(caplog)


async def test_in_the_middle_of_an_upload(caplog: pytest.LogCaptureFixture) -> None:
    async with site(reply) as s:
        async with s.client() as client:
            await client.send("POST", CHAT, None, {"Content-Length": "100000"})
            client.writer.write(b"{" * 1000)
            await client.writer.drain()
            client.leave()
        assert (await s.ask("POST", CHAT, chat())).status == 200
        assert len(s.worker.requests) == 1
    assert _quiet(caplog)


@pytest.mark.fault("F02")
async def test_twenty_ghosts_and_then_a_normal_request() -> None:
    async with site(reply) as s:
        s.api.gate.clear()
        for _ in range(20):
            s.api.waiting.clear()
            s.api.cancelled.clear()
            async with s.client() as client:
                await client.send("POST", CHAT, chat())
                await _soon(s.api.waiting)
                client.leave()
                await _soon(s.api.cancelled)
        s.api.gate.set()
        assert (await s.ask("POST", CHAT, chat())).status == 200
        assert len(s.api.leases) == 1
        assert s.api.leases[0].released.is_set()


async def test_a_client_that_reads_nothing_cannot_hold_a_lease_that_was_cut() -> None:
    async def script(peer: Peer) -> None:
        await peer.begin_stream()
        while True:
            await peer.chunk(b"data: " + b"x" * 65000 + b"\n\n")

    async with site(script, OPTIONS) as s, s.client() as client:
        await client.send("POST", CHAT, chat(stream=True))
        await _soon(s.worker.asked)
        s.api.leases[0].cut.set_result("unloaded")
        await _soon(s.api.leases[0].released)


@pytest.mark.long
@pytest.mark.fault("F02")
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
async def test_2000_clients_that_leave_leave_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    async def script(peer: Peer) -> None:
        asked = msgspec.json.decode(peer.body)
        if asked["stream"]:
            await peer.begin_stream()
            while True:
                await peer.chunk(b'data: {"text":"' + b"x" * 2000 + b'"}\n\n')
        await peer.left()

    async with site(script) as s:

        async def leave(turn: int) -> None:
            """Before the grant, before the first byte, in a stream, and in the middle of the upload."""
            phase = turn % 4
            async with s.client() as client:
                if phase == 0:
                    s.api.gate.clear()
                    s.api.waiting.clear()
                    s.api.cancelled.clear()
                    await client.send("POST", CHAT, chat(stream=turn % 8 == 0))
                    await _soon(s.api.waiting)
                    client.leave()
                    await _soon(s.api.cancelled)
                    s.api.gate.set()
                elif phase == 3:
                    await client.send("POST", CHAT, None, {"Content-Length": "100000"})
                    client.writer.write(b"{" * 1000)
                    await client.writer.drain()
                else:
                    s.worker.asked.clear()
                    await client.send("POST", CHAT, chat(stream=phase == 2))
                    if phase == 2:
                        await client.answer(lambda a: len(a.body) > 5000)
                    else:
                        await _soon(s.worker.asked)
                    client.leave()
                    await _soon(s.api.leases[0].released)
            for kept in (s.api.leases, s.api.asked, s.worker.requests):
                kept.clear()

        async def state() -> tuple[int, int, int]:
            async with asyncio.timeout(SAFETY_S):
                # What ended is taken away in a few turns of the loop.
                while len(asyncio.all_tasks()) > tasks or len(s.endpoint._parts.inflight):  # noqa: ASYNC110
                    await asyncio.sleep(0)
            return len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks()), resident_bytes()

        tasks = len(asyncio.all_tasks())
        for turn in range(400):
            await leave(turn)
        before = await state()
        for turn in range(2000):
            await leave(turn)
        after = await state()
        assert after[:2] == before[:2]
        assert after[2] - before[2] <= 1 << 20
        assert s.endpoint._parts.bodies.held == 0
        assert not s.endpoint._parts.inference.running
    assert _quiet(caplog)


def resident_bytes() -> int:
    """Bytes of memory of this process, once what is not used has been given back."""
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
