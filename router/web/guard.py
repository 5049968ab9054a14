"""What is done around every request: who may ask, what an error looks like, and what is noted of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import hdrs, web
from msgspec import Struct

from router import logs
from router.errors import RouterError, ShuttingDown
from router.web import respond, security
from router.web.api import RouterApi
from router.web.asking import Answer, Asking
from router.web.calls import PREFIXES
from router.web.errors import error_response, response_for_http
from router.web.events import EventHub
from router.web.inference import Inference
from router.web.inflight import Inflight
from router.web.job import ROUTE_HEADER
from router.web.keys import Keys
from router.web.notes import NOTES, Notes
from router.web.options import WebOptions
from router.web.relay import Relay
from router.web.shapes import shape_of
from router.web.tally import Tally
from router.web.upload import Bodies

log = logging.getLogger("router.web")

#: Answered without a key: it tells nothing.
_OPEN: Final = frozenset({"/live"})
CLIENT_LEFT: Final = 499
# Asked every few seconds by monitors and the like: not worth a line each.
_QUIET: Final = frozenset({"/live", "/metrics", *(f"{prefix}/health" for prefix in PREFIXES)})

AnyHandler = Callable[[Asking], Awaitable[Answer]]


class Parts(Struct):
    """What lives as long as the application. `is_local`: it can be reached from this machine only."""

    api: RouterApi
    keys: Keys
    bodies: Bodies
    options: WebOptions
    inflight: Inflight
    inference: Inference
    hub: EventHub
    relay: Relay
    tally: Tally
    is_local: bool = True


async def guard(parts: Parts, request: Asking, handler: AnyHandler) -> Answer:
    """Let a handler answer a request that may be made, and make an answer of every error.

    Raises:
        ConnectionError: the client has left, or only cutting the connection can tell that the answer failed.
    """

    async def checked(request: Asking) -> Answer:
        origin = security.check(request, parts.api.bound_hosts, parts.api.settings.cors_origins)
        request[NOTES].origin = origin or ""
        if parts.inflight.closing:
            raise ShuttingDown("The router is shutting down.")
        asked = security.preflight(request) if origin is not None else None
        if asked is None and needs_key(request, parts):
            await parts.keys.check(request)
        return asked or await handler(request)

    return await told(parts, request, checked)


async def told(parts: Parts, request: Asking, handler: AnyHandler) -> Answer:
    """As `guard`, for a request that may be made: note what becomes of it."""
    loop = asyncio.get_running_loop()
    notes = request[NOTES]
    notes.began = notes.began or loop.time()
    status = CLIENT_LEFT
    task = parts.inflight.enter()
    try:
        response: Answer
        try:
            response = await handler(request)
        except RouterError as error:
            response = error_response(error, shape_of(request.path))
        except web.HTTPException as exc:
            if not isinstance(request, web.Request):
                raise
            response = _for_http(exc, request, parts)
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception:
            log.exception("%s %s failed", request.method, _path(request))
            failure = RouterError("The router failed; its log says why.")
            response = error_response(failure, shape_of(request.path))
        if not response.prepared:
            if respond.has_begun(request):
                # Part of another answer is out: only the cut connection can tell that it failed.
                raise ConnectionResetError("an answer could not be completed")
            if notes.route:
                response.headers[ROUTE_HEADER] = notes.route
            if parts.inflight.closing:
                response.force_close()
        status = response.status
        return response
    finally:
        parts.inflight.leave(task)
        parts.bodies.let_go(request)
        note(request, notes, status, loop.time() - notes.began, parts.tally)


def needs_key(request: Asking, parts: Parts) -> bool:
    """Other machines need a key, unless there is none and the user wants it so; this one if it is set.

    What a proxy here passes on comes from where the proxy says.
    """
    settings = parts.api.settings
    if request.path in _OPEN:
        return False
    if settings.require_api_key:
        return True
    if is_trusted(request, parts):
        return False
    return parts.keys.any or not settings.allow_unauthenticated_lan


def is_trusted(request: Asking, parts: Parts) -> bool:
    """Whether a program on this machine asks, for itself."""
    return (parts.is_local or security.is_local(request)) and not security.is_forwarded(request)


def _for_http(exc: web.HTTPException, request: web.Request, parts: Parts) -> web.Response:
    if isinstance(exc, web.HTTPMethodNotAllowed) and request.method == hdrs.METH_OPTIONS:
        allowed = ", ".join(sorted({*exc.allowed_methods, hdrs.METH_OPTIONS}))
        return web.Response(status=204, headers={hdrs.ALLOW: allowed})
    if (request.method, request.raw_path) == (hdrs.METH_OPTIONS, "*"):  # What the whole server can do.
        return web.Response(status=204, headers={hdrs.ALLOW: security.METHODS})
    return response_for_http(exc, request, parts.options.max_body)


def _path(request: Asking) -> str:
    """The path alone: a query may carry a key. Its raw form has no line breaks."""
    return request.rel_url.raw_path if isinstance(request, web.BaseRequest) else request.raw_path


def note(request: Asking, notes: Notes, status: int, seconds: float, tally: Tally) -> None:
    """Count a request that has been answered, and log a line of it. `seconds` is how long it took."""
    path = _path(request)
    tally.request(notes.model, status, seconds)
    level = logging.DEBUG if path in _QUIET and status < 400 else logging.INFO
    logs.tell(log, level, _line, request.method, path[:200], status, notes.failed, notes.model, seconds)


def _line(method: str, path: str, status: int, failed: str, model: str, seconds: float) -> str:
    how = f"{status} ({failed} after the headers)" if failed else str(status)
    return f"{method} {path} {how} {model or '-'} {seconds * 1000:.1f} ms"
