"""`/openapi.json`: the table of calls, as a description that programs read."""

from __future__ import annotations

import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Final

from router.version import __version__
from router.web.calls import EVENTS, JSON, TEXT, Call
from router.web.lines import NDJSON
from router.web.shapes import ANTHROPIC, OLLAMA, OPENAI

_PARAMETER: Final = re.compile(r"\{(\w+)\}")
_MEANINGS: Final = {
    400: "The request is wrong; `param` names the field.",
    401: "An API key is wanted, and there is no valid one.",
    403: "The host is not this endpoint's, or a page of another origin calls.",
    404: "There is no such model, policy or thing.",
    408: "The body stopped coming.",
    409: "What is pinned, or something else that somebody chose, stands in the way.",
    413: "The body is too large.",
    415: "The body has another content type or encoding than the call takes.",
    422: "The engine cannot make sense of the request.",
    429: "The engine has too much to do.",
    431: "The target or a header is too long.",
    500: "Something could not be written to disk, or a process could not be ended.",
    501: "The engine does not know this call.",
    502: "The worker failed, or could not be started.",
    503: "Not now: the queue is full, the wait was too long, or the router is shutting down.",
    507: "The model does not fit into the memory of any device.",
    508: "A provider leads back to this router.",
}
_SHOULD_RETRY: Final = {
    "x-should-retry": {
        "schema": {"const": "false"},
        "description": "Trying again does not help by itself.",
    }
}
_RETRY_AFTER: Final = {
    "Retry-After": {"schema": {"type": "integer"}, "description": "Seconds after which it may help."}
}
_ERROR_SCHEMA: Final = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "code", "param", "hint"],
            "properties": {
                "message": {"type": "string", "minLength": 1},
                "type": {"type": "string"},
                "code": {"type": ["string", "integer"]},
                "param": {"type": ["string", "null"]},
                "hint": {"type": ["string", "null"]},
            },
        }
    },
}
_ANTHROPIC_ERROR: Final = {
    "type": "object",
    "required": ["type", "error"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {"type": {"type": "string"}, "message": {"type": "string", "minLength": 1}},
        },
    },
}
_OLLAMA_ERROR: Final = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string", "minLength": 1}},
}
#: By whose form it is: the name of the schema of errors, and the schema.
_ERRORS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    OPENAI: ("Error", _ERROR_SCHEMA),
    ANTHROPIC: ("AnthropicError", _ANTHROPIC_ERROR),
    OLLAMA: ("OllamaError", _OLLAMA_ERROR),
}
_OBJECT: Final = {"type": "object"}
# How events and lines look is not for OpenAPI 3.1 to say.
_CONTENT: Final[dict[str, dict[str, Any]]] = {
    EVENTS: {},
    NDJSON: {},
    TEXT: {"schema": {"type": "string"}},
}


def document(calls: Iterable[Call]) -> dict[str, Any]:
    """The description, in OpenAPI 3.1."""
    paths: dict[str, dict[str, Any]] = {}
    for call in calls:
        paths.setdefault(call.paths[0], {})[call.method.lower()] = _operation(call)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Lemon Tray",
            "version": __version__,
            "description": "Everything below /v1 is also below /api/v1, /v0 and /api/v0. Errors have the "
            "form of OpenAI's, at /v1/messages of Anthropic's, at Ollama's calls of Ollama's. A stream that "
            "fails after its headers ends with an event, or a line, that holds an error.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{}, {"key": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": dict(_ERRORS.values()),
            "responses": {
                f"{name}{status}": _error(status, name)
                for name, _ in _ERRORS.values()
                for status in _MEANINGS
            },
        },
    }


def _operation(call: Call) -> dict[str, Any]:
    path = call.paths[0]
    error, _ = _ERRORS[call.shape]
    made: dict[str, Any] = {
        "operationId": _name(call.method, path),
        "summary": call.summary,
        "tags": [call.group],
        "responses": {
            **{
                str(status): {
                    "description": "Done." if status != HTTPStatus.ACCEPTED else "It has begun.",
                    "content": {
                        kind: {"schema": call.answer or _OBJECT} if kind == JSON else _CONTENT[kind]
                        for kind in call.kinds
                    },
                }
                for status in call.good
            },
            **{str(status): {"$ref": f"#/components/responses/{error}{status}"} for status in call.errors},
        },
    }
    parameters = _PARAMETER.findall(path)
    if parameters:
        made["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            for name in parameters
        ]
    if call.body is not None:
        made["requestBody"] = {
            "required": not call.optional,
            "content": {JSON: {"schema": call.body}},
        }
    return made


def _name(method: str, path: str) -> str:
    words = re.findall(r"\w+", path.removeprefix("/v1"))
    return "_".join([method.lower(), *words])


def _error(status: int, name: str) -> dict[str, Any]:
    headers: dict[str, Any] = {}
    if status in (HTTPStatus.CONFLICT, HTTPStatus.INSUFFICIENT_STORAGE):
        headers = _SHOULD_RETRY
    elif status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers = _RETRY_AFTER
    made: dict[str, Any] = {
        "description": _MEANINGS[status],
        "content": {JSON: {"schema": {"$ref": f"#/components/schemas/{name}"}}},
    }
    return {**made, "headers": headers} if headers else made
