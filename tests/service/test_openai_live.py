"""OpenAI's own client, against the whole router with the real engine."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from router.paths import Paths
from tests.service.live import ENDLESS, PATIENCE_S, Live, live
from tests.support import gguf

pytestmark = [pytest.mark.engine, pytest.mark.fault("F21")]

USER: Any = [{"role": "user", "content": "hello"}]
ANSWER: Any = {"ignore_eos": True}
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
SCHEMA: Any = {
    "type": "json_schema",
    "json_schema": {
        "name": "mood",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {"mood": {"enum": ["good", "bad"]}, "sure": {"type": "boolean"}},
            "required": ["mood", "sure"],
            "additionalProperties": False,
        },
    },
}
#: As models that call tools have it: calls stand within tags.
TEMPLATE = (
    "{% if tools %}<|im_start|>system\n# Tools\n<tools>"
    "{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}"
    '\n</tools>\n<tool_call>\n{"name": <name>, "arguments": <arguments>}\n</tool_call><|im_end|>\n{% endif %}'
    "{% for m in messages %}{% if m.role == 'assistant' %}<|im_start|>assistant"
    "{% if m.content %}\n{{ m.content }}{% endif %}{% for c in m.tool_calls or [] %}"
    "{% set f = c.function if c.function else c %}\n<tool_call>\n"
    '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n'
    "{% elif m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}\n</tool_response>"
    "<|im_end|>\n"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CALL = ("<tool_call>", '\n{"name": "weather", ', '"arguments": {"city": ', '"Paris"', "}}", "\n</tool_call>")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    gguf.write_model(folder / "chat.gguf", context=8192)
    gguf.write_model(
        folder / "caller.gguf", context=8192, says=CALL, extra={"tokenizer.chat_template": TEMPLATE}
    )
    gguf.write_encoder(folder / "embed.gguf", pooling=1)
    gguf.write_encoder(folder / "rank.gguf", pooling=4)
    (folder / "broken.gguf").write_bytes((folder / "chat.gguf").read_bytes()[:-20_000])
    return folder


@asynccontextmanager
async def client_of(app: Live, **more: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    settings = {"api_key": "none", "max_retries": 2, **more}
    async with openai.AsyncOpenAI(base_url=f"{app.url}/v1", **settings) as client:
        yield client


async def test_chats(tmp_path: Path, models: Path) -> None:
    async with live(tmp_path, models, settings={"parallel": 2}) as app, client_of(app) as client:
        chat = client.chat.completions
        whole = await chat.create(model="chat", messages=USER, max_tokens=4, extra_body=ANSWER)
        assert whole.choices[0].finish_reason == "length"
        assert whole.usage is not None
        assert whole.usage.completion_tokens == 4

        stream = await chat.create(
            model="chat",
            messages=USER,
            max_tokens=4,
            stream=True,
            stream_options={"include_usage": True},
            extra_body=ANSWER,
        )
        chunks = [chunk async for chunk in stream]
        assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
        assert [c.usage.completion_tokens for c in chunks if c.usage] == [4]
        assert chunks[-1].choices == []
        assert len({c.id for c in chunks}) == 1

        plain = await chat.create(model="chat", messages=USER, max_tokens=4, stream=True, extra_body=ANSWER)
        assert all(c.choices and c.usage is None for c in [c async for c in plain])

        completed = await client.completions.create(
            model="chat", prompt="hello", max_tokens=3, extra_body=ANSWER
        )
        assert completed.usage is not None
        assert completed.usage.completion_tokens == 3
        response = await client.responses.create(model="chat", input="hello", max_output_tokens=4)
        assert response.usage is not None
        # What is cancelled frees its slot: an endless answer in each, and then an ordinary one.
        for _ in range(2):
            endless = await chat.create(
                model="chat", messages=USER, max_tokens=ENDLESS, stream=True, extra_body=ANSWER
            )
            await anext(aiter(endless))
            await endless.close()
        await app.until(lambda s: all(r.in_use == 0 for r in s.residents))
        waiting = asyncio.ensure_future(
            chat.create(model="chat", messages=USER, max_tokens=ENDLESS, extra_body=ANSWER)
        )
        await app.until(lambda s: any(r.in_use for r in s.residents))
        waiting.cancel()
        await asyncio.wait([waiting])
        await app.until(lambda s: all(r.in_use == 0 for r in s.residents))
        assert (await chat.create(model="chat", messages=USER, max_tokens=1)).choices
        stats = await app.get("/v1/stats")
        assert (stats["model"], stats["output_tokens"]) == ("chat", 1)
        assert stats["tokens_per_second"] is None
        await chat.create(model="chat", messages=USER, max_tokens=3, extra_body=ANSWER)
        assert 0 < (await app.get("/v1/stats"))["tokens_per_second"] < 1e5


async def test_tools_and_answers_of_a_given_form(tmp_path: Path, models: Path) -> None:
    async with live(tmp_path, models) as app, client_of(app) as client:
        chat = client.chat.completions
        called = await chat.create(model="caller", messages=USER, max_tokens=20, tools=[TOOL], temperature=0)
        assert called.choices[0].finish_reason == "tool_calls"
        [call] = called.choices[0].message.tool_calls or []
        assert call.type == "function"
        assert call.function.name == "weather"
        assert json.loads(call.function.arguments) == {"city": "Paris"}

        arguments, finishes = "", []
        stream = await chat.create(
            model="caller", messages=USER, max_tokens=20, tools=[TOOL], temperature=0, stream=True
        )
        async for chunk in stream:
            for choice in chunk.choices:
                finishes.append(choice.finish_reason)
                for part in choice.delta.tool_calls or []:
                    arguments += (part.function and part.function.arguments) or ""
        assert json.loads(arguments) == {"city": "Paris"}
        assert [finish for finish in finishes if finish] == ["tool_calls"]

        told: Any = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
        said: Any = called.choices[0].message.model_dump(exclude_none=True)
        again = await chat.create(model="caller", messages=[*USER, said, told], max_tokens=1, tools=[TOOL])
        assert again.usage is not None
        assert called.usage is not None
        assert again.usage.prompt_tokens > called.usage.prompt_tokens

        shaped = await chat.create(model="caller", messages=USER, max_tokens=200, response_format=SCHEMA)
        answer = json.loads(shaped.choices[0].message.content or "")
        assert answer["mood"] in ("good", "bad")
        assert isinstance(answer["sure"], bool)


@pytest.mark.fault("F33")
async def test_embeddings_ranks_and_messages(tmp_path: Path, models: Path) -> None:
    async with live(tmp_path, models) as app, client_of(app) as client:
        texts = ["one", "two", "three"]
        # The client asks for base64 unless told otherwise, and unpacks it.
        packed = await client.embeddings.create(model="embed", input=texts)
        floats = await client.embeddings.create(model="embed", input=texts, encoding_format="float")
        assert [item.index for item in packed.data] == [item.index for item in floats.data] == [0, 1, 2]
        for ours, theirs in zip(packed.data, floats.data, strict=True):
            assert list(ours.embedding) == pytest.approx(theirs.embedding, rel=1e-6)
        assert len({tuple(item.embedding) for item in floats.data}) == 3
        for given in ("one", [5, 6], [[5, 6], [7]]):
            answer = await client.embeddings.create(model="embed", input=given)  # type: ignore[arg-type]  # of each kind
            assert len(answer.data) == (2 if given == [[5, 6], [7]] else 1)
        ranked = await app.post("/v1/rerank", {"model": "rank", "query": "one", "documents": texts})
        assert sorted(item["index"] for item in ranked["results"]) == [0, 1, 2]
        message = {"model": "chat", "max_tokens": 3, "messages": USER}
        assert (await app.post("/v1/messages", message))["usage"]["output_tokens"] <= 3
        assert (await app.post("/v1/messages/count_tokens", message))["input_tokens"] > 0
        # One of each type: none had to go for another.
        assert set(await app.pids()) == {"embed", "rank", "chat"}


async def test_each_error_is_the_clients_own(tmp_path: Path, models: Path) -> None:
    settings = {"parallel": 1, "max_queue": 1, "require_api_key": True}
    environ = {"LEMON_TRAY_API_KEY": "a-key-of-the-users-own"}
    async with (
        live(tmp_path, models, settings=settings, environ=environ) as app,
        client_of(app, max_retries=0) as stranger,
        client_of(app, max_retries=0, api_key=environ["LEMON_TRAY_API_KEY"]) as client,
    ):
        chat = client.chat.completions
        with pytest.raises(openai.AuthenticationError):
            await stranger.models.list()
        with pytest.raises(openai.NotFoundError) as missing:
            await chat.create(model="chatt", messages=USER)
        assert missing.value.code == "model_not_found"
        assert "chat" in str(missing.value.body)
        for wrong in ({"messages": []}, {"model": "embed", "messages": USER}):
            with pytest.raises(openai.BadRequestError):
                await chat.create(**{"model": "chat", **wrong})  # type: ignore[call-overload]  # wrong on purpose
        with pytest.raises(openai.BadRequestError):  # The engine's own.
            await chat.create(model="chat", messages=USER, response_format={"type": "nonsense"})  # type: ignore[call-overload]  # wrong on purpose
        with pytest.raises(openai.BadRequestError, match="context"):
            await chat.create(model="chat", messages=[{"role": "user", "content": "word " * 9000}])
        with pytest.raises(openai.PermissionDeniedError):
            await client.models.list(extra_headers={"Origin": "https://evil.example"})
        app.session.headers["Authorization"] = f"Bearer {environ['LEMON_TRAY_API_KEY']}"
        await app.post("/internal/pin", {"model": "chat"})
        gguf.write_model(models / "other.gguf", seed=3)
        await app.until(lambda s: any(m.name == "other" for m in s.models))
        with pytest.raises(openai.ConflictError, match="pinned"):
            await chat.create(model="other", messages=USER)
        await app.post("/v1/unload", {"model": "chat"})
        go = app.hold_loads()
        waiting = asyncio.ensure_future(chat.create(model="chat", messages=USER, max_tokens=1))
        await app.until(lambda s: s.queue.waiting == 1)
        with pytest.raises(openai.InternalServerError) as full:
            await chat.create(model="chat", messages=USER)
        assert full.value.status_code == 503
        assert full.value.response.headers["retry-after"]
        go.set()
        await waiting
        stream = await chat.create(
            model="chat", messages=USER, max_tokens=ENDLESS, stream=True, extra_body=ANSWER
        )
        await anext(aiter(stream))
        await app.post("/v1/unload", {"model": "chat", "wait": False, "force": True}, 202)
        with pytest.raises(openai.APIError, match="unloaded"):
            async for _ in stream:
                pass


async def test_failures_of_models_and_workers_are_the_clients_own(tmp_path: Path, models: Path) -> None:
    options = Paths.under(tmp_path).options_file
    options.parent.mkdir(parents=True)
    options.write_text(json.dumps({"other": {"ctx_size": 4_000_000, "device": "SIM0"}}))
    gguf.write_model(models / "other.gguf", seed=3)
    async with (
        live(tmp_path, models, simulate=(1 << 30,)) as app,
        client_of(app, max_retries=0) as client,
        client_of(app, max_retries=2) as stubborn,
    ):
        chat = client.chat.completions
        with pytest.raises(openai.InternalServerError) as large:
            await stubborn.chat.completions.create(model="other", messages=USER)
        assert (large.value.status_code, large.value.code) == (507, "insufficient_memory")
        # Trying again would not make it smaller, and the client is told so.
        metrics = await (await app.session.get(f"{app.url}/metrics")).text()
        assert 'lemonade_requests_total{model="other",status="507"} 1.0' in metrics

        with pytest.raises(openai.BadRequestError, match="incomplete"):
            await chat.create(model="broken", messages=USER)

        with pytest.raises(openai.APIStatusError) as huge:
            await client.post("/load", body={"model": "chat", "x": "y" * (17 << 20)}, cast_to=object)
        assert (huge.value.status_code, huge.value.code) == (413, "request_too_large")  # type: ignore[attr-defined]  # from the body

        image: Any = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
        with pytest.raises(openai.BadRequestError, match="takes no images") as blind:
            await stubborn.chat.completions.create(
                model="chat", messages=[{"role": "user", "content": [image]}]
            )
        assert blind.value.code == "unsupported_content"
        with pytest.raises(openai.BadRequestError, match="too large to process"):
            await stubborn.embeddings.create(model="embed", input="word " * 2000)
        for wrong in ({"tools": 1}, {"messages": [{"content": "no role"}]}, {"max_tokens": -5}):
            with pytest.raises(openai.BadRequestError):
                await stubborn.chat.completions.create(**{"model": "chat", "messages": USER, **wrong})

        # A worker that is killed: before a status has gone out, and in the middle of a stream.
        waiting = asyncio.ensure_future(
            chat.create(model="chat", messages=USER, max_tokens=ENDLESS, extra_body=ANSWER)
        )
        await app.until(lambda s: any(r.model == "chat" and r.in_use for r in s.residents))
        os.kill((await app.pids())["chat"], signal.SIGKILL)
        with pytest.raises(openai.InternalServerError) as died:
            await waiting
        assert (died.value.status_code, died.value.code) == (502, "worker_died")
        stream = await chat.create(
            model="chat", messages=USER, max_tokens=ENDLESS, stream=True, extra_body=ANSWER
        )
        await anext(aiter(stream))
        os.kill((await app.pids())["chat"], signal.SIGKILL)
        with pytest.raises(openai.APIError, match="ended before the answer was complete"):
            async for _ in stream:
                pass
        # What died twice in a row is left alone for a while.
        with pytest.raises(openai.InternalServerError, match="2 times in a row") as later:
            await chat.create(model="chat", messages=USER, max_tokens=1)
        assert later.value.status_code == 503
        assert int(later.value.response.headers["retry-after"]) >= 1


@pytest.mark.fault("F02")
@pytest.mark.fault("F16")
async def test_clients_that_leave_at_any_moment(
    tmp_path: Path, models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Before the load, during it, before the first token and after it, wanting a stream or not."""
    async with (
        live(tmp_path, models, settings={"parallel": 1}) as app,
        client_of(app, max_retries=0) as client,
    ):
        chat = client.chat.completions

        def ask(stream: bool, text: str = "hello") -> asyncio.Future[Any]:
            made: Any = chat.create(
                model="chat",
                messages=[{"role": "user", "content": text}],
                max_tokens=ENDLESS,
                stream=stream,
                extra_body=ANSWER,
            )
            return asyncio.ensure_future(made)

        async def leave(asked: asyncio.Future[Any]) -> None:
            asked.cancel()
            await asyncio.wait([asked])
            await app.until(lambda s: s.queue.waiting == 0 and not any(r.in_use for r in s.residents))

        go = app.hold_loads(at=0.5)
        for stream in (False, True):
            asked = ask(stream)
            await app.until(lambda s: s.queue.waiting == 1)
            await leave(asked)
        # The load that they began goes on, and it is the next one's.
        assert app.told("admit") == ["chat"]
        go.set()
        assert (await chat.create(model="chat", messages=USER, max_tokens=1)).choices
        assert app.told("admit") == ["chat"]
        assert sum(app.router.snapshot.load_times.counts) == 1
        for stream in (False, True):
            # A long prompt is still being read when its client leaves.
            asked = ask(stream, "word " * 1500)
            await app.until(lambda s: any(r.in_use for r in s.residents))
            await leave(asked)
        answer = await ask(True)
        await anext(aiter(answer))
        await answer.close()
        await app.until(lambda s: not any(r.in_use for r in s.residents))
        # There is one slot, and an ordinary answer gets it at once.
        async with asyncio.timeout(PATIENCE_S):
            assert (await chat.create(model="chat", messages=USER, max_tokens=1)).choices
    assert not [r for r in caplog.records if r.exc_info or r.levelno >= logging.ERROR]
