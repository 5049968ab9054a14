"""From files that were found to models: what belongs together, what is none, and what each is called.

Everything here blocks: it runs in a thread.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from router.catalog.kinds import LLM
from router.catalog.model import Identity, Model, written
from router.catalog.options import LoadOptions
from router.catalog.places import Place, PlaceKind
from router.catalog.survey import SUFFIX, Found, Stored, Survey, readable
from router.errors import RouterError
from router.memory.header import ModelHeader

PROJECTOR: Final = "mmproj"

SHARD: Final = re.compile(r"(?P<base>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})$")
#: The quantization that a file's name ends with.
_QUANT: Final = re.compile(
    r"[-_.](?P<quant>(?:UD[-_])?(?:I?Q\d(?:_[0-9A-Z]+)*|TQ\d_\d|MXFP\d(?:_[0-9A-Z]+)*|BF16|FP?16|FP?32))$",
    re.IGNORECASE,
)
#: Parts of a model that are kept in a file of their own, by the beginning of its name or by its end.
_DRAFT: Final = re.compile(r"(?:mtp|draft|eagle3)[-_.].*|.*[-_.]draft", re.IGNORECASE | re.DOTALL)
_PROJECTOR_ARCHITECTURE: Final = "clip"
#: Architectures of drafts, which guess for a model, and of vectors that steer one.
_PARTS: Final = frozenset({"eagle3", "dflash", "controlvector", "imatrix"})
#: Numbers of element types, the best for a projector first: F16, BF16, Q8_0, F32.
_PRECISIONS: Final = {1: 0, 32: 1, 7: 2, 0: 3}

Read = Callable[[Sequence[Path]], ModelHeader]


class HeaderCache:
    """Headers by file identity, so that a file is read again only when its size or time changed."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._known: dict[Identity, ModelHeader | str] = {}

    def get(self, paths: Sequence[Path], identity: Identity) -> ModelHeader | str:
        """The header, or the sentence that says why there is none.

        Raises:
            FileNotFoundError: a file is gone.
        """
        known = self._known.get(identity)
        if known is not None:
            return known
        result: ModelHeader | str
        try:
            result = self._read(paths)
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
        # Another thread may be asking for a projector meanwhile.
        self._known = {identity: known for identity, known in dict(self._known).items() if identity in wanted}


class _Candidate(Struct, frozen=True):
    """One file, or one set of shards, by one name.

    Attributes:
        stem: the file's name without ending and shard number.
        names: what it may be called, the best first; the last of them is never the name of another file of
            the same place.
        aliases: further names.
        group: files that may belong together: those of a folder, or of a repository.
        is_shared: the group holds files of many models.
    """

    stem: str
    names: tuple[str, ...]
    first: Found
    shards: tuple[Found, ...]
    fault: str
    group: str
    is_shared: bool = False
    aliases: tuple[str, ...] = ()
    projector: Found | None = None

    @property
    def key(self) -> tuple[int, int] | str:
        """Equal for all names of the same file."""
        found = self.first.stat
        return (found.st_dev, found.st_ino) if found is not None else os.fspath(self.first.path)


class _Item(Struct, frozen=True):
    """A file with all its names, its identity, and what its header says."""

    candidates: tuple[_Candidate, ...]
    identity: Identity
    header: ModelHeader | None
    fault: str

    @property
    def main(self) -> _Candidate:
        return self.candidates[0]


def models(
    found: Survey,
    cache: HeaderCache,
    model_type: Callable[[ModelHeader], str],
    options: Mapping[str, LoadOptions] | None = None,
) -> dict[str, Model]:
    """The models that the files are, by name. A file that went away since is left out.

    `options` are those of the options file, by name or alias.
    """
    items: list[_Item] = []
    projectors: list[_Item] = []
    identities: list[Identity] = []
    for group in _grouped(found):
        try:
            item = _item(group, cache)
        except FileNotFoundError:
            continue
        identities.append(item.identity)
        if _is_projector(item):
            projectors.append(item)
        elif not _is_part(item):
            items.append(item)
    projector_of = _Projectors(projectors, items)
    named: dict[str, Model] = {}
    spare: dict[str, list[str]] = {}
    for item in items:
        name = _free_name(item.main, named)
        projector = projector_of(item)
        stored = item.main.projector
        if stored is not None:
            projector = _projector_file(stored, cache, identities)
        header = item.header
        named[name] = Model(
            name=name,
            path=os.fspath(item.main.first.path),
            type=model_type(header) if header is not None else LLM,
            size_bytes=item.identity.size,
            identity=item.identity,
            header=header,
            broken=item.fault,
            source=_label(item.main.first.place),
            mmproj=projector[0],
            mmproj_bytes=projector[1],
        )
        spare[name] = [
            other
            for candidate in item.candidates
            for other in (*candidate.names[:1], *candidate.aliases, candidate.stem)
            if other != name
        ]
    taken = set(named)
    for name, others in spare.items():
        aliases = [other for other in dict.fromkeys(others) if other not in taken]
        taken.update(aliases)
        named[name] = msgspec.structs.replace(named[name], aliases=tuple(aliases))
    if options:
        for name, model in named.items():
            named[name] = _with_options(model, options, cache, identities)
    cache.keep(identities)
    return dict(sorted(named.items()))


