"""The way to local workers: kept connections, and answers that are passed on as they come.

A connection is one `asyncio.Protocol` with httptools' parser. What has arrived and not been taken is bounded:
past a mark the transport stops reading, so that a slow client slows the worker down and fills no memory. A
large request goes out in pieces, so that no second copy of it waits in the transport.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, cast

import httptools

from router.engines.base import Worker
from router.errors import RouterError

_HIGH: Final = 256 << 10
_PIECE: Final = 256 << 10
_EVENT_STREAM: Final = "text/event-stream"
_MAX_HEADER_BYTES: Final = 64 << 10

_HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
# Not for a worker: who the client is to us, where its page comes from, and what we set ourselves. The body
# has been decoded by then, and an encoded answer could not be watched.
_NOT_SENT: Final = _HOP_BY_HOP | {
    b"accept-encoding",
    b"api-key",
    b"authorization",
    b"content-encoding",
    b"content-length",
    b"content-type",
    b"cookie",
    b"expect",
    b"host",
    b"origin",
    b"referer",
    b"x-api-key",
}
_NOT_RETURNED: Final = _HOP_BY_HOP | {b"content-length", b"date", b"server", b"set-cookie"}


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


class _Stale(Broken):
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
            self.fail(_Stale("The kept connection was closed."))
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
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
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


class Exchange:
    """One request to one worker, and its answer."""

    def __init__(self, relay: Relay, worker: Worker) -> None:
        self._relay = relay
        self._worker = worker
        self._connection: WorkerConnection | None = None
        self._failure: RouterError | None = None
        self._is_begun = False

    async def send(self, path: str, headers: Iterable[tuple[bytes, bytes]], body: bytes | bytearray) -> None:
        """Send the request, unless it was by `begin`, and wait for the head of the answer.

        A kept connection that was closed before it gave one byte is replaced by a new one, once.

        Raises:
            NotReached: the worker takes no connection; nothing was sent.
            UpstreamError: no answer came.
            RouterError: `fail` was called.
        """
        head = _request_head(self._worker, path, tuple(headers), len(body))
        try:
            if self._is_begun:
                self._is_begun = False
                await self._open.head()
            else:
                await self._attempt(head, body, fresh=False)
        except _Stale:
            await self._attempt(head, body, fresh=True)

    def begin(
        self,
        path: str,
        headers: tuple[tuple[bytes, bytes], ...],
        body: bytes | bytearray,
        watcher: Callable[[], None],
    ) -> bool:
        """Send a small request at once, if there is a kept connection; `send` goes on from there.

        Until `unwatch` or the end, `watcher` is called whenever anything has changed.
        """
        connection = self._relay.kept(self._worker)
        if connection is None:
            return False
        self._connection = connection
        self._is_begun = True
        connection.send_small(_request_head(self._worker, path, headers, len(body)), body)
        connection.watch(watcher)
        return True

    def unwatch(self) -> None:
        """Call `begin`'s watcher no more."""
        if self._connection is not None:
            self._connection.watch(None)

    @property
    def has_news(self) -> bool:
        """Whether the head of an answer is there, or none will come."""
        return self._open.status != 0 or self._open.failure is not None

    def whole(self, most: int) -> bytes | None:
        """The body of a good answer, no stream, if all of it is there and it is no longer than `most`."""
        connection = self._open
        if connection.status != 200 or self.is_stream:
            return None
        return connection.whole(most)

    async def _attempt(self, head: bytes, body: bytes | bytearray, *, fresh: bool) -> None:
        self._drop()
        connection = None if fresh else self._relay.kept(self._worker)
        if connection is None:
            connection = await self._relay.connection(self._worker)
        self._connection = connection
        if self._failure is not None:
            raise self._failure
        await connection.send(head, body)
        await connection.head()

    @property
    def status(self) -> int:
        return self._open.status

    @property
    def first_byte(self) -> float:
        """The loop's time at which the first byte of the answer's body came; 0 before that."""
        return self._connection.first_byte if self._connection is not None else 0.0

    @property
    def is_stream(self) -> bool:
        """Whether the answer is a stream of events."""
        return self.header(b"content-type").lower().startswith(_EVENT_STREAM)

    def header(self, name: bytes) -> str:
        """A header of the answer by its lower-case name; empty if there is none."""
        for key, value in self._open.headers:
            if key == name:
                return value.decode("latin-1")
        return ""

    def headers(self) -> tuple[tuple[str, str], ...]:
        """The headers that may go to the client."""
        # Without the length, which differs from answer to answer.
        return _returned(tuple([pair for pair in self._open.headers if pair[0] != b"content-length"]))

    async def read(self) -> bytes:
        """The next bytes of the answer, as they come; none at its end. Raises as `WorkerConnection.read`."""
        return await self._open.read()

    def fail(self, error: RouterError) -> None:
        """End the exchange now: the worker is let go, and what waits for it gets this error."""
        self._failure = self._failure or error
        if self._connection is not None:
            self._connection.fail(error)
            if not self._connection.done:
                self._connection.abort()

    def close(self) -> None:
        """Keep the connection for the next request if the answer is complete, else close it at once."""
        self._drop()

    @property
    def _open(self) -> WorkerConnection:
        if self._connection is None:
            raise RuntimeError("The exchange has not been sent.")
        return self._connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and connection.finish():
            self._relay.keep(self._worker, connection)


