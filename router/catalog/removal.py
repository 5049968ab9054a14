"""Deleting the files of a model: all that belong to it, and none that something else needs.

Everything here blocks: it runs in a thread.
"""

from __future__ import annotations

import functools
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from router.catalog.model import Model
from router.catalog.scan import SHARD
from router.catalog.survey import SUFFIX, readable
from router.errors import Forbidden, RouterError

log = logging.getLogger(__name__)

_SNAPSHOT_PARTS = 4  # models--owner--name, snapshots, commit, at least one name


class Removal(Struct, frozen=True):
    """What goes: names of files, and with them contents that nothing else leads to; bytes that get free."""

    files: tuple[Path, ...]
    blobs: tuple[Path, ...] = ()
    freed: int = 0
    repo: Path | None = None


class Deleted(Struct, frozen=True):
    """What was deleted: a `policy` or a `model`, with its bytes that are free now."""

    name: str
    kind: str
    freed: int = 0


@functools.lru_cache(maxsize=4096)  # asked for all models whenever one of them changes
def why_foreign(path: str, source: str, own: Path, hub: Path | None) -> str:
    """Why a model's file is not ours to delete, as a sentence; "" if it is. It looks at names only.

    `source` is where the model was found; `own` and `hub` are as for `plan_removal`.
    """
    if hub is not None and _is_below(Path(path), hub):
        parts = Path(path).relative_to(hub).parts
        if len(parts) < _SNAPSHOT_PARTS or parts[1] != "snapshots":
            return f"{readable(path)} does not lie in the cache as models do."
    elif not _is_below(Path(path), own):
        return f"{readable(path)} is not a file that Lemon Tray keeps{f' ({source})' if source else ''}."
    return ""


def plan_removal(model: Model, others: Iterable[Model], own: Path, hub: Path | None) -> Removal:
    """What deleting a model takes away.

    Args:
        others: all other models: what one of them uses stays.
        own: the app's own folder of models.
        hub: the Hugging Face cache.

    Raises:
        Forbidden: its files are another program's, or lie in a folder of the user's.
    """
    if why := why_foreign(model.path, model.source, own, hub):
        raise Forbidden(
            f"{model.name} is not deleted: {why}",
            code="foreign_file",
            param="model_name",
            hint="Delete it where it came from.",
        )
    path = Path(model.path)
    needed = {os.path.realpath(used) for other in others for used in _files_of(other)}
    if hub is not None and _is_below(path, hub):
        return _of_hub(model, hub, needed)
    files = list(_shards(path))
    if model.mmproj and Path(model.mmproj).parent == path.parent:
        files.append(Path(model.mmproj))
    # Another name for the same file is another's only if it lies elsewhere.
    going = [file for file in files if file == path or os.path.realpath(file) not in needed]
    return Removal(tuple(going), freed=sum(_freed(file) for file in going))


def remove(removal: Removal) -> None:
    """Delete it. Names go first, so that nothing is ever found whose contents are gone.

    Raises:
        RouterError: a file cannot be deleted.
    """
    try:
        for path in (*removal.files, *removal.blobs):
            path.unlink(missing_ok=True)
    except OSError as error:
        raise RouterError(
            f"{readable(error.filename or '')} cannot be deleted: {error.strerror or error}.",
            code="not_deleted",
        ) from error
    if removal.repo is not None:
        _tidy(removal.repo)


def _files_of(model: Model) -> Iterator[Path]:
    yield from _shards(Path(model.path))
    if model.mmproj:
        yield Path(model.mmproj)


def _shards(path: Path) -> Iterator[Path]:
    """All files of a model by its first one's path."""
    shard = SHARD.match(path.name[: -len(SUFFIX)]) if path.name.lower().endswith(SUFFIX) else None
    if shard is None:
        yield path
        return
    # The folder says which there are: the count is only what a name claims.
    prefix, ending = f"{shard['base']}-", f"-of-{shard['count']}{path.suffix}"
    found = sorted(
        entry
        for entry in _listed(path.parent)
        if entry.name.startswith(prefix)
        and entry.name.endswith(ending)
        and SHARD.match(entry.name[: -len(SUFFIX)])
    )
    yield from found or [path]


def _of_hub(model: Model, hub: Path, needed: set[str]) -> Removal:
    first = Path(model.path)
    parts = first.relative_to(hub).parts
    repo = hub / parts[0]
    snapshots = repo / "snapshots"
    commit = snapshots / parts[2]
    own = list(_shards(first))
    if (
        model.mmproj
        and _is_below(Path(model.mmproj), snapshots)
        and os.path.realpath(model.mmproj) not in needed
    ):
        own.append(Path(model.mmproj))
    contents = {os.path.realpath(path) for path in own} - needed
    names = {path.relative_to(snapshots).parts[1:] for path in own}
    pointers = [path for path in _below(snapshots) if path.is_symlink() or path.is_file()]
    # Also the names that it has in other revisions, or an older one would take its place.
    going = [
        path
        for path in pointers
        if path in own
        or os.path.realpath(path) in contents
        or (path.relative_to(snapshots).parts[1:] in names and os.path.realpath(path) not in needed)
    ]
    # A model is found by its first file: that goes first.
    going.sort(key=lambda path: path != commit.joinpath(*first.relative_to(commit).parts))
    staying = needed | {os.path.realpath(path) for path in pointers if path not in set(going)}
    blobs = repo / "blobs"
    freed_blobs = sorted(
        {
            Path(target)
            for path in going
            if path.is_symlink()
            and (target := os.path.realpath(path)) not in staying
            and Path(target).parent == Path(os.path.realpath(blobs))
        }
    )
    plain = [path for path in going if not path.is_symlink()]
    freed = sum(_freed(path) for path in (*freed_blobs, *plain))
    return Removal(tuple(going), tuple(freed_blobs), freed, repo)


def _tidy(repo: Path) -> None:
    """Take away folders of a repository that have become empty, and the whole of one that holds nothing."""
    snapshots = repo / "snapshots"
    for folder in sorted(_folders(snapshots), key=lambda path: -len(path.parts)):
        _remove_empty(folder)
    _remove_empty(snapshots)
    if not snapshots.exists() and not any(_below(repo / "blobs")):
        shutil.rmtree(repo, ignore_errors=True)
        shutil.rmtree(repo.parent / ".locks" / repo.name, ignore_errors=True)


def _remove_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError as error:
        log.debug("%s stays: %s", folder, error.strerror)


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _below(folder: Path) -> Sequence[Path]:
    """Everything that is no folder; links to folders are not followed."""
    found: list[Path] = []
    for root, _, files in os.walk(folder):
        found += [Path(root, name) for name in files]
    return sorted(found)


def _folders(folder: Path) -> list[Path]:
    return [Path(root, name) for root, names, _ in os.walk(folder) for name in names]


def _is_below(path: Path, folder: Path) -> bool:
    return Path(os.path.abspath(path)).is_relative_to(os.path.abspath(folder))


def _freed(path: Path) -> int:
    try:
        found = path.lstat()
    except OSError:
        return 0
    return found.st_size if found.st_nlink == 1 and not path.is_symlink() else 0
