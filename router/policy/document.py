"""A registered policy, parsed."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class Rule(Struct, frozen=True):
    """One rule: the first whose keywords occur in the prompt decides. `outputs` go into the decision."""

    id: str
    keywords_any: tuple[str, ...]
    route_to: str
    outputs: dict[str, Any] = {}


class Policy(Struct, frozen=True):
    """A `collection.router` document. `candidates` are as written: names or aliases of models;
    `helpers` are the models that its classifiers ask."""

    name: str
    components: tuple[str, ...]
    candidates: tuple[str, ...]
    default_model: str
    rules: tuple[Rule, ...]
    enabled: bool = True
    helpers: tuple[str, ...] = ()