class Relay:
    """The kept connections, by worker."""

    def __init__(self, *, connect_s: float = 10.0, silence_s: float = 600.0, max_idle: int = 128) -> None:
        self._connect_s = connect_s
        self._silence_s = silence_s
        self._max_idle = max_idle
        self._idle: dict[tuple[str, int], deque[WorkerConnection]] = {}
        self._closed = False

    def exchange(self, worker: Worker) -> Exchange:
        """A new exchange with a worker. Close it when done."""
        return Exchange(self, worker)

    def kept(self, worker: Worker) -> WorkerConnection | None:
        """A connection that was kept, if there is one."""
        idle = self._idle.get((worker.host, worker.port))
        while idle:
            connection = idle.pop()
            if connection.usable:
                connection.used = True
                return connection
        return None

    async def connection(self, worker: Worker) -> WorkerConnection:
        """A new connection.

        Raises:
            NotReached: the worker takes none.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_s):
                _, connection = await loop.create_connection(
                    lambda: WorkerConnection(loop, self._silence_s), worker.host, worker.port
                )
        except OSError as exc:
            raise NotReached(
                f"The worker takes no connection: {exc.strerror or exc}",
                refused=isinstance(exc, ConnectionRefusedError),
            ) from exc
        return connection

    def keep(self, worker: Worker, connection: WorkerConnection) -> None:
        """Keep a connection for the next request to the same worker."""
        address = (worker.host, worker.port)
        idle = self._idle.get(address)
        if idle is None:
            self._forget_closed()
            idle = self._idle[address] = deque()
        idle.append(connection)
        if self._closed or len(idle) > self._max_idle:
            idle.popleft().abort()

    def close(self) -> None:
        """Close what is kept, and keep nothing any more."""
        self._closed = True
        for idle in self._idle.values():
            for connection in idle:
                connection.abort()
        self._idle.clear()

    @property
    def idle(self) -> int:
        """How many open connections are kept."""
        return sum(connection.usable for idle in self._idle.values() for connection in idle)

    def _forget_closed(self) -> None:
        for address, idle in list(self._idle.items()):
            if not any(connection.usable for connection in idle):
                del self._idle[address]


def _request_head(worker: Worker, path: str, headers: tuple[tuple[bytes, bytes], ...], length: int) -> bytes:
    """The head of a request to a worker."""
    start = _start(worker.host, worker.port, worker.api_key, path)
    return b"%b%d%b" % (start, length, _passed_on(headers))


@functools.lru_cache(maxsize=64)
def _start(host: str, port: int, api_key: str, path: str) -> bytes:
    """What of a head does not depend on the request."""
    host = f"[{host}]" if ":" in host else host
    return (
        f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {api_key}\r\n"
        "Content-Type: application/json\r\nContent-Length: "
    ).encode("latin-1")


# One client's requests have the same headers again and again, and so have one worker's answers.
@functools.lru_cache(maxsize=64)
def _passed_on(headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    """What of a client's headers goes on, and the end of the head."""
    lines = [b"\r\n"]
    named: set[bytes] = set()
    for name, value in headers:
        if name.lower() == b"connection":
            named.update(token.strip() for token in value.lower().split(b","))
    for name, value in headers:
        key = name.lower()
        if key not in _NOT_SENT and key not in named and not key.startswith((b"sec-", b"access-control-")):
            lines.append(name + b": " + value + b"\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)


@functools.lru_cache(maxsize=64)
def _returned(headers: tuple[tuple[bytes, bytes], ...]) -> tuple[tuple[str, str], ...]:
    """What of a worker's headers goes on."""
    named: set[bytes] = set()
    for name, value in headers:
        if name == b"connection":
            named.update(token.strip() for token in value.lower().split(b","))
    return tuple(
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in headers
        if name not in _NOT_RETURNED and name not in named and not name.startswith(b"access-control-")
    )
