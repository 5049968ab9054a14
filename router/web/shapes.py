"""The form of an error, by the path that was called: OpenAI's, Anthropic's or Ollama's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from router.errors import RouterError

OPENAI: Final = "openai"
ANTHROPIC: Final = "anthropic"
OLLAMA: Final = "ollama"

_ANTHROPIC: Final = re.compile(r"(?:/api)?/v[01]/messages(?:/|\Z)")
_OLLAMA: Final = re.compile(r"/api/(?!v[01](?:/|\Z))")
_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def shape_of(path: str) -> str:
    """Whose form errors have at a path."""
    if _ANTHROPIC.match(path):
        return ANTHROPIC
    return OLLAMA if _OLLAMA.match(path) else OPENAI


def body_of(error: RouterError, shape: str = OPENAI) -> Mapping[str, Any]:
    """The error in that form, ready for JSON."""
    if shape == OLLAMA:
        return {"error": f"{error.message} {error.hint}" if error.hint else error.message}
    body = error.body()
    if shape == ANTHROPIC:
        kind = _TYPES.get(error.status) or ("api_error" if error.status >= 500 else "invalid_request_error")
        return {"type": "error", "error": {**body["error"], "type": kind, "message": error.message}}
    return body
