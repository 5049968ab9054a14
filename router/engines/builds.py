"""GPU builds of the engine: llama.cpp's own releases, fetched, checked, tried, kept in a folder of the app.

Each build is a folder of its own, named after the build, with a manifest in it. It gets that name only when
it is complete and has been tried, in one step: whatever happens before leaves nothing that counts.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

import aiohttp
import msgspec
from msgspec import Struct

from router.engines.archives import Abandoned, BadArchive, safe_parts, unpack
from router.engines.base import Capabilities
from router.engines.releases import (
    BACKENDS,
    GITHUB,
    Machine,
    Offer,
    Releases,
    find_offer,
    suitable,
    title_of,
)
from router.errors import Conflict, NotFound, RouterError
from router.fetch import (
    PART,
    RETRY_PAUSES_S,
    FileThread,
    Progress,
    Wanted,
    check_room,
    disk_error,
    fetch,
    open_session,
)
from router.instance import FileLock
from router.settings.files import sync_folder

log = logging.getLogger(__name__)

TryOut = Callable[[Path], Awaitable[Capabilities]]

MANIFEST: Final = "build.json"
#: What has arrived of a build that was not fetched to its end is kept so long.
PART_KEPT_S: Final = 7 * 86_400.0
#: What its download is called.
GPU_BUILD: Final = "GPU build"
_TITLE: Final = "the GPU build"
_LOCK: Final = ".lock"
_NEW: Final = ".new-"
_OLD: Final = ".old-"
#: Bytes unpacked for each byte of an archive, at the most seen: to ask for room before anything is fetched.
_GROWTH: Final = 4
_MANIFEST_LIMIT: Final = 1 << 20
_ID: Final = re.compile(r"(?P<tag>[A-Za-z0-9._]{1,40})-[a-z]+(?:-[0-9.]+)?")
_DRIVERS: Final = {
    "vulkan": "It needs the card's Vulkan driver and the Vulkan loader (on Debian and Ubuntu: libvulkan1, "
    "and mesa-vulkan-drivers or NVIDIA's driver).",
    "rocm": "It needs AMD's ROCm libraries; the Vulkan build needs only the ordinary driver.",
    "cuda": "It needs a newer NVIDIA driver; the Vulkan build may do with the one that is there.",
}


class Build(Struct, frozen=True):
    """A build that is here, as its manifest tells.

    Attributes:
        digests: SHA-256 in hex of each archive that it came in.
        size: bytes on the disk.
        program: path of the llama-server within its folder, with `/`.
        version: what the program said of itself when it was tried.
        fetched: Unix seconds.
    """

    id: str
    tag: str
    backend: str
    digests: dict[str, str]
    size: int
    program: str
    version: str = ""
    fetched: float = 0.0

    @property
    def title(self) -> str:
        """For people."""
        return title_of(self.tag, self.backend)


def download_name(wanted: str | None) -> str:
    """What fetching a build is called in the list of downloads."""
    return f"{GPU_BUILD} {wanted}" if wanted else GPU_BUILD


class Builds:
    """The builds in one folder.

    Args:
        folder: theirs alone; made when the first one is fetched.
        machine: what they have to suit; may be replaced when that changes.
        try_out: runs a program in a child and tells what it reaches.
        in_use: whether a worker of the build with that id runs.
        base: the address of llama.cpp's repository in GitHub's API.
        pauses_s: seconds before each further try after a broken connection.
    """

    def __init__(
        self,
        folder: Path,
        machine: Machine,
        try_out: TryOut,
        *,
        in_use: Callable[[str], bool] = lambda _id: False,
        base: str = GITHUB,
        session: aiohttp.ClientSession | None = None,
        pauses_s: Sequence[float] = RETRY_PAUSES_S,
    ) -> None:
        self.machine = machine
        self._folder = folder
        self._try_out = try_out
        self._in_use = in_use
        self._releases = Releases(base)
        self._session = session
        self._pauses_s = pauses_s
        self._one = asyncio.Lock()
        self._installed: dict[str, Build] = {}
        self._offers: tuple[Offer, ...] = ()

    @property
    def installed(self) -> tuple[Build, ...]:
        """The builds that are here, the newest release first."""
        return tuple(sorted(self._installed.values(), key=lambda build: _age(build.tag), reverse=True))

    @property
    def offers(self) -> tuple[Offer, ...]:
        """What suits this machine, the best first, as `refresh_offers` found out last."""
        return self._offers

    @property
    def suitable(self) -> tuple[str, ...]:
        """The back ends of builds that suit this machine, the best first, without asking anybody."""
        return suitable(self.machine)

    def program(self, id: str) -> Path:
        """The llama-server of a build that is here.

        Raises:
            NotFound: it is not.
        """
        build = self._installed.get(id)
        if build is None:
            raise _unknown(id)
        return self._folder.joinpath(id, *build.program.split("/"))

    async def load(self) -> None:
        """Read which builds are here, and clear away what a crash has left."""
        self._installed = await asyncio.to_thread(self._load)

    async def refresh_offers(self) -> tuple[Offer, ...]:
        """Ask GitHub which builds suit this machine.

        Raises:
            RouterError: it cannot be asked, or asks to wait; what was known before stays.
        """
        if not self.suitable:
            self._offers = ()
            return ()
        thread = FileThread("releases")
        try:
            async with open_session(thread, self._session) as session:
                self._offers = await self._releases.newest(session, self.machine, self.suitable)
        finally:
            await thread.close()
        return self._offers

    async def get(self, wanted: str | None = None, progress: Progress | None = None) -> Build:
        """Fetch a build, check it, unpack it, try it; only then it counts.

        One at a time: a second call waits for the first, and finds its build there. A build that is here and
        works is not fetched again. After a broken connection, a cancellation or a crash the next call goes on
        with what has arrived. A build of the same name that is here stays until the new one has been tried.

        Args:
            wanted: a build's id, a back end for the newest of that kind, or None for what suits best.
            progress: called on the loop with bytes done and bytes in all.

        Raises:
            NotFound: there is no such build, or none suits.
            Conflict: another process is fetching one.
            RouterError: no network, no published hash, a wrong one, an archive with what it must not hold, no
                space, or it does not run or reaches no GPU here. Nothing that is wrong is kept.
        """
        tell = progress or (lambda _done, _total: None)
        async with self._one:
            here = self._installed.get(wanted or "")
            if here is not None and await self._works(here):
                return here
            thread = FileThread("gpu-build")
            lock = FileLock(self._folder / _LOCK)
            try:
                await thread.do(_make_folder, self._folder)
                if not await thread.do(lock.acquire):
                    raise Conflict("Another Lemon Tray is fetching a build into the same folder.")
                await thread.do(self._sweep)
                async with open_session(thread, self._session) as session:
                    offer = await self._find(session, wanted)
                    here = self._installed.get(offer.id)
                    if here is not None and await self._works(here):
                        return here
                    return await self._install(thread, session, offer, tell)
            except OSError as error:
                raise disk_error(self._folder, _TITLE, error) from error
            finally:
                thread.cancelled.set()
                await asyncio.shield(thread.do(lock.release))
                await thread.close()

    async def remove(self, id: str) -> None:
        """Delete a build.

        Raises:
            NotFound: it is not here.
            Conflict: a worker of it runs.
            RouterError: its files cannot be deleted.
        """
        build = self._installed.get(id)
        if build is None:
            raise _unknown(id)
        if self._in_use(id):
            raise Conflict(
                f"The build {id} is in use: a model runs on it.",
                code="engine_in_use",
                param="id",
                hint="Unload the models first.",
            )
        # At once, so that nobody chooses it any more.
        del self._installed[id]
        try:
            await asyncio.to_thread(self._remove, id)
        except OSError as error:
            self._installed[id] = build
            raise RouterError(
                f"The build {id} cannot be deleted: {error.strerror or error}.", code="engine_not_removed"
            ) from error

    async def _find(self, session: aiohttp.ClientSession, wanted: str | None) -> Offer:
        """Raises NotFound, RouterError."""
        known = next((offer for offer in self._offers if offer.id == wanted), None)
        if known is not None:
            return known
        if wanted is None or wanted in BACKENDS:
            backends = self.suitable if wanted is None else (wanted,)
            offers = await self._releases.newest(session, self.machine, backends) if backends else ()
            if wanted is None:
                self._offers = offers
            if offers:
                return next((offer for offer in offers if not offer.problem), offers[0])
            raise self._nothing_suits(wanted)
        match = _ID.fullmatch(wanted)
        if match is None:
            raise _unknown(wanted)
        offer = find_offer(await self._releases.tagged(session, match["tag"]), self.machine, wanted)
        if offer is None:
            raise NotFound(
                f"The release {match['tag']} of llama.cpp has no build {wanted} for this machine.", param="id"
            )
        return offer

    def _nothing_suits(self, wanted: str | None) -> NotFound:
        machine = f"{self.machine.system} on {self.machine.processor}"
        hint = "A llama-server of your own can be used by its path: lemon-tray engine use PATH."
        if wanted is not None:
            reason = f"llama.cpp's latest releases have no build for {wanted} and {machine}."
        elif not self.machine.backends:
            reason = "No GPU was found on this machine, so no GPU build suits it."
            hint = "Name a kind of build to try one all the same: lemon-tray engine get vulkan."
        else:
            cards = ", ".join(sorted(self.machine.backends))
            reason = f"llama.cpp's latest releases have no build for {machine} and a GPU of kind {cards}."
        return NotFound(reason, code="no_build", hint=hint)

    async def _works(self, build: Build) -> bool:
        return not (await self._try_out(self.program(build.id))).problem

    async def _install(
        self, thread: FileThread, session: aiohttp.ClientSession, offer: Offer, tell: Progress
    ) -> Build:
        if offer.problem:
            raise RouterError(
                f"The build {offer.id} is not fetched, since it could not be checked: {offer.problem}.",
                code="no_digest",
                status=502,
                hint="Older releases have none: take a newer one.",
            )
        archives = [self._folder / f".{asset.name}{PART}" for asset in offer.assets]
        await thread.do(self._check_room, offer, archives)
        before = 0
        for asset, archive in zip(offer.assets, archives, strict=True):
            url = asset.browser_download_url
            arrived = before

            async def address(url: str = url) -> str:
                return url

            def told(done: int, _total: int, arrived: int = arrived) -> None:
                tell(arrived + done, offer.size)

            wanted = Wanted(_TITLE, asset.name, asset.size, asset.sha256, "GitHub")
            await fetch(thread, wanted, archive, address, session, told, pauses_s=self._pauses_s)
            before += asset.size
        tell(offer.size, offer.size)
        new = Path(await thread.do(self._new_folder))
        try:
            build = await self._unpack(thread, offer, archives, new)
            build = await self._try(offer, build, new / offer.id)
            await thread.do(self._settle, build, new, archives)
        finally:
            thread.cancelled.set()
            await asyncio.shield(thread.do(shutil.rmtree, new, True))
        self._installed[build.id] = build
        log.info("The build %s is here: %s", build.id, self._folder / build.id)
        return build

    async def _unpack(self, thread: FileThread, offer: Offer, archives: Sequence[Path], new: Path) -> Build:
        try:
            build: Build = await thread.do(_unpack_all, offer, archives, new, thread.cancelled)
            return build
        except BadArchive as error:
            for archive in archives:
                await thread.do(archive.unlink, True)
            raise RouterError(
                f"The build {offer.id} could not be unpacked: the archive {error}.",
                code="download_corrupt",
                status=502,
                hint="Nothing of it was kept. Another release may do.",
            ) from error

    async def _try(self, offer: Offer, build: Build, folder: Path) -> Build:
        found = await self._try_out(folder.joinpath(*build.program.split("/")))
        if found.problem:
            reason = f"it does not run here ({found.problem})"
        elif not found.devices:
            reason = "it runs, but reaches no GPU on this machine" + (
                f" ({found.note})" if found.note else ""
            )
        else:
            return msgspec.structs.replace(build, version=found.version)
        raise RouterError(
            f"The build {offer.id} was fetched, but {reason}. It is not used.",
            code="engine_unusable",
            status=502,
            hint=_DRIVERS.get(offer.backend),
        )

    # In a thread

    def _load(self) -> dict[str, Build]:
        found: dict[str, Build] = {}
        if not self._folder.is_dir():
            return found
        lock = FileLock(self._folder / _LOCK)
        try:
            if lock.acquire():
                self._sweep()
            for folder in sorted(self._folder.iterdir()):
                build = None if folder.name.startswith(".") else _read(folder)
                if build is not None:
                    found[build.id] = build
        except OSError as error:
            log.warning("The builds in %s cannot be read: %s", self._folder, error.strerror or error)
        finally:
            lock.release()
        return found

    def _sweep(self) -> None:
        """Delete what others have left. The lock is held: nobody is at work on it."""
        for path in self._folder.iterdir():
            if path.name.startswith((_NEW, _OLD)):
                log.info("Deleting %s, which was left behind", path)
                shutil.rmtree(path, ignore_errors=True)
            elif path.name.endswith(PART) and path.stat().st_mtime < time.time() - PART_KEPT_S:
                path.unlink(missing_ok=True)

    def _check_room(self, offer: Offer, archives: Sequence[Path]) -> None:
        kept = sum(archive.stat().st_size for archive in archives if archive.exists())
        check_room(self._folder, _TITLE, max(0, offer.size - kept) + _GROWTH * offer.size)

    def _new_folder(self) -> str:
        return tempfile.mkdtemp(prefix=_NEW, dir=self._folder)

    def _settle(self, build: Build, new: Path, archives: Sequence[Path]) -> None:
        """Give it its name."""
        _write_manifest(new / build.id, build)
        aside = self._set_aside(build.id)
        try:
            os.replace(new / build.id, self._folder / build.id)
        except OSError:
            if aside is not None:
                os.replace(aside / build.id, self._folder / build.id)
            raise
        sync_folder(self._folder)
        if aside is not None:
            shutil.rmtree(aside, ignore_errors=True)
        for archive in archives:
            archive.unlink(missing_ok=True)

    def _remove(self, id: str) -> None:
        aside = self._set_aside(id)
        if aside is not None:
            shutil.rmtree(aside, ignore_errors=True)

    def _set_aside(self, id: str) -> Path | None:
        """Take a build's name from it, in one step, so that it is never there in part."""
        folder = self._folder / id
        if not folder.exists():
            return None
        aside = Path(tempfile.mkdtemp(prefix=_OLD, dir=self._folder))
        try:
            os.replace(folder, aside / id)
        except OSError:
            aside.rmdir()
            raise
        return aside


