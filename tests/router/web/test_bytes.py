"""Streams byte for byte, and what is read of them in passing."""

from __future__ import annotations

import asyncio
import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.web.sse import FirstEvent, Scanner, Usage, usage_in
from tests.router.web.fakes import CHAT, Peer, chat, data_of, events_of, site

AWKWARD = 'data: {"c":"北🙂é\u2028x\u0085y"}\n\n'.encode()
DONE = b"data: [DONE]\n\n"

STREAMS = {
    "awkward text": AWKWARD + DONE,
    "CRLF": b'data: {"a":1}\r\n\r\ndata: [DONE]\r\n\r\n',
    "CR": b'data: {"a":1}\r\rdata: [DONE]\r\r',
    "mixed": b'event: x\rid: 7\r\ndata: {"a":\ndata: 1}\n\r\ndata:[DONE]\n\n',
    "comments": b': ping\n\n: pong\n\nretry: 5\n\ndata: {"a":1}\n\n' + DONE,
    "no final line end": b'data: {"a":1}\n\ndata: [DONE]',
}


@pytest.mark.fault("F28")
@pytest.mark.parametrize("name", STREAMS)
async def test_one_byte_at_a_time_comes_out_as_it_went_in(name: str) -> None:
    async def script(peer: Peer) -> None:
        await peer.begin_stream()
        for i in range(len(STREAMS[name])):
            await peer.chunk(STREAMS[name][i : i + 1])
            await asyncio.sleep(0)
        await peer.end_stream()

    async with site(script) as s:
        answer = await s.ask("POST", CHAT, chat(stream=True))
        assert bytes(answer.body) == STREAMS[name]
        assert answer.whole
        assert answer.headers["content-type"] == "text/event-stream"
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["x-accel-buffering"] == "no"
        assert "content-encoding" not in answer.headers


@pytest.mark.fault("F28")
async def test_an_event_of_five_megabytes_passes() -> None:
    body = b'data: {"x":"' + random.Random(1).randbytes(2_500_000).hex().encode() + b'"}\n\n' + DONE

    async def script(peer: Peer) -> None:
        await peer.begin_stream()
        await peer.chunk(body)
        await peer.end_stream()

    async with site(script) as s:
        answer = await s.ask("POST", CHAT, chat(stream=True), {"Accept-Encoding": "gzip"})
        assert bytes(answer.body) == body


@pytest.mark.fault("F28")
async def test_each_event_goes_on_before_the_next_comes() -> None:
    go_on = asyncio.Semaphore(0)

    async def script(peer: Peer) -> None:
        await peer.begin_stream()
        for i in range(5):
            await peer.chunk(b'data: {"n":%d}\n\n' % i)
            await go_on.acquire()
        await peer.chunk(DONE)
        await peer.end_stream()

    async with site(script) as s, s.client() as client:
        await client.send("POST", CHAT, chat(stream=True))
        answer = await client.answer(lambda a: a.body.count(b"\n\n") == 1)
        for i in range(2, 6):
            go_on.release()
            await client.more(answer, lambda a, i=i: a.body.count(b"\n\n") == i)  # type: ignore[misc]  # a default
        go_on.release()
        await client.more(answer)
        assert [data_of(e)["n"] for e in events_of(answer.body)[:-1]] == [0, 1, 2, 3, 4]


async def test_the_rate_comes_from_the_stream() -> None:
    async def script(peer: Peer) -> None:
        await peer.begin_stream()
        await peer.chunk(b'data: {"choices":[],"usage":{"completion_tokens":12,"prompt_tokens":5},')
        await peer.chunk(b'"timings":{"predicted_n":12,"predicted_ms":3000}}\n\n' + DONE)
        await peer.end_stream()

    async with site(script) as s:
        await s.ask("POST", CHAT, chat(stream=True))
        lease = s.api.leases[0]
        await lease.released.wait()
        assert (lease.tokens, lease.seconds) == (12, 3.0)


LINE_ENDS = st.sampled_from([b"\n", b"\r", b"\r\n"])
LINES = st.lists(st.tuples(st.sampled_from([b"", b"", b"data: x", b": c", b"id: 1"]), LINE_ENDS), max_size=12)


def _boundary(text: bytes) -> bool:
    """Whether a whole event just ended: the plain reading of the rules, line by line."""
    lines = []
    rest = text
    while rest:
        cut = min((i for i in (rest.find(b"\r"), rest.find(b"\n")) if i >= 0), default=-1)
        if cut < 0:
            return False
        lines.append(rest[:cut])
        rest = rest[cut + (2 if rest[cut : cut + 2] == b"\r\n" else 1) :]
    return not lines or (len(lines) > 1 and not lines[-1])


