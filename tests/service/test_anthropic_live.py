"""Anthropic's own client, against the whole router with the real engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import pytest

from tests.service.live import ENDLESS, Live, live
from tests.service.live import policy as policy_document
from tests.service.test_openai_live import CALL, TEMPLATE
from tests.support import gguf

pytestmark = pytest.mark.engine

USER: Any = [{"role": "user", "content": "hello"}]
TOOL: Any = {
    "name": "weather",
    "description": "Tells the weather.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
#: Sampling without chance, which the client's own parameters do not offer.
SURE: Any = {"extra_body": {"temperature": 0}}
KEY = "a-key-of-the-users-own"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    gguf.write_model(folder / "chat.gguf", context=8192)
    gguf.write_model(
        folder / "caller.gguf", context=8192, says=CALL, extra={"tokenizer.chat_template": TEMPLATE}
    )
    return folder


@asynccontextmanager
async def client_of(app: Live, key: str = "none") -> AsyncIterator[Any]:
    http = anthropic.DefaultAsyncHttpxClient(verify=False)
    async with anthropic.AsyncAnthropic(
        base_url=app.url, api_key=key, max_retries=0, http_client=http
    ) as client:
        yield client


async def test_messages(tmp_path: Path, models: Path) -> None:
    async with live(tmp_path, models) as app, client_of(app) as client:
        whole = await client.messages.create(
            model="chat", max_tokens=4, messages=USER, system="be brief", **SURE
        )
        assert whole.type == "message"
        assert whole.model == "chat"
        assert whole.stop_reason in ("max_tokens", "end_turn")
        assert whole.usage.input_tokens > 0
        counted = await client.messages.count_tokens(model="chat", messages=USER, system="be brief")
        plain = await client.messages.count_tokens(model="chat", messages=USER)
        assert counted.input_tokens > plain.input_tokens > 0

        async with client.messages.stream(
            model="chat", max_tokens=4, messages=USER, system="be brief", **SURE
        ) as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_message()
        assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
        assert final.content[0].text == whole.content[0].text
        assert final.usage.output_tokens == whole.usage.output_tokens
        stats = await app.get("/v1/stats")
        assert stats["output_tokens"] == whole.usage.output_tokens

        # A client that leaves frees the slot.
        endless = await client.messages.create(model="chat", max_tokens=ENDLESS, messages=USER, stream=True)
        await anext(aiter(endless))
        await endless.close()
        await app.until(lambda s: all(r.in_use == 0 for r in s.residents))


async def test_why_an_answer_stopped(tmp_path: Path, models: Path) -> None:
    async with live(tmp_path, models) as app, client_of(app) as client:
        # This model says one thing only.
        asked: Any = {"model": "caller", "max_tokens": 30, "messages": USER, **SURE}
        short = await client.messages.create(**{**asked, "max_tokens": 2})
        assert (short.stop_reason, short.stop_sequence) == ("max_tokens", None)
        stopped = await client.messages.create(**asked, stop_sequences=["nothing", "weather"])
        assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "weather")
        async with client.messages.stream(**asked, stop_sequences=["weather"]) as stream:
            final = await stream.get_final_message()
        assert (final.stop_reason, final.stop_sequence) == ("stop_sequence", "weather")
        assert final.content[0].text == stopped.content[0].text


async def test_tools(tmp_path: Path, models: Path) -> None:
    async with live(tmp_path, models) as app, client_of(app) as client:
        asked: Any = {"model": "caller", "max_tokens": 20, "tools": [TOOL], **SURE}
        called = await client.messages.create(messages=USER, **asked)
        assert called.stop_reason == "tool_use"
        [use] = [block for block in called.content if block.type == "tool_use"]
        assert (use.name, use.input) == ("weather", {"city": "Paris"})
        async with client.messages.stream(messages=USER, **asked) as stream:
            final = await stream.get_final_message()
        [streamed] = [block for block in final.content if block.type == "tool_use"]
        assert streamed.input == {"city": "Paris"}
        told: Any = [
            *USER,
            {"role": "assistant", "content": [block.model_dump() for block in called.content]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "sunny"}]},
        ]
        again = await client.messages.create(messages=told, **{**asked, "max_tokens": 1})
        assert again.usage.input_tokens > 0
        for choice in ({"type": "none"}, {"type": "tool", "name": "weather"}):
            made = await client.messages.create(messages=USER, tool_choice=choice, **asked)
            is_called = any(block.type == "tool_use" for block in made.content)
            assert is_called is (choice["type"] == "tool")


async def test_policies_and_errors(tmp_path: Path, models: Path) -> None:
    settings = {"require_api_key": True}
    environ = {"LEMON_TRAY_API_KEY": KEY}
    async with (
        live(tmp_path, models, settings=settings, environ=environ) as app,
        client_of(app) as stranger,
        client_of(app, KEY) as client,
    ):
        await app.router.register_policy(policy_document("auto", "chat", "caller"))
        for text, model in (("CALLER", "caller"), ("CHAT", "chat")):
            said: Any = [{"role": "user", "content": text}]
            assert (await client.messages.create(model="auto", max_tokens=1, messages=said)).model == model
            stream = await client.messages.create(model="auto", max_tokens=1, messages=said, stream=True)
            events = [event async for event in stream]
            assert events[0].type == "message_start", events
            assert events[0].message.model == model

        with pytest.raises(anthropic.AuthenticationError):
            await stranger.messages.create(model="chat", max_tokens=1, messages=USER)
        with pytest.raises(anthropic.NotFoundError) as missing:
            await client.messages.create(model="nope", max_tokens=1, messages=USER)
        assert isinstance(missing.value.body, dict)
        assert missing.value.body["error"]["type"] == "not_found_error"
        long: Any = [{"role": "user", "content": "word " * 9000}]
        for stream in (False, True):
            with pytest.raises(anthropic.BadRequestError, match="context") as caught:
                await client.messages.create(model="chat", max_tokens=1, messages=long, stream=stream)
            assert isinstance(caught.value.body, dict)
            assert caught.value.body["type"] == "error"
            assert caught.value.body["error"]["type"] == "invalid_request_error"
        image: Any = {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0K"},
        }
        with pytest.raises(anthropic.BadRequestError, match="images"):
            await client.messages.create(
                model="chat", max_tokens=1, messages=[{"role": "user", "content": [image]}]
            )
