"""Finding GGUF files in folders. Everything here blocks: it runs in a thread."""

from __future__ import annotations

import errno
import logging
import os
import re
import stat
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from router.catalog.model import LLM, Identity, Model
from router.errors import RouterError
from router.memory.header import ModelHeader

log = logging.getLogger(__name__)

# Levels below a folder that are looked through. The Hugging Face cache needs four.
MAX_DEPTH: Final = 8
SUFFIX: Final = ".gguf"
PROJECTOR: Final = "mmproj"
# Architecture of a vision projector, which is a part of a model and none itself.
PROJECTOR_ARCHITECTURE: Final = "clip"
# A folder changed so lately may change again within one tick of its clock; it is looked through once more.
RECENT_NS: Final = 2_000_000_000

_SHARD: Final = re.compile(r"(?P<base>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})$")


class Found(Struct, frozen=True):
    """A file that is named like a model.

    `stat` is of the file that a link leads to; None if there is none, and then `fault` says why.
    """

    path: Path
    is_link: bool
    stat: os.stat_result | None
    fault: str = ""


class Survey(Struct, frozen=True):
    """What a walk saw: the files, what to compare later to learn whether anything changed, and faults."""

    files: tuple[Found, ...]
    stamps: Mapping[str, tuple[int, ...] | None]
    problems: tuple[str, ...]


class HeaderCache:
    """Headers by file identity, so that a file is read again only when its size or time changed."""

    def __init__(self, read: Callable[[Path], ModelHeader]) -> None:
        self._read = read
        self._known: dict[Identity, ModelHeader | str] = {}

    def get(self, path: Path, identity: Identity) -> ModelHeader | str:
        """The header, or the sentence that says why there is none.

        Raises:
            FileNotFoundError: the file is gone.
        """
        known = self._known.get(identity)
        if known is not None:
            return known
        result: ModelHeader | str
        try:
            result = self._read(path)
        except FileNotFoundError:
            raise
        except RouterError as error:
            result = error.message
            if isinstance(error.__cause__, FileNotFoundError):
                raise error.__cause__ from None
            if isinstance(error.__cause__, OSError):
                # Not the file's contents but the way to it: that can change without changing the file.
                return result
        except OSError as error:
            return f"it cannot be read: {error.strerror or error}"
        self._known[identity] = result
        return result

    def keep(self, identities: Iterable[Identity]) -> None:
        """Forget all others."""
        wanted = set(identities)
        self._known = {identity: known for identity, known in self._known.items() if identity in wanted}


def survey(folders: Sequence[Path], max_depth: int = MAX_DEPTH) -> Survey:
    """Walk the folders, breadth first and in order of names, following links, each folder once."""
    files: list[Found] = []
    stamps: dict[str, tuple[int, ...] | None] = {}
    problems: list[str] = []
    seen: set[tuple[int, int]] = set()
    level = [folder.expanduser() for folder in folders]
    depth = 0
    while level and depth <= max_depth:
        deeper: list[Path] = []
        for folder in level:
            try:
                found = os.stat(folder)
                if (found.st_dev, found.st_ino) in seen:
                    continue
                seen.add((found.st_dev, found.st_ino))
                stamps[os.fspath(folder)] = _folder_stamp(found)
                with os.scandir(folder) as listing:
                    entries = sorted(listing, key=lambda entry: entry.name)
            except OSError as error:
                stamps.setdefault(os.fspath(folder), ())
                if depth == 0 or not isinstance(error, FileNotFoundError):
                    problems.append(f"{readable(folder)}: it cannot be searched ({error.strerror or error})")
                continue
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if _is_folder(entry):
                    deeper.append(folder / entry.name)
                elif entry.name.lower().endswith(SUFFIX):
                    file = _look(folder / entry.name, entry.is_symlink())
                    files.append(file)
                    stamps[os.fspath(file.path)] = _file_stamp(file.stat)
        level = deeper
        depth += 1
    return Survey(tuple(files), stamps, tuple(problems))


def changed(last: Survey) -> bool:
    """Something that the walk saw is not as it was. Much cheaper than a walk."""
    for path, stamp in last.stamps.items():
        try:
            found: os.stat_result | None = os.stat(path)
        except OSError:
            found = None
        if found is not None and stat.S_ISDIR(found.st_mode):
            if stamp is None or _folder_stamp(found) != stamp:
                return True
        elif _file_stamp(found) != stamp:
            return True
    return False


def _folder_stamp(found: os.stat_result) -> tuple[int, ...] | None:
    if time.time_ns() - found.st_mtime_ns < RECENT_NS:
        return None
    return (found.st_dev, found.st_ino, found.st_mtime_ns)


def _file_stamp(found: os.stat_result | None) -> tuple[int, ...]:
    if found is None:
        return ()
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _look(path: Path, is_link: bool) -> Found:
    try:
        found = os.stat(path)
    except OSError as error:
        if is_link and isinstance(error, FileNotFoundError):
            return Found(path, is_link, None, f"a link to a file that is missing: {_target(path)}")
        if error.errno == errno.ELOOP:
            return Found(path, is_link, None, "a link that leads back to itself")
        return Found(path, is_link, None, f"it cannot be read: {error.strerror or error}")
    if not stat.S_ISREG(found.st_mode):
        return Found(path, is_link, found, "it is no regular file")
    return Found(path, is_link, found)


def _target(path: Path) -> str:
    try:
        return readable(os.readlink(path))
    except OSError:
        return "unknown"


def readable(path: str | os.PathLike[str]) -> str:
    """A path as text that can be written anywhere; bytes that are no UTF-8 become replacement characters."""
    return os.fsencode(path).decode("utf-8", "replace")


