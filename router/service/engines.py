"""The engines of this machine: the embedded one, fetched builds, the user's programs, and which is used."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from msgspec import structs

from router.devices import machine
from router.devices.sampler import Sampler
from router.engines.base import Capabilities
from router.engines.builds import Build, Builds, check_wanted, download_name
from router.engines.choice import AUTO, EMBEDDED, Choice, choose, kind_of
from router.engines.finding import find_programs
from router.engines.probing import Prober
from router.engines.releases import GITHUB, Machine, Offer, title_of
from router.errors import BadRequest, Conflict, NotFound
from router.paths import Paths
from router.service.downloads import Downloads, Progress
from router.settings.store import SettingsStore
from router.snapshot import EngineView
from router.tasks import Tasks

log = logging.getLogger(__name__)


class Probe(Protocol):
    """Runs a program, or the embedded engine for None, in a child, and tells what it is and reaches."""

    def __call__(self, path: Path | None, /, *, again: bool = False) -> Awaitable[Capabilities]:
        """`again` asks it although the answer is known."""


#: The llama-server programs on this machine, the one to prefer first. Run in a thread.
Find = Callable[[], Sequence[Path]]


class Engines:
    """Knows every engine, and chooses by the setting `engine`. Everything runs on one loop.

    Args:
        builds: the app's own folder of builds.
        downloads: where fetching a build is shown.
        probe, find: how an engine and programs are looked at.
        change: changes settings, all or none; awaits until they are in force.
        on_change: called when `views` or `choice` may have changed.
        setting: the setting `engine`.
    """

    def __init__(
        self,
        builds: Builds,
        downloads: Downloads,
        *,
        probe: Probe,
        find: Find,
        change: Callable[[Mapping[str, Any]], Awaitable[object]],
        on_change: Callable[[], None],
        setting: str = AUTO,
    ) -> None:
        self._builds = builds
        self._downloads = downloads
        self._probe = probe
        self._find = find
        self._change = change
        self._on_change = on_change
        self._setting = _normal(setting)
        self._tasks = Tasks()
        self._known: dict[str, Capabilities] = {}
        self._choice = choose(self._setting, ())
        self._views: tuple[EngineView, ...] = ()

    @property
    def choice(self) -> Choice:
        """The engine that loads models from now on, and why."""
        return self._choice

    @property
    def chosen(self) -> Capabilities | None:
        """What is known of that engine; None before `start`."""
        return self._known.get(self._choice.id)

    @property
    def known(self) -> Mapping[str, Capabilities]:
        """Every engine that was looked at, by id."""
        return self._known

    @property
    def views(self) -> tuple[EngineView, ...]:
        """All engines for the snapshot: embedded, builds, found ones, offers."""
        return self._views

    async def start(self) -> None:
        """Look at everything that is here. No network."""
        await self._builds.load()
        await self.look()

    async def look(self) -> None:
        """Look for programs again, and at every engine."""
        found = [str(path) for path in await asyncio.to_thread(self._find)]
        if Path(self._setting).is_absolute():
            found.append(self._setting)
        wanted: dict[str, Path | None] = {EMBEDDED: None}
        wanted |= {build.id: self._builds.program(build.id) for build in self._builds.installed}
        wanted |= {path: Path(path) for path in found}
        results = await asyncio.gather(*(self._look_at(id, path) for id, path in wanted.items()))
        self._known = dict(zip(wanted, results, strict=True))
        self._settle()

    async def close(self) -> None:
        """End what is under way. Downloads are ended by their owner."""
        await self._tasks.cancel()

    def configure(self, setting: str) -> None:
        """The setting `engine` has changed."""
        setting = _normal(setting)
        if setting == self._setting:
            return
        self._setting = setting
        if Path(setting).is_absolute() and setting not in self._known:
            self._tasks.spawn(self._add(setting), "look at an engine")
        self._settle()

    def set_gpus(self, backends: Iterable[str]) -> None:
        """Tell which back ends the machine's GPUs have: offers depend on it."""
        present = frozenset(backends) - {"", "simulated"}
        if present != self._builds.machine.backends:
            self._builds.machine = structs.replace(self._builds.machine, backends=present)
            self._settle()

    async def refresh(self) -> None:
        """Ask GitHub which builds suit this machine.

        Raises:
            RouterError: it cannot be asked, or asks to wait.
        """
        await self._builds.refresh_offers()
        self._settle()

    async def get(self, id: str | None = None) -> Awaitable[None]:
        """Start fetching a build, or join the fetch under way. Await the result for its end.

        `id` is a build's, a back end for the newest build of that kind, or None for what suits best. The
        result raises what `Builds.get` raises.

        Raises:
            NotFound: the id is not like a build's.
        """
        check_wanted(id)

        async def fetch(progress: Progress) -> None:
            build = await self._builds.get(id, progress)
            self._known[build.id] = await self._look_at(build.id, self._builds.program(build.id))
            self._settle()

        return self._downloads.begin(download_name(id), fetch)

    async def use(self, id: str) -> None:
        """Load models with that engine from now on; those that are loaded stay. Sets the setting `engine`.

        Raises:
            NotFound: there is no such engine here.
            BadRequest: it cannot be used.
        """
        id = _normal(id)
        if id not in (AUTO, EMBEDDED):
            if id not in self._known and not Path(id).is_absolute():
                raise self._not_here(id)
            # Anew: what was wrong with it may have been put right.
            looked = await self._look_at(id, self._path(id), again=True)
            self._known[id] = looked
            if looked.problem:
                self._settle()
                raise BadRequest(f"{id} cannot be used: {looked.problem}", code="engine_unusable", param="id")
        await self._change({"engine": id})
        self.configure(id)

    async def remove(self, id: str) -> None:
        """Delete a build that was fetched.

        Raises:
            NotFound: there is no such build here.
            BadRequest: the engine is none that was fetched.
            Conflict: a worker of it runs, or the setting `engine` names it.
        """
        if id == EMBEDDED or (id in self._known and kind_of(self._known[id]) == "found"):
            raise BadRequest(f"{id} was not fetched by Lemon Tray, and is not deleted by it.", param="id")
        if id == self._setting and any(build.id == id for build in self._builds.installed):
            raise Conflict(
                f"The setting engine names {id}.",
                code="engine_in_use",
                param="id",
                hint="Choose another first: lemon-tray engine use auto.",
            )
        await self._builds.remove(id)
        self._known.pop(id, None)
        self._settle()

    async def _add(self, path: str) -> None:
        self._known[path] = await self._look_at(path, Path(path))
        self._settle()

    def _path(self, id: str) -> Path | None:
        if any(build.id == id for build in self._builds.installed):
            return self._builds.program(id)
        return Path(id)

    async def _look_at(self, id: str, path: Path | None, *, again: bool = False) -> Capabilities:
        found = await self._probe(path, again=again)
        return structs.replace(found, id=id, path="" if path is None else str(path))

    def _not_here(self, id: str) -> NotFound:
        offered = any(view.id == id for view in self._views if view.kind == "offer")
        return NotFound(
            f"There is no engine {id} here.",
            param="id",
            hint=f"Fetch it first: lemon-tray engine get {id}." if offered else "lemon-tray engine list.",
        )

    def _settle(self) -> None:
        """Choose anew, and show it."""
        before = self._choice
        self._choice = choose(self._setting, self._known.values())
        if self._choice != before:
            log.info("Engine: %s", self._choice.reason)
            if self._choice.problem:
                log.warning("%s", self._choice.problem)
        self._views = tuple(self._shown())
        self._on_change()

    def _shown(self) -> Iterable[EngineView]:
        builds = {build.id: build for build in self._builds.installed}
        for engine in self._known.values():
            yield self._engine_view(engine, builds.get(engine.id))
        offers = self._builds.offers
        for offer in offers:
            if offer.id not in builds:
                yield _offer_view(offer)
        here = {build.backend for build in builds.values()} | {offer.backend for offer in offers}
        for backend in self._builds.suitable:
            if backend not in here:
                yield EngineView(backend, title_of("", backend), "offer", backends=(backend,))

    def _engine_view(self, engine: Capabilities, build: Build | None) -> EngineView:
        return EngineView(
            id=engine.id,
            title=engine.title if build is None else build.title,
            kind=kind_of(engine),
            version=engine.version,
            path=engine.path,
            backends=tuple(sorted(engine.backends)),
            devices=tuple(device.description or device.name for device in engine.devices),
            in_use=engine.id == self._choice.id,
            size=0 if build is None else build.size,
            problem=engine.problem,
        )


