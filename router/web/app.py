"""The HTTP application: its routes, what is done around every request, and the endpoint that serves it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from typing import Any, Final, cast

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware

from router.errors import RouterError, ShuttingDown
from router.web import quick, respond, security
from router.web.admin import Admin
from router.web.api import RouterApi
from router.web.calls import PREFIXES, Call, calls
from router.web.connection import Connection, Way
from router.web.crowd import Crowd, room
from router.web.engines import EngineCalls
from router.web.events import EventHub
from router.web.guard import AnyHandler, Parts, guard, needs_key
from router.web.inference import Inference
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
from router.web.tally import Tally
from router.web.upload import Bodies

log = logging.getLogger("router.web")

# An upload that was refused is read on for so long, so that its client sees the answer.
_LINGER_S: Final = 5.0
_CLEANUP_S: Final = 0.5
_SHOWN: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # compared with, not bound to


_PARTS: Final = web.AppKey("parts", Parts)


def make_app(api: RouterApi, options: WebOptions | None = None, keys: Keys | None = None) -> web.Application:
    """The application. It answers every error in one shape and checks every request's origin first."""
    options = options or WebOptions()
    tally = Tally()
    bodies = Bodies(options, lambda: api.settings.max_queue_bytes)
    relay = Relay(connect_s=options.connect_s, silence_s=options.worker_silence_s, max_idle=options.max_idle)
    parts = Parts(
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


def _add_routes(app: web.Application, parts: Parts) -> None:
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
        if needs_key(request, parts) and not parts.keys.accepts(given_key(request)):
            return
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0


def _guarded(parts: Parts) -> Middleware:
    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        request[NOTES] = Notes()
        answer = await guard(parts, request, cast(AnyHandler, handler))
        return cast(web.StreamResponse, answer)

    return guarded


def _plain_ways(parts: Parts) -> dict[bytes, Way]:
    """The calls that are answered without aiohttp if they come in plain form, by the line that asks."""

    def way(path: str, kind: Kind) -> Way:
        return Way(
            path,
            begin=functools.partial(quick.begin, parts=parts, kind=kind),
            handle=functools.partial(guard, parts, handler=parts.inference.handler(kind)),
        )

    return {
        f"{hdrs.METH_POST} {prefix}{path} HTTP/1.1".encode("ascii"): way(f"{prefix}{path}", kind)
        for path, kind in KINDS.items()
        for prefix in PREFIXES
    }


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

            plain = _plain_ways(self._parts)
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
