"""The settings in force and their file: changed at once in memory, written off the loop in groups."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
from msgspec import Struct

from router.errors import BadRequest, ConfigError, RouterError, ShuttingDown
from router.settings import schema
from router.settings.files import read_object, set_aside, write_atomically, write_object
from router.settings.migrations import STEPS, VERSION_KEY, Step, back_up, migrate
from router.settings.schema import ENV_PREFIX, Settings
from router.settings.watching import INTERVAL_S, Waker

log = logging.getLogger(__name__)

# Edits that come closer together than this share a write; the first after a quiet time is written at once.
GROUP_S: Final = 0.05
COMMAND_LINE: Final = "the command line"


class FileIO(Protocol):
    """How the file is read and written. Both block and are called off the loop, one at a time."""

    def read(self, path: Path) -> bytes:
        """Raises FileNotFoundError, OSError."""

    def write(self, path: Path, data: bytes) -> None:
        """Replace all or nothing. Raises OSError."""


class DiskIO:
    """The real file."""

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def write(self, path: Path, data: bytes) -> None:
        write_atomically(path, data)


class Change:
    """A change that is in force.

    Attributes:
        settings: the settings right after it.
        written: done when it is on disk. Await it or not; its exception is a RouterError, and then the change
            has been taken back.
    """

    def __init__(self, settings: Settings, written: asyncio.Future[None]) -> None:
        self.settings = settings
        self.written = written


class _Group:
    """Edits that go to disk in one write."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.before: dict[str, Any] = {}
        self.waiters: list[asyncio.Future[None]] = []


class _Document(Struct, frozen=True):
    """What a settings file holds: everything as written, the values that can be used, and what is wrong."""

    raw: dict[str, Any]
    values: dict[str, Any]
    problems: tuple[str, ...]
    faulty: frozenset[str]


# A key that the file does not have.
_ABSENT: Final = msgspec.UNSET


