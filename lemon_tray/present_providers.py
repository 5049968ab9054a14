"""A row for each remote provider."""

from __future__ import annotations

from lemon_tray.names import plain
from lemon_tray.view import ProviderRow
from lemon_tray.words import counted, translate
from router.snapshot import ProviderView, Snapshot

NAME_CHARS = 32
PROBLEM_CHARS = 300


def provider_rows(snapshot: Snapshot) -> tuple[ProviderRow, ...]:
    """The providers, by name."""
    return tuple(_row(provider) for provider in snapshot.providers)


def _row(provider: ProviderView) -> ProviderRow:
    name = plain(provider.name, NAME_CHARS)
    state = _state(provider)
    problem = plain(provider.problem, PROBLEM_CHARS)
    spoken = translate("Providers", "Provider {name}: {state}").format(name=name, state=state)
    return ProviderRow(
        name=name,
        state=state,
        problem=problem,
        is_error=provider.state in ("down", "refused"),
        accessible=f"{spoken}. {problem}" if problem else spoken,
    )


def _state(provider: ProviderView) -> str:
    match provider.state:
        case "ready":
            models = counted("Providers", "{count} models", provider.models, one="{count} model")
            parts = [models.format(count=provider.models)]
            if provider.in_use:
                running = counted("Providers", "{count} running", provider.in_use)
                parts.append(running.format(count=provider.in_use))
            return " · ".join(parts)
        case "checking":
            return translate("Providers", "Being looked at")
        case "refused":
            return translate("Providers", "Refuses the key")
        case _:
            return translate("Providers", "Does not answer")
