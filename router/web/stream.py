"""The client's side of a stream: it is kept alive while nothing comes, and it never ends in silence."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

from router.errors import RouterError
from router.web.asking import Asking, Streaming
from router.web.errors import error_event
from router.web.respond import streaming
from router.web.sse import COMMENT, Scanner

# An event must reach the client when it is written: no cache, no proxy that collects.
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class EventStream:
    """A response of server-sent events that may begin before its first event is there.

    After `silence_s` without a byte a comment goes out, only where an event may begin; the first one sends
    the headers with it. None: no comments, for a client that did not ask for a stream.
    `event` names the event that tells an error; `beat` is what goes out in silence. Call `close` when the
    handler ends.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        request: Asking,
        route: str | None,
        silence_s: float | None,
        keep: int = 64 << 10,
        event: str = "",
        beat: bytes = COMMENT,
    ) -> None:
        self._event = event
        self._comment = beat
        self._request = request
        self._route = route
        self._silence_s = silence_s or 0.0
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self._timer = self._loop.call_later(silence_s, self._tick) if silence_s else None
        self._deadline: asyncio.TimerHandle | None = None
        self._beat: asyncio.Task[None] | None = None
        self._closed = False
        self.scanner = Scanner(keep)
        self.response: Streaming | None = None

    def routed(self, route: str, silence_s: float) -> None:
        """Tell the route in headers that are still to go out, which wait for `silence_s` from now on."""
        self._route = route
        if self._timer is not None:
            self._silence_s = silence_s
            self._timer.cancel()
            self._timer = self._loop.call_at(self._last + silence_s, self._tick)

    @property
    def started(self) -> bool:
        """Whether the status line has gone out."""
        return self.response is not None

    async def start(self, headers: Iterable[tuple[str, str]] = ()) -> Streaming:
        """Send the headers, unless they are out already."""
        if self.response is not None:
            return self.response
        response = self.response = streaming(self._request, headers)
        response.headers.update(_HEADERS)
        response.headers["Content-Type"] = self.media_type
        if self._route is not None:
            response.headers["x-lemonade-route"] = self._route
        await response.prepare(self._request)
        return response

    async def write(self, data: bytes) -> None:
        """Pass on a fragment; waits while the client is slow."""
        response = self.response or await self.start()
        self._last = self._loop.time()
        self.scanner.feed(data)
        await response.write(data)

    async def fail(self, error: RouterError) -> Streaming:
        """End with an event that tells the error. An event that was under way is ended first."""
        response = await self.start()
        self._hush()
        await response.write(self.scanner.to_boundary() + error_event(error, self._event))
        await response.write_eof()
        return response

    async def finish(self) -> None:
        """End it after the last byte."""
        response = await self.start()
        self._hush()
        await response.write_eof()

    def expire(self, seconds: float) -> None:
        """Close the client's connection unless the handler ends within `seconds`."""
        if self._deadline is None:
            self._deadline = self._loop.call_later(seconds, self._abort)

    def reprieve(self) -> None:
        """Take `expire` back: another worker is asked."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def close(self) -> None:
        """The handler ends: no more comments, no deadline."""
        self._hush()
        if self._deadline is not None:
            self._deadline.cancel()

    def _abort(self) -> None:
        if self._request.transport is not None:
            self._request.transport.abort()

    def _hush(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = None
        if self._closed:
            return
        now = self._loop.time()
        due = self._last + self._silence_s
        if due > now:
            self._timer = self._loop.call_at(due, self._tick)
            return
        self._timer = self._loop.call_at(now + self._silence_s, self._tick)
        # A client that does not read needs no sign of life, and what is not read would pile up.
        if not self._request.protocol.writing_paused and (self._beat is None or self._beat.done()):
            self._beat = self._loop.create_task(self._send_comment())

    async def _send_comment(self) -> None:
        # Up to the write nothing here suspends, so no fragment can come between the test and the comment.
        if self._closed or not self.scanner.at_boundary or self._last + self._silence_s > self._loop.time():
            return
        with contextlib.suppress(ConnectionError):  # The client left: its handler is being cancelled.
            response = await self.start()
            await response.write(self._comment)
