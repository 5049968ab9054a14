"""The client's side of a stream of JSON lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from router.errors import RouterError
from router.web.stream import EventStream
from router.web.turned import Back

if TYPE_CHECKING:
    from router.web.asking import Asking, Streaming

NDJSON: Final = "application/x-ndjson"


class LineStream(EventStream):
    """A response of JSON lines, made of a worker's events.

    Lines have no comments, so nothing is sent while nothing comes: an error before the first line still has a
    status of its own.
    """

    media_type = NDJSON

    def __init__(self, request: Asking, route: str | None, back: Back, keep: int = 64 << 10) -> None:
        super().__init__(request, route, None, keep)
        self._back = back

    async def write(self, data: bytes) -> None:
        """Pass on what a fragment of events becomes; waits while the client is slow."""
        response = await self.start()
        lines = self._back.feed(data)
        # Only now: what could not be read is no part of a stream that ended well.
        self.scanner.feed(data)
        if lines:
            await response.write(lines)

    async def fail(self, error: RouterError) -> Streaming:
        """End with a line that tells the error."""
        response = await self.start()
        if line := self._back.failure(error):
            await response.write(line)
        await response.write_eof()
        return response

    async def finish(self) -> None:
        """End it after the last byte."""
        response = await self.start()
        if lines := self._back.ending():
            await response.write(lines)
        await response.write_eof()
