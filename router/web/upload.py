"""Request bodies: read once into one buffer, bounded each and all together, inflated only within a bound."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from typing import Final

from aiohttp import hdrs, web

from router.errors import BadRequest, RouterError, TooLarge, Unavailable
from router.web.asking import Asking, Content
from router.web.errors import UnsupportedMediaType, too_large
from router.web.options import WebOptions

Body = bytes | bytearray

_RETRY_S: Final = 2.0
# zlib's word for "gzip or zlib, whichever the header says".
_ANY_WRAPPER: Final = zlib.MAX_WBITS | 32
_ENCODINGS: Final = frozenset({"gzip", "x-gzip", "deflate"})
#: JSON rarely shrinks to less than a twentieth. What grows much more than that was made to do harm.
_MOST_GROWTH: Final = 200
_GROWTH_FREE: Final = 1 << 20
_PIECE: Final = 64 << 10
_STEP: Final = 1 << 20
_INLINE: Final = 1024
_GZIP: Final = b"\x1f\x8b"
_MOST_PARTS: Final = 1000


class Stalled(RouterError):
    """A client stopped in the middle of its body."""

    code = "upload_stalled"
    status = 408


class Bodies:
    """Reads bodies, and keeps count of the bytes of all that are in memory.

    `total` tells the limit for all together. One body that is alone may be larger.
    """

    def __init__(self, options: WebOptions, total: Callable[[], int]) -> None:
        self._options = options
        self._total = total
        self.held = 0
        # By the request's identity: each is let go before it ends.
        self._parts: dict[int, int] = {}

    async def read(self, request: Asking, limit: int | None = None) -> Body:
        """The whole body. Its bytes count until `let_go`.

        Raises:
            Stalled: nothing more of it came for a while.
            BadRequest: it ended early, or is not compressed as it says.
            UnsupportedMediaType: it is compressed in a way that is not read here.
            TooLarge: it is larger than `limit` or than any body may be, told before it is read where its
                length is declared; or it would be so once it is inflated.
            Unavailable: with those of others it would take too much memory.
        """
        most = min(self._options.max_body, limit or self._options.max_body)
        length = request.content_length
        if length is not None and length > most:
            raise too_large(most)
        encoding = _encoding(request)
        if encoding and encoding not in _ENCODINGS:
            raise UnsupportedMediaType(
                f"Bodies encoded as {encoding[:40]!r} are not read here. Send it plain, or as gzip.",
                param="Content-Encoding",
            )
        body = await self._receive(request, length, most)
        if encoding:
            return await self._inflated(request, body, most)
        return body

    def take(self, request: Asking) -> None:
        """Count a body that has come as a whole, and is read without `read`. Its bytes count until `let_go`.

        Raises:
            Unavailable: with those of others it takes too much memory.
        """
        self._take(request, request.content_length or 0)

    def let_go(self, request: Asking) -> None:
        """The request's body is no longer held. Idempotent."""
        self.held -= self._parts.pop(id(request), 0)

    async def _receive(self, request: Asking, length: int | None, most: int) -> Body:
        stream = request.content
        if length is not None:
            self._look_for_room(request, length)
        try:
            # Small bodies have come with the head.
            first = stream.read_nowait()
            if len(first) == length:
                self._take(request, length)
                return first
            body = bytearray()
            began = asyncio.get_running_loop().time()
            chunk = first
            # What has come is what counts: who promises much, and sends it slowly, keeps nobody out.
            while True:
                self._take(request, len(chunk))
                if len(body) + len(chunk) > most:
                    raise too_large(most)
                body += chunk
                chunk = await self._next(stream, began + len(body) / self._options.slowest_upload)
                if not chunk:
                    break
        except web.RequestPayloadError as exc:
            raise BadRequest(f"The request body cannot be read: {exc}"[:300]) from None
        return body

    async def _next(self, stream: Content, due: float) -> bytes:
        """The next bytes. `due` is when those that are here should have come, by the loop's clock.

        Who sends a byte a minute is never silent, but what has come of the body is kept from others.
        """
        patience = self._options.upload_stall_s
        now = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(min(now, due) + patience):
                return await stream.readany()
        except TimeoutError:
            how = "comes too slowly" if due < now else "has stopped coming"
            raise Stalled(f"The request body {how}; {patience:g} s were waited for it.") from None

    async def _inflated(self, request: Asking, body: Body, most: int) -> Body:
        inflater = _Inflater(body, most)
        whole = bytearray()
        # By pieces, so that those of all requests are counted as they come, and the loop is never held up.
        while piece := await self._step(inflater, len(body)):
            self._take(request, len(piece))
            whole += piece
        self.let_go(request)
        self._take(request, len(whole))
        return whole

    @staticmethod
    async def _step(inflater: _Inflater, size: int) -> bytes:
        return inflater.step() if size <= _INLINE else await asyncio.to_thread(inflater.step)

    def _take(self, request: Asking, size: int) -> None:
        part = self._look_for_room(request, size)
        self.held += size
        self._parts[id(request)] = part + size

    def _look_for_room(self, request: Asking, size: int) -> int:
        """How much of the memory is the request's already.

        Raises:
            Unavailable: with so much more it would be too much, and others have a part of it.
        """
        part = self._parts.get(id(request), 0)
        others = self.held - part
        if others and self.held + size > self._total():
            raise Unavailable(
                "The bodies of other requests take all the memory that is meant for them. Try again.",
                code="too_many_bytes",
                hint="The setting max_queue_bytes is the limit.",
                retry_after_s=_RETRY_S,
            )
        return part


