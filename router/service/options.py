"""The options of an explicit load, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from router.catalog.options import LoadOptions
from router.errors import BadRequest
from router.settings import schema

_KNOWN: Final = ("ctx_size", "parallel", "pinned")


def load_options(options: Mapping[str, Any]) -> tuple[LoadOptions, bool | None]:
    """What to load with, and whether to pin (None: leave the pin as it is).

    `ctx_size` and `parallel` have the ranges of the settings of the same name.

    Raises:
        BadRequest: naming the option and the expected form.
    """
    for key in options:
        if key not in _KNOWN:
            raise BadRequest(f"{key}: no such load option; known are {', '.join(_KNOWN)}", param=key)
    pinned = options.get("pinned")
    if pinned is not None and not isinstance(pinned, bool):
        raise BadRequest(f"pinned: expected true or false; got {schema.shown(pinned)}", param="pinned")
    asked = {
        key: schema.check(key, options[key])
        for key in ("ctx_size", "parallel")
        if options.get(key) is not None
    }
    return LoadOptions(ctx_size=asked.get("ctx_size") or None, parallel=asked.get("parallel")), pinned
