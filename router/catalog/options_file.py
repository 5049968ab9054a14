"""The file with options of single models: read as hostile text, watched, written whole or not at all."""

from __future__ import annotations

import asyncio
import logging
import stat
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import Struct

from router.catalog.model import Model, spelled
from router.catalog.options import NO_OPTIONS, LoadOptions, as_mapping, contradicts, read_options
from router.errors import BadRequest, RouterError, near_matches
from router.settings.files import read_object, write_object
from router.settings.schema import shown
from router.settings.store import DiskIO, FileIO
from router.settings.watching import INTERVAL_S, Settling, Waker

log = logging.getLogger(__name__)

MAX_BYTES: Final = 4 << 20
#: Comparing names takes long; these bound it.
MAX_SUSPECTS: Final = 20
MAX_NAME: Final = 200
_OPTIONS: Final = frozenset(LoadOptions.__struct_fields__)
_EXPECTED: Final = 'expected an object of options such as {"ctx_size": 8192}'


class _Document(Struct, frozen=True):
    """`faulty` are models whose entry has a fault; what is sound of it is in `options`."""

    options: dict[str, LoadOptions]
    problems: tuple[str, ...]
    faulty: frozenset[str]


class OptionsFile:
    """Options by model, as the file has them, and the file.

    A file that cannot be read changes nothing, and neither does an entry with a fault: what was in force
    stays. At the start, when nothing is in force, an entry counts without the options that are wrong. Either
    way `problems` tells of each, and a file that could not be read is never overwritten.

    Attributes:
        options: by name, as the file writes it but composed. A change makes a new mapping.
        problems: one sentence each, naming file, model, option and expected form.
        on_change: called on the loop after each change of `options` or `problems`.
    """

    def __init__(
        self,
        path: Path,
        *,
        on_change: Callable[[], None] | None = None,
        io: FileIO | None = None,
        settling: Settling | None = None,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self.path = path
        self.on_change = on_change
        self.options: Mapping[str, LoadOptions] = MappingProxyType({})
        self.problems: tuple[str, ...] = ()
        self._io: FileIO = io or DiskIO()
        self._settling = settling or Settling()
        self._seen: tuple[int, int, int] | None = None
        self._disk = asyncio.Lock()
        self._waker = Waker(interval_s)

    async def reload(self) -> None:
        """Read the file now. A missing one is an empty one."""
        async with self._disk:
            await self._reload()

    async def watch(self) -> None:
        """Reload whenever the file changes, until cancelled."""
        await self._waker.run(self._look, str(self.path))

    def wake(self) -> None:
        """Make a running watch look now."""
        self._waker.wake()

    async def save(self, model: Model, options: LoadOptions) -> None:
        """Make these the options of a model, in place of those it had, and put them into the file.

        Edits that others made to the file meanwhile are kept, and so is what is no option.

        Raises:
            RouterError: it could not be written; nothing has changed.
        """
        async with self._disk:
            try:
                await asyncio.to_thread(self._write, model, options)
            except ValueError as error:
                raise self._not_saved(model, f"{self.path}: {error}; mend the file first") from error
            except OSError as error:
                raise self._not_saved(model, f"{self.path}: {error.strerror or error}") from error
            await self._reload()

    def suspects(self, options: Collection[str], names: Collection[str]) -> tuple[str, ...]:
        """Sentences on entries that name no model but come close to one. Slow: call it in a thread.

        An entry that is like none is kept without a word: its model may be on a drive that is not there.
        """
        found = []
        for name in [name for name in options if name not in names][:MAX_SUSPECTS]:
            near = near_matches(name[:MAX_NAME], names, alike=0.8)
            if near:
                found.append(f"{self.path}: {name}: there is no such model (did you mean {near[0]}?)")
        return tuple(found)

    def _not_saved(self, model: Model, reason: str) -> RouterError:
        log.error("The options of %s could not be saved: %s", model.name, reason)
        return RouterError(
            f"The options of {model.name} could not be saved ({reason}).",
            code="options_not_saved",
            hint="Check the file, the free space and the permissions of its folder.",
        )

    async def _look(self) -> None:
        stamp = await asyncio.to_thread(self._stamp)
        gone = stamp is None and self._seen is not None
        due = self._settling.due([str(self.path)] if gone else [])
        # Editors save by delete and create.
        if stamp != self._seen and (not gone or due):
            await self.reload()

    async def _reload(self) -> None:
        before = self.options, self.problems
        try:
            document = await asyncio.to_thread(self._read)
        except OSError as error:
            self._report((f"{self.path}: it cannot be read ({error.strerror or error}); what was stays",))
        except ValueError as error:
            self._report((f"{self.path}: {error}; the options in force stay as they are",))
        else:
            self._report(document.problems)
            kept = {name: self.options[name] for name in document.faulty if name in self.options}
            options = {**document.options, **kept}
            if options != dict(self.options):
                self.options = MappingProxyType(options)
        if self.on_change is not None and before != (self.options, self.problems):
            self.on_change()

    def _report(self, problems: tuple[str, ...]) -> None:
        for problem in problems:
            if problem not in self.problems:
                log.warning("%s", problem)
        self.problems = problems

    # In a thread

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _raw(self) -> dict[str, Any]:
        """Raises OSError, ValueError."""
        try:
            found = self.path.stat()
            if not stat.S_ISREG(found.st_mode):
                raise ValueError("it is no regular file")
            if found.st_size > MAX_BYTES:
                raise ValueError(f"it is larger than {MAX_BYTES >> 20} MiB")
            return read_object(self._io.read(self.path))
        except FileNotFoundError:
            return {}

    def _read(self) -> _Document:
        # Taken before the contents: an edit that comes between the two is seen at the next look.
        self._seen = self._stamp()
        options: dict[str, LoadOptions] = {}
        problems: list[str] = []
        faulty: set[str] = set()
        for written, entry in self._raw().items():
            name = spelled(written)
            where = f"{self.path}: {shown(name).strip(chr(34))}"
            if name in options:
                problems.append(f"{where}: it is there twice; the second is not used")
            elif isinstance(entry, dict):
                options[name], faults = _entry(entry)
                for fault in faults:
                    is_known = fault.param in _OPTIONS
                    ending = "it is not used" if is_known else "it is kept, and does nothing"
                    problems.append(f"{where}: {fault.message}; {ending}")
                    if is_known:
                        faulty.add(name)
            else:
                problems.append(f"{where}: {_EXPECTED}; got {shown(entry)}; it is not used")
                options[name] = NO_OPTIONS
                faulty.add(name)
        return _Document(options, tuple(problems), frozenset(faulty))

    def _write(self, model: Model, options: LoadOptions) -> None:
        """Raises OSError, ValueError."""
        raw = self._raw()
        by_name = {spelled(written): written for written in reversed(raw)}
        names = (model.name, *model.aliases)
        key = next((by_name[name] for name in names if name in by_name), model.name)
        entry = raw.get(key)
        kept = {k: v for k, v in entry.items() if k not in _OPTIONS} if isinstance(entry, dict) else {}
        raw[key] = {**kept, **as_mapping(options)}
        if not raw[key]:
            del raw[key]
        self._io.write(self.path, write_object(raw))


def _entry(entry: Mapping[str, Any]) -> tuple[LoadOptions, list[BadRequest]]:
    """What is sound of an entry, and what is not."""
    values, wrong = read_options(entry)
    faults = list(wrong.values())
    while True:
        options = msgspec.structs.replace(NO_OPTIONS, **values)
        contradiction = contradicts(options)
        if contradiction is None or contradiction.param not in values:
            return options, faults
        faults.append(contradiction)
        del values[contradiction.param]
