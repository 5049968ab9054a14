"""The HTTP application: its routes, what is done around every request, and the endpoint that serves it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware
from msgspec import Struct

from router import logs
from router.errors import RouterError, ShuttingDown
from router.web import respond, security
from router.web.admin import Admin
from router.web.api import RouterApi
from router.web.asking import Answer, Asking
from router.web.calls import PREFIXES, Call, calls
from router.web.connection import Connection, PlainHandler
from router.web.crowd import Crowd, room
from router.web.engines import EngineCalls
from router.web.errors import error_response, response_for_http
from router.web.events import EventHub
from router.web.inference import ROUTE_HEADER, Inference
from router.web.inflight import Inflight
from router.web.keys import Keys, given_key
from router.web.kinds import KINDS, Kind
from router.web.notes import NOTES, Notes
from router.web.ollama import Ollama
from router.web.ollama_calls import ollama_calls
from router.web.ollama_pulls import OllamaPulls
from router.web.openapi import document
from router.web.options import WebOptions
from router.web.ports import open_sockets
from router.web.providers import ProviderCalls
from router.web.relay import Relay
from router.web.scraping import Scraping
from router.web.second import SecondPort
from router.web.shapes import shape_of
from router.web.tally import Tally
from router.web.upload import Bodies

log = logging.getLogger("router.web")

#: Answered without a key: it tells nothing.
_OPEN: Final = frozenset({"/live"})

_CLIENT_LEFT: Final = 499
# Asked every few seconds by monitors and the like: not worth a line each.
_QUIET: Final = frozenset({"/live", "/metrics", *(f"{prefix}/health" for prefix in PREFIXES)})
# An upload that was refused is read on for so long, so that its client sees the answer.
_LINGER_S: Final = 5.0
_CLEANUP_S: Final = 0.5
_Handler = Callable[[Asking], Awaitable[Answer]]
_SHOWN: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # compared with, not bound to


class _Parts(Struct):
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


_PARTS: Final = web.AppKey("parts", _Parts)


def make_app(api: RouterApi, options: WebOptions | None = None, keys: Keys | None = None) -> web.Application:
    """The application. It answers every error in one shape and checks every request's origin first."""
    options = options or WebOptions()
    tally = Tally()
    bodies = Bodies(options, lambda: api.settings.max_queue_bytes)
    relay = Relay(connect_s=options.connect_s, silence_s=options.worker_silence_s, max_idle=options.max_idle)
    parts = _Parts(
        api=api,
        keys=keys or Keys(),
        bodies=bodies,
        options=options,
        inflight=Inflight(),
        inference=Inference(api, relay, tally, bodies, options),
        hub=EventHub(api, options),
        relay=relay,
        tally=tally,
    )
    app = web.Application(middlewares=[_guarded(parts)], client_max_size=options.max_body)
    app.on_response_prepare.append(_prepare)
    app[_PARTS] = parts
    _add_routes(app, parts)

    async def close(_: web.Application) -> None:
        relay.close()

    app.on_cleanup.append(close)
    return app


def _add_routes(app: web.Application, parts: _Parts) -> None:
    admin = Admin(parts.api, parts.tally, parts.bodies, parts.options)
    engines = EngineCalls(parts.api, parts.options, admin.read)
    providers = ProviderCalls(parts.api, admin.read)
    table = calls(
        admin, parts.inference, engines, providers, parts.hub.handle, Scraping(parts.api, parts.tally).scrape
    )
    ollama = Ollama(parts.api, parts.inference, parts.bodies, parts.options)
    table += ollama_calls(ollama, OllamaPulls(parts.api, parts.bodies, parts.options))
    admin.description = document(table)
    for call in table:
        for path in call.paths:
            _add_route(app, call, path)


def _add_route(app: web.Application, call: Call, path: str) -> None:
    # A model's name may have slashes.
    pattern = path.replace("{id}", "{id:.+}")
    if call.method == hdrs.METH_GET:
        app.router.add_get(pattern, call.handler, expect_handler=_expect)  # HEAD, too
    else:
        app.router.add_route(call.method, pattern, call.handler, expect_handler=_expect)


