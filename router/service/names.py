"""Every model that requests and policies may name: those of this machine, and those of providers."""

from __future__ import annotations

from collections.abc import Mapping

from router.catalog.catalog import Catalog
from router.catalog.hub import among
from router.catalog.model import Model
from router.providers.providers import Providers


class Names:
    """Looks names up. A model of this machine goes before one of a provider, whatever it is called."""

    def __init__(self, catalog: Catalog, providers: Providers) -> None:
        self._catalog = catalog
        self._providers = providers
        self._seen: tuple[object, object] | None = None
        self._remote: tuple[Model, ...] = ()
        self._hidden: tuple[str, ...] = ()

    def resolve(self, name: str) -> Model | None:
        """The model of that name or alias."""
        return self._catalog.resolve(name) or self._providers.resolve(name)

    def meant(self, name: str) -> Model | None:
        """The same for what people and clients ask for, who may also write a name as it is pulled."""
        return self.resolve(name) or among(name, self._catalog.models.values())

    def near(self, name: str) -> list[str]:
        """Up to three names like this one."""
        return [*self._catalog.near(name), *self._providers.near(name)][:3]

    @property
    def all(self) -> Mapping[str, Model]:
        """Names and aliases to models."""
        return {**self._providers.models, **self._catalog.names}

    @property
    def remote(self) -> tuple[Model, ...]:
        """The models of providers that no model of this machine hides."""
        self._look()
        return self._remote

    @property
    def hidden(self) -> tuple[str, ...]:
        """A sentence for each provider some of whose models cannot be asked for, their names being taken."""
        self._look()
        return self._hidden

    def _look(self) -> None:
        """There may be thousands of names, and snapshots are made often: look only at new ones."""
        local, remote = self._catalog.names, self._providers.models
        if self._seen is not None and self._seen[0] is local and self._seen[1] is remote:
            return
        self._seen = local, remote
        self._remote = tuple(model for name, model in remote.items() if name not in local)
        hidden: dict[str, list[str]] = {}
        for name, model in remote.items():
            if name in local:
                hidden.setdefault(model.provider, []).append(name)
        self._hidden = tuple(
            f"A model of this machine has the name {names[0]} and is used, not that of {provider}."
            + (f" The same holds for {len(names) - 1} more." if len(names) > 1 else "")
            for provider, names in hidden.items()
        )
