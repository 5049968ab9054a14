"""What the web layer needs of the router. The service implements it; tests may implement a small one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Protocol

from router.catalog.model import Model
from router.catalog.pull import PullProgress
from router.catalog.removal import Deleted
from router.engines.base import Worker
from router.policy.document import Policy
from router.policy.evaluate import Decision
from router.policy.fit import GaveWay
from router.policy.request import RequestView
from router.settings.schema import Settings
from router.snapshot import FeedEntry, ProviderView, Snapshot


class Lease(Protocol):
    """One request's hold on a READY resident, from grant to the last byte."""

    model: Model
    worker: Worker

    @property
    def cut(self) -> asyncio.Future[str]:
        """Done when the answer must end now; the result is `shutting_down`, `unloaded` or `worker_died`."""

    def condemn(self) -> None:
        """Tell that the worker refuses connections although its process runs. Release the lease then, too."""

    def release(self, *, tokens: int = 0, seconds: float = 0.0) -> None:
        """Give the hold back. Idempotent, never blocks. The rate shown is `tokens` generated in `seconds`."""


class Pull(Protocol):
    """A pull under way, or ended. Giving up on it does not end it: `cancel_pull` does."""

    @property
    def name(self) -> str:
        """What it is called among the downloads of the snapshot."""

    async def wait(self) -> str:
        """Wait for its end. Returns the name that the catalog lists the model by.

        Raises:
            RouterError: it failed, or was cancelled.
        """

    def __aiter__(self) -> AsyncIterator[PullProgress]:
        """How far it is, now and whenever that changes, until it ends.

        Raises:
            RouterError: it failed, or was cancelled.
        """


