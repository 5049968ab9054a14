"""Ollama's own client, against the endpoint with a worker that is scripted."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec
import ollama
import pytest

from router.errors import InsufficientMemory, LoadFailed, NotFound, SlotsPinned, Unavailable
from router.snapshot import ResidentState, ResidentView
from router.web.options import WebOptions
from tests.router.web.fakes import OPTIONS, Peer, Script, Site, model, policy, site, snapshot
from tests.router.web.test_openai_client import chunk, stream_of

USER: Any = [{"role": "user", "content": "hi"}]
TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
TIMINGS = {"prompt_n": 6, "cache_n": 0, "prompt_ms": 2, "predicted_n": 3, "predicted_ms": 4}
WHOLE = {
    "model": "alpha",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 6, "completion_tokens": 3},
    "timings": TIMINGS,
}
VECTORS = {"data": [{"index": 0, "embedding": [0.6, 0.8]}], "usage": {"prompt_tokens": 2}}


def answering(body: Any, status: int = 200) -> Script:
    async def script(peer: Peer) -> None:
        await peer.answer(json.dumps(body).encode(), status)

    return script


TELLING = stream_of(chunk({"content": "hel"}), chunk({"content": "lo"}), chunk({}, "stop", timings=TIMINGS))


@asynccontextmanager
async def served(
    script: Script, options: WebOptions = OPTIONS, **more: Any
) -> AsyncIterator[tuple[Site, Any]]:
    async with site(script, options) as s:
        # To read the certificates of the world takes longer than the test.
        client: Any = ollama.AsyncClient(host=s.endpoint.url, verify=False, **more)
        try:
            yield s, client
        finally:
            await client.close()


def sent(s: Site, at: int = -1) -> Any:
    return msgspec.json.decode(s.worker.requests[at].body)


async def read(stream: Any, parts: list[Any]) -> None:
    async for part in stream:
        parts.append(part)


def resident(name: str = "alpha", **more: Any) -> ResidentView:
    given: dict[str, Any] = {
        "model": name,
        "type": "llm",
        "state": ResidentState.READY,
        "bytes": 3 << 30,
        "devices": {"gpu0": 2 << 30, "host": 1 << 30},
        "memberships": ("standard",),
        "pinned": False,
        "in_use": 0,
        "waiting": 0,
        "slots": 1,
        "last_use": 1_700_000_000.0,
        "keep_alive_s": 300,
    }
    return ResidentView(**{**given, **more})


# Answers


@pytest.mark.parametrize("name", ["alpha", "alpha:latest", "a", "a:latest"])
async def test_a_chat(name: str) -> None:
    async with served(answering(WHOLE)) as (s, client):
        made = await client.chat(model=name, messages=USER, options={"temperature": 0, "num_predict": 5})
        assert made.message.content == "hello"
        assert (made.model, made.done, made.done_reason) == (name, True, "stop")
        assert (made.prompt_eval_count, made.eval_count) == (6, 3)
        assert (made.prompt_eval_duration, made.eval_duration) == (2_000_000, 4_000_000)
        assert made.total_duration is not None
        assert made.total_duration >= (made.load_duration or 0) > 0
        body = sent(s)
        assert (body["model"], body["max_tokens"], body["temperature"]) == ("alpha", 5, 0)
        assert s.worker.requests[0].path == "/v1/chat/completions"
        assert s.api.leases[0].tokens == 3
        stats = (await s.ask("GET", "/v1/stats")).json()
        assert (stats["path"], stats["output_tokens"]) == ("/api/chat", 3)


async def test_a_chat_as_it_comes() -> None:
    async with served(TELLING) as (s, client):
        parts = [part async for part in await client.chat(model="alpha", messages=USER, stream=True)]
        assert [part.message.content for part in parts] == ["hel", "lo", ""]
        assert [part.done for part in parts] == [False, False, True]
        assert parts[-1].eval_count == 3
        assert sent(s)["stream_options"] == {"include_usage": True}


async def test_streams_unless_told_otherwise() -> None:
    async with served(TELLING) as (s, _):
        answer = await s.post("/api/chat", {"model": "alpha", "messages": USER})
        assert answer.headers["content-type"] == "application/x-ndjson"
        assert answer.headers["cache-control"] == "no-cache"
        assert len(bytes(answer.body).splitlines()) == 3


async def test_each_line_comes_when_its_event_does() -> None:
    """No line waits for the next one."""
    go_on = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.begin_stream()
        await peer.chunk(b"data: " + json.dumps(chunk({"content": "hel"})).encode() + b"\n\n")
        await go_on.wait()
        await peer.chunk(b"data: " + json.dumps(chunk({}, "stop")).encode() + b"\n\ndata: [DONE]\n\n")
        await peer.end_stream()

    async with served(script) as (_, client):
        stream = aiter(await client.chat(model="alpha", messages=USER, stream=True))
        assert (await anext(stream)).message.content == "hel"
        go_on.set()
        assert (await anext(stream)).done


async def test_tools() -> None:
    calls = [{"index": 0, "id": "c1", "function": {"name": "weather", "arguments": '{"city": '}}]
    rest = [{"index": 0, "function": {"arguments": '"北京"}'}}]
    script = stream_of(chunk({"tool_calls": calls}), chunk({"tool_calls": rest}), chunk({}, "tool_calls"))
    async with served(script) as (s, client):
        stream = await client.chat(model="alpha", messages=USER, tools=[TOOL], stream=True)
        parts = [part async for part in stream]
        [call] = parts[0].message.tool_calls or []
        assert call.function.name == "weather"
        assert call.function.arguments == {"city": "北京"}
        assert sent(s)["tools"][0]["function"]["name"] == "weather"
        # What the client sends back with the result of the call.
        told: Any = [*USER, parts[0].message, {"role": "tool", "tool_name": "weather", "content": "sunny"}]
        stream = await client.chat(model="alpha", messages=told, tools=[TOOL], stream=True)
        [_ async for _ in stream]
        messages = sent(s)["messages"]
        assert messages[1]["tool_calls"][0]["function"]["arguments"] == '{"city":"北京"}'
        assert messages[2]["tool_call_id"] == messages[1]["tool_calls"][0]["id"]


async def test_generate() -> None:
    async with served(answering(WHOLE)) as (s, client):
        made = await client.generate(model="alpha", prompt="hi", system="be brief", format="json")
        assert (made.response, made.done_reason, made.context) == ("hello", "stop", None)
        assert [message["role"] for message in sent(s)["messages"]] == ["system", "user"]
        assert sent(s)["response_format"] == {"type": "json_object"}


async def test_generate_without_a_template_and_between_texts() -> None:
    async with served(answering({"choices": [{"text": "b", "finish_reason": "length"}]})) as (s, client):
        raw = await client.generate(model="alpha", prompt="a", raw=True)
        assert (raw.response, raw.done_reason) == ("b", "length")
        assert s.worker.requests[0].path == "/v1/completions"

    native = {"content": "b", "stop": True, "stop_type": "eos", "timings": TIMINGS}
    async with served(answering(native)) as (s, client):
        middle = await client.generate(model="alpha", prompt="a", suffix="c")
        assert (middle.response, middle.done_reason, middle.eval_count) == ("b", "stop", 3)
        assert s.worker.requests[0].path == "/infill"

    async def script(peer: Peer) -> None:
        await peer.begin_stream()
        await peer.chunk(b'data: {"content":"b","stop":false}\n\n')
        await peer.chunk(b"data: " + json.dumps({**native, "content": ""}).encode() + b"\n\n")
        await peer.end_stream()

    async with served(script) as (_, client):
        stream = await client.generate(model="alpha", prompt="a", suffix="c", stream=True)
        assert [part.response async for part in stream] == ["b", ""]


async def test_embeddings() -> None:
    async with served(answering(VECTORS)) as (s, client):
        made = await client.embed(model="embed:latest", input="one", keep_alive="5m")
        assert [list(vector) for vector in made.embeddings] == [[0.6, 0.8]]
        assert (made.model, made.prompt_eval_count) == ("embed:latest", 2)
        assert s.api.asked[0]["keep_alive_s"] == 300
        assert "keep_alive" not in sent(s)
        old = await client.embeddings(model="embed", prompt="one")
        assert list(old.embedding) == [0.6, 0.8]
        assert sent(s)["embd_normalize"] == -1


async def test_a_policy_is_a_model_and_the_candidate_is_named() -> None:
    async with served(answering(WHOLE)) as (s, client):
        made = await client.chat(
            model="auto:latest", messages=[{"role": "user", "content": "some python, please"}]
        )
        assert made.model == "beta"
        assert sent(s)["model"] == "beta"
        assert s.api.asked[0]["policy"] == "auto"
        assert ("routed", "auto", "code", "beta", ()) in s.api.calls


async def test_a_candidate_that_cannot_be_had_gives_way() -> None:
    """What another candidate answers is told under its name."""
    async with served(TELLING) as (s, client):
        s.api.policies["auto"] = policy(fallback=True)
        acquire = s.api.acquire

        async def picky(model: str, **more: Any) -> Any:
            if model == "alpha":
                raise LoadFailed("alpha is broken.")
            return await acquire(model, **more)

        s.api.acquire = picky  # type: ignore[method-assign]  # for this test
        stream = await client.chat(model="auto", messages=USER, stream=True)
        assert {part.model async for part in stream} == {"beta"}
        assert sent(s)["model"] == "beta"


async def test_the_context_that_is_asked_for() -> None:
    async with served(answering(WHOLE)) as (s, client):
        await client.chat(model="alpha", messages=USER, options={"num_ctx": 8192})
        assert s.api.asked[-1]["context"] == 8192
        await client.chat(model="auto", messages=USER, options={"num_ctx": 8192})
        assert "context" not in s.api.asked[-1]
        await client.generate(model="alpha", options={"num_ctx": 10**20})
        assert s.api.asked[-1]["context"] == 1 << 24


# Loading and unloading


@pytest.mark.fault("F15")
@pytest.mark.parametrize(
    ("given", "seconds"),
    [("5m", 300), (30, 30), ("30", 30), ("1h30m", 5400), (-1, -1), ("-1m", -1), ("24h", 86400), (None, None)],
)
async def test_how_long_a_model_stays(given: Any, seconds: float | None) -> None:
    async with served(answering(WHOLE)) as (s, client):
        await client.chat(model="alpha", messages=USER, keep_alive=given)
        await client.generate(model="alpha", prompt="hi", keep_alive=given)
        loaded = await client.generate(model="alpha", keep_alive=given)
        assert (loaded.done_reason, loaded.response) == ("load", "")
        assert [asked["keep_alive_s"] for asked in s.api.asked] == [seconds] * 3
        assert "keep_alive" not in sent(s)


@pytest.mark.fault("F15")
@pytest.mark.parametrize("given", ["abc", "", "1e99x"])
async def test_a_time_that_is_none(given: str) -> None:
    async with served(answering(WHOLE)) as (s, client):
        for prompt in ("", "hi"):
            with pytest.raises(ollama.ResponseError, match="keep_alive") as caught:
                await client.generate(model="alpha", prompt=prompt, keep_alive=given)
            assert caught.value.status_code == 400
        assert not s.api.asked


async def test_a_chat_without_messages_loads() -> None:
    async with served(answering(WHOLE)) as (s, client):
        made = await client.chat(model="alpha")
        assert (made.done, made.done_reason, made.message.content) == (True, "load", "")
        assert s.api.leases[0].released.is_set()
        assert not s.worker.requests
        [policys] = [part async for part in await client.generate(model="auto", stream=True)]
        assert policys.done_reason == "load"
        assert s.api.asked[-1]["model"] == "alpha"


async def test_keep_alive_0_without_a_prompt_unloads() -> None:
    async with served(answering(WHOLE)) as (s, client):
        gone = await client.generate(model="alpha", keep_alive=0)
        assert gone.done_reason == "unload"
        assert not s.api.asked
        assert ("unload", "alpha", True, False) not in s.api.calls  # It was not loaded.

        s.api.publish(snapshot(2, residents=(resident(),)))
        gone = await client.generate(model="alpha", keep_alive=0)
        assert gone.done_reason == "unload"
        assert ("unload", "alpha", True, False) in s.api.calls

        # Nobody who waits for it is refused, and no answer is cut: it goes with the last one.
        s.api.calls.clear()
        s.api.publish(snapshot(3, residents=(resident(in_use=1),)))
        made = await client.chat(model="alpha", keep_alive=0)
        assert made.done_reason == "unload"
        assert s.api.asked[-1]["keep_alive_s"] == 0
        assert not s.api.calls


@pytest.mark.parametrize("input", ["", []])
async def test_embedding_nothing_loads(input: Any) -> None:
    async with served(answering(VECTORS)) as (s, client):
        assert (await client.embed(model="embed", input=input)).embeddings == []
        assert (await client.embeddings(model="embed", prompt="")).embedding == []
        assert [asked["model"] for asked in s.api.asked] == ["embed", "embed"]
        assert not s.worker.requests


# Failures


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (SlotsPinned("pinned"), 409),
        (Unavailable("later", retry_after_s=5), 503),
        (LoadFailed("broken"), 502),
        (InsufficientMemory("no room", hint="Buy some."), 507),
    ],
)
async def test_errors_are_the_clients_own(error: Any, status: int) -> None:
    async with served(answering(WHOLE)) as (s, client):
        s.api.refusal = error
        for ask in (
            client.chat(model="alpha", messages=USER),
            client.generate(model="alpha", prompt="x"),
            client.generate(model="alpha"),
            client.embed(model="embed", input="x"),
        ):
            with pytest.raises(ollama.ResponseError) as caught:
                await ask
            assert caught.value.status_code == status
            assert caught.value.error == f"{error.message} {error.hint}" if error.hint else error.message
        parts: list[Any] = []
        with pytest.raises(ollama.ResponseError) as caught:
            await read(await client.chat(model="alpha", messages=USER, stream=True), parts)
        assert caught.value.status_code == status


async def test_what_is_not_there() -> None:
    async with served(answering(WHOLE)) as (s, client):
        for ask in (client.chat(model="nope", messages=USER), client.show("nope"), client.delete("nope")):
            with pytest.raises(ollama.ResponseError, match="nope") as caught:
                await ask
            assert caught.value.status_code == 404
        for path in ("/api/nothing", "/api/"):
            answer = await s.ask("GET", path)
            assert (answer.status, list(answer.json())) == (404, ["error"])
        assert isinstance((await s.ask("GET", "/api/chat")).json()["error"], str)


async def test_the_wrong_type_of_model_is_told_in_ollamas_words() -> None:
    async with served(answering(WHOLE)) as (_, client):
        with pytest.raises(ollama.ResponseError, match="/api/embed") as caught:
            await client.chat(model="embed", messages=USER)
        assert caught.value.status_code == 400
        with pytest.raises(ollama.ResponseError, match="Use /api/chat"):
            await client.embed(model="alpha", input="x")


@pytest.mark.parametrize(
    ("path", "body", "word"),
    [
        ("/api/chat", b"", "empty"),
        ("/api/chat", b"{x", "JSON"),
        ("/api/chat", b"[]", "object"),
        ("/api/chat", b'{"model":"alpha","tools":[{"a":' + b"[" * 100_000, "nested"),
        ("/api/chat", b'{"model":"alpha","messages":"hi"}', "messages"),
        ("/api/chat", b'{"model":"alpha","messages":[1]}', "messages"),
        ("/api/chat", b'{"model":"alpha","messages":[{"content":"x"}]}', "role"),
        ("/api/chat", b'{"model":"alpha","messages":[{"role":"user","content":[]}]}', "content"),
        ("/api/chat", b'{"model":5}', "model"),
        ("/api/chat", b'{"model":" "}', "model"),
        ("/api/chat", b"{}", "model"),
        ("/api/generate", b'{"model":"alpha","prompt":"x","stream":"yes"}', "stream"),
        ("/api/generate", b'{"model":"alpha","prompt":"x","options":{"temperature":"hot"}}', "temperature"),
        ("/api/generate", b'{"model":"alpha","prompt":"x","options":{"num_ctx":1.5}}', "num_ctx"),
        ("/api/generate", b'{"model":"alpha","prompt":"\xe9"}', "UTF-8"),
        ("/api/generate", b'{"model":"alpha","prompt":"\\ud800"}', "surrogate"),
        ("/api/generate", b'{"model":"alpha","prompt":NaN}', "JSON"),
        ("/api/embed", b'{"model":"embed","input":5}', "input"),
        ("/api/embed", b'{"model":"embed","dimensions":-1}', "dimensions"),
        ("/api/show", b"{}", "model"),
    ],
)
@pytest.mark.fault("F04")
async def test_wrong_requests(path: str, body: bytes, word: str) -> None:
    async with served(answering(WHOLE)) as (s, _):
        answer = await s.ask("POST", path, body)
        assert answer.status == 400
        assert list(answer.json()) == ["error"]
        assert word in answer.json()["error"]
        assert not s.api.asked


@pytest.mark.fault("F07")
async def test_a_stream_that_breaks_raises() -> None:
    async def script(peer: Peer) -> None:
        await peer.begin_stream()
        await peer.chunk(b"data: " + json.dumps(chunk({"content": "Hal"})).encode() + b"\n\n")
        peer.hang_up()

    async with served(script) as (s, client):
        parts: list[Any] = []
        with pytest.raises(ollama.ResponseError, match="not complete"):
            await read(await client.chat(model="alpha", messages=USER, stream=True), parts)
        assert [part.message.content for part in parts] == ["Hal"]
        assert not parts[-1].done
        await s.api.leases[0].released.wait()


@pytest.mark.fault("F07")
@pytest.mark.parametrize(
    ("end", "told"),
    [
        (b'data: {"error":{"message":"out of memory","code":500}}\n\n', "out of memory"),
        (b"data: {nonsense}\n\ndata: [DONE]\n\n", "cannot be read"),
        (b"", "before the answer was complete"),
    ],
)
async def test_other_ends_that_are_none(end: bytes, told: str) -> None:
    async def script(peer: Peer) -> None:
        await peer.begin_stream()
        await peer.chunk(b"data: " + json.dumps(chunk({"content": "Hal"})).encode() + b"\n\n")
        if end:
            await peer.chunk(end)
        await peer.end_stream()

    async with served(script) as (_, client):
        parts: list[Any] = []
        with pytest.raises(ollama.ResponseError, match=told):
            await read(await client.generate(model="alpha", prompt="x", stream=True), parts)
        assert [part.response for part in parts] == ["Hal"]


@pytest.mark.fault("F06")
@pytest.mark.parametrize("why", ["shutting_down", "unloaded", "worker_died"])
async def test_an_answer_that_is_cut_says_so(why: str) -> None:
    async def script(peer: Peer) -> None:
        await peer.begin_stream()
        await peer.chunk(b"data: " + json.dumps(chunk({"content": "Hal"})).encode() + b"\n\n")
        await peer.left()

    async with served(script) as (s, client):
        stream = await client.chat(model="alpha", messages=USER, stream=True)
        assert (await anext(stream)).message.content == "Hal"
        s.api.leases[0].cut.set_result(why)
        with pytest.raises(ollama.ResponseError) as caught:
            await anext(stream)
        assert "{" not in caught.value.error
        await s.api.leases[0].released.wait()


@pytest.mark.fault("F02")
async def test_a_client_that_leaves_ends_its_request() -> None:
    left = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.begin_stream()
        await peer.chunk(b"data: " + json.dumps(chunk({"content": "Hal"})).encode() + b"\n\n")
        await peer.left()
        left.set()

    async with served(script) as (s, client):
        stream = await client.chat(model="alpha", messages=USER, stream=True)
        await anext(stream)
        await stream.aclose()
        async with asyncio.timeout(20):
            await left.wait()
            await s.api.leases[0].released.wait()


@pytest.mark.fault("F02")
async def test_a_client_that_leaves_while_its_model_loads() -> None:
    async with served(answering(WHOLE)) as (s, client):
        s.api.gate.clear()
        for ask in (client.chat(model="alpha", messages=USER, stream=False), client.generate(model="alpha")):
            s.api.waiting.clear()
            s.api.cancelled.clear()
            waits = asyncio.ensure_future(ask)
            await s.api.waiting.wait()
            waits.cancel()
            await asyncio.wait([waits])
            async with asyncio.timeout(20):
                await s.api.cancelled.wait()


async def test_an_image_for_a_model_that_reads_text_only() -> None:
    said = {"error": {"message": "image input is not supported - hint: provide the mmproj", "code": 500}}
    async with served(answering(said, 500)) as (_, client):
        image = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(40)).decode()
        with pytest.raises(ollama.ResponseError, match="alpha takes no images") as caught:
            await client.chat(model="alpha", messages=[{"role": "user", "content": "?", "images": [image]}])
        assert caught.value.status_code == 400


# Models


async def test_what_is_listed() -> None:
    async with served(answering(WHOLE)) as (s, client):
        s.api.models["qwen3:8b"] = model("qwen3:8b", mmproj="/p.gguf")
        s.api.models["o/r-GGUF:Q4_K_M"] = model("o/r-GGUF:Q4_K_M")
        listed = {entry.model: entry for entry in (await client.list()).models}
        assert set(listed) == {
            "alpha:latest",
            "beta:latest",
            "embed:latest",
            "rank:latest",
            "qwen3:8b",
            "o/r-GGUF:Q4_K_M",
            "auto:latest",
        }
        entry = listed["qwen3:8b"]
        assert entry.size == 1 << 30
        assert entry.modified_at == datetime.fromtimestamp(5, UTC)
        assert len(entry.digest or "") == 64
        assert len({e.digest for e in listed.values()}) == len(listed)
        assert entry.details is not None
        assert (entry.details.format, entry.details.parameter_size) == ("gguf", "8B")
        shown = await client.show("auto")
        assert shown.capabilities == ["completion", "tools"]
        assert "alpha" in (shown.modelfile or "")
        assert (await client.show("embed")).capabilities == ["embedding"]
        assert "vision" in ((await client.show("qwen3:8b")).capabilities or [])


async def test_what_is_loaded() -> None:
    async with served(answering(WHOLE)) as (s, client):
        s.api.windows["alpha"] = 4096
        loading = resident("beta", state=ResidentState.LOADING)
        s.api.publish(snapshot(2, residents=(resident(), loading)))
        [entry] = (await client.ps()).models
        assert (entry.name, entry.model) == ("alpha:latest", "alpha:latest")
        assert (entry.size, entry.context_length) == (3 << 30, 4096)
        assert entry.expires_at == datetime.fromtimestamp(1_700_000_300, UTC)
        s.api.publish(snapshot(3, residents=(resident(keep_alive_s=-1), resident("beta", pinned=True))))
        assert all(e.expires_at and e.expires_at.year > 2100 for e in (await client.ps()).models)
        # Longer than there are dates, and than the system's clock counts.
        s.api.publish(
            snapshot(4, residents=(resident(keep_alive_s=4e13), resident("beta", keep_alive_s=1e19)))
        )
        assert all(e.expires_at and e.expires_at.year > 2100 for e in (await client.ps()).models)


async def test_a_model_of_a_provider_tells_its_context() -> None:
    async with served(answering(WHOLE)) as (s, client):
        s.api.models["cloud/big"] = msgspec.structs.replace(
            model("cloud/big"), header=None, path="", remote=True, remote_id="big", remote_context=4096
        )
        shown = await client.show("cloud/big")
        info = shown.modelinfo or {}
        assert info[f"{info['general.architecture']}.context_length"] == 4096
        assert "FROM cloud/big" in (shown.modelfile or "")


async def test_what_apps_look_for_first() -> None:
    async with served(answering(WHOLE)) as (s, _):
        assert (await s.ask("HEAD", "/")).status == 200
        found = await s.ask("GET", "/")
        assert (found.status, bytes(found.body)) == (200, b"Ollama is running")
        seen = await s.ask("GET", "/", headers={"Accept": "text/html,*/*"})
        assert b"Lemon Tray" in seen.body
        version = (await s.ask("GET", "/api/version")).json()["version"]
        assert [int(part) for part in version.split(".")] >= [0, 6, 4]


@pytest.mark.parametrize("path", ["create", "copy", "push", "blobs/sha256:00"])
async def test_what_is_not_done_here(path: str) -> None:
    async with served(answering(WHOLE)) as (s, _):
        answer = await s.post(f"/api/{path}", {"model": "x"})
        assert answer.status == 501
        assert "not" in answer.json()["error"]


async def test_pulling() -> None:
    async with served(answering(WHOLE)) as (s, client):
        stream = aiter(await client.pull("hf.co/owner/repo:Q4_K_M", stream=True))
        assert (await anext(stream)).status == "pulling manifest"
        step = await anext(stream)
        assert (step.status, step.digest) == (f"pulling {'a' * 12}", f"sha256:{'a' * 64}")
        assert (step.total, step.completed) == (100, 25)
        s.api.pulled.set_result(None)
        assert [part.status async for part in stream] == ["success"]
        assert ("pull", "hf.co/owner/repo:Q4_K_M") in s.api.calls
        s.api.calls.clear()
        assert (await client.pull("alpha")).status == "success"  # It is here already.
        assert (await client.pull("owner/repo:latest")).status == "success"
        assert s.api.calls == [("pull", "owner/repo")]


@pytest.mark.fault("F07")
async def test_a_pull_that_fails() -> None:
    async with served(answering(WHOLE)) as (s, client):
        with pytest.raises(ollama.ResponseError) as caught:
            await client.pull("llama3.2:1b")
        assert caught.value.status_code == 400
        s.api.pulled.set_exception(NotFound("The hub has no such repository."))
        parts: list[Any] = []
        with pytest.raises(ollama.ResponseError, match="no such repository"):
            await read(await client.pull("owner/repo", stream=True), parts)
        with pytest.raises(ollama.ResponseError) as caught:
            await client.pull("owner/repo")
        assert caught.value.status_code == 404


async def test_deleting() -> None:
    async with served(answering(WHOLE)) as (s, client):
        assert (await client.delete("auto:latest")).status == "success"
        assert not s.api.policies
        assert (await client.delete("alpha")).status == "success"
        assert ("delete", "alpha") in s.api.calls
        s.api.in_use.add("beta")
        with pytest.raises(ollama.ResponseError, match="loaded") as caught:
            await client.delete("beta:latest")
        assert caught.value.status_code == 409


# Who may call


@pytest.mark.fault("F18")
async def test_the_checks_are_those_of_all_calls() -> None:
    async with served(answering(WHOLE)) as (s, _):
        body = msgspec.json.encode({"model": "alpha", "messages": USER})
        for headers in ({"Origin": "https://evil.example"}, {"Host": "evil.example"}):
            async with s.client() as client:
                await client.send("POST", "/api/chat", body, headers, host=headers.get("Host") and None)
                refused = await client.answer()
            assert refused.status in (400, 403)
            assert list(refused.json()) == ["error"]
        for path, method in (("/api/pull", "POST"), ("/api/delete", "DELETE")):
            plain = await s.ask(method, path, b'{"model":"alpha"}', {"Content-Type": "text/plain"})
            assert plain.status == 415
        await s.api.set_settings({"require_api_key": True})
        for path in ("/", "/api/tags", "/api/version"):
            assert (await s.ask("GET", path)).status == 401
        assert not s.api.asked