class _Candidate(Struct, frozen=True):
    """One model file, or one set of shards, by one name."""

    stem: str
    first: Found
    shards: tuple[Found, ...]
    fault: str

    @property
    def key(self) -> tuple[int, int] | str:
        """Equal for all names of the same file."""
        found = self.first.stat
        return (found.st_dev, found.st_ino) if found is not None else os.fspath(self.first.path)


def models(found: Survey, cache: HeaderCache, model_type: Callable[[ModelHeader], str]) -> dict[str, Model]:
    """The models that the files are, by name. A file that went away since is left out."""
    groups: dict[tuple[int, int] | str, list[_Candidate]] = {}
    for candidate in _candidates(found.files):
        groups.setdefault(candidate.key, []).append(candidate)
    named: dict[str, Model] = {}
    spare: dict[str, list[str]] = {}
    identities: list[Identity] = []
    for group in groups.values():
        # The file itself goes before links to it; for the rest the walk's order decides.
        group.sort(key=lambda candidate: candidate.first.is_link)
        try:
            model = _model(group[0], cache, model_type)
        except FileNotFoundError:
            continue
        identities.append(model.identity)
        if model.header is not None and model.header.architecture == PROJECTOR_ARCHITECTURE:
            continue
        name = _free_name(group[0], named)
        named[name] = msgspec.structs.replace(model, name=name)
        spare[name] = [candidate.stem for candidate in group[1:]]
    cache.keep(identities)
    taken = set(named)
    for name, stems in spare.items():
        aliases = [stem for stem in dict.fromkeys(stems) if stem not in taken]
        taken.update(aliases)
        named[name] = msgspec.structs.replace(named[name], aliases=tuple(aliases))
    return dict(sorted(named.items()))


def _candidates(files: Iterable[Found]) -> Iterator[_Candidate]:
    sets: dict[tuple[Path, str, str], dict[int, Found]] = {}
    order: list[Found | tuple[Path, str, str]] = []
    for file in files:
        stem = file.path.name[: -len(SUFFIX)]
        if PROJECTOR in stem.lower():
            continue
        shard = _SHARD.match(stem)
        if shard is None:
            order.append(file)
            continue
        key = (file.path.parent, shard["base"], shard["count"])
        if key not in sets:
            sets[key] = {}
            order.append(key)
        sets[key][int(shard["number"])] = file
    for item in order:
        if isinstance(item, Found):
            yield _Candidate(_stem(item.path.name[: -len(SUFFIX)]), item, (item,), item.fault)
        else:
            yield _sharded(item, sets[item])


def _sharded(key: tuple[Path, str, str], shards: Mapping[int, Found]) -> _Candidate:
    _, base, count = key
    present = tuple(shards[number] for number in sorted(shards))
    fault = next((f"{readable(shard.path.name)}: {shard.fault}" for shard in present if shard.fault), "")
    # The count is what a file name claims: it bounds no loop beyond the first gap.
    for number in range(1, int(count) + 1):
        if number not in shards:
            fault = f"{readable(base)}-{number:05d}-of-{count}{SUFFIX} is missing"
            break
    if int(count) < max(shards):
        fault = f"{readable(present[-1].path.name)} is numbered beyond its count"
    return _Candidate(_stem(base), present[0], present, fault)


def _stem(text: str) -> str:
    """A file's stem as a model name: composed, printable, and writable as UTF-8."""
    composed = unicodedata.normalize("NFC", readable(text))
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in composed)


def _free_name(candidate: _Candidate, taken: Mapping[str, Model]) -> str:
    """The stem; where another file has it, the folder is added, and where that does not help, a number."""
    if candidate.stem not in taken:
        return candidate.stem
    with_folder = f"{candidate.stem}@{_stem(candidate.first.path.parent.name)}"
    name, number = with_folder, 1
    while name in taken:
        number += 1
        name = f"{with_folder}-{number}"
    return name


def _model(candidate: _Candidate, cache: HeaderCache, model_type: Callable[[ModelHeader], str]) -> Model:
    """Raises FileNotFoundError: the file is gone."""
    path = candidate.first.path
    identity = _identity(candidate)
    fault = candidate.fault
    header: ModelHeader | None = None
    if not fault and not _is_utf8(path):
        fault = "its path is not valid UTF-8, which the engine cannot open; rename it"
    if not fault:
        result = cache.get(path, identity)
        if isinstance(result, str):
            fault = result
        elif _identity_now(candidate) != identity:
            fault = "it is still being written"
        else:
            header = result
    if header is not None and len(candidate.shards) > 1:
        # The first shard's header counts its own tensors only; the others are tensors and little else.
        rest = sum(shard.stat.st_size for shard in candidate.shards[1:] if shard.stat is not None)
        header = msgspec.structs.replace(header, weights_bytes=header.weights_bytes + rest)
    return Model(
        name=candidate.stem,
        path=os.fspath(path),
        type=model_type(header) if header is not None else LLM,
        size_bytes=identity.size,
        identity=identity,
        header=header,
        broken=fault,
    )


def _identity(candidate: _Candidate) -> Identity:
    stats = [shard.stat for shard in candidate.shards if shard.stat is not None]
    return Identity(
        path=os.path.realpath(candidate.first.path),
        size=sum(found.st_size for found in stats if stat.S_ISREG(found.st_mode)),
        mtime_ns=max((found.st_mtime_ns for found in stats), default=0),
    )


def _identity_now(candidate: _Candidate) -> Identity:
    """Raises FileNotFoundError."""
    shards = tuple(msgspec.structs.replace(shard, stat=os.stat(shard.path)) for shard in candidate.shards)
    return _identity(msgspec.structs.replace(candidate, first=shards[0], shards=shards))


def _is_utf8(path: Path) -> bool:
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError:
        return False
    return True
