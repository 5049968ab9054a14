"""Every setting, declared once.

The HTTP setter, the CLI, the settings window, the documentation table and the tray's controls are made from
this declaration: a field's type, default, range, title, help text, group and when a change acts.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
import types
import typing
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from router.errors import BadRequest, near_matches
from router.units import parse_size, size

UNLIMITED = -1

#: Where releases are told of. Lemon Tray has no public home yet: whoever gives it one puts the address here.
RELEASE_FEED: Final = ""
MODEL_SOURCES: Final = ("huggingface", "lmstudio", "ollama")
"""Programs whose models can be used where they are."""
ENV_PREFIX: Final = "LEMON_TRAY_"
API_KEY_VARIABLE: Final = "LEMON_TRAY_API_KEY"
#: Of a provider that is being added; a command reads it.
PROVIDER_KEY_VARIABLE: Final = "LEMON_TRAY_PROVIDER_KEY"
"""Not a setting: an API key that is valid besides those in the file."""


class Applies(StrEnum):
    """When a change of a setting acts."""

    LIVE = "live"
    LIVE_MAY_EVICT = "live, may evict at once"
    NEXT_LOAD = "next load"
    RESTART = "restart"


def _about(
    title: str,
    help_text: str,
    group: str,
    applies: Applies,
    *,
    special: Mapping[int, str] = types.MappingProxyType({}),
    least: int | None = None,
    unit: str = "",
    items: str = "folder",
    **limits: Any,
) -> Meta:
    """A field's description.

    `special` are values with a meaning of their own; `least` is where the ordinary range begins, if that is
    above `ge`: what lies between is allowed only if it is special. With the unit `size` it is a number of
    bytes that may also be written as a text such as `512MiB`. `items` says what a list is of.
    """
    extra = {
        "group": group,
        "applies": applies,
        "special": dict(special),
        "least": least,
        "unit": unit,
        "items": items,
    }
    return Meta(title=title, description=help_text, extra=extra, **limits)


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """The values in force. Immutable: a change makes a new one."""

    llm_pool_autosize: Annotated[
        bool,
        _about(
            "Autosize the pool",
            "Room for every language model that the active policies name, even beyond max_loaded_models. "
            "Off: max_loaded_models holds at once, for models already loaded too.",
            "Pool",
            Applies.LIVE_MAY_EVICT,
        ),
    ] = True
    max_loaded_models: Annotated[
        int,
        _about(
            "Max loaded models",
            "How many models of one type may stay loaded: 1 or more, or -1 for no limit.",
            "Pool",
            Applies.LIVE_MAY_EVICT,
            special={UNLIMITED: "no limit"},
            least=1,
            ge=-1,
            le=1024,
        ),
    ] = 1
    auto_evict: Annotated[
        bool,
        _about(
            "Auto-evict",
            "Unload idle models when a device is short of memory, whoever took it.",
            "Pool",
            Applies.LIVE_MAY_EVICT,
        ),
    ] = False
    auto_evict_threshold_pct: Annotated[
        float,
        _about(
            "Auto-evict threshold",
            "The share of a device's memory in use above which idle models are unloaded, 0.5 to 0.99.",
            "Pool",
            Applies.LIVE_MAY_EVICT,
            ge=0.5,
            le=0.99,
        ),
    ] = 0.90
    evict_idle_timeout_s: Annotated[
        int,
        _about(
            "Unload when idle",
            "Seconds after the last answer until an idle model is unloaded; 0: when idle; -1: never.",
            "Pool",
            Applies.LIVE_MAY_EVICT,
            special={-1: "never", 0: "when idle"},
            least=1,
            ge=-1,
            le=31_536_000,
        ),
    ] = 1800
    ctx_size: Annotated[
        int,
        _about(
            "Context size",
            "Context in tokens; 0: the model's own, at most 16384.",
            "Models",
            Applies.NEXT_LOAD,
            special={0: "the model's own, at most 16384"},
            least=1,
            ge=0,
            le=1 << 24,
        ),
    ] = 0
    parallel: Annotated[
        int,
        _about(
            "Parallel requests",
            "Slots of each model; they share its context.",
            "Models",
            Applies.NEXT_LOAD,
            ge=1,
            le=64,
        ),
    ] = 1
    admission: Annotated[
        Literal["wait", "reject", "proceed"],
        _about(
            "When memory is short",
            "wait: queue until there is room. reject: answer 503 at once while loads or busy models are in "
            "the way. proceed: load anyway, with a line in the log.",
            "Memory",
            Applies.LIVE,
        ),
    ] = "wait"
    vram_margin: Annotated[
        int,
        _about(
            "Keep free",
            "Memory that loads leave free on each device.",
            "Memory",
            Applies.LIVE,
            unit="size",
            ge=0,
            le=1 << 45,
        ),
    ] = 512 << 20
    vram_cap: Annotated[
        int,
        _about(
            "At most for models",
            "Memory that models may take on each device, all together; 0: no cap.",
            "Memory",
            Applies.LIVE,
            unit="size",
            special={0: "no cap"},
            least=1,
            ge=0,
            le=1 << 45,
        ),
    ] = 0
    worker_overhead: Annotated[
        int,
        _about(
            "Overhead of a worker",
            "Memory that each worker takes on each GPU before it loads anything.",
            "Memory",
            Applies.NEXT_LOAD,
            unit="size",
            ge=0,
            le=1 << 40,
        ),
    ] = 512 << 20
    unknown_device: Annotated[
        Literal["proceed", "refuse"],
        _about(
            "When a device cannot be read",
            "proceed: count only what models of this app hold on it. refuse: load nothing there.",
            "Memory",
            Applies.LIVE,
        ),
    ] = "proceed"
    allow_partial_offload: Annotated[
        bool,
        _about(
            "Allow partial offload",
            "A model too large for the GPUs is loaded with as many layers there as fit, and the rest on the "
            "host.",
            "Memory",
            Applies.LIVE,
        ),
    ] = True
    engine: Annotated[
        str,
        _about(
            "Engine",
            "auto, embedded, the name of a GPU build, or the path of a llama-server.",
            "Engine",
            Applies.NEXT_LOAD,
            min_length=1,
            max_length=4096,
        ),
    ] = "auto"
    max_parallel_loads: Annotated[
        int,
        _about(
            "Parallel loads",
            "How many models may load at the same time.",
            "Models",
            Applies.LIVE,
            ge=1,
            le=16,
        ),
    ] = 2
    load_stall_timeout_s: Annotated[
        int,
        _about(
            "Load stall limit",
            "Seconds without any progress after which a load is given up; its length has no limit.",
            "Models",
            Applies.NEXT_LOAD,
            ge=5,
            le=86_400,
        ),
    ] = 120
    models_dirs: Annotated[
        tuple[str, ...],
        _about(
            "Model folders",
            "Folders with GGUF files, besides the app's own.",
            "Models",
            Applies.LIVE,
        ),
    ] = ()
    model_sources: Annotated[
        tuple[str, ...],
        _about(
            "Other programs' models",
            "Programs whose models are listed and used where they are; nothing is changed there.",
            "Models",
            Applies.LIVE,
            items="source",
        ),
    ] = MODEL_SOURCES
    load_queue_timeout_s: Annotated[
        int,
        _about(
            "Queue limit",
            "Seconds that a request may wait for its model to be admitted before it is answered 503.",
            "Queue",
            Applies.LIVE,
            ge=1,
            le=86_400,
        ),
    ] = 540
    max_queue: Annotated[
        int,
        _about("Waiting requests", "How many requests may wait.", "Queue", Applies.LIVE, ge=1, le=100_000),
    ] = 512
    max_queue_bytes: Annotated[
        int,
        _about(
            "Waiting bytes",
            "How many bytes of request bodies may wait, all together.",
            "Queue",
            Applies.LIVE,
            ge=1 << 20,
            le=1 << 40,
        ),
    ] = 1 << 30
    helper_wait_s: Annotated[
        int,
        _about(
            "Helper wait",
            "Seconds that a routing helper may wait for its model before the policy's on_error decides.",
            "Queue",
            Applies.LIVE,
            ge=1,
            le=3600,
        ),
    ] = 20
    host: Annotated[
        str,
        _about(
            "Address",
            "Address that the endpoint listens on. Anything but loopback needs an API key, or "
            "allow_unauthenticated_lan.",
            "Endpoint",
            Applies.RESTART,
            min_length=1,
            max_length=255,
        ),
    ] = "127.0.0.1"
    port: Annotated[
        int,
        _about(
            "Port",
            "Port of the endpoint; 0: any free one.",
            "Endpoint",
            Applies.RESTART,
            special={0: "any free port"},
            least=1,
            ge=0,
            le=65_535,
        ),
    ] = 13305
    ollama_port: Annotated[
        int,
        _about(
            "Port for Ollama's apps",
            "A second port, reached from this machine only, for apps that look for Ollama at 11434; 0: none. "
            "One that is taken is left alone and reported.",
            "Endpoint",
            Applies.LIVE,
            special={0: "none"},
            least=1,
            ge=0,
            le=65_535,
        ),
    ] = 0
    allow_unauthenticated_lan: Annotated[
        bool,
        _about(
            "Serve the network without a key",
            "Let other machines use the endpoint although it asks for no key.",
            "Endpoint",
            Applies.RESTART,
        ),
    ] = False
    require_api_key: Annotated[
        bool,
        _about(
            "Ask every program for a key",
            "Programs on this machine need an API key, too. Other machines need one in any case.",
            "Endpoint",
            Applies.LIVE,
        ),
    ] = False
    allowed_hosts: Annotated[
        tuple[str, ...],
        _about(
            "Further host names",
            "Names, besides localhost and the endpoint's address, under which requests may address the "
            "endpoint, such as desk.local.",
            "Endpoint",
            Applies.LIVE,
            items="host",
        ),
    ] = ()
    cors_origins: Annotated[
        tuple[str, ...],
        _about(
            "Web origins",
            "Web pages and extensions that may use the endpoint, such as http://localhost:3000 or "
            "vscode-webview://*. None may change settings.",
            "Endpoint",
            Applies.LIVE,
            items="origin",
        ),
    ] = ()
    log_json: Annotated[
        bool,
        _about("JSON log", "Write the log as one JSON object a line.", "Log", Applies.RESTART),
    ] = False
    update_check: Annotated[
        bool,
        _about(
            "Look for updates",
            "Ask update_feed once a day whether there is a newer version, and tell of it once. Nothing is "
            "downloaded or installed.",
            "Updates",
            Applies.LIVE,
        ),
    ] = False
    update_feed: Annotated[
        str,
        _about(
            "Release feed",
            "The https address of a JSON list of releases; empty: there is none to ask.",
            "Updates",
            Applies.LIVE,
            min_length=0,
            max_length=2000,
        ),
    ] = RELEASE_FEED


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
