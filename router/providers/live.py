"""One provider at work: looked at again and again, asked, and left alone while it does not answer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Final, Protocol

import aiohttp

from router.catalog.model import Model
from router.engines.base import Exit, Worker
from router.errors import BadRequest
from router.providers import faults
from router.providers.faults import ProviderError, ProviderLoop
from router.providers.health import Health, State
from router.providers.link import WAIT_S, Link
from router.providers.listing import BadListing, Listing, ListingCache, models_of, read_listing, unlisted
from router.providers.store import Provider
from router.snapshot import ProviderView

log = logging.getLogger(__name__)

#: A request that wants an answer now waits so long for a look at a provider that was dead a moment ago.
_LOOK_AGAIN_S: Final = 3.0
_LEAST_PAUSE_S: Final = 0.25
#: A provider that sent a byte of an answer within so many seconds is alive, though it has no time for a look.
HEARD_S: Final = 15.0
REMOVED: Final = "provider_removed"


class Watcher(Protocol):
    """Who is told of a provider."""

    def changed(self, *, models: bool = False) -> None:
        """Something that is shown has changed; `models`: the models."""

    def told(self, code: str, message: str, *, bad: bool) -> None:
        """Something happened: a code, and one sentence."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something later."""


class Live:
    """One provider.

    Attributes:
        loops: it is the router that asks.
        models: by the names that requests use.
        instance: which run of a router it is; "" if it is none, or not known.
        heard_at: when the last byte of an answer came, on the loop's clock.
    """

    def __init__(self, provider: Provider, link: Link, cache: ListingCache, watcher: Watcher) -> None:
        self.provider = provider
        self.link = link
        self.health = Health()
        self.instance = ""
        self.loops = False
        self.heard_at = float("-inf")
        self.leases: set[RemoteLease] = set()
        self._retired = False
        self._cache = cache
        self._watcher = watcher
        self._listing: Listing | None = None
        self.models: Mapping[str, Model] = {}
        self._looked_at = 0.0
        self._look: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()

    def take(self, listing: Listing | None) -> None:
        """Take over a listing that was kept, or, without one, the models that the provider is to have."""
        if listing is None and self.provider.models:
            listing = unlisted(self.provider.models)
        if listing is not None:
            self._put(listing)

    async def run(self) -> None:
        """Look at it whenever that is due, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            if self._woken.is_set() or self.health.due <= loop.time():
                self._woken.clear()
                try:
                    await self.look()
                except Exception as error:
                    # Whatever it answered must not end the looking.
                    log.exception("A look at the provider %s failed", self.provider.name)
                    self.health.failed(loop.time(), faults.not_reached(self.provider, error).message)
            try:
                async with asyncio.timeout_at(max(self.health.due, loop.time() + _LEAST_PAUSE_S)):
                    await self._woken.wait()
            except TimeoutError:
                continue

    async def look(self) -> None:
        """Look now, together with others that want that; `health` says what was found."""
        if self._look is None or self._look.done():
            self._look = asyncio.get_running_loop().create_task(
                self._look_once(), name=f"look at {self.provider.name}"
            )
        await asyncio.shield(self._look)

    async def retire(self, *, cut: bool) -> None:
        """Stop looking, and close all connections once no answer is under way; `cut` ends those that are."""
        if self._look is not None:
            self._look.cancel()
            await asyncio.wait([self._look])
        self._retired = True
        if cut:
            for lease in self.leases:
                lease.end(REMOVED)
        if not self.leases:
            await self.link.close()

    async def close(self) -> None:
        """Stop looking, and close all connections at once."""
        await self.retire(cut=True)
        await self.link.close()

    def lease(self, model: Model, *, patient: bool) -> RemoteLease:
        """A hold for one request."""
        made = RemoteLease(RemoteWorker(self, model, patient=patient), self._released)
        self.leases.add(made)
        self._watcher.changed()
        return made

    def _released(self, lease: RemoteLease) -> None:
        self.leases.discard(lease)
        self._watcher.changed()
        if self._retired and not self.leases:
            self._watcher.spawn(self.link.close())

    async def ready(self, model: Model, *, patient: bool) -> None:
        """Return if a request may be sent.

        Args:
            patient: it may wait a little; if not, another model is to answer at once instead.

        Raises:
            ProviderError: the provider is dead, or the model is to be left alone.
        """
        loop = asyncio.get_running_loop()
        if self.health.is_down:
            if not patient:
                raise self._down()
            try:
                async with asyncio.timeout(_LOOK_AGAIN_S):
                    await self.look()
            except TimeoutError:
                raise self._down() from None
            if self.health.is_down:
                raise self._down()
        block = self.health.block(model.remote_id, loop.time())
        if block is None or (patient and not block.asked):
            return
        wait_s = block.until - loop.time()
        if not patient or wait_s > WAIT_S:
            raise ProviderError(
                block.error.message,
                code=block.error.code,
                status=block.error.status,
                retry_after_s=max(1.0, wait_s),
            )
        await asyncio.sleep(wait_s)

    async def post(
        self,
        model: Model,
        path: str,
        headers: Iterable[tuple[bytes, bytes]],
        body: bytes | bytearray,
        *,
        patient: bool,
    ) -> aiohttp.ClientResponse:
        """Send a request; what comes of it is noted. As `Link.post`."""
        now = asyncio.get_running_loop().time
        try:
            response = await self.link.post(path, headers, body, patient=patient)
        except ProviderLoop:
            raise
        except ProviderError as error:
            self._note(model, error, now())
            raise
        if self.health.answered(model.remote_id):
            self._watcher.changed()
        return response

    def broke_off(self) -> None:
        """An answer broke off: a look will tell whether the provider is gone."""
        self._woken.set()

    def view(self) -> ProviderView:
        """As it is shown."""
        return ProviderView(
            name=self.provider.name,
            url=self.provider.url,
            state=self.health.state.value,
            problem=self.health.problem,
            models=len(self.models),
            more=self._listing.more if self._listing is not None else 0,
            in_use=len(self.leases),
            key=self.provider.key,
            looked_at=self._looked_at,
        )

    def _note(self, model: Model, error: ProviderError, now: float) -> None:
        changed = False
        if error.code == "provider_not_reached":
            changed = self.health.failed(now, error.message)
            self._woken.set()
        elif error.code == "provider_busy":
            self.health.busy(model.remote_id, now, error)
        elif error.code in ("provider_key_refused", "provider_key_missing"):
            changed = self.health.key_refused(error.message)
        elif error.code == "provider_not_found":
            self._woken.set()  # Its models may be others by now.
        else:
            self.health.fault(model.remote_id, now, error)
        if changed:
            self._tell()

    def _down(self) -> ProviderError:
        wait_s = self.health.due - asyncio.get_running_loop().time()
        return faults.down(self.provider, self.health.problem, wait_s)

    async def _look_once(self) -> None:
        now = asyncio.get_running_loop().time
        before = self.health.state
        try:
            body, instance = await self.link.look()
            listing = await asyncio.to_thread(read_listing, body, self.provider.models)
        except BadListing as error:
            changed = self._listed_nothing(faults.bad_list(self.provider, str(error)), now())
        except ProviderError as error:
            self.loops = isinstance(error, ProviderLoop)
            if error.code == "provider_answer_wrong":
                changed = self._listed_nothing(error, now())
            elif isinstance(error.__cause__, TimeoutError) and now() - self.heard_at < HEARD_S:
                # Some servers answer one request after the other.
                self.health.unanswered(now())
                changed = False
            else:
                refused = error.code in ("provider_key_refused", "provider_key_missing")
                changed = self.health.failed(now(), error.message, refused=refused)
        else:
            self.instance, self.loops = instance, False
            changed = self.health.looked(now())
            if self._put(listing):
                await asyncio.to_thread(self._cache.write, self.provider, listing)
                self._watcher.changed(models=True)
        self._looked_at = time.time()
        if changed:
            self._tell()
        elif before is State.CHECKING:
            self._watcher.changed()

    def _listed_nothing(self, error: ProviderError, now: float) -> bool:
        """It answers, but has no list. That is no fault where its models were named."""
        if self.provider.models:
            return self.health.looked(now)
        return self.health.failed(now, error.message)

    def _put(self, listing: Listing) -> bool:
        if listing == self._listing:
            return False
        self._listing = listing
        self.models = models_of(self.provider, listing)
        return True

    def _tell(self) -> None:
        state, problem = self.health.state, self.health.problem
        if problem:
            log.warning("%s", problem)
            self._watcher.told(f"provider_{state}", problem, bad=True)
        else:
            count = len(self.models)
            text = (
                f"The provider {self.provider.name} answers; it has {count} model{'' if count == 1 else 's'}."
            )
            log.info("%s", text)
            self._watcher.told(f"provider_{state}", text, bad=False)
        self._watcher.changed()


class RemoteWorker:
    """A remote model in a worker's place: what asks it need not know that it is elsewhere."""

    host = ""
    port = 0
    api_key = ""
    pid = 0
    launch_command: tuple[str, ...] = ()

    def __init__(self, live: Live, model: Model, *, patient: bool) -> None:
        self.live = live
        self.model = model
        self.patient = patient
        self.exited: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()

    @property
    def measured(self) -> Mapping[str, int]:
        return {}

    async def stop(self) -> bool:
        return True

    async def post(
        self, path: str, headers: Iterable[tuple[bytes, bytes]], body: bytes | bytearray
    ) -> aiohttp.ClientResponse:
        """Send a request. As `Link.post`."""
        return await self.live.post(self.model, path, headers, body, patient=self.patient)


class RemoteLease:
    """One request's hold on a remote model. It takes no place: there may be any number of them."""

    def __init__(self, worker: RemoteWorker, on_end: Callable[[RemoteLease], None]) -> None:
        self.model = worker.model
        self.remote = worker
        self.worker: Worker = worker
        self._cut: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._on_end: Callable[[RemoteLease], None] | None = on_end

    @property
    def cut(self) -> asyncio.Future[str]:
        """Done when the answer must end now: its provider is removed."""
        return self._cut

    def end(self, why: str) -> None:
        """Ask whoever holds the lease to end its answer."""
        if not self._cut.done():
            self._cut.set_result(why)

    def condemn(self) -> None:
        """There is no process to replace."""

    def release(self, *, tokens: int = 0, seconds: float = 0.0) -> None:
        """Give the hold back. Idempotent."""
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(self)


def not_here(model: Model) -> BadRequest:
    """The error for what only a model of this machine can be asked for."""
    return BadRequest(
        f"{model.name} runs at the provider {model.provider}: it is not loaded, placed or pinned here.",
        code="remote_model",
        param="model",
    )
