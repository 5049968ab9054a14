"""Answers, written in the way that suits how their request was read.

To a request that aiohttp parsed aiohttp's own responses go. To one in plain form the same bytes go, but for
less work: a whole answer is one write, and of a stream the head goes with the first piece where that is there
at once.
"""

from __future__ import annotations

import asyncio
import functools
import sys
import time
from collections.abc import Iterable, Mapping
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Final

from aiohttp import hdrs, web
from aiohttp.client_exceptions import ClientConnectionResetError
from multidict import CIMultiDict, MutableMultiMapping

from router.web import security
from router.web.asking import Answer, Asking, Streaming, Wire
from router.web.notes import NOTES
from router.web.plain import PlainRequest

Pairs = Mapping[str, str] | Iterable[tuple[str, str]]

_JOINED: Final = 64 << 10
#: Python's own transports never say that they are full when they get several pieces: CVE-2024-12254.
_FORGETS_ITS_MARKS: Final = (3, 12) <= sys.version_info < (3, 12, 9) or (3, 13) <= sys.version_info < (
    3,
    13,
    2,
)
_STATUS: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode("ascii") for status in HTTPStatus
}


def whole(request: Asking, body: bytes, headers: Iterable[tuple[str, str]]) -> Answer:
    """A whole answer, to be sent by whoever gets it."""
    if isinstance(request, PlainRequest):
        return Whole(body, tuple(headers))
    return web.Response(body=body, headers=CIMultiDict(headers))


def streaming(request: Asking, headers: Pairs = ()) -> Streaming:
    """An answer that is written piece by piece, once `prepare` has been called with the request."""
    if isinstance(request, PlainRequest):
        return PlainStream(request, headers)
    return web.StreamResponse(headers=CIMultiDict(headers))


def has_begun(request: Asking) -> bool:
    """Whether a part of an answer has gone out."""
    if isinstance(request, PlainRequest):
        return request.answered
    return isinstance(request, web.BaseRequest) and request.writer.output_size > 0


def let_pages_read(request: Asking, headers: MutableMultiMapping[str]) -> None:
    """A page that may call may read the answer, an error or a stream as well."""
    if origin := request[NOTES].origin:
        headers.update(security.cors_headers(origin))


def finish(request: PlainRequest, response: Answer) -> bool:
    """Send what is unsent of an answer; whether the connection may go on after it.

    Raises:
        ConnectionError: the client has left.
        TypeError: that kind of answer cannot be sent here.
    """
    if isinstance(response, PlainStream):
        return response.ended and not response.closes
    if isinstance(response, Whole):
        body, closes = response.body, response.closes
        if response.is_as_given and not closes and not request.notes.origin:
            # Nothing was added to what one model's answers have again and again.
            fields = _fields(response.pairs)
            head = b"%b%b%bContent-Length: %d\r\n\r\n" % (_STATUS[200], _date(), fields, len(body))
            return _send(request, head, body)
    elif isinstance(response, web.Response) and isinstance(response.body, bytes):
        body, closes = response.body, response.keep_alive is False
    elif isinstance(response, web.Response) and response.body is None:
        body, closes = b"", response.keep_alive is False
    else:
        raise TypeError(f"{type(response).__name__} cannot be sent to a request in plain form")
    length = None if response.status == HTTPStatus.NO_CONTENT else len(body)
    head = _head(request, response.status, response.headers, closes, length)
    return _send(request, head, body) and not closes


def _send(request: PlainRequest, head: bytes, body: bytes) -> bool:
    request.answered = True
    if len(body) < _JOINED:
        _transport(request).write(head + body)
    else:
        _write_all(_transport(request), head, body)
    return True


def _write_all(transport: asyncio.WriteTransport, *pieces: bytes) -> None:
    """Write pieces that are too large to be joined."""
    if _FORGETS_ITS_MARKS:
        for piece in pieces:
            transport.write(piece)
    else:
        transport.writelines(pieces)


class Whole:
    """A whole answer to a request in plain form."""

    __slots__ = ("_headers", "body", "closes", "pairs")

    status: Final = 200
    prepared: Final = False

    def __init__(self, body: bytes, pairs: tuple[tuple[str, str], ...]) -> None:
        self.body = body
        self.pairs = pairs
        self._headers: CIMultiDict[str] | None = None
        self.closes = False

    @property
    def headers(self) -> MutableMultiMapping[str]:
        if self._headers is None:
            self._headers = CIMultiDict(self.pairs)
        return self._headers

    @property
    def is_as_given(self) -> bool:
        """Whether its headers are `pairs` for certain."""
        return self._headers is None

    def force_close(self) -> None:
        self.closes = True