def _with_options(
    model: Model, options: Mapping[str, LoadOptions], cache: HeaderCache, identities: list[Identity]
) -> Model:
    chosen = next((options[name] for name in (model.name, *model.aliases) if name in options), None)
    if chosen is None:
        return model
    mmproj = model.mmproj, model.mmproj_bytes
    if chosen.mmproj is not None and chosen.mmproj != model.mmproj:
        mmproj = ("", 0)
        if chosen.mmproj:
            mmproj = chosen.mmproj, projector_bytes(Path(chosen.mmproj), cache, identities)
    return msgspec.structs.replace(
        model, options=chosen, type=chosen.type or model.type, mmproj=mmproj[0], mmproj_bytes=mmproj[1]
    )


def projector_bytes(path: Path, cache: HeaderCache, identities: list[Identity] | None = None) -> int:
    """Bytes of a projector's tensors; 0 if it cannot be read: then loading it says why."""
    try:
        found = os.stat(path)
        identity = Identity(os.path.realpath(path), found.st_size, found.st_mtime_ns)
        header = cache.get([path], identity)
    except (OSError, ValueError):
        return 0
    if identities is not None:
        identities.append(identity)
    return header.weights_bytes if isinstance(header, ModelHeader) else 0


def _projector_file(file: Found, cache: HeaderCache, identities: list[Identity]) -> tuple[str, int]:
    return os.fspath(file.path), projector_bytes(file.path, cache, identities)


def _label(place: Place | None) -> str:
    return written(place.label) if place is not None else ""


# What files are


def _is_projector(item: _Item) -> bool:
    if item.header is not None and (
        item.header.architecture == _PROJECTOR_ARCHITECTURE or item.header.kind == PROJECTOR
    ):
        return True
    return PROJECTOR in item.main.stem.lower()


def _is_part(item: _Item) -> bool:
    """A file that is of use only together with a model: an adapter, a draft, a vector, a matrix."""
    place, header = item.main.first.place, item.header
    is_named_by_file = place is None or place.kind is not PlaceKind.OLLAMA
    if is_named_by_file and is_draft(item.main.stem):
        return True
    if header is None:
        return False
    if header.kind not in ("", "model") or header.architecture in _PARTS:
        return True
    blocks = header.weights.blocks
    own = len(blocks) - header.nextn_layers
    # Blocks that predict further tokens, and none of those that they build on.
    return 0 < header.nextn_layers <= len(blocks) and own > 0 and not any(size.host for size in blocks[:own])


def is_draft(stem: str) -> bool:
    """Whether a file's name says that it only speeds up another model."""
    return _DRAFT.fullmatch(_QUANT.sub("", stem)) is not None


def quant_of(stem: str) -> str:
    """The quantization that a file's name ends with, in upper case; "" if there is none."""
    quant = _QUANT.search(stem)
    return quant["quant"].upper() if quant else ""


class _Projectors:
    """Which projector belongs to which model: one that lies beside it and is named like it, or like none."""

    def __init__(self, projectors: Iterable[_Item], items: Iterable[_Item]) -> None:
        self._beside: dict[str, list[tuple[str, _Candidate, _Item]]] = {}
        for item in projectors:
            if item.fault or item.header is None:
                continue
            for candidate in item.candidates:
                entry = (family(candidate.stem), candidate, item)
                self._beside.setdefault(candidate.group, []).append(entry)
        self._families: dict[str, set[str]] = {}
        for item in items:
            for candidate in item.candidates:
                if candidate.group in self._beside:
                    self._families.setdefault(candidate.group, set()).add(family(candidate.stem))

    def __call__(self, item: _Item) -> tuple[str, int]:
        """Its path, and the bytes of its tensors; "" and 0 if there is none."""
        if item.header is None:
            return "", 0
        fitting: list[tuple[int, int, str, int]] = []
        for candidate in item.candidates:
            own = family(candidate.stem)
            is_alone = not candidate.is_shared and len(self._families.get(candidate.group, ())) == 1
            for name, file, projector in self._beside.get(candidate.group, ()):
                header = projector.header
                if header is None or not _fits(header, item.header):
                    continue
                named = bool(name) and own.startswith(name)
                if not named and not is_alone and (name or candidate.is_shared):
                    continue
                precision = _PRECISIONS.get(-1 if header.file_type is None else header.file_type, 4)
                fitting.append(
                    (0 if named else 1, precision, os.fspath(file.first.path), header.weights_bytes)
                )
        if not fitting:
            return "", 0
        best = min(fitting)
        return best[2], best[3]


def _fits(projector: ModelHeader, model: ModelHeader) -> bool:
    lengths = (projector.projection_length, model.embedding_length)
    return 0 in lengths or lengths[0] == lengths[1]


