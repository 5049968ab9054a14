"""Walking through the places where models may be. Everything here blocks: it runs in a thread."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from router.catalog import ollama
from router.catalog.places import Place, PlaceKind

# Levels below a folder that are looked through. The Hugging Face cache needs four.
MAX_DEPTH: Final = 8
SUFFIX: Final = ".gguf"
# A folder changed so lately may change again within one tick of its clock; it is looked through once more.
RECENT_NS: Final = 2_000_000_000

_HUB_PREFIX: Final = "models--"
#: Longer than any revision's name.
_REF_BYTES: Final = 256

Stamp = tuple[int, ...]


class Found(Struct, frozen=True):
    """A file that is named like a model.

    `stat` is of the file that a link leads to; None if there is none, and then `fault` says why. Of a file in
    the Hugging Face cache `repo` is `owner/name`, and `inside` its folder within the revision.
    """

    path: Path
    is_link: bool
    stat: os.stat_result | None
    fault: str = ""
    place: Place | None = None
    repo: str = ""
    inside: str = ""


class Stored(Struct, frozen=True):
    """A model that a store lists by name. Its files need not be named like models.

    `file` is where it lies, or the entry of the store if it names no file; `fault` says why it is unusable.
    """

    name: str
    file: Found
    projector: Found | None = None
    aliases: tuple[str, ...] = ()
    fault: str = ""


class Survey(Struct, frozen=True):
    """What a walk saw: the files, what to compare later to learn whether anything changed, and faults.

    `notes` tell of stores that are not for this user; `problems` of what should work and does not.
    """

    files: tuple[Found, ...]
    stored: tuple[Stored, ...]
    stamps: Mapping[str, Stamp | None]
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def survey(places: Sequence[Place], max_depth: int = MAX_DEPTH) -> Survey:
    """Walk through the places, in order, each breadth first and in order of names."""
    walk = _Walk(max_depth)
    for place in places:
        match place.kind:
            case PlaceKind.HUGGING_FACE:
                walk.hub(place)
            case PlaceKind.OLLAMA:
                walk.ollama(place)
            case _:
                walk.tree(place)
    return Survey(tuple(walk.files), tuple(walk.stored), walk.stamps, tuple(walk.problems), tuple(walk.notes))


def changed(last: Survey) -> bool:
    """Something that the walk saw is not as it was. Much cheaper than a walk."""
    for path, stamp in last.stamps.items():
        try:
            found: os.stat_result | None = os.stat(path)
        except (OSError, ValueError):
            found = None
        if found is not None and stat.S_ISDIR(found.st_mode):
            if stamp is None or _folder_stamp(found) != stamp:
                return True
        elif _file_stamp(found) != stamp:
            return True
    return False


class _Walk:
    def __init__(self, max_depth: int) -> None:
        self.files: list[Found] = []
        self.stored: list[Stored] = []
        self.stamps: dict[str, Stamp | None] = {}
        self.problems: list[str] = []
        self.notes: list[str] = []
        self._max_depth = max_depth
        self._seen: set[tuple[int, int]] = set()

    def tree(self, place: Place) -> None:
        """A folder and all below it, following links, each folder once."""
        for _, path, entry in self._below(
            place.path, place, self._seen, self._max_depth + 1, first=True, links=True
        ):
            if entry.name.lower().endswith(SUFFIX):
                self.files.append(self._file(path, entry.is_symlink(), place))

    def hub(self, place: Place) -> None:
        """A Hugging Face cache: of each repository the main revision first, then the others, newest first.

        Links of files are followed within the cache, those of folders never.
        """
        seen: set[tuple[int, int]] = set()
        root = os.path.realpath(place.path)
        for entry in self._entries(place.path, place, seen, first=True):
            if not entry.name.startswith(_HUB_PREFIX) or not _is_folder(entry):
                continue
            folder = place.path / entry.name
            repo = entry.name.removeprefix(_HUB_PREFIX).replace("--", "/")
            for revision in self._revisions(folder, place, seen):
                self._revision(revision, repo, root, place, seen)

    def _revisions(self, folder: Path, place: Place, seen: set[tuple[int, int]]) -> list[Path]:
        dated: list[tuple[bool, int, str]] = []
        main = self._main(folder / "refs" / "main")
        snapshots = folder / "snapshots"
        for entry in self._entries(snapshots, place, seen):
            if not _is_folder(entry):
                continue
            try:
                changed_ns = entry.stat().st_mtime_ns
            except OSError:
                changed_ns = 0
            dated.append((entry.name != main, -changed_ns, entry.name))
        return [snapshots / name for _, _, name in sorted(dated)]

    def _main(self, path: Path) -> str:
        text = b""
        try:
            found: os.stat_result | None = os.stat(path)
            if found is not None and stat.S_ISREG(found.st_mode):
                with path.open("rb") as file:
                    text = file.read(_REF_BYTES)
        except OSError:
            found = None
        self.stamps[os.fspath(path)] = _file_stamp(found)
        return text.decode("utf-8", "replace").strip()

    def _revision(
        self, revision: Path, repo: str, root: str, place: Place, seen: set[tuple[int, int]]
    ) -> None:
        for _, path, entry in self._below(revision, place, seen, self._max_depth):
            if entry.name.lower().endswith(SUFFIX):
                inside = os.fspath(path.parent.relative_to(revision))
                self.files.append(
                    self._file(path, entry.is_symlink(), place, root=root, repo=repo, inside=inside)
                )

    def ollama(self, place: Place) -> None:
        """An Ollama store: its manifests name the models, and their files by hash."""
        seen: set[tuple[int, int]] = set()
        manifests = place.path / "manifests"
        # The store itself tells whether it can be read at all.
        if not any(entry.name == "manifests" for entry in self._entries(place.path, place, seen, first=True)):
            return
        root = os.path.realpath(place.path)
        for depth, path, _ in self._below(manifests, place, seen, ollama.LEVELS):
            if depth >= ollama.LEVELS - 2:
                self._manifest(path, place, root)

    def _manifest(self, path: Path, place: Place, root: str) -> None:
        entry = self._file(path, is_link=path.is_symlink(), place=place, root=root)
        name, aliases = ollama.names(path.relative_to(place.path / "manifests").parts)
        fault = entry.fault
        manifest = None
        if not fault:
            try:
                manifest = ollama.read_manifest(path)
            except OSError as error:
                fault = f"its manifest cannot be read: {error.strerror or error}"
            except ValueError as error:
                fault = f"its manifest cannot be used: {error}"
        if manifest is None:
            if fault:
                self.stored.append(Stored(name, entry, aliases=aliases, fault=fault))
            return
        file, projector = (
            self._file(place.path / "blobs" / blob, is_link=False, place=place, root=root) if blob else None
            for blob in (manifest.model, manifest.projector)
        )
        if file is None:
            # It is served elsewhere, or of a kind that has no single file.
            return
        fault = manifest.fault or _blob_fault(file)
        if not fault and projector is not None and (reason := _blob_fault(projector)):
            fault = f"its projector: {reason}"
        self.stored.append(Stored(name, file, projector, aliases, fault))

    def _below(
        self,
        top: Path,
        place: Place,
        seen: set[tuple[int, int]],
        levels: int,
        *,
        first: bool = False,
        links: bool = False,
    ) -> Iterator[tuple[int, Path, os.DirEntry[str]]]:
        """What is no folder in a folder and so many levels of it, breadth first, with its depth.

        Links to folders are followed only with `links`.
        """
        level = [top]
        for depth in range(levels):
            deeper: list[Path] = []
            for folder in level:
                for entry in self._entries(folder, place, seen, first=first and depth == 0):
                    path = folder / entry.name
                    if not _is_folder(entry):
                        yield depth, path, entry
                    elif links or not entry.is_symlink():
                        deeper.append(path)
            level = deeper

    def _entries(
        self, folder: Path, place: Place, seen: set[tuple[int, int]], *, first: bool = False
    ) -> Iterator[os.DirEntry[str]]:
        """What is in a folder, in order, without hidden entries; nothing of one that was seen before."""
        try:
            found = os.stat(folder)
            if (found.st_dev, found.st_ino) in seen:
                return
            seen.add((found.st_dev, found.st_ino))
            self.stamps[os.fspath(folder)] = _folder_stamp(found)
            with os.scandir(folder) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except (OSError, ValueError) as error:
            self.stamps.setdefault(os.fspath(folder), ())
            missing = isinstance(error, (FileNotFoundError, NotADirectoryError))
            if missing and not (first and place.own):
                return
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            # A store that another user's service keeps is nothing that this user could mend.
            closed = first and not place.own and isinstance(error, PermissionError)
            told = self.notes if closed else self.problems
            told.append(f"{readable(folder)}: it cannot be searched ({reason})")
            return
        for entry in entries:
            if not entry.name.startswith("."):
                yield entry

    def _file(
        self,
        path: Path,
        is_link: bool,
        place: Place,
        *,
        root: str = "",
        repo: str = "",
        inside: str = "",
    ) -> Found:
        """A file; with a `root`, it must lie below that, wherever links lead."""
        found, fault = _look(path, is_link)
        self.stamps[os.fspath(path)] = _file_stamp(found)
        if root and found is not None and not fault and not _is_below(path, root):
            fault = "a link that leads out of its store"
        return Found(path, is_link, found, fault, place, repo, inside)


def _blob_fault(file: Found) -> str:
    return f"its file {file.path.name} is missing" if file.stat is None else file.fault


def _is_below(path: Path, root: str) -> bool:
    try:
        return os.path.commonpath([os.path.realpath(path), root]) == root
    except ValueError:
        return False


def _folder_stamp(found: os.stat_result) -> Stamp | None:
    if time.time_ns() - found.st_mtime_ns < RECENT_NS:
        return None
    return (found.st_dev, found.st_ino, found.st_mtime_ns)


def _file_stamp(found: os.stat_result | None) -> Stamp:
    if found is None:
        return ()
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _look(path: Path, is_link: bool) -> tuple[os.stat_result | None, str]:
    """What the path leads to, and why it cannot be a model's file."""
    try:
        found = os.stat(path)
    except (OSError, ValueError) as error:
        if is_link and isinstance(error, FileNotFoundError):
            return None, f"a link to a file that is missing: {_target(path)}"
        if isinstance(error, OSError) and error.errno == errno.ELOOP:
            return None, "a link that leads back to itself"
        return None, f"it cannot be read: {getattr(error, 'strerror', None) or error}"
    if not stat.S_ISREG(found.st_mode):
        return found, "it is no regular file"
    return found, ""


def _target(path: Path) -> str:
    try:
        return readable(os.readlink(path))
    except OSError:
        return "unknown"


def readable(path: str | os.PathLike[str]) -> str:
    """A path as text that can be written anywhere; bytes that are no UTF-8 become replacement characters."""
    return os.fsencode(path).decode("utf-8", "replace")