class RouterApi(Protocol):
    """The router as the web layer and the tray see it. Everything runs on the router's loop."""

    @property
    def settings(self) -> Settings:
        """The values in force."""

    @property
    def snapshot(self) -> Snapshot:
        """The newest snapshot."""

    @property
    def bound_hosts(self) -> tuple[str, ...]:
        """Host names and literals under which the endpoint may be addressed."""

    def subscribe(self, callback: Callable[[Snapshot], None]) -> Callable[[], None]:
        """Call back with every new snapshot; the returned function ends that."""

    def feed_since(self, last_id: int) -> tuple[FeedEntry, ...]:
        """Feed entries with a higher id that are still kept, oldest first."""

    def resolve(self, name: str) -> Model | Policy:
        """The model or enabled policy of that name or alias.

        Raises:
            ModelNotFound: naming near matches.
        """

    def listing(self, via: str = "") -> tuple[Model | Policy, ...]:
        """All models that can be asked for and all enabled policies, by name.

        `via` names the routers that ask, if it is routers: models that run at one of those are left out.

        Raises:
            RouterError: it is this one that asks itself.
        """

    async def acquire(
        self,
        model: str,
        *,
        policy: str | None = None,
        body_bytes: int = 0,
        keep_alive_s: float | None = None,
        context: int = 0,
    ) -> Lease:
        """Wait until the model is loaded and a slot is free.

        A model with a smaller `context` is loaded again with that one, and one with a larger stays as it is.

        Raises:
            RouterError: not found, pinned slots, queue full, wait bound, load failed, shutting down.
        """

    def lease_at_once(self, model: str) -> Lease | None:
        """A lease on a local model, by its own name, if it is loaded, has a slot free and nobody waits."""

    async def decide(self, policy: Policy, view: RequestView) -> Decision:
        """Where a request goes. Models that the policy asks are loaded and asked; none is held afterwards."""

    async def try_policy(self, document: Any, view: RequestView) -> tuple[Decision, dict[str, Any]]:
        """What a policy that need not be registered decides, and the policy as it was evaluated.

        Raises:
            BadRequest: with the JSON path of the fault.
        """

    def window(self, model: str) -> int:
        """The tokens of context that a request to a model has, as it is or would be loaded; 0 if unknown."""

    def routed(self, policy: str, decision: Decision, model: str, gave_way: tuple[GaveWay, ...]) -> None:
        """Tell in the feed that a policy sent a request to a model, and who gave way to it."""

    def policy_document(self, name: str) -> dict[str, Any]:
        """The document of a registered policy, as it was written.

        Raises:
            ModelNotFound: there is no policy of that name.
        """

    async def set_settings(self, changes: Mapping[str, Any]) -> int:
        """Validate all, apply all or none, publish, persist. Returns the generation that shows the change.

        Raises:
            BadRequest: naming the key and the expected form; nothing was changed.
        """

    def settings_defaults(self) -> dict[str, Any]:
        """Key to default."""

    async def load(self, model: str, options: Mapping[str, Any]) -> None:
        """Load and wait until it is ready. `options` may name `ctx_size`, `parallel`, `pinned`.

        Raises:
            RouterError: as `acquire`; BadRequest for an unknown or wrong option.
        """

    async def plan(self, model: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """What loading a model would take on each device, and whether it is admitted. Loads nothing.

        `options` are those of `load`. Returns the table as it goes to the client, ready for JSON.

        Raises:
            RouterError: as `load`, up to the point where loading would begin.
        """

    async def unload(self, model: str | None, *, wait: bool = True, force: bool = False) -> None:
        """Drain and stop a model, or all of them. With `wait`, returns when the process is gone."""

    def pin(self, model: str, pinned: bool) -> None:
        """Protect a model from being chosen as a victim, or stop doing so."""

    def pause(self, paused: bool) -> None:
        """Load nothing that is not asked for explicitly, or go on."""

    def shut_down(self) -> None:
        """Have the program that holds the router end as quitting it does; returns at once.

        Raises:
            Conflict: nobody who could end it holds the router.
        """

    async def tell_notice(self, notice: str) -> None:
        """Record that the user has seen a notice.

        Raises:
            NotFound: there is no such notice.
        """

    async def register_policy(self, document: Any) -> Policy:
        """Register or replace a policy, persistently.

        Raises:
            BadRequest: with the JSON path of the fault; what was registered before stays.
        """

    async def delete_policy(self, name: str) -> None:
        """Remove a registered policy.

        Raises:
            ModelNotFound: there is no policy of that name.
        """

    async def enable_policy(self, name: str, enabled: bool) -> None:
        """Switch a policy on or off without deleting it."""

    async def pull(self, name: str) -> Pull:
        """Start pulling a model of the Hugging Face hub, or join the pull of it that is under way.

        `name` is `owner/repo`, `owner/repo:Q4_K_M`, `owner/repo:file.gguf`, each with `hf.co/` before it and
        `@revision` after the repository if wanted, or `demo` for the demo model.

        Raises:
            BadRequest: it names no model of the hub.
            Conflict: the settings leave the hub's cache out.
        """

    async def cancel_pull(self, name: str) -> None:
        """Stop a pull; the next one goes on where this one ended.

        Raises:
            NotFound: nothing of that name is being pulled.
        """

    async def delete(self, name: str) -> Deleted:
        """Delete a policy, or the files of a model: those of the app's own folder and of the hub's cache.

        Raises:
            ModelNotFound: there is no policy or model of that name.
            Conflict: the model is loaded, pinned or being pulled.
            Forbidden: its files are not ours to delete.
            RouterError: a file cannot be deleted.
        """

    @property
    def instance(self) -> str:
        """Names this run, so that a request that it sent and that comes back is known."""

    async def add_provider(self, provider: Mapping[str, Any], key: str | None) -> ProviderView:
        """Keep a provider, in place of the one of its name, and look at it. One that does not answer stays.

        `key` is "" for none, and None to keep the one that it has.

        Raises:
            BadRequest: naming what is wrong.
            RouterError: it is this router itself, or it could not be written; nothing was changed.
        """

    async def remove_provider(self, name: str) -> None:
        """Forget a provider, its key and its models.

        Raises:
            NotFound: there is none of that name.
        """

    async def test_provider(self, name: str) -> ProviderView:
        """Look at a provider now.

        Raises:
            NotFound: there is none of that name.
        """

    async def refresh_engines(self) -> None:
        """Ask which GPU builds of the engine there are; the snapshot shows them.

        Raises:
            RouterError: the place of releases cannot be reached, or asks to wait.
        """

    async def get_engine(self, id: str | None) -> Awaitable[None]:
        """Start fetching a GPU build, or join the fetch under way. Await the result for its end.

        `id` is a build's, a back end for the newest build of that kind, or None for what suits best.
        """

    async def use_engine(self, id: str) -> None:
        """Load models with that engine from now on; those that are loaded stay.

        Raises:
            NotFound: there is no such engine.
            BadRequest: it cannot be used.
        """

    async def remove_engine(self, id: str) -> None:
        """Delete a build that was fetched.

        Raises:
            NotFound: there is no such build.
            BadRequest: the engine is none that was fetched.
            Conflict: it is in use.
        """

    def simulate(self, change: Mapping[str, Any]) -> dict[str, Any]:
        """Change a simulated device (`--simulate` only).

        Raises:
            NotFound: the router does not simulate.
            BadRequest: naming the field.
        """
