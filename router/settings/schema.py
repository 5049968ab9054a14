"""The settings as their declaration has them: described for people and programs, checked, read, written."""

from __future__ import annotations

import functools
import json
import math
import os
import re
import typing
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from router.errors import BadRequest, near_matches
from router.settings.declaration import MODEL_SOURCES, RELEASE_FEED, UNLIMITED, Applies, Settings
from router.units import parse_size, size

__all__ = [
    "API_KEY_VARIABLE",
    "ENV_PREFIX",
    "MODEL_SOURCES",
    "PROVIDER_KEY_VARIABLE",
    "RELEASE_FEED",
    "UNLIMITED",
    "Applies",
    "SettingInfo",
    "Settings",
    "apply",
    "as_dict",
    "check",
    "defaults",
    "describe",
    "info_of",
    "nearest",
    "parse",
    "shown",
    "written",
]

ENV_PREFIX: Final = "LEMON_TRAY_"
#: No settings: an API key that is valid besides those in the file, and one of a provider that is added.
API_KEY_VARIABLE: Final = "LEMON_TRAY_API_KEY"
PROVIDER_KEY_VARIABLE: Final = "LEMON_TRAY_PROVIDER_KEY"


class SettingInfo(Struct, frozen=True):
    """One setting, described for people and for programs that draw it.

    Attributes:
        applies: when a change acts.
        type: `bool`, `int`, `size` (bytes), `float`, `str`, `choice` or `list` (of texts).
        choices: the values of a choice.
        items: what a list is of: `folder`, `source`, `host` or `origin`.
        minimum, maximum: the limits of a number, both allowed; of a text, its length.
        special: numbers with a meaning of their own, such as -1 for no limit. They lie within the limits.
        least: where the ordinary range begins, if above `minimum`; below it only `special` is allowed.
    """

    key: str
    title: str
    help: str
    group: str
    applies: Applies
    type: str
    default: Any
    minimum: float | None
    maximum: float | None
    special: Mapping[int, str] = {}
    least: int | None = None
    choices: tuple[str, ...] = ()
    items: str = ""

    @property
    def environment(self) -> str:
        """The environment variable that overrides it."""
        return f"{ENV_PREFIX}{self.key.upper()}"

    @property
    def expected(self) -> str:
        """The form of a value, in words: `a whole number from 1 to 1024, or -1 for no limit`."""
        match self.type:
            case "bool":
                return "true or false"
            case "choice":
                return ", ".join(self.choices[:-1]) + f" or {self.choices[-1]}"
            case "size":
                words = ["a size such as 512MiB or 2GiB"]
                words += [f"{value} for {meaning}" for value, meaning in self.special.items()]
                return ", or ".join(words)
            case "list":
                return _LISTS[self.items]
            case "str":
                return f"a text of {self.minimum:.0f} to {self.maximum:.0f} characters"
            case "float":
                return f"a number from {self.minimum} to {self.maximum}"
        low = self.least if self.least is not None else self.minimum
        words = [f"a whole number from {low:.0f} to {self.maximum:.0f}"]
        words += [f"{value} for {meaning}" for value, meaning in self.special.items()]
        return ", or ".join(words)


_LISTS: Final = {
    "folder": "a list of full folder paths",
    "source": f"a list of any of {', '.join(MODEL_SOURCES)}",
    "host": "a list of host names or addresses, without a port",
    "origin": "a list of origins such as http://localhost:3000 or vscode-webview://*",
}
_HOST: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?|[0-9A-Fa-f:.]{2,45}")
# A scheme of the web names one place; one of an app may leave it open, as some make up a new one each time.
_ORIGIN: Final = re.compile(
    r"https?://([A-Za-z0-9_.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?"
    r"|(?!(?:https?|file|data|blob|javascript):)[A-Za-z][A-Za-z0-9+.-]{0,40}://(\*|[A-Za-z0-9_.-]{1,253})(:[0-9]{1,5})?"
)
_TYPE_NAMES: Final = {bool: "bool", int: "int", float: "float", str: "str", tuple[str, ...]: "list"}


@functools.cache
def describe() -> tuple[SettingInfo, ...]:
    """Every setting, in the order of the declaration."""
    hints = typing.get_type_hints(Settings, include_extras=True)
    return tuple(
        _info(field.name, field.default, hints[field.name]) for field in msgspec.structs.fields(Settings)
    )


def _info(key: str, default: Any, hint: Any) -> SettingInfo:
    plain, meta = typing.get_args(hint)
    extra = meta.extra
    choices = typing.get_args(plain) if typing.get_origin(plain) is Literal else ()
    return SettingInfo(
        key=key,
        title=meta.title,
        help=meta.description,
        group=extra["group"],
        applies=extra["applies"],
        type="choice" if choices else extra["unit"] or _TYPE_NAMES[plain],
        default=default,
        minimum=meta.ge if meta.ge is not None else meta.min_length,
        maximum=meta.le if meta.le is not None else meta.max_length,
        special=extra["special"],
        least=extra["least"],
        choices=choices,
        items=extra["items"] if plain == tuple[str, ...] else "",
    )


@functools.cache
def _by_key() -> dict[str, SettingInfo]:
    return {info.key: info for info in describe()}


