"""Bodies: bounded each, all together, and once they are inflated."""

from __future__ import annotations

import asyncio
import gzip
import random
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from router.settings import schema
from router.web.options import WebOptions
from router.web.requests import decode_fields
from tests.router.web.fakes import CHAT, SAFETY_S, Client, Peer, Site, chat, reply, site

MIB = 1 << 20


def _held(s: Site) -> int:
    return s.endpoint._parts.bodies.held


async def _until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(SAFETY_S):
        while not condition():  # noqa: ASYNC110  # what is looked at tells nobody of its changes
            await asyncio.sleep(0)


def _bare(data: bytes) -> bytes:
    squeeze = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return squeeze.compress(data) + squeeze.flush()


def _in_parts(data: bytes) -> bytes:
    """As `cat a.gz b.gz` makes it."""
    third = len(data) // 3
    return b"".join(gzip.compress(part) for part in (data[:third], b"", data[third:]))


@pytest.mark.parametrize(
    ("encoding", "squeeze"),
    [
        ("gzip", gzip.compress),
        ("GZip", gzip.compress),
        ("identity, gzip", gzip.compress),
        ("gzip", _in_parts),
        ("deflate", zlib.compress),
        ("deflate", _bare),
    ],
)
@pytest.mark.parametrize("text", ["hello", "word " * 20_000])
async def test_a_compressed_body_arrives_plain(encoding: str, squeeze: Any, text: str) -> None:
    body = chat(text=text)
    async with site(reply) as s:
        answer = await s.ask("POST", CHAT, squeeze(body), {"Content-Encoding": encoding})
        assert answer.status == 200
        assert s.worker.requests[0].body == body
        assert "content-encoding" not in s.worker.requests[0].headers
        assert _held(s) == 0


@pytest.mark.fault("F04")
async def test_a_bomb_is_refused_before_it_is_inflated() -> None:
    bomb = gzip.compress(b'{"model":"alpha","x":"' + b"a" * (24 * MIB), 9)
    assert len(bomb) < 100_000
    async with site(reply) as s:
        for path in (CHAT, "/v1/load", "/internal/set"):
            answer = await s.ask("POST", path, bomb, {"Content-Encoding": "gzip"})
            assert answer.status == 413
            assert answer.error["code"] == "request_too_large"
        assert _held(s) == 0


@pytest.mark.fault("F04")
@pytest.mark.parametrize(
    ("encoding", "body", "status"),
    [
        ("br", b"x", 415),
        ("zstd", b"x", 415),
        ("gzip, gzip", gzip.compress(gzip.compress(b"{}", mtime=0), mtime=0), 415),
        ("chunked", b"x", 415),
        ("gzip", gzip.compress(chat(), mtime=0) + b"more", 400),
        ("gzip", gzip.compress(b"", mtime=0) * 1001, 400),
        ("gzip", gzip.compress(chat(), mtime=0) + gzip.compress(b" " * 99, mtime=0)[:-9], 400),
        ("deflate", zlib.compress(chat()) + b"more", 400),
        ("gzip", b"{}", 400),
        ("gzip", b"", 400),
        ("gzip", gzip.compress(chat(), mtime=0)[:-9], 400),
        ("deflate", b"\x78\x9c rubbish", 400),
        ("gzip", gzip.compress(b"{x", mtime=0), 400),
    ],
)
async def test_what_is_compressed_otherwise_or_wrongly(encoding: str, body: bytes, status: int) -> None:
    async with site(reply) as s:
        answer = await s.ask("POST", CHAT, body, {"Content-Encoding": encoding})
        assert answer.status == status
        assert answer.error["message"]
        assert not s.api.asked


async def test_a_bomb_in_parts_is_refused_before_it_is_inflated() -> None:
    part = gzip.compress(b" " * MIB, 9)
    async with site(reply) as s:
        answer = await s.ask("POST", CHAT, part * 300, {"Content-Encoding": "gzip"})
        assert answer.status == 413
        assert _held(s) == 0