class SettingsStore:
    """The one source of the settings in force.

    From weak to strong: defaults, the file, environment variables, what the command line forces. Only what
    the user set is in the file, so that a later version's better default reaches everybody else.

    Attributes:
        on_change: called with the new settings after each change, taken-back change and reload that matters.
        existed: there was a usable file at `load`.
    """

    def __init__(
        self,
        path: Path,
        environ: Mapping[str, str],
        *,
        forced: Mapping[str, Any] | None = None,
        io: FileIO | None = None,
        on_change: Callable[[Settings], None] | None = None,
        group_s: float = GROUP_S,
        interval_s: float = INTERVAL_S,
        steps: Sequence[Step] = STEPS,
    ) -> None:
        self.path = path
        self.on_change = on_change
        self.existed = False
        self._steps = steps
        self._environ = environ
        self._forced = dict(forced or {})
        self._io: FileIO = io or DiskIO()
        self._group_s = group_s
        self._base: dict[str, Any] = {}
        self._values: dict[str, Any] = {}
        self._raw: dict[str, Any] = {}
        self._file_problems: tuple[str, ...] = ()
        self._environ_problems: tuple[str, ...] = ()
        self._overridden: dict[str, str] = {}
        self._settings = Settings()
        self._pending: _Group | None = None
        self._writing: _Group | None = None
        self._writer: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._disk = asyncio.Lock()
        self._closed = False
        self._seen: tuple[int, int, int] | None = None
        self._waker = Waker(interval_s)

    @property
    def settings(self) -> Settings:
        """The values in force."""
        return self._settings

    @property
    def overridden(self) -> Mapping[str, str]:
        """Keys that the file cannot decide, and what decides them: a variable's name, or the command line."""
        return self._overridden

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong with the file, one sentence each, naming file, key and expected form."""
        return self._file_problems + self._environ_problems

    @property
    def explicit(self) -> frozenset[str]:
        """The keys that the file names."""
        return frozenset(self._raw) - {VERSION_KEY}

    def load(self, *, set_aside_corrupt: bool = True) -> Settings:
        """Read the file, then the environment. Blocks briefly: call it before the loop runs.

        A file that cannot be read as JSON is set aside and defaults are used; a single wrong value gives way
        to its default. Both are told in `problems`. A file of an older version is brought to this one, and a
        copy of it kept. Who only wants to look (not `set_aside_corrupt`) leaves the file as it is.

        Raises:
            ConfigError: an environment variable, or a value forced by the command line, is wrong.
        """
        self._base, self._overridden, self._environ_problems = self._outside()
        self._raw, self._values, self._file_problems = {}, {}, ()
        try:
            document = self._read()
        except FileNotFoundError:
            self.existed = False
        except OSError as error:
            self.existed = False
            self._file_problems = (
                f"{self.path}: it cannot be read ({error.strerror or error}); defaults are used, and nothing "
                "can be changed until it can",
            )
        except ValueError as error:
            self.existed = False
            self._file_problems = (
                self._set_aside(error) if set_aside_corrupt else f"{self.path}: {error}; defaults are used",
            )
        else:
            self.existed = True
            self._take(document)
            if set_aside_corrupt:
                self._upgrade()
        for problem in self.problems:
            log.warning("%s", problem)
        self._settings = self._effective()
        return self._settings

    def change(self, changes: Mapping[str, Any]) -> Change:
        """Put changes in force, all or none, and have them written. Call it on the loop; it does not wait.

        Raises:
            BadRequest: naming each key at fault and the expected form, or what overrides the key.
            ShuttingDown: the store is closed.
        """
        if self._closed:
            raise ShuttingDown("The router is shutting down: no setting can be changed.")
        schema.apply(self._settings, changes)
        for key in changes:
            if key in self._overridden:
                raise BadRequest(
                    f"{key}: set by {self._overridden[key]}, which goes before the settings file",
                    code="setting_overridden",
                    param=key,
                    hint=f"Start the router without it to change {key} here.",
                )
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Who does not await the result has still been told by `on_change`; asyncio need not complain.
        written.add_done_callback(lambda done: done.cancelled() or done.exception())
        group = self._pending = self._pending or _Group()
        for key, value in changes.items():
            group.before.setdefault(key, self._values.get(key, _ABSENT))
            self._values[key] = group.values[key] = schema.check(key, value)
        group.waiters.append(written)
        if self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(
                self._write_groups(), name="settings writer"
            )
        self._publish()
        return Change(self._settings, written)

    async def persist(self) -> None:
        """Wait until every change made so far is on disk.

        Raises:
            RouterError: the newest group could not be written and has been taken back.
        """
        group = self._pending or self._writing
        if group is not None:
            written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            group.waiters.append(written)
            await written

    async def close(self) -> None:
        """Write what is still to be written, and take no further change."""
        self._closed = True
        self._hurry.set()
        while self._writer is not None:
            await asyncio.wait([self._writer])

    async def reload(self) -> None:
        """Take over edits made to the file by others.

        What is wrong stays as it was: a file that is no JSON changes nothing, a wrong value keeps the one in
        force. Both are told in `problems`. A change that is still being written goes before the file.
        """
        async with self._disk:
            try:
                document = await asyncio.to_thread(self._read)
            except (OSError, ValueError) as error:
                # A missing file too: an editor that saves by delete and create must not reset anything.
                self._report((f"{self.path}: {error}; the settings in force stay as they are",))
                return
            kept = {key: self._values[key] for key in document.faulty if key in self._values}
            self._report(document.problems)
            self._raw = document.raw
            self._values = {**document.values, **kept}
            if self._pending is not None:
                for key in self._pending.values:
                    self._pending.before[key] = self._values.get(key, _ABSENT)
                self._values.update(self._pending.values)
            self._publish()

    async def watch(self) -> None:
        """Reload whenever the file changes, until cancelled."""

        async def look() -> None:
            if await asyncio.to_thread(self._stamp) != self._seen:
                await self.reload()

        await self._waker.run(look, str(self.path))

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    # Values

    def _outside(self) -> tuple[dict[str, Any], dict[str, str], tuple[str, ...]]:
        """Values from the environment and the command line, what set each, and near misses."""
        values: dict[str, Any] = {}
        source: dict[str, str] = {}
        for info in schema.describe():
            text = self._environ.get(info.environment, "")
            if not text:
                continue
            try:
                values[info.key] = schema.parse(info.key, text)
            except BadRequest as fault:
                raise ConfigError(
                    f"The environment variable {info.environment} is wrong: {fault.message}",
                    param=info.environment,
                ) from fault
            source[info.key] = info.environment
        for key, value in self._forced.items():
            try:
                values[key] = schema.check(key, value)
            except BadRequest as fault:
                raise ConfigError(f"The command line is wrong: {fault.message}", param=key) from fault
            source[key] = COMMAND_LINE
        known = {info.environment for info in schema.describe()}
        known |= {schema.API_KEY_VARIABLE, schema.PROVIDER_KEY_VARIABLE}
        problems = []
        for name in self._environ:
            if name.startswith(ENV_PREFIX) and name not in known:
                near = schema.nearest(name.removeprefix(ENV_PREFIX))
                if near:
                    meant = f"{ENV_PREFIX}{near.upper()}"
                    problems.append(f"The environment variable {name} is no setting (did you mean {meant}?)")
        return values, source, tuple(problems)

    def _effective(self) -> Settings:
        return msgspec.structs.replace(Settings(), **{**self._values, **self._base})

    def _publish(self) -> None:
        before, self._settings = self._settings, self._effective()
        if self._settings != before and self.on_change is not None:
            self.on_change(self._settings)

    def _upgrade(self) -> None:
        """Write the file anew if it is of an older version whose keys meant something else."""
        try:
            data = self._io.read(self.path)
            migrated = migrate(read_object(data), self._steps)
            if not migrated.changed:
                return
            copy = back_up(self.path, migrated.found, data)
            self._io.write(self.path, write_object(migrated.raw))
            self._seen = self._stamp()
        except (OSError, ValueError) as error:
            self._file_problems += (
                f"{self.path}: it is of an older version and could not be written anew ({error}); it is read "
                "as this version means it",
            )
        else:
            log.info("%s was of version %d; a copy is %s", self.path, migrated.found, copy.name)

    def _take(self, document: _Document) -> None:
        self._raw, self._values, self._file_problems = document.raw, document.values, document.problems

    def _report(self, problems: tuple[str, ...]) -> None:
        for problem in problems:
            if problem not in self._file_problems:
                log.warning("%s", problem)
        self._file_problems = problems

    # The file

    def _read(self) -> _Document:
        """Raises OSError, ValueError."""
        # Taken before the contents: an edit that comes between the two is seen at the next look.
        self._seen = self._stamp()
        migrated = migrate(read_object(self._io.read(self.path)), self._steps)
        raw = migrated.raw
        values: dict[str, Any] = {}
        problems = [f"{self.path}: {migrated.problem}"] if migrated.problem else []
        faulty: set[str] = set()
        known = {info.key for info in schema.describe()}
        for key, value in raw.items():
            if key == VERSION_KEY:
                continue
            try:
                values[key] = schema.check(key, value)
            except BadRequest as fault:
                ending = "; it is not used" if key in known else "; it is kept, and does nothing"
                problems.append(f"{self.path}: {fault.message}{ending}")
                if key in known:
                    faulty.add(key)
        return _Document(raw, values, tuple(problems), frozenset(faulty))

    def _set_aside(self, error: ValueError) -> str:
        try:
            aside = set_aside(self.path)
        except OSError as failure:
            return f"{self.path}: {error}; it could not be set aside ({failure.strerror or failure})"
        # That it is gone is our own doing, and no edit to look at.
        self._seen = self._stamp()
        return f"{self.path}: {error}; it was set aside as {aside.name}, and defaults are used"

    def _commit(self, values: Mapping[str, Any], last: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
        """Put values into the file as it is now, so that edits made by others meanwhile are kept.

        Returns the contents, and what was found wrong on the way. Raises OSError.
        """
        problem = None
        try:
            data = self._io.read(self.path)
            migrated = migrate(read_object(data), self._steps)
            raw = migrated.raw
            if migrated.changed or migrated.newer:
                back_up(self.path, migrated.found, data, once=migrated.newer)
        except FileNotFoundError:
            raw = {VERSION_KEY: len(self._steps)}
        except ValueError as error:
            raw, problem = {VERSION_KEY: len(self._steps), **last}, self._set_aside(error)
        raw.update({key: list(value) if isinstance(value, tuple) else value for key, value in values.items()})
        self._io.write(self.path, write_object(raw))
        return raw, problem

    def _next_group(self) -> _Group | None:
        self._writing, self._pending = self._pending, None
        return self._writing

    async def _write_groups(self) -> None:
        try:
            while True:
                async with self._disk:
                    began = time.monotonic()
                    group = self._next_group()
                    if group is None:
                        return
                    await self._write(group)
                    self._writing = None
                await self._rest(self._group_s - (time.monotonic() - began))
        finally:
            self._writer = None

    async def _rest(self, seconds: float) -> None:
        """Let the edits of a moment gather, if there is one to be written already."""
        if self._pending is None or seconds <= 0:
            return
        try:
            async with asyncio.timeout(seconds):
                await self._hurry.wait()
        except TimeoutError:
            return

    async def _write(self, group: _Group) -> None:
        failure: RouterError | None = None
        try:
            self._raw, problem = await asyncio.to_thread(self._commit, group.values, self._raw)
        except Exception as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            failure = RouterError(
                f"The settings could not be written to {self.path} ({reason}); the change was taken back.",
                code="settings_not_written",
                hint="Check the free space and the permissions of that folder.",
            )
            log.error("%s", failure.message)
            self._take_back(group)
        else:
            fixed = tuple(
                p for p in self._file_problems if not any(f"{self.path}: {key}:" in p for key in group.values)
            )
            self._report(fixed + ((problem,) if problem else ()))
        for waiter in group.waiters:
            if waiter.done():
                continue
            if failure is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(failure)

    def _take_back(self, group: _Group) -> None:
        later = self._pending
        for key, before in group.before.items():
            if later is not None and key in later.values:
                # A later edit of the key stands; should that fail too, it goes back to what is on disk.
                later.before[key] = before
            elif before is _ABSENT:
                self._values.pop(key, None)
            else:
                self._values[key] = before
        self._publish()


def peek(path: Path, environ: Mapping[str, str], key: str) -> Any:
    """The value that a setting will have, read before anything is set up: never fails, changes nothing."""
    info = schema.info_of(key)
    try:
        text = environ.get(info.environment, "")
        return schema.parse(key, text) if text else schema.check(key, read_object(path.read_bytes())[key])
    except (OSError, ValueError, KeyError, BadRequest):
        # Whoever loads the settings in earnest says what is wrong.
        return info.default
