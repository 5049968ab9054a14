"""`GET /v1/events`: snapshots and feed entries as they happen.

What a subscriber has not been sent is not queued for it: it is sent the newest snapshot and the feed entries
that are still kept. So a slow reader costs one payload and a socket buffer, however long it sleeps.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec
from aiohttp import hdrs, web

from router.errors import Unavailable
from router.snapshot import FeedEntry, Snapshot
from router.web.api import RouterApi
from router.web.options import WebOptions
from router.web.sse import COMMENT

_HEADERS = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


class EventHub:
    """The subscribers of the event stream."""

    def __init__(self, api: RouterApi, options: WebOptions) -> None:
        self._api = api
        self._options = options
        self._wakers: dict[asyncio.Event, web.Request] = {}
        self._unsubscribe: Callable[[], None] | None = None
        self._encoded: tuple[Snapshot, bytes] | None = None
        self._closed = False
        # Entries are counted from 1 in each run of the router. As events they have numbers that rise from one
        # run to the next, so that a client that comes back after a restart misses none of the new run.
        self._first = time.time_ns() // 1000

    @property
    def subscribers(self) -> int:
        return len(self._wakers)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Serve one subscriber until it leaves or the hub closes.

        Raises:
            Unavailable: there are too many.
        """
        response = web.StreamResponse(headers=_HEADERS)
        if request.method == hdrs.METH_HEAD:
            await response.prepare(request)
            return response
        if self._closed or len(self._wakers) >= self._options.max_subscribers:
            raise Unavailable(
                f"The event stream has {len(self._wakers)} subscribers, as many as it takes. Close one.",
                code="too_many_subscribers",
                retry_after_s=5,
            )
        waker = asyncio.Event()
        waker.set()
        self._join(waker, request)
        try:
            await response.prepare(request)
            await response.write(b"retry: 1000\n\n")
            await self._serve(response, waker, self._resume_from(request))
            await response.write_eof()
        finally:
            self._leave(waker)
        return response

    def close(self) -> None:
        """End all streams; those of clients that do not read are cut a little later."""
        self._closed = True
        for waker in self._wakers:
            waker.set()
        if self._wakers:
            asyncio.get_running_loop().call_later(self._options.stalled_client_s, self._cut)

    def _cut(self) -> None:
        for request in self._wakers.values():
            if request.transport is not None:
                request.transport.abort()

    async def _serve(self, response: web.StreamResponse, waker: asyncio.Event, last_id: int) -> None:
        options = self._options
        loop = asyncio.get_running_loop()
        sent: Snapshot | None = None
        while True:
            try:
                async with asyncio.timeout(options.keep_alive_s):
                    await waker.wait()
            except TimeoutError:
                await response.write(COMMENT)
                continue
            waker.clear()
            if self._closed:
                return
            began = loop.time()
            for entry in self._api.feed_since(last_id):
                last_id = entry.id
                await response.write(_feed_event(entry, self._first + entry.id))
            snapshot = self._api.snapshot
            if snapshot is not sent:
                sent = snapshot
                await response.write(self._snapshot_event(snapshot))
            rest = began + options.snapshots_s - loop.time()
            if rest > 0 and not self._closed:
                await asyncio.sleep(rest)

    def _resume_from(self, request: web.Request) -> int:
        """The id after which feed entries are wanted; 0, for all, if the event is not one of this run.

        The number of an entry itself is taken as well as that of its event.
        """
        given = request.headers.get("Last-Event-ID", "").strip()
        if not given.isdecimal() or len(given) > 18:
            return 0
        number = int(given)
        number -= self._first if number > self._first else 0
        kept = self._api.feed_since(0)
        newest = kept[-1].id if kept else 0
        return number if number <= newest else 0

    def _snapshot_event(self, snapshot: Snapshot) -> bytes:
        """The snapshot without its feed, which has events of its own; encoded once for all subscribers."""
        if self._encoded is None or self._encoded[0] is not snapshot:
            data = msgspec.json.encode(msgspec.structs.replace(snapshot, feed=()))
            self._encoded = (snapshot, b"event: snapshot\ndata: " + data + b"\n\n")
        return self._encoded[1]

    def _join(self, waker: asyncio.Event, request: web.Request) -> None:
        self._wakers[waker] = request
        if self._unsubscribe is None:
            self._unsubscribe = self._api.subscribe(self._wake)

    def _leave(self, waker: asyncio.Event) -> None:
        self._wakers.pop(waker, None)
        if not self._wakers and self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
            self._encoded = None

    def _wake(self, snapshot: Snapshot) -> None:
        for waker in self._wakers:
            waker.set()


def _feed_event(entry: FeedEntry, number: int) -> bytes:
    return b"event: feed\nid: %d\ndata: %s\n\n" % (number, msgspec.json.encode(entry))
