"""The event stream."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import msgspec

from router.snapshot import FeedEntry
from router.web.options import WebOptions
from tests.router.web.fakes import SAFETY_S, Answer, Site, reply, site, snapshot

QUICK = WebOptions(snapshots_s=0.0, keep_alive_s=30.0, stalled_client_s=0.1)


def _parsed(answer: Answer) -> list[tuple[str, int | None, Any]]:
    found = []
    for block in bytes(answer.body).split(b"\n\n")[:-1]:
        fields = dict(line.split(b": ", 1) for line in block.split(b"\n") if not line.startswith(b":"))
        if b"event" in fields:
            number = int(fields[b"id"]) if b"id" in fields else None
            found.append((fields[b"event"].decode(), number, msgspec.json.decode(fields[b"data"])))
    return found


def _ids(answer: Answer) -> list[int]:
    return [data["id"] for name, _, data in _parsed(answer) if name == "feed"]


def _numbers(answer: Answer) -> list[int]:
    """What the events are numbered by, for `Last-Event-ID`."""
    return [number for name, number, _ in _parsed(answer) if name == "feed" and number is not None]


def _generations(answer: Answer) -> list[int]:
    return [data["generation"] for name, _, data in _parsed(answer) if name == "snapshot"]


def _tell(s: Site, number: int) -> None:
    s.api.feed.append(FeedEntry(number, 1.0, "loaded", f"Entry {number}."))
    s.api.publish(snapshot(s.api.snapshot.generation + 1, feed=tuple(s.api.feed)))


async def test_snapshots_and_feed_entries_come_as_they_happen() -> None:
    async with site(reply, QUICK) as s, s.client() as client:
        await client.send("GET", "/v1/events")
        answer = await client.answer(lambda a: _generations(a) == [1])
        assert answer.headers["content-type"] == "text/event-stream"
        _tell(s, 1)
        await client.more(answer, lambda a: _ids(a) == [1] and _generations(a) == [1, 2])
        assert next(data for name, _, data in _parsed(answer) if name == "feed")["message"] == "Entry 1."
        assert all(data["feed"] == [] for name, _, data in _parsed(answer) if name == "snapshot")


async def test_the_feed_resumes_after_the_last_id() -> None:
    async with site(reply, QUICK) as s:
        for number in range(1, 6):
            _tell(s, number)
        for given, expected in (
            (None, [1, 2, 3, 4, 5]),
            ("3", [4, 5]),
            ("5", []),
            ("99", [1, 2, 3, 4, 5]),  # From an earlier run.
            ("x", [1, 2, 3, 4, 5]),
            ("-1", [1, 2, 3, 4, 5]),
        ):
            async with s.client() as client:
                await client.send("GET", "/api/v1/events", None, {"Last-Event-ID": given} if given else {})
                answer = await client.answer(lambda a: bool(_generations(a)))
                assert _ids(answer) == expected, given


async def _told_since(s: Site, number: int | None) -> Answer:
    headers = {} if number is None else {"Last-Event-ID": str(number)}
    async with s.client() as client:
        await client.send("GET", "/v1/events", None, headers)
        return await client.answer(lambda a: bool(_generations(a)))


async def test_who_comes_back_after_a_restart_misses_nothing_of_the_new_run() -> None:
    async with site(reply, QUICK) as s:
        for number in (1, 2, 3):
            _tell(s, number)
        seen = _numbers(await _told_since(s, None))
        assert _ids(await _told_since(s, seen[1])) == [3]
        assert _ids(await _told_since(s, seen[2])) == []
    async with site(reply, QUICK) as s:
        for number in range(1, 6):
            _tell(s, number)
        again = await _told_since(s, seen[2])
        assert _ids(again) == [1, 2, 3, 4, 5]
        assert _numbers(again)[0] > seen[2]


async def test_snapshots_in_quick_succession_are_sent_as_the_newest() -> None:
    async with site(reply, WebOptions(snapshots_s=0.05)) as s, s.client() as client:
        await client.send("GET", "/v1/events")
        answer = await client.answer(lambda a: _generations(a) == [1])
        for generation in range(2, 1002):
            s.api.publish(snapshot(generation))
        await client.more(answer, lambda a: _generations(a)[-1] == 1001)
        assert len(_generations(answer)) <= 3


async def test_there_are_only_so_many_subscribers() -> None:
    async with site(reply, WebOptions(max_subscribers=2)) as s:
        async with s.client() as one, s.client() as two:
            for client in (one, two):
                await client.send("GET", "/v1/events")
                await client.answer(lambda a: bool(_generations(a)))
            answer = await s.ask("GET", "/v1/events")
            assert answer.status == 503
            assert answer.error["code"] == "too_many_subscribers"
            assert answer.headers["retry-after"]
            assert s.api.subscriptions == 1
        async with asyncio.timeout(SAFETY_S):
            await s.api.unsubscribed.wait()
        async with s.client() as client:
            await client.send("GET", "/v1/events")
            assert (await client.answer(lambda a: bool(_generations(a)))).status == 200


async def test_a_quiet_stream_gets_comments() -> None:
    async with site(reply, WebOptions(keep_alive_s=0.01)) as s, s.client() as client:
        await client.send("GET", "/v1/events")
        answer = await client.answer(lambda a: a.body.count(b": keep-alive") >= 3)
        assert _generations(answer) == [1]


async def test_a_reader_that_sleeps_is_owed_the_newest_only() -> None:
    wide = {"settings": {"filler": "x" * 200_000}}
    async with site(reply, QUICK) as s, s.client() as client:
        client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
        await client.send("GET", "/v1/events")
        answer = await client.answer(lambda a: bool(_generations(a)))
        last = 2000
        for generation in range(2, last + 1):
            s.api.publish(snapshot(generation, **wide))
            await asyncio.sleep(0)
        await client.more(answer, lambda a: b'"generation":2000,' in a.body)
        # 400 MB were published; what it got is what sockets hold, and the newest.
        assert len(_generations(answer)) < 300
        assert _generations(answer) == sorted(_generations(answer))


async def test_the_stream_ends_with_the_endpoint() -> None:
    async with site(reply, QUICK) as s, s.client() as client:
        await client.send("GET", "/v1/events")
        answer = await client.answer(lambda a: bool(_generations(a)))
        stopping = asyncio.ensure_future(s.endpoint.stop(SAFETY_S))
        await client.more(answer)
        assert answer.whole
        await stopping
        assert s.api.subscriptions == 0
