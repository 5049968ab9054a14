"""Every room, wired: what they are made of, how changes travel between them, and their order of starting and
stopping."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import structs

from router.catalog.catalog import Catalog
from router.catalog.hub_api import Hub
from router.catalog.model import Model
from router.catalog.options import as_mapping
from router.catalog.options_file import OptionsFile
from router.catalog.places import stores
from router.devices import machine
from router.devices.base import DeviceProvider, DeviceReading
from router.devices.sampler import Sampler, Source
from router.devices.simulated import SimulatedDevices
from router.engines.arguments import check_arguments
from router.engines.base import Engine
from router.engines.simulating import SimulatingEngine
from router.errors import BadRequest, ConfigError
from router.memory.measured import Measured
from router.memory.store import HeaderStore
from router.paths import Paths
from router.policy.store import PolicyStore
from router.providers.listing import ListingCache
from router.providers.providers import Providers
from router.providers.store import FILE_NAME as PROVIDERS_NAME
from router.providers.store import ProviderFile
from router.residency import view
from router.residency.capacity import Capacity
from router.residency.reconciler import Reconciler
from router.service import notices
from router.service.deciding import Deciding
from router.service.downloads import Downloads
from router.service.engines import Engines, make_engines
from router.service.fleet import Fleet, WithEngineDevices
from router.service.lag import LagProbe
from router.service.names import Names
from router.service.placing import Placing
from router.service.publishing import Publisher
from router.service.pulling import Pulling, hub_root
from router.service.sampling import Wanted, keep_reading
from router.service.sizing import Size, Sizing
from router.service.status import status_of
from router.service.suggesting import Suggesting
from router.service.updates import Updates
from router.settings import schema
from router.settings.files import remove_leftovers
from router.settings.schema import Settings
from router.settings.state import StateFile
from router.settings.store import SettingsStore
from router.snapshot import (
    FeedEntry,
    ModelView,
    PoolView,
    ResidentState,
    Severity,
    Snapshot,
    Status,
)
from router.tasks import Tasks
from router.version import __version__
from router.web.app import Endpoint
from router.web.keyfile import FILE_NAME as KEYS_NAME
from router.web.keyfile import KeyFile
from router.web.keys import Keys
from router.web.security import is_loopback

log = logging.getLogger(__name__)

FIRST_LOOKS_S: Final = 5.0
"""How long the endpoint waits for the first look at models and engines before it answers anyway."""

GRACE_S: Final = 5.0
"""How long answers may go on after the router was told to stop."""

FEED_SHOWN: Final = 100

OPEN: Final = "unauthenticated_lan"
CLOSE_IT: Final = (
    "Make one with: lemon-tray key add NAME. Or use host=127.0.0.1, or set allow_unauthenticated_lan=true "
    "if that is what you want."
)


class Wiring(ABC):
    """Start it, look at it, stop it. Everything happens on the loop that `start` runs on.

    Args:
        paths: where files live; the folders exist.
        overrides: settings that the command line forces.
        models_dirs: folders with models, besides the settings' own.
        simulate: sizes in bytes of pretend devices, instead of the machine's own.
        environ: environment variables that may override settings.

    Attributes:
        on_shutdown: called when a client asks that the program end; None where it does not end for that.
    """

    def __init__(
        self,
        paths: Paths,
        *,
        overrides: Mapping[str, Any] | None = None,
        models_dirs: tuple[Path, ...] = (),
        simulate: tuple[int, ...] | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self.on_shutdown: Callable[[], None] | None = None
        self._paths = paths
        self._models_dirs = models_dirs
        self._simulate = simulate
        self._store = SettingsStore(
            paths.config_file, environ, forced=overrides, on_change=self._settings_changed
        )
        self._state = StateFile(paths.state_dir)
        self._environ = environ
        self._catalog = Catalog(
            options=OptionsFile(paths.options_file),
            read=HeaderStore(paths.headers_dir).get,
            on_change=lambda _models: self._catalog_changed(),
            on_problems=self._publish,
        )
        self._policies = PolicyStore(paths.policies_dir, on_change=self._policies_changed)
        self._providers = Providers(
            ProviderFile(paths.config_file.with_name(PROVIDERS_NAME), environ=environ),
            ListingCache(paths.cache_dir / "providers"),
            self._providers_changed,
            self._provider_told,
        )
        self._names = Names(self._catalog, self._providers)
        self._deciding = Deciding(
            self._names,
            lambda: self._residency,
            lambda: self._store.settings,
            paths.cache_dir / "vectors",
            self._publish,
            self._providers.ask,
        )
        self._downloads = Downloads(self._publish)
        self._pulling = Pulling(
            self._catalog,
            self._downloads,
            Hub(environ),
            lambda: hub_root(self._store.settings.model_sources, environ),
            paths.models_dir,
            self._use_of,
            chosen=lambda reference, model: self._suggesting.learn(str(reference), model),
        )
        self._lag = LagProbe()
        self._keys = Keys(KeyFile(paths.config_file.with_name(KEYS_NAME)), environ)
        self._endpoint = self._make_endpoint()
        self._engine: Fleet | None = None
        self._engines: Engines | None = None
        self._devices: DeviceProvider | None = None
        self._simulated: SimulatedDevices | None = None
        self._reconciler: Reconciler | None = None
        self._tasks = Tasks()
        self._sources: Sequence[Source] = ()
        self._wanted = Wanted()
        self._measured = Measured(paths.state_dir / "measured.json")
        self._placing = Placing(self._measured, check_args=self._check_args)
        self._sizing = Sizing(self._tasks, self._sizes_changed)
        self._suggesting = Suggesting(self._tasks, self._publish, self._tell_misfit)
        self._updates = Updates(self._state, self._tell_update, self._publish)
        self._capacity = Capacity()
        self._started_at = time.monotonic()
        self._model_views: tuple[ModelView, ...] = ()
        self._stopping: asyncio.Task[None] | None = None
        first = Snapshot(
            generation=0,
            version=__version__,
            status=Status.LOADING,
            endpoint="",
            uptime_s=0.0,
            settings=schema.defaults(),
            pool=PoolView(True, 1, 1, 0, 0, 0, False),
            simulated=simulate is not None,
        )
        self._publisher = Publisher(first, self._picture)

    @abstractmethod
    def _make_endpoint(self) -> Endpoint:
        """The HTTP side of the router, not yet listening."""

    # Life

    async def start(self) -> None:
        """Read what there is, then answer.

        Raises:
            RouterError: a setting forced from outside is wrong, or the address cannot be used. Call `stop`
                then, too.
        """
        await asyncio.to_thread(self._store.load)
        await asyncio.to_thread(self._state.load)
        await self._remember_start()
        await asyncio.to_thread(self._keys.load)
        self._check_address(self._store.settings)
        self._engine = Fleet(logs_dir=self._paths.log_dir, state_dir=self._paths.state_dir)
        await self._engine.reap_leftovers()
        engine: Engine = self._engine
        self._sources = machine.sources()
        self._devices = WithEngineDevices(Sampler(self._sources), self._engine.unknown_devices)
        if self._simulate is not None:
            clock = asyncio.get_running_loop().time
            self._simulated = SimulatedDevices(self._simulate, clock, self._devices)
            self._devices = self._simulated
            engine = SimulatingEngine(self._engine, self._simulated)
        self._engines = make_engines(
            self._paths,
            self._downloads,
            change=self.set_settings,
            on_change=self._engines_changed,
            setting=self._store.settings.engine,
            in_use=self._engine.is_used,
        )
        await asyncio.to_thread(self._measured.load)
        self._reconciler = Reconciler(
            engine, self._placing, self._store.settings, self._publish, want_sample=self._wanted.set
        )
        first = await self._devices.read()
        self._observe(first, True)
        self._tasks.spawn(
            keep_reading(self._devices, first, self._observe, self._is_moving_memory, self._wanted.wait),
            "device readings",
        )
        await asyncio.to_thread(self._policies.load)
        await self._providers.start()
        self._look_in_places()
        first_looks = (
            self._tasks.spawn(self._first_scan(), "first scan"),
            self._tasks.spawn(self._engines.start(), "first look at engines"),
        )
        await asyncio.wait(first_looks, timeout=FIRST_LOOKS_S)
        if self._engine.unknown_devices():
            # Only the engine knows them: nothing must be placed before they are among the readings.
            self._observe(await self._devices.read(), True)
        settings = self._store.settings
        await self._endpoint.start(settings.host, settings.port)
        await self._endpoint.listen_also(settings.ollama_port)
        self._updates.configure(settings)
        for watch, name in (
            (self._lag.run(), "lag probe"),
            (self._updates.run(), "look for updates"),
            (self._store.watch(), "settings watch"),
            (self._policies.watch(), "policies watch"),
            (self._providers.watch(), "providers watch"),
            (self._catalog.watch(), "models watch"),
            (asyncio.to_thread(remove_leftovers, self._paths.rewritten), "broken writes"),
            (self._pulling.sweep(), "given up pulls"),
        ):
            self._tasks.spawn(watch, name)
        self._publish()

    async def stop(self) -> None:
        """Answer who waits, give answers a grace, stop every worker, await every task.

        May be called at any time, also when `start` failed or was cancelled, and more than once.
        """
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self._stop(), name="stop")
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        ends = [self._endpoint.stop(GRACE_S)]
        if self._reconciler is not None:
            ends.append(self._reconciler.shutdown(GRACE_S))
        results: list[BaseException | None] = list(await asyncio.gather(*ends, return_exceptions=True))
        await self._tasks.cancel()
        self._deciding.close()
        for end in (
            self._downloads.close(),
            self._providers.close(),
            self._engines.close() if self._engines else None,
            self._engine.aclose() if self._engine else None,
            self._devices.close() if self._devices else None,
            self._store.close(),
        ):
            if end is not None:
                results += await asyncio.gather(end, return_exceptions=True)
        self._publisher.close()
        for result in results:
            if isinstance(result, Exception):
                log.error("Something did not stop cleanly", exc_info=result)

    async def _first_scan(self) -> None:
        await self._catalog.scan()
        # Only now is it known which candidates exist: policies before that would all be unresolved.
        self._policies_changed()
        self._tell_start()

    async def _remember_start(self) -> None:
        """Note which version runs, and before that what the one that ran last makes necessary to tell."""
        state = self._state.state
        owed = state.owed
        imported = await asyncio.to_thread(self._state.imported)
        if notices.owed_after_start(
            state,
            config_existed=self._store.existed,
            names_autosize="llm_pool_autosize" in self._store.explicit,
            imported=imported,
        ):
            owed = tuple(dict.fromkeys((*owed, notices.POOL_NOTICE)))
        try:
            if (state.last_run_version, state.owed) != (__version__, owed):
                await self._state.update(last_run_version=__version__, owed=owed)
            if imported:
                await asyncio.to_thread(self._state.forget_imported)
        except OSError as error:
            log.warning("%s could not be written: %s", self._state.path, error)

    def _check_address(self, settings: Settings) -> None:
        if self._is_open(settings):
            raise ConfigError(
                f"The endpoint would be open to the network on {settings.host} without a key: "
                "it was not opened.",
                code=OPEN,
                param="host",
                hint=CLOSE_IT,
            )

    def _is_open(self, settings: Settings) -> bool:
        """Whether other machines could use the endpoint without a key, though nobody said that they may."""
        return not (settings.allow_unauthenticated_lan or self._keys.any or is_loopback(settings.host))

    # Changes

    @property
    def _residency(self) -> Reconciler:
        if self._reconciler is None:
            raise RuntimeError("The router has not been started.")
        return self._reconciler

    def _engines_changed(self) -> None:
        """Another engine was chosen, or more is known of one."""
        if self._engines is None or self._engine is None:
            return
        chosen = self._engines.chosen
        if chosen is not None and self._engine.choose(chosen):
            self._reach_changed(self._engine)
        self._publish()

    def _engine_problems(self) -> tuple[str, ...]:
        problem = self._engines.choice.problem if self._engines is not None else ""
        return (problem,) if problem else ()

    def _reach_changed(self, fleet: Fleet) -> None:
        self._placing.use(fleet.reach.all)
        self._wanted.set()
        self._size_models()
        if self._reconciler is not None:
            self._reconciler.kick()

    def _observe(self, readings: tuple[DeviceReading, ...], changed: bool) -> None:
        self._placing.observe(readings)
        if self._engine is not None and self._engine.observe(reading.device for reading in readings):
            self._reach_changed(self._engine)
        if self._engines is not None:
            self._engines.set_gpus(reading.device.backend for reading in readings)
        self._residency.observe(readings, changed)
        if changed:
            self._size_models()
        if self._measured.is_dirty:
            self._measured.is_dirty = False
            self._tasks.spawn(self._save_measured(), "save what loads took")

    async def _save_measured(self) -> None:
        try:
            await asyncio.to_thread(self._measured.save)
        except OSError as error:
            log.warning("What loads took could not be kept: %s", error)

    def _size_models(self) -> None:
        if self._reconciler is not None and self._reconciler.readings:
            settings, readings = self._store.settings, self._reconciler.readings
            self._sizing.look(self._catalog.models, self._placing, settings, readings)
            self._suggesting.look(self._placing, settings, readings)

    def _sizes_changed(self) -> None:
        self._show_models()
        self._publish()

    def _settings_changed(self, settings: Settings) -> None:
        if self._reconciler is None:
            return
        self._reconciler.configure(settings=settings)
        if self._endpoint.url:
            self._tasks.spawn(self._listen_also(settings.ollama_port), "second port")
        self._updates.configure(settings)
        self._size_models()
        if self._engines is not None:
            self._engines.configure(settings.engine)
        self._look_in_places()

    async def _listen_also(self, port: int) -> None:
        await self._endpoint.listen_also(port)
        self._publish()

    def _policies_changed(self) -> None:
        if self._reconciler is not None and self._catalog.scanned:
            self._reconciler.configure(policies=self._policies.policies.values())

    def _catalog_changed(self) -> None:
        self._show_models()
        self._size_models()
        if self._reconciler is not None:
            self._reconciler.configure(lookup=self._names.all)

    def _providers_changed(self, models: bool) -> None:
        if models and self._reconciler is not None:
            self._reconciler.configure(lookup=self._names.all)
        self._publish()

    def _tell_update(self, code: str, message: str) -> None:
        self._residency.feed.add(code, message)

    def _tell_misfit(self, code: str, message: str) -> None:
        self._residency.feed.add(code, message, severity=Severity.WARNING)

    def _provider_told(self, code: str, message: str, bad: bool) -> None:
        if self._reconciler is not None:
            severity = Severity.WARNING if bad else Severity.INFO
            self._reconciler.feed.add(code, message, severity=severity)

    def _show_models(self) -> None:
        sizes, models = self._sizing.sizes, self._catalog.models.values()
        foreign = self._pulling.foreign(models)
        self._model_views = tuple(
            _shown(model, sizes.get(model.name, Size()), foreign[model.name]) for model in models
        )

    def _look_in_places(self) -> None:
        """Tell the catalog where to look, by the settings in force."""
        settings = self._store.settings
        # Path.expanduser raises where there is no such user.
        asked = (Path(os.path.expanduser(folder)) for folder in settings.models_dirs)
        self._catalog.folders = (self._paths.models_dir, *self._models_dirs, *asked)
        self._catalog.stores = stores(settings.model_sources, self._environ)

    def _is_moving_memory(self) -> bool:
        return any(
            r.state in (ResidentState.LOADING, ResidentState.EVICTING)
            for r in self._residency.table.residents.values()
        )

    def _tell_start(self) -> None:
        """Once, after the first complete look at models and policies: the number, why, and the off-switch."""
        pool = self.snapshot.pool
        if not pool.autosize or not pool.exceeds_configured:
            return
        log.info(
            "Up to %d language models may stay loaded: active policies name %d, max_loaded_models is %d. "
            "llm_pool_autosize=false keeps to max_loaded_models.",
            pool.effective_limit,
            pool.candidate_floor,
            pool.configured_limit,
        )

    async def set_settings(self, changes: Mapping[str, Any]) -> int:
        """Validate all, apply all or none, publish, persist. Returns the generation that shows the change.

        Raises:
            BadRequest: naming the key and the expected form; nothing was changed.
            RouterError: it could not be written, and was taken back.
        """
        if "host" in changes:
            wanted = schema.apply(self._store.settings, changes)
            # One may have been made a moment ago, by a command.
            await asyncio.to_thread(self._keys.load)
            if self._is_open(wanted):
                raise BadRequest(
                    f"Without a key the endpoint does not open itself to the network: `host` was not set to "
                    f"{wanted.host}.",
                    code=OPEN,
                    param="host",
                    hint=CLOSE_IT,
                )
        change = self._store.change(changes)
        generation = self._publisher.generation
        await change.written
        return generation

    def _use_of(self, model: str) -> str:
        """Why the files of a model must stay, "" if nothing speaks for that."""
        if self._reconciler is None:
            return ""
        table = self._reconciler.table
        resident = next(iter(table.of_model(model)), None)
        if resident is not None:
            return "being loaded" if resident.state is ResidentState.LOADING else "loaded"
        if table.waiting_for(model):
            return "asked for"
        return "pinned" if model in table.pinned else ""

    # Snapshots

    @property
    def snapshot(self) -> Snapshot:
        """The newest snapshot."""
        return self._publisher.snapshot

    @property
    def endpoint(self) -> str:
        """Where it answers, for example `http://127.0.0.1:13305`; "" before `start`."""
        return self._endpoint.url

    @property
    def settings(self) -> Settings:
        """The values in force."""
        return self._store.settings

    @property
    def bound_hosts(self) -> tuple[str, ...]:
        """Names, besides loopback's, under which the endpoint may be addressed."""
        settings = self._store.settings
        return (settings.host, *settings.allowed_hosts)

    def subscribe(self, callback: Callable[[Snapshot], None]) -> Callable[[], None]:
        """Call back with new snapshots, the newest always among them; the returned function ends that.

        What changes within a fiftieth of a second is told once.
        """
        return self._publisher.subscribe(callback)

    def feed_since(self, last_id: int) -> tuple[FeedEntry, ...]:
        """Feed entries with a higher id that are still kept, oldest first."""
        return self._reconciler.feed.since(last_id) if self._reconciler else ()

    def _check_args(self, given: Sequence[str]) -> tuple[str, ...]:
        return check_arguments(given) if self._engine is None else self._engine.check_arguments(given)

    def _publish(self) -> None:
        if self._reconciler is not None:
            self._publisher.changed()

    def _picture(self, generation: int) -> Snapshot:
        reconciler = self._residency
        table, desired = reconciler.table, reconciler.desired
        world = table.world(reconciler.readings, self._placing, waiters=False)
        pool = view.pool_view(desired, table, self._capacity.room_for(desired, world))
        snapshot = Snapshot(
            generation=generation,
            version=__version__,
            status=Status.LOADING,
            simulated=self._simulate is not None,
            endpoint=self._endpoint.url,
            ollama_endpoint=self._endpoint.second.url,
            uptime_s=time.monotonic() - self._started_at,
            settings=schema.as_dict(desired.settings),
            pool=pool,
            residents=view.residents_view(desired, table),
            devices=view.devices_view(world, desired.settings, reconciler.claims),
            policies=self._deciding.shown(view.policies_view(desired)),
            models=self._model_views,
            queue=view.queue_view(table),
            feed=reconciler.feed.latest(FEED_SHOWN),
            notices=notices.due(self._state.state, pool),
            downloads=self._downloads.views,
            suggestions=self._suggesting.views(self._catalog.names),
            update=self._updates.view,
            effective_limits=dict(desired.limits),
            paused=table.paused,
            degraded=reconciler.degraded,
            scanned=self._catalog.scanned,
            loop_lag_s=self._lag.worst_s,
            event_counts=reconciler.feed.counts(),
            load_times=reconciler.feed.load_times(),
            engines=self._engines.views if self._engines is not None else (),
            overridden=dict(self._store.overridden),
            providers=self._providers.views,
            problems=(
                *machine.problems(self._sources),
                *self._engine_problems(),
                *((self._endpoint.second.problem,) if self._endpoint.second.problem else ()),
                *self._store.problems,
                *self._policies.problems,
                *self._catalog.problems,
                *self._providers.problems,
                *self._names.hidden,
            ),
        )
        return structs.replace(snapshot, status=status_of(snapshot))


def _shown(model: Model, size: Size, foreign: str) -> ModelView:
    return ModelView(
        name=model.name,
        type=model.type,
        size_bytes=model.size_bytes,
        context_length=model.context_length,
        aliases=model.aliases,
        broken=model.broken,
        needs=size.needs,
        fits=size.fits,
        source=model.source,
        options=as_mapping(model.options),
        foreign=foreign,
    )
