"""From settings files of older versions to this one's: one method a step, run in order.

A file says by `config_version` how its keys are meant; one that does not say is of version 0. What a step
does not know, it keeps. A file of a newer version is read for what it has in common with this one, and keeps
its number and its keys, so that going back and forth between versions loses nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from router.settings.files import write_atomically

VERSION_KEY: Final = "config_version"

#: Copies of one file and version that are kept.
MOST_COPIES: Final = 10

#: A step changes the keys of one version, in place, into those of the next.
Step = Callable[[dict[str, Any]], None]


class Migrations:
    """The steps. `STEPS[n]` makes version n + 1 of version n."""

    @staticmethod
    def to_1(raw: dict[str, Any]) -> None:
        """Nothing but the number is new: the keys of version 1 mean what they meant before."""


STEPS: Final[Sequence[Step]] = (Migrations.to_1,)


class Migrated(Struct, frozen=True):
    """What became of a file.

    Attributes:
        raw: the keys as this version means them, with the version to write.
        found: the version that the file had.
        changed: keys other than the version are different now, so that the file should be written.
        newer: the file is of a newer version than this program knows.
        problem: what is wrong with the version, "" for nothing.
    """

    raw: dict[str, Any]
    found: int
    changed: bool
    newer: bool
    problem: str = ""


def migrate(raw: Mapping[str, Any], steps: Sequence[Step] = STEPS) -> Migrated:
    """Bring the contents of a file to this version. The given mapping stays as it is."""
    current = len(steps)
    version = raw.get(VERSION_KEY, 0)
    if isinstance(version, bool) or not isinstance(version, int) or version < 0:
        # The next write puts the number right.
        return Migrated(
            {**raw, VERSION_KEY: current},
            current,
            False,
            False,
            f"{VERSION_KEY}: expected a number of 0 or more; got {json.dumps(version)}; "
            f"the file is read as of version {current}",
        )
    if version > current:
        return Migrated(
            dict(raw),
            version,
            False,
            True,
            f"{VERSION_KEY}: written by a newer version of the program ({version}, and this one knows "
            f"{current}); what this one does not know is kept",
        )
    keys = {key: value for key, value in raw.items() if key != VERSION_KEY}
    before = dict(keys)
    for step in steps[version:]:
        step(keys)
    return Migrated({VERSION_KEY: current, **keys}, version, keys != before, False)


def back_up(path: Path, version: int, data: bytes, *, once: bool = False) -> Path:
    """Keep a copy of a settings file beside it before another version writes to it. Blocks.

    Returns the copy: `NAME.vN.bak`, or one with a number where another such copy is; with `once` any that is
    there will do. There are `MOST_COPIES` at most: the oldest but the first makes room for the next.

    Raises:
        OSError: there is no copy, so the file must not be written.
    """
    free: Path | None = None
    ages: dict[Path, float] = {}
    for count in range(1, MOST_COPIES + 1):
        number = f"-{count}" if count > 1 else ""
        copy = path.with_name(f"{path.name}.v{version}{number}.bak")
        try:
            if copy.read_bytes() == data or once:
                return copy
            ages[copy] = copy.stat().st_mtime
        except FileNotFoundError:
            free = free or copy
    if free is None:
        free = min(list(ages)[1:], key=ages.__getitem__)
    write_atomically(free, data)
    return free
