"""The way to one provider: aiohttp's client, with its key, its certificates and its proxy."""

from __future__ import annotations

import asyncio
import io
import logging
import socket
import ssl
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable
from typing import Any, Final

import aiohttp

from router.logs import HIDDEN
from router.providers import faults
from router.providers.blocking import in_daemon
from router.providers.faults import ProviderError, ProviderLoop
from router.providers.store import NO_KEY, Provider
from router.version import __version__

log = logging.getLogger(__name__)

VIA: Final = "x-lemon-tray-via"
"""The routers that a request has come through, by the ids of their runs."""
INSTANCE: Final = "x-lemon-tray-instance"
"""Which run of a router answers."""
MAX_VIA: Final = 8

KEYRING_S: Final = 20.0
"""How long a keyring may take."""
CONNECT_S: Final = 10.0
HASTY_CONNECT_S: Final = 3.0
"""How long a connection may take to open, and how long where another model may answer instead."""
LOOK_S: Final = 10.0
ERROR_S: Final = 10.0
WAIT_S: Final = 5.0
"""How long a request waits for a provider that asks for that, before it is told the client instead."""
TRIES: Final = 3
PAUSE_S: Final = 0.25
MAX_LIST: Final = 8 << 20
MAX_ERROR: Final = 256 << 10

#: What of a client's headers a provider sees. Everything else may tell who the client is, or be meant for us.
_PASSED: Final = frozenset(
    {
        b"accept",
        b"anthropic-beta",
        b"anthropic-version",
        b"idempotency-key",
        b"openai-beta",
        b"traceparent",
        b"tracestate",
        b"x-request-id",
    }
)


class Link:
    """The connections to a provider. Open them on the loop; close them there, too."""

    def __init__(self, provider: Provider, find_key: Callable[[], str | None], instance: str) -> None:
        """`find_key` gives the key, "" if there is none, None if it cannot be had. It may block for long.

        `instance` names the run of the router that asks.
        """
        self.provider = provider
        self.find_key = find_key
        self._key: str | None = None
        self._unlocking = asyncio.Lock()
        self._instance = instance
        self._session: aiohttp.ClientSession | None = None
        self._opening = asyncio.Lock()
        self._closed = False

    async def look(self) -> tuple[bytes, str]:
        """What it answers at `/models`, and the run of the router that it is, "" if it is none.

        Raises:
            ProviderError: why there is no list.
        """
        headers = await self._headers((), "application/json")
        try:
            async with asyncio.timeout(LOOK_S):
                proxy = await self._proxy()
                session = await self._open()
                async with session.get(
                    f"{self.provider.url}/models",
                    headers=headers,
                    proxy=proxy,
                    allow_redirects=False,
                ) as response:
                    body = await _read(response, MAX_LIST)
        except aiohttp.ClientResponseError as error:
            raise faults.no_http(self.provider, error) from error
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise faults.not_reached(self.provider, error) from error
        status = response.status
        if len(body) > MAX_LIST:
            raise faults.bad_list(self.provider, f"the list is larger than {MAX_LIST >> 20} MiB")
        if status >= 300:
            failure = faults.of_status(self.provider, status, response.headers, body, self._key or "")
            if failure is None or status == 404 or status in faults.REQUEST_FAULTS:
                failure = faults.bad_list(self.provider, f"it answered with status {status}")
            raise failure
        instance = response.headers.get(INSTANCE, "")
        if instance == self._instance:
            raise faults.itself(self.provider)
        return body, instance

    async def post(
        self, path: str, headers: Iterable[tuple[bytes, bytes]], body: bytes | bytearray, *, patient: bool
    ) -> aiohttp.ClientResponse:
        """Send a request; returns the head of its answer, which is 200 or the request's own fault.

        A connection that could not be opened, or a kept one that turned out to be closed, is tried anew. So
        is a request that the provider wants later, if that is soon. Close the response.

        Args:
            path: below `/v1`.
            patient: it may wait; if not, another model is to answer at once instead.

        Raises:
            ProviderError: why there is no answer.
        """
        head = await self._headers(headers, "")
        head["Content-Type"] = "application/json"
        url = self.provider.url + path.removeprefix("/v1")
        for attempt in range(1, TRIES + 1):
            is_last = attempt == TRIES
            seen = _Seen()
            try:
                response = await self._send(url, head, body, seen, CONNECT_S if patient else HASTY_CONNECT_S)
            except aiohttp.ClientResponseError as error:
                raise faults.no_http(self.provider, error) from error
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
                if not is_last and _may_repeat(error, seen):
                    if not seen.reused:
                        if not patient:
                            raise faults.not_reached(self.provider, error) from error
                        await asyncio.sleep(PAUSE_S * attempt)
                    continue
                raise faults.not_reached(self.provider, error) from error
            failure = await self._failure(response)
            if failure is None:
                return response
            wait_s = failure.retry_after_s
            if is_last or not patient or failure.code != "provider_busy" or wait_s is None or wait_s > WAIT_S:
                raise failure
            await asyncio.sleep(wait_s)
        raise AssertionError("the last try returns or raises")

    def forget_key(self) -> None:
        """Have the key found again, when it is needed next."""
        self._key = None

    def scrubbed(self, data: bytes) -> bytes:
        """A part of an error without the key, should the provider have put it there."""
        return data.replace(self._key.encode(), HIDDEN.encode()) if self._key else data

    async def close(self) -> None:
        """Close all connections."""
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _send(
        self, url: str, head: dict[str, str], body: bytes | bytearray, seen: _Seen, connect_s: float
    ) -> aiohttp.ClientResponse:
        proxy = await self._proxy()
        session = await self._open()
        return await session.post(
            url,
            headers=head,
            # As a file it goes out piece by piece: a large one is not copied, nor does it hold the loop up.
            data=io.BytesIO(body),
            proxy=proxy,
            allow_redirects=False,
            timeout=_timeout(self.provider, connect_s),
            trace_request_ctx=seen,
        )

    async def _failure(self, response: aiohttp.ClientResponse) -> ProviderError | None:
        """The error that an answer stands for; None for one that can be passed on."""
        status = response.status
        kind = response.headers.get("Content-Type", "").lower()
        is_ours = "json" in kind or kind.startswith("text/event-stream")
        if status < 300 and is_ours:
            return None
        if 300 <= status < 600 and status in faults.REQUEST_FAULTS and is_ours:
            return None
        try:
            async with asyncio.timeout(ERROR_S):
                body = await _read(response, MAX_ERROR)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            body = b""  # The status alone says enough.
        finally:
            response.close()
        if status < 300:
            return faults.wrong_kind(self.provider, kind, body)
        found = faults.of_status(self.provider, status, response.headers, body, self._key or "")
        return found or faults.wrong_kind(self.provider, kind, body)

    async def _headers(self, given: Iterable[tuple[bytes, bytes]], accept: str) -> dict[str, str]:
        """What is sent: the key, and little of what the client sent.

        Raises:
            ProviderError: the key cannot be had.
            ProviderLoop: the request has been here before, or has come a long way.
        """
        head = {"User-Agent": f"lemon-tray/{__version__}", "Accept-Encoding": "identity"}
        via: list[str] = []
        for name, value in given:
            key = name.lower()
            if key in _PASSED:
                head[key.decode("latin-1")] = value.decode("latin-1")
            elif key == VIA.encode():
                via += [part.strip() for part in value.decode("latin-1").split(",")]
        if self._instance in via or len(via) >= MAX_VIA:
            raise ProviderLoop(
                f"The provider {self.provider.name} leads back to this router: the request came from here.",
                hint=f"Remove it with: lemon-tray provider remove {self.provider.name}",
            )
        head[VIA] = ", ".join([*via, self._instance])
        if accept:
            head["Accept"] = accept
        if self.provider.key != NO_KEY and (key_text := await self._unlocked()):
            head["Authorization"] = f"Bearer {key_text}"
        return head

    async def _unlocked(self) -> str:
        """The key. A keyring is asked only now, off the loop, as a locked one asks its user first.

        Raises:
            ProviderError: it cannot be had.
        """
        async with self._unlocking:
            if self._key is None:
                try:
                    self._key = await in_daemon(self.find_key, KEYRING_S)
                except TimeoutError:
                    log.warning("The keyring gives no answer about the key of %s.", self.provider.name)
            if self._key is None:
                raise faults.no_key(self.provider)
            return self._key

    async def _open(self) -> aiohttp.ClientSession:
        async with self._opening:
            if self._closed:
                raise ConnectionAbortedError("the provider was removed")
            if self._session is None:
                context: ssl.SSLContext | bool = True
                if self.provider.url.startswith("https:"):
                    context = await asyncio.to_thread(_trust, self.provider)
                self._session = _session(self.provider, context)
            return self._session

    async def _proxy(self) -> str | None:
        """The proxy that the environment names, if it is to be used. Its variables may change."""
        if not self.provider.proxy:
            return None
        return await asyncio.to_thread(_proxy_for, self.provider.url)


