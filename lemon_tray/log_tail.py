"""The end of a log file, as it grows. No Qt; what reads blocks, and is called off the loop."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from msgspec import Struct

FIRST_BYTES: Final = 256 << 10
MOST_BYTES: Final = 1 << 20
_LEVEL: Final = re.compile(r'^\S+ (DEBUG|INFO|WARNING|ERROR|CRITICAL) |"level": ?"(\w+)"')
_RANKS: Final = {"DEBUG": 0, "INFO": 0, "WARNING": 1, "ERROR": 2, "CRITICAL": 2}


class Place(Struct, frozen=True):
    """How far a file has been read: its identity, and the byte after the last whole line."""

    file: int
    offset: int


class News(Struct, frozen=True):
    """Whole lines that are new, oldest first. `fresh` tells that they follow nothing that was read before."""

    lines: tuple[str, ...]
    place: Place | None
    fresh: bool


def read_news(path: Path, place: Place | None) -> News:
    """What came into the file since `place`; without one, its last lines.

    A file that was rotated or cut is read from its beginning. One that is not there has no news.

    Raises:
        OSError: it is there and cannot be read.
    """
    try:
        with path.open("rb") as file:
            state = os.fstat(file.fileno())
            fresh = place is None or place.file != state.st_ino or state.st_size < place.offset
            start = 0 if fresh or place is None else place.offset
            skip = place is None and state.st_size > FIRST_BYTES
            start = max(start, state.st_size - (FIRST_BYTES if place is None else MOST_BYTES))
            file.seek(start)
            data = file.read(state.st_size - start)
    except FileNotFoundError:
        return News((), place, False)
    whole = data.rfind(b"\n") + 1
    lines = data[:whole].decode("utf-8", "replace").split("\n")[:-1]
    if skip:
        lines = lines[1:]  # its beginning was not read
    return News(tuple(lines), Place(state.st_ino, start + whole), fresh)


def rank_of(line: str) -> int:
    """0 for an ordinary line, 1 for a warning, 2 for an error."""
    found = _LEVEL.search(line)
    if found is None:
        return 0
    return _RANKS.get((found[1] or found[2] or "").upper(), 0)


def wanted(line: str, query: str, rank: int) -> bool:
    """The line is at least of that rank and has every word of the query."""
    if rank_of(line) < rank:
        return False
    low = line.casefold()
    return all(word in low for word in query.casefold().split())
