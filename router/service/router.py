"""The router, and what may be asked of it. It takes a running loop as given and knows no Qt."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from typing import Any

from router.catalog.model import Model
from router.catalog.options import NO_OPTIONS, LoadOptions
from router.catalog.removal import Deleted
from router.catalog.survey import readable
from router.errors import BadRequest, Conflict, ModelNotFound, NotFound
from router.policy.document import Policy
from router.policy.evaluate import Decision
from router.policy.fit import GaveWay
from router.policy.parse import parse_policy
from router.policy.request import RequestView
from router.policy.store import unresolved
from router.providers.live import RemoteLease, not_here
from router.residency.table import Lease
from router.service.context import wider
from router.service.engines import Engines
from router.service.options import load_options
from router.service.planning import plan_table
from router.service.pulling import DEMO_NAME, Pull
from router.service.wiring import Wiring
from router.settings import schema
from router.snapshot import (
    DeletionView,
    ProviderView,
)
from router.web.app import Endpoint

log = logging.getLogger(__name__)


class Router(Wiring):
    """Start it, ask it, stop it: what the endpoint, the commands and the tray app may ask for."""

    def _make_endpoint(self) -> Endpoint:
        return Endpoint(self, keys=self._keys)

    # Asking

    def resolve(self, name: str) -> Model | Policy:
        """The model or enabled policy of that name or alias.

        Raises:
            ModelNotFound: naming near matches.
        """
        policy = self._policies.policies.get(name)
        if policy is not None and policy.enabled:
            return policy
        model = self._names.meant(name)
        if model is not None:
            return model
        raise self._not_found(name, disabled=policy is not None)

    def _not_found(self, name: str, *, disabled: bool = False) -> ModelNotFound:
        if disabled:
            return ModelNotFound(
                f"The policy {name} is switched off.",
                code="policy_disabled",
                param="model",
                hint="Enable it.",
            )
        near = self._names.near(name)
        if near:
            hint = f"Did you mean {' or '.join(near)}?"
        elif not self._catalog.models:
            hint = (
                f"There are no models yet: put a GGUF file into {self._paths.models_dir}, or fetch one: "
                "lemon-tray pull owner/repo:Q4_K_M"
            )
        else:
            hint = "GET /v1/models lists them."
        return ModelNotFound(f"There is no model {name}.", param="model", hint=hint)

    def listing(self, via: str = "") -> tuple[Model | Policy, ...]:
        """All models that can be asked for and all enabled policies, by name.

        `via` names the routers that ask, if it is routers: models that run at one of those are left out.

        Raises:
            ProviderLoop: it is this one that asks itself.
        """
        self._providers.refuse_loop(via)
        listed: list[Model | Policy] = [m for m in self._catalog.models.values() if not m.broken]
        policies = self._policies.policies
        listed += [
            m for m in self._names.remote if m.name not in policies and not self._providers.is_behind(m, via)
        ]
        listed += [p for p in self._policies.policies.values() if p.enabled]
        return tuple(sorted(listed, key=lambda item: item.name))

    async def acquire(
        self,
        model: str,
        *,
        policy: str | None = None,
        body_bytes: int = 0,
        keep_alive_s: float | None = None,
        context: int = 0,
    ) -> Lease | RemoteLease:
        """Wait until the model is loaded and a slot is free.

        A model with a smaller `context` is loaded again with that one, and one with a larger stays as it is.

        Raises:
            RouterError: not found, pinned slots, queue full, wait bound, load failed, shutting down.
        """
        found = self._names.resolve(model)
        if found is not None and found.remote:
            chosen = self._policies.policies.get(policy) if policy is not None else None
            # Where another candidate may answer, this one is not waited for.
            return await self._providers.acquire(found, patient=chosen is None or not chosen.fallback)
        if found is None:
            if policy is None:
                raise self._not_found(model)
            raise ModelNotFound(
                f"The policy {policy} chose {model}, but no model answers to that name.",
                code="candidate_not_found",
                param="model",
                hint="Put the model back, or edit the policy.",
            )
        return await self._residency.acquire(
            found.name,
            policy=policy,
            body_bytes=body_bytes,
            keep_alive_s=keep_alive_s,
            options=await self._widened(found, context) if context else NO_OPTIONS,
        )

    def lease_at_once(self, model: str) -> Lease | None:
        """A lease on a local model, by its own name, if it is loaded, has a slot free and nobody waits."""
        return self._residency.lease_at_once(model)

    async def _widened(self, model: Model, context: int) -> LoadOptions:
        """What a load needs for such a context. A model that is loaded with less is loaded again first."""
        table = self._residency.table
        loaded = next(iter(table.of_model(model.name)), None)
        parallel = loaded.spec.parallel if loaded else model.options.parallel or self._store.settings.parallel
        options = wider(model, context, self._deciding.window(model.name), parallel)
        if loaded is not None and options is not NO_OPTIONS and not table.paused:
            await self._residency.load(model.name, options)
        return options

    # Telling

    def settings_defaults(self) -> dict[str, Any]:
        """Key to default."""
        return schema.defaults()

    async def load(self, model: str, options: Mapping[str, Any]) -> None:
        """Load and wait until it is ready. `options` are those of a model, `pinned` and `save_options`.

        Raises:
            RouterError: as `acquire`; BadRequest for an unknown or wrong option; or the model is loaded, but
                its options could not be saved.
        """
        found = self._model(model)
        asked = load_options(options, found.options)
        if asked.options.type not in (None, found.type):
            self._catalog.retype(found, asked.options.type)
        await self._residency.load(found.name, asked.options, pinned=asked.pinned)
        if asked.save is not None:
            await self._catalog.save_options(found, asked.save)

    async def plan(self, model: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """What loading a model would take on each device, and whether it is admitted. Loads nothing.

        Raises:
            RouterError: as `load`, up to the point where loading would begin.
        """
        found = self._model(model)
        asked = load_options(options, found.options)
        if self._devices is not None:
            self._observe(await self._devices.read(), True)
        return plan_table(found, self._residency.preview(found.name, asked.options))

    async def unload(self, model: str | None, *, wait: bool = True, force: bool = False) -> None:
        """Drain and stop a model, or all of them. With `wait`, returns when the process is gone.

        Raises:
            ModelNotFound: there is no such model, loaded or not.
        """
        await self._residency.unload(None if model is None else self._known(model), wait=wait, force=force)

    def pin(self, model: str, pinned: bool) -> None:
        """Protect a model from being chosen as a victim, or stop doing so.

        Raises:
            ModelNotFound: there is no such model, loaded or not.
        """
        self._residency.pin(self._known(model), pinned)

    def pause(self, paused: bool) -> None:
        """Load nothing that is not asked for explicitly, or go on."""
        self._residency.pause(paused)

    def shut_down(self) -> None:
        """Have the program that holds the router end as quitting it does; returns at once.

        Raises:
            Conflict: `on_shutdown` is not set.
        """
        if self.on_shutdown is None:
            raise Conflict("This router is part of a program that ends it by itself.")
        log.info("The program was asked to end.")
        self.on_shutdown()

    async def free_all(self) -> None:
        """Unload everything, and load nothing before somebody asks for a model again.

        Raises:
            RouterError: a process cannot be killed.
        """
        await self._residency.free_all()

    def _model(self, name: str) -> Model:
        model = self._names.meant(name)
        if model is None:
            raise self._not_found(name)
        if model.remote:
            raise not_here(model)
        return model

    def _known(self, name: str) -> str:
        """The model's own name; one whose file has gone counts while it is loaded."""
        if name in self._residency.table.resident_types():
            return name
        return self._model(name).name

    async def tell_notice(self, notice: str) -> None:
        """Record that the user has seen a notice: it is not shown again.

        Raises:
            NotFound: there is no such notice.
        """
        if notice not in self._state.state.owed:
            raise NotFound(f"There is no notice {notice} to be told.", param="id")
        try:
            await self._state.tell(notice)
        except OSError as error:
            log.warning("%s could not be written: %s", self._state.path, error)
        self._publish()

    # Policies

    async def register_policy(self, document: Any) -> Policy:
        """Register or replace a policy, persistently.

        Raises:
            BadRequest: with the JSON path of the fault; what was registered before stays.
        """
        parsed = await asyncio.to_thread(parse_policy, document)
        if self._names.resolve(parsed.name) is not None:
            raise BadRequest(
                f"$.model_name: {parsed.name} is the name of a model; a policy needs a name of its own",
                code="invalid_policy",
                param="$.model_name",
            )
        missing = unresolved(parsed, self._names.resolve)
        if missing:
            near = self._names.near(missing[0])
            raise BadRequest(
                f"$.components: no registered model answers to {', '.join(missing)}",
                code="unregistered_component",
                param="$.components",
                hint=f"Did you mean {' or '.join(near)}?" if near else None,
            )
        self._deciding.check(parsed)
        return await self._policies.register(document)

    async def decide(self, policy: Policy, view: RequestView) -> Decision:
        """Where a request goes. Models that the policy asks are loaded and asked; none is held afterwards."""
        return await self._deciding.decide(policy, view)

    async def try_policy(self, document: Any, view: RequestView) -> tuple[Decision, dict[str, Any]]:
        """What a policy that need not be registered decides, and the policy as it was evaluated.

        Raises:
            BadRequest: with the JSON path of the fault.
        """
        return await self._deciding.try_out(document, view)

    async def test_policy(self, name: str, prompt: str) -> dict[str, Any]:
        """What a registered policy decides about a prompt, with its trace. Nothing is answered.

        Raises:
            RouterError: there is no policy of that name, or it cannot decide.
        """
        document = self._policies.document(name)
        decision, _ = await self._deciding.try_out(document, RequestView(text=prompt))
        return decision.document(trace=True)

    def window(self, model: str) -> int:
        """The tokens of context that a request to a model has, as it is or would be loaded; 0 if unknown."""
        return self._deciding.window(model)

    def routed(self, policy: str, decision: Decision, model: str, gave_way: tuple[GaveWay, ...]) -> None:
        """Tell in the feed that a policy sent a request to a model, and who gave way to it."""
        self._deciding.tell(policy, decision, model, gave_way)

    def policy_document(self, name: str) -> dict[str, Any]:
        """The document of a registered policy, as it was written.

        Raises:
            ModelNotFound: there is no policy of that name.
        """
        return self._policies.document(name)

    async def delete_policy(self, name: str) -> None:
        """Remove a registered policy.

        Raises:
            ModelNotFound: there is no policy of that name.
        """
        await self._policies.delete(name)

    async def enable_policy(self, name: str, enabled: bool) -> None:
        """Switch a policy on or off without deleting it.

        Raises:
            ModelNotFound: there is no policy of that name.
        """
        await self._policies.enable(name, enabled)

    # Providers

    @property
    def instance(self) -> str:
        """Names this run, so that a request that it sent and that comes back is known."""
        return self._providers.instance

    async def add_provider(self, provider: Mapping[str, Any], key: str | None) -> ProviderView:
        """Keep a provider, in place of the one of its name, and look at it. One that does not answer stays.

        `key` is "" for none, and None to keep the one that it has.

        Raises:
            BadRequest: naming what is wrong.
            RouterError: it is this router itself, or it could not be written; nothing was changed.
        """
        return await self._providers.add(provider, key)

    async def remove_provider(self, name: str) -> None:
        """Forget a provider, its key and its models.

        Raises:
            NotFound: there is none of that name.
        """
        await self._providers.remove(name)

    async def test_provider(self, name: str) -> ProviderView:
        """Look at a provider now.

        Raises:
            NotFound: there is none of that name.
        """
        return await self._providers.test(name)

    # Engines

    async def refresh_engines(self) -> None:
        """Ask which GPU builds of the engine there are; the snapshot shows them.

        Raises:
            RouterError: the place of releases cannot be reached, or asks to wait.
        """
        await self._all_engines.refresh()

    async def get_engine(self, id: str | None) -> Awaitable[None]:
        """Start fetching a GPU build, or join the fetch under way. Await the result for its end.

        `id` is a build's, a back end for the newest build of that kind, or None for what suits best.
        """
        return await self._all_engines.get(id)

    async def use_engine(self, id: str) -> None:
        """Load models with that engine from now on; those that are loaded stay.

        Raises:
            NotFound: there is no such engine.
            BadRequest: it cannot be used.
        """
        await self._all_engines.use(id)

    async def remove_engine(self, id: str) -> None:
        """Delete a build that was fetched.

        Raises:
            NotFound: there is no such build.
            BadRequest: the engine is none that was fetched.
            Conflict: it is in use.
        """
        await self._all_engines.remove(id)

    @property
    def _all_engines(self) -> Engines:
        if self._engines is None:
            raise RuntimeError("The router has not been started.")
        return self._engines

    # Models to have, and to have no longer

    async def pull(self, name: str) -> Pull:
        """Start pulling a model of the Hugging Face hub, or join the pull of it that is under way.

        `name` is `owner/repo`, `owner/repo:Q4_K_M`, `owner/repo:file.gguf`, each with `hf.co/` before it and
        `@revision` after the repository if wanted, or `demo` for the demo model.

        Raises:
            BadRequest: it names no model of the hub.
            Conflict: the settings leave the hub's cache out.
        """
        return self._pulling.pull(name)

    async def cancel_pull(self, name: str) -> None:
        """Stop a pull; the next one goes on where this one ended.

        Raises:
            NotFound: nothing of that name is being pulled.
        """
        self._pulling.cancel(name)

    async def pull_demo(self) -> Awaitable[None]:
        """Start fetching the demo model, or join the fetch under way. Await the result for its end."""
        pull = await self.pull(DEMO_NAME)

        async def end() -> None:
            await pull.wait()

        return end()

    async def delete(self, name: str) -> Deleted:
        """Delete a policy, or the files of a model: those of the app's own folder and of the hub's cache.

        Shards and a projector go with a model, and nothing that another model needs.

        Raises:
            ModelNotFound: there is no policy or model of that name.
            Conflict: the model is loaded, pinned or being pulled.
            Forbidden: its files are not ours to delete.
            RouterError: a file cannot be deleted.
        """
        if name in self._policies.policies:
            await self._policies.delete(name)
            return Deleted(name, "policy")
        return await self.delete_model(name)

    async def plan_deletion(self, name: str) -> DeletionView:
        """What `delete_model` would take away.

        Raises:
            ModelNotFound: there is no such model.
            Conflict: the model is loaded, pinned or being pulled.
            Forbidden: its files are not ours to delete.
        """
        model = self._model(name)
        removal = await self._pulling.plan_deletion(model)
        return DeletionView(model.name, tuple(map(readable, removal.files)), removal.freed)

    async def delete_model(self, name: str) -> Deleted:
        """Delete the files of a model, as `delete`, also where a policy has the same name.

        Raises:
            ModelNotFound: there is no such model.
            Conflict: the model is loaded, pinned or being pulled.
            Forbidden: its files are not ours to delete.
            RouterError: a file cannot be deleted.
        """
        return await self._pulling.delete(self._model(name))

    async def cancel_download(self, name: str) -> None:
        """Stop a download; the next one goes on where this one ended.

        Raises:
            NotFound: nothing of that name is being downloaded.
        """
        self._downloads.cancel(name)

    # Simulation

    def simulate(self, change: Mapping[str, Any]) -> dict[str, Any]:
        """Change a simulated device (`--simulate` only).

        Raises:
            NotFound: the router does not simulate.
            BadRequest: naming the field.
        """
        if self._simulated is None:
            raise NotFound(
                "This router does not simulate devices.", hint="Start it with --simulate 24GiB,24GiB."
            )
        return self._simulated.change(change)