async def _prepare(request: web.Request, response: web.StreamResponse) -> None:
    respond.let_pages_read(request, response.headers)
    # Which versions of what answer here helps nobody but who looks for a hole.
    response.headers.pop(hdrs.SERVER, None)


async def _expect(request: web.Request) -> None:
    """Ask for the body only if it is going to be read. Refusing is the guard's, which comes after this."""
    parts = request.app[_PARTS]
    if request.headers.get(hdrs.EXPECT, "").lower() != "100-continue":
        return
    if (request.content_length or 0) > parts.options.max_body or parts.inflight.closing:
        return
    with contextlib.suppress(RouterError):
        security.check(request, parts.api.bound_hosts, parts.api.settings.cors_origins)
        if _needs_key(request, parts) and not parts.keys.accepts(given_key(request)):
            return
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0


def _guarded(parts: _Parts) -> Middleware:
    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        request[NOTES] = Notes()
        answer = await _guard(parts, request, cast(_Handler, handler))
        return cast(web.StreamResponse, answer)

    return guarded


def _plain_handlers(parts: _Parts) -> dict[bytes, tuple[str, PlainHandler]]:
    """The calls that are answered without aiohttp if they come in plain form, by the line that asks."""

    def handler(kind: Kind) -> PlainHandler:
        return functools.partial(_guard, parts, handler=parts.inference.handler(kind))

    return {
        f"{hdrs.METH_POST} {prefix}{path} HTTP/1.1".encode("ascii"): (f"{prefix}{path}", handler(kind))
        for path, kind in KINDS.items()
        for prefix in PREFIXES
    }


