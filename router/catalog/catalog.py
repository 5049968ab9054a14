"""The models that exist, kept current."""

from __future__ import annotations

import asyncio
import difflib
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from router.catalog import scan as scanning
from router.catalog.model import Model, by_every_name, spelled
from router.memory.demand import model_type
from router.memory.header import ModelHeader, read_header
from router.settings.watching import INTERVAL_S, Settling, Waker

log = logging.getLogger(__name__)


class Catalog:
    """The models in a list of folders, looked through off the loop.

    Attributes:
        on_change: called after each scan that changed `models`, with the new mapping.
        scanned: at least one scan is complete.
        problems: folders that cannot be searched, one sentence each.
    """

    def __init__(
        self,
        folders: Sequence[Path] = (),
        *,
        on_change: Callable[[Mapping[str, Model]], None] | None = None,
        read: Callable[[Path], ModelHeader] = read_header,
        type_of: Callable[[ModelHeader], str] = model_type,
        settling: Settling | None = None,
        interval_s: float = INTERVAL_S,
        max_depth: int = scanning.MAX_DEPTH,
    ) -> None:
        self.on_change = on_change
        self.scanned = False
        self.problems: tuple[str, ...] = ()
        self._folders = tuple(folders)
        self._cache = scanning.HeaderCache(read)
        self._type_of = type_of
        self._settling = settling or Settling()
        self._max_depth = max_depth
        self._models: Mapping[str, Model] = MappingProxyType({})
        self._names: Mapping[str, Model] = MappingProxyType({})
        self._survey: scanning.Survey | None = None
        self._order = asyncio.Lock()
        self._waker = Waker(interval_s)

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders looked through. Of files with one stem, that in the first folder keeps it."""
        return self._folders

    @folders.setter
    def folders(self, folders: Sequence[Path]) -> None:
        if tuple(folders) != self._folders:
            self._folders = tuple(folders)
            self._survey = None
            self._waker.wake()

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
        async with self._order:
            folders = self._folders
            survey, found = await asyncio.to_thread(self._look, folders)
            self._survey = survey if folders == self._folders else None
            self._report(survey.problems)
            missing = [name for name in self._models if name not in found]
            due = self._settling.due(missing)
            kept = {name: self._models[name] for name in missing if settle and name not in due}
            self._put({**found, **kept})
            self.scanned = True
            return self._models

    async def watch(self) -> None:
        """Scan whenever something changed, until cancelled."""
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
        found = difflib.get_close_matches(name.casefold(), list(folded), n=3, cutoff=0.5)
        return [folded[match] for match in found]

    def _look(self, folders: Sequence[Path]) -> tuple[scanning.Survey, dict[str, Model]]:
        survey = scanning.survey(folders, self._max_depth)
        return survey, scanning.models(survey, self._cache, self._type_of)

    async def _look_again(self) -> None:
        last = self._survey
        if last is None or self._settling.pending or await asyncio.to_thread(scanning.changed, last):
            await self.scan()

    def _report(self, problems: tuple[str, ...]) -> None:
        for problem in problems:
            if problem not in self.problems:
                log.warning("%s", problem)
        self.problems = problems

    def _put(self, models: dict[str, Model]) -> None:
        models = dict(sorted(models.items()))
        if self.scanned and models == dict(self._models):
            return
        for model in models.values():
            known = self._models.get(model.name)
            if model.broken and (known is None or known.broken != model.broken):
                log.warning("%s cannot be loaded: %s", scanning.readable(model.path), model.broken)
        self._models = MappingProxyType(models)
        self._names = MappingProxyType(by_every_name(models.values()))
        if self.on_change is not None:
            self.on_change(self._models)
