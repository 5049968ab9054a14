"""What handlers need of a request and of its answer, whichever parser read the one and writes the other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from aiohttp import HttpVersion, web
from multidict import MutableMultiMapping

_T = TypeVar("_T")


class Headers(Protocol):
    """The headers of a request, their names compared without regard to case."""

    def get(self, key: str, default: str, /) -> str:
        """The first value of that name."""

    def getall(self, key: str, default: list[str], /) -> list[str]:
        """All values of that name."""

    def __contains__(self, key: object, /) -> bool: ...


class Content(Protocol):
    """The body of a request."""

    def read_nowait(self, n: int = -1) -> bytes:
        """What of it is here already."""

    async def readany(self) -> bytes:
        """What comes next of it; nothing at its end."""


class Writable(Protocol):
    """The connection to the client."""

    @property
    def writing_paused(self) -> bool:
        """Whether the client reads more slowly than is written."""


class Wire(Writable, Protocol):
    """The connection of a request that is answered without aiohttp."""

    @property
    def transport(self) -> asyncio.Transport | None:
        """Where it is written to; None once the client has left."""

    async def drained(self) -> None:
        """Wait until the client has read enough.

        Raises:
            ConnectionError: it has left.
        """


class Asking(Protocol):
    """A request. `web.Request` is one, and so is `plain.PlainRequest`."""

    @property
    def method(self) -> str: ...

    @property
    def scheme(self) -> str: ...

    @property
    def version(self) -> HttpVersion: ...

    @property
    def path(self) -> str: ...

    @property
    def raw_path(self) -> str:
        """The target as it was sent, with a query."""

    @property
    def headers(self) -> Headers: ...

    @property
    def raw_headers(self) -> Sequence[tuple[bytes, bytes]]: ...

    @property
    def content_length(self) -> int | None: ...

    @property
    def content(self) -> Content: ...

    @property
    def transport(self) -> asyncio.Transport | None:
        """None once the client has left."""

    @property
    def protocol(self) -> Writable: ...

    def __getitem__(self, key: web.RequestKey[_T], /) -> _T: ...


class Answer(Protocol):
    """An answer. `web.StreamResponse` is one, and so are those of `respond`."""

    @property
    def status(self) -> int: ...

    @property
    def prepared(self) -> bool:
        """Whether its head has gone out."""

    @property
    def headers(self) -> MutableMultiMapping[str]: ...

    def force_close(self) -> None:
        """End the connection after it."""


class Streaming(Answer, Protocol):
    """An answer that is written piece by piece."""

    content_length: Any

    async def prepare(self, request: Any, /) -> Any:
        """Send the head."""

    async def write(self, data: bytes, /) -> None:
        """Send a piece; waits while the client is slow."""

    async def write_eof(self) -> None:
        """End it."""
