"""A small client of the endpoint, for the commands that ask or steer a running router."""

from __future__ import annotations

import contextlib
import http.client
import json
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from router.errors import RouterError

TIMEOUT_S: Final = 30.0
EVENT_LIMIT: Final = 64 << 20


class NotRunning(RouterError):
    """Nothing answers at the endpoint."""

    code = "not_running"
    status = 503


class Client:
    """Talks to one endpoint, directly: a proxy that the environment names is not for the local machine."""

    def __init__(self, endpoint: str, key: str = "", find_key: Callable[[], str] = str) -> None:
        """`endpoint` is the base URL, with or without `/v1`; `key` an API key, "" for none.

        `find_key` finds another one, and is called if the endpoint wants one.

        Raises:
            RouterError: it is no http URL.
        """
        written = endpoint if "://" in endpoint else f"http://{endpoint}"
        try:
            parts = urllib.parse.urlsplit(written)
            self._port = parts.port
        except ValueError as error:
            raise RouterError(f"{endpoint} is no endpoint: {error}.") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise RouterError(f"{endpoint} is no endpoint.", hint="Such as http://127.0.0.1:13305.")
        self.url = f"{parts.scheme}://{parts.netloc}"
        self._secure = parts.scheme == "https"
        self._host = parts.hostname
        self._key = key
        self._find_key = find_key

    def get(self, path: str) -> Any:
        """The JSON answer.

        Raises:
            NotRunning: nothing answers there.
            RouterError: what the router says is wrong.
        """
        with self._answer("GET", path, None, TIMEOUT_S) as response:
            return _json(response)

    def post(self, path: str, body: Mapping[str, Any], *, timeout_s: float | None = TIMEOUT_S) -> Any:
        """As `get`. Without a `timeout_s` it waits as long as the router does."""
        with self._answer("POST", path, body, timeout_s) as response:
            return _json(response)

    def events(
        self, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float | None = None
    ) -> Iterator[tuple[str, bytes]]:
        """Name and data of each event of a stream, until the router ends it.

        With a `body` it is posted. `timeout_s` bounds each wait; without it silence is no fault.

        Raises:
            NotRunning, RouterError: as `get`.
        """
        with self._answer("GET" if body is None else "POST", path, body, timeout_s) as response:
            name, data = "message", bytearray()
            while line := response.readline(EVENT_LIMIT):
                field, _, value = line.rstrip(b"\r\n").partition(b":")
                value = value.removeprefix(b" ")
                if field == b"event":
                    name = value.decode("utf-8", "replace")
                elif field == b"data":
                    data += value + b"\n"
                elif not line.strip() and data:
                    yield name, bytes(data[:-1])
                    name, data = "message", bytearray()

    @contextlib.contextmanager
    def _answer(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float | None
    ) -> Iterator[http.client.HTTPResponse]:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=timeout_s)
        headers = {"Accept": "application/json, text/event-stream"}
        data = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = json.dumps(body)
        try:
            try:
                response = self._ask(connection, method, path, data, headers)
            except TimeoutError as error:
                raise RouterError(f"{self.url} did not answer in time.") from error
            except (OSError, http.client.HTTPException) as error:
                reason = getattr(error, "strerror", None) or type(error).__name__
                raise NotRunning(
                    f"Lemon Tray does not answer at {self.url}: {reason}.",
                    hint="start it with: lemon-tray serve",
                ) from error
            if response.status >= 400:
                raise _error(response, self.url)
            try:
                yield response
            except (OSError, http.client.HTTPException) as error:
                raise NotRunning(f"The connection to {self.url} ended.") from error
        finally:
            connection.close()

    def _ask(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        data: str | None,
        headers: dict[str, str],
    ) -> http.client.HTTPResponse:
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        connection.request(method, path, data, headers)
        response = connection.getresponse()
        if response.status != http.HTTPStatus.UNAUTHORIZED or self._key:
            return response
        found = self._find_key()
        if not found:
            return response
        self._key = found
        response.read()
        return self._ask(connection, method, path, data, headers)


def _json(response: http.client.HTTPResponse) -> Any:
    data = response.read()
    try:
        return json.loads(data) if data else None
    except ValueError as error:
        raise RouterError("The answer is no JSON; another program may hold that port.") from error


def _error(response: http.client.HTTPResponse, url: str) -> RouterError:
    try:
        told = json.loads(response.read(1 << 20))["error"]
        return RouterError(
            str(told["message"]), code=told.get("code"), status=response.status, hint=told.get("hint")
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return RouterError(
            f"{url} answered {response.status} {response.reason}; another program may hold that port.",
            status=response.status,
        )