async def _guard(parts: _Parts, request: Asking, handler: _Handler) -> Answer:
    """What is done around every request, also one for a path that does not exist."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    status = _CLIENT_LEFT
    task = None
    notes = request[NOTES]
    try:
        response: Answer
        try:
            origin = security.check(request, parts.api.bound_hosts, parts.api.settings.cors_origins)
            notes.origin = origin or ""
            task = parts.inflight.enter()
            asked = security.preflight(request) if origin is not None else None
            if asked is None and _needs_key(request, parts):
                await parts.keys.check(request)
            response = asked or await handler(request)
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
        _note(request, notes, status, loop.time() - began, parts.tally)


def _needs_key(request: Asking, parts: _Parts) -> bool:
    """Other machines need a key, unless there is none and the user wants it so; this one if it is set.

    What a proxy here passes on comes from where the proxy says.
    """
    settings = parts.api.settings
    if request.path in _OPEN:
        return False
    if settings.require_api_key:
        return True
    if (parts.is_local or security.is_local(request)) and not security.is_forwarded(request):
        return False
    return parts.keys.any or not settings.allow_unauthenticated_lan


def _for_http(exc: web.HTTPException, request: web.Request, parts: _Parts) -> web.Response:
    if isinstance(exc, web.HTTPMethodNotAllowed) and request.method == hdrs.METH_OPTIONS:
        allowed = ", ".join(sorted({*exc.allowed_methods, hdrs.METH_OPTIONS}))
        return web.Response(status=204, headers={hdrs.ALLOW: allowed})
    if (request.method, request.raw_path) == (hdrs.METH_OPTIONS, "*"):  # What the whole server can do.
        return web.Response(status=204, headers={hdrs.ALLOW: security.METHODS})
    return response_for_http(exc, request, parts.options.max_body)


def _path(request: Asking) -> str:
    """The path alone: a query may carry a key. Its raw form has no line breaks."""
    return request.rel_url.raw_path if isinstance(request, web.BaseRequest) else request.raw_path


def _note(request: Asking, notes: Notes, status: int, seconds: float, tally: Tally) -> None:
    path = _path(request)
    tally.request(notes.model, status, seconds)
    level = logging.DEBUG if path in _QUIET and status < 400 else logging.INFO
    logs.tell(log, level, _line, request.method, path[:200], status, notes.failed, notes.model, seconds)


def _line(method: str, path: str, status: int, failed: str, model: str, seconds: float) -> str:
    how = f"{status} ({failed} after the headers)" if failed else str(status)
    return f"{method} {path} {how} {model or '-'} {seconds * 1000:.1f} ms"


class Endpoint:
    """Serves a router over HTTP.

    Attributes:
        url: where it answers, without a path; "" before `start`.
        port: its port; 0 before `start`.
        second: its second port, for apps that speak only Ollama.
    """

    def __init__(self, api: RouterApi, options: WebOptions | None = None, keys: Keys | None = None) -> None:
        self._app = make_app(api, options, keys)
        self._parts = self._app[_PARTS]
        self._runner: web.AppRunner | None = None
        self._servers: list[asyncio.Server] = []
        self.second = SecondPort()
        self.url = ""
        self.port = 0

    async def start(self, host: str, port: int) -> str:
        """Listen, and answer from now on. Returns the URL, for example `http://127.0.0.1:13305`.

        Callers from other machines need a key then, if there is one or the settings do not say otherwise.
        On `127.0.0.1` it listens on `::1` too, where that port is free there. `port` 0 takes any free one.

        Raises:
            InstanceError: the address is taken or cannot be used; says by whom and what to change.
        """
        sockets = await open_sockets(host, port)
        self._parts.is_local = security.is_loopback(host)
        try:
            # A handler must be told when its client leaves: by default aiohttp lets it run on.
            runner = web.AppRunner(
                self._app, handler_cancellation=True, access_log=None, shutdown_timeout=_CLEANUP_S
            )
            await runner.setup()
            self._runner = runner
            server = runner.server
            if server is None:
                raise RuntimeError("The application could not be set up.")
            loop = asyncio.get_running_loop()

            # The access log is ours; aiohttp's declaration forgets that None switches its own off.
            # Compressed bodies are inflated by ourselves, within a bound and off the loop.
            choices: dict[str, Any] = {
                "access_log": None,
                "lingering_time": _LINGER_S,
                "auto_decompress": False,
                "keepalive_timeout": self._parts.options.idle_client_s,
                "unread_s": self._parts.options.unread_s,
            }

            plain = _plain_handlers(self._parts)
            clients = Crowd(self._parts.options.max_clients or room())

            def connection() -> Connection:
                return Connection(server, plain=plain, crowd=clients, loop=loop, **choices)

            self.second.use(connection)
            for sock in sockets:
                self._servers.append(await loop.create_server(connection, sock=sock, backlog=1024))
        except BaseException:
            for sock in sockets:
                sock.close()
            raise
        self.port = sockets[0].getsockname()[1]
        shown = _SHOWN.get(host, sockets[0].getsockname()[0])
        self.url = f"http://[{shown}]:{self.port}" if ":" in shown else f"http://{shown}:{self.port}"
        return self.url

    async def listen_also(self, port: int) -> None:
        """Answer at a second port of this machine, too; 0: at none. `second` tells how that went."""
        await self.second.move(port, self.url, self.port)

    async def stop(self, grace_s: float = 5.0) -> None:
        """Take no new request, give those under way `grace_s`, then end them: streams with an error event.

        Returns within about `grace_s` and three seconds, whatever clients do. May be called twice.
        """
        runner, self._runner = self._runner, None
        if runner is None:
            return
        parts = self._parts
        parts.inflight.closing = True
        for server in self._servers:
            server.close()
        self.second.close()
        parts.hub.close()
        if not await parts.inflight.drained(grace_s):
            parts.inference.end_all(ShuttingDown("The router is shutting down."))
            if not await parts.inflight.drained(parts.options.stalled_client_s):
                log.info("%d requests were cut off", parts.inflight.cancel())
                await parts.inflight.drained(_CLEANUP_S)
        await runner.cleanup()
        for server in self._servers:
            await server.wait_closed()
        self._servers.clear()
