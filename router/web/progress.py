"""How far a download is, as events of a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec
from aiohttp import web

from router.errors import RouterError, Unavailable
from router.snapshot import Snapshot
from router.web.api import RouterApi
from router.web.errors import error_event
from router.web.options import WebOptions

T = TypeVar("T")

_EVENTS: Final = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


async def stream_progress(
    request: web.Request,
    api: RouterApi,
    options: WebOptions,
    end: asyncio.Future[T],
    download: str,
    complete: Callable[[T], Mapping[str, Any]],
) -> web.StreamResponse:
    """Answer with events `progress` until a download ends, then with `complete` or an error.

    Args:
        download: its name in the snapshot.
        complete: what the last event tells, made of what the download gave.
    """
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
        result = raise_failure(end)
    except RouterError as error:
        await response.write(error_event(error))
    else:
        await response.write(_event("complete", complete(result)))
    await response.write_eof()
    return response


class Fetches:
    """Fetches under way. They go on for whoever else waits for them, should the client that asked leave."""

    def __init__(self) -> None:
        self._running: set[asyncio.Future[Any]] = set()

    def hold(self, fetch: Awaitable[T]) -> asyncio.Future[T]:
        """Keep a fetch until its end. Returns that end."""
        end = asyncio.ensure_future(fetch)
        self._running.add(end)
        end.add_done_callback(self._ended)
        return end

    def _ended(self, end: asyncio.Future[Any]) -> None:
        self._running.discard(end)
        if not end.cancelled():
            end.exception()  # Marks it as seen: the client may have left.


def raise_failure(end: asyncio.Future[T]) -> T:
    """What a download that has ended gave.

    Raises:
        Unavailable: it was cancelled.
        RouterError: it failed.
    """
    if end.cancelled():
        raise Unavailable("The fetch was cancelled.", code="cancelled")
    return end.result()


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
            "stage": download.stage,
            "bytes_per_second": round(download.per_s),
        },
    )


def _event(name: str, data: Any) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(data))
