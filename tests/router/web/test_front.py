"""HTTP as it may come over a socket: what every front must make of it, however it reads requests.

Everything here goes through sockets, byte for byte.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from router.web.calls import PREFIXES
from router.web.options import WebOptions
from tests.router.web.fakes import CHAT, REPLY, SAFETY_S, Answer, Client, Peer, chat, reply, site

HOST = b"Host: localhost\r\n"
LIVE = b"GET /live HTTP/1.1\r\n" + HOST + b"\r\n"
JSON = b"Content-Type: application/json\r\n"
LOAD = b"POST /v1/load HTTP/1.1\r\n" + HOST + JSON
STREAM = b'data: {"n":1}\n\ndata: [DONE]\n\n'


def post(body: bytes, path: str = CHAT, more: bytes = b"", version: bytes = b"1.1") -> bytes:
    head = b"POST %b HTTP/%b\r\n%b%bContent-Length: %d\r\n%b\r\n"
    return head % (path.encode(), version, HOST, JSON, len(body), more) + body


async def both(peer: Peer) -> None:
    """A worker that streams if it is asked to."""
    if msgspec.json.decode(peer.body).get("stream"):
        await peer.begin_stream()
        await peer.chunk(STREAM)
        await peer.end_stream()
    else:
        await peer.answer(REPLY)


async def to_the_end(client: Client) -> bytes:
    """All that comes until the other side closes."""
    async with asyncio.timeout(SAFETY_S):
        return await client.reader.read(-1)


async def answers(client: Client, count: int) -> list[Answer]:
    """That many answers in a row on one connection, byte-exact at their borders."""
    found = []
    async with asyncio.timeout(SAFETY_S):
        for _ in range(count):
            head = await client.reader.readuntil(b"\r\n\r\n")
            answer = Answer()
            answer.feed(head)
            if "content-length" in answer.headers:
                answer.feed(await client.reader.readexactly(int(answer.headers["content-length"])))
            while not answer.whole:
                answer.feed(await client.reader.readuntil(b"\n"))
            found.append(answer)
    return found


NOT_HTTP: dict[str, bytes] = {
    "rubbish": b"\x00\x01\x02\x03\r\n\r\n",
    "a TLS greeting": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(50),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/3.0": b"GET /live HTTP/3.0\r\n" + HOST + b"\r\n",
    "no version": b"GET /live HTTP\r\n" + HOST + b"\r\n",
    "a method in small letters": b"get /live HTTP/1.1\r\n" + HOST + b"\r\n",
    "an unknown method": b"BREW /live HTTP/1.1\r\n" + HOST + b"\r\n",
    "a blank in the target": b"GET /v1/models /x HTTP/1.1\r\n" + HOST + b"\r\n",
    "letters beyond ASCII in the target": "GET /v1/models/é HTTP/1.1\r\n".encode() + HOST + b"\r\n",
    "a blank before the colon": b"GET /live HTTP/1.1\r\nHost : localhost\r\n\r\n",
    "a folded header": b"GET /live HTTP/1.1\r\n" + HOST + b"X: a\r\n b\r\n\r\n",
    "a zero byte in a header": b"GET /live HTTP/1.1\r\n" + HOST + b"X: a\0b\r\n\r\n",
    "a bare CR in a header": b"GET /live HTTP/1.1\r\n" + HOST + b"X: a\rY: b\r\n\r\n",
    "an odd name of a header": b"GET /live HTTP/1.1\r\n" + HOST + b"X(: a\r\n\r\n",
    "a header without a name": b"GET /live HTTP/1.1\r\n" + HOST + b": a\r\n\r\n",
    "a length of +5": LOAD + b"Content-Length: +5\r\n\r\n{}   ",
    "a length of -5": LOAD + b"Content-Length: -5\r\n\r\n{}   ",
    "a length of 0x2": LOAD + b"Content-Length: 0x2\r\n\r\n{}",
    "a length of 2_0": LOAD + b"Content-Length: 2_0\r\n\r\n{}",
    "a length in other digits": LOAD + "Content-Length: ٢\r\n\r\n{}".encode(),
    "a length beyond all": b"POST /v1/load HTTP/1.1\r\n"
    + HOST
    + b"Content-Length: "
    + b"9" * 30
    + b"\r\n\r\n",
    "a list of lengths": LOAD + b"Content-Length: 2, 2\r\n\r\n{}",
    "two lengths": post(b"{}", more=b"Content-Length: 5\r\n"),
    "a length and chunks": post(b"0\r\n\r\n", more=b"Transfer-Encoding: chunked\r\n"),
    "an unknown coding": b"POST /v1/load HTTP/1.1\r\n"
    + HOST
    + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "no chunks in the end": LOAD + b"Transfer-Encoding: gzip\r\n\r\n{}",
    "a chunk of no size": LOAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "a chunk of -5": LOAD + b"Transfer-Encoding: chunked\r\n\r\n-5\r\na",
    "a chunk beyond all": LOAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 20 + b"\r\n",
    "a chunk longer than it says": LOAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}{}\r\n0\r\n\r\n",
}


@pytest.mark.fault("F04")
@pytest.mark.parametrize("name", NOT_HTTP)
async def test_what_is_no_http_is_a_400_and_ends_the_connection(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with site(reply) as s:
        async with s.client() as client:
            client.writer.write(NOT_HTTP[name])
            # What follows must not be taken for a request of its own.
            client.writer.write(LIVE)
            raw = await to_the_end(client)
        answer = Answer()
        answer.feed(raw)
        assert answer.status == 400, raw
        assert answer.error["type"] == "invalid_request_error"
        assert raw.count(b"HTTP/1.") == 1
        assert not s.api.calls
        assert not s.api.asked
        assert (await s.ask("GET", "/live")).status == 200
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.fault("F04")
@pytest.mark.parametrize(
    "head",
    [
        b"X-Long: " + b"secret-" * 2000 + b"\r\n",
        b"Cookie: session=secret-" + b"a" * 100_000 + b"\r\n",
        b"X-secret-" + b"a" * 20_000 + b": 1\r\n",
        b"".join(b"X-%d: secret-\r\n" % i for i in range(20_000)),
    ],
    ids=["a long value", "a very long value", "a long name", "many"],
)
async def test_headers_that_are_too_large_are_refused_and_not_told(
    head: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    async with site(reply) as s:
        async with s.client() as client:
            client.writer.write(b"GET /live HTTP/1.1\r\n" + HOST + head + b"\r\n")
            try:
                raw = await to_the_end(client)
            except ConnectionError:
                raw = b""  # It was closed before all of it had been read.
        if raw:
            answer = Answer()
            answer.feed(raw)
            assert answer.status in (400, 431)
            assert answer.error["message"]
        assert (await s.ask("GET", "/live")).status == 200
    assert b"secret-" not in raw
    assert "secret-" not in caplog.text


@pytest.mark.fault("F04")
@pytest.mark.parametrize(
    "line",
    [
        b"GET http://[::1/?key=secret-1 HTTP/1.1",
        b"GET *?key=secret-1 HTTP/1.1",
        b"GET http://localhost:port/secret-1 HTTP/1.1",
        b"GET http:///secret-1 HTTP/1.1",
        b"GET /live?key=secret-1 HTTX/1.1",
        b"secret-1 /live HTTP/1.1",
        b"GET /secret-1\x80 HTTP/1.1",
    ],
)
async def test_a_first_line_that_cannot_be_read_is_not_told(
    line: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    async with site(reply) as s, s.client() as client:
        client.writer.write(line + b"\r\n" + HOST + b"\r\n")
        raw = await to_the_end(client)
    assert b" 400 " in raw
    assert b"secret-1" not in raw
    assert "secret-1" not in caplog.text
    # Which versions of what answer here helps only who looks for a hole.
    assert b"aiohttp" not in raw


async def test_too_many_headers_and_https_are_told_as_what_they_are() -> None:
    many = b"".join(b"X-%d: 1\r\n" % number for number in range(200))
    async with site(reply) as s:
        for data, status, words in (
            (b"GET /live HTTP/1.1\r\n" + HOST + many + b"\r\n", 431, "too many headers"),
            (b"\x16\x03\x01\x00\xc8\x01\x00\x00\xc4\x03\x03" + b"x" * 200, 400, "http://"),
        ):
            async with s.client() as client:
                answer = await client.raw(data)
                assert answer.status == status
                assert words in answer.error["message"]


async def test_a_path_that_is_too_long() -> None:
    async with site(reply) as s, s.client() as client:
        client.writer.write(b"GET /v1/models/" + b"a" * 100_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n")
        try:
            raw = await to_the_end(client)
        except ConnectionError:
            return  # It was closed before all of it had been read.
        answer = Answer()
        answer.feed(raw)
        assert answer.status in (400, 414, 431)


ODD_PATHS = {
    "/v1/models/%zz": 404,
    "/v1/models/%": 404,
    "/v1/models/%ff%fe": 404,
    "/v1/models/%00": 404,
    "/v1/models/a%0d%0aX-Evil:%201": 404,
    "/v1/models/%c0%ae%c0%ae/": 404,
    "/v1/models/..%2f..%2finternal%2fconfig": 404,
    "/v1/models/../../internal/config": 404,
    "/v1/../internal/config": 404,
    "//v1/models": 404,
    "/v1//models": 404,
    "/v1/models/": 404,
    "/V1/models": 404,
    "/v2/models": 404,
    "/v1": 404,
    "/v1/models;x=1": 404,
    "/v1/models/alpha?model=nope": 200,
    "/v1/models/alpha?": 200,
    "/v1/models/%61lpha": 200,
    "/v1/models?%zz=%ff&a=b&&=;%": 200,
    "/v1/models#alpha": 200,
}


@pytest.mark.fault("F04")
@pytest.mark.parametrize("path", ODD_PATHS)
async def test_odd_paths(path: str) -> None:
    async with site(reply) as s:
        answer = await s.ask("GET", path)
        assert answer.status == ODD_PATHS[path]
        assert "x-evil" not in answer.headers
        if answer.status == 404:
            assert answer.error["code"] in ("model_not_found", "unknown_path")


@pytest.mark.parametrize("path", [CHAT + "/", "/" + CHAT, "/v1/chat//completions", "/chat/completions"])
async def test_a_path_that_is_nearly_right_is_a_404_that_says_where_the_api_is(path: str) -> None:
    async with site(reply) as s:
        answer = await s.ask("POST", path, chat())
        assert answer.status == 404
        assert "/v1" in answer.error["message"]
        assert not s.api.asked


async def test_a_query_does_not_choose_the_model() -> None:
    async with site(reply) as s:
        assert (await s.ask("POST", CHAT + "?model=beta&stream=true", chat())).status == 200
        assert s.api.asked[0]["model"] == "alpha"
        assert s.worker.requests[0].path == CHAT


@pytest.mark.parametrize("pieces", ["at once", "one by one"])
async def test_pipelined_requests_are_answered_in_order(pieces: str) -> None:
    wanted: list[tuple[bytes, int, Callable[[Answer], bool]]] = [
        (post(chat()), 200, lambda a: bytes(a.body) == REPLY),
        (LIVE, 200, lambda a: a.json() == {"status": "ok"}),
        (post(chat(stream=True)), 200, lambda a: bytes(a.body) == STREAM),
        (post(chat(stream=True), more=b"X-A: 1\r\nX-A: 2\r\n"), 200, lambda a: bytes(a.body) == STREAM),
        (post(b"{x"), 400, lambda a: bool(a.error)),
        (post(b"{}", "/nope"), 404, lambda a: a.error["code"] == "unknown_path"),
        (post(b"{}", "/v1/models"), 405, lambda a: bool(a.error)),
        (post(chat(), CHAT + "?x=1"), 200, lambda a: bytes(a.body) == REPLY),
        (post(chat(model="nope")), 404, lambda a: a.error["code"] == "model_not_found"),
        (b"GET /live HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\n\r\nabcde", 200, lambda a: a.whole),
        (post(chat()), 200, lambda a: bytes(a.body) == REPLY),
    ]
    async with site(both) as s, s.client() as client:
        if pieces == "at once":
            client.writer.write(b"".join(request for request, _, _ in wanted))
            found = await answers(client, len(wanted))
        else:
            found = []
            for request, _, _ in wanted:
                client.writer.write(request)
                found += await answers(client, 1)
        for (request, status, right), answer in zip(wanted, found, strict=True):
            assert answer.status == status, request[:60]
            assert right(answer), request[:60]


async def test_many_pipelined_requests_are_all_answered() -> None:
    async with site(both) as s, s.client() as client:
        client.writer.write(b"".join(post(chat(stream=i % 2 == 0)) for i in range(200)))
        found = await answers(client, 200)
        assert [bytes(a.body) for a in found] == [STREAM, REPLY] * 100
        assert all(lease.released.is_set() for lease in s.api.leases)


async def test_http_1_0_is_answered_and_closed() -> None:
    async with site(both) as s:
        for request in (
            post(chat(), version=b"1.0"),
            post(chat(stream=True), version=b"1.0"),
            b"GET /live HTTP/1.0\r\n\r\n",
        ):
            async with s.client() as client:
                client.writer.write(request)
                raw = await to_the_end(client)
            head, _, body = raw.partition(b"\r\n\r\n")
            assert b" 200 " in head.split(b"\r\n")[0]
            assert b"chunked" not in head.lower()
            assert body in (REPLY, STREAM, b'{"status":"ok"}')


async def test_a_connection_is_closed_if_its_client_wants_it_so() -> None:
    async with site(both) as s:
        for body in (chat(), chat(stream=True), b"{x"):
            async with s.client() as client:
                client.writer.write(post(body, more=b"Connection: close\r\n"))
                raw = await to_the_end(client)
                answer = Answer()
                answer.feed(raw)
                assert answer.whole
                assert answer.headers["connection"].lower() == "close"


@pytest.mark.parametrize("trailer", [b"", b"X-Sum: 1\r\n", b"X-A: 1\r\nX-B: 2\r\n"])
async def test_chunks_with_extensions_and_trailers(trailer: bytes) -> None:
    body = chat()
    chunks = b"".join(b"%X;a=b\r\n%b\r\n" % (len(body[i : i + 7]), body[i : i + 7]) for i in range(0, 200, 7))
    chunks = chunks.replace(b"0;a=b\r\n\r\n", b"")
    async with site(reply) as s, s.client() as client:
        head = (
            b"POST " + CHAT.encode() + b" HTTP/1.1\r\n" + HOST + JSON + b"Transfer-Encoding: chunked\r\n\r\n"
        )
        client.writer.write(head + chunks + b"0\r\n" + trailer + b"\r\n" + LIVE)
        first, second = await answers(client, 2)
        assert (first.status, second.status) == (200, 200)
        assert s.worker.requests[0].body == body
        assert "x-sum" not in s.worker.requests[0].headers


@pytest.mark.parametrize("expect", ["100-continue", "100-Continue", "200-maybe"])
async def test_a_client_that_expects_something_is_answered(expect: str) -> None:
    async with site(reply) as s, s.client() as client:
        client.writer.write(post(chat(), more=f"Expect: {expect}\r\n".encode()))
        answer = await client.answer()
        assert answer.status in (200, 417)
        assert set(answer.interim) <= {100}
        assert (await s.ask("GET", "/live")).status == 200


async def test_a_client_that_ends_its_side_is_one_that_leaves(caplog: pytest.LogCaptureFixture) -> None:
    """Closing cannot be told from that, and a closed window must stop the work."""
    left = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.left()
        left.set()

    async with site(script) as s, s.client() as client:
        await client.send("POST", CHAT, chat(stream=True))
        await s.worker.asked.wait()
        client.writer.write_eof()
        async with asyncio.timeout(SAFETY_S):
            await left.wait()
            await s.api.leases[0].released.wait()
    assert not [record for record in caplog.records if record.exc_info]


FORMS: dict[str, Callable[[str, bytes, bytes], list[bytes]]] = {
    "plain": lambda path, body, more: [post(body, path, more)],
    "in two pieces": lambda path, body, more: [post(body, path, more)[:-2], post(body, path, more)[-2:]],
    "with its head torn": lambda path, body, more: [post(body, path, more)[:30], post(body, path, more)[30:]],
    "to be closed": lambda path, body, more: [post(body, path, more + b"Connection: keep-alive, x-no\r\n")],
    "with a query": lambda path, body, more: [post(body, path + "?a=b", more)],
    "with its host in the target": lambda path, body, more: [post(body, "http://localhost" + path, more)],
    "after a header that is repeated": lambda path, body, more: [
        post(body, path, more + b"X-A: 1\r\nX-A: 1\r\n")
    ],
    "in a chunk": lambda path, body, more: [
        b"POST %b HTTP/1.1\r\n%b%b%bTransfer-Encoding: chunked\r\n\r\n" % (path.encode(), HOST, JSON, more)
        + (b"%x\r\n%b\r\n" % (len(body), body) if body else b"")
        + b"0\r\n\r\n"
    ],
}


def _asked() -> Iterator[tuple[str, bytes, bytes]]:
    bodies = [
        chat(),
        chat(stream=True),
        chat(model="a"),
        chat(model="auto"),
        chat(model="auto", stream=True, route_trace=True),
        chat(model="nope"),
        chat(model="embed"),
        chat(keep_alive="soon"),
        chat(keep_alive="5m"),
        chat(text="é🙂" * 50),
        b"",
        b"{x",
        b"[]",
        b'{"model":"alpha"}',
        b'{"model":"alpha","messages":[{"role":"user","content":"\xe9"}]}',
        b'{"model":"auto","messages":[{"role":"user"}],"x":1e400}',
    ]
    yield from ((CHAT, body, b"") for body in bodies)
    for prefix in PREFIXES:
        yield f"{prefix}/completions", b'{"model":"alpha","prompt":"x"}', b""
        yield f"{prefix}/embeddings", b'{"model":"embed","input":""}', b""
    for more in (
        b"Origin: https://evil.example\r\n",
        b"Origin: http://localhost\r\n",
        b"Sec-Fetch-Site: cross-site\r\n",
        b"Authorization: Bearer x\r\n",
        b"Content-Encoding: br\r\n",
        b"Cookie: " + b"a" * 5000 + b"\r\n",
        b"X-Forwarded-Host: evil.example\r\nX-Real-IP: 127.0.0.1\r\n",
    ):
        yield CHAT, chat(), more
    yield CHAT, chat(text="x" * 100_000), b""
    yield "/v1/load", b'{"model":"alpha"}', b""
    yield "/internal/set", b'{"nope":1}', b""
    yield "/nope", b"{}", b""


async def test_a_request_means_the_same_in_every_form() -> None:
    """Two ways to read one request would be two sets of checks."""
    async with site(both) as s:
        for path, body, more in _asked():
            seen: dict[str, tuple[int, bytes, dict[str, str], bytes]] = {}
            for name, form in FORMS.items():
                s.worker.requests.clear()
                async with s.client() as client:
                    for piece in form(path, body, more):
                        client.writer.write(piece)
                        await client.writer.drain()
                        await asyncio.sleep(0)
                    answer = await client.answer()
                headers = {k: v for k, v in answer.headers.items() if k not in ("date", "connection")}
                sent = s.worker.requests[0].body if s.worker.requests else b""
                seen[name] = (answer.status, bytes(answer.body), headers, sent)
                assert answer.status, (path, body[:80], more, name)
                assert answer.status < 500, (path, body[:80], more, name)
            for name, found in seen.items():
                assert found == seen["plain"], (path, body[:80], more, name)


async def test_a_connection_that_is_torn_anywhere_leaves_nothing(caplog: pytest.LogCaptureFixture) -> None:
    whole = post(chat(stream=True))
    rng = random.Random(3)
    async with site(both) as s:
        for cut in [*range(0, 90, 9), *sorted(rng.sample(range(90, len(whole)), 10))]:
            async with s.client() as client:
                client.writer.write(whole[:cut])
                await client.writer.drain()
        assert (await s.ask("POST", CHAT, chat())).status == 200
        assert len(s.api.asked) == 1
        assert s.endpoint._parts.bodies.held == 0
    assert not [record for record in caplog.records if record.exc_info]


def _described(document: dict[str, Any]) -> Iterator[tuple[str, set[str]]]:
    for path, operations in document["paths"].items():
        methods = {method.upper() for method in operations}
        rest = path.removeprefix("/v1")
        for prefix in PREFIXES if path != rest else ("",):
            yield f"{prefix}{rest}", methods


async def test_every_path_has_its_prefixes_and_knows_head_and_options() -> None:
    async with site(reply, WebOptions()) as s:
        document = (await s.ask("GET", "/openapi.json")).json()
        looked: set[str] = set()
        async with s.client() as client:
            for path, methods in _described(document):
                known = path.format(id="alpha", name="auto", digest="sha256:" + "0" * 64)
                told = await client.ask("OPTIONS", known)
                allowed = {*methods, "OPTIONS", *(["HEAD"] if "GET" in methods else [])}
                assert told.status == 204, known
                assert not told.body
                assert set(told.headers["allow"].split(", ")) >= allowed, known
                head = await client.ask("HEAD", known)
                statuses = (200,) if "GET" in methods else (200, 404) if "HEAD" in methods else (405,)
                assert head.status in statuses, known
                wrong = await s.ask("PUT", known, b"{}")
                assert wrong.status == 405, known
                assert wrong.headers["content-type"].startswith("application/json")
                looked.add(known)
        assert {"/v1/models", "/api/v1/models", "/v0/models", "/api/v0/models", CHAT} <= looked
        everything = await s.ask("OPTIONS", "*")
        assert everything.status == 204


SLOW = WebOptions(silence_s=30.0, stalled_client_s=0.2, upload_stall_s=0.05)


@pytest.mark.parametrize("pieces", [1, 40])
async def test_a_client_that_sends_a_byte_at_a_time_is_served(pieces: int) -> None:
    """However it is torn, a request that keeps coming is read."""
    whole = post(chat())
    size = max(1, len(whole) // pieces) if pieces > 1 else 1
    async with site(reply) as s, s.client() as client:
        for start in range(0, len(whole), size):
            client.writer.write(whole[start : start + size])
            await client.writer.drain()
            await asyncio.sleep(0)
        answer = await client.answer()
        assert answer.status == 200
        assert bytes(answer.body) == REPLY


async def test_bodies_that_stall_are_given_up_and_hold_nothing() -> None:
    async with site(reply, SLOW) as s:
        stalled = [s.client() for _ in range(20)]
        for client in stalled:
            await client.__aenter__()
            await client.send(
                "POST", CHAT, None, {"Content-Length": "1000000", "Content-Type": "application/json"}
            )
            client.writer.write(b"{")
        for client in stalled:
            answer = await client.answer()
            assert (answer.status, answer.error["code"]) == (408, "upload_stalled")
            client.leave()
        assert s.endpoint._parts.bodies.held == 0
        assert not s.api.asked


async def test_silent_connections_do_not_keep_anyone_out() -> None:
    async with site(reply) as s:
        silent = [s.client() for _ in range(200)]
        for client, start in zip(
            silent, itertools.cycle((b"", b"P", b"GET /live HTTP/1.1\r\nHo")), strict=False
        ):
            await client.__aenter__()
            client.writer.write(start)
        assert (await s.ask("POST", CHAT, chat())).status == 200
        for client in silent:
            client.leave()
