"""The policies as cards, what they decided last, and what one would decide. No Qt."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from lemon_tray.names import Clock, local_clock, plain
from lemon_tray.view import FeedRow
from lemon_tray.words import counted, translate
from router.snapshot import PolicyView, ResidentState, Snapshot

ROUTED: Final = frozenset({"route", "fallback"})
"""The feed's codes for what a policy decided."""

MAX_DECISIONS: Final = 50
MAX_STEPS: Final = 12


class PolicyCard(Struct, frozen=True):
    """One policy. `candidates` are names, each with what is known of it in brackets."""

    name: str
    label: str
    enabled: bool
    summary: str
    candidates: str
    unresolved: str
    switch_name: str


class DecisionView(Struct, frozen=True):
    """What a policy would decide: one sentence, and a line for each condition that was looked at."""

    title: str
    steps: tuple[str, ...]


def present_policies(snapshot: Snapshot) -> tuple[PolicyCard, ...]:
    """A card for each policy, those in force first."""
    states = {r.model: r.state for r in snapshot.residents}
    known = {m.name for m in snapshot.models}.union(*(m.aliases for m in snapshot.models))
    ordered = sorted(snapshot.policies, key=lambda p: (not p.enabled, p.name.casefold()))
    return tuple(_card(p, states, known) for p in ordered)


def _card(policy: PolicyView, states: Mapping[str, ResidentState], known: set[str]) -> PolicyCard:
    label = plain(policy.name, 60)
    count = counted(
        "Policies", "{count} local language models", policy.count, one="{count} local language model"
    ).format(count=policy.count)
    summary = translate("Policies", "{count} · default {model}").format(
        count=count, model=plain(policy.default_model, 60)
    )
    words = []
    for name in policy.candidates:
        if name in policy.unresolved:
            continue
        state = states.get(name)
        text = plain(name, 60)
        if state is ResidentState.LOADING:
            text = translate("Policies", "{model} (loading)").format(model=text)
        elif state is not None:
            text = translate("Policies", "{model} (loaded)").format(model=text)
        elif name not in known:
            text = translate("Policies", "{model} (elsewhere)").format(model=text)
        words.append(text)
    missing = ""
    if policy.unresolved:
        missing = translate("Policies", "Not found: {models}").format(
            models=", ".join(plain(m, 60) for m in policy.unresolved)
        )
    return PolicyCard(
        name=policy.name,
        label=label,
        enabled=policy.enabled,
        summary=summary,
        candidates=", ".join(words),
        unresolved=missing,
        switch_name=translate("Policies", "Policy {name} is in force").format(name=label),
    )


def decisions(snapshot: Snapshot, clock: Clock = local_clock) -> tuple[FeedRow, ...]:
    """What policies decided last, newest first."""
    found = [e for e in snapshot.feed if e.code in ROUTED]
    newest = sorted(found, key=lambda e: -e.id)[:MAX_DECISIONS]
    return tuple(FeedRow(e.id, clock(e.time), plain(e.message, 300), e.severity) for e in newest)


def present_decision(told: Mapping[str, Any]) -> DecisionView:
    """A decision of the router in words."""
    target = plain(str(told.get("route_to", "")), 80)
    rule = plain(str(told.get("matched_rule") or ""), 80)
    if told.get("default_used") or not rule:
        title = translate("Policies", "Goes to {model}: no rule matched, so the default.").format(
            model=target
        )
    else:
        title = translate("Policies", "Goes to {model} by the rule {rule}.").format(model=target, rule=rule)
    steps = []
    trace = list(told.get("trace") or ())
    for step in trace[:MAX_STEPS]:
        condition = step.get("condition")
        text = condition if isinstance(condition, str) else json.dumps(condition, ensure_ascii=False)
        result = step.get("result")
        if result is True:
            word = translate("Policies", "yes: {condition}")
        elif result is False:
            word = translate("Policies", "no: {condition}")
        else:
            word = translate("Policies", "unclear: {condition}")
        line = word.format(condition=plain(str(text), 160))
        if step.get("error"):
            line = f"{line} ({plain(str(step['error']), 120)})"
        steps.append(line)
    if len(trace) > MAX_STEPS:
        rest = len(trace) - MAX_STEPS
        steps.append(counted("Policies", "and {count} more", rest).format(count=rest))
    return DecisionView(title, tuple(steps))
