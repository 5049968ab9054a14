"""Bytes and durations as people read them. Inside, bytes are `int` bytes and durations are seconds."""

from __future__ import annotations

import math
import re
from typing import Final

MIB: Final = 1 << 20
GIB: Final = 1 << 30
MAX_BYTES: Final = 1 << 50
"""The largest size that anybody may write."""

_UNITS: Final = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": MIB, "GIB": GIB, "TIB": 1 << 40}
_SIZE: Final = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,9})?) *([A-Za-z]*)")
_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
_NUMBER: Final = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}

NBSP: Final = "\N{NO-BREAK SPACE}"


def gib(count: int) -> str:
    """`9.1 GiB` for a number of bytes: one decimal, never GB for GiB, the unit off by a no-break space."""
    return f"{count / GIB:.1f}{NBSP}GiB"


def size(count: int) -> str:
    """`512 MiB` for a number of bytes: exact, in the largest unit that leaves a whole number."""
    for unit in ("TIB", "GIB", "MIB", "KIB"):
        if count and count % _UNITS[unit] == 0:
            return f"{count // _UNITS[unit]} {unit[0]}iB"
    return f"{count} B" if count else "0"


def parse_size(text: str) -> int:
    """Bytes of a size such as `24GiB`, `1.5 GiB` or `500MiB`; a number alone is bytes.

    Raises:
        ValueError: saying what is wrong and what is expected.
    """
    match = _SIZE.fullmatch(text.strip())
    unit = match[2].upper() if match else ""
    if match is None or unit not in _UNITS:
        wanted = "a size such as 24GiB or 500MiB"
        if match is not None and unit in ("KB", "MB", "GB", "TB", "K", "M", "G", "T"):
            wanted = f"{match[1]}{unit[0]}iB"
        raise ValueError(f"{text.strip()!r} is not a size: use {wanted}")
    number = float(match[1]) if "." in match[1] else int(match[1])
    size = int(number * _UNITS[unit])
    if size > MAX_BYTES:
        raise ValueError(f"{text.strip()!r} is more than {MAX_BYTES >> 40} TiB")
    return size


def parse_duration(text: str) -> float:
    """Seconds of a duration such as `90`, `5m`, `1h30m` or `-1`; a number alone is seconds.

    Raises:
        ValueError: it is none, or it is not finite.
    """
    plain = text.strip()
    sign = -1.0 if plain.startswith("-") else 1.0
    plain = plain.removeprefix("-")
    parts = _DURATION.findall(plain)
    if parts and "".join(number + unit for number, unit in parts) == plain:
        seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    elif _NUMBER.fullmatch(plain):
        seconds = float(plain)
    else:
        raise ValueError(f"{text.strip()!r} is not a duration")
    if not math.isfinite(seconds):
        raise ValueError(f"{text.strip()!r} is not a finite duration")
    return sign * seconds
