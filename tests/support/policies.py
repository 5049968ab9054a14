"""Documents of routing policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def document(name: str, candidates: Sequence[str], /, *helpers: str, **routing: Any) -> dict[str, Any]:
    """A policy's document; the first candidate is the default one.

    `helpers` are components besides the candidates. `routing` is the rest of its routing, such as `rules`, or
    what is to stand there instead.
    """
    return {
        "version": "1",
        "recipe": "collection.router",
        "model_name": name,
        "components": [*candidates, *helpers],
        "routing": {"candidates": list(candidates), "default_model": candidates[0], **routing},
    }