async def test_what_several_lines_say_of_compression_counts_together() -> None:
    packed = gzip.compress(chat())
    async with site(reply) as s:
        for lines, status in (
            (("identity", "gzip"), 200),
            (("gzip", "identity"), 200),
            (("gzip", "br"), 415),
            (("identity", "br"), 415),
        ):
            told = "".join(f"Content-Encoding: {each}\r\n" for each in lines)
            head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n{told}Content-Length: {len(packed)}\r\n\r\n"
            async with s.client() as client:
                assert (await client.raw(head.encode() + packed)).status == status, lines


async def test_admin_calls_take_small_bodies_only() -> None:
    async with site(reply, WebOptions(max_admin_body=1000)) as s:
        assert (await s.ask("POST", "/v1/load", b"x" * 1001)).status == 413
        assert (await s.ask("POST", CHAT, chat(text="x" * 1001))).status == 200


async def test_all_bodies_together_are_bounded_and_one_alone_is_not() -> None:
    go_on = asyncio.Event()

    async def script(peer: Peer) -> None:
        await go_on.wait()
        await reply(peer)

    big = chat(text="x" * (3 * MIB))
    async with site(script) as s, s.client() as first:
        s.api.settings = schema.apply(s.api.settings, {"max_queue_bytes": 4 * MIB})
        s.api.gate.clear()
        await first.send("POST", CHAT, big)
        async with asyncio.timeout(SAFETY_S):
            await s.api.waiting.wait()
        assert _held(s) == len(big)
        for headers in ({}, {"Transfer-Encoding": "chunked"}):
            async with s.client() as second:
                answer = await _send(second, big, headers)
                assert answer.status == 503
                assert answer.error["code"] == "too_many_bytes"
                assert answer.headers["retry-after"]
        small = asyncio.ensure_future(s.ask("POST", CHAT, chat()))
        s.api.gate.set()
        go_on.set()
        assert (await first.answer()).status == 200
        assert (await small).status == 200
        assert _held(s) == 0
        s.api.settings = schema.apply(s.api.settings, {"max_queue_bytes": MIB})
        assert (await s.ask("POST", CHAT, big)).status == 200


@pytest.mark.fault("F04")
async def test_who_promises_much_and_sends_it_slowly_keeps_nobody_out() -> None:
    async with site(reply, WebOptions(upload_stall_s=SAFETY_S)) as s, s.client() as slow:
        s.api.settings = schema.apply(s.api.settings, {"max_queue_bytes": MIB})
        await slow.send("POST", CHAT, None, {"Content-Length": str(400 * MIB)})
        slow.writer.write(b"{" * 1000)
        await _until(lambda: _held(s))
        assert (await s.ask("POST", CHAT, chat())).status == 200
        # It counts as soon as it comes.
        slow.writer.write(b" " * (2 * MIB))
        await _until(lambda: _held(s) > MIB)
        assert (await s.ask("POST", CHAT, chat())).error["code"] == "too_many_bytes"


@pytest.mark.fault("F04")
async def test_what_is_inflated_counts_as_it_comes() -> None:
    rng = random.Random(2)
    words = [rng.randbytes(8).hex() for _ in range(500)]
    packed = gzip.compress(chat(text=" ".join(rng.choices(words, k=2_000_000))), 1)
    go_on = asyncio.Event()

    async def script(peer: Peer) -> None:
        await go_on.wait()
        await reply(peer)

    async with site(script) as s, s.client() as other:
        s.api.settings = schema.apply(s.api.settings, {"max_queue_bytes": 16 * MIB})
        s.api.gate.clear()
        await other.send("POST", CHAT, chat(text="x" * MIB))
        async with asyncio.timeout(SAFETY_S):
            await s.api.waiting.wait()
        tracemalloc.start()
        try:
            answer = await s.ask("POST", CHAT, packed, {"Content-Encoding": "gzip"})
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert (answer.status, answer.error["code"]) == (503, "too_many_bytes")
        # It would have had 32 MiB.
        assert peak < 28 * MIB
        s.api.gate.set()
        go_on.set()
        assert (await other.answer()).status == 200


