"""Requests in plain form are read without aiohttp, and mean the same as if they were read by it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from multidict import CIMultiDict

from router.web import connection, respond
from router.web.notes import NOTES
from router.web.plain import MAX_BODY, MAX_HEAD, PlainRequest, read_head
from tests.router.web.fakes import CHAT, REPLY, SAFETY_S, Answer, Peer, Site, chat, reply, site

LINE = b"POST /v1/chat/completions HTTP/1.1"
FIELDS = (b"Host: localhost", b"Content-Type: application/json", b"Content-Length: 12")


def head(*more: bytes, fields: tuple[bytes, ...] = FIELDS) -> bytes:
    return b"\r\n".join([LINE, *fields, *more])


def test_a_head_in_plain_form() -> None:
    found = read_head(head(b"X-Thing:  a b ", b"x-empty:", b"Connection: Keep-Alive"))
    assert found is not None
    assert (found.target, found.length) == (LINE, 12)
    assert found.headers.get("HOST") == "localhost"
    assert found.headers.get("x-thing") == "a b"
    assert found.headers.getall("X-Empty") == [""]
    assert found.headers.getall("X-None", []) == []
    assert "content-type" in found.headers
    assert (b"X-Thing", b"a b") in found.raw_headers


@pytest.mark.fault("F18")
@pytest.mark.parametrize(
    "more",
    [
        b"Content-Length: 12",
        b"content-length: 5",
        b"Transfer-Encoding: chunked",
        b"transfer-encoding: identity",
        b"Host: evil.example",
        b"X-A: 1\r\nx-a: 2",
        b"X-A: 1\r\n folded",
        b"X-A: 1\r\n\tfolded",
        b"X-A : 1",
        b" X-A: 1",
        b"X-A",
        b": 1",
        b"X(A): 1",
        b"X-A: a\rX-B: b",
        b"X-A: a\nX-B: b",
        b"X-A: a\n\rX-B: b",
        b"X-A: \x00",
        b"X-A: \x7f",
        b"X-A: a\tb",
        "X-A: é".encode(),
        b"Expect: 100-continue",
        b"Upgrade: h2c",
        b"Connection: close",
        b"Connection: keep-alive, X-A",
        b"Trailer: X-A",
        b"\r\n".join(b"X-%d: 1" % number for number in range(200)),
    ],
)
def test_a_head_with_anything_odd_is_not_taken(more: bytes) -> None:
    assert read_head(head(more)) is None


@pytest.mark.parametrize(
    "length", [b"", b"+1", b"-1", b"1_0", b"0x1", b"1 2", b"1,1", b"9999999", b"1.0", "²".encode()]
)
def test_an_odd_length_is_not_taken(length: bytes) -> None:
    assert read_head(head(fields=(*FIELDS[:2], b"Content-Length: " + length))) is None


@pytest.mark.parametrize("missing", [0, 2])
def test_a_head_without_a_host_or_a_length_is_not_taken(missing: int) -> None:
    assert read_head(head(fields=FIELDS[:missing] + FIELDS[missing + 1 :])) is None


def test_the_next_head_that_differs_in_the_length_only_is_known() -> None:
    first = read_head(head(b"X-Number: 12"))
    assert first is not None
    again = first.again(head(b"X-Number: 12").replace(b"Length: 12", b"Length: 345"))
    assert again is not None
    assert again.length == 345
    for other in (
        head(b"X-Number: 13"),
        head(b"X-Number: 12").replace(b"Length: 12", b"Length: 3\r\nX-A: 1"),
        head(b"X-Number: 12").replace(b"Length: 12", b"Length: "),
        head(b"X-Number: 12").replace(b"Length: 12", b"Length: 1234567"),
        head(b"X-Number: 12").replace(b"Length: 12", b"Length: +1"),
        head(),
    ):
        assert first.again(other) is None


# The two ways beside each other


@asynccontextmanager
async def noting(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Site, list[bool]]]:
    """A site, and for each request that was answered whether it was read here."""
    read: list[bool] = []
    make = connection.PlainRequest

    def answer(*given: Any) -> PlainRequest:
        read.append(True)
        return make(*given)

    def handed(self: connection.Connection, data: bytes) -> None:
        read.append(False)
        given_over(self, data)

    given_over = connection.Connection._hand_over
    monkeypatch.setattr(connection, "PlainRequest", answer)
    monkeypatch.setattr(connection.Connection, "_hand_over", handed)
    async with site(reply) as s:
        yield s, read


def wire(body: bytes, *fields: bytes, path: str = CHAT) -> bytes:
    lines = [b"POST %b HTTP/1.1" % path.encode(), *fields, b"Content-Length: %d" % len(body)]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def told(answer: Answer) -> tuple[object, ...]:
    error = answer.error if answer.status >= 400 else {}
    names = ("content-type", "access-control-allow-origin", "www-authenticate", "retry-after", "connection")
    body = b"" if error else bytes(answer.body)
    return answer.status, error, body, [answer.headers.get(name) for name in names], "date" in answer.headers


OURS, JSON = b"Host: localhost", b"Content-Type: application/json"
SAME = {
    "right": wire(chat(), OURS, JSON),
    "no content type": wire(chat(), OURS),
    "a form": wire(chat(), OURS, b"Content-Type: multipart/form-data; boundary=x"),
    "another charset": wire(chat(), OURS, b"Content-Type: application/json; charset=latin-1"),
    "another host": wire(chat(), b"Host: evil.example", JSON),
    "a host that is none": wire(chat(), b"Host: a b", JSON),
    "no host's name": wire(chat(), b"Host:", JSON),
    "another origin": wire(chat(), OURS, JSON, b"Origin: https://evil.example"),
    "its own origin": wire(chat(), OURS, JSON, b"Origin: http://localhost"),
    "no origin": wire(chat(), OURS, JSON, b"Origin: null"),
    "from another site": wire(chat(), OURS, JSON, b"Sec-Fetch-Site: cross-site"),
    "an unknown coding": wire(chat(), OURS, JSON, b"Content-Encoding: br"),
    "not compressed": wire(chat(), OURS, JSON, b"Content-Encoding: gzip"),
    "no body": wire(b"", OURS, JSON),
    "no JSON": wire(b"{", OURS, JSON),
    "no object": wire(b"[]", OURS, JSON),
    "not UTF-8": wire(b'{"model":"\xff"}', OURS, JSON),
    "an unknown model": wire(chat(model="nope"), OURS, JSON),
    "no model": wire(b'{"messages":[{}]}', OURS, JSON),
    "another kind of model": wire(chat(), OURS, JSON, path="/v1/embeddings"),
}


@pytest.mark.parametrize("name", SAME)
async def test_both_ways_answer_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    request = SAME[name]
    # The same request, written so that it is no longer plain: a header that has no meaning comes twice.
    odd = request.replace(b"\r\nContent-Length", b"\r\nX-Twice: 1\r\nX-Twice: 2\r\nContent-Length", 1)
    async with noting(monkeypatch) as (s, read):
        async with s.client() as client:
            plainly = await client.raw(request)
        async with s.client() as client:
            by_aiohttp = await client.raw(odd)
        assert read == [True, False]
        assert told(plainly) == told(by_aiohttp)
        assert plainly.status in (200, 400, 403, 404, 415)


TARGETS = [
    "http://localhost/v1/chat/completions",
    "http://evil.example/v1/chat/completions",
    "//localhost/v1/chat/completions",
    "/v1/chat/%63ompletions",
    "/v1/chat/completions?x=1",
    "/v1/chat/completions#x",
    "/v1/chat/completions/",
    "/v1/../v1/chat/completions",
    "/v1/chat/completions%0d%0aX-A:1",
    "/V1/chat/completions",
    "*",
]


@pytest.mark.fault("F18")
@pytest.mark.parametrize("target", TARGETS)
async def test_other_spellings_of_a_path_are_read_by_aiohttp(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with noting(monkeypatch) as (s, read):
        async with s.client() as client:
            await client.raw(wire(chat(), OURS, JSON, path=target))
        assert read == [False]


@pytest.mark.parametrize("cut", [1, 20, 60, -1])
async def test_a_request_that_dawdles_is_read_by_aiohttp(cut: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_PATIENCE_S", 0.02)
    request = wire(chat(), OURS, JSON)
    handed = asyncio.Event()
    async with noting(monkeypatch) as (s, read):
        note = connection.Connection._hand_over

        def hand_over(self: connection.Connection, data: bytes) -> None:
            note(self, data)
            handed.set()

        monkeypatch.setattr(connection.Connection, "_hand_over", hand_over)
        async with s.client() as client:
            client.writer.write(request[:cut])
            async with asyncio.timeout(SAFETY_S):
                await handed.wait()
            answer = await client.raw(request[cut:])
        assert bytes(answer.body) == REPLY
        assert read == [False]


@pytest.mark.parametrize("cuts", [(6,), (40,), (-1,), (100, 150), tuple(range(10, 200, 10))])
async def test_a_request_that_comes_in_pieces(cuts: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_PATIENCE_S", SAFETY_S)
    request = wire(chat(), OURS, JSON)
    async with noting(monkeypatch) as (s, read):
        async with s.client() as client:
            start = 0
            for cut in (*cuts, len(request)):
                end = cut if cut > 0 else len(request) + cut
                client.writer.write(request[start:end])
                await client.writer.drain()
                await asyncio.sleep(0)
                start = end
            assert bytes((await client.answer()).body) == REPLY
        assert read == [True]


async def test_large_heads_and_bodies_are_read_by_aiohttp(monkeypatch: pytest.MonkeyPatch) -> None:
    async with noting(monkeypatch) as (s, read):
        async with s.client() as client:
            body = chat(text="x" * MAX_BODY)
            assert (await client.raw(wire(body, OURS, JSON))).status == 200
        async with s.client() as client:
            await client.raw(wire(chat(), OURS, JSON, b"X-A: " + b"a" * MAX_HEAD))
        assert read == [False, False]


async def test_a_connection_comes_back_from_aiohttp_after_a_request_without_a_body(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with noting(monkeypatch) as (s, read), s.client() as client:
        for _ in range(2):
            assert (await client.raw(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")).status == 200
            assert (await client.raw(wire(chat(), OURS, JSON))).status == 200
        # After one with a body nobody knows here where it ended.
        assert (await client.raw(wire(b"{}", OURS, JSON, path="/internal/set"))).status == 200
        assert (await client.raw(wire(chat(), OURS, JSON))).status == 200
        assert read == [False, True, False, True, False]


async def test_what_is_pipelined_waits_without_bound_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one request is answered, no more than about another one's worth is read ahead."""
    go_on = asyncio.Event()

    async def script(peer: Peer) -> None:
        await go_on.wait()
        await reply(peer)

    made: list[connection.Connection] = []
    paused = asyncio.Event()
    begin = connection.Connection.connection_made

    def connection_made(self: connection.Connection, transport: asyncio.BaseTransport) -> None:
        made.append(self)
        begin(self, transport)

    def pause(self: connection.Connection) -> None:
        hold(self)
        paused.set()

    hold = connection.Connection._pause_reading_for_buffer
    monkeypatch.setattr(connection.Connection, "_pause_reading_for_buffer", pause)

    monkeypatch.setattr(connection.Connection, "connection_made", connection_made)
    request = wire(chat(), OURS, JSON)
    many = 4_000_000 // len(request)
    async with site(script) as s, s.client() as client:
        client.writer.write(request * many)
        await s.worker.asked.wait()
        async with asyncio.timeout(SAFETY_S):
            await paused.wait()
        assert len(made[0]._ahead) < 2_000_000
        go_on.set()
        async with asyncio.timeout(SAFETY_S):
            await client.reader.readuntil(REPLY + b"HTTP/1.1 200")


def test_no_header_of_an_answer_breaks_its_line() -> None:
    class Quiet:
        transport = None

    request = PlainRequest(Quiet(), CHAT, read_head(head()), b"")  # type: ignore[arg-type]  # enough of one
    assert request[NOTES].origin == ""
    for value in ("a\r\nX-Evil: 1", "a\nb", "a\rb", "a\0b"):
        with pytest.raises(ValueError, match="line end"):
            respond._head(request, 200, CIMultiDict({"X-A": value}), closes=False, length=0)
