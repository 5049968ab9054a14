"""`lemon-tray plan`: what loading a model would take, device by device, and whether it would be admitted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from router.cli.status import plain
from router.units import NBSP, gib

_COLUMNS: Final = (
    ("needed", "needed"),
    ("available", "available"),
    ("total", "total"),
    ("charged", "models"),
    ("reserved", "loading"),
    ("claimed", "kept"),
    ("others", "others"),
    ("margin", "margin"),
)
_PARTS: Final = (
    ("weights", "weights"),
    ("kv_cache", "KV cache"),
    ("compute", "compute"),
    ("projector", "projector"),
    ("overhead", "overhead"),
)
_VERDICTS: Final = {
    "loaded": "is loaded already",
    "fits": "fits",
    "evicts": "fits when others have gone",
    "waits": "would wait",
    "refused": "does not fit",
}


def render_plan(table: Mapping[str, Any]) -> str:
    """The answer of `POST /v1/plan` as text."""
    lines = [f"{plain(table['model'])} {_VERDICTS.get(table['verdict'], table['verdict'])}.{_how(table)}"]
    if table["verdict"] not in ("loaded", "fits"):
        lines.append(plain(table["reason"]))
    rows = [("", *(title for _, title in _COLUMNS))]
    notes: dict[int, str] = {}
    for device in table["devices"]:
        rows.append((plain(device["label"]), *(_size(device.get(key)) for key, _ in _COLUMNS)))
        parts = [f"{title} {gib(size)}" for key, title in _PARTS if (size := device["parts"].get(key))]
        if parts:
            notes[len(rows) - 1] = "  " + ", ".join(parts)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines.append("")
    for number, row in enumerate(rows):
        name, *numbers = row
        cells = [name.ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(numbers, widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
        if number in notes:
            lines.append(notes[number])
    if table.get("estimate"):
        lines += ["", "Weights and cache are an upper bound here."]
    return "\n".join(line.replace(NBSP, " ") for line in lines)


def _how(table: Mapping[str, Any]) -> str:
    """With which context, and how much of it on GPUs."""
    options: Mapping[str, Any] = table.get("options") or {}
    if not options:
        return ""
    layers = table["layers"]
    return f" (context {options['ctx_size']}, {layers['on_gpus']} of {layers['of']} layers on GPUs)"


def _size(value: int | None) -> str:
    return "?" if value is None else gib(value)