def _make_folder(folder: Path) -> None:
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)


def _unpack_all(offer: Offer, archives: Sequence[Path], new: Path, cancelled: threading.Event) -> Build:
    """Raises BadArchive, Abandoned, OSError."""
    folder = new / offer.id
    folder.mkdir()
    size = unpack(archives[0], folder, cancelled)
    program = _find_program(folder)
    for number, archive in enumerate(archives[1:]):
        extra = new / f"libraries-{number}"
        extra.mkdir()
        size += unpack(archive, extra, cancelled)
        for path in [path for path in extra.rglob("*") if path.is_file()]:
            # Libraries are found beside the program only.
            os.replace(path, program.parent / path.name)
    program.chmod(0o755)
    build = Build(
        id=offer.id,
        tag=offer.tag,
        backend=offer.backend,
        digests={asset.name: asset.sha256 for asset in offer.assets},
        size=size,
        program=program.relative_to(folder).as_posix(),
        fetched=time.time(),
    )
    if cancelled.is_set():
        raise Abandoned
    return build


def _find_program(folder: Path) -> Path:
    """The llama-server that lies highest. Raises BadArchive."""
    found = [
        path for name in ("llama-server", "llama-server.exe") for path in folder.rglob(name) if path.is_file()
    ]
    if not found:
        raise BadArchive("has no llama-server")
    return min(found, key=lambda path: len(path.parts))


