"""Looking at other processes."""

from __future__ import annotations

from pathlib import Path


def is_running(pid: int) -> bool:
    """Whether the process exists and has not ended; one that ended and was not reaped has."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"
