"""Ollama's calls, declared as those of `calls` are."""

from __future__ import annotations

from typing import Any, Final, cast

from aiohttp.typedefs import Handler

from router.web.calls import JSON, MODEL_ERRORS, TEXT, Call, Schema
from router.web.lines import NDJSON
from router.web.ollama import Ollama
from router.web.ollama_pulls import OllamaPulls

_GROUP: Final = "Ollama"
#: Those of an engine besides.
_ANSWER_ERRORS: Final = (*MODEL_ERRORS, 422, 429, 501, 508)

_NAME: Final[Schema] = {"type": "string", "pattern": r"\S"}
_FLAG: Final[Schema] = {"type": ["boolean", "null"]}
_TEXT: Final[Schema] = {"type": ["string", "null"]}
_NUMBER: Final[Schema] = {"type": ["number", "null"]}
_WHOLE: Final[Schema] = {"type": ["integer", "null"]}
_TEXTS: Final[Schema] = {"type": ["array", "null"], "items": {"type": "string"}}
_KEEP_ALIVE: Final[Schema] = {
    "type": ["number", "string", "null"],
    "description": "How long the model stays loaded after this: seconds, or a text such as 5m.",
}
_OPTIONS: Final[Schema] = {
    "type": ["object", "null"],
    "description": "num_ctx and what guides the choice of tokens. Options of loading have no effect.",
    "properties": {
        **dict.fromkeys(
            ("num_ctx", "num_predict", "num_keep", "seed", "top_k", "repeat_last_n", "mirostat"), _WHOLE
        ),
        **dict.fromkeys(
            (
                "temperature",
                "top_p",
                "min_p",
                "typical_p",
                "repeat_penalty",
                "presence_penalty",
                "frequency_penalty",
                "mirostat_tau",
                "mirostat_eta",
            ),
            _NUMBER,
        ),
        "stop": {"type": ["array", "string", "null"], "items": {"type": "string"}},
    },
}
_FORMAT: Final[Schema] = {
    "type": ["object", "string", "null"],
    "description": 'A JSON schema that the answer is to follow, or "json".',
}
_COMMON: Final[dict[str, Schema]] = {
    "model": {**_NAME, "description": "A model's name, with or without `:latest`, or a policy's name."},
    "options": _OPTIONS,
    "keep_alive": _KEEP_ALIVE,
}
_OF_TEXT: Final[dict[str, Schema]] = {
    **_COMMON,
    "stream": {**_FLAG, "description": "Streams unless it is false."},
    "format": _FORMAT,
    "think": {"type": ["boolean", "string", "null"]},
    "logprobs": _FLAG,
    "top_logprobs": {**_WHOLE, "minimum": 0, "maximum": 20},
}
_MESSAGE: Final[Schema] = {
    "type": "object",
    "required": ["role"],
    "properties": {
        "role": {"type": "string"},
        "content": _TEXT,
        "thinking": _TEXT,
        "images": _TEXTS,
        "tool_name": _TEXT,
    },
}
_STATUS: Final[Schema] = {
    "type": "object",
    "required": ["status"],
    "properties": {"status": {"const": "success"}},
}


def _object(*needed: str, **members: Schema) -> Schema:
    return {"type": "object", "required": list(needed), "properties": members}


def _either_name(**members: Schema) -> Schema:
    """`name` is the older spelling of `model`."""
    either = [{"required": ["model"]}, {"required": ["name"]}]
    return {"type": "object", "properties": {"model": _NAME, "name": _NAME, **members}, "anyOf": either}


def _models(**members: Schema) -> Schema:
    entry = _object("name", "model", "details", name=_NAME, details={"type": "object"}, **members)
    return _object("models", models={"type": "array", "items": entry})


def ollama_calls(ollama: Ollama, pulls: OllamaPulls) -> tuple[Call, ...]:
    """The table."""

    def call(method: str, path: str, handler: Any, summary: str, **more: Any) -> Call:
        return Call(method, path, cast(Handler, handler), summary, _GROUP, rooted=True, **more)

    def answer(path: str, handler: Any, summary: str, body: Schema, **more: Any) -> Call:
        return call("POST", path, handler, summary, body=body, bad=_ANSWER_ERRORS, **more)

    text = {"kinds": (JSON, NDJSON)}
    chat = _object(
        "model",
        messages={"type": ["array", "null"], "items": _MESSAGE},
        tools={"type": ["array", "null"], "items": {"type": "object"}},
        **_OF_TEXT,
    )
    generate = _object(
        "model",
        prompt=_TEXT,
        suffix=_TEXT,
        system=_TEXT,
        template=_TEXT,
        raw=_FLAG,
        images=_TEXTS,
        **_OF_TEXT,
    )
    embed = _object(
        "model",
        input={"type": ["array", "string", "null"], "items": {"type": "string"}},
        truncate=_FLAG,
        dimensions={**_WHOLE, "minimum": 0},
        **_COMMON,
    )
    vectors = _object("embeddings", embeddings={"type": "array"})
    vector = _object("embedding", embedding={"type": "array"})
    shown = _object("details", "model_info", "capabilities", capabilities={"type": "array"})
    fetched = {"answer": _STATUS, "bad": (403, 404, 409, 500, 502, 507)}
    return (
        call("GET", "/", ollama.root, "Tell that an endpoint for Ollama's apps is here", kinds=(TEXT,)),
        call(
            "GET",
            "/api/version",
            ollama.version,
            "Tell which version of Ollama's protocol is spoken",
            answer=_object("version", version=_NAME),
        ),
        call("GET", "/api/tags", ollama.tags, "List models and policies", answer=_models(digest=_NAME)),
        call("GET", "/api/ps", ollama.ps, "List the models that are loaded", answer=_models()),
        call(
            "POST",
            "/api/show",
            ollama.show,
            "Tell of one model",
            body=_either_name(),
            answer=shown,
            bad=(404,),
        ),
        answer("/api/chat", ollama.chat, "Answer a chat; without messages, load or unload", chat, **text),
        answer(
            "/api/generate",
            ollama.generate,
            "Answer a prompt; without one, load or unload",
            generate,
            **text,
        ),
        answer("/api/embed", ollama.embed, "Embed texts", embed, answer=vectors),
        answer(
            "/api/embeddings",
            ollama.embeddings,
            "Embed a text",
            _object("model", prompt=_TEXT, **_COMMON),
            answer=vector,
        ),
        call(
            "POST",
            "/api/pull",
            pulls.pull,
            "Fetch a model of the Hugging Face hub",
            body=_either_name(stream=_FLAG),
            kinds=(JSON, NDJSON),
            **fetched,
        ),
        call(
            "DELETE",
            "/api/delete",
            pulls.delete,
            "Delete a policy, or the files of a model",
            body=_either_name(),
            **fetched,
        ),
        *(
            call("POST", path, ollama.not_here, "Refused: not done here", good=(), bad=(501,))
            for path in ("/api/create", "/api/copy", "/api/push", "/api/blobs/{digest}")
        ),
    )
