"""The way to remote models: an exchange with a provider, in the form of one with a worker."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable
from typing import Final

import aiohttp
import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

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
#: After its last event a stream may take so long to end; some servers leave it open.
_LINGER_S: Final = 1.0
_LAST_EVENT: Final = re.compile(rb"(?:^|[\r\n])data: ?\[DONE\](?:\n\n|\r\n\r\n|\r\r)$")
_LONGEST_LAST: Final = 20
#: A whole answer up to this size is looked at as a whole.
_MOST_CHECKED: Final = 1 << 20


class _Whole(Struct, frozen=True):
    """What tells an error from an answer: one of the members besides `error` is in every answer."""

    error: Raw | UnsetType = UNSET
    choices: Raw | UnsetType = UNSET
    data: Raw | UnsetType = UNSET
    results: Raw | UnsetType = UNSET
    content: Raw | UnsetType = UNSET
    output: Raw | UnsetType = UNSET

    @property
    def is_error(self) -> bool:
        if self.error is UNSET or bytes(self.error) in (b"null", b'""', b"{}"):
            return False
        return all(
            each is UNSET for each in (self.choices, self.data, self.results, self.content, self.output)
        )


def _is_nearly_json(data: bytes | bytearray) -> bool:
    """Whether it is what many clients take for JSON: with NaN, half a surrogate pair, or a wrong byte."""
    try:
        return isinstance(json.loads(data.decode("utf-8", "replace")), (dict, list))
    except (ValueError, RecursionError):
        return False


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
        self._tail = b""
        self._whole: bytearray | None = None

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
            elif self._response is None and not sending.cancelled() and sending.exception() is None:
                sending.result().close()  # It came at the moment at which nobody waited any more.
        self._done = False
        self._tail = b""
        kind = response.headers.get("Content-Type", "").lower()
        is_stream = kind.startswith("text/event-stream")
        self._renaming = (
            Renaming(self._remote.model.name, events=is_stream) if response.status < 300 else None
        )
        self._whole = None if is_stream or self._renaming is None else bytearray()
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

    def headers(self) -> tuple[tuple[str, str], ...]:
        return tuple([(k, v) for k, v in self._answer.headers.items() if k.lower() in _RETURNED])

    def unfinished(self) -> Exception:
        self._remote.live.broke_off()
        return faults.unfinished(self._remote.live.provider)

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
            is_over = _LAST_EVENT.search(self._tail) is not None
            try:
                async with asyncio.timeout(_LINGER_S if is_over else None):
                    data = await response.content.readany()
            except _ERRORS as error:
                if (failure := self._ended()) is not None:
                    raise failure from None
                if is_over and isinstance(error, TimeoutError):
                    break  # Not done: the connection is closed, and not kept.
                self._remote.live.broke_off()
                raise faults.cut(self._remote.live.provider, error) from error
            if data:
                now = self._remote.live.heard_at = asyncio.get_running_loop().time()
                self._first_byte = self._first_byte or now
            if not data:
                self._done = True
                if self._renaming is None:
                    return self._remote.live.link.scrubbed(held)
                self._check_whole()
                return self._renaming.flush()
            if self._renaming is None:
                # An error, which is short: as a whole, or the key could hide between two parts.
                held += data
                if len(held) <= MAX_ERROR:
                    continue
                self._done = True
                return self._remote.live.link.scrubbed(held[:MAX_ERROR])
            self._note(data)
            if passed := self._renaming.feed(data):
                return passed
        return b""

    def _note(self, data: bytes) -> None:
        """Keep what tells, at the end, whether the answer is whole."""
        self._tail = (self._tail + data[-_LONGEST_LAST:])[-_LONGEST_LAST:]
        if self._whole is not None:
            self._whole += data
            if len(self._whole) > _MOST_CHECKED:
                self._whole = None

    def _check_whole(self) -> None:
        """See to it that an answer that is no stream is one.

        Raises:
            ProviderCut: it is not, though it came with a good status. It is too late for another candidate:
                the request's body may have been let go.
        """
        whole, provider = self._whole, self._remote.live.provider
        if whole is None:
            return
        scrubbed = self._remote.live.link.scrubbed
        try:
            # A list is what reranking answers in one of its forms.
            found = msgspec.json.decode(whole, type=_Whole | list[Raw])
        except (msgspec.MsgspecError, RecursionError):
            if not _is_nearly_json(whole):
                raise faults.no_json(provider, scrubbed(bytes(whole))) from None
            return
        if isinstance(found, _Whole) and found.is_error:
            raise faults.failed_within(provider, scrubbed(bytes(whole)))

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
