"""What the panel and the menu show, as plain frozen data: the presenter makes it, widgets draw it.

Texts are final and translated. In a text, backticks enclose a key or value to be set in monospace.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from msgspec import Struct

from router.snapshot import Severity, Status


class Kind(StrEnum):
    """What a command asks for. The first group goes to the router, the second to the app itself."""

    SET = "set"
    LOAD = "load"
    UNLOAD = "unload"
    PLAN_DELETION = "plan_deletion"
    DELETE = "delete"
    FREE_ALL = "free_all"
    PIN = "pin"
    PAUSE = "pause"
    GET_DEMO = "get_demo"
    PULL = "pull"
    CANCEL_DOWNLOAD = "cancel_download"
    TELL_NOTICE = "tell_notice"
    REFRESH_ENGINES = "refresh_engines"
    GET_ENGINE = "get_engine"
    USE_ENGINE = "use_engine"
    REMOVE_ENGINE = "remove_engine"
    ENABLE_POLICY = "enable_policy"

    ADD_FOLDER = "add_folder"
    DISMISS = "dismiss"
    NEXT_BANNER = "next_banner"
    RETRY_START = "retry_start"
    RESTART = "restart"
    START_AT_LOGIN = "start_at_login"
    OPEN_FILE = "open_file"
    OPEN_PAGE = "open_page"
    OPEN_WINDOW = "open_window"
    OPEN_PANEL = "open_panel"
    OPEN_MENU = "open_menu"
    COPY = "copy"
    QUIT = "quit"


class Command(Struct, frozen=True):
    """One thing a user can ask for.

    `target` is a setting, a model, a download or a banner; `value` goes with it.
    """

    kind: Kind
    target: str = ""
    value: Any = None


class BannerKind(StrEnum):
    """Worst first; a banner of a worse kind hides the others."""

    ERROR = "error"
    NOTICE = "notice"
    WARNING = "warning"
    INFO = "info"


class Option(Struct, frozen=True):
    """A banner's button, with what it sets (`key`) and what that does (`effect`) beside it."""

    label: str
    command: Command
    key: str = ""
    effect: str = ""
    menu_label: str = ""
    primary: bool = False
    glyph: str = ""

    @property
    def accessible(self) -> str:
        """Label and effect, for a screen reader."""
        return ", ".join(part for part in (self.label, self.key, self.effect) if part)


class Progress(Struct, frozen=True):
    """How far something is: `fraction` 0..1, or None while its size is unknown."""

    fraction: float | None
    text: str


class Banner(Struct, frozen=True):
    """At most one is shown; `more` further ones wait behind it."""

    id: str
    kind: BannerKind
    title: str
    text: str
    options: tuple[Option, ...] = ()
    footer: str = ""
    progress: Progress | None = None
    more: int = 0


class Mark(Struct, frozen=True):
    """The lemon slice: its state and, while loading, how many of six segments are full."""

    status: Status
    sixths: int = 6


class Head(Struct, frozen=True):
    title: str
    endpoint: str
    mark: Mark
    accessible: str


class SegmentKind(StrEnum):
    MODEL = "model"
    MORE = "more"
    OTHERS = "others"
    CLAIM = "claim"
    FREE = "free"


class Segment(Struct, frozen=True):
    """One stretch of a bar.

    `number` chooses colour and pattern; `reserved` of `bytes` have not arrived yet.
    """

    key: str
    kind: SegmentKind
    label: str
    bytes: int
    value: str
    number: int = -1
    reserved: int = 0
    note: str = ""
    tip: tuple[str, ...] = ()
    accessible: str = ""


class Bar(Struct, frozen=True):
    """One device. `total` is None while unknown: then `reason` stands in the bar.

    `note` stands below; `claim` says what is held back for loads that wait.
    """

    id: str
    title: str
    label: str
    used: str
    total_text: str
    total: int | None
    segments: tuple[Segment, ...]
    margin: int
    margin_tip: str
    reason: str
    accessible: str
    compact: bool = False
    note: str = ""
    claim: str = ""


class Slot(Struct, frozen=True):
    """One place in the pool. `number` is the model's in it, or None."""

    number: int | None
    loading: bool
    within_limit: bool
    unlimited: bool = False


class PoolRow(Struct, frozen=True):
    label: str
    text: str
    count: str


class Pool(Struct, frozen=True):
    """The pool of language models. Marks stand after slot `limit_at` and under the end of slot `floor_at`."""

    slots: tuple[Slot, ...]
    limit_at: int | None
    floor_at: int | None
    loaded: str
    room: str
    limit: str
    floor: str
    details_name: str
    rows: tuple[PoolRow, ...]
    total: PoolRow | None
    remarks: tuple[str, ...]
    accessible: str

    @property
    def line(self) -> str:
        """The sentence without its signs."""
        return " · ".join((self.loaded, self.room, self.limit, self.floor))


class ModelRow(Struct, frozen=True):
    """A resident, or a model whose last load failed. `progress` is 0..1 while loading."""

    model: str
    label: str
    number: int
    state: str
    size: str
    size_of: str
    rate: str
    pinned: bool
    loading: bool
    progress: float | None
    is_error: bool
    can_unload: bool
    pin_name: str
    unload_name: str
    load_name: str
    failed: bool = False


class Controls(Struct, frozen=True):
    """The values in force. `max_loaded` is -1 for no limit."""

    autosize: bool
    auto_evict: bool
    max_loaded: int


class FeedRow(Struct, frozen=True):
    id: int
    time: str
    text: str
    severity: Severity


class MenuModel(Struct, frozen=True):
    """A resident's entry in the menu."""

    model: str
    label: str
    detail: str
    pinned: bool
    loading: bool


class MenuView(Struct, frozen=True):
    """What the menu has beyond the panel's own parts."""

    status: tuple[str, ...]
    residents: tuple[MenuModel, ...]
    loadable: tuple[tuple[str, str], ...]
    tooltip: str
    curl: str
    paused: bool = False


class ProviderRow(Struct, frozen=True):
    """A remote provider: its name, how it does, and what is wrong ("" if nothing is)."""

    name: str
    state: str
    problem: str
    is_error: bool
    accessible: str


class PanelView(Struct, frozen=True):
    """Everything the panel and the menu show at one moment."""

    generation: int
    head: Head
    banner: Banner | None
    bars: tuple[Bar, ...]
    devices_note: str
    pool: Pool
    models: tuple[ModelRow, ...]
    models_note: str
    controls: Controls
    feed: tuple[FeedRow, ...]
    menu: MenuView
    providers: tuple[ProviderRow, ...] = ()
