"""The settings as rows: what is in force, what is not the default, what decides it. No Qt."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from lemon_tray.words import translate
from router.settings.schema import Applies, SettingInfo, describe, parse
from router.units import GIB, MIB, NBSP

LOGIN: Final = "start_at_login"
"""The one row that is no setting of the router: the desktop keeps it."""


LIVE: Final = "live"
NEXT_LOAD: Final = "next load"
RESTART: Final = "restart"


def kind_of(applies: Applies) -> str:
    """Which badge tells when a change acts."""
    return applies.value if applies in (Applies.NEXT_LOAD, Applies.RESTART) else LIVE


class SettingView(Struct, frozen=True):
    """One setting. `meaning` says what a special value means; `overridden` what decides over the file."""

    info: SettingInfo
    title: str
    help: str
    group: str
    kind: str
    value: Any
    value_text: str
    default_text: str
    meaning: str
    changed: bool
    overridden: str = ""

    @property
    def key(self) -> str:
        return self.info.key


class GroupView(Struct, frozen=True):
    name: str
    keys: tuple[str, ...]


@functools.cache
def login_info() -> SettingInfo:
    """The row for starting at login, in the shape of a setting."""
    return SettingInfo(
        key=LOGIN,
        title=translate("Settings", "Start at login"),
        help=translate("Settings", "Lemon Tray starts in the tray when you log in, without its panel."),
        group="Tray",
        applies=Applies.LIVE,
        type="bool",
        default=False,
        minimum=None,
        maximum=None,
    )


def size_parts(value: int) -> tuple[str, str]:
    """A size as number and unit: GiB where that is short, else MiB."""
    for unit, factor in (("GiB", GIB), ("MiB", MIB)):
        number = value / factor
        if value >= factor and round(number, 2) == number:
            return f"{number:g}", unit
    return f"{value / MIB:.6f}".rstrip("0").rstrip("."), "MiB"


def value_text(info: SettingInfo, value: Any) -> str:
    """A value as people read it."""
    match info.type:
        case "bool":
            return translate("Settings", "on") if value else translate("Settings", "off")
        case "list":
            return ", ".join(value) if value else translate("Settings", "none")
    if isinstance(value, int) and value in info.special:
        return translate("Schema", info.special[value])
    if info.type == "size":
        return NBSP.join(size_parts(value))
    return str(value)


def meaning(info: SettingInfo, value: Any) -> str:
    """What a number with a meaning of its own stands for; "" for all others."""
    return translate("Schema", info.special[value]) if info.type == "size" and value in info.special else ""


def read_value(info: SettingInfo, text: str) -> Any:
    """The value that was typed; words for special values count as these.

    Raises:
        BadRequest: naming the form that is expected.
    """
    typed = text.strip().casefold()
    for value, words in info.special.items():
        if typed in (words.casefold(), translate("Schema", words).casefold()):
            return value
    return parse(info.key, text)


def present_settings(
    settings: Mapping[str, Any], overridden: Mapping[str, str], starts_at_login: bool | None
) -> tuple[SettingView, ...]:
    """A row for each setting of the schema, in its order.

    Args:
        settings: the values in force by key.
        overridden: what decides a key in place of the file: a variable's name, or the command line.
        starts_at_login: None where the desktop has no such thing.
    """
    views = [_view(i, settings.get(i.key, i.default), overridden.get(i.key, "")) for i in describe()]
    if starts_at_login is not None:
        views.append(_view(login_info(), starts_at_login, ""))
    return tuple(views)


def _view(info: SettingInfo, value: Any, overridden: str) -> SettingView:
    value = tuple(value) if isinstance(value, list) else value
    return SettingView(
        info=info,
        title=translate("Schema", info.title),
        help=translate("Schema", info.help),
        group=translate("Schema", info.group),
        kind=kind_of(info.applies),
        value=value,
        value_text=value_text(info, value),
        default_text=value_text(info, info.default),
        meaning=meaning(info, value),
        changed=value != info.default and info.key != LOGIN,
        overridden=overridden,
    )


def groups(views: Iterable[SettingView]) -> tuple[GroupView, ...]:
    """The groups in the order in which they first appear."""
    found: dict[str, list[str]] = {}
    for view in views:
        found.setdefault(view.group, []).append(view.key)
    return tuple(GroupView(name, tuple(keys)) for name, keys in found.items())


def matches(view: SettingView, query: str) -> bool:
    """Every word of the query is in the title, the key or the help."""
    text = f"{view.title} {view.key} {view.help}".casefold()
    return all(word in text for word in query.casefold().split())


def marked(text: str, query: str) -> list[tuple[str, bool]]:
    """`text` in pieces; those that a word of `query` found are True."""
    low = text.casefold()
    if len(low) != len(text):  # some letters fold into two: then nothing is marked rather than the wrong
        return [(text, False)]
    hit = [False] * len(text)
    for word in query.casefold().split():
        at = low.find(word)
        while at >= 0:
            hit[at : at + len(word)] = [True] * len(word)
            at = low.find(word, at + 1)
    pieces: list[tuple[str, bool]] = []
    for letter, found in zip(text, hit, strict=True):
        if pieces and pieces[-1][1] is found:
            pieces[-1] = (pieces[-1][0] + letter, found)
        else:
            pieces.append((letter, found))
    return pieces


def waiting_for_restart(views: Sequence[SettingView], at_start: Mapping[str, Any]) -> list[str]:
    """The keys of changed settings that act only once the router starts again."""
    return [
        v.key
        for v in views
        if v.info.applies is Applies.RESTART
        and v.key in at_start
        and v.value != (tuple(at_start[v.key]) if isinstance(at_start[v.key], list) else at_start[v.key])
    ]