@given(lines=LINES, cuts=st.lists(st.integers(0, 60), max_size=8))
@settings(max_examples=300, deadline=None)
def test_boundaries_do_not_depend_on_fragments(lines: list[tuple[bytes, bytes]], cuts: list[int]) -> None:
    text = b"".join(line + end for line, end in lines)
    scanner = Scanner()
    places = sorted({*(c for c in cuts if c < len(text)), 0, len(text)})
    for start, end in itertools.pairwise(places):
        scanner.feed(text[start:end])
        assert scanner.at_boundary == _boundary(text[:end]), text[:end]


def _ending(*parts: bytes, keep: int = 64 << 10) -> tuple[bool, Usage]:
    scanner = Scanner(keep)
    for part in parts:
        scanner.feed(part)
    ending = scanner.ending()
    return ending.final, ending.usage


@pytest.mark.parametrize(
    ("stream", "final"),
    [
        (b"", False),
        (b": only a comment\n\n", False),
        (b'data: {"a":1}\n\n', False),
        (b'data: {"a":1}\n\ndata: [DONE]\n\n', True),
        (b'data: {"a":"data: [DONE]"}\n\n', False),
        (b'data: {"error":{"message":"x"}}\n\n', True),
        (b'data: {"error":null}\n\n', False),
        (b'event: response.completed\ndata: {"type":"response.completed"}\n\n', True),
        (b'event: response.created\ndata: {"type":"response.created"}\n\n', False),
        (b"data: not json\n\n", False),
    ],
)
def test_how_a_stream_ended(stream: bytes, final: bool) -> None:
    assert _ending(stream)[0] is final
    assert _ending(*(stream[i : i + 1] for i in range(len(stream))))[0] is final


def test_only_the_end_of_a_stream_is_kept() -> None:
    scanner = Scanner(keep=1000)
    for _ in range(1000):
        scanner.feed(b"data: {}\n\n" * 10)
    assert scanner._size < 1200
    scanner.feed(b'data: {"usage":{"completion_tokens":3}}\n\ndata: [DONE]\n\n')
    assert scanner.ending().final
    assert scanner.ending().usage.tokens == 3


def test_an_end_that_was_not_kept_counts_as_one() -> None:
    assert _ending(*([b"x" * 100] * 100), keep=500)[0] is True


@pytest.mark.parametrize(
    ("answer", "usage"),
    [
        (b'{"usage":{"completion_tokens":7,"prompt_tokens":3}}', Usage(7, 3)),
        (b'{"usage":{"input_tokens":3,"output_tokens":7}}', Usage(7, 3)),
        (b'{"response":{"usage":{"input_tokens":3,"output_tokens":7}}}', Usage(7, 3)),
        (
            b'{"timings":{"predicted_n":7,"predicted_ms":500,"prompt_n":1,"prompt_ms":250,"cache_n":2}}',
            Usage(7, 3, 0.5, 0.25, 1),
        ),
        (b'{"usage":{"completion_tokens":-7}}', Usage(0, 0)),
        (b'{"usage":"none"}', Usage()),
        (b"[]", Usage()),
        (b"", Usage()),
        (b"[" * 100_000, Usage()),
    ],
)
def test_what_an_answer_reports(answer: bytes, usage: Usage) -> None:
    assert usage_in(answer) == usage


@pytest.mark.parametrize(
    ("stream", "changed"),
    [
        (b'data: {"a":1}\n\n', b'data: {"x":{"b":2},"a":1}\n\n'),
        (b"data: {}\n\n", b'data: {"x":{"b":2}}\n\n'),
        (b'data:{ "a":1}\r\n\r\n', b'data:{ "x":{"b":2},"a":1}\r\n\r\n'),
        (b': c\n\nevent: e\rdata: {"a":1}\r\r', b': c\n\nevent: e\rdata: {"x":{"b":2},"a":1}\r\r'),
        (b'data: {"a":"\ndata: {"}\n\n', b'data: {"x":{"b":2},"a":"\ndata: {"}\n\n'),
        (b"data: [DONE]\n\n", b"data: [DONE]\n\n"),
        (b'xdata: {"a":1}\n\n', b'xdata: {"a":1}\n\n'),
    ],
)
def test_a_member_is_put_into_the_first_event(stream: bytes, changed: bytes) -> None:
    for size in (1, 3, 1000):
        splice = FirstEvent("x", {"b": 2})
        out = (
            b"".join(splice.feed(stream[i : i + size]) for i in range(0, len(stream), size)) + splice.flush()
        )
        assert out == changed


def test_a_stream_without_an_object_is_not_held_for_ever() -> None:
    splice = FirstEvent("x", 1, limit=100)
    assert splice.feed(b": " + b"c" * 50) == b""
    assert splice.feed(b"c" * 50) == b": " + b"c" * 100
    assert splice.feed(b'\n\ndata: {"a":1}\n\n') == b'\n\ndata: {"a":1}\n\n'
