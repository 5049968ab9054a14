"""Requests in Ollama's form, and what they are in OpenAI's. Nothing here waits or asks anybody."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from router.errors import BadRequest

LATEST: Final = ":latest"

KeepAlive = str | int | float | UnsetType | None

_EFFORTS: Final = frozenset({"low", "medium", "high", "max"})
_MOST_TOP_LOGPROBS: Final = 20
_NO_PARAMETERS: Final = {"type": "object", "properties": {}}
#: How base64 of an image begins, and what it is then.
_IMAGES: Final = (
    ("iVBORw0KGgo", "image/png"),
    ("/9j/", "image/jpeg"),
    ("R0lGOD", "image/gif"),
    ("UklGR", "image/webp"),
    ("Qk", "image/bmp"),
)


#: A whole number, which some clients write as 5.0.
Whole = int | float | None


class Options(Struct, frozen=True):
    """Ollama's `options` that are for one request. Those that are for loading a model are left out."""

    num_ctx: Whole = None
    num_predict: Whole = None
    num_keep: Whole = None
    seed: Whole = None
    temperature: float | None = None
    top_k: Whole = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repeat_last_n: Whole = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    mirostat: Whole = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    stop: list[str] | str | None = None

    def __post_init__(self) -> None:
        for name in _WHOLE:
            value = getattr(self, name)
            if isinstance(value, float) and not value.is_integer():
                raise BadRequest(
                    f"`options.{name}` is {value}; it must be a whole number.", param=f"options.{name}"
                )


_WHOLE: Final = ("num_ctx", "num_predict", "num_keep", "seed", "top_k", "repeat_last_n", "mirostat")
#: Options that the engine knows by another name.
_RENAMED: Final = {"num_keep": "n_keep"}
_OWN_RULES: Final = frozenset({"num_ctx", "num_predict", "seed", "stop"})


class Function(Struct, frozen=True):
    name: str
    arguments: dict[str, Any] = {}


class ToolCall(Struct, frozen=True):
    function: Function
    id: str | None = None


class Message(Struct, frozen=True):
    """One message. `tool_name` (once `name`) tells of which tool the message holds the result."""

    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_name: str | None = None
    name: str | None = None
    tool_call_id: str | None = None


class Chat(Struct, frozen=True):
    """`POST /api/chat`"""

    model: str
    messages: list[Message] | None = None
    tools: list[dict[str, Any]] | None = None
    stream: bool | None = None
    format: Raw | UnsetType = UNSET
    options: Options | None = None
    keep_alive: KeepAlive = UNSET
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


