"""Requests in Anthropic's form: what the engine would leave out without a word is refused, or said otherwise.

The engine reads these requests itself, so their bytes stay as they came unless something must be changed.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from router.errors import BadRequest
from router.web import requests
from router.web.options import WebOptions
from router.web.upload import Body

PING: Final = b'event: ping\ndata: {"type": "ping"}\n\n'

_BLOCKS: Final = frozenset({"text", "image", "thinking", "redacted_thinking", "tool_use", "tool_result"})
_SOURCES: Final = frozenset({"base64", "url"})
_TOOLS: Final = frozenset({"custom", "function"})
_END_TURN: Final = "end_turn"
_DELTA: Final = b"event: message_delta\ndata: "
_MOST_HELD: Final = 1 << 20
#: Members that ask for something that only Anthropic's own servers do.
_ELSEWHERE: Final = ("mcp_servers", "container", "context_management")


class _Source(Struct, frozen=True):
    type: str | None = None


class _Part(Struct, frozen=True):
    type: str | None = None
    source: _Source | None = None


class _Block(Struct, frozen=True):
    type: str | None = None
    source: _Source | None = None
    content: str | list[_Part] | UnsetType | None = UNSET


class _Message(Struct, frozen=True):
    content: str | list[_Block] | UnsetType | None = UNSET


class _Tool(Struct, frozen=True):
    type: str | None = None
    name: str | None = None


class _Choice(Struct, frozen=True):
    type: str | None = None
    name: str | None = None


class _Thinking(Struct, frozen=True):
    type: str | None = None


class _Form(Struct, frozen=True):
    format: Raw | UnsetType = UNSET


class _Asked(Struct, frozen=True):
    system: str | list[_Part] | UnsetType | None = UNSET
    max_tokens: int | None = None
    messages: list[_Message] | UnsetType | None = UNSET
    tools: list[_Tool] | None = None
    tool_choice: _Choice | None = None
    thinking: _Thinking | None = None
    output_config: _Form | None = None
    output_format: Raw | UnsetType = UNSET
    mcp_servers: Raw | UnsetType = UNSET
    container: Raw | UnsetType = UNSET
    context_management: Raw | UnsetType = UNSET


async def mended(body: Body, options: WebOptions) -> Body:
    """The request as the engine understands it.

    Raises:
        BadRequest: naming what cannot be done here.
    """
    asked = await requests.decode_as(_Asked, body, options)
    _check_system(asked.system)
    _check_messages(asked.messages or [])
    _check_tools(asked.tools or [])
    _check_members(asked)
    if not _needs_change(asked):
        return body
    if len(body) <= options.inline_body:
        return _changed(body, asked)
    return await asyncio.to_thread(_changed, body, asked)


def _check_system(system: str | list[_Part] | UnsetType | None) -> None:
    if not isinstance(system, list):
        return
    for at, part in enumerate(system):
        if part.type != "text":
            raise BadRequest(
                f"`system[{at}]` is of type {str(part.type)[:40]!r}; only texts can stand there.",
                code="unsupported_content",
                param=f"system[{at}]",
            )


def _check_messages(messages: list[_Message]) -> None:
    for at, message in enumerate(messages):
        if not isinstance(message.content, list):
            continue
        for number, block in enumerate(message.content):
            where = f"messages[{at}].content[{number}]"
            _check_block(block.type, block.source, where)
            if isinstance(block.content, list):
                for place, part in enumerate(block.content):
                    _check_block(part.type, part.source, f"{where}.content[{place}]")


def _check_block(kind: str | None, source: _Source | None, where: str) -> None:
    if kind not in _BLOCKS:
        raise BadRequest(
            f"`{where}` is of type {str(kind)[:40]!r}, which cannot be read here. Send its text.",
            code="unsupported_content",
            param=where,
        )
    if kind == "image" and (source is None or source.type not in _SOURCES):
        raise BadRequest(
            f"`{where}.source` must be the image itself, with the type base64, or its url.",
            code="unsupported_content",
            param=f"{where}.source",
        )


def _check_tools(tools: list[_Tool]) -> None:
    for at, tool in enumerate(tools):
        if tool.type is not None and tool.type not in _TOOLS:
            raise BadRequest(
                f"`tools[{at}]` is {tool.type[:60]!r}, a tool of Anthropic's own that does not exist here. "
                "Describe it as a tool with an `input_schema`.",
                code="unsupported_tool",
                param=f"tools[{at}].type",
            )


def _check_members(asked: _Asked) -> None:
    if asked.max_tokens is not None and asked.max_tokens < 1:
        # The engine takes a negative number for no bound at all.
        raise BadRequest("`max_tokens` must be at least 1.", param="max_tokens")
    for name in _ELSEWHERE:
        if _given(getattr(asked, name)):
            raise BadRequest(f"`{name}` is not supported here.", code="unsupported_parameter", param=name)
    form = asked.output_config.format if asked.output_config is not None else UNSET
    if _given(form) or _given(asked.output_format):
        raise BadRequest(
            "Answers of a given form are not supported by this call. Use /v1/chat/completions with "
            "`response_format`.",
            code="unsupported_parameter",
            param="output_format" if _given(asked.output_format) else "output_config.format",
        )


def _given(value: Raw | UnsetType) -> bool:
    return value is not UNSET and bytes(value) not in (b"null", b"[]", b"{}")


def _needs_change(asked: _Asked) -> bool:
    choice = asked.tool_choice.type if asked.tool_choice is not None else None
    return choice in ("none", "tool") or _thinks(asked) is not None


def _thinks(asked: _Asked) -> bool | None:
    kind = asked.thinking.type if asked.thinking is not None else None
    return {"enabled": True, "adaptive": True, "disabled": False}.get(kind or "")


def _changed(body: Body, asked: _Asked) -> bytes:
    members = msgspec.json.decode(body, type=dict[str, Raw])
    choice = asked.tool_choice
    if choice is not None and choice.type == "none":
        # The engine knows no such choice. A model that is shown no tools calls none.
        members.pop("tools", None)
        members.pop("tool_choice", None)
    elif choice is not None and choice.type == "tool":
        # The engine makes this "any tool", so only the one is shown.
        tools = msgspec.json.decode(members.get("tools", Raw(b"[]")), type=list[Raw])
        kept = [raw for raw, tool in zip(tools, asked.tools or [], strict=False) if tool.name == choice.name]
        if not kept:
            raise BadRequest(
                f"`tool_choice.name` is {str(choice.name)[:60]!r}, which is none of the tools.",
                param="tool_choice.name",
            )
        members["tools"] = Raw(msgspec.json.encode(kept))
    thinks = _thinks(asked)
    if thinks is not None:
        given: Any = msgspec.json.decode(members.get("chat_template_kwargs", Raw(b"{}")))
        told = {"enable_thinking": thinks, **(given if isinstance(given, dict) else {})}
        members["chat_template_kwargs"] = Raw(msgspec.json.encode(told))
    return msgspec.json.encode(members)


def told_stop(answer: bytes) -> bytes:
    """A whole answer that says why it stopped: the engine calls a stop sequence the end of the turn."""
    try:
        members = msgspec.json.decode(answer, type=dict[str, Raw])
        stop = msgspec.json.decode(members.get("stop_sequence", Raw(b"null")))
        if stop is None or msgspec.json.decode(members["stop_reason"]) != _END_TURN:
            return answer
    except (msgspec.MsgspecError, KeyError, RecursionError):
        return answer
    members["stop_reason"] = Raw(b'"stop_sequence"')
    return msgspec.json.encode(members)


class Mender:
    """Passes a stream of the engine's on, event by event, and sets right what clients stumble over.

    Each stream begins with `message_start`, also one that ends before its first piece of text; and with
    `stops` it tells a stop sequence from the end of a turn. What is not written as the engine writes it
    passes as it is.
    """

    def __init__(self, model: str, *, stops: bool) -> None:
        self._model = model
        self._stops = stops
        self._held = b""
        self._is_first = True
        self._is_plain = False

    def feed(self, data: bytes) -> bytes:
        """The bytes that may go on: whole events."""
        if self._is_plain:
            return data
        self._held += data
        if b"\r" in data or len(self._held) > _MOST_HELD:
            return self.flush()
        end = self._held.rfind(b"\n\n")
        if end < 0:
            return b""
        events, self._held = self._held[: end + 2], self._held[end + 2 :]
        made = b"".join([self._mended(event + b"\n\n") for event in events[:-2].split(b"\n\n")])
        if not self._stops and not self._is_first:
            self._is_plain = True
            made, self._held = made + self._held, b""
        return made

    def flush(self) -> bytes:
        """Give up on the rest: the bytes held back."""
        self._is_plain = True
        held, self._held = self._held, b""
        return held

    def _mended(self, event: bytes) -> bytes:
        start = b""
        if self._is_first and b"data:" in event:
            self._is_first = False
            if event.startswith(b"event: message_delta"):
                start = _start(self._model)
        if self._stops and event.startswith(_DELTA):
            return start + _told_delta(event)
        return start + event


def _start(model: str) -> bytes:
    message: dict[str, Any] = {
        "id": "msg_0",
        "type": "message",
        "role": "assistant",
        "content": [],
        "model": model,
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 0, "output_tokens": 0},
    }
    data = msgspec.json.encode({"type": "message_start", "message": message})
    return b"event: message_start\ndata: %b\n\n" % data


def _told_delta(event: bytes) -> bytes:
    try:
        value = msgspec.json.decode(event[len(_DELTA) :])
        delta = value["delta"]
        if delta["stop_reason"] != _END_TURN or delta.get("stop_sequence") is None:
            return event
        delta["stop_reason"] = "stop_sequence"
    except (msgspec.MsgspecError, KeyError, TypeError, AttributeError, RecursionError):
        return event
    return _DELTA + msgspec.json.encode(value) + b"\n\n"
