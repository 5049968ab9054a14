"""Every setting, declared once: its type, default and range, its texts, its group, and when a change acts.

The HTTP setter, the CLI, the settings window, the documentation table and the tray's controls are made from
this declaration, by way of `schema`.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

UNLIMITED = -1

#: Where releases are told of. Lemon Tray has no public home yet: whoever gives it one puts the address here.
RELEASE_FEED: Final = ""
#: Programs whose models can be used where they are.
MODEL_SOURCES: Final = ("huggingface", "lmstudio", "ollama")


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