class Generate(Struct, frozen=True):
    """`POST /api/generate`"""

    model: str
    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    template: str | None = None
    context: list[int] | None = None
    images: list[str] | None = None
    raw: bool | None = None
    stream: bool | None = None
    format: Raw | UnsetType = UNSET
    options: Options | None = None
    keep_alive: KeepAlive = UNSET
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether it asks for no text: it only loads the model, or unloads it."""
        return not self.prompt and not self.suffix and not self.images


class Embed(Struct, frozen=True):
    """`POST /api/embed`"""

    model: str
    input: str | list[str] | None = None
    truncate: bool | None = None
    dimensions: int | None = None
    options: Options | None = None
    keep_alive: KeepAlive = UNSET

    def __post_init__(self) -> None:
        if self.dimensions is not None and self.dimensions < 0:
            raise BadRequest("`dimensions` must not be negative.", param="dimensions")

    @property
    def texts(self) -> list[str]:
        """What is to be embedded; nothing where the model is only to be loaded."""
        if isinstance(self.input, str):
            return [self.input] if self.input else []
        return self.input or []


class Embeddings(Struct, frozen=True):
    """`POST /api/embeddings`, the older call: one text, one vector that is not normalized."""

    model: str
    prompt: str | None = None
    options: Options | None = None
    keep_alive: KeepAlive = UNSET


def chat_body(asked: Chat, model: str) -> dict[str, Any]:
    """The body for `/v1/chat/completions`.

    Raises:
        BadRequest: naming the field at fault.
    """
    body: dict[str, Any] = {"model": model, "messages": messages(asked.messages or [])}
    if asked.tools:
        body["tools"] = [_tool(tool, at) for at, tool in enumerate(asked.tools)]
    _add_common(body, asked)
    return body


def generate_body(asked: Generate, model: str) -> dict[str, Any]:
    """The body for `/v1/chat/completions`: the prompt as one message, after the system's if there is one.

    Raises:
        BadRequest: naming the field at fault.
    """
    _refuse_unknown_forms(asked)
    said = [Message("system", asked.system)] if asked.system else []
    said.append(Message("user", asked.prompt, images=asked.images))
    body: dict[str, Any] = {"model": model, "messages": messages(said)}
    _add_common(body, asked)
    return body


def raw_body(asked: Generate, model: str) -> dict[str, Any]:
    """The body for `/v1/completions`: the prompt as it stands, without the model's template.

    Raises:
        BadRequest: naming the field at fault.
    """
    _refuse_unknown_forms(asked)
    if asked.images:
        raise BadRequest("`images` cannot go with `raw`. Leave `raw` out.", param="images")
    body: dict[str, Any] = {"model": model, "prompt": asked.prompt}
    _add_common(body, asked, of_chat=False)
    return body


def infill_body(asked: Generate, model: str) -> dict[str, Any]:
    """The body for the engine's `/infill`: what stands between `prompt` and `suffix`.

    Raises:
        BadRequest: naming the field at fault.
    """
    _refuse_unknown_forms(asked)
    if asked.images:
        raise BadRequest("`images` cannot go with `suffix`.", param="images")
    body: dict[str, Any] = {
        "model": model,
        "input_prefix": asked.prompt or "",
        "input_suffix": asked.suffix,
        "prompt": "",
    }
    _add_common(body, asked, of_chat=False)
    if "max_tokens" in body:
        body["n_predict"] = body.pop("max_tokens")
    return body


def embed_body(asked: Embed, model: str) -> dict[str, Any]:
    """The body for `/v1/embeddings`."""
    body = {"model": model, "input": asked.texts, "encoding_format": "float"}
    return body | keep_alive_member(asked.keep_alive)


def embeddings_body(asked: Embeddings, model: str) -> dict[str, Any]:
    """The body for `/v1/embeddings`, asking for a vector as the model gives it."""
    body = {"model": model, "input": asked.prompt, "encoding_format": "float", "embd_normalize": -1}
    return body | keep_alive_member(asked.keep_alive)


def messages(said: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages in OpenAI's form. Calls of tools that have no id get one, and so do their results.

    Raises:
        BadRequest: an image is not base64.
    """
    made: list[dict[str, Any]] = []
    count = 0
    open_calls: list[tuple[str, str]] = []
    for at, message in enumerate(said):
        one: dict[str, Any] = {"role": message.role}
        if message.images:
            one["content"] = [_image(image, f"messages[{at}].images") for image in message.images]
            if message.content:
                one["content"].append({"type": "text", "text": message.content})
        else:
            one["content"] = message.content or ""
        if message.thinking:
            one["reasoning_content"] = message.thinking
        if message.tool_calls:
            calls = []
            for call in message.tool_calls:
                name, id = call.function.name, call.id or f"call_{count}"
                count += 1
                open_calls.append((name, id))
                arguments = msgspec.json.encode(call.function.arguments).decode()
                calls.append(
                    {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
                )
            one["tool_calls"] = calls
        if message.role == "tool":
            name = message.tool_name or message.name or ""
            one["tool_call_id"] = message.tool_call_id or _answered(open_calls, name)
            if name:
                one["name"] = name
        made.append(one)
    return made


def think_options(think: bool | str | None) -> dict[str, Any]:
    """What the model's template is told about thinking.

    Raises:
        BadRequest: it is no such value.
    """
    if think is None:
        return {}
    if isinstance(think, bool):
        return {"enable_thinking": think}
    if think.lower() not in _EFFORTS:
        raise BadRequest(
            f"`think` is {think[:40]!r}; it can be true, false, or one of {', '.join(sorted(_EFFORTS))}.",
            param="think",
        )
    return {"enable_thinking": True, "reasoning_effort": think.lower()}


def engine_options(given: Options | None) -> dict[str, Any]:
    """The options under the engine's names. What is not given is left to the engine."""
    if given is None:
        return {}
    made: dict[str, Any] = {}
    for name in given.__struct_fields__:
        value = getattr(given, name)
        if value is not None and name not in _OWN_RULES:
            made[_RENAMED.get(name, name)] = int(value) if name in _WHOLE else value
    # Everything below 1 means "as long as it takes" there, and the engine would take 0 at its word.
    if given.num_predict is not None and given.num_predict >= 1:
        made["max_tokens"] = int(given.num_predict)
    if given.seed is not None and given.seed >= 0:
        made["seed"] = int(given.seed)
    if given.stop:
        made["stop"] = [given.stop] if isinstance(given.stop, str) else given.stop
    return made


def read_format(given: Raw | UnsetType) -> Mapping[str, Any] | None:
    """The JSON schema that an answer is to follow; an empty one for any JSON; None for free text.

    Raises:
        BadRequest: it is none.
    """
    if given is UNSET:
        return None
    value = msgspec.json.decode(given)
    if value in (None, ""):
        return None
    if value == "json":
        return {}
    if isinstance(value, dict):
        return value
    raise BadRequest('`format` can be "json" or a JSON schema.', param="format")


def keep_alive_member(given: KeepAlive) -> dict[str, Any]:
    """The member that tells how long the model stays; none where nothing is said."""
    return {} if given is UNSET else {"keep_alive": given}


def _add_common(body: dict[str, Any], asked: Chat | Generate, *, of_chat: bool = True) -> None:
    schema = read_format(asked.format)
    body.update(engine_options(asked.options))
    if asked.stream is not False:
        body["stream"] = True
        body["stream_options"] = {"include_usage": True}
    body.update(keep_alive_member(asked.keep_alive))
    top = asked.top_logprobs or 0
    if not 0 <= top <= _MOST_TOP_LOGPROBS:
        raise BadRequest(f"`top_logprobs` can be 0 to {_MOST_TOP_LOGPROBS}.", param="top_logprobs")
    if asked.logprobs:
        body.update({"logprobs": True, "top_logprobs": top} if of_chat else {"logprobs": max(1, top)})
    if of_chat:
        if schema is not None:
            body["response_format"] = _response_format(schema)
        if thinking := think_options(asked.think):
            body["chat_template_kwargs"] = thinking
    elif schema is not None:
        body["json_schema"] = schema or {"type": "object"}


def _response_format(schema: Mapping[str, Any]) -> dict[str, Any]:
    if not schema:
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


def _tool(tool: Mapping[str, Any], at: int) -> dict[str, Any]:
    function = tool.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadRequest(f"`tools[{at}].function.name` is missing.", param=f"tools[{at}]")
    filled = {key: value for key, value in function.items() if value is not None}
    return {**tool, "type": "function", "function": {"parameters": _NO_PARAMETERS, **filled}}


def _refuse_unknown_forms(asked: Generate) -> None:
    if asked.template:
        raise BadRequest(
            "`template` is not supported: a model's own template is used. With `raw` the prompt goes to the "
            "model as it is.",
            param="template",
        )
    if asked.context:
        raise BadRequest(
            "`context` is not supported. Send the conversation as `messages` to /api/chat.", param="context"
        )


def _image(text: str, where: str) -> dict[str, Any]:
    """An image as a content part."""
    kind, data = "image/jpeg", text.strip()
    if data.startswith("data:"):
        data = data.partition(",")[2]
    try:
        # The beginning shows whether it is a path or an address, which some send by mistake.
        base64.b64decode(data[:64], validate=True)
    except (binascii.Error, ValueError):
        data = ""
    if not data:
        raise BadRequest(f"`{where}` must hold images as base64.", param=where)
    for start, found in _IMAGES:
        if data.startswith(start):
            kind = found
            break
    return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{data}"}}


def _answered(open_calls: list[tuple[str, str]], name: str) -> str:
    """The id of the call that a result belongs to: the first of that tool, or the first of all."""
    for at, (called, id) in enumerate(open_calls):
        if not name or called == name:
            del open_calls[at]
            return id
    return open_calls.pop(0)[1] if open_calls else "call_0"
