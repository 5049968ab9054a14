"""Headers kept on disk, so that a large collection of models is known at once after a restart."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from router.memory.header import ModelHeader, read_shards

log = logging.getLogger(__name__)

#: Changes when a header of the same file would be read differently.
FORMAT: Final = 2
MAX_FILES: Final = 10_000
MAX_ENTRY_BYTES: Final = 1 << 20
_SUFFIX: Final = ".header.json"
_PREFIX: Final = ".new-"
#: The folder is looked through for what is too much after so many new files, and after the first.
_TRIM_EVERY: Final = 64


class FileStamp(Struct, frozen=True):
    """What tells a file from a changed one: its real path, its size in bytes, its time in nanoseconds."""

    path: str
    size: int
    mtime_ns: int


class _Entry(Struct, frozen=True):
    format: int
    files: tuple[FileStamp, ...]
    header: ModelHeader


class HeaderStore:
    """Reads headers through a folder of its own. Every method blocks: call it in a thread; any thread may.

    Nothing in the folder is needed: it may be damaged or deleted at any time. About `limit` headers are kept,
    those looked up last.
    """

    def __init__(
        self,
        folder: Path,
        read: Callable[[Sequence[Path]], ModelHeader] = read_shards,
        limit: int = MAX_FILES,
    ) -> None:
        self._folder = folder
        self._read = read
        self._limit = max(limit, 1)
        self._trim_every = max(min(_TRIM_EVERY, limit // 8), 1)
        self._saved = 0
        self._has_failed = False
        self._known: dict[tuple[FileStamp, ...], ModelHeader] = {}
        self._lock = threading.Lock()

    def get(self, paths: Sequence[Path]) -> ModelHeader:
        """The header of a model that these files are, in order.

        Raises:
            ConfigError: a file cannot be read, or the files are no model; see `read_shards`.
            OSError: a file is not there.
        """
        stamps = _stamps(paths)
        with self._lock:
            known = self._known.pop(stamps, None)
            if known is not None:
                self._known[stamps] = known
                return known
        place = self._folder / _name(stamps)
        header = _load(place, stamps)
        if header is None:
            header = self._read(paths)
            # A file that changed meanwhile is read again the next time.
            if _stamps(paths) != stamps:
                return header
            self._save(place, _Entry(FORMAT, stamps, header))
        with self._lock:
            self._known[stamps] = header
            while len(self._known) > self._limit:
                del self._known[next(iter(self._known))]
        return header

    def _save(self, place: Path, entry: _Entry) -> None:
        """Write as a whole or not at all. A folder that cannot be written is no reason to fail."""
        raw = msgspec.json.encode(entry)
        if len(raw) > MAX_ENTRY_BYTES:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._folder, prefix=_PREFIX)
            try:
                with os.fdopen(handle, "wb") as out:
                    out.write(raw)
                os.replace(name, place)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(name)
                raise
            if self._saved % self._trim_every == 0:
                self._trim()
            self._saved += 1
        except OSError as error:
            if not self._has_failed:
                log.info("Headers are not kept in %s: %s", self._folder, error)
            self._has_failed = True
        else:
            self._has_failed = False

    def _trim(self) -> None:
        """Delete the files beyond the limit that were used longest ago."""
        entries: list[tuple[int, str]] = []
        with os.scandir(self._folder) as listing:
            for entry in listing:
                with contextlib.suppress(FileNotFoundError):
                    if entry.name.endswith(_SUFFIX) or entry.name.startswith(_PREFIX):
                        entries.append((entry.stat().st_mtime_ns, entry.path))
        for _, path in sorted(entries)[: max(len(entries) - self._limit, 0)]:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def _stamps(paths: Sequence[Path]) -> tuple[FileStamp, ...]:
    stamps = []
    for path in paths:
        found = os.stat(path)
        stamps.append(FileStamp(os.path.realpath(path), found.st_size, found.st_mtime_ns))
    return tuple(stamps)


def _name(stamps: tuple[FileStamp, ...]) -> str:
    """One file a model: a newer header of the same path takes the place of the older."""
    paths = "\0".join(stamp.path for stamp in stamps)
    return hashlib.sha256(os.fsencode(paths)).hexdigest()[:32] + _SUFFIX


def _load(place: Path, stamps: tuple[FileStamp, ...]) -> ModelHeader | None:
    """The header that is kept for just these files, if it is whole. It is marked as used."""
    try:
        with place.open("rb") as file:
            raw = file.read(MAX_ENTRY_BYTES + 1)
        entry = msgspec.json.decode(raw, type=_Entry)
    except (OSError, msgspec.DecodeError, RecursionError):
        return None
    if entry.format != FORMAT or entry.files != stamps:
        return None
    with contextlib.suppress(OSError):
        os.utime(place)
    return entry.header
