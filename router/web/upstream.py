"""One connection to a local worker: an `asyncio.Protocol` with httptools' parser, for one exchange at a time.

What has arrived and not been taken is bounded: past a mark the transport stops reading, so that a slow client
slows the worker down and fills no memory. A large request goes out in pieces, so that no second copy of it
waits in the transport.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, cast

import httptools

_HIGH: Final = 256 << 10
_PIECE: Final = 256 << 10
_MAX_HEADER_BYTES: Final = 64 << 10


class UpstreamError(Exception):
    """A worker's answer did not come, or not whole."""


class NotReached(UpstreamError):
    """No connection could be opened: nothing was sent. `refused`: nobody listens there."""

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


class Broken(UpstreamError):
    """The connection ended before the answer did."""


class BadAnswer(UpstreamError):
    """What came is not HTTP."""


class Silent(UpstreamError):
    """The worker stopped in the middle of an answer."""


class Stale(Broken):
    """A pooled connection turned out to be closed before any byte of an answer."""


class WorkerConnection(asyncio.Protocol):
    """One connection to a worker, for one exchange at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, silence_s: float) -> None:
        self._loop = loop
        self._silence_s = silence_s
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[None] | None = None
        self._watcher: Callable[[], None] | None = None
        self._paused = False
        self._is_full = False
        self._watch: asyncio.TimerHandle | None = None
        self._closed = False
        self.used = False
        self._begin()
        self._idle = True

    def _begin(self) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self._header_bytes = 0
        self._parts: deque[bytes] = deque()
        self._buffered = 0
        self._received = False
        self._headers_done = False
        self._until_eof = False
        self._keep = False
        self._unsent = False
        self._last_byte = 0.0
        self.first_byte = 0.0
        self.done = False
        self.failure: Exception | None = None

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._idle or self.done:
            # Bytes that nobody asked for: what follows on this connection could not be trusted.
            self._keep = False
            self.abort()
            return
        self._received = True
        self._last_byte = self._loop.time()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as exc:
            if not self.done:
                self.fail(BadAnswer(f"The worker's answer is not valid HTTP: {exc}"))
            self.abort()
            return
        if self._buffered > _HIGH and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        self._keep = False
        if self._idle or self.done or self.failure:
            self._wake()
            return
        if self._until_eof and exc is None:
            self.done = True
            self._wake()
        elif self.used and not self._received:
            self.fail(Stale("The kept connection was closed."))
        else:
            self.fail(Broken("The worker closed the connection before its answer was complete."))

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._wake()

    # What the parser calls.

    def on_message_begin(self) -> None:
        if self.done:
            self._keep = False  # A second answer to one request.

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._headers_done:
            return  # A trailer: it has no place in an answer that is passed on as it comes.
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > _MAX_HEADER_BYTES:
            raise BadAnswer("too many headers")
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self.done:
            return
        status = self._parser.get_status_code()
        if status < 200:
            self.headers.clear()  # Interim: the answer is still to come.
            return
        self._headers_done = True
        self._keep = self._parser.should_keep_alive()
        coding = length = None
        for name, value in self.headers:
            if name == b"transfer-encoding":
                coding = value.lower()
            elif name == b"content-length":
                length = value
        chunked = coding is not None and coding.endswith(b"chunked")
        self._until_eof = not chunked and length is None and status not in (204, 304)
        self.status = status

    def on_body(self, data: bytes) -> None:
        if self.done:
            return
        if not self.first_byte:
            self.first_byte = self._last_byte
        self._parts.append(data)
        self._buffered += len(data)

    def on_message_complete(self) -> None:
        if self._headers_done:
            self.done = True

    # What the exchange calls.

    @property
    def usable(self) -> bool:
        """Whether it may carry another exchange."""
        return self._transport is not None and not self._closed and not self._transport.is_closing()

    async def send(self, head: bytes, body: bytes | bytearray) -> None:
        """Begin an exchange.

        Raises:
            UpstreamError: the connection ended before all of it was sent.
            RouterError: the exchange was ended by `fail`.
        """
        assert self._transport is not None
        if len(body) < _HIGH:
            self.send_small(head, body)
            return
        self._begin()
        self._idle = False
        self._transport.write(head)
        self._unsent = True
        view = memoryview(body)
        for start in range(0, len(body), _PIECE):
            while self._is_full and self.failure is None and not self.done:
                await self._wait()
            if self.failure is not None:
                raise self.failure
            if self.done:
                return  # It has answered without reading the rest.
            self._transport.write(view[start : start + _PIECE])
        self._unsent = False

    def send_small(self, head: bytes, body: bytes | bytearray) -> None:
        """Begin an exchange whose request is small."""
        assert self._transport is not None
        self._begin()
        self._idle = False
        self._transport.write(head + body)

    def watch(self, watcher: Callable[[], None] | None) -> None:
        """Call back whenever anything has changed, while nobody waits for that; None: no longer."""
        self._watcher = watcher

    def whole(self, most: int) -> bytes | None:
        """The body, if all of it is there and it is no longer than `most`. It stays where it is."""
        if not self.done or self.failure is not None or self._buffered > most:
            return None
        return self._joined()

    def _joined(self) -> bytes:
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)

    async def head(self) -> None:
        """Wait for the status and the headers.

        Raises:
            UpstreamError: they did not come.
            RouterError: the exchange was ended by `fail`.
        """
        while not self.status:
            if self.failure is not None:
                raise self.failure
            await self._wait()
        if not self.done and self._silence_s > 0:
            self._watch = self._loop.call_later(self._silence_s, self._check_silence)

    async def read(self) -> bytes:
        """The next bytes of the body, as they come; none at its end.

        Raises:
            UpstreamError: the answer did not come to its end.
            RouterError: the exchange was ended by `fail`.
        """
        while not self._parts:
            if self.done:
                return b""
            if self.failure is not None:
                raise self.failure
            await self._wait()
        data = self._joined()
        self._parts.clear()
        self._buffered = 0
        if self._paused:
            self._paused = False
            self._last_byte = self._loop.time()
            if self.usable and self._transport is not None:
                self._transport.resume_reading()
        return data

    def fail(self, failure: Exception) -> None:
        """End the exchange from outside; `read` raises this after the bytes that are there."""
        if self.failure is None and not self.done:
            self.failure = failure
        self._wake()

    def finish(self) -> bool:
        """End the exchange; True if the connection may carry another one. If not, it is closed."""
        self._watcher = None
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        keep = (
            self.done
            and self._keep
            and not self._unsent
            and self.failure is None
            and not self._paused
            and self.usable
            and self._transport is not None
            and self._transport.get_write_buffer_size() == 0
        )
        self._idle = True
        if not keep:
            self.abort()
        self._parts.clear()
        return keep

    def abort(self) -> None:
        """Close at once; the worker sees it and stops."""
        if self._transport is not None:
            self._transport.abort()

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        elif self._watcher is not None:
            self._watcher()

    def _check_silence(self) -> None:
        self._watch = None
        if self.done or self.failure:
            return
        # While we do not read, the silence is ours.
        quiet_since = self._loop.time() if self._paused else self._last_byte
        due = quiet_since + self._silence_s
        if due > self._loop.time():
            self._watch = self._loop.call_at(due, self._check_silence)
        else:
            self.fail(
                Silent(f"The worker sent nothing for {self._silence_s:g} s in the middle of its answer.")
            )
            self.abort()
