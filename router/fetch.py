"""Fetching a file whose size and SHA-256 are known: taken up where it broke off, and never another for it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import email.utils
import errno
import hashlib
import logging
import os
import shutil
import ssl
import threading
import time
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

import aiohttp
from msgspec import Struct

from router.errors import RouterError
from router.units import gib

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]

BLOCK: Final = 1 << 20
PART: Final = ".part"
RETRY_PAUSES_S: Final = (1.0, 3.0, 9.0)
TIMEOUT: Final = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=60)
GOES_ON: Final = "What has arrived is kept: trying again goes on from there."
#: The longest wait that a server may ask for before the next try; who asks for more is given up.
LONGEST_WAIT_S: Final = 120.0
#: What a server says to who asks too often, or too early.
_LATER: Final = (429, 503)


class Wanted(Struct, frozen=True):
    """A file, told by its hash: where it comes from does not matter then.

    Attributes:
        title: what it is, for messages, as it stands within a sentence: `the demo model`.
        file: its name.
        size: bytes.
        sha256: in hex, lower case.
        origin: who gives it, for messages: `the package index`.
        hint: what may help if another file is given.
    """

    title: str
    file: str
    size: int
    sha256: str
    origin: str
    hint: str = "A proxy or mirror on the way may alter files."


#: Turns a server's refusal into the error to raise, where there is more to say than its status.
Explain = Callable[[aiohttp.ClientResponseError], RouterError | None]


class FileThread:
    """One thread that does all file work in order, so that a file is never closed under a write."""

    def __init__(self, name: str) -> None:
        self._executor = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix=name)
        self.cancelled = threading.Event()

    async def do(self, work: Callable[..., Any], *args: Any) -> Any:
        """The result of `work`, run in the thread."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, work, *args)

    async def close(self) -> None:
        """Wait for the work under way, which is short, or ends early because of `cancelled`."""
        self.cancelled.set()
        self._executor.shutdown(wait=False, cancel_futures=False)
        ended = asyncio.get_running_loop().run_in_executor(None, self._executor.shutdown)
        await asyncio.shield(ended)


