"""A registered policy, parsed."""

from __future__ import annotations

from msgspec import Struct


class Rule(Struct, frozen=True):
    """One rule: the first whose keywords occur in the prompt decides."""

    id: str
    keywords_any: tuple[str, ...]
    route_to: str


class Policy(Struct, frozen=True):
    """A `collection.router` document. `candidates` are as written: names or aliases of models."""

    name: str
    components: tuple[str, ...]
    candidates: tuple[str, ...]
    default_model: str
    rules: tuple[Rule, ...]
    enabled: bool = True
