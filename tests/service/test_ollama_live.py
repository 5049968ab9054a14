"""Ollama's own client, against the whole router with the real engine."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import ollama
import pytest

from tests.service.live import ENDLESS, live
from tests.service.live import policy as policy_document
from tests.service.test_openai_live import CALL, TEMPLATE, TOOL
from tests.support import gguf

pytestmark = pytest.mark.engine

USER: Any = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    gguf.write_model(folder / "chat.gguf", context=8192)
    gguf.write_model(
        folder / "caller.gguf", context=8192, says=CALL, extra={"tokenizer.chat_template": TEMPLATE}
    )
    gguf.write_encoder(folder / "embed.gguf", pooling=1)
    return folder


@asynccontextmanager
async def client_of(url: str) -> AsyncIterator[Any]:
    client: Any = ollama.AsyncClient(host=url, verify=False)
    try:
        yield client
    finally:
        await client.close()


async def test_chats_and_texts(tmp_path: Path, models: Path) -> None:
    settings = {"max_loaded_models": 2, "ctx_size": 1024}
    async with live(tmp_path, models, settings=settings) as app, client_of(app.url) as client:
        listed = {entry.model: entry for entry in (await client.list()).models}
        assert set(listed) == {"chat:latest", "caller:latest", "embed:latest"}
        shown = await client.show("caller")
        assert shown.template == TEMPLATE
        assert shown.modelinfo["llama.context_length"] == 8192
        assert shown.capabilities == ["completion", "tools"]

        some = {"num_predict": 4, "temperature": 0}
        whole = await client.chat("chat:latest", USER, options=some)
        assert (whole.done_reason, whole.eval_count, whole.model) == ("length", 4, "chat:latest")
        assert whole.prompt_eval_count > 0
        assert whole.eval_duration > 0
        parts = [part async for part in await client.chat("chat", USER, stream=True, options=some)]
        assert "".join(part.message.content for part in parts) == whole.message.content
        assert [part.done for part in parts][-2:] == [False, True]
        assert parts[-1].eval_count == 4
        assert parts[-1].prompt_eval_count == whole.prompt_eval_count

        text = await client.generate("chat", "hello", options=some)
        assert (text.response, text.eval_count) == (whole.message.content, 4)
        raw = await client.generate("chat", "hello", raw=True, options=some)
        assert raw.prompt_eval_count < text.prompt_eval_count
        form = {"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"]}
        shaped = await client.generate("caller", "hi", format=form, options={"num_predict": 60})
        assert '"x"' in shaped.response

        [entry] = [entry for entry in (await client.ps()).models if entry.model == "chat:latest"]
        assert entry.context_length == 1024
        assert (await client.generate("chat", keep_alive=0)).done_reason == "unload"
        await app.until_loaded("caller")
        assert (await client.generate("chat", keep_alive=-1)).done_reason == "load"
        assert {e.model: e.expires_at.year > 2100 for e in (await client.ps()).models}["chat:latest"]
        await client.chat("chat", USER, options={**some, "num_ctx": 2048})
        [entry] = [entry for entry in (await client.ps()).models if entry.model == "chat:latest"]
        assert entry.context_length == 2048
        stats = await app.get("/v1/stats")
        assert (stats["model"], stats["path"], stats["output_tokens"]) == ("chat", "/api/chat", 4)


async def test_tools_and_embeddings(tmp_path: Path, models: Path) -> None:
    async with live(tmp_path, models) as app, client_of(app.url) as client:
        asked = {"tools": [TOOL], "options": {"num_predict": 20, "temperature": 0}}
        whole = await client.chat("caller", USER, **asked)
        [call] = whole.message.tool_calls
        assert (call.function.name, call.function.arguments) == ("weather", {"city": "Paris"})
        assert whole.done_reason == "stop"
        parts = [part async for part in await client.chat("caller", USER, stream=True, **asked)]
        [[streamed]] = [part.message.tool_calls for part in parts if part.message.tool_calls]
        assert streamed.function.arguments == {"city": "Paris"}
        told = [*USER, whole.message, {"role": "tool", "tool_name": "weather", "content": "sunny"}]
        again = await client.chat("caller", told, tools=[TOOL], options={"num_predict": 1})
        assert again.prompt_eval_count > whole.prompt_eval_count

        many = await client.embed("embed", ["one", "two"])
        assert len(many.embeddings) == 2
        assert many.prompt_eval_count > 0
        assert sum(each * each for each in many.embeddings[0]) == pytest.approx(1, rel=1e-3)
        few = await client.embed("embed", "one", dimensions=3)
        assert len(few.embeddings[0]) == 3
        old = await client.embeddings("embed", "one")
        length = sum(each * each for each in old.embedding) ** 0.5
        assert [each / length for each in old.embedding] == pytest.approx(list(many.embeddings[0]), abs=1e-3)


@pytest.mark.fault("F02")
async def test_a_client_that_leaves_and_errors(tmp_path: Path, models: Path) -> None:
    async with live(tmp_path, models) as app, client_of(app.url) as client:
        endless = {"num_predict": ENDLESS, "temperature": 0}
        stream = await client.chat("chat", USER, stream=True, options=endless)
        assert not (await anext(stream)).done
        await stream.aclose()
        await app.until(lambda s: all(r.in_use == 0 for r in s.residents))
        # The engine's slot is free again.
        assert (await client.chat("chat", USER, options={"num_predict": 1})).done
        for ask, status in (
            (client.chat("nope", USER), 404),
            (client.chat("embed", USER), 400),
            (client.chat("chat", [{"role": "user", "content": "word " * 9000}]), 400),
            (client.chat("chat", [{"role": "user", "content": "?", "images": ["iVBORw0KGgoAAAAN"]}]), 400),
            (client.generate("chat", "x", suffix="y"), 501),
        ):
            with pytest.raises(ollama.ResponseError) as caught:
                await ask
            assert caught.value.status_code == status, caught.value
            assert "{" not in caught.value.error


async def test_policies_and_the_second_port(tmp_path: Path, models: Path) -> None:
    async with live(tmp_path, models, settings={"llm_pool_autosize": True}) as app:
        await app.router.register_policy(policy_document("auto", "chat", "caller"))
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        await app.post("/internal/set", {"ollama_port": port})
        shown = await app.until(lambda s: s.ollama_endpoint)
        assert shown.ollama_endpoint == f"http://127.0.0.1:{port}"
        assert (await app.get("/v1/health"))["ollama_endpoint"] == shown.ollama_endpoint
        async with client_of(shown.ollama_endpoint) as client:
            assert "auto:latest" in {entry.model for entry in (await client.list()).models}
            for text, model in (("CALLER, hello", "caller"), ("CHAT, hello", "chat")):
                said = [{"role": "user", "content": text}]
                answer = await client.chat("auto", said, options={"num_predict": 1})
                assert answer.model == model
        await app.post("/internal/set", {"ollama_port": 0})
        await app.until(lambda s: not s.ollama_endpoint)
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            sock.listen()
            await app.post("/internal/set", {"ollama_port": sock.getsockname()[1]})
            await app.until(lambda s: any("ollama_port" in problem for problem in s.problems))
