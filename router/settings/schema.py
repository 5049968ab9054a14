"""Every setting, declared once.

The HTTP setter, the CLI, the settings window, the documentation table and the tray's controls are made from
this declaration: a field's type, default, range, title, help text, group and when a change acts.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

UNLIMITED = -1


class Applies(StrEnum):
    """When a change of a setting acts."""

    LIVE = "live"
    LIVE_MAY_EVICT = "live, may evict at once"
    NEXT_LOAD = "next load"
    RESTART = "restart"


def _about(title: str, help_text: str, group: str, applies: Applies, **limits: Any) -> Meta:
    return Meta(title=title, description=help_text, extra={"group": group, "applies": applies}, **limits)


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
    max_parallel_loads: Annotated[
        int,
        _about("Parallel loads", "How many models may load at the same time.", "Models", Applies.LIVE, ge=1, le=16),
    ] = 2
    load_stall_timeout_s: Annotated[
        int,
        _about(
            "Load stall limit",
            "Seconds without any progress after which a load is given up. There is no limit on a load's length.",
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
            "Address that the endpoint listens on. Anything but loopback needs allow_unauthenticated_lan.",
            "Endpoint",
            Applies.RESTART,
            min_length=1,
            max_length=255,
        ),
    ] = "127.0.0.1"
    port: Annotated[
        int,
        _about("Port", "Port of the endpoint; 0: any free one.", "Endpoint", Applies.RESTART, ge=0, le=65_535),
    ] = 13305
    allow_unauthenticated_lan: Annotated[
        bool,
        _about(
            "Serve the network without a key",
            "Let other machines use the endpoint although it asks for no key.",
            "Endpoint",
            Applies.RESTART,
        ),
    ] = False
    log_json: Annotated[
        bool,
        _about("JSON log", "Write the log as one JSON object a line.", "Log", Applies.RESTART),
    ] = False


class SettingInfo(Struct, frozen=True):
    """One setting, described for people and for programs that draw it."""

    key: str
    title: str
    help: str
    group: str
    applies: Applies
    type: str
    default: Any
    minimum: float | None
    maximum: float | None

    @property
    def environment(self) -> str:
        """The environment variable that overrides it."""
        return f"LEMON_TRAY_{self.key.upper()}"
