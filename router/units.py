"""Bytes and durations as people read them. Inside, bytes are `int` bytes and durations are seconds."""

from __future__ import annotations

from typing import Final

MIB: Final = 1 << 20
GIB: Final = 1 << 30

NBSP: Final = "\N{NO-BREAK SPACE}"


def gib(count: int) -> str:
    """`9.1 GiB` for a number of bytes: one decimal, never GB for GiB, the unit off by a no-break space."""
    return f"{count / GIB:.1f}{NBSP}GiB"
