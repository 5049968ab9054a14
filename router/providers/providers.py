"""All providers: read, changed, looked at, and asked."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

import aiohttp
from msgspec import structs

from router.catalog.model import Model, spelled
from router.errors import ConfigError, RouterError, near_matches
from router.providers import faults
from router.providers.address import origin
from router.providers.blocking import in_daemon
from router.providers.faults import ProviderError
from router.providers.link import KEYRING_S, Link
from router.providers.listing import ListingCache
from router.providers.live import Live, RemoteLease
from router.providers.store import IN_FILE, Provider, ProviderFile, make_provider, no_provider
from router.settings.watching import INTERVAL_S, Waker
from router.snapshot import ProviderView
from router.tasks import Tasks

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_ANSWER: Final = 64 << 20
_READ_ERRORS: Final = (aiohttp.ClientError, OSError, ValueError)


class Providers:
    """The providers of one router.

    Args:
        on_change: called when something that is shown changed; true: the models.
        on_event: called with a code, a sentence, and whether it is bad news, when something happened.

    Attributes:
        instance: names this run of the router, so that a request that comes back is known.
    """

    def __init__(
        self,
        file: ProviderFile,
        cache: ListingCache,
        on_change: Callable[[bool], None] = lambda models: None,
        on_event: Callable[[str, str, bool], None] = lambda code, message, bad: None,
    ) -> None:
        self.instance = secrets.token_hex(8)
        self._file = file
        self._cache = cache
        self._on_change = on_change
        self._on_event = on_event
        self._live: dict[str, Live] = {}
        self._retired: set[Live] = set()
        self._runs: dict[str, asyncio.Task[None]] = {}
        self._tasks = Tasks()
        self._order = asyncio.Lock()
        self._waker = Waker(INTERVAL_S)
        self._stamp: tuple[int, ...] | None = None
        self._models: Mapping[str, Model] = MappingProxyType({})
        self._problem = ""
        self._closed = False

    # What there is

    @property
    def models(self) -> Mapping[str, Model]:
        """Name to model, of all providers. A change makes a new mapping."""
        return self._models

    @property
    def views(self) -> tuple[ProviderView, ...]:
        """The providers as they are shown, by name."""
        return tuple(live.view() for live in self._live.values())

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong with the file of providers; of a provider itself its view tells."""
        return (self._problem,) if self._problem else ()

    def resolve(self, name: str) -> Model | None:
        """The model of that name."""
        return self._models.get(spelled(name))

    def near(self, name: str) -> list[str]:
        """Up to two names like this one."""
        return near_matches(name, self._models, 2)

    def is_behind(self, model: Model, via: str) -> bool:
        """Whether a model runs at one of the routers that are named in a request's way here."""
        live = self._live.get(model.provider)
        return live is not None and bool(live.instance) and live.instance in _parts(via)

    def refuse_loop(self, via: str) -> None:
        """Raises ProviderLoop: a request that came this way began here."""
        if self.instance in _parts(via):
            raise faults.ProviderLoop("This is the router that asks: it cannot be a provider of its own.")

    # Life

    async def start(self) -> None:
        """Read the file, and what was known of each provider. Nobody is asked before `watch`."""
        await self._reload()

    async def watch(self) -> None:
        """Look at the providers, and take over edits of the file, until cancelled."""
        try:
            await self._waker.run(self._reload_if_changed, str(self._file.path))
        finally:
            await self._tasks.cancel()

    async def close(self) -> None:
        """Close all connections."""
        self._closed = True
        await self._tasks.cancel()
        for live in (*self._live.values(), *self._retired):
            await live.close()

    async def _reload_if_changed(self) -> None:
        if await asyncio.to_thread(self._file.stamp) != self._stamp:
            await self._reload()
        for name, live in self._live.items():
            self._run(name, live)

    async def _reload(self) -> None:
        async with self._order:
            self._stamp = await asyncio.to_thread(self._file.stamp)
            try:
                kept = await asyncio.to_thread(self._file.read)
            except ConfigError as error:
                # What is in force stays, as with any other file.
                if error.message != self._problem:
                    log.warning("%s", error.message)
                    self._problem = error.message
                    self._on_change(False)
                return
            self._problem = ""
            for name in [n for n in self._live if n not in {p.name for p in kept}]:
                await self._drop(name, cut=True)
            for provider in kept:
                known = self._live.get(provider.name)
                if known is None or known.provider != provider:
                    await self._put(provider)
            self._models_changed()

    async def _put(self, provider: Provider) -> None:
        live = self._made(provider, lambda: self._file.secret(provider))
        live.take(await asyncio.to_thread(self._cache.read, provider))
        await self._install(live)

    def _made(self, provider: Provider, find_key: Callable[[], str | None]) -> Live:
        return Live(provider, Link(provider, find_key, self.instance), self._cache, self)

    async def _install(self, live: Live) -> None:
        await self._drop(live.provider.name, cut=False)
        self._live = dict(sorted({**self._live, live.provider.name: live}.items()))

    async def _drop(self, name: str, *, cut: bool) -> None:
        run = self._runs.pop(name, None)
        if run is not None:
            run.cancel()
            await asyncio.wait([run])
        live = self._live.pop(name, None)
        if live is not None:
            self._retired = {each for each in self._retired if each.leases}
            self._retired.add(live)
            await live.retire(cut=cut)

    def _run(self, name: str, live: Live) -> None:
        if name not in self._runs and not self._closed:
            self._runs[name] = self._tasks.spawn(live.run(), f"provider {name}")

    def changed(self, *, models: bool = False) -> None:
        """A provider tells that something of it changed."""
        if models:
            self._models_changed()
        else:
            self._on_change(False)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """A provider has something to do later."""
        self._tasks.spawn(work, "end of a provider")

    def told(self, code: str, message: str, *, bad: bool) -> None:
        """A provider tells what happened."""
        self._on_event(code, message, bad)

    def _models_changed(self) -> None:
        merged: dict[str, Model] = {}
        for live in self._live.values():
            merged.update(live.models)
        self._models = MappingProxyType(merged)
        self._on_change(True)

    # Changing

    async def add(self, given: Mapping[str, Any], secret: str | None) -> ProviderView:
        """Keep a provider, in place of the one of its name, and look at it.

        One that does not answer is kept as well; its view says why.

        Raises:
            BadRequest: naming what is wrong.
            ProviderError: it is this router itself; it is not kept.
            ConfigError: it could not be written.
        """
        provider = make_provider(given)
        known = self._live.get(provider.name)
        live = self._made(provider, lambda: self._key_for(provider, secret, known))
        if secret is not None or known is not None:
            live.link.provider = structs.replace(provider, key=IN_FILE)  # There may be a key: ask for it.
        live.take(await asyncio.to_thread(self._cache.read, provider))
        await live.look()
        if live.loops:
            await live.close()
            raise faults.itself(provider)
        try:
            async with self._order:
                kept = await self._on_disk(lambda: self._file.put(provider, secret))
                live.provider = live.link.provider = kept
                live.link.find_key = lambda: self._file.secret(kept)
                await self._install(live)
        except BaseException:
            await live.close()
            raise
        self._models_changed()
        self._run(kept.name, live)
        return live.view()

    def _key_for(self, provider: Provider, secret: str | None, known: Live | None) -> str | None:
        """The key that a provider is to have; that of the one in its place only for the same host."""
        if secret is not None or provider.variable:
            return secret if secret is not None else self._file.secret(provider)
        if known is None or origin(known.provider.url) != origin(provider.url):
            return ""
        return self._file.secret(known.provider)

    async def _on_disk(self, work: Callable[[], T]) -> T:
        """Change the file, and a keyring that may hang.

        Raises:
            ConfigError: the keyring does not answer.
        """
        try:
            done = await in_daemon(work, KEYRING_S)
        except TimeoutError as error:
            raise ConfigError("The keyring does not answer; is it locked?") from error
        self._stamp = await asyncio.to_thread(self._file.stamp)
        return done

    async def remove(self, name: str) -> None:
        """Forget a provider, its key and its models. Answers that are under way end with an error.

        Raises:
            NotFound: there is none of that name.
            ConfigError: it could not be written.
        """
        async with self._order:
            live = self._live.get(name)
            await self._on_disk(lambda: self._file.remove(name))
            await self._drop(name, cut=True)
            if live is not None:
                await asyncio.to_thread(self._cache.forget, live.provider)
            self._models_changed()

    async def test(self, name: str) -> ProviderView:
        """Look at a provider now.

        Raises:
            NotFound: there is none of that name.
        """
        live = self._named(name)
        live.link.forget_key()
        await live.look()
        return live.view()

    def _named(self, name: str) -> Live:
        live = self._live.get(name)
        if live is None:
            raise no_provider(name, list(self._live))
        return live

    # Asking

    async def acquire(self, model: Model, *, patient: bool) -> RemoteLease:
        """A hold on a remote model, at once unless its provider is dead or wants requests later.

        Args:
            patient: it may wait a little; if not, another model is to answer at once instead.

        Raises:
            ProviderError: why it cannot be asked now.
        """
        live = self._live.get(model.provider)
        if live is None:
            raise ProviderError(f"The provider {model.provider} was removed.", code="provider_removed")
        await live.ready(model, patient=patient)
        return live.lease(model, patient=patient)

    async def ask(self, model: Model, path: str, body: bytes, within_s: float) -> tuple[int, bytes]:
        """Status and body of one answer.

        Raises:
            RouterError: why there is none.
        """
        lease = await self.acquire(model, patient=False)
        try:
            async with asyncio.timeout(within_s):
                response = await lease.remote.post(path, (), body)
                try:
                    parts = bytearray()
                    while data := await response.content.readany():
                        parts += data
                        if len(parts) > MAX_ANSWER:
                            raise RouterError(
                                f"The answer of {model.name} is too large.",
                                code="provider_answer_wrong",
                                status=502,
                            )
                    return response.status, bytes(parts)
                finally:
                    response.close()
        except TimeoutError as error:
            raise RouterError(
                f"{model.name} took longer than {within_s:g} s to answer.", code="timeout", status=503
            ) from error
        except _READ_ERRORS as error:
            raise faults.cut(lease.remote.live.provider, error) from error
        finally:
            lease.release()


def _parts(via: str) -> list[str]:
    return [part.strip() for part in via.split(",")] if via else []
