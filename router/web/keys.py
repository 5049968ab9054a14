"""The API keys that are valid now, and who needs one: compared in constant time, never told."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Mapping
from typing import Any, Final

from aiohttp import hdrs

from router import logs
from router.errors import ConfigError, RouterError
from router.web.asking import Asking
from router.web.keyfile import VARIABLE, KeyFile, digest

log = logging.getLogger(__name__)

_LEAST: Final = 16
_MOST: Final = 512
_LOOK_S: Final = 1.0


class Unauthorized(RouterError):
    code = "invalid_api_key"
    status = 401


class Keys:
    """The keys that are valid now: those of the file, looked at again when it changes, and the variable's."""

    def __init__(self, file: KeyFile | None = None, environ: Mapping[str, str] | None = None) -> None:
        self._file = file
        self._environ = environ or {}
        self._digests: tuple[bytes, ...] = ()
        self._fixed: tuple[bytes, ...] = ()
        self._seen: Any = None
        self._looked = -1e9

    def load(self) -> None:
        """Read them. Blocks.

        Raises:
            ConfigError: the file cannot be used, or the variable's key is too short.
        """
        given = self._environ.get(VARIABLE, "").strip()
        if given:
            if not _LEAST <= len(given) <= _MOST:
                raise ConfigError(
                    f"The key in {VARIABLE} is too {'short' if len(given) < _LEAST else 'long'}: it needs "
                    f"{_LEAST} to {_MOST} characters.",
                    param=VARIABLE,
                )
            logs.hide(given)
            self._fixed = (digest(given).encode(),)
        self._read()

    @property
    def any(self) -> bool:
        """Whether there is any key."""
        return bool(self._digests or self._fixed)

    async def check(self, request: Asking) -> None:
        """Refuse a request that carries no valid key.

        Raises:
            Unauthorized: it has none, or not a valid one.
        """
        await self._refresh()
        given = given_key(request)
        if not given:
            raise Unauthorized(
                "This endpoint wants an API key: send the header Authorization: Bearer KEY.",
                code="missing_api_key",
                hint=None if self.any else "There is no key yet. Make one with: lemon-tray key add NAME",
            )
        if not self.accepts(given):
            raise Unauthorized("The API key is not valid.")

    def accepts_at_once(self, request: Asking) -> bool:
        """Whether a request carries a key that is valid for certain, without a look at the file."""
        is_fresh = self._file is None or time.monotonic() - self._looked < _LOOK_S
        return is_fresh and self.accepts(given_key(request))

    def accepts(self, given: str) -> bool:
        """Whether it is a key. How long that takes does not depend on how much of it is right."""
        theirs = digest(given).encode()
        found = False
        for ours in (*self._digests, *self._fixed):
            found |= hmac.compare_digest(theirs, ours)
        return found

    async def _refresh(self) -> None:
        now = time.monotonic()
        if self._file is None or now - self._looked < _LOOK_S:
            return
        self._looked = now
        try:
            await asyncio.to_thread(self._read)
        except ConfigError as error:
            log.warning("%s The keys stay as they were.", error.message)

    def _read(self) -> None:
        if self._file is None:
            return
        self._looked = time.monotonic()
        try:
            found = self._file.path.stat()
            seen = (found.st_mtime_ns, found.st_size, found.st_ino)
        except OSError:
            seen = None
        if seen == self._seen and seen is not None:
            return
        entries = self._file.read()
        for entry in entries:
            logs.hide(entry.secret)
        self._digests, self._seen = tuple(entry.digest.encode() for entry in entries), seen


def given_key(request: Asking) -> str:
    """The key that a request carries, in any of the headers that clients use; "" without one."""
    scheme, _, credentials = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
    if scheme.lower() == "bearer" and credentials.strip():
        return credentials.strip()
    return request.headers.get("x-api-key", "").strip() or request.headers.get("api-key", "").strip()
