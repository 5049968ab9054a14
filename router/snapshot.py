"""The one immutable picture of the router that everything shown anywhere is drawn from.

Bytes are `int` bytes; `time` fields are Unix seconds; durations end in `_s`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

from msgspec import Struct


class Status(StrEnum):
    """The state of the whole, worst first: `error`, `warning`, `loading`, `ready`."""

    READY = "ready"
    LOADING = "loading"
    WARNING = "warning"
    ERROR = "error"


class ResidentState(StrEnum):
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    EVICTING = "evicting"


class DeviceState(StrEnum):
    OK = "ok"
    UNKNOWN = "unknown"


class Severity(StrEnum):
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class SegmentView(Struct, frozen=True):
    """One resident's share of one device. `reserved` is the part of `bytes` that has not arrived yet."""

    model: str
    bytes: int
    reserved: int = 0


class DeviceView(Struct, frozen=True):
    """One device. `total` and `free` are None while unknown; then `reason` says why.

    `ours` are bytes that residents hold, `reserved` bytes that loads in flight are still to take, `claimed`
    bytes that are being freed, or kept, for loads that wait, `others` what other programs hold, `margin` what
    admission keeps free, `available` what a further load could take now (None while unknown). A device that
    is not `usable` is there, but the engine cannot reach it: nothing is ever loaded on it.
    """

    id: str
    name: str
    label: str
    kind: str
    total: int | None
    free: int | None
    ours: int
    reserved: int
    others: int
    margin: int
    state: DeviceState
    reason: str = ""
    segments: tuple[SegmentView, ...] = ()
    usable: bool = True
    claimed: int = 0
    available: int | None = None


class ResidentView(Struct, frozen=True):
    """One model with a worker process. `progress` is 0..1 while loading, else None.

    `keep_alive_s` are the seconds after `last_use` at which it is unloaded; -1: it stays.
    """

    model: str
    type: str
    state: ResidentState
    bytes: int
    devices: dict[str, int]
    memberships: tuple[str, ...]
    pinned: bool
    in_use: int
    waiting: int
    slots: int
    last_use: float
    progress: float | None = None
    reason: str = ""
    stuck: bool = False
    pid: int | None = None
    backend_url: str | None = None
    launch_command: tuple[str, ...] = ()
    options: dict[str, Any] = {}
    tokens_per_s: float | None = None
    keep_alive_s: float = -1

    @property
    def is_busy(self) -> bool:
        return self.in_use > 0


class PolicyView(Struct, frozen=True):
    """One registered policy. `count` is the number of distinct local language models among its candidates;
    `problem` says that a model which it asks has no room beside them, "" while it has."""

    name: str
    enabled: bool
    candidates: tuple[str, ...]
    count: int
    default_model: str
    unresolved: tuple[str, ...] = ()
    problem: str = ""


class PoolView(Struct, frozen=True):
    """The pool of language models. A limit of -1 means unlimited.

    `room_for` is how many of the policies' candidates the memory of all devices holds at once; None while it
    is not known, or no policy names any.
    """

    autosize: bool
    configured_limit: int
    effective_limit: int
    candidate_floor: int
    loaded: int
    loading: int
    auto_evict: bool
    room_for: int | None = None

    @property
    def exceeds_configured(self) -> bool:
        """The pool may grow past what the user configured."""
        return self.configured_limit >= 1 and self.effective_limit > self.configured_limit

    @property
    def at_risk(self) -> bool:
        """It may, and nothing unloads idle models when other programs need the memory."""
        return self.autosize and self.exceeds_configured and not self.auto_evict

    @property
    def advisory(self) -> str:
        """What the risk is, in numbers, and the exact ways out; "" without a risk."""
        if not self.at_risk:
            return ""
        return (
            f"Up to {self.effective_limit} language models may stay loaded, because active policies name "
            f"{self.candidate_floor}; max_loaded_models says {self.configured_limit}. Idle models are not "
            "unloaded when other programs need the memory. For a hard limit set llm_pool_autosize=false; to "
            "unload idle models under pressure set auto_evict=true."
        )


class QueueView(Struct, frozen=True):
    waiting: int
    waiting_bytes: int
    by_model: dict[str, int]


class FeedEntry(Struct, frozen=True):
    """One decision or event: a machine-readable `code` and one plain sentence."""

    id: int
    time: float
    code: str
    message: str
    severity: Severity = Severity.INFO
    model: str | None = None
    device: str | None = None
    reason: str | None = None


class NoticeView(Struct, frozen=True):
    """A notice that is due and has not been told yet."""

    id: str
    title: str
    text: str


class ModelView(Struct, frozen=True):
    """One model of the catalog, loaded or not. `broken` says why it cannot be loaded.

    `needs` are bytes that loading it takes with its options, all devices together, 0 if unknown; `fits` tells
    whether the memory holds it at all, were nothing else loaded; None while unknown. `source` is where it was
    found: a folder's name, `Hugging Face`, `LM Studio` or `Ollama`. `options` are those of the catalog file.
    `foreign` says why the app does not delete its files: they are another's; "" if it can.
    """

    name: str
    type: str
    size_bytes: int
    context_length: int
    aliases: tuple[str, ...] = ()
    broken: str = ""
    needs: int = 0
    fits: bool | None = None
    source: str = ""
    options: dict[str, Any] = {}
    foreign: str = ""