def info_of(key: str) -> SettingInfo:
    """The description of one setting.

    Raises:
        BadRequest: there is no such setting; the message names the nearest.
    """
    found = _by_key().get(key)
    if found is None:
        near = nearest(key)
        advice = f" (did you mean {near}?)" if near else ""
        raise BadRequest(f"{key}: no such setting{advice}", code="unknown_setting", param=key)
    return found


def nearest(key: str) -> str | None:
    """The known setting whose name is most like this one, if any is."""
    found = near_matches(str(key).lower(), _by_key())
    return found[0] if found else None


def check(key: str, value: Any) -> Any:
    """The value in the form that `Settings` holds, if it is one that the setting takes.

    Nothing is converted but a list to a tuple, a whole number to a float and a size to bytes: other text is
    never read as a number here, `true` is never 1, and 8080.0 is no whole number.

    Raises:
        BadRequest: naming the key, the expected form and the value given.
    """
    info = info_of(key)
    accepted = _accept(info, value)
    if accepted is None:
        raise BadRequest(
            f"{key}: expected {info.expected}; got {shown(value)}{_advice(info, value)}",
            code="invalid_setting",
            param=key,
        )
    return accepted


def _advice(info: SettingInfo, value: Any) -> str:
    """What is wrong with the form of a size, such as another unit."""
    if info.type == "size" and isinstance(value, str):
        try:
            parse_size(value)
        except ValueError as error:
            return f" ({error})"
    return ""


def _accept(info: SettingInfo, value: Any) -> Any | None:
    match info.type:
        case "bool":
            return value if isinstance(value, bool) else None
        case "int":
            if not isinstance(value, int) or isinstance(value, bool):
                return None
            return value if value in info.special or _within(info, value) else None
        case "size":
            try:
                count = parse_size(value) if isinstance(value, str) else value
            except ValueError:
                return None
            if not isinstance(count, int) or isinstance(count, bool):
                return None
            return count if count in info.special or _within(info, count) else None
        case "choice":
            return value if value in info.choices else None
        case "float":
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not _within(info, value):
                return None
            return float(value)
        case "str":
            if value == "" and info.minimum == 0:
                return value
            if not isinstance(value, str) or not _clean(value) or not _within(info, len(value)):
                return None
            return value
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
        return None
    if not all(_clean(item) and _is_item(info.items, item) for item in value):
        return None
    return tuple(dict.fromkeys(value))


def _is_item(kind: str, item: str) -> bool:
    match kind:
        case "source":
            return item in MODEL_SOURCES
        case "host":
            return _HOST.fullmatch(item) is not None
        case "origin":
            return _ORIGIN.fullmatch(item) is not None
    return os.path.isabs(item) or item.startswith("~")


def _within(info: SettingInfo, value: float) -> bool:
    # Not a number compares false with everything, so it falls outside here.
    low = info.least if info.least is not None else info.minimum
    return (low is None or value >= low) and (info.maximum is None or value <= info.maximum)


def _clean(text: str) -> bool:
    """Printable, and writable as UTF-8."""
    return text.isprintable() and bool(text.strip())


def shown(value: Any) -> str:
    """A value as a message shows it: JSON, cut short."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}infinity"
    text = json.dumps(value, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."


def written(key: str, value: Any) -> str:
    """The value of a setting as people write it: `512 MiB`, `wait`, `true`, `["/models"]`; `parse` takes it.

    Raises:
        BadRequest: there is no such setting.
    """
    if info_of(key).type == "size" and isinstance(value, int):
        return size(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def parse(key: str, text: str) -> Any:
    """The value of a setting written as text: on a command line or in an environment variable.

    Switches take true/false, yes/no, on/off, 1/0; lists take a JSON list, or paths with the system's path
    separator between them, or other items with commas; an empty text is an empty list.

    Raises:
        BadRequest: as `check`.
    """
    info = info_of(key)
    value: Any = text
    stripped = text.strip()
    try:
        match info.type:
            case "bool":
                value = {"true": True, "yes": True, "on": True, "1": True}.get(
                    stripped.lower(),
                    {"false": False, "no": False, "off": False, "0": False}.get(stripped.lower(), text),
                )
            case "int" | "size" if re.fullmatch(r"[+-]?[0-9]{1,19}", stripped):
                value = int(stripped)
            case "float":
                value = float(stripped)
            case "list" if stripped.startswith("["):
                value = json.loads(stripped)
            case "list":
                # An origin has colons of its own.
                between = os.pathsep if info.items == "folder" else ","
                value = [item for part in text.split(between) if (item := part.strip())]
    except ValueError:
        value = text
    return check(key, value)


def apply(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """The settings with these changes: all of them, or none.

    Raises:
        BadRequest: naming every key at fault; `param` is the first.
    """
    accepted: dict[str, Any] = {}
    faults: list[BadRequest] = []
    for key, value in changes.items():
        try:
            accepted[key] = check(key, value)
        except BadRequest as fault:
            faults.append(fault)
    if faults:
        raise BadRequest(
            " | ".join(fault.message for fault in faults), code=faults[0].code, param=faults[0].param
        )
    return msgspec.structs.replace(settings, **accepted)


def as_dict(settings: Settings) -> dict[str, Any]:
    """Key to value, in the order of the declaration, ready for JSON."""
    return {
        key: list(v) if isinstance(v, tuple) else v for key, v in msgspec.structs.asdict(settings).items()
    }


def defaults() -> dict[str, Any]:
    """Key to default."""
    return as_dict(Settings())
