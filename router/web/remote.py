"""The way to remote models: an exchange with a provider, in the form of one with a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

import aiohttp

from router.engines.base import Worker
from router.errors import RouterError
from router.providers import faults
from router.providers.link import MAX_ERROR
from router.providers.live import RemoteWorker
from router.web.relay import Exchange, Relay
from router.web.renaming import Renaming

#: What of a provider's headers the client sees. Others tell of hosts, cookies and limits that are not its.
_RETURNED: Final = frozenset(
    {"content-type", "openai-processing-ms", "request-id", "retry-after", "x-request-id"}
)
_ERRORS: Final = (aiohttp.ClientError, OSError, TimeoutError, ValueError)


def exchange_with(relay: Relay, worker: Worker) -> Exchange:
    """A new exchange with whoever runs the model. Close it when done."""
    if isinstance(worker, RemoteWorker):
        return RemoteExchange(relay, worker)
    return relay.exchange(worker)


class RemoteExchange(Exchange):
    """One request to one provider, and its answer.

    `send` raises `ProviderError` for whatever is no answer, so that another model may be asked; `read` raises
    `ProviderCut` where an answer breaks off.
    """

    def __init__(self, relay: Relay, worker: RemoteWorker) -> None:
        super().__init__(relay, worker)
        self._remote = worker
        self._response: aiohttp.ClientResponse | None = None
        self._sending: asyncio.Task[aiohttp.ClientResponse] | None = None
        self._renaming: Renaming | None = None
        self._first_byte = 0.0
        self._done = False

    async def send(self, path: str, headers: Iterable[tuple[bytes, bytes]], body: bytes | bytearray) -> None:
        """Send the request and wait for the head of the answer.

        Raises:
            ProviderError: there is none.
            RouterError: `fail` was called.
        """
        self._drop()
        if (failure := self._ended()) is not None:
            raise failure
        # A task, so that `fail` can end it.
        sending = self._sending = asyncio.get_running_loop().create_task(
            self._remote.post(path, headers, body)
        )
        try:
            response = self._response = await sending
        except asyncio.CancelledError:
            failure = self._ended()
            if failure is not None and sending.cancelled():
                raise failure from None
            raise
        finally:
            self._sending = None
            if not sending.done():
                sending.cancel()
        self._done = False
        kind = response.headers.get("Content-Type", "").lower()
        is_stream = kind.startswith("text/event-stream")
        self._renaming = (
            Renaming(self._remote.model.name, events=is_stream) if response.status < 300 else None
        )
        if (failure := self._ended()) is not None:
            raise failure

    def _ended(self) -> RouterError | None:
        """Why `fail` was called."""
        return self._failure

    @property
    def status(self) -> int:
        return self._answer.status

    @property
    def first_byte(self) -> float:
        return self._first_byte

    def header(self, name: bytes) -> str:
        """A header of the answer; none that tells a length, which is another one here."""
        key = name.decode("latin-1")
        return self._answer.headers.get(key, "") if key in _RETURNED else ""

    def headers(self) -> list[tuple[str, str]]:
        return [(k, v) for k, v in self._answer.headers.items() if k.lower() in _RETURNED]

    async def read(self) -> bytes:
        """The next bytes of the answer, as they come; none at its end.

        Raises:
            ProviderCut: its end did not come.
            RouterError: `fail` was called.
        """
        response = self._answer
        held = b""
        while not self._done:
            if (failure := self._ended()) is not None:
                raise failure
            try:
                data = await response.content.readany()
            except _ERRORS as error:
                if (failure := self._ended()) is not None:
                    raise failure from None
                self._remote.live.broke_off()
                raise faults.cut(self._remote.live.provider, error) from error
            if data and not self._first_byte:
                self._first_byte = asyncio.get_running_loop().time()
            if not data:
                self._done = True
                if self._renaming is None:
                    return self._remote.live.link.scrubbed(held)
                return self._renaming.flush()
            if self._renaming is None:
                # An error, which is short: as a whole, or the key could hide between two parts.
                held += data
                if len(held) <= MAX_ERROR:
                    continue
                self._done = True
                return self._remote.live.link.scrubbed(held[:MAX_ERROR])
            if passed := self._renaming.feed(data):
                return passed
        return b""

    def fail(self, error: RouterError) -> None:
        """End the exchange now: the provider is let go, and what waits for it gets this error."""
        self._failure = self._failure or error
        if self._sending is not None:
            self._sending.cancel()
        if self._response is not None and not self._done:
            self._response.content.set_exception(error)
            self._response.close()

    @property
    def _answer(self) -> aiohttp.ClientResponse:
        if self._response is None:
            raise RuntimeError("The exchange has not been sent.")
        return self._response

    def _drop(self) -> None:
        response, self._response = self._response, None
        if response is None:
            return
        if self._done:
            response.release()
        else:
            response.close()  # The provider sees that nobody reads on, and stops.
