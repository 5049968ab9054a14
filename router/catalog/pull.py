"""Pulling a model from the Hugging Face hub into its cache: whole, checked, and only then to be found."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp
from msgspec import Struct

from router.catalog.hub import HubFile, HubModel, Listing, Reference, choose
from router.catalog.hub_api import Hub
from router.catalog.hub_cache import HubCache
from router.catalog.leftovers import find_leftovers
from router.errors import Conflict, NotFound, RouterError
from router.fetch import (
    RETRY_PAUSES_S,
    FileThread,
    Wanted,
    check_room,
    disk_error,
    fetch,
    is_right,
    open_session,
)
from router.units import gib

log = logging.getLogger(__name__)

#: What stays free on the disk, so that nothing else fails for the last byte.
SPARE: Final = 64 << 20

RESOLVING: Final = "resolving"
WAITING: Final = "waiting"
CHECKING: Final = "checking"
DOWNLOADING: Final = "downloading"
PLACING: Final = "placing"


class PullProgress(Struct, frozen=True):
    """How far a pull is.

    Attributes:
        stage: `resolving`: the hub is asked; `waiting`: another pull fetches the same file; `checking`: what
            is here of a file is read, to be sure of it; `downloading`; `placing`: all is here and checked.
        done, total: bytes of all files; `total` is None until the hub has told.
        file: the file under way, by its path in the repository, with its SHA-256 and bytes.
    """

    stage: str
    done: int = 0
    total: int | None = None
    file: str = ""
    sha256: str = ""
    file_done: int = 0
    file_size: int = 0


class Pulled(Struct, frozen=True):
    """What a pull brought: the path of the model's first file, and all its bytes."""

    path: Path
    size: int
    commit: str


Tell = Callable[[PullProgress], None]
#: Told what is about to be fetched, with the bytes that the hub tells.
Chosen = Callable[[Reference, HubModel], None]
#: Runs work that changes what models there are, at a time when nobody looks at them.
Alter = Callable[[Callable[[], Path]], Awaitable[Path]]


class Puller:
    """Pulls models. Several at once, but each file only once.

    Args:
        root: the Hugging Face cache.
        alter: how files are given the names that models are found by.
        chosen: called on the loop before anything is fetched.
        session: for tests; by default one of its own for each pull.
        pauses_s: seconds before each further try after a broken connection.
    """

    def __init__(
        self,
        hub: Hub,
        root: Path,
        alter: Alter | None = None,
        *,
        chosen: Chosen = lambda _reference, _model: None,
        session: aiohttp.ClientSession | None = None,
        pauses_s: Sequence[float] = RETRY_PAUSES_S,
    ) -> None:
        self._hub = hub
        self._root = root
        self._alter = alter or asyncio.to_thread
        self._chosen = chosen
        self._session = session
        self._pauses_s = pauses_s
        self._locks: dict[str, asyncio.Lock] = {}
        self._waiting: dict[str, int] = {}
        self._owed: dict[object, int] = {}

    async def pull(self, reference: Reference, tell: Tell) -> Pulled:
        """Fetch what of a model is not here, check it, and let programs find it.

        After a broken connection, a cancellation or a crash the next call goes on with what has arrived.
        Nothing of it is found before all of it is here and its hashes are right.

        Args:
            tell: called on the loop.

        Raises:
            BadRequest, NotFound, Conflict, Forbidden: as `Hub.look` and `choose` say.
            Conflict: another program fetches the same file.
            RouterError: no network, no space, or the hub gave another file than it told.
        """
        tell(PullProgress(RESOLVING))
        listing, token = await self._hub.look(reference)
        model = choose(listing, reference)
        self._chosen(reference, model)
        cache = HubCache(self._root, listing.repo)
        thread = FileThread("pull")
        owed = object()
        try:
            try:
                await thread.do(lambda: cache.blobs.mkdir(parents=True, exist_ok=True))
                self._owed[owed] = await thread.do(cache.missing, listing.commit, model.all_files)
                needed = sum(self._owed.values())
                if self._owed[owed]:
                    await thread.do(_check_room, cache, model, f"the model {reference}", needed + SPARE)
                async with open_session(thread, self._session) as session:
                    await _Fetching(self, listing, model, cache, thread, session, token, tell, owed).run()
            except OSError as error:
                raise disk_error(cache.blobs, f"the model {reference}", error) from error
        finally:
            self._owed.pop(owed, None)
            await thread.close()
        tell(PullProgress(PLACING, model.size, model.size))
        try:
            path = await self._alter(lambda: cache.place(listing, model, reference.revision))
        except OSError as error:
            raise disk_error(cache.folder, f"the model {reference}", error) from error
        log.info("%s is here: %s", reference, path)
        return Pulled(path, model.size, listing.commit)

    @contextlib.asynccontextmanager
    async def _alone(self, file: HubFile, waits: Callable[[], None]) -> AsyncIterator[None]:
        """One pull at a time works on a file."""
        lock = self._locks.setdefault(file.sha256, asyncio.Lock())
        self._waiting[file.sha256] = self._waiting.get(file.sha256, 0) + 1
        try:
            if lock.locked():
                waits()
            async with lock:
                yield
        finally:
            self._waiting[file.sha256] -= 1
            if not self._waiting[file.sha256]:
                del self._waiting[file.sha256], self._locks[file.sha256]