async def _send(client: Client, body: bytes, headers: dict[str, str]) -> Any:
    if not headers:
        await client.send("POST", CHAT, body)
    else:
        await client.send("POST", CHAT, None, headers)
        client.writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
    return await client.answer()


@pytest.mark.parametrize("leave", [True, False])
async def test_bytes_of_a_client_that_leaves_or_stalls_are_given_back(leave: bool) -> None:
    async with site(reply, WebOptions(upload_stall_s=0.05 if not leave else 30.0)) as s:
        async with s.client() as client:
            await client.send("POST", CHAT, None, {"Content-Length": "100000"})
            client.writer.write(b"{" * 1000)
            await client.writer.drain()
            if leave:
                await _until(lambda: _held(s))
                client.leave()
            else:
                answer = await client.answer()
                assert (answer.status, answer.error["code"]) == (408, "upload_stalled")
        await _until(lambda: not _held(s))


async def test_a_worker_that_does_not_read_holds_a_large_body_back() -> None:
    """It goes out in pieces: no second copy of it waits in the transport."""
    total = 24 * MIB
    read_on = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.answer(b"{}")

    async with site(script) as s:
        worker = s.worker
        serve = worker._serve

        async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_on.wait()
            await serve(reader, writer)

        worker._server.close()  # type: ignore[union-attr]  # it runs
        worker._server = await asyncio.start_server(slow, worker.host, 0)
        worker.port = worker._server.sockets[0].getsockname()[1]
        asking = asyncio.ensure_future(s.ask("POST", CHAT, chat(text="x" * total)))
        running = s.endpoint._parts.inference.running
        await _until(lambda: any(e._connection and e._connection._is_full for e in running))
        connection = next(iter(running))._connection
        transport = connection._transport if connection is not None else None
        assert transport is not None
        assert transport.get_write_buffer_size() < 2 * MIB
        read_on.set()
        assert (await asking).status == 200
        assert len(worker.requests[0].body) > total


async def test_a_worker_that_answers_before_it_has_read_all_is_heard() -> None:
    async def script(peer: Peer) -> None:
        await peer.answer(b'{"error":{"message":"too long"}}', 400)

    async with site(script) as s:

        async def early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            body = b'{"error":{"message":"too long"}}'
            writer.write(b"HTTP/1.1 400 X\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            await left.wait()
            writer.transport.abort()

        left = asyncio.Event()
        s.worker._server.close()  # type: ignore[union-attr]  # it runs
        s.worker._server = await asyncio.start_server(early, s.worker.host, 0, limit=1 << 16)
        s.worker.port = s.worker._server.sockets[0].getsockname()[1]
        answer = await s.ask("POST", CHAT, chat(text="x" * (24 * MIB)))
        assert (answer.status, answer.error["message"]) == (400, "too long")
        assert s.endpoint._parts.relay.idle == 0  # What it was not sent could not be told from a new request.
        left.set()


@pytest.mark.fault("F04")
async def test_faults_of_large_bodies_are_found_without_a_second_copy() -> None:
    options = WebOptions()
    good = chat(text="é" * (2 * MIB))
    assert (await decode_fields(good, options)).model == "alpha"
    assert (await decode_fields(bytearray(good), options)).model == "alpha"
    rng = random.Random(1)
    for _ in range(10):
        at = rng.randrange(100, len(good) - 10)
        bad = bytearray(good)
        bad[at] = 0xFF
        with pytest.raises(Exception, match=f"byte {at} is wrong|byte {at - 1} is wrong"):
            await decode_fields(bad, options)
    with pytest.raises(Exception, match="UTF-8"):
        await decode_fields(good[:-20] + b"\xc3", options)


async def test_a_response_of_messages_is_no_body() -> None:
    async with site(reply) as s:
        answer = await s.ask("POST", CHAT, None, {"Content-Type": "application/json", "Content-Length": "0"})
        assert answer.status == 400
        assert msgspec.json.decode(answer.body)["error"]["message"].startswith("The body is empty")
