"""Requests that a remote provider answers, and providers that answer oddly."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from router.catalog.model import Model
from router.errors import ShuttingDown
from router.policy.document import Keywords, Policy, Rule
from router.providers.health import State
from router.providers.link import VIA
from router.providers.live import Live, RemoteWorker
from router.providers.providers import Providers
from router.web.options import WebOptions
from router.web.relay import Relay
from router.web.remote import RemoteExchange
from tests.router.providers.fakes import KEY, Script, Server, completion, failing, providers, server
from tests.router.web.fakes import (
    CHAT,
    OPTIONS,
    SAFETY_S,
    Peer,
    Site,
    chat,
    data_of,
    events_of,
    reply,
    site,
)


class Remote(Site):
    """A site whose router has a provider `cloud`."""

    cloud: Server
    providers: Providers


@contextlib.asynccontextmanager
async def remote(
    folder: Path, chat_script: Script = completion, options: WebOptions = OPTIONS, **given: Any
) -> AsyncIterator[Remote]:
    async with server() as cloud, providers(folder) as known, site(reply, options) as s:
        cloud.chat = chat_script
        view = await known.add({"name": "cloud", "url": cloud.url, **given}, KEY)
        assert (view.state, view.models) == ("ready", 3)
        api = s.api
        resolve, acquire = api.resolve, api.acquire

        def find(name: str) -> Model | Policy:
            return known.resolve(name) or resolve(name)

        async def get(name: str, *, policy: str | None = None, **how: Any) -> Any:
            found = known.resolve(name)
            if found is None:
                return await acquire(name, policy=policy, **how)
            chosen = api.policies[policy] if policy is not None else None
            return await known.acquire(found, patient=chosen is None or not chosen.fallback)

        api.resolve = find  # type: ignore[method-assign]  # for as long as this site lives
        api.acquire = get  # type: ignore[method-assign,assignment]  # likewise
        api.window = lambda name: m.context_length if (m := known.resolve(name)) else 0  # type: ignore[method-assign]  # likewise
        made = Remote(api, s.endpoint, s.worker)
        made.cloud, made.providers = cloud, known
        yield made


def escalating(**more: Any) -> Policy:
    """A policy that sends programs to the provider, and falls back to a model of this machine."""
    fields: dict[str, Any] = {
        "components": ("alpha", "cloud/big"),
        "candidates": ("alpha", "cloud/big"),
        "default_model": "alpha",
        "rules": (Rule("code", Keywords(("python",)), "cloud/big"),),
        "fallback": True,
    }
    return Policy("auto", **{**fields, **more})


async def test_a_request_goes_there_under_the_name_that_it_has_there(tmp_path: Path) -> None:
    async with remote(tmp_path) as s:
        body = (
            b'{ "model":"cloud/org/tiny", "route_trace":true,"keep_alive":"5m", "seed": 1.50, '
            b'"messages":[{"role":"user","content":"h\\u00e9"}]}'
        )
        headers = {"Cookie": "a=b", "X-Custom": "c", "Authorization": "Bearer mine", "OpenAI-Beta": "x"}
        answer = await s.ask("POST", CHAT, body, headers)
        assert answer.status == 200
        assert answer.json()["model"] == "cloud/org/tiny"
        (peer,) = s.cloud.asked
        assert peer.path == "/v1/chat/completions"
        sent = msgspec.json.decode(peer.body, type=dict[str, msgspec.Raw])
        assert {name: bytes(value) for name, value in sent.items()} == {
            "model": b'"org/tiny"',
            "seed": b"1.50",
            "messages": b'[{"role":"user","content":"h\\u00e9"}]',
        }
        assert peer.headers["authorization"] == f"Bearer {KEY}"
        assert peer.headers["openai-beta"] == "x"
        assert not {"cookie", "x-custom", "x-api-key"} & set(peer.headers)
        assert peer.headers[VIA] == s.providers.instance
        assert s.providers.views[0].in_use == 0


async def test_a_stream_passes_with_the_name_that_the_model_has_here(tmp_path: Path) -> None:
    async with remote(tmp_path) as s:
        answer = await s.ask("POST", CHAT, chat(True, "cloud/big"))
        assert answer.whole
        first, second, done = events_of(answer.body)
        assert (data_of(first)["model"], data_of(second)["model"]) == ("cloud/big", "cloud/big")
        assert data_of(first)["choices"] == [{"delta": {"content": "hi"}}]
        assert done == b"data: [DONE]"
        metrics = bytes((await s.ask("GET", "/metrics")).body).decode()
        assert 'lemonade_tokens_generated_total{model="cloud/big"} 7.0' in metrics


@pytest.mark.parametrize("stream", [False, True])
async def test_a_policy_escalates_and_falls_back(tmp_path: Path, stream: bool) -> None:
    async with remote(tmp_path) as s:
        s.api.policies["auto"] = escalating()
        asked = chat(stream, "auto", "python", route_trace=True)
        answer = await s.ask("POST", CHAT, asked)
        told = data_of(events_of(answer.body)[0]) if stream else answer.json()
        assert (told["model"], told["x_lemonade_route"]["route_to"]) == ("cloud/big", "cloud/big")
        assert answer.headers["x-lemonade-route"] == "code"
        await s.cloud.stop()
        answer = await s.ask("POST", CHAT, chat(False, "auto", "python", route_trace=True))
        assert answer.status == 200
        assert answer.json()["x_lemonade_route"]["fallback"] == [
            {"candidate": "cloud/big", "reason": "cannot_be_loaded"}
        ]
        assert answer.json()["x_lemonade_route"]["route_to"] == "alpha"
        (peer,) = s.worker.requests
        assert msgspec.json.decode(peer.body)["model"] == "alpha"


async def test_a_dead_provider_is_not_asked_again_before_it_answers(tmp_path: Path) -> None:
    async with remote(tmp_path) as s:
        s.api.policies["auto"] = escalating()
        await s.cloud.stop()
        assert (await s.ask("POST", CHAT, chat(False, "auto", "python"))).status == 200
        assert s.providers.views[0].state == State.DOWN
        # It would answer again, but nobody has looked: what may go elsewhere does so at once.
        await s.cloud.restart()
        assert (await s.ask("POST", CHAT, chat(False, "auto", "python"))).status == 200
        assert s.cloud.asked == []
        # Who has no other way has it looked at.
        assert (await s.ask("POST", CHAT, chat(False, "cloud/big"))).status == 200
        assert s.providers.views[0].state == State.READY
        assert (await s.ask("POST", CHAT, chat(False, "auto", "python"))).json()["model"] == "cloud/big"


def garbling(data: bytes) -> Script:
    """A script: bytes that HTTP does not allow, and the end."""

    async def script(peer: Peer) -> None:
        await peer.send(data)
        peer.hang_up()

    return script


FAILING = {
    "wrong key": failing(401, b'{"error":{"message":"Incorrect API key: %b"}}' % KEY.encode()),
    "forbidden": failing(403, b"<html>no</html>", "text/html"),
    "busy": failing(429, b'{"error":{"message":"slow down"}}', Retry_After="30"),
    "too busy": failing(503, b"{}", Retry_After="40"),
    "fails": failing(500, b'{"error":{"message":"boom"}}'),
    "a gateway's page": failing(502, b"<html><h1>Bad gateway</h1></html>", "text/html"),
    "a page": failing(200, b"<!doctype html><title>Sign in</title>", "text/html"),
    "no type": failing(200, b"{}", ""),
    "redirect": failing(307, b"", Location="http://evil.example/v1/chat/completions"),
    "unpaid": failing(402, b'{"error":{"message":"add credit"}}'),
    "no such model": failing(404, b'{"error":{"message":"The model does not exist."}}'),
    "pinned there": failing(409, b'{"error":{"message":"pinned"}}'),
    "full there": failing(507, b'{"error":{"message":"no room"}}'),
    "odd status": failing(418, b'{"error":"teapot"}'),
    "a gateway's limit": failing(413, b"<h1>Request Entity Too Large</h1>", "text/html"),
    "no HTTP": garbling(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"),
    "no header": garbling(b"HTTP/1.1 200 OK\r\nBad Header: x\r\nContent-Length: 0\r\n\r\n"),
    "unread coding": failing(200, b"x", Content_Encoding="br"),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", FAILING)
async def test_whatever_is_no_answer_gives_way_in_a_policy(tmp_path: Path, fault: str, stream: bool) -> None:
    async with remote(tmp_path, FAILING[fault]) as s:
        s.api.policies["auto"] = escalating()
        answer = await s.ask("POST", CHAT, chat(stream, "auto", "python", route_trace=True))
        assert answer.status == 200, bytes(answer.body)
        assert answer.json()["x_lemonade_route"]["route_to"] == "alpha"
        assert len(s.cloud.asked) == 1


@pytest.mark.parametrize(
    ("fault", "status", "code", "words"),
    [
        ("wrong key", 502, "provider_key_refused", "cloud refused its key"),
        ("forbidden", 502, "provider_key_refused", "status 403"),
        ("busy", 429, "provider_busy", "slow down"),
        ("too busy", 503, "provider_busy", "cloud"),
        ("fails", 502, "provider_failed", "boom"),
        ("a gateway's page", 502, "provider_failed", "Bad gateway"),
        ("a page", 502, "provider_answer_wrong", "text/html where JSON was expected. It says: Sign in"),
        ("no type", 502, "provider_answer_wrong", "no content type"),
        ("redirect", 502, "provider_redirects", "evil.example"),
        ("unpaid", 502, "provider_unpaid", "add credit"),
        ("no such model", 404, "provider_not_found", "does not exist"),
        ("pinned there", 502, "provider_failed", "pinned"),
        ("full there", 502, "provider_failed", "no room"),
        ("odd status", 502, "provider_failed", "status 418"),
        ("a gateway's limit", 413, "provider_refused", "Entity Too Large"),
        ("no HTTP", 502, "provider_answer_wrong", "cannot be read: Bad status line"),
        ("no header", 502, "provider_answer_wrong", "cannot be read"),
        ("unread coding", 502, "provider_answer_wrong", "content-encoding"),
    ],
)
async def test_what_a_client_is_told(tmp_path: Path, fault: str, status: int, code: str, words: str) -> None:
    async with remote(tmp_path, FAILING[fault]) as s:
        answer = await s.ask("POST", CHAT, chat(model="cloud/big"))
        assert (answer.status, answer.error["code"]) == (status, code)
        assert words in answer.error["message"]
        assert "cloud" in answer.error["message"]
        assert KEY not in bytes(answer.body).decode()
        if code == "provider_busy":
            assert answer.headers["retry-after"] == ("30" if status == 429 else "40")
        if code == "provider_key_refused":
            assert "lemon-tray provider add cloud" in answer.error["hint"]
            assert s.providers.views[0].state == State.REFUSED
        else:
            # It answers, if oddly: its other models are not to suffer.
            assert s.providers.views[0].state == State.READY
        assert s.providers.views[0].in_use == 0


async def test_a_request_that_is_wrong_is_told_as_the_provider_tells_it(tmp_path: Path) -> None:
    error = {"message": f"bad temperature {KEY}", "param": "temperature", "type": "x", "extra": 5}
    body = msgspec.json.encode({"error": error})
    middle = body.index(KEY.encode()) + 5

    async def script(peer: Peer) -> None:
        head = b"HTTP/1.1 400 X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        await peer.send(head + body[:middle])
        await asyncio.sleep(0)
        await peer.send(body[middle:])

    async with remote(tmp_path, script) as s:
        answer = await s.ask("POST", CHAT, chat(model="cloud/big"))
        assert answer.status == 400
        assert answer.error["message"] == "bad temperature ***"
        assert (answer.error["param"], answer.error["extra"]) == ("temperature", 5)
        assert s.providers.views[0].state == State.READY


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 4096 tokens. However, your messages resulted in 9000 tokens.",
        "the request exceeds the available context size, try increasing it",
        "prompt is too long: 210000 tokens > 200000 maximum",
    ],
)
async def test_a_request_too_large_for_it_goes_to_a_larger_one(tmp_path: Path, message: str) -> None:
    async with remote(tmp_path, failing(400, msgspec.json.encode({"error": {"message": message}}))) as s:
        answer = await s.ask("POST", CHAT, chat(model="cloud/big"))
        assert (answer.status, answer.error["message"]) == (400, message)
        s.api.policies["auto"] = escalating()
        answer = await s.ask("POST", CHAT, chat(False, "auto", "python", route_trace=True))
        assert answer.json()["x_lemonade_route"]["fallback"] == [
            {"candidate": "cloud/big", "reason": "context_too_small"}
        ]


async def test_what_is_soon_over_is_waited_for(tmp_path: Path) -> None:
    answers = [failing(429, b"{}", Retry_After="0"), failing(503, b"{}", Retry_After="0"), completion]

    async def script(peer: Peer) -> None:
        await answers.pop(0)(peer)

    async with remote(tmp_path, script) as s:
        answer = await s.ask("POST", CHAT, chat(model="cloud/big"))
        assert (answer.status, len(s.cloud.asked)) == (200, 3)


async def test_a_model_that_fails_again_and_again_is_left_alone_and_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Longer than this test may take on a machine that is busy.
    for name in ("LEAST_BLOCK_S", "MAX_BLOCK_S"):
        monkeypatch.setattr(f"router.providers.health.{name}", 600.0)

    async def script(peer: Peer) -> None:
        is_big = msgspec.json.decode(peer.body)["model"] == "big"
        await (failing(500) if is_big else completion)(peer)

    async with remote(tmp_path, script) as s:
        s.api.policies["auto"] = escalating()
        for _ in range(6):
            assert (await s.ask("POST", CHAT, chat(False, "auto", "python"))).status == 200
        assert len(s.cloud.asked) == 3
        assert (await s.ask("POST", CHAT, chat(model="cloud/org/tiny"))).status == 200
        # Who asks for that model itself is told how it is now.
        assert (await s.ask("POST", CHAT, chat(model="cloud/big"))).status == 502
        assert len(s.cloud.asked) == 5


async def test_a_kept_connection_that_was_closed_is_replaced(tmp_path: Path) -> None:
    async def script(peer: Peer) -> None:
        await completion(peer)
        peer.hang_up()

    async with remote(tmp_path, script) as s:
        for _ in range(3):
            assert (await s.ask("POST", CHAT, chat(model="cloud/big"))).status == 200


async def test_a_connection_that_ends_before_the_answer_is_no_reason_to_ask_twice(tmp_path: Path) -> None:
    async def script(peer: Peer) -> None:
        peer.hang_up()

    async with remote(tmp_path, script) as s:
        answer = await s.ask("POST", CHAT, chat(model="cloud/big"))
        assert (answer.status, answer.error["code"]) == (502, "provider_not_reached")
        assert len(s.cloud.asked) <= 2


async def cut_in_an_event(peer: Peer) -> None:
    """A script: a stream that breaks off in the middle of an event, and of a chunk."""
    await peer.begin_stream()
    await peer.chunk(b'data: {"model":"big","choices":[]}\n\n')
    await peer.send(b'40\r\ndata: {"model":"big","cho')
    peer.hang_up()


async def ended_too_soon(peer: Peer) -> None:
    """A script: a stream that ends without its last event."""
    await peer.begin_stream()
    await peer.chunk(b'data: {"model":"big","choices":[]}\n\n')
    await peer.end_stream()


@pytest.mark.parametrize("script", [cut_in_an_event, ended_too_soon])
@pytest.mark.parametrize("model", ["cloud/big", "auto"])
async def test_a_stream_that_breaks_off_ends_with_one_error(
    tmp_path: Path, script: Script, model: str
) -> None:
    async with remote(tmp_path, script) as s:
        s.api.policies["auto"] = escalating()
        answer = await s.ask("POST", CHAT, chat(True, model, "python"))
        assert (answer.status, answer.whole) == (200, True)
        first, last = events_of(answer.body)
        assert data_of(first)["model"] == "cloud/big"
        told = data_of(last)["error"]
        assert told["code"] == "provider_cut"
        assert told["message"].startswith("The provider cloud ")
        assert b"[DONE]" not in answer.body
        assert s.worker.requests == []
        assert s.providers.views[0].in_use == 0


async def test_an_answer_that_breaks_off_gets_a_true_status(tmp_path: Path) -> None:
    async def script(peer: Peer) -> None:
        await peer.send(
            b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"model":'
        )
        peer.hang_up()

    async with remote(tmp_path, script) as s:
        answer = await s.ask("POST", CHAT, chat(model="cloud/big"))
        assert (answer.status, answer.error["code"]) == (502, "provider_cut")


NO_END = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("script", "code", "words"),
    [
        # Cut off where no length tells: the bytes themselves must.
        (garbling(NO_END + b'{"id":"c","model":"big","choi'), "provider_answer_wrong", "no complete JSON"),
        (garbling(NO_END), "provider_answer_wrong", "no complete JSON"),
        (failing(200, b"this is not json"), "provider_answer_wrong", "this is not json"),
        (failing(200, b"5"), "provider_answer_wrong", "no complete JSON"),
        (failing(200, b"[1,2"), "provider_answer_wrong", "no complete JSON"),
        (failing(200, b'{"a":' + b"[" * 100_000), "provider_answer_wrong", "no complete JSON"),
        (failing(200, b'{"error":{"message":"boom","code":502}}'), "provider_failed", "boom"),
    ],
)
@pytest.mark.parametrize("model", ["cloud/big", "auto"])
async def test_what_is_no_answer_never_passes_as_one(
    tmp_path: Path, script: Script, code: str, words: str, model: str, stream: bool
) -> None:
    async with remote(tmp_path, script) as s:
        s.api.policies["auto"] = escalating()
        answer = await s.ask("POST", CHAT, chat(stream, model, "python"))
        assert (answer.status, answer.error["code"]) == (502, code)
        assert words in answer.error["message"]
        assert s.providers.views[0].in_use == 0


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"cloud/big","error":null,"choices":[]}',
        b'[{"index":0,"score":0.5}]',
        b"{}",
        # What other readers take, such as an emoji that a limit of tokens has cut in two.
        b'{"choices":[{"text":"\\ud83d"}]}',
        b'{"data":[{"embedding":[NaN]}]}',
        b'{"choices":[{"text":"\xff"}]}',
    ],
)
async def test_an_answer_is_one_with_an_empty_error_and_as_a_list(tmp_path: Path, body: bytes) -> None:
    async with remote(tmp_path, failing(200, body)) as s:
        answer = await s.ask("POST", CHAT, chat(model="cloud/big"))
        assert (answer.status, bytes(answer.body)) == (200, body)


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
async def test_a_stream_that_the_provider_leaves_open_after_its_last_event_ends(
    tmp_path: Path, end: bytes
) -> None:
    left = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.begin_stream()
        await peer.chunk(b'data: {"model":"big","choices":[]}' + end * 2)
        await peer.chunk(b"data: [DO")
        await peer.chunk(b"NE]" + end * 2)
        await peer.left()
        left.set()

    async with remote(tmp_path, script) as s, asyncio.timeout(30):
        answer = await s.ask("POST", CHAT, chat(True, "cloud/big"))
        assert answer.body.endswith(b"data: [DONE]" + end * 2)
        await left.wait()
        assert s.providers.views[0].in_use == 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("coding", ["gzip", "deflate", "br"])
async def test_an_answer_that_is_compressed_though_nobody_asked(
    tmp_path: Path, coding: str, stream: bool
) -> None:
    text = b'data: {"model":"big","n":1}\n\ndata: [DONE]\n\n' if stream else b'{"model":"big","n":1}'
    packed = gzip.compress(text) if coding == "gzip" else zlib.compress(text)
    kind = "text/event-stream" if stream else "application/json"
    async with remote(tmp_path, failing(200, packed, kind, Content_Encoding=coding)) as s:
        answer = await s.ask("POST", CHAT, chat(stream, "cloud/big"))
        assert s.cloud.asked[0].headers["accept-encoding"] == "identity"
        if coding == "br":
            assert b"error" in answer.body
            return
        assert answer.status == 200
        assert "content-encoding" not in answer.headers
        assert bytes(answer.body) == text.replace(b'"big"', b'"cloud/big"')


async def test_headers_that_never_come_are_not_waited_for_for_ever(tmp_path: Path) -> None:
    async def script(peer: Peer) -> None:
        await peer.left()

    async with remote(tmp_path, script, idle_s=1) as s:
        s.api.policies["auto"] = escalating()
        answer = await s.ask("POST", CHAT, chat(False, "auto", "python", route_trace=True))
        assert answer.json()["x_lemonade_route"]["route_to"] == "alpha"


async def test_a_stream_is_kept_alive_while_nothing_comes_and_ends_if_nothing_does(tmp_path: Path) -> None:
    async def script(peer: Peer) -> None:
        await peer.begin_stream()
        await peer.chunk(b'data: {"model":"big"}\n\n')
        await peer.left()

    async with remote(tmp_path, script, msgspec.structs.replace(OPTIONS, silence_s=0.05), idle_s=1) as s:
        answer = await s.ask("POST", CHAT, chat(True, "cloud/big"))
        assert b": keep-alive" in answer.body
        assert "sent nothing for 1 s" in data_of(events_of(answer.body)[-1])["error"]["message"]


@pytest.mark.fault("F35")
async def test_a_provider_that_answers_one_after_the_other_is_not_dead_while_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.begin_stream()
        await peer.chunk(b'data: {"model":"big","choices":[]}\n\n')
        await go.wait()
        await peer.chunk(b"data: [DONE]\n\n")
        await peer.end_stream()

    async def no_time(peer: Peer) -> None:
        await peer.left()

    async with remote(tmp_path, script) as s, s.client() as client, asyncio.timeout(SAFETY_S):
        monkeypatch.setattr("router.providers.link.LOOK_S", 0.05)
        monkeypatch.setattr("router.providers.live.HEARD_S", SAFETY_S)
        await client.send("POST", CHAT, chat(True, "cloud/big"))
        await client.answer(lambda a: b"cloud/big" in a.body)
        s.cloud.models = no_time
        assert (await s.providers.test("cloud")).state == State.READY
        go.set()
        # After a silence it is what it looks like.
        monkeypatch.setattr("router.providers.live.HEARD_S", 0.0)
        assert (await s.providers.test("cloud")).state == State.DOWN


async def test_a_client_that_leaves_ends_the_request_there(tmp_path: Path) -> None:
    left = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.begin_stream()
        await peer.chunk(b'data: {"model":"big"}\n\n')
        await peer.left()
        left.set()

    async with remote(tmp_path, script) as s:
        async with s.client() as client:
            await client.send("POST", CHAT, chat(True, "cloud/big"))
            await client.answer(lambda a: b"cloud/big" in a.body)
        async with asyncio.timeout(20):
            await left.wait()


async def test_an_answer_that_comes_when_its_client_has_just_left_is_closed() -> None:
    class Response:
        closed = False

        def close(self) -> None:
            self.closed = True

    response = Response()

    class Late(RemoteWorker):
        async def post(self, *_: Any) -> Any:
            # After this has its result, and before who waits for that is woken.
            asyncio.get_running_loop().call_soon(asking.cancel)
            return response

    exchange = RemoteExchange(cast(Relay, None), Late(cast(Live, None), cast(Model, None), patient=True))
    asking = asyncio.ensure_future(exchange.send("/v1/chat/completions", (), b"{}"))
    with pytest.raises(asyncio.CancelledError):
        await asking
    exchange.close()
    assert response.closed


async def test_a_client_that_leaves_before_the_answer_ends_the_request_there(tmp_path: Path) -> None:
    asked, left = asyncio.Event(), asyncio.Event()

    async def script(peer: Peer) -> None:
        asked.set()
        await peer.left()
        left.set()

    async with remote(tmp_path, script) as s:
        async with s.client() as client:
            await client.send("POST", CHAT, chat(False, "cloud/big"))
            await asked.wait()
        async with asyncio.timeout(20):
            await left.wait()


@pytest.mark.parametrize("begun", [False, True])
async def test_a_router_that_stops_ends_remote_answers_too(tmp_path: Path, begun: bool) -> None:
    asked = asyncio.Event()

    async def script(peer: Peer) -> None:
        if begun:
            await peer.begin_stream()
            await peer.chunk(b'data: {"model":"big"}\n\n')
        asked.set()
        await peer.left()

    async with remote(tmp_path, script) as s, s.client() as client:
        await client.send("POST", CHAT, chat(True, "cloud/big"))
        await asked.wait()
        answer = await client.answer(lambda a: b"cloud/big" in a.body) if begun else None
        s.endpoint._parts.inference.end_all(ShuttingDown("The router is shutting down."))
        if answer is not None:
            await client.more(answer)
            assert data_of(events_of(answer.body)[-1])["error"]["code"] == "shutting_down"
        else:
            answer = await client.answer()
            assert (answer.status, answer.error["code"]) == (503, "shutting_down")


async def test_a_slow_client_slows_the_provider_down(tmp_path: Path) -> None:
    sent = 0
    stuck = asyncio.Event()

    async def script(peer: Peer) -> None:
        nonlocal sent
        await peer.begin_stream()
        event = b'data: {"model":"big","x":"%b"}\n\n' % (b"x" * 65_536)
        while sent < 64 << 20:
            try:
                async with asyncio.timeout(1.0):
                    await peer.chunk(event)
            except TimeoutError:
                stuck.set()
                return await peer.left()
            sent += len(event)

    async with remote(tmp_path, script) as s, s.client() as client:
        await client.send("POST", CHAT, chat(True, "cloud/big"))
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a transport of both ways
        async with asyncio.timeout(20):
            await stuck.wait()
        assert sent < 32 << 20


async def test_a_large_answer_passes_and_is_renamed(tmp_path: Path) -> None:
    numbers = b",".join([b"0.123456789"] * 300_000)
    body = b'{"object":"list","data":[{"embedding":[' + numbers + b']}],"model":"text-embed-3","usage":{}}'
    async with remote(tmp_path, failing(200, body)) as s:
        answer = await s.post("/v1/embeddings", {"model": "cloud/text-embed-3", "input": "x"})
        assert answer.status == 200
        assert answer.whole
        assert bytes(answer.body) == body.replace(b'"text-embed-3"', b'"cloud/text-embed-3"')


async def test_a_large_request_goes_out_whole(tmp_path: Path) -> None:
    async with remote(tmp_path) as s:
        text = "x" * (3 << 20)
        assert (await s.ask("POST", CHAT, chat(False, "cloud/big", text))).status == 200
        assert msgspec.json.decode(s.cloud.asked[0].body)["messages"][0]["content"] == text


async def test_a_request_that_comes_back_is_refused(tmp_path: Path) -> None:
    async with remote(tmp_path) as s:
        for via in (s.providers.instance, f"other, {s.providers.instance}", ", ".join(map(str, range(9)))):
            answer = await s.ask("POST", CHAT, chat(model="cloud/big"), {VIA: via})
            assert (answer.status, answer.error["code"]) == (508, "provider_loop")
            assert answer.headers["x-should-retry"] == "false"
        assert s.cloud.asked == []
        assert (await s.ask("POST", CHAT, chat(model="cloud/big"), {VIA: "other"})).status == 200
        assert s.cloud.asked[0].headers[VIA] == f"other, {s.providers.instance}"
        # What is answered here is no loop, wherever it comes from.
        assert (await s.ask("POST", CHAT, chat(model="alpha"), {VIA: s.providers.instance})).status == 200


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/completions", "/v1/responses", "/v1/rerank"])
async def test_other_calls_go_to_the_same_place_there(tmp_path: Path, path: str) -> None:
    async with remote(tmp_path) as s:
        body = {"model": "cloud/big", "messages": [{"role": "user", "content": "x"}], "prompt": "x"}
        body |= {"input": "x", "query": "x", "documents": ["x"]}
        assert (await s.post(path, body)).json()["model"] == "cloud/big"
        assert s.cloud.asked[0].path == path
