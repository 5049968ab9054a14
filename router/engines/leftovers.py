"""Records of running workers, so that those that outlived their router can be found and ended.

One small file a worker. A process is known by its id together with the time it started: an id that has been
given to another program since is never touched. Everything here blocks: call it in a thread.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

log = logging.getLogger(__name__)

#: Seconds that a leftover gets to end when asked, and when killed.
TERMINATE_S: Final = 2.0
KILL_S: Final = 3.0
_POLL_S: Final = 0.02
SYSTEM: Final[str] = sys.platform


class Record(Struct, frozen=True):
    """A worker and the router that started it, each with the time it started."""

    pid: int
    started: str
    router_pid: int
    router_started: str


def started(pid: int) -> str | None:
    """When a process started, as a text that differs between boots; None if that cannot be told."""
    try:
        if SYSTEM == "linux":
            fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
            if fields[0] in ("Z", "X"):
                return None
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
            return f"{boot}/{fields[19]}"
        if SYSTEM == "darwin":
            shown = subprocess.run(
                ["/bin/ps", "-o", "lstart=", "-p", str(pid)],
                capture_output=True,
                text=True,
                timeout=5,
                check=False,
                env={"LC_ALL": "C"},
            )
            return shown.stdout.strip() or None
    except (OSError, IndexError, subprocess.TimeoutExpired):
        return None
    return None


class Leftovers:
    """The records in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, pid: int) -> None:
        """Record a worker of this process."""
        begun, own = started(pid), started(os.getpid())
        if begun is None or own is None:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            record = msgspec.json.encode(Record(pid, begun, os.getpid(), own))
            self._path(pid).write_bytes(record)
        except OSError as error:
            log.warning("Worker %d cannot be recorded: %s", pid, error)

    def remove(self, pid: int) -> None:
        """Forget a worker that has ended."""
        try:
            self._path(pid).unlink(missing_ok=True)
        except OSError as error:
            log.warning("The record of worker %d cannot be removed: %s", pid, error)

    def reap(self) -> tuple[int, ...]:
        """End every recorded worker whose router has ended, and forget it. Returns the ids of those ended.

        Workers of a router that still runs are left alone.
        """
        ended: list[int] = []
        for path, record in self._records():
            if record is not None:
                if started(record.router_pid) == record.router_started:
                    continue
                if started(record.pid) == record.started:
                    log.warning("Worker %d outlived its router and is ended", record.pid)
                    if not _end(record):
                        log.error("Worker %d of an earlier run cannot be ended", record.pid)
                        continue
                    ended.append(record.pid)
            path.unlink(missing_ok=True)
        return tuple(ended)

    def _records(self) -> Iterator[tuple[Path, Record | None]]:
        for path in sorted(self._folder.glob("worker-*.json")):
            try:
                yield path, msgspec.json.decode(path.read_bytes(), type=Record)
            except (OSError, msgspec.MsgspecError) as error:
                log.warning("%s is not a record of a worker: %s", path, error)
                yield path, None

    def _path(self, pid: int) -> Path:
        return self._folder / f"worker-{pid}.json"


def _end(record: Record) -> bool:
    """Terminate, then kill. A worker leads its own group, so signals go to the group."""
    for number, limit_s in ((signal.SIGTERM, TERMINATE_S), (signal.SIGKILL, KILL_S)):
        if started(record.pid) != record.started:
            return True
        try:
            os.killpg(record.pid, number)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            if started(record.pid) != record.started:
                return True
            time.sleep(_POLL_S)  # noqa: TID251  # runs in a thread, and these are no children of ours to wait on
    return False
