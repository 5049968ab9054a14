"""One client's connection.

Requests in plain form (see `plain`) are read, answered and kept alive here. All others are aiohttp's, byte
for byte as they came, and so is what follows them until it is certain where one of them ended. Both come to
the same handlers by way of the same checks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec
from aiohttp import hdrs, web

from router.errors import RouterError, Unavailable
from router.web import respond
from router.web.asking import Answer
from router.web.crowd import Crowd
from router.web.errors import error_response, unreadable
from router.web.inflight import Ongoing
from router.web.plain import END, MAX_BODY, MAX_HEAD, Head, PlainRequest, read_head
from router.web.quick import Client, PlainHandler

log = logging.getLogger(__name__)

_FULL_ERROR: Final = Unavailable("Too many clients are connected. Try again.", code="too_many_clients")
_FULL_BODY: Final = msgspec.json.encode(_FULL_ERROR.body())
_FULL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
    b"Retry-After: 2\r\nConnection: close\r\n\r\n%b" % (len(_FULL_BODY), _FULL_BODY)
)
_METHOD: Final = b"POST /"
# A request that has not come as a whole by then is aiohttp's: it has bounds for slow clients.
_PATIENCE_S: Final = 1.0
_MOST_AHEAD: Final = MAX_HEAD + MAX_BODY
_NO_BODY: Final = (b"GET ", b"HEAD ", b"OPTIONS ")
_OF_BODY: Final = (b"\ncontent-length", b"\ntransfer-encoding", b"\nupgrade")


class Way(NamedTuple):
    """How requests that begin with one line are answered.

    Attributes:
        path: what they ask.
        begin: answers one without a task, or says that it cannot be.
        handle: answers any.
    """

    path: str
    begin: Callable[[PlainRequest, Client], bool]
    handle: PlainHandler


class Connection(web.RequestHandler):
    """aiohttp's connection, with our error shape for what cannot be parsed, and a short way for most.

    Args:
        plain: how requests in plain form are answered, by the line that asks.
        crowd: all connections.
        unread_s: how long an answer may wait for its client to read on.
    """

    __slots__ = (
        "_ahead",
        "_crowd",
        "_head",
        "_impatience",
        "_is_bounded",
        "_is_theirs",
        "_ongoing",
        "_plain",
        "_unread_s",
        "_wanted",
    )

    def __init__(
        self,
        manager: web.Server,
        *,
        plain: Mapping[bytes, Way],
        crowd: Crowd,
        unread_s: float,
        **choices: Any,
    ) -> None:
        super().__init__(manager, **choices)
        self._plain = plain
        self._crowd = crowd
        self._unread_s = unread_s
        self._ongoing: Ongoing | None = None
        #: What has come and waits: a request that is not whole, or what follows the one being answered.
        self._ahead = bytearray()
        self._wanted = 0
        self._impatience: asyncio.TimerHandle | None = None
        self._head: Head | None = None
        #: Whether aiohttp reads what comes, and whether all that it was given is one request without a body.
        self._is_theirs = self._is_bounded = False

    # What the crowd asks.

    @property
    def is_idle(self) -> bool:
        """Whether no request is under way; one that has not come whole is none yet."""
        return self._ongoing is None and self._current_request is None and not self._messages

    def give_way(self) -> None:
        """Close it now."""
        self.force_close()

    # What the transport and aiohttp call.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self._crowd.enter(self):
            if self.transport is not None:
                self.transport.write(_FULL)
            self.force_close()

    def data_received(self, data: bytes) -> None:
        if self._force_close or self._close:
            return
        if not data:
            super().data_received(data)  # aiohttp calls itself so, to go on with what it holds.
        elif self._ongoing is not None or self._ahead:
            self._gather(data)
        elif self._is_theirs and not self._is_theirs_over():
            self._is_bounded = False
            super().data_received(data)
        else:
            self._look(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._crowd.leave(self)
        self._forget_ahead()
        if self._ongoing is not None:
            self._ongoing.cancel()

    async def shutdown(self, timeout: float | None = 15.0) -> None:
        ongoing = self._ongoing
        if ongoing is not None:
            self._force_close = True
            if isinstance(ongoing, asyncio.Task):
                await asyncio.wait((ongoing,), timeout=timeout)
            ongoing.cancel()
        await super().shutdown(timeout)

    def _process_keepalive(self) -> None:
        if self._ongoing is not None:  # aiohttp does not know that it is busy.
            self._stay()
        super()._process_keepalive()

    async def _drain_helper(self) -> None:
        # Whoever has stopped reading, a program that was suspended for example, would keep its model busy for
        # good: that model's slot, and its place in memory.
        ending = self._loop.call_later(self._unread_s, self._end_unread)
        try:
            await super()._drain_helper()
        finally:
            ending.cancel()

    def _end_unread(self) -> None:
        log.info("A client has read nothing for %g s; its connection is closed", self._unread_s)
        if self.transport is not None:
            self.transport.abort()

    async def drained(self) -> None:
        """Wait until the client has read enough.

        Raises:
            ConnectionError: it has left.
        """
        await self._drain_helper()

    # Reading

    def _look(self, data: bytes) -> None:
        """Begin with a request, of which this is the start or all. Nothing else is under way."""
        end = data.find(END, 0, MAX_HEAD + len(END))
        if end < 0:
            if len(data) <= MAX_HEAD and data.startswith(_METHOD):
                self._await_more(data, 0)
            else:
                self._hand_over(data)
            return
        text = data[:end]
        head = (self._head.again(text) if self._head is not None else None) or read_head(text)
        found = self._plain.get(head.target) if head is not None else None
        if head is None or found is None or head.length > MAX_BODY:
            self._hand_over(data)
            return
        self._head = head
        start = end + len(END)
        whole = start + head.length
        if len(data) < whole:
            self._await_more(data, whole)
            return
        if len(data) > whole:
            self._ahead += data[whole:]
        request = PlainRequest(self, found.path, head, data[start:whole])
        self._is_theirs = False
        # Whoever reads no answers gets none until then: they would gather here.
        if self.writing_paused or not found.begin(request, self):
            self.take_over(request, found.handle)

    def _await_more(self, data: bytes, wanted: int) -> None:
        self._ahead += data
        self._wanted = wanted
        if self._impatience is None:
            self._impatience = self._loop.call_later(_PATIENCE_S, self._give_up)

    def _gather(self, data: bytes) -> None:
        seen = len(self._ahead)
        self._ahead += data
        size = len(self._ahead)
        if self._ongoing is not None:
            # Pipelined: its turn comes, and until then no more than a request's worth of it is read.
            if size > _MOST_AHEAD and not self._buffer_paused:
                self._pause_reading_for_buffer()
            return
        if self._wanted:
            is_enough = size >= self._wanted
        else:
            is_enough = size > MAX_HEAD or self._ahead.find(END, max(0, seen - len(END))) >= 0
        if is_enough:
            self._look_again()

    def _look_again(self) -> None:
        data = bytes(self._ahead)
        self._ahead.clear()
        self._wanted = 0
        self._look(data)
        if not self._ahead or self._ongoing is not None:
            self._calm()

    def _give_up(self) -> None:
        """The rest has not come in time."""
        self._impatience = None
        data = bytes(self._ahead)
        self._forget_ahead()
        self._hand_over(data)

    def _forget_ahead(self) -> None:
        self._ahead.clear()
        self._wanted = 0
        self._calm()

    def _calm(self) -> None:
        if self._impatience is not None:
            self._impatience.cancel()
            self._impatience = None

    # aiohttp's requests

    def _hand_over(self, data: bytes) -> None:
        self._is_bounded = _is_one_without_body(data)
        self._is_theirs = True
        super().data_received(data)

    def _is_theirs_over(self) -> bool:
        """Whether aiohttp waits for a request, and holds no part of one."""
        waiter = self._waiter
        return self._is_bounded and not self._messages and waiter is not None and not waiter.done()

    # Answering

    def occupy(self, ongoing: Ongoing) -> None:
        """It is busy with this from now on."""
        self._ongoing = ongoing

    def take_over(self, request: PlainRequest, handle: PlainHandler) -> asyncio.Task[None]:
        """Have a request answered by a task."""
        task = self._ongoing = self._loop.create_task(self._answer(request, handle))
        return task

    def settle(self, request: PlainRequest, answer: Answer) -> None:
        """Send the whole answer to the request that it is busy with, and go on."""
        goes_on = False
        try:
            goes_on = respond.finish(request, answer)
        except ConnectionError:
            pass  # The client has left.
        except Exception:
            log.exception("An answer could not be sent")
        self._done(goes_on)

    async def _answer(self, request: PlainRequest, handle: PlainHandler) -> None:
        goes_on = False
        try:
            if self.writing_paused:
                await self.drained()
            response = await handle(request)
            goes_on = respond.finish(request, response)
        except ConnectionError:
            pass  # The client has left, or the answer could not be completed: only closing can tell.
        except Exception:
            log.exception("A request failed outside its handler")
        except BaseException:
            self._end_after_answer()
            raise
        self._done(goes_on)

    def _done(self, goes_on: bool) -> None:
        """The request has been answered; whether another one may follow."""
        self._ongoing = None
        if not goes_on or self._force_close:
            self._end_after_answer()
            return
        self._stay()
        if self._ahead:
            self._look_again()
        if self._buffer_paused and self._ongoing is None:
            self._resume_reading_for_buffer()

    def _end_after_answer(self) -> None:
        self._ongoing = None
        self._forget_ahead()
        self.force_close()

    def _stay(self) -> None:
        """Be kept open from now on for as long as an idle connection may be."""
        self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if request.writer.output_size > 0:
            raise ConnectionResetError("part of the answer has been sent")
        if status < 500:
            error = unreadable(exc, message)
            log.info("A request was refused: %s", error.message)
        else:
            log.error("A request failed outside its handler", exc_info=exc)
            error = RouterError("The router failed; its log says why.", status=status)
        response = error_response(error)
        # Without it aiohttp would tell its version, and Python's.
        response.headers[hdrs.SERVER] = "lemon-tray"
        response.force_close()
        return response


def _is_one_without_body(data: bytes) -> bool:
    """Whether this is one whole request that has no body, and nothing more."""
    if not data.startswith(_NO_BODY) or not data.endswith(END) or data.count(END) != 1:
        return False
    lines = data.count(b"\r\n")
    lower = data.lower()
    return data.count(b"\n") == data.count(b"\r") == lines and not any(name in lower for name in _OF_BODY)
