"""`models`: the models and policies that apps can ask for, by the names that they go by."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any, Final

from router.cli.client import TIMEOUT_S, NotRunning
from router.cli.context import Context
from router.cli.progress import shown_size
from router.cli.status import plain, snapshots
from router.snapshot import ModelView, PolicyView, ResidentView, Snapshot

_HEAD: Final = ("name", "type", "file", "context", "takes", "")


def add_commands(commands: Any) -> argparse.ArgumentParser:
    """Add `models` to the commands; returns its parser."""
    models: argparse.ArgumentParser = commands.add_parser(
        "models", help="list the models and policies that can be asked for"
    )
    models.add_argument("--json", action="store_true", help="as JSON, as GET /v1/models answers")
    models.set_defaults(command=_models)
    return models


def _models(context: Context, arguments: argparse.Namespace) -> int:
    client = context.client()
    if arguments.json:
        print(json.dumps(client.get("/v1/models"), indent=2))
        return 0
    for snapshot in snapshots(client, timeout_s=TIMEOUT_S):
        print(render_models(snapshot))
        return 0
    raise NotRunning(f"The connection to {client.url} ended.")


def render_models(snapshot: Snapshot) -> str:
    """A line for each model and each policy, below a line that names the columns."""
    residents = {resident.model: resident for resident in snapshot.residents}
    rows = [
        *(_model(model, residents.get(model.name)) for model in snapshot.models),
        *(_policy(policy) for policy in snapshot.policies),
    ]
    if not rows:
        return "There is no model. To fetch a small one: lemon-tray pull demo"
    table = [_HEAD, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(_HEAD))]
    lines = [*_lines(table, widths)]
    if snapshot.providers:
        lines.append("Those of providers: lemon-tray provider list --models")
    return "\n".join(lines)


def _lines(table: list[tuple[str, ...]], widths: list[int]) -> Iterator[str]:
    for name, kind, *sizes, note in table:
        cells = [name.ljust(widths[0]), kind.ljust(widths[1])]
        cells += [size.rjust(width) for size, width in zip(sizes, widths[2:], strict=False)]
        yield "  ".join([*cells, note]).rstrip()


def _model(model: ModelView, resident: ResidentView | None) -> tuple[str, ...]:
    note = ""
    if model.broken:
        note = f"cannot be loaded: {model.broken}"
    elif resident is not None:
        note = f"{resident.state}{', pinned' if resident.pinned else ''}"
    elif model.fits is False:
        note = "does not fit"
    return (
        plain(model.name),
        model.type,
        plain(shown_size(model.size_bytes)),
        str(model.context_length or ""),
        plain(shown_size(model.needs)) if model.needs else "",
        plain(note),
    )


def _policy(policy: PolicyView) -> tuple[str, ...]:
    found = [name for name in policy.candidates if name not in policy.unresolved]
    note = f"one of {', '.join((*found, *(f'{name} (not found)' for name in policy.unresolved)))}"
    if policy.problem:
        note += f"; {policy.problem}"
    return plain(policy.name), "policy", "", "", "", plain(note if policy.enabled else f"off; {note}")
