"""The way to the workers: bytes, framing, kept connections, back-pressure."""

from __future__ import annotations

import asyncio
import random
import socket

import pytest

from router.web import respond
from router.web.options import WebOptions
from tests.router.web.fakes import CHAT, OPTIONS, REPLY, SAFETY_S, Client, Peer, chat, reply, site

CONNECTIONS = 20


def _fragments(rng: random.Random, data: bytes) -> list[bytes]:
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(6)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def _body(rng: random.Random) -> tuple[bytes, bytes]:
    """A body and its content type."""
    size = rng.choice((0, 1, 2, 50, 500, 5000))
    if rng.random() < 0.3:
        lines = b"".join(
            rng.choice((b"data: {}\n\n", b": c\r\n\r\n", b"id: 7\rdata: x\r\r")) for _ in range(size % 9)
        )
        return lines + b"data: [DONE]\n\n", b"text/event-stream"
    return rng.randbytes(size), b"application/octet-stream"


def _chunked(rng: random.Random, body: bytes) -> bytes:
    out = b""
    for part in _fragments(rng, body):
        if part:
            extension = rng.choice((b"", b"", b";a=b"))
            size = b"%x" % len(part)
            out += (size.upper() if rng.random() < 0.5 else size) + extension + b"\r\n" + part + b"\r\n"
    return out + b"0\r\n" + rng.choice((b"", b"X-Trailer: 1\r\n")) + b"\r\n"