def make_engines(
    paths: Paths,
    downloads: Downloads,
    *,
    change: Callable[[Mapping[str, Any]], Awaitable[object]],
    on_change: Callable[[], None],
    setting: str = AUTO,
    in_use: Callable[[str], bool] = lambda _id: False,
) -> Engines:
    """The engines of this machine. `in_use` tells whether a worker of a build runs, by the build's id."""
    # What is tried lies in a folder that is gone afterwards: no reason to remember it.
    builds = Builds(paths.engines_dir, Machine.here(), Prober(), in_use=in_use, base=GITHUB)
    return Engines(
        builds,
        downloads,
        probe=Prober(paths.cache_dir),
        find=find_programs,
        change=change,
        on_change=on_change,
        setting=setting,
    )


@contextlib.asynccontextmanager
async def standalone(
    paths: Paths, store: SettingsStore, progress: Callable[[int, int | None], None] | None = None
) -> AsyncIterator[Engines]:
    """The engines for a command that runs without a router; settings go into the file.

    `progress` is told how far a fetch is: bytes done, and in all once that is known.
    """

    async def change(changes: Mapping[str, Any]) -> None:
        await store.change(changes).written

    def told() -> None:
        running = next((view for view in downloads.views if view.state == "running"), None)
        if progress is not None and running is not None:
            progress(running.done, running.total)

    downloads = Downloads(told)
    engines = make_engines(
        paths, downloads, change=change, on_change=lambda: None, setting=store.settings.engine
    )
    devices = Sampler(machine.sources())
    try:
        readings = await devices.read()
        engines.set_gpus(reading.device.backend for reading in readings)
        await engines.start()
        yield engines
    finally:
        await devices.close()
        await downloads.close()
        await engines.close()
        await store.close()


def _offer_view(offer: Offer) -> EngineView:
    return EngineView(
        id=offer.id,
        title=offer.title,
        kind="offer",
        version=offer.tag,
        backends=(offer.backend,),
        size=offer.size,
        problem=offer.problem,
    )


def _normal(setting: str) -> str:
    """A path in full; anything else as it is."""
    setting = setting.strip()
    # Path.expanduser raises where there is no such user.
    return os.path.expanduser(setting)