def family(stem: str) -> str:
    """A file's name without its quantization and without what separates its words."""
    plain = _QUANT.sub("", stem.lower())
    words = [word for word in re.split(r"[-_. ]+", plain.replace(PROJECTOR, " ")) if word]
    words = [word for word in words if not _QUANT.fullmatch(f"-{word}") and word not in ("model", "vision")]
    return "".join(words)


# Which files belong together


def _grouped(found: Survey) -> list[list[_Candidate]]:
    groups: dict[tuple[int, int] | str, list[_Candidate]] = {}
    for candidate in (*_newest(_candidates(found.files)), *map(_stored, found.stored)):
        groups.setdefault(candidate.key, []).append(candidate)
    for group in groups.values():
        # What is whole goes first, then the file itself before links to it; then the walk's order decides.
        group.sort(key=lambda candidate: (bool(candidate.fault), candidate.first.is_link))
    return list(groups.values())


def _newest(candidates: Iterable[_Candidate]) -> Iterable[_Candidate]:
    """Of each file of a repository the first sound revision."""
    chosen: dict[object, _Candidate] = {}
    for number, candidate in enumerate(candidates):
        repo, inside = candidate.first.repo, candidate.first.inside
        key: object = (candidate.group, inside, candidate.stem) if repo else number
        known = chosen.get(key)
        if known is None or (known.fault and not candidate.fault):
            chosen[key] = candidate
    return chosen.values()


def _candidates(files: Iterable[Found]) -> Iterator[_Candidate]:
    sets: dict[tuple[Path, str, str], dict[int, Found]] = {}
    order: list[Found | tuple[Path, str, str]] = []
    for file in files:
        shard = SHARD.match(file.path.name[: -len(SUFFIX)])
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
            yield _candidate(item.path.name[: -len(SUFFIX)], (item,), item.fault)
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
    return _candidate(base, present, fault)


def _candidate(text: str, files: tuple[Found, ...], fault: str) -> _Candidate:
    first = files[0]
    stem = written(text)
    if not first.repo:
        folder = first.path.parent
        return _Candidate(
            stem,
            (stem, f"{stem}@{written(folder.name)}"),
            first,
            files,
            fault,
            os.fspath(folder),
            is_shared=first.place is not None and folder == first.place.path,
        )
    repo = written(first.repo)
    quant = quant_of(stem)
    names = (f"{repo}:{quant}",) if quant else ()
    return _Candidate(stem, (*names, f"{repo}:{stem}"), first, files, fault, f"hub {repo}")


def _stored(entry: Stored) -> _Candidate:
    return _Candidate(
        stem=entry.name,
        names=(entry.name,),
        first=entry.file,
        shards=(entry.file,),
        fault=entry.fault,
        group=os.fspath(entry.file.path),
        aliases=entry.aliases,
        projector=entry.projector,
    )


def _free_name(candidate: _Candidate, taken: Mapping[str, Model]) -> str:
    """The first of its names that no other file has; where that does not help, the last with a number."""
    for name in candidate.names:
        if name not in taken:
            return name
    number = 2
    while f"{candidate.names[-1]}-{number}" in taken:
        number += 1
    return f"{candidate.names[-1]}-{number}"


# What a file says


def _item(group: Sequence[_Candidate], cache: HeaderCache) -> _Item:
    """Raises FileNotFoundError: the file is gone."""
    candidate = group[0]
    identity = _identity(candidate)
    paths = [shard.path for shard in candidate.shards]
    fault = candidate.fault
    header: ModelHeader | None = None
    if not fault and not all(_is_utf8(path) for path in paths):
        fault = "its path is not valid UTF-8, which the engine cannot open; rename it"
    if not fault:
        result = cache.get(paths, identity)
        if isinstance(result, str):
            fault = _without_folder(result, paths)
        elif _has_changed(candidate):
            fault = "it is still being written"
        else:
            header = result
    return _Item(tuple(group), identity, header, fault)


def _without_folder(fault: str, paths: Sequence[Path]) -> str:
    """A fault without the path that it begins with: of several files, the name tells which one it is."""
    for path in paths:
        if fault.startswith(f"{path}: "):
            rest = fault.removeprefix(f"{path}: ")
            return f"{readable(path.name)}: {rest}" if len(paths) > 1 else rest
    return fault


def _identity(candidate: _Candidate) -> Identity:
    stats = [shard.stat for shard in candidate.shards if shard.stat is not None]
    return Identity(
        path=os.path.realpath(candidate.first.path),
        size=sum(found.st_size for found in stats if stat.S_ISREG(found.st_mode)),
        mtime_ns=max((found.st_mtime_ns for found in stats), default=0),
    )


def _has_changed(candidate: _Candidate) -> bool:
    """Raises FileNotFoundError."""
    for shard in candidate.shards:
        then, now = shard.stat, os.stat(shard.path)
        if then is None or (now.st_size, now.st_mtime_ns) != (then.st_size, then.st_mtime_ns):
            return True
    return False


def _is_utf8(path: Path) -> bool:
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError:
        return False
    return True