def _wire(rng: random.Random, body: bytes, kind: bytes) -> tuple[bytes, bool]:
    """An answer as a worker may write it, and whether the connection must end after it."""
    head = rng.choice((b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\n"))
    head += b"HTTP/1.1 200 OK\r\nContent-Type: " + kind + b"\r\nX-Empty: \r\nKeep-Alive: timeout=5\r\n"
    form = rng.choice(("length", "chunked", "eof", "close"))
    if form == "length":
        return head + b"Content-Length: %d\r\n\r\n" % len(body) + body, False
    if form == "chunked":
        return head + b"Transfer-Encoding: chunked\r\n\r\n" + _chunked(rng, body), False
    if form == "close":
        return head + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body, True
    return head + b"\r\n" + body, True


@pytest.mark.fault("F28")
@pytest.mark.parametrize("cases", [300, pytest.param(2000, marks=pytest.mark.long)])
async def test_randomly_framed_and_fragmented_answers_come_byte_equal(cases: int) -> None:
    async def script(peer: Peer) -> None:
        rng = random.Random(int(peer.headers["x-case"]))
        body, kind = _body(rng)
        wire, ends = _wire(rng, body, kind)
        for part in _fragments(rng, wire):
            await peer.send(part)
            await asyncio.sleep(0)
        if ends:
            peer.writer.close()

    async def run(client: Client, cases: range) -> int:
        right = 0
        async with client:
            for case in cases:
                expected, _ = _body(random.Random(case))
                answer = await client.ask("POST", CHAT, chat(), {"X-Case": str(case)})
                assert answer.whole, case
                assert answer.status == 200, (case, bytes(answer.body))
                assert bytes(answer.body) == expected, case
                right += 1
        return right

    # Small enough that answers of both kinds, held and passed on as they come, are among them.
    options = WebOptions(silence_s=30.0, max_held=1000, death_s=0.05)
    async with site(script, options) as s:
        share = cases // CONNECTIONS
        runs = [run(s.client(), range(i * share, (i + 1) * share)) for i in range(CONNECTIONS)]
        assert sum(await asyncio.gather(*runs)) == cases
        assert all(lease.released.is_set() for lease in s.api.leases)
        assert s.worker.connections < cases  # Some were kept and used again.


async def test_a_kept_connection_is_used_again() -> None:
    async with site(reply) as s, s.client() as client:
        for _ in range(5):
            assert (await client.ask("POST", CHAT, chat())).status == 200
        assert s.worker.connections == 1


async def test_a_kept_connection_that_was_closed_is_replaced_once() -> None:
    async def script(peer: Peer) -> None:
        if len(s.worker.requests) == 2:
            peer.hang_up()  # The second request meets a connection that gives nothing.
        else:
            await peer.answer(REPLY)

    async with site(script) as s:
        assert (await s.ask("POST", CHAT, chat())).status == 200
        assert (await s.ask("POST", CHAT, chat())).status == 200
        assert s.worker.connections == 2
        assert len(s.worker.requests) == 3


async def test_a_fresh_connection_that_breaks_is_not_tried_again() -> None:
    async def script(peer: Peer) -> None:
        peer.hang_up()

    async with site(script) as s:
        answer = await s.ask("POST", CHAT, chat())
        assert answer.status == 502
        assert answer.error["code"] == "worker_answer_broken"
        assert len(s.worker.requests) == 1


async def test_after_a_byte_nothing_is_tried_again() -> None:
    async def script(peer: Peer) -> None:
        if len(s.worker.requests) == 2:
            await peer.send(b"HTTP/1.1 2")
            peer.hang_up()
        else:
            await peer.answer(REPLY)

    async with site(script) as s:
        assert (await s.ask("POST", CHAT, chat())).status == 200
        assert (await s.ask("POST", CHAT, chat())).status == 502
        assert len(s.worker.requests) == 2


async def test_bytes_nobody_asked_for_spoil_a_connection() -> None:
    async def script(peer: Peer) -> None:
        await peer.answer(REPLY)
        if len(s.worker.requests) == 1:
            await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
            await peer.left()

    async with site(script) as s:
        assert bytes((await s.ask("POST", CHAT, chat())).body) == REPLY
        assert bytes((await s.ask("POST", CHAT, chat())).body) == REPLY
        assert s.worker.connections == 2


async def test_what_is_no_http_is_a_502() -> None:
    async def script(peer: Peer) -> None:
        await peer.send(b"SSH-2.0-OpenSSH\r\n")
        await peer.left()

    async with site(script) as s:
        answer = await s.ask("POST", CHAT, chat())
        assert answer.status == 502
        assert "not valid HTTP" in answer.error["message"]


async def test_endless_headers_are_refused() -> None:
    async def script(peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\n")
        while True:
            await peer.send(b"X-Filler: " + b"a" * 4000 + b"\r\n")

    async with site(script) as s:
        assert (await s.ask("POST", CHAT, chat())).status == 502


async def test_what_a_worker_is_sent() -> None:
    body = b' {"model": "alpha" , "messages":[{"role":"user","content":"\xe5\x8c\x97\\u00e9"}], "x": 1.50 } '
    headers = {
        "Authorization": "Bearer users-secret",
        "Cookie": "a=b",
        "X-Api-Key": "users-secret",
        "Connection": "keep-alive, X-Hop",
        "X-Hop": "1",
        "Accept-Encoding": "gzip",
        "TE": "trailers",
        "X-Request-Id": "r-1",
        "User-Agent": "test",
    }
    async with site(reply) as s:
        assert (await s.ask("POST", "/api/v0/chat/completions", body, headers)).status == 200
        sent = s.worker.requests[0]
        assert sent.body == body
        assert sent.path == "/v1/chat/completions"
        assert sent.headers == {
            "host": f"127.0.0.1:{s.worker.port}",
            "authorization": "Bearer worker-key",
            "content-type": "application/json",
            "content-length": str(len(body)),
            "x-request-id": "r-1",
            "user-agent": "test",
        }


async def test_what_of_a_workers_headers_goes_on() -> None:
    async def script(peer: Peer) -> None:
        await peer.send(
            b"HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nAccess-Control-Allow-Origin: *\r\nSet-Cookie: a=b\r\n"
            b"Connection: X-Hop\r\nX-Hop: 1\r\nX-Kept: yes\r\n"
            b"Content-Type: application/json; charset=utf-8\r\nContent-Length: 2\r\n\r\n{}"
        )

    async with site(script) as s:
        answer = await s.ask("POST", CHAT, chat())
        assert answer.headers["x-kept"] == "yes"
        assert answer.headers["content-type"] == "application/json; charset=utf-8"
        assert not {"access-control-allow-origin", "set-cookie", "x-hop"} & set(answer.headers)
        assert "server" not in answer.headers


async def test_a_client_that_does_not_read_stops_the_worker() -> None:
    total, piece = 96 << 20, b"data: " + b"x" * 65528 + b"\n\n"
    sent = 0
    held = asyncio.Event()
    finished = asyncio.Event()

    async def script(peer: Peer) -> None:
        nonlocal sent
        await peer.begin_stream()
        while sent < total:
            peer.writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            sent += len(piece)
            waiting = asyncio.ensure_future(peer.writer.drain())
            done, _ = await asyncio.wait([waiting], timeout=None if held.is_set() else 0.5)
            if not done:
                held.set()
                await waiting
        await peer.chunk(b"data: [DONE]\n\n")
        await peer.end_stream()
        finished.set()

    async with site(script) as s:
        client = s.client()
        client.reader, client.writer = await asyncio.open_connection(
            "127.0.0.1", s.endpoint.port, limit=64 << 10
        )
        client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
        await client.send("POST", CHAT, chat(stream=True))
        waits = [asyncio.ensure_future(event.wait()) for event in (held, finished)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        assert held.is_set()
        assert sent < total // 2  # What is under way is in sockets' buffers and two marks of ours.
        answer = await client.answer()
        for wait in waits:
            wait.cancel()
        assert answer.whole
        assert len(answer.body) == total + len(b"data: [DONE]\n\n")
        client.leave()


async def test_a_large_body_is_passed_whole() -> None:
    body = chat(text="x" * (3 << 20))
    async with site(reply) as s:
        assert (await s.ask("POST", CHAT, body)).status == 200
        assert s.worker.requests[0].body == body
        assert s.api.asked[0]["body_bytes"] == len(body)


async def test_a_worker_that_takes_no_connection_is_asked_for_anew_once() -> None:
    async with site(reply) as s, site(reply) as other:
        await s.worker.stop()
        s.worker.die(-11)
        granted = s.api.acquire

        async def acquire(model: str, **more: object) -> object:
            if s.api.leases:
                s.api.worker = other.worker
            return await granted(model, **more)  # type: ignore[arg-type]  # passed through

        s.api.acquire = acquire  # type: ignore[method-assign,assignment]  # the second grant is another worker's
        answer = await s.ask("POST", CHAT, chat())
        assert answer.status == 200
        assert [lease.released.is_set() for lease in s.api.leases] == [True, True]
        # It had died, which the router notices by itself.
        assert not any(lease.condemned for lease in s.api.leases)


async def test_who_is_asked_for_anew_is_not_cut_for_the_first_workers_end() -> None:
    options = WebOptions(silence_s=30.0, death_s=SAFETY_S, stalled_client_s=0.02)
    async with site(reply, options) as s, site(reply) as other:
        await s.worker.stop()
        granted, loop, loaded = s.api.acquire, asyncio.get_running_loop(), asyncio.Event()

        async def acquire(model: str, **more: object) -> object:
            if s.api.leases:
                # Its model is loaded again, which takes longer than a client may go without reading.
                loop.call_later(2 * options.stalled_client_s, loaded.set)
                await loaded.wait()
                s.api.worker = other.worker
                return await granted(model, **more)  # type: ignore[arg-type]  # passed through
            lease = await granted(model, **more)  # type: ignore[arg-type]  # passed through

            def die() -> None:
                lease.cut.set_result("worker_died")
                s.worker.die(-9)

            # While the router looks whether the worker that takes no connection has died.
            loop.call_later(0.01, die)
            return lease

        s.api.acquire = acquire  # type: ignore[method-assign,assignment]  # the second grant is another worker's
        answer = await s.ask("POST", CHAT, chat())
        assert answer.status == 200
        assert answer.whole
        assert len(s.api.leases) == 2


async def test_a_worker_that_stays_unreachable_is_a_502() -> None:
    async with site(reply) as s:
        await s.worker.stop()
        answer = await s.ask("POST", CHAT, chat())
        assert answer.status == 502
        assert answer.error["code"] == "worker_died"
        assert len(s.api.leases) == 2
        assert all(lease.condemned and lease.released.is_set() for lease in s.api.leases)


async def test_a_large_answer_goes_on_before_its_end() -> None:
    go_on = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 3000000\r\n\r\n" + b"a" * 2_000_000)
        await go_on.wait()
        await peer.send(b"b" * 1_000_000)

    async with site(script) as s, s.client() as client:
        await client.send("POST", "/v1/embeddings", b'{"model":"embed","input":"x"}')
        answer = await client.answer(lambda a: len(a.body) >= 1_500_000)
        assert answer.headers["content-length"] == "3000000"
        go_on.set()
        await client.more(answer)
        assert answer.whole
        assert bytes(answer.body) == b"a" * 2_000_000 + b"b" * 1_000_000


async def test_a_large_answer_that_breaks_is_cut_not_closed_as_if_whole() -> None:
    async def script(peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await peer.chunk(b"a" * 2_000_000)
        peer.hang_up()

    async with site(script) as s, s.client() as client:
        await client.send("POST", "/v1/embeddings", b'{"model":"embed","input":"x"}')
        try:
            answer = await client.answer()
        except ConnectionError:
            return
        assert not answer.whole


async def test_options_default_to_no_limit_on_the_first_byte() -> None:
    # A long prompt may take many minutes before the first token.
    assert WebOptions().worker_silence_s >= 600
    assert OPTIONS.worker_silence_s == WebOptions().worker_silence_s


@pytest.mark.parametrize("forgets", [False, True])
def test_a_transport_that_forgets_its_marks_gets_piece_by_piece(
    forgets: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CVE-2024-12254: what such a Python is given at once is buffered without bound for a slow client."""
    calls: list[str] = []

    class Transport(asyncio.WriteTransport):
        def write(self, data: object) -> None:
            calls.append("write")

        def writelines(self, list_of_data: object) -> None:
            calls.append("writelines")

    monkeypatch.setattr(respond, "_FORGETS_ITS_MARKS", forgets)
    respond._write_all(Transport(), b"head", b"body")
    assert calls == (["write", "write"] if forgets else ["writelines"])