class Part:
    """What has arrived of a file, and its hash. Used in the file thread only."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self.abandoned = threading.Event()
        self._hash = hashlib.sha256()
        self._file: IO[bytes] | None = None

    def open(self, limit: int) -> int:
        """Take up what is there, unless it is longer than the whole. Returns its size.

        Setting `abandoned` ends it early: what is there can be many gigabytes.
        """
        self._file = self.path.open("ab+", buffering=0)
        self._file.seek(0)
        while not self.abandoned.is_set() and (block := self._file.read(BLOCK)):
            self._hash.update(block)
            self.size += len(block)
        if self.size > limit:
            self.restart()
        return self.size

    def restart(self) -> None:
        """Throw away what has arrived."""
        assert self._file is not None
        self._file.truncate(0)
        self.size = 0
        self._hash = hashlib.sha256()

    def write(self, data: bytes) -> None:
        """Add to it, unless it has been given up: it may be closed then."""
        assert self._file is not None
        if self.abandoned.is_set():
            return
        view = memoryview(data)
        while view:
            count = self._file.write(view)
            self._hash.update(view[:count])
            self.size += count
            view = view[count:]

    def finish(self) -> str:
        """Put it on the disk; returns the hash in hex."""
        assert self._file is not None
        os.fsync(self._file.fileno())
        return self._hash.hexdigest()

    def close(self) -> None:
        """Close the file, and delete it if nothing is in it."""
        if self._file is not None:
            is_empty = not os.fstat(self._file.fileno()).st_size
            self._file.close()
            if is_empty:
                self.path.unlink(missing_ok=True)


async def fetch(
    thread: FileThread,
    wanted: Wanted,
    path: Path,
    find: Callable[[], Awaitable[str]],
    session: aiohttp.ClientSession,
    tell: Progress,
    *,
    proxy: str = "",
    pauses_s: Sequence[float] = RETRY_PAUSES_S,
    headers: Mapping[str, str] | None = None,
    explain: Explain | None = None,
) -> None:
    """Fetch a file into `path`, going on with what is there of it. Its hash is right when this returns.

    Args:
        find: tells the address; asked only if something is still missing.
        tell: called on the loop with bytes done and bytes in all.
        pauses_s: seconds before each further try after a broken connection. A server that names a time itself
            is waited for so long, within bounds.
        headers: sent with each request; one that logs in goes to no other host that the server leads to.
        explain: asked about a server's refusal.

    Raises:
        RouterError: no network, another file; what is wrong is thrown away, what is right so far is kept.
        OSError: it could not be written.
    """
    part = Part(path)
    try:
        await thread.do(part.open, wanted.size)
        fresh = part.size == 0
        while True:
            if part.size < wanted.size:
                asked = _Asked(await find(), headers or {}, proxy, explain)
                await _receive_patiently(thread, part, wanted, asked, session, tell, pauses_s)
            if await thread.do(part.finish) == wanted.sha256:
                return
            await thread.do(part.restart)
            if fresh:
                raise RouterError(
                    f"The file {wanted.file} that {wanted.origin} gave is not the one that it should be "
                    "(its SHA-256 differs); it was thrown away.",
                    code="download_corrupt",
                    status=502,
                    hint=wanted.hint,
                )
            # The kept beginning may have been the bad part: once more, from nothing.
            fresh = True
    finally:
        part.abandoned.set()
        await asyncio.shield(thread.do(part.close))


@contextlib.asynccontextmanager
async def open_session(
    thread: FileThread, given: aiohttp.ClientSession | None = None, cert: str = ""
) -> AsyncIterator[aiohttp.ClientSession]:
    """A session for downloads, which trusts the certificates of a file, or those of the system.

    It is closed at the end. One that is `given` is used as it is, and stays open.

    Raises:
        RouterError: that file cannot be used.
    """
    if given is not None:
        yield given
        return

    def trust() -> ssl.SSLContext:
        return ssl.create_default_context(cafile=cert or None)

    try:
        context = await thread.do(trust)
    except (OSError, ssl.SSLError) as error:
        raise RouterError(
            f"The certificates in {cert or 'SSL_CERT_FILE'} cannot be used: {error}.",
            code="download_failed",
            status=502,
            hint="pip's configuration names that file as cert." if cert else None,
        ) from error
    async with aiohttp.ClientSession(
        trust_env=True, timeout=TIMEOUT, connector=aiohttp.TCPConnector(ssl=context, limit=2)
    ) as session:
        yield session


class _Asked(Struct, frozen=True):
    """How a file is asked for."""

    url: str
    headers: Mapping[str, str]
    proxy: str
    explain: Explain | None


async def _receive_patiently(
    thread: FileThread,
    part: Part,
    wanted: Wanted,
    asked: _Asked,
    session: aiohttp.ClientSession,
    tell: Progress,
    pauses_s: Sequence[float],
) -> None:
    """Receive the rest, connecting again when the connection breaks. Only tries in vain are counted."""
    failures = 0
    while part.size < wanted.size:
        before = part.size
        try:
            await _receive(thread, part, asked, wanted, session, tell)
            if part.size < wanted.size:
                raise aiohttp.ClientPayloadError("the connection ended early")
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            failures = 0 if part.size > before else failures + 1
            pause_s = pauses_s[min(max(failures - 1, 0), len(pauses_s) - 1)] if pauses_s else 0.0
            wait_s = retry_after_s(error)
            if isinstance(error, aiohttp.ClientResponseError) and not _may_pass(error.status):
                refused = True
            else:
                refused = failures > len(pauses_s) or (wait_s or 0.0) > LONGEST_WAIT_S
            if refused:
                raise _refusal(error, wanted, asked, wait_s) from error
            log.info("Fetching %s: %s; going on at byte %d.", wanted.title, describe(error), part.size)
            await asyncio.sleep(max(pause_s, wait_s or 0.0))


def _may_pass(status: int) -> bool:
    """Whether a server that answers so may answer otherwise a little later."""
    return status >= 500 or status in (408, 425, 429)


def _refusal(error: Exception, wanted: Wanted, asked: _Asked, wait_s: float | None) -> RouterError:
    """What to raise when there is no use in another try."""
    if asked.explain is not None and isinstance(error, aiohttp.ClientResponseError):
        explained = asked.explain(error)
        if explained is not None:
            return explained
    return RouterError(
        f"{_at_the_start(wanted.title)} could not be fetched from "
        f"{without_secrets(asked.url)}: {describe(error)}.",
        code="download_failed",
        status=502,
        hint=GOES_ON,
        retry_after_s=wait_s,
    )


def retry_after_s(error: BaseException) -> float | None:
    """The seconds after which a server that refused wants to be asked again; None if it names none."""
    if not isinstance(error, aiohttp.ClientResponseError) or error.status not in _LATER:
        return None
    return seconds_of(error.headers.get("Retry-After", "")) if error.headers else None


def seconds_of(text: str, now: float | None = None) -> float | None:
    """The seconds that a `Retry-After` means, which names them or a date; None if it is neither."""
    text = text.strip()
    if text.isdecimal():
        return float(text[:9])
    try:
        due = email.utils.parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
    return max(0.0, due - (time.time() if now is None else now))


async def _receive(
    thread: FileThread,
    part: Part,
    asked: _Asked,
    wanted: Wanted,
    session: aiohttp.ClientSession,
    tell: Progress,
) -> None:
    headers = {**asked.headers, "Accept-Encoding": "identity"}
    if part.size:
        headers["Range"] = f"bytes={part.size}-"
    async with session.get(asked.url, headers=headers, proxy=asked.proxy or None) as response:
        if response.status == 206:
            start = response.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
            if start != str(part.size):
                await thread.do(part.restart)
                raise aiohttp.ClientPayloadError("the server sent another range than asked")
        elif response.status == 416:
            await thread.do(part.restart)
            raise aiohttp.ClientPayloadError("the server has no such range")
        else:
            response.raise_for_status()
            await thread.do(part.restart)
        length = response.content_length
        if length is not None and part.size + length != wanted.size:
            await thread.do(part.restart)
            raise _another_file(asked.url, wanted)
        if _named_hash(response) not in ("", wanted.sha256):
            await thread.do(part.restart)
            raise _changed(asked.url, wanted)
        tell(part.size, wanted.size)
        kept = _Keeping(thread, part, lambda: tell(part.size, wanted.size))
        try:
            async for data in response.content.iter_any():
                await kept.add(data)
                if kept.received > wanted.size:
                    break
        except asyncio.CancelledError:
            with contextlib.suppress(OSError):
                await asyncio.shield(kept.flush())
            raise
        except (aiohttp.ClientError, TimeoutError, ConnectionError):
            await asyncio.shield(kept.flush())
            raise
        await kept.flush()
        if part.size > wanted.size:
            await thread.do(part.restart)
            raise _another_file(asked.url, wanted)
        tell(part.size, wanted.size)


class _Keeping:
    """Writes what arrives in blocks, each while the next one arrives: no fast line waits for the disk."""

    def __init__(self, thread: FileThread, part: Part, tell: Callable[[], None]) -> None:
        """`tell` is called on the loop after each block."""
        self._thread = thread
        self._part = part
        self._tell = tell
        self._pending = bytearray()
        self._writing: asyncio.Future[None] | None = None
        self.received = part.size

    async def add(self, data: bytes) -> None:
        """Take what has arrived.

        Raises:
            OSError: an earlier block could not be written.
        """
        self._pending += data
        self.received += len(data)
        if len(self._pending) >= BLOCK:
            await self._written()
            self._begin()

    async def flush(self) -> None:
        """Write the rest, unless the part is closed already.

        Raises:
            OSError: it could not be written.
        """
        await self._written()
        if self._pending and not self._part.abandoned.is_set():
            self._begin()
            await self._written()

    def _begin(self) -> None:
        block, self._pending = bytes(self._pending), bytearray()
        self._writing = asyncio.ensure_future(self._write(block))

    async def _write(self, block: bytes) -> None:
        await self._thread.do(self._part.write, block)
        self._tell()

    async def _written(self) -> None:
        """Wait for the block that is being written."""
        if self._writing is not None:
            # Giving up waiting must not take the block out of the row: what follows would be in its place.
            await asyncio.shield(self._writing)
            self._writing = None


def _another_file(url: str, wanted: Wanted) -> RouterError:
    return RouterError(
        f"{without_secrets(url)} has not the length that {wanted.title} should have.",
        code="download_corrupt",
        status=502,
        hint=wanted.hint,
    )


def _named_hash(response: aiohttp.ClientResponse) -> str:
    """The SHA-256 by which a server names the file, as the Hugging Face hub does; "" if it does not."""
    for answer in (*response.history, response):
        named = answer.headers.get("X-Linked-Etag", "").removeprefix("W/").strip('"').lower()
        if len(named) == hashlib.sha256().digest_size * 2:
            return named
    return ""


def _changed(url: str, wanted: Wanted) -> RouterError:
    return RouterError(
        f"{without_secrets(url)} is another file by now than {wanted.title} should be.",
        code="download_corrupt",
        status=502,
        hint="It was changed meanwhile: try again.",
    )


def is_right(path: Path, size: int, sha256: str) -> bool:
    """Whether a file is there and the right one. Blocks."""
    try:
        if path.stat().st_size != size:
            return False
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except FileNotFoundError:
        return False


def check_room(folder: Path, title: str, needed: int) -> None:
    """See to it that `needed` bytes are free in a folder that exists. Blocks.

    Raises:
        RouterError: they are not (507).
    """
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise RouterError(
            f"{_at_the_start(title)} needs {gib(needed)} in {folder} while it is fetched; "
            f"{gib(free)} is free.",
            code="disk_full",
            status=507,
        )


def disk_error(folder: Path, title: str, error: OSError) -> RouterError:
    """The error for a file that could not be written."""
    if error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", None)):
        return RouterError(
            f"There is no space left in {folder} for {title}.", code="disk_full", status=507, hint=GOES_ON
        )
    return RouterError(
        f"{_at_the_start(title)} could not be kept in {folder}: {error.strerror or error}.",
        code="download_failed",
        status=500,
    )


def _at_the_start(title: str) -> str:
    """A title as a sentence begins with it."""
    return title[:1].upper() + title[1:]


def without_secrets(url: str) -> str:
    """An address that can be shown: without user, password and query."""
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def describe(error: BaseException) -> str:
    """A network error in a few words, without addresses that could hold a password."""
    if isinstance(error, aiohttp.ClientResponseError):
        return f"it answered {error.status} {error.message}".rstrip()
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "its certificate is not trusted"
    if isinstance(error, aiohttp.ClientConnectorError):
        why = error.os_error.strerror or str(error.os_error) or "it was closed at once"
        return f"no connection to {error.host} ({why})"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return type(error).__name__ if not str(error) else str(error)
