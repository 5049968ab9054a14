"""A small router for commands to ask, which notes what it is asked."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer


class Noting:
    """Notes method, path and body of each request, and answers by `reply`."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(text) if (text := await request.text()) else None
        self.calls.append((f"{request.method} {request.path}", body))
        return await self.reply(request)

    async def reply(self, request: web.Request) -> web.StreamResponse:
        raise NotImplementedError


@asynccontextmanager
async def answering(
    handle: Callable[[web.Request], Awaitable[web.StreamResponse]], path: str
) -> AsyncIterator[str]:
    """The address, with that path, where `handle` answers every request."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    async with TestServer(app, shutdown_timeout=0.1) as server:
        yield str(server.make_url(path))
