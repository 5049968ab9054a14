"""What an explicit load asks for, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from router.catalog.options import NO_OPTIONS, LoadOptions, apply_options, check_options
from router.errors import BadRequest
from router.settings.schema import shown

_ABOUT_THE_LOAD: Final = ("pinned", "save_options")


class Asked(Struct, frozen=True):
    """Attributes:
    options: what to load with; the rest is left to the model's own options and the settings.
    pinned: whether to pin; None leaves the pin as it is.
    save: the model's options from now on, for the options file; None to keep nothing.
    """

    options: LoadOptions = NO_OPTIONS
    pinned: bool | None = None
    save: LoadOptions | None = None


def load_options(given: Mapping[str, Any], base: LoadOptions = NO_OPTIONS) -> Asked:
    """Check the options of a load. `base` are the model's own, which they must not contradict.

    Raises:
        BadRequest: naming the option and the expected form.
    """
    flags: dict[str, bool | None] = {}
    for key in _ABOUT_THE_LOAD:
        value = given.get(key)
        if value is not None and not isinstance(value, bool):
            raise BadRequest(
                f"{key}: expected true or false; got {shown(value)}", code="invalid_option", param=key
            )
        flags[key] = value
    options = {key: value for key, value in given.items() if key not in _ABOUT_THE_LOAD}
    together = apply_options(base, options)
    return Asked(
        options=check_options(options) if options else NO_OPTIONS,
        pinned=flags["pinned"],
        save=together if flags["save_options"] else None,
    )