def _write_manifest(folder: Path, build: Build) -> None:
    with (folder / MANIFEST).open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(build), indent=2))
        file.flush()
        os.fsync(file.fileno())
    sync_folder(folder)


def _read(folder: Path) -> Build | None:
    """The build in a folder; None, with a line in the log, if there is none that could be used."""
    try:
        with (folder / MANIFEST).open("rb") as file:
            build = msgspec.json.decode(file.read(_MANIFEST_LIMIT), type=Build)
        if build.id != folder.name or not _ID.fullmatch(build.id):
            raise ValueError("it is another build's")
        if not folder.joinpath(*safe_parts(build.program)).is_file():
            raise ValueError("its program is not there")
        return build
    except (OSError, ValueError) as error:
        # msgspec's errors, and BadArchive for a program outside, are ValueErrors.
        log.warning("%s is no build that can be used: %s", folder, error)
        return None


def check_wanted(id: str | None) -> None:
    """See to it that this can name a build, or a kind of builds.

    Raises:
        NotFound: it cannot.
    """
    if id is not None and id not in BACKENDS and _ID.fullmatch(id) is None:
        raise _unknown(id)


def _age(tag: str) -> tuple[int, str]:
    """Sorts releases: by the number in their tag."""
    numbers = re.findall(r"\d+", tag)
    return (int(numbers[0][:15]) if numbers else 0, tag)


def _unknown(id: str) -> NotFound:
    return NotFound(
        f"There is no build {id}.", param="id", hint="lemon-tray engine list --offers shows those there are."
    )