class DeletionView(Struct, frozen=True):
    """What deleting a model takes away: the names of files with their folder, and bytes that get free."""

    model: str
    files: tuple[str, ...]
    freed: int


class EngineView(Struct, frozen=True):
    """An engine that is there, or that can be had.

    `id` is what the setting `engine` takes; `kind` is `embedded`, `build` (one that the app fetched), `found`
    (a llama-server of the user's) or `offer` (a build that suits this machine and is not here yet: `size` are
    the bytes to fetch). `backends` are what it can reach. `problem` says why it cannot be used.
    """

    id: str
    title: str
    kind: str
    version: str = ""
    path: str = ""
    backends: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    in_use: bool = False
    size: int = 0
    problem: str = ""


class ProviderView(Struct, frozen=True):
    """A remote provider.

    `state` is `checking` before the first look, `ready`, `down`, or `refused` (its key is not taken, or
    cannot be had); `problem` says what is wrong. `models` counts those that it has, `more` those that were
    left out. `key` tells where its key is kept: `keyring`, `file`, `variable` or `none`. `looked_at` is 0
    before the first look.
    """

    name: str
    url: str
    state: str
    problem: str = ""
    models: int = 0
    more: int = 0
    in_use: int = 0
    key: str = "none"
    looked_at: float = 0.0


class DownloadView(Struct, frozen=True):
    """A download under way or ended. `total` is None until the server tells it.

    `state` is `running`, `done`, `failed` or `cancelled`. `kind` is `model`, or "" for anything else. `stage`
    says what a running one does, such as `resolving`, `waiting`, `downloading` or `placing`, "" if that is
    plain. `per_s` are the bytes that came in a second lately, 0 while unknown.
    """

    name: str
    state: str
    done: int
    total: int | None
    error: str = ""
    kind: str = ""
    stage: str = ""
    per_s: float = 0.0


class UpdateView(Struct, frozen=True):
    """Whether there is a newer version, if the user wants to know.

    `version` is the newer one and `url` its page, "" for none; `checked` is when that was last asked, 0 for
    never; `problem` says why it cannot be known.
    """

    is_on: bool = False
    version: str = ""
    url: str = ""
    checked: float = 0.0
    problem: str = ""


class SuggestionView(Struct, frozen=True):
    """A well-known model to begin with.

    `name` is what it is pulled by; `about` is what it is for: `tiny`, `small`, `general`, `fast`, `reasoning`
    or `vision`. `needs` are bytes that loading it would take here, 0 while unknown; `fits` tells whether the
    memory holds it, were nothing else loaded; None while unknown. `here` tells that it was pulled already.
    """

    name: str
    title: str
    about: str
    size_bytes: int
    needs: int = 0
    fits: bool | None = None
    here: bool = False


#: Seconds that loads are told apart by.
LOAD_BOUNDS_S: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class LoadTimes(Struct, frozen=True):
    """How long loads took that came to their end: how many up to each of `LOAD_BOUNDS_S` and above the one
    before it, those above all bounds last; and the seconds of all together."""

    counts: tuple[int, ...] = (0,) * (len(LOAD_BOUNDS_S) + 1)
    total_s: float = 0.0


class Snapshot(Struct, frozen=True):
    """Everything, at one moment. A higher `generation` is a later picture of the same run.

    `scanned` tells whether the models have been looked for once; `problems` are faults of settings, policy
    and model files, one sentence each; `loop_lag_s` is the worst lag of the event loop in the last minute;
    `event_counts` has (code, reason, how many) of all feed entries since the start; `overridden` are settings
    that the file cannot decide, and what decides them: a variable's name, or the command line;
    `ollama_endpoint` is the second address that apps look for Ollama at, "" while there is none.
    """

    generation: int
    version: str
    status: Status
    endpoint: str
    uptime_s: float
    settings: dict[str, Any]
    pool: PoolView
    residents: tuple[ResidentView, ...] = ()
    devices: tuple[DeviceView, ...] = ()
    policies: tuple[PolicyView, ...] = ()
    models: tuple[ModelView, ...] = ()
    queue: QueueView = QueueView(0, 0, {})
    feed: tuple[FeedEntry, ...] = ()
    notices: tuple[NoticeView, ...] = ()
    downloads: tuple[DownloadView, ...] = ()
    suggestions: tuple[SuggestionView, ...] = ()
    update: UpdateView = UpdateView()
    engines: tuple[EngineView, ...] = ()
    effective_limits: dict[str, int] = {}
    paused: bool = False
    degraded: str = ""
    simulated: bool = False
    scanned: bool = False
    problems: tuple[str, ...] = ()
    loop_lag_s: float = 0.0
    event_counts: tuple[tuple[str, str, int], ...] = ()
    load_times: LoadTimes = LoadTimes()
    overridden: dict[str, str] = {}
    ollama_endpoint: str = ""
    providers: tuple[ProviderView, ...] = ()

    @property
    def failures(self) -> tuple[str, ...]:
        """A sentence for each model of which the last thing that happened was a failure."""
        last = {e.model: e for e in self.feed if e.code in ("load_failed", "worker_died", "ready", "admit")}
        return tuple(entry.message for entry in last.values() if entry.severity is Severity.ERROR)
