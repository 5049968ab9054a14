"""The one interface through which the tray talks to the router."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from router.snapshot import DeletionView, Snapshot


class Pull(Protocol):
    """A fetch of a model. The snapshot's downloads show how far it is."""

    async def wait(self) -> str:
        """Wait for its end. Returns the model's name.

        Raises:
            RouterError: it failed, or was cancelled.
        """


class Door(Protocol):
    """What the tray needs of a router. `router.service.Router` is one; tests have a small one.

    All of it runs on the loop that the widgets live on.
    """

    @property
    def snapshot(self) -> Snapshot:
        """The newest snapshot."""

    @property
    def endpoint(self) -> str:
        """The endpoint's URL with its port, without `/v1`; "" before it answers."""

    def subscribe(self, callback: Callable[[Snapshot], None]) -> Callable[[], None]:
        """Call back with every new snapshot; the returned function ends that."""

    async def set_settings(self, changes: Mapping[str, Any]) -> int:
        """Apply all changes or none. Returns the generation that shows them.

        Raises:
            RouterError: naming what is wrong; nothing was changed.
        """

    async def load(self, model: str, options: Mapping[str, Any]) -> None:
        """Load a model and wait until it is ready.

        Raises:
            RouterError: why it cannot be.
        """

    async def unload(self, model: str | None, *, wait: bool = True, force: bool = False) -> None:
        """Unload a model, or all of them."""

    async def free_all(self) -> None:
        """Unload everything, and load nothing before somebody asks for a model again.

        Raises:
            RouterError: a process cannot be killed.
        """

    def pin(self, model: str, pinned: bool) -> None:
        """Keep a model from being chosen as a victim, or stop doing so."""

    def pause(self, paused: bool) -> None:
        """Load nothing that is not asked for explicitly, or go on."""

    async def tell_notice(self, notice: str) -> None:
        """Record that the user has seen a notice.

        Raises:
            RouterError: there is no such notice.
        """

    async def plan_deletion(self, name: str) -> DeletionView:
        """What deleting a model would take away.

        Raises:
            RouterError: it is in use, or its files are not the app's to delete.
        """

    async def delete_model(self, name: str) -> object:
        """Delete the files of a model that nothing else needs.

        Raises:
            RouterError: it is in use, its files are not the app's to delete, or cannot be deleted.
        """

    async def pull(self, name: str) -> Pull:
        """Start fetching a model of the Hugging Face hub, or join the fetch under way.

        Raises:
            RouterError: it names no model of the hub, or the settings leave the hub out.
        """

    async def pull_demo(self) -> Awaitable[None]:
        """Start fetching the demo model. Await the result for its end."""

    async def cancel_download(self, name: str) -> None:
        """Stop a download."""

    async def enable_policy(self, name: str, enabled: bool) -> None:
        """Switch a policy on or off without deleting it.

        Raises:
            RouterError: there is no such policy.
        """

    async def refresh_engines(self) -> None:
        """Ask which builds there are; the snapshot shows them.

        Raises:
            RouterError: the place of releases does not answer.
        """

    async def get_engine(self, id: str | None) -> Awaitable[None]:
        """Start fetching a build; None: the one that suits this machine. Await the result for its end.

        Raises:
            RouterError: there is none to be had.
        """

    async def use_engine(self, id: str) -> None:
        """Load models with this engine from now on.

        Raises:
            RouterError: it cannot be used.
        """

    async def remove_engine(self, id: str) -> None:
        """Remove a build that the app fetched.

        Raises:
            RouterError: it is not one, or it is in use.
        """

    async def plan(self, model: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """What loading would take on each device, with a verdict. Loads nothing.

        Raises:
            RouterError: the options are wrong, or the model cannot be laid out.
        """

    async def test_policy(self, name: str, prompt: str) -> dict[str, Any]:
        """What a registered policy decides about a prompt, with its trace. Nothing is answered.

        Raises:
            RouterError: there is no such policy, or it cannot decide.
        """
