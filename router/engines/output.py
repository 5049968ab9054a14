"""What a worker prints: the last lines in memory, all of it in files of bounded size.

Nothing here blocks the loop: files are written by one thread.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import re
import threading
from collections import deque
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

#: Bytes of one line that are kept; longer ones are cut into pieces.
MAX_LINE: Final = 8192
#: Bytes of a log file at which a new one is begun; one older file is kept.
ROTATE_BYTES: Final = 1 << 20
#: Bytes that may wait for a slow disk; beyond this output is dropped from the files.
MAX_WAITING: Final = 4 << 20
#: Seconds to wait for the disk when closing.
CLOSE_S: Final = 2.0


class Lines:
    """Cuts a stream of bytes into lines. A line without end is cut at `MAX_LINE` bytes."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """The lines that are complete now."""
        pieces = (self._rest + data).split(b"\n")
        self._rest = pieces.pop()
        lines = [
            piece[at : at + MAX_LINE] for piece in pieces for at in range(0, max(len(piece), 1), MAX_LINE)
        ]
        while len(self._rest) >= MAX_LINE:
            lines.append(self._rest[:MAX_LINE])
            self._rest = self._rest[MAX_LINE:]
        return [_text(line) for line in lines]

    def end(self) -> list[str]:
        """The last line, if it had no end."""
        rest, self._rest = self._rest, b""
        return [_text(rest)] if rest else []


def _text(line: bytes) -> str:
    return line.rstrip(b"\r").decode("utf-8", "replace")


class Tail:
    """The last lines of a stream, at most `max_bytes` characters of them."""

    def __init__(self, max_bytes: int = 1 << 16) -> None:
        self._max = max_bytes
        self._size = 0
        self._lines: deque[str] = deque()

    def add(self, lines: list[str]) -> None:
        for line in lines:
            self._lines.append(line)
            self._size += len(line) + 1
        while self._size > self._max:
            self._size -= len(self._lines.popleft()) + 1

    @property
    def lines(self) -> tuple[str, ...]:
        return tuple(self._lines)


class LogFiles:
    """Log files in one folder, written by one thread that starts with the first line."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._queue: queue.SimpleQueue[tuple[str, bytes] | None] = queue.SimpleQueue()
        self._waiting = 0
        self._dropped = 0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._has_failed = False

    def path(self, name: str) -> Path:
        """The file for a model of that name."""
        plain = re.sub(r"[^\w.-]+", "_", name)[:80].strip(".") or "_"
        return self._folder / f"{plain}.log"

    def write(self, name: str, data: bytes) -> None:
        """Have it written. Never blocks: if the disk cannot keep up, output is dropped and counted."""
        with self._lock:
            if self._waiting > MAX_WAITING:
                self._dropped += len(data)
                return
            if self._dropped:
                data = b"[%d bytes of output left out: the disk is too slow]\n" % self._dropped + data
                self._dropped = 0
            self._waiting += len(data)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="worker-logs", daemon=True)
            self._thread.start()
        self._queue.put((name, data))

    async def aclose(self) -> None:
        """Write what waits and end the thread, within `CLOSE_S` seconds; a disk that hangs is left behind."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            await asyncio.to_thread(thread.join, CLOSE_S)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            name, data = item
            try:
                self._append(self.path(name), data)
            except OSError as error:
                if not self._has_failed:
                    log.warning("The output of workers cannot be kept in %s: %s", self._folder, error)
                self._has_failed = True
            with self._lock:
                self._waiting -= len(data)

    def _append(self, path: Path, data: bytes) -> None:
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            size = 0
            path.parent.mkdir(parents=True, exist_ok=True)
        if size and size + len(data) > ROTATE_BYTES:
            path.replace(path.with_suffix(".log.1"))
        with path.open("ab") as out:
            out.write(data)
