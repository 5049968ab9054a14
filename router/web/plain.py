"""Requests in the plain form, which is read here; whatever is written otherwise is aiohttp's to read.

Nearly all requests for models look alike: `POST`, a path as it is in the table, a few headers of printable
ASCII, a length. Only that is taken here, and it can mean one thing only. Anything that two readers might take
differently, or that is rare, is left to the full parser, byte for byte: other methods and versions, queries,
escapes and hosts in the target, chunked bodies, folded, repeated or odd headers, bare line ends, `Expect`,
`Upgrade`, `Connection` with anything but `keep-alive`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Final, TypeVar, cast

from aiohttp import HttpVersion, HttpVersion11, hdrs, web

from router.web.asking import Wire
from router.web.notes import NOTES, Notes

_T = TypeVar("_T")

MAX_HEAD: Final = 8 << 10
MAX_BODY: Final = 64 << 10
END: Final = b"\r\n\r\n"

_TOKEN: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PRINTABLE: Final = bytes(range(0x20, 0x7F))
#: Names that change what the body or the connection is.
_LEFT: Final = frozenset(
    {
        "expect",
        "http2-settings",
        "keep-alive",
        "proxy-connection",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_LENGTH: Final = "content-length"
_MOST_DIGITS: Final = 6
_MOST_LINES: Final = 100
_MOST_NAMES: Final = 500
#: Names that have been seen, and are tokens, in lower case.
_names: dict[bytes, str] = {}


class PlainHeaders:
    """Headers of which none is repeated."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def get(self, key: str, default: str = "", /) -> str:
        return self._values.get(key.lower(), default)

    def getall(self, key: str, default: list[str] | None = None, /) -> list[str]:
        value = self._values.get(key.lower())
        if value is None:
            return [] if default is None else default
        return [value]

    def __contains__(self, key: object, /) -> bool:
        return isinstance(key, str) and key.lower() in self._values


class Head:
    """The head of a request in plain form.

    Attributes:
        target: the line of the request.
        length: bytes of the body.
        headers: the headers, without that length.
        raw_headers: the same as they were sent.
        allowed_by: the settings under which requests with this head may be made, once that is known.
        is_trusted: whether such requests then need no key, unless the settings want one of all.
    """

    __slots__ = (
        "_after",
        "_before",
        "allowed_by",
        "headers",
        "is_trusted",
        "length",
        "raw_headers",
        "target",
    )

    def __init__(
        self,
        target: bytes,
        headers: PlainHeaders,
        raw_headers: tuple[tuple[bytes, bytes], ...],
        length: int,
        around: tuple[bytes, bytes],
    ) -> None:
        self.target = target
        self.headers = headers
        self.raw_headers = raw_headers
        self.length = length
        self._before, self._after = around
        self.allowed_by: object = None
        self.is_trusted = False

    def again(self, data: bytes) -> Head | None:
        """The head as which `data` is read, if it differs from this one in the body's length only.

        Clients send one head after the other that differs in nothing else.
        """
        before, after = self._before, self._after
        if not (data.startswith(before) and data.endswith(after)):
            return None
        digits = data[len(before) : len(data) - len(after)]
        if not digits.isdigit() or len(digits) > _MOST_DIGITS:
            return None
        self.length = int(digits)
        return self


def read_head(data: bytes) -> Head | None:
    """The head that `data` is, without its empty last line; None if it is not in plain form."""
    lines = data.split(b"\r\n")
    # No other control character, and no line end but those that it was split at.
    if len(lines) > _MOST_LINES or data.translate(None, _PRINTABLE) != b"\r\n" * (len(lines) - 1):
        return None
    values: dict[str, str] = {}
    raw: list[tuple[bytes, bytes]] = []
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        key = _names.get(name) or _known(name)
        value = value.strip(b" ")
        if not colon or not key or key in _LEFT or key in values:
            return None
        values[key] = value.decode("ascii")
        if key != _LENGTH:
            raw.append((name, value))
    if values.get("connection", "keep-alive").lower() != "keep-alive" or "host" not in values:
        return None
    digits = values.pop(_LENGTH, "")
    if not digits.isdigit() or len(digits) > _MOST_DIGITS:
        return None
    return Head(lines[0], PlainHeaders(values), tuple(raw), int(digits), _around_length(data, digits))


def _known(name: bytes) -> str:
    """A header's name in lower case; empty if it is none."""
    if not _TOKEN.fullmatch(name):
        return ""
    key = name.lower().decode("ascii")
    if len(_names) < _MOST_NAMES:
        _names[name] = key
    return key


def _around_length(data: bytes, digits: str) -> tuple[bytes, bytes]:
    """What stands before and after the value of Content-Length."""
    start = data.index(digits.encode(), data.lower().index(b"\r\ncontent-length:"))
    return data[:start], data[start + len(digits) :]


class _Body:
    """A body that has come as a whole."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read_nowait(self, n: int = -1) -> bytes:
        data, self._data = self._data, b""
        return data

    async def readany(self) -> bytes:
        return self.read_nowait()


class PlainRequest:
    """A request that was read here, body and all. `answered`: a part of its answer has gone out.

    `head` is the connection's, and another request's as soon as one follows that has the same headers.
    """

    __slots__ = (
        "_content",
        "_protocol",
        "answered",
        "body",
        "content_length",
        "head",
        "headers",
        "notes",
        "path",
        "raw_headers",
    )

    method: Final = hdrs.METH_POST
    scheme: Final = "http"
    version: Final[HttpVersion] = HttpVersion11

    def __init__(self, protocol: Wire, path: str, head: Head, body: bytes) -> None:
        self._protocol = protocol
        self.notes = Notes()
        self.answered = False
        self.path = path
        self.head = head
        self.headers = head.headers
        self.raw_headers = head.raw_headers
        self.content_length = len(body)
        self.body = body
        self._content: _Body | None = None

    @property
    def content(self) -> _Body:
        if self._content is None:
            self._content = _Body(self.body)
        return self._content

    @property
    def raw_path(self) -> str:
        return self.path

    @property
    def protocol(self) -> Wire:
        """The connection that it came on."""
        return self._protocol

    @property
    def transport(self) -> asyncio.Transport | None:
        return self._protocol.transport

    def __getitem__(self, key: web.RequestKey[_T], /) -> _T:
        if key is not cast(object, NOTES):
            raise KeyError(key)
        return cast(_T, self.notes)
