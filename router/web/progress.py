"""How far a download is, as events of a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any, Final

import msgspec
from aiohttp import web

from router.errors import RouterError, Unavailable
from router.snapshot import Snapshot
from router.web.api import RouterApi
from router.web.errors import error_event
from router.web.options import WebOptions

_EVENTS: Final = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


async def stream_progress(
    request: web.Request,
    api: RouterApi,
    options: WebOptions,
    end: asyncio.Future[None],
    download: str,
    complete: Mapping[str, Any],
) -> web.StreamResponse:
    """Answer with events `progress` until a download ends, then with `complete` or an error."""
    response = web.StreamResponse(headers=_EVENTS)
    await response.prepare(request)
    changed = asyncio.Event()
    changed.set()
    end.add_done_callback(lambda _: changed.set())
    unsubscribe = api.subscribe(lambda _: changed.set())
    last = b""
    try:
        while not end.done():
            await changed.wait()
            changed.clear()
            event = _progress_event(api.snapshot, download)
            if event and event != last:
                last = event
                await response.write(event)
                await asyncio.sleep(options.snapshots_s)
    finally:
        unsubscribe()
    try:
        raise_failure(end)
    except RouterError as error:
        await response.write(error_event(error))
    else:
        await response.write(_event("complete", complete))
    await response.write_eof()
    return response


class Fetches:
    """Fetches under way. They go on for whoever else waits for them, should the client that asked leave."""

    def __init__(self) -> None:
        self._running: set[asyncio.Future[None]] = set()

    def hold(self, fetch: Awaitable[None]) -> asyncio.Future[None]:
        """Keep a fetch until its end. Returns that end."""
        end = asyncio.ensure_future(fetch)
        self._running.add(end)
        end.add_done_callback(self._ended)
        return end

    def _ended(self, end: asyncio.Future[None]) -> None:
        self._running.discard(end)
        if not end.cancelled():
            end.exception()  # Marks it as seen: the client may have left.


def raise_failure(end: asyncio.Future[None]) -> None:
    """Raise what made a download fail, if it did.

    Raises:
        Unavailable: it was cancelled.
        RouterError: it failed.
    """
    if end.cancelled():
        raise Unavailable("The fetch was cancelled.", code="cancelled")
    end.result()


def _progress_event(snapshot: Snapshot, name: str) -> bytes:
    """How far the download is; nothing if there is none of that name."""
    download = next((item for item in snapshot.downloads if item.name == name), None)
    if download is None:
        return b""
    percent = round(100 * download.done / download.total, 1) if download.total else None
    return _event(
        "progress",
        {
            "model_name": download.name,
            "state": download.state,
            "bytes_downloaded": download.done,
            "bytes_total": download.total,
            "percent": percent,
        },
    )


def _event(name: str, data: Any) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(data))
