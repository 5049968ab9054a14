"""What a worker answers instead of an answer, as its client is told it."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from router.errors import BadRequest, RouterError, TooLarge, WorkerDied
from router.web.errors import WorkerError

# What an engine says that has no such path.
_NOT_SPOKEN: Final = frozenset({404, 405, 501})
_PASSED: Final = frozenset({400, 413, 422, 429, 503})
# llama.cpp answers a request that it cannot read with a 500, as if the fault were its own. Clients would try
# such a request again and again.
_UNREADABLE: Final = "failed to parse "
_OF_CLIENT: Final = ("messages", "tools", "tool_choice", "response_format", "input", "grammar", "content")
_CONTRADICTION: Final = "cannot use "
_NOT_SUPPORTED: Final = " input is not supported"
_TOO_LONG: Final = re.compile(
    r"input \((\d+) tokens\) is too large to process.*current batch size: (\d+)", re.DOTALL
)
# How it names the field that is wrong, and in which words of the library that it reads JSON with.
_FIELD: Final = re.compile(r"Field '([\w.\[\]]+)': (?:\[json\.exception\.[\w.]+\] )?(.+)", re.DOTALL)
_TOO_MANY_ANSWERS: Final = re.compile(r"Value must be between 1 <= value <= (\d+), but got (\d+)")
_MEDIA: Final = {"image": "images", "audio": "sound", "video": "videos"}


def error_of(status: int, body: bytes, *, model: str, path: str) -> RouterError:
    """The error of a worker that answered `status`: the engine's own words, under a status that is true."""
    if status in (401, 403):
        return WorkerDied(f"The worker of {model} refused the router's key.", code="worker_refused")
    if status in _NOT_SPOKEN:
        return RouterError(
            f"The engine that runs {model} does not answer {path}.",
            code="not_supported_by_engine",
            status=501,
        )
    if status == 413:  # The embedded engine says no more than that.
        return TooLarge(
            f"The request is larger than the engine that runs {model} takes. Send less, for example smaller "
            "images."
        )
    error = _error_in(body)
    words = str(error.get("message") or "")
    if status == 400 and (named := _FIELD.fullmatch(words)):
        return WorkerError({**error, **_wrong_field(named[1], named[2], model)}, status=400)
    if status == 500:
        medium = words.partition(_NOT_SUPPORTED)[0]
        if medium in _MEDIA:
            return _cannot_take(model, medium)
        if too_long := _TOO_LONG.match(words):
            return BadRequest(
                f"The input has {too_long[1]} tokens and is too large to process: {model} takes "
                f"{too_long[2]} at once. Send it in shorter pieces.",
                code="exceed_context_size_error",
                param="input",
            )
        field = words.lower().removeprefix(_UNREADABLE).partition(":")[0]
        if words.lower().startswith(_UNREADABLE) and field in _OF_CLIENT:
            return BadRequest(words, param=field)
        if words.lower().startswith(_CONTRADICTION):
            return BadRequest(words)
    return WorkerError(error, status=_passed_status(status))


def _wrong_field(field: str, what: str, model: str) -> dict[str, str]:
    told = {"param": field, "message": f"`{field}` is wrong: {what[:1].lower()}{what[1:]}"}
    if field == "n" and (many := _TOO_MANY_ANSWERS.fullmatch(what)):
        slots = "1 slot" if many[1] == "1" else f"{many[1]} slots"
        told["message"] = f"`n` is {many[2]}, but {model} is loaded with {slots}, and each answer takes one."
        told["hint"] = f"Load it with parallel={many[2]} or more, or ask several times."
    return told


def _cannot_take(model: str, medium: str) -> BadRequest:
    return BadRequest(
        f"{model} takes no {_MEDIA[medium]}. Ask a model that does, or send text only.",
        code="unsupported_content",
        param="messages",
        hint=f"If {model} can see or hear, its projector is missing: put its mmproj file beside it.",
    )


def _passed_status(status: int) -> int:
    """A worker's status as the client gets it: its faults are a bad gateway, and no fault of ours."""
    if status in _PASSED:
        return status
    return 400 if status < 500 else 502


def _error_in(body: bytes) -> dict[str, Any]:
    try:
        answer = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        answer = None
    error = answer.get("error", answer) if isinstance(answer, dict) else None
    if isinstance(error, dict):
        return error
    text = error if isinstance(error, str) else body.decode("utf-8", "replace").strip()
    return {"message": text[:500] or "The worker gave no reason."}
