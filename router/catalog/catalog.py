"""The models that exist, kept current."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from msgspec import structs

from router.catalog import scan as scanning
from router.catalog import survey as surveying
from router.catalog.model import Model, by_every_name, spelled
from router.catalog.options import LoadOptions
from router.catalog.options_file import OptionsFile
from router.catalog.places import Place, folder
from router.errors import RouterError, near_matches
from router.memory.demand import model_type
from router.memory.header import ModelHeader, read_shards
from router.settings.watching import INTERVAL_S, Settling, Waker

T = TypeVar("T")

log = logging.getLogger(__name__)


class Catalog:
    """The models in a list of folders and stores, looked through off the loop.

    Attributes:
        on_change: called after each scan that changed `models`, with the new mapping.
        on_problems: called after each scan that found other `problems` than the one before.
        scanned: at least one scan is complete.
    """

    def __init__(
        self,
        folders: Sequence[Path] = (),
        *,
        stores: Sequence[Place] = (),
        options: OptionsFile | None = None,
        on_change: Callable[[Mapping[str, Model]], None] | None = None,
        on_problems: Callable[[], None] | None = None,
        read: scanning.Read = read_shards,
        type_of: Callable[[ModelHeader], str] = model_type,
        settling: Settling | None = None,
        interval_s: float = INTERVAL_S,
        max_depth: int = surveying.MAX_DEPTH,
    ) -> None:
        """`read` reads the header of a model from all its files, in order; a thread calls it."""
        self.on_change = on_change
        self.on_problems = on_problems
        self.scanned = False
        self._folders = tuple(folders)
        self._stores = tuple(stores)
        self._options = options
        if options is not None:
            options.on_change = self.wake
        self._cache = scanning.HeaderCache(read)
        self._type_of = type_of
        self._settling = settling or Settling()
        self._max_depth = max_depth
        self._models: Mapping[str, Model] = MappingProxyType({})
        self._names: Mapping[str, Model] = MappingProxyType({})
        self._survey: surveying.Survey | None = None
        self._problems: tuple[str, ...] = ()
        self._suspects: tuple[str, ...] = ()
        self._known_problems: tuple[str, ...] = ()
        self._told: frozenset[str] = frozenset()
        self._types: dict[str, str] = {}
        self._order = asyncio.Lock()
        self._waker = Waker(interval_s)

    @property
    def problems(self) -> tuple[str, ...]:
        """Folders that cannot be searched, and faults of the options file, one sentence each."""
        of_options = self._options.problems if self._options is not None else ()
        return (*self._problems, *of_options, *self._suspects)

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders looked through. Of files with one stem, that in the first folder keeps it."""
        return self._folders

    @folders.setter
    def folders(self, folders: Sequence[Path]) -> None:
        if tuple(folders) != self._folders:
            self._folders = tuple(folders)
            self.wake()

    @property
    def stores(self) -> tuple[Place, ...]:
        """The stores of other programs, looked through after the folders."""
        return self._stores

    @stores.setter
    def stores(self, stores: Sequence[Place]) -> None:
        if tuple(stores) != self._stores:
            self._stores = tuple(stores)
            self.wake()

    @property
    def models(self) -> Mapping[str, Model]:
        """Name to model, by name; broken ones too. A change makes a new mapping."""
        return self._models

    @property
    def names(self) -> Mapping[str, Model]:
        """Names and aliases, as the catalog spells them, to models. A change makes a new mapping."""
        return self._names

    async def scan(self, *, settle: bool = True) -> Mapping[str, Model]:
        """Look through the folders and return the models.

        A model that is missing stays listed until it has been missing for a while, or goes at once without
        `settle`.
        """
        if self._options is not None and not self.scanned:
            await self._options.reload()
        async with self._order:
            asked = self._asked
            options = self._options.options if self._options is not None else {}
            survey, found, suspects = await asyncio.to_thread(self._look, asked, options)
            # A place or an option that changed meanwhile makes the next look a whole one.
            is_current = asked == self._asked and (self._options is None or options is self._options.options)
            self._survey = survey if is_current else None
            self._report(survey, suspects)
            missing = [name for name in self._models if name not in found]
            due = self._settling.due(missing)
            kept = {name: self._models[name] for name in missing if settle and name not in due}
            self._put({**found, **kept})
            self.scanned = True
            if self.problems != self._known_problems:
                self._known_problems = self.problems
                if self.on_problems is not None:
                    self.on_problems()
            return self._models

    async def alter(self, work: Callable[[], T], *, settle: bool = True) -> T:
        """Change files at a time when nobody looks at them, then look: the models are current afterwards.

        Args:
            work: run in a thread. Its exceptions are passed on.
            settle: as of `scan`.
        """
        async with self._order:
            result = await asyncio.to_thread(work)
        await self.scan(settle=settle)
        return result

    async def watch(self) -> None:
        """Scan whenever something changed, until cancelled."""
        async with asyncio.TaskGroup() as watches:
            if self._options is not None:
                watches.create_task(self._options.watch(), name="model options watch")
            await self._waker.run(self._look_again, "the model folders")

    def wake(self) -> None:
        """Make a running watch look now."""
        self._survey = None
        self._waker.wake()

    def resolve(self, name: str) -> Model | None:
        """The model of that name, else of that alias."""
        return self._names.get(spelled(name))

    def near(self, name: str) -> list[str]:
        """Up to three names or aliases like this one, the most alike first."""
        folded = {known.casefold(): known for known in self._names}
        found = near_matches(name.casefold(), folded, 3, alike=0.5)
        return [folded[match] for match in found]

    async def save_options(self, model: Model, options: LoadOptions) -> None:
        """Make these the options of a model, in force when it returns and in the options file.

        Raises:
            RouterError: there is no such file, or it could not be written; nothing has changed.
        """
        if self._options is None:
            raise RouterError("Options of models are not kept here.", code="options_not_saved")
        await self._options.save(model, options)
        self._types.pop(model.name, None)
        await self.scan()

    def retype(self, model: Model, type: str) -> None:
        """Use a model as one of another type, until the program ends or its options say otherwise."""
        self._types[model.name] = type
        self._put(dict(self._models))

    async def projector_bytes(self, path: str) -> int:
        """Bytes of the tensors of a projector that a load names; 0 if the file cannot be read."""
        if not path:
            return 0
        return await asyncio.to_thread(scanning.projector_bytes, Path(path), self._cache)

    @property
    def _asked(self) -> tuple[Place, ...]:
        return (*map(folder, self._folders), *self._stores)

    def _look(
        self, places: Sequence[Place], options: Mapping[str, LoadOptions]
    ) -> tuple[surveying.Survey, dict[str, Model], tuple[str, ...]]:
        survey = surveying.survey(places, self._max_depth)
        found = scanning.models(survey, self._cache, self._type_of, options)
        suspects = self._options.suspects(options, by_every_name(found.values())) if self._options else ()
        return survey, found, suspects

    async def _look_again(self) -> None:
        last = self._survey
        if last is None or self._settling.pending or await asyncio.to_thread(surveying.changed, last):
            await self.scan()

    def _report(self, survey: surveying.Survey, suspects: tuple[str, ...]) -> None:
        known = (*self._problems, *self._suspects)
        for problem in (*survey.problems, *suspects):
            if problem not in known:
                log.warning("%s", problem)
        self._problems, self._suspects = survey.problems, suspects
        for note in survey.notes:
            if note not in self._told:
                log.info("%s", note)
        self._told = frozenset(survey.notes)

    def _put(self, models: dict[str, Model]) -> None:
        models = dict(sorted(models.items()))
        for name, type in self._types.items():
            if name in models:
                models[name] = structs.replace(models[name], type=type)
        if self.scanned and models == dict(self._models):
            return
        for model in models.values():
            known = self._models.get(model.name)
            if model.broken and (known is None or known.broken != model.broken):
                log.warning("%s cannot be loaded: %s", surveying.readable(model.path), model.broken)
        self._models = MappingProxyType(models)
        self._names = MappingProxyType(by_every_name(models.values()))
        if self.on_change is not None:
            self.on_change(self._models)
