"""A server of files that sends them as a test tells it to."""

from __future__ import annotations

import asyncio

from aiohttp import web


class Sending:
    """Sends files from where they are asked, and breaks off, stalls or refuses on demand.

    Attributes:
        ranges: what each request asked for, "" for the whole.
        cuts: bytes after which the next connections break.
        stall_at: bytes after which an answer sets `stalled` and waits for `go_on`.
    """

    def __init__(self) -> None:
        self.ranges: list[str] = []
        self.cuts: list[int] = []
        self.obey_range = True
        self.file_status = 200
        self.stall_at: int | None = None
        self.stalled = asyncio.Event()
        self.go_on = asyncio.Event()

    async def send(self, request: web.Request, data: bytes) -> web.StreamResponse:
        asked = request.headers.get("Range", "")
        self.ranges.append(asked)
        if self.file_status != 200:
            return web.Response(status=self.file_status)
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.obey_range else 0
        if start >= len(data):
            return web.Response(status=416)
        headers = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"} if start else {}
        response = web.StreamResponse(status=206 if start else 200, headers=headers)
        rest = data[start:]
        response.content_length = len(rest)
        await response.prepare(request)
        if self.cuts:
            await response.write(rest[: self.cuts.pop(0)])
            assert request.transport is not None
            request.transport.close()
            return response
        if self.stall_at is not None:
            await response.write(rest[: self.stall_at])
            rest = rest[self.stall_at :]
            self.stalled.set()
            await self.go_on.wait()
        await response.write(rest)
        return response