class _Fetching:
    """The files of one pull, one after the other."""

    def __init__(
        self,
        puller: Puller,
        listing: Listing,
        model: HubModel,
        cache: HubCache,
        thread: FileThread,
        session: aiohttp.ClientSession,
        token: str,
        tell: Tell,
        owed: object,
    ) -> None:
        self._puller = puller
        self._listing = listing
        self._model = model
        self._cache = cache
        self._thread = thread
        self._session = session
        self._token = token
        self._tell = tell
        self._owed = owed
        self._before = 0

    async def run(self) -> None:
        for file in self._model.all_files:
            if not await self._thread.do(self._cache.is_placed, self._listing.commit, file):
                async with self._puller._alone(file, functools.partial(self._told, file, 0, WAITING)):
                    await self._one(file)
            self._before += file.size
            self._told(file, file.size, done=self._before)

    async def _one(self, file: HubFile) -> None:
        kept = await self._thread.do(self._cache.kept, self._listing.commit, file)
        if kept:
            self._told(file, kept, CHECKING)
        if await self._thread.do(self._cache.has_blob, file, self._thread.cancelled):
            return
        lock = await self._thread.do(self._cache.lock, file)
        try:
            is_ours, is_locked = await self._thread.do(_acquire, lock)
            if not is_ours:
                raise Conflict(
                    f"Another program is fetching {file.path} of {self._listing.repo} into the same cache.",
                    code="being_fetched",
                )
            await self._fetch(file)
            if not is_locked:
                await self._check_alone(file)
            await self._thread.do(self._cache.keep, file)
        finally:
            await asyncio.shield(self._thread.do(lock.release))

    async def _check_alone(self, file: HubFile) -> None:
        """See to it that no other program wrote into the same file meanwhile: nothing kept it out.

        Raises:
            RouterError: one did; what came of it is thrown away.
        """
        part = self._cache.part(file)
        if await self._thread.do(is_right, part, file.size, file.sha256):
            return
        await self._thread.do(lambda: part.unlink(missing_ok=True))
        raise RouterError(
            f"The file {file.path} is not as it came: another program wrote to it. It was thrown away.",
            code="download_corrupt",
            status=502,
            hint="The file system of the cache knows no locks. Fetch with one program at a time.",
        )

    async def _fetch(self, file: HubFile) -> None:
        hub = self._puller._hub
        address = hub.address(self._listing, file)

        async def find() -> str:
            return address

        await fetch(
            self._thread,
            Wanted(
                title=f"the file {file.path}",
                file=file.path,
                size=file.size,
                sha256=file.sha256,
                origin="the hub",
                hint="A proxy or mirror on the way may alter files. Try again.",
            ),
            self._cache.part(file),
            find,
            self._session,
            lambda done, _total: self._told(file, done),
            pauses_s=self._puller._pauses_s,
            headers={"Authorization": f"Bearer {self._token}"} if self._token else None,
            explain=self._explain,
        )

    def _explain(self, error: aiohttp.ClientResponseError) -> RouterError | None:
        repo = self._listing.repo
        if error.status in (401, 403):
            return self._puller._hub.refused(repo, error.status, self._token)
        if error.status == 404:
            return NotFound(f"A file of {repo} is no longer there.", code="no_such_file", param="model_name")
        return None

    def _told(self, file: HubFile, file_done: int, stage: str = DOWNLOADING, done: int | None = None) -> None:
        so_far = self._before + file_done if done is None else done
        total = self._model.size
        self._puller._owed[self._owed] = total - so_far
        self._tell(PullProgress(stage, so_far, total, file.path, file.sha256, file_done, file.size))


def _check_room(cache: HubCache, model: HubModel, title: str, needed: int) -> None:
    """As `check_room`, naming what pulls that were given up still take."""
    try:
        check_room(cache.blobs, title, needed)
    except RouterError as error:
        own = {cache.part(file) for file in model.all_files}
        taken = sum(each.size for each in find_leftovers(cache.root) if each.path not in own)
        if taken:
            error.hint = (
                f"Pulls that did not end take {gib(taken)}. To give that back: "
                "lemon-tray hub leftovers --delete"
            )
        raise


def _acquire(lock: Any) -> tuple[bool, bool]:
    """Take a lock between processes: whether to go on, and whether the lock is held.

    Where the file system knows none it goes on without.
    """
    try:
        got = bool(lock.acquire())
    except OSError as error:
        log.warning("The cache cannot be locked: %s", error.strerror or error)
        return True, False
    return got, got