class PlainStream:
    """An answer to a request in plain form that is written piece by piece."""

    __slots__ = ("_head", "_length", "_protocol", "_request", "closes", "ended", "headers")

    status: Final = 200

    def __init__(self, request: PlainRequest, headers: Pairs) -> None:
        self._request = request
        self._protocol: Wire = request.protocol
        self._head = b""
        self._length: int | None = None
        self.headers: MutableMultiMapping[str] = CIMultiDict(headers)
        self.ended = self.closes = False

    @property
    def prepared(self) -> bool:
        return self._request.answered

    @property
    def content_length(self) -> int | None:
        """The length, where it is known before; without one the body is chunked."""
        return self._length

    @content_length.setter
    def content_length(self, length: int | None) -> None:
        self._length = length

    def force_close(self) -> None:
        self.closes = True

    async def prepare(self, request: Any, /) -> None:
        """Send the head: with the first piece, if that comes before the loop goes on."""
        if self._length is None:
            self.headers[hdrs.TRANSFER_ENCODING] = "chunked"
        self._head = _head(self._request, self.status, self.headers, self.closes, self._length)
        self._request.answered = True
        asyncio.get_running_loop().call_soon(self._send_head)

    def _send_head(self) -> None:
        head, self._head = self._head, b""
        if head and self._protocol.transport is not None:
            self._protocol.transport.write(head)

    async def write(self, data: bytes, /) -> None:
        """Send a piece; waits while the client is slow.

        Raises:
            ConnectionError: the client has left.
        """
        if not data:
            return
        head, self._head = self._head, b""
        transport = _transport(self._request)
        if self._length is not None:
            transport.write(head + data if head else data)
        elif len(data) < _JOINED:
            transport.write(b"%b%x\r\n%b\r\n" % (head, len(data), data))
        else:
            _write_all(transport, b"%b%x\r\n" % (head, len(data)), data, b"\r\n")
        if self._protocol.writing_paused:
            await self._protocol.drained()

    async def write_eof(self) -> None:
        """End it.

        Raises:
            ConnectionError: the client has left.
        """
        head, self._head = self._head, b""
        tail = head if self._length is not None else head + b"0\r\n\r\n"
        transport = _transport(self._request)
        if tail:
            transport.write(tail)
        self.ended = True


def _transport(request: PlainRequest) -> asyncio.Transport:
    transport = request.transport
    if transport is None or transport.is_closing():
        raise ClientConnectionResetError("the client has left")
    return transport


def _head(
    request: PlainRequest,
    status: int,
    headers: MutableMultiMapping[str],
    closes: bool,
    length: int | None,
) -> bytes:
    let_pages_read(request, headers)
    if closes:
        headers[hdrs.CONNECTION] = "close"
    headers.pop(hdrs.CONTENT_LENGTH, None)
    line = _STATUS.get(status) or b"HTTP/1.1 %d \r\n" % status
    fields = _fields(tuple(headers.items()))
    if length is None:
        return b"%b%b%b\r\n" % (line, _date(), fields)
    return b"%b%b%bContent-Length: %d\r\n\r\n" % (line, _date(), fields, length)


# The answers of one model have the same headers again and again, but for the length and the date.
@functools.lru_cache(maxsize=64)
def _fields(headers: tuple[tuple[str, str], ...]) -> bytes:
    """The lines of the headers.

    Raises:
        ValueError: one of them would break its line.
    """
    fields = "".join([f"{name}: {value}\r\n" for name, value in headers])
    if fields.count("\n") != len(headers) or fields.count("\r") != len(headers) or "\0" in fields:
        raise ValueError("a header of the answer has a line end in it")
    return fields.encode("utf-8")


class _Date:
    """The moment as HTTP writes it, made anew once in a second."""

    def __init__(self) -> None:
        self._second = -1
        self._line = b""

    def __call__(self) -> bytes:
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._line = f"Date: {formatdate(second, usegmt=True)}\r\n".encode("ascii")
        return self._line


_date: Final = _Date()
