"""What pulls that nobody took up again left in the Hugging Face cache: found, shown, and given back.

Only files that a pull of ours made are looked at; their names say so. Everything here blocks: it runs in a
thread.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct

from router.catalog.hub_cache import FOLDER, INCOMPLETE, lock_of
from router.units import MIB

log = logging.getLogger(__name__)

#: One that nobody has written to for so long is deleted when the router starts.
KEPT_S: Final = 30 * 86_400.0

_NAME: Final = re.compile(rf"([0-9a-f]{{64}}){re.escape(INCOMPLETE)}")


class Leftover(Struct, frozen=True):
    """One file: of which repository, its bytes, and when it was last written to, in Unix seconds."""

    path: Path
    repo: str
    size: int
    written: float

    @property
    def sha256(self) -> str:
        """Of the whole file that it was to become."""
        return self.path.name.removesuffix(INCOMPLETE)


def find_leftovers(root: Path) -> tuple[Leftover, ...]:
    """Those in a cache, by repository and name, also of pulls that are under way."""
    found: list[Leftover] = []
    for folder in _entries(root):
        if not folder.name.startswith(FOLDER) or folder.is_symlink():
            continue
        for path in _entries(folder / "blobs"):
            if not _NAME.fullmatch(path.name):
                continue
            try:
                seen = path.lstat()
            except OSError:
                continue  # Just finished, or deleted.
            if stat.S_ISREG(seen.st_mode):
                repo = folder.name.removeprefix(FOLDER).replace("--", "/", 1)
                found.append(Leftover(path, repo, seen.st_size, seen.st_mtime))
    return tuple(sorted(found, key=lambda each: (each.repo, each.path.name)))


def discard(root: Path, *, older_than_s: float = 0.0) -> tuple[Leftover, ...]:
    """Delete those that nobody is fetching; returns them.

    Where something of a repository is being fetched all of it stays: a pull that is at one file will want the
    others.

    Args:
        older_than_s: only those that nobody has written to for so long.
    """
    latest = time.time() - older_than_s
    gone: list[Leftover] = []
    by_repo: dict[Path, list[Leftover]] = {}
    for each in find_leftovers(root):
        by_repo.setdefault(each.path.parents[1], []).append(each)
    for folder, leftovers in by_repo.items():
        if any(each.written > latest for each in leftovers if older_than_s):
            continue
        with _all_locked(root, folder, leftovers) as locked:
            if not locked:
                continue
            for each in leftovers:
                try:
                    each.path.unlink()
                except FileNotFoundError:
                    continue
                except OSError as error:
                    log.warning("%s cannot be deleted: %s", each.path, error.strerror or error)
                    continue
                gone.append(each)
        for empty in (folder / "blobs", folder):
            with contextlib.suppress(OSError):  # Something else is in there.
                empty.rmdir()
    return tuple(gone)


def sweep(root: Path) -> None:
    """Delete those that are long abandoned, and tell the log."""
    for each in discard(root, older_than_s=KEPT_S):
        log.info(
            "Deleted %s: %.0f MiB of a pull of %s that nobody went on with for %.0f days.",
            each.path,
            each.size / MIB,
            each.repo,
            KEPT_S / 86_400,
        )


@contextmanager
def _all_locked(root: Path, folder: Path, leftovers: Iterable[Leftover]) -> Iterator[bool]:
    """Whether nobody fetches any of these, and nobody begins to meanwhile."""
    with contextlib.ExitStack() as held:
        for each in leftovers:
            try:
                lock = lock_of(root, folder.name, each.sha256)
                if not lock.acquire():
                    yield False
                    return
            except OSError as error:
                # Where there are no locks nobody can tell.
                log.debug("%s cannot be locked: %s", each.path, error)
                yield False
                return
            held.callback(lock.release)
        yield True


def _entries(folder: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(folder)]
    except OSError:
        return []
