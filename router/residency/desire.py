"""Desired state: what the settings, the policies and the catalog ask for, as one immutable value."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct

from router.catalog.model import LLM, TYPES, Model, spelled
from router.policy.document import Policy
from router.settings.schema import UNLIMITED, Settings


class PolicyDesire(Struct, frozen=True):
    """What one policy asks for.

    `candidates` are the distinct models that its candidates resolve to; `count` is how many of them are
    local language models; `unresolved` are the candidates, as written, that no model answers to.
    """

    name: str
    enabled: bool
    candidates: tuple[str, ...]
    count: int
    default_model: str
    unresolved: tuple[str, ...]
    helpers: tuple[str, ...]


class Desired(Struct, frozen=True):
    """Limits, floor and policies, computed together and published together.

    `limits` holds the effective limit of the standard pool of each type; -1 is unlimited.
    """

    settings: Settings
    models: Mapping[str, Model]
    policies: tuple[PolicyDesire, ...]
    floor: int
    limits: Mapping[str, int]
    helpers: frozenset[str]

    def limit(self, model_type: str) -> int:
        return self.limits.get(model_type, self.settings.max_loaded_models)

    def keep_s(self, asked: float | None) -> float:
        """For how many seconds a model stays when it is idle; negative: for ever.

        `asked`: what its client or its options say.
        """
        return self.settings.evict_idle_timeout_s if asked is None else asked

    @property
    def unresolved(self) -> tuple[tuple[str, str], ...]:
        """(policy, candidate) of every candidate of an active policy that resolves to nothing."""
        return tuple((p.name, c) for p in self.policies if p.enabled for c in p.unresolved)


def desire(
    settings: Settings,
    policies: Iterable[Policy],
    lookup: Mapping[str, Model],
    resident: Mapping[str, str],
) -> Desired:
    """What should be, from what is configured.

    Args:
        lookup: names and aliases to models (`by_every_name`).
        resident: models with a process, name to type. A candidate that has left the catalog counts for as
            long as it is still resident.
    """
    asked = tuple(_policy_desire(policy, lookup, resident) for policy in policies)
    floor = len(
        {name for p in asked if p.enabled for name in p.candidates if _is_local_llm(name, lookup, resident)}
    )
    configured = settings.max_loaded_models
    limits = dict.fromkeys(TYPES, configured)
    if settings.llm_pool_autosize and configured != UNLIMITED:
        limits[LLM] = max(configured, floor)
    return Desired(
        settings=settings,
        models={model.name: model for model in lookup.values()},
        policies=asked,
        floor=floor,
        limits=limits,
        helpers=frozenset(h for p in asked if p.enabled for h in p.helpers),
    )


def _policy_desire(policy: Policy, lookup: Mapping[str, Model], resident: Mapping[str, str]) -> PolicyDesire:
    candidates, unresolved = _resolve(policy.candidates, lookup, resident)
    return PolicyDesire(
        name=policy.name,
        enabled=policy.enabled,
        candidates=candidates,
        count=sum(_is_local_llm(name, lookup, resident) for name in candidates),
        default_model=policy.default_model,
        unresolved=unresolved,
        helpers=_resolve(policy.helpers, lookup, resident)[0],
    )


def _resolve(
    written: Iterable[str], lookup: Mapping[str, Model], resident: Collection[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    found: dict[str, None] = {}
    missing: dict[str, None] = {}
    for name in written:
        model = lookup.get(spelled(name))
        if model is not None:
            found[model.name] = None
            continue
        missing[name] = None
        if name in resident:
            found[name] = None
    return tuple(found), tuple(missing)


def _is_local_llm(name: str, lookup: Mapping[str, Model], resident: Mapping[str, str]) -> bool:
    model = lookup.get(name)
    if model is None:
        return resident.get(name) == LLM
    return model.type == LLM and not model.remote
