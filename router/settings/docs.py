"""Writes the table of settings: `python -m router.settings.docs` prints docs/settings.md."""

from __future__ import annotations

import sys
from typing import Final

from router.settings.schema import Applies, SettingInfo, describe, written

INTRODUCTION: Final = """\
# Settings

<!-- Written by `python -m router.settings.docs > docs/settings.md`. -->

Settings are kept in `config.json`: on Linux in `~/.config/lemon-tray/`, or under `$XDG_CONFIG_HOME`. Only
what you changed is in it. Change them in the tray's settings window, with `lemon-tray config set KEY=VALUE`,
over HTTP with `POST /internal/set`, or by editing the file; every way checks the value, and a refused change
changes nothing.

An environment variable goes before the file, and a switch of `lemon-tray serve` before both. What they set
cannot be changed while the router runs.

A file that is no JSON is set aside as `config.json.corrupt-TIME`, and the defaults are used. A wrong value
gives way to its default, and unknown keys are kept; both are reported, with the expected form or the nearest
known name.

`config_version` says how the keys are meant. A file of an older version is brought up to date at the start,
and a copy of it kept as `config.json.vN.bak`. A file of a newer version is read for what is known, reported,
and copied before the first change; its other keys and its number stay.
"""

GROUPS: Final = {
    Applies.LIVE_MAY_EVICT: (
        "Live, may evict at once",
        "A change acts at once, on models that are loaded already too: it may unload some of them.",
    ),
    Applies.LIVE: ("Live", "A change acts at once and unloads nothing."),
    Applies.NEXT_LOAD: ("Next load", "A change acts on models that are loaded after it."),
    Applies.RESTART: ("Restart", "A change acts when the router is started the next time."),
}


def text() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for applies, (title, meaning) in GROUPS.items():
        infos = [info for info in describe() if info.applies is applies]
        if not infos:
            continue
        parts.append(f"## {title}\n\n{meaning}\n")
        rows = ["| key | value | default | meaning | variable |", "| --- | --- | --- | --- | --- |"]
        rows += [_row(info) for info in infos]
        parts.append("\n".join(rows) + "\n")
    return "\n".join(parts)


def _row(info: SettingInfo) -> str:
    cells = (
        f"`{info.key}`",
        info.expected,
        f"`{default}`" if (default := written(info.key, info.default)) else "empty",
        f"{info.title}. {info.help}",
        f"`{info.environment}`",
    )
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    sys.stdout.write(text())
