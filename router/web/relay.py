"""The way to local workers: kept connections, and answers that are passed on as they come."""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from router.engines.base import Worker
from router.errors import RouterError
from router.web.upstream import Broken, NotReached, Stale, WorkerConnection

_EVENT_STREAM: Final = "text/event-stream"

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
        except Stale:
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

    def unfinished(self) -> Exception:
        """What to tell of a stream that has ended without its last event."""
        return Broken("The worker ended its stream before the answer was complete.")

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
