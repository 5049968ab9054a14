"""Unpacking archives that may be hostile: nothing lands outside the folder, and no more than is allowed."""

from __future__ import annotations

import gzip
import io
import os
import re
import stat
import tarfile
import threading
import unicodedata
import zipfile
import zlib
from pathlib import Path
from typing import IO, Final, Protocol

from msgspec import Struct

BLOCK: Final = 1 << 20
#: What a tar header with its extensions, or a link's target, may take.
_HEADER_LIMIT: Final = 1 << 20
_LINK_LIMIT: Final = 4096
_DEPTH: Final = 16
_DRIVE: Final = re.compile(r"[A-Za-z]:")
_DEVICES: Final = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)


class Limits(Struct, frozen=True):
    """What an archive may hold: entries of any kind, and bytes of files, unpacked."""

    entries: int = 20_000
    size: int = 8 << 30


class BadArchive(ValueError):
    """An archive that is damaged, or holds what it must not; the text says which, after `it`."""


class Abandoned(Exception):
    """Unpacking was told to end."""


class _Source(Protocol):
    def read(self, size: int, /) -> bytes: ...


def unpack(
    archive: Path, into: Path, cancelled: threading.Event | None = None, limits: Limits | None = None
) -> int:
    """Unpack a `.zip` or `.tar.gz` into an empty folder; returns the bytes of its files. Blocks.

    What it is, its first bytes tell, not its name. Files get their run bits, and no other special bits;
    links are made last, so that nothing is ever written through one. On any error the folder holds a part
    of the archive: throw it away.

    Raises:
        BadArchive: it is damaged, too large, or has an entry that is no file, folder or link within it.
        Abandoned: `cancelled` was set meanwhile.
        OSError: it could not be written.
    """
    target = _Target(into, cancelled or threading.Event(), limits or Limits())
    with archive.open("rb") as file:
        magic = file.read(4)
        file.seek(0)
        try:
            if magic[:2] == b"PK":
                _unpack_zip(file, target)
            elif magic[:2] == b"\x1f\x8b":
                _unpack_tar(file, target)
            else:
                raise BadArchive("is neither a zip nor a tar.gz file")
        except (tarfile.TarError, zipfile.BadZipFile, zlib.error, gzip.BadGzipFile, EOFError) as error:
            raise BadArchive(f"is damaged ({error})") from error
        except UnicodeError as error:
            raise BadArchive("has a name that cannot be written here") from error
        except (NotImplementedError, RuntimeError) as error:
            raise BadArchive(f"is packed in a way that is not known here ({error})") from error
    target.finish()
    return target.size


def safe_parts(name: str) -> tuple[str, ...]:
    """The parts of a path within an archive, or within a folder that was unpacked from one.

    Raises:
        BadArchive: it leads outside, or is no name on every system.
    """
    text = name.replace("\\", "/")
    parts = tuple(part for part in text.split("/") if part not in ("", "."))
    if text.startswith("/") or _DRIVE.match(text) or ".." in parts:
        raise BadArchive(f"names {_shown(name)}, which leads out of its folder")
    if len(parts) > _DEPTH:
        raise BadArchive(f"names {_shown(name)}, which lies too deep")
    for part in parts:
        if any(ord(char) < 32 or char == ":" for char in part) or _DEVICES.fullmatch(part):
            raise BadArchive(f"names {_shown(name)}, which is no name on every system")
    return parts