class _Seen:
    """What is noted of one try: whether it went out on a kept connection."""

    __slots__ = ("reused",)

    def __init__(self) -> None:
        self.reused = False


async def _note_reuse(_session: object, context: Any, _params: object) -> None:
    if context.trace_request_ctx is not None:
        context.trace_request_ctx.reused = True


def _session(provider: Provider, context: ssl.SSLContext | bool) -> aiohttp.ClientSession:
    trace = aiohttp.TraceConfig()
    trace.on_connection_reuseconn.append(_note_reuse)
    return aiohttp.ClientSession(
        # How many requests there are at once is bounded by those who ask.
        connector=aiohttp.TCPConnector(ssl=context, limit=0, socket_factory=_socket),
        timeout=_timeout(provider, CONNECT_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        trace_configs=[trace],
        trust_env=False,
    )


def _timeout(provider: Provider, connect_s: float) -> aiohttp.ClientTimeout:
    """Bounds for opening a connection and for silence; none for the whole, as a stream may be long."""
    return aiohttp.ClientTimeout(
        total=None, connect=connect_s, sock_connect=connect_s, sock_read=provider.idle_s
    )


def _socket(address: Any) -> socket.socket:
    """A socket that notices within about a minute that the other machine has gone."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family=family, type=kind, proto=protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, option):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return made


def _trust(provider: Provider) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=provider.ca_file or None)
    except (OSError, ssl.SSLError) as error:
        raise ProviderError(
            f"The certificates in {provider.ca_file or 'SSL_CERT_FILE'} cannot be used: {error}.",
            code="provider_certificates",
        ) from error


def _proxy_for(url: str) -> str | None:
    parts = urllib.parse.urlsplit(url)
    if urllib.request.proxy_bypass(parts.netloc):
        return None
    return urllib.request.getproxies().get(parts.scheme)


def _may_repeat(error: BaseException, seen: _Seen) -> bool:
    """Whether nobody has seen the request: there was no connection, or a kept one had been closed."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return False
    if isinstance(error, aiohttp.ClientConnectorError):
        return True
    return seen.reused and isinstance(error, (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError))


async def _read(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The body; a little more than `limit` of one that is larger."""
    parts: list[bytes] = []
    size = 0
    while size <= limit and (data := await response.content.readany()):
        parts.append(data)
        size += len(data)
    return b"".join(parts)