def _encoding(request: Asking) -> str:
    """How the body is compressed, in lower case, several ways with commas between; "" if it is not."""
    if hdrs.CONTENT_ENCODING not in request.headers:
        return ""
    given = ",".join(request.headers.getall(hdrs.CONTENT_ENCODING, [])).lower().split(",")
    return ", ".join(name for each in given if (name := each.strip()) not in ("", "identity"))


class _Inflater:
    """Inflates a body that is here, by pieces. What gzip makes may be several parts, one after the other."""

    def __init__(self, body: Body, most: int) -> None:
        self._view = memoryview(body)
        self._most = most
        self._bound = min(most, _GROWTH_FREE + _MOST_GROWTH * len(body))
        self._wrapper = _ANY_WRAPPER
        self._inflater = zlib.decompressobj(self._wrapper)
        self._at = self._size = self._parts = 0

    def step(self) -> bytes:
        """The next bytes; nothing at the end.

        Raises:
            BadRequest: it is not compressed as it says.
            TooLarge: it would be too large, or grow as nothing does that was not made to.
        """
        made = b""
        while not made and not (self._inflater.eof and self._at == len(self._view)):
            try:
                made = self._advance()
            except zlib.error as exc:
                if self._size or self._parts or self._wrapper < 0:
                    raise _not_compressed(str(exc)) from None
                # Some send a bare stream and call it deflate.
                self._wrapper, self._at = -zlib.MAX_WBITS, 0
                self._inflater = zlib.decompressobj(self._wrapper)
        self._size += len(made)
        if self._size > self._bound:
            if self._bound == self._most:
                raise too_large(self._most)
            raise TooLarge(
                f"The compressed body is more than {_MOST_GROWTH} times as large once it is inflated. "
                "Send it plain."
            )
        return made

    def _advance(self) -> bytes:
        if self._inflater.eof:
            self._parts += 1
            if bytes(self._view[self._at : self._at + len(_GZIP)]) != _GZIP or self._parts == _MOST_PARTS:
                raise _not_compressed("something follows its end")
            self._inflater = zlib.decompressobj(self._wrapper)
        inflater = self._inflater
        data: bytes | memoryview = inflater.unconsumed_tail
        if not data:
            # By pieces: what follows a part is handed back as a copy.
            data = self._view[self._at : self._at + _PIECE]
            self._at += len(data)
        made = inflater.decompress(data, _STEP)
        if inflater.eof:
            self._at -= len(inflater.unused_data)
        elif not made and not data:
            raise BadRequest("The compressed body is cut short.", param="Content-Encoding")
        return made


def _not_compressed(why: str) -> BadRequest:
    return BadRequest(f"The body is not compressed as it says: {why}.", param="Content-Encoding")
