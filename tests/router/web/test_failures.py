"""Failures of workers: a true status while there is time for one, then an error event, never silence."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from router.errors import SlotsPinned, Unavailable
from router.web.options import WebOptions
from tests.router.web.fakes import CHAT, SAFETY_S, Answer, Peer, chat, data_of, events_of, reply, site

REFUSAL = b'{"error":{"code":400,"message":"too long","type":"exceed_context_size_error","n_ctx":512}}'
SLOW = WebOptions(silence_s=0.01, death_s=0.05, stalled_client_s=0.2)


def _last_error(answer: Answer) -> dict[str, Any]:
    assert answer.whole, "the stream was cut"
    assert b"[DONE]" not in answer.body
    assert b"finish_reason" not in answer.body
    error = data_of(events_of(answer.body)[-1])["error"]
    assert set(error) >= {"message", "type", "code", "param", "hint"}
    return dict(error)


@pytest.mark.fault("F07")
@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_before_the_headers_has_its_own_status(stream: bool) -> None:
    async def script(peer: Peer) -> None:
        await peer.answer(REFUSAL, 400)

    async with site(script) as s:
        answer = await s.ask("POST", CHAT, chat(stream))
        assert answer.status == 400
        assert answer.error["message"] == "too long"
        assert answer.error["type"] == "exceed_context_size_error"
        assert answer.error["code"] == 400
        assert answer.error["n_ctx"] == 512
        assert s.api.leases[0].released.is_set()


@pytest.mark.fault("F07")
async def test_a_refusal_after_the_headers_is_an_event() -> None:
    async def script(peer: Peer) -> None:
        await go_on.wait()
        await peer.answer(REFUSAL, 400)

    go_on = asyncio.Event()
    async with site(script, SLOW) as s, s.client() as client:
        await client.send("POST", CHAT, chat(stream=True))
        answer = await client.answer(lambda a: b": keep-alive" in a.body)
        go_on.set()
        await client.more(answer)
        assert answer.status == 200
        error = _last_error(answer)
        assert error["message"] == "too long"
        assert error["code"] == 400


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"oops", "oops"),
        (b"", "The worker gave no reason."),
        (b'{"error":"text"}', "text"),
        (b'{"message":"flat"}', "flat"),
        (b"[1]", "[1]"),
        (b"\xff\xfe", "\ufffd\ufffd"),
    ],
)
async def test_a_refusal_in_another_shape_gets_ours(body: bytes, message: str) -> None:
    async def script(peer: Peer) -> None:
        await peer.answer(body, 500, "text/plain")

    async with site(script) as s:
        answer = await s.ask("POST", CHAT, chat())
        assert answer.status == 502
        assert answer.error["message"] == message


@pytest.mark.parametrize(
    ("status", "passed"), [(400, 400), (404, 501), (405, 501), (410, 400), (429, 429), (500, 502), (503, 503)]
)
async def test_a_workers_status_is_no_fault_of_ours(status: int, passed: int) -> None:
    async def script(peer: Peer) -> None:
        await peer.answer(b'{"error":{"message":"no"}}', status)

    async with site(script) as s:
        answer = await s.ask("POST", CHAT, chat())
        assert answer.status == passed
        assert (answer.error["code"] == "not_supported_by_engine") == (passed == 501)


async def test_a_worker_that_refuses_our_key_is_no_401_of_the_clients() -> None:
    async def script(peer: Peer) -> None:
        await peer.answer(b"{}", 401)

    async with site(script) as s:
        assert (await s.ask("POST", CHAT, chat())).status == 502


@pytest.mark.fault("F07")
async def test_a_worker_that_dies_in_a_stream() -> None:
    async def script(peer: Peer) -> None:
        await peer.begin_stream()
        await peer.chunk(b'data: {"n":1}\n\n')
        await peer.chunk(b'data: {"n":2}\n\n')
        s.worker.die(-11, "CUDA error", "out of memory\n")
        peer.hang_up()

    async with site(script) as s:
        answer = await s.ask("POST", CHAT, chat(stream=True))
        assert events_of(answer.body)[:2] == [b'data: {"n":1}', b'data: {"n":2}']
        error = _last_error(answer)
        assert error["code"] == "worker_died"
        assert "signal 11" in error["message"]
        assert "out of memory" in error["message"]
        assert s.api.leases[0].released.is_set()


@pytest.mark.fault("F07")
async def test_a_worker_that_falls_silent_in_a_stream() -> None:
    left = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.begin_stream()
        await peer.chunk(b'data: {"n":1}\n\n')
        await peer.left()
        left.set()

    async with site(script, WebOptions(silence_s=30, worker_silence_s=0.05)) as s:
        answer = await s.ask("POST", CHAT, chat(stream=True))
        assert _last_error(answer)["code"] == "worker_silent"
        async with asyncio.timeout(SAFETY_S):
            await left.wait()


@pytest.mark.fault("F07")
async def test_a_stream_that_ends_without_its_end() -> None:
    async def script(peer: Peer) -> None:
        await peer.begin_stream()
        await peer.chunk(b'data: {"n":1}\n\n')
        await peer.end_stream()

    async with site(script) as s:
        answer = await s.ask("POST", CHAT, chat(stream=True))
        assert _last_error(answer)["code"] == "worker_answer_broken"


@pytest.mark.fault("F07")
async def test_a_stream_that_ends_within_an_event() -> None:
    async def script(peer: Peer) -> None:
        await peer.begin_stream()
        await peer.chunk(b'data: {"n":1}\n\ndata: {"n":')
        peer.hang_up()

    async with site(script) as s:
        answer = await s.ask("POST", CHAT, chat(stream=True))
        assert answer.body.startswith(b'data: {"n":1}\n\ndata: {"n":\n\ndata: {"error"')
        assert _last_error(answer)["code"] == "worker_answer_broken"


@pytest.mark.fault("F07")
async def test_a_workers_own_error_event_is_not_doubled() -> None:
    body = b'data: {"n":1}\n\ndata: {"error":{"message":"broke","code":500}}\n\n'

    async def script(peer: Peer) -> None:
        await peer.begin_stream()
        await peer.chunk(body)
        await peer.end_stream()

    async with site(script) as s:
        answer = await s.ask("POST", CHAT, chat(stream=True))
        assert bytes(answer.body) == body
        assert answer.whole


async def test_a_connection_lost_after_done_is_no_failure() -> None:
    body = b'data: {"n":1}\n\ndata: [DONE]\n\n'

    async def script(peer: Peer) -> None:
        await peer.begin_stream()
        await peer.chunk(body)
        peer.hang_up()

    async with site(script) as s:
        answer = await s.ask("POST", CHAT, chat(stream=True))
        assert bytes(answer.body) == body
        assert answer.whole


async def test_no_stream_where_one_was_promised() -> None:
    go_on = asyncio.Event()

    async def script(peer: Peer) -> None:
        await go_on.wait()
        await peer.answer(b'{"choices":[]}')

    async with site(script, SLOW) as s, s.client() as client:
        await client.send("POST", CHAT, chat(stream=True))
        answer = await client.answer(lambda a: b": keep-alive" in a.body)
        go_on.set()
        await client.more(answer)
        assert _last_error(answer)["code"] == "worker_answer_broken"


async def test_a_worker_that_dies_in_a_plain_answer() -> None:
    async def script(peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
        s.worker.die(139)
        peer.hang_up()

    async with site(script) as s:
        answer = await s.ask("POST", CHAT, chat())
        assert answer.status == 502
        assert "exit status 139" in answer.error["message"]


@pytest.mark.parametrize(
    ("why", "status", "code"),
    [
        ("shutting_down", 503, "shutting_down"),
        ("unloaded", 503, "unloaded"),
        ("worker_died", 502, "worker_died"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_lease_that_is_cut(why: str, status: int, code: str, stream: bool) -> None:
    left = asyncio.Event()

    async def script(peer: Peer) -> None:
        if stream:
            await peer.begin_stream()
            await peer.chunk(b'data: {"n":1}\n\n')
        else:
            asked.set()
        await peer.left()
        left.set()

    asked = asyncio.Event()
    async with site(script) as s, s.client() as client:
        await client.send("POST", CHAT, chat(stream))
        if stream:
            answer = await client.answer(lambda a: b"\n\n" in a.body)
            s.api.leases[0].cut.set_result(why)
            await client.more(answer)
            assert _last_error(answer)["code"] == code
        else:
            await asked.wait()
            s.api.leases[0].cut.set_result(why)
            answer = await client.answer()
            assert answer.status == status
            assert answer.error["code"] == code
            # Every 503 says when to try again.
            assert ("retry-after" in answer.headers) is (status == 503)
        async with asyncio.timeout(SAFETY_S):
            await left.wait()
            await s.api.leases[0].released.wait()


async def test_a_lease_that_was_cut_before_it_came() -> None:
    async def script(peer: Peer) -> None:
        await peer.left()

    async with site(script) as s:
        granted = s.api.acquire

        async def acquire(model: str, **more: Any) -> Any:
            lease = await granted(model, **more)
            lease.cut.set_result("unloaded")
            return lease

        s.api.acquire = acquire  # type: ignore[method-assign]  # a grant that is already over
        answer = await s.ask("POST", CHAT, chat())
        assert answer.status == 503
        assert s.api.leases[0].released.is_set()


@pytest.mark.parametrize("stream", [False, True])
async def test_refusals_that_need_no_wait_have_a_status(stream: bool) -> None:
    async with site(reply, SLOW) as s:
        s.api.refusal = SlotsPinned("alpha and beta are pinned.")
        answer = await s.ask("POST", CHAT, chat(stream))
        assert answer.status == 409
        assert answer.headers["x-should-retry"] == "false"
        s.api.refusal = Unavailable("The queue is full.", code="queue_full", retry_after_s=2.2)
        answer = await s.ask("POST", CHAT, chat(stream))
        assert answer.status == 503
        assert answer.headers["retry-after"] == "3"
        assert "x-should-retry" not in answer.headers


async def test_a_refusal_after_a_wait_is_an_event() -> None:
    async with site(reply, SLOW) as s, s.client() as client:
        s.api.gate.clear()
        s.api.refusal = Unavailable("It took too long.", code="queue_timeout")
        await client.send("POST", CHAT, chat(stream=True))
        answer = await client.answer(lambda a: b": keep-alive" in a.body)
        s.api.gate.set()
        await client.more(answer)
        assert answer.status == 200
        assert _last_error(answer)["code"] == "queue_timeout"


async def test_a_fault_of_ours_after_the_headers_is_an_event_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with site(reply, SLOW) as s, s.client() as client:
        s.api.gate.clear()
        s.api.refusal = ZeroDivisionError("internal detail")
        await client.send("POST", CHAT, chat(stream=True))
        answer = await client.answer(lambda a: b": keep-alive" in a.body)
        s.api.gate.set()
        await client.more(answer)
        assert "internal detail" not in _last_error(answer)["message"]
    assert "internal detail" in caplog.text


async def test_a_fault_of_ours_is_a_500_in_the_same_shape(caplog: pytest.LogCaptureFixture) -> None:
    async with site(reply) as s:
        s.api.refusal = ZeroDivisionError("internal detail")
        answer = await s.ask("POST", CHAT, chat())
        assert answer.status == 500
        assert "internal detail" not in answer.error["message"]
    assert "internal detail" in caplog.text
