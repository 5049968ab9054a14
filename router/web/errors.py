"""Errors as they go over the wire: OpenAI's error object, as a response or as an event of a stream."""

from __future__ import annotations

import math
from http import HTTPStatus
from typing import Any, Final

import msgspec
from aiohttp import http_exceptions as faults
from aiohttp import web

from router.errors import BadRequest, Forbidden, NotFound, RouterError, TooLarge
from router.web.shapes import ANTHROPIC, OPENAI, body_of, shape_of

# OpenAI's clients try again after these unless told not to; here nothing changes by itself.
_FINAL: Final = frozenset({HTTPStatus.CONFLICT, HTTPStatus.INSUFFICIENT_STORAGE, HTTPStatus.LOOP_DETECTED})

_KEPT_HEADERS: Final = ("Allow",)
#: What a 503 says that knows no better: when a program that was restarted, or paused, may be there again.
_RETRY_S: Final = 5.0

#: What is wrong with a head, where aiohttp's words would quote it: there may be a key in it.
_UNTOLD: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (faults.InvalidHeader, "one of its headers is not valid"),
    (faults.InvalidURLError, "its target is not valid"),
    (faults.BadStatusLine, "its first line is not valid"),
)
_HTTPS: Final = "Received HTTPS traffic"
_TOO_MANY: Final = "Too many headers"


class MethodNotAllowed(RouterError):
    code = "method_not_allowed"
    status = 405


class HeadTooLarge(RouterError):
    code = "head_too_large"
    status = 431


class UnsupportedMediaType(RouterError):
    code = "unsupported_media_type"
    status = 415


class WorkerError(RouterError):
    """An error that a worker answered, passed on with all fields it gave.

    Attributes:
        error: the worker's error object.
    """

    code = "worker_error"
    status = 502

    def __init__(self, error: dict[str, Any], *, status: int) -> None:
        super().__init__(str(error.get("message") or "The worker gave no reason."), status=status)
        self.error = error

    def body(self) -> dict[str, Any]:
        mine = super().body()["error"]
        return {"error": {**mine, **{key: value for key, value in self.error.items() if value is not None}}}


def error_response(error: RouterError, shape: str = OPENAI) -> web.Response:
    """The error as JSON with its status and, where they help, `Retry-After` and `x-should-retry`."""
    headers = {}
    if error.status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    retry_s = error.retry_after_s
    if retry_s is None and error.status == HTTPStatus.SERVICE_UNAVAILABLE:
        retry_s = _RETRY_S
    if retry_s is not None:
        headers["Retry-After"] = str(max(1, math.ceil(retry_s)))
    if error.status in _FINAL:
        headers["x-should-retry"] = "false"
    return web.Response(
        status=error.status,
        body=msgspec.json.encode(body_of(error, shape)),
        headers=headers,
        content_type="application/json",
    )


def error_event(error: RouterError, name: str = "") -> bytes:
    """The error as one event of a stream of server-sent events; with a name it is in Anthropic's form."""
    if not name:
        return b"data: " + msgspec.json.encode(error.body()) + b"\n\n"
    data = msgspec.json.encode(body_of(error, ANTHROPIC))
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


def response_for_http(exc: web.HTTPException, request: web.Request, limit: int) -> web.Response:
    """One of aiohttp's own errors in the same shape. `limit` is the largest body in bytes."""
    response = error_response(_translated(exc, request, limit), shape_of(request.path))
    for name in _KEPT_HEADERS:
        if name in exc.headers:
            response.headers[name] = exc.headers[name]
    return response


def _translated(exc: web.HTTPException, request: web.Request, limit: int) -> RouterError:
    path = request.rel_url.raw_path[:200]
    if isinstance(exc, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(exc.allowed_methods))
        return MethodNotAllowed(f"{path} does not take {exc.method[:40]}. It takes {allowed}.")
    if exc.status == HTTPStatus.NOT_FOUND:
        return NotFound(
            f"There is nothing at {path}. The API is below /v1, for example /v1/models.", code="unknown_path"
        )
    if exc.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return too_large(limit)
    if exc.status == HTTPStatus.FORBIDDEN:
        return Forbidden(exc.reason)
    return RouterError(f"{exc.reason}.", status=exc.status, code=exc.reason.lower().replace(" ", "_"))


def unreadable(exc: BaseException | None, message: str | None) -> RouterError:
    """The error for what cannot be read as a request, by what aiohttp says of it. Quotes nothing of it."""
    said = (message or "").strip().partition("\n")[0].rstrip(" :.")[:200]
    if isinstance(exc, faults.LineTooLong):
        return HeadTooLarge("The request's target or one of its headers is longer than 8 KiB.")
    if said.startswith(_TOO_MANY):
        return HeadTooLarge("The request has too many headers.")
    if said.startswith(_HTTPS):
        return BadRequest(
            "The request came as HTTPS, and here HTTP is spoken. Begin the address with http://"
        )
    what = next((words for kind, words in _UNTOLD if isinstance(exc, kind)), said)
    return BadRequest(f"The request is not valid HTTP: {what or 'it cannot be parsed'}.")


def too_large(limit: int) -> TooLarge:
    """The error for a request body of more than `limit` bytes."""
    return TooLarge(
        f"The request body is larger than {limit >> 20} MiB. Send less, for example smaller images."
    )