class _Target:
    """The folder that is filled."""

    def __init__(self, root: Path, cancelled: threading.Event, limits: Limits) -> None:
        self._root = root
        self._cancelled = cancelled
        self._limits = limits
        self._entries = 0
        self._files: dict[tuple[str, ...], Path] = {}
        self._links: list[tuple[Path, str]] = []
        self.size = 0

    def folder(self, name: str) -> None:
        self._count()
        self._root.joinpath(*self._parts(name)).mkdir(parents=True, exist_ok=True)

    def file(self, name: str, source: _Source, size: int, *, executable: bool) -> None:
        path = self._new(name, size)
        with path.open("xb") as file:
            left = size
            while left:
                if self._cancelled.is_set():
                    raise Abandoned
                block = source.read(min(left, BLOCK))
                if not block:
                    raise BadArchive("is cut short")
                file.write(block)
                left -= len(block)
            file.flush()
            os.fsync(file.fileno())
        path.chmod(0o755 if executable else 0o644)

    def copy(self, name: str, of: str) -> None:
        """A file that the archive holds once and names twice."""
        first = self._files.get(_key(safe_parts(of)))
        if first is None:
            raise BadArchive(f"names {_shown(name)}, a link to what is not in it")
        status = first.stat()
        with first.open("rb") as source:
            self.file(name, source, status.st_size, executable=bool(status.st_mode & 0o100))

    def link(self, name: str, to: str) -> None:
        # Neither an entry nor a link's target has a step upwards: so no chain of links can lead out.
        target = safe_parts(to)
        if not target:
            raise BadArchive(f"names {_shown(name)}, a link to nothing")
        self._links.append((self._new(name, 0), os.path.join(*target)))

    def finish(self) -> None:
        for path, to in self._links:
            try:
                path.symlink_to(to)
            except FileExistsError as error:
                raise BadArchive(f"has two entries of the name {_shown(path.name)}") from error

    def _new(self, name: str, size: int) -> Path:
        self._count()
        parts = self._parts(name)
        if not parts:
            raise BadArchive("has a file without a name")
        key = _key(parts)
        if key in self._files:
            raise BadArchive(f"has two entries of the name {_shown(name)}")
        self.size += size
        if size < 0 or self.size > self._limits.size:
            raise BadArchive(f"holds more than {self._limits.size >> 20} MiB")
        path = self._files[key] = self._root.joinpath(*parts)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise BadArchive(f"has a file where {_shown(name)} needs a folder") from error
        return path

    def _count(self) -> None:
        if self._cancelled.is_set():
            raise Abandoned
        self._entries += 1
        if self._entries > self._limits.entries:
            raise BadArchive(f"holds more than {self._limits.entries} entries")

    def _parts(self, name: str) -> tuple[str, ...]:
        parts = safe_parts(name)
        if any(_key(parts[:end]) in self._files for end in range(1, len(parts))):
            raise BadArchive(f"has a file where {_shown(name)} needs a folder")
        return parts


def _key(parts: tuple[str, ...]) -> tuple[str, ...]:
    """Equal for names that some file system takes for the same."""
    return tuple(unicodedata.normalize("NFC", part).casefold() for part in parts)


def _shown(name: str) -> str:
    return ascii(name[:80])


def _unpack_zip(file: IO[bytes], target: _Target) -> None:
    with zipfile.ZipFile(file) as archive:
        for entry in archive.infolist():
            mode = entry.external_attr >> 16
            kind = stat.S_IFMT(mode)
            if entry.is_dir():
                target.folder(entry.filename)
                continue
            if kind not in (0, stat.S_IFREG, stat.S_IFLNK):
                raise BadArchive(f"names {_shown(entry.filename)}, which is no file")
            with archive.open(entry) as packed:
                if kind == stat.S_IFLNK:
                    target.link(entry.filename, _link_text(packed))
                else:
                    target.file(entry.filename, packed, entry.file_size, executable=bool(mode & 0o111))


def _link_text(packed: IO[bytes]) -> str:
    text = packed.read(_LINK_LIMIT + 1)
    if len(text) > _LINK_LIMIT:
        raise BadArchive("has a link that is too long")
    return os.fsdecode(text)


class _Metered(io.RawIOBase):
    """An unpacked stream that gives no more than is allowed, whatever its lengths claim."""

    def __init__(self, source: _Source) -> None:
        self._source = source
        self._left = 0

    def allow(self, size: int) -> None:
        self._left = size

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        data = self._source.read(max(size, 0))
        self._left -= len(data)
        if self._left < 0:
            raise BadArchive("has more between its files than belongs there")
        return data


def _unpack_tar(file: IO[bytes], target: _Target) -> None:
    with gzip.GzipFile(fileobj=file, mode="rb") as unzipped:
        metered = _Metered(unzipped)
        metered.allow(_HEADER_LIMIT)
        with tarfile.open(fileobj=metered, mode="r|", bufsize=16 * tarfile.BLOCKSIZE) as archive:
            while (entry := archive.next()) is not None:
                metered.allow(entry.size + _HEADER_LIMIT)
                _take(archive, entry, target)
                # tarfile remembers every entry; the limit on entries keeps that small.
                metered.allow(_HEADER_LIMIT)


def _take(archive: tarfile.TarFile, entry: tarfile.TarInfo, target: _Target) -> None:
    if entry.isdir():
        target.folder(entry.name)
    elif entry.issym():
        target.link(entry.name, entry.linkname)
    elif entry.islnk():
        target.copy(entry.name, entry.linkname)
    elif entry.isreg():
        content = archive.extractfile(entry)
        assert content is not None
        with content:
            target.file(entry.name, content, entry.size, executable=bool(entry.mode & 0o111))
    else:
        raise BadArchive(f"names {_shown(entry.name)}, which is no file")
