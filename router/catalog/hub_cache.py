"""The Hugging Face cache as that program lays it out: files by hash, and links by commit and name.

Everything here blocks: it runs in a thread.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from router.catalog.hub import HubFile, HubModel, Listing
from router.fetch import BLOCK
from router.instance import FileLock
from router.settings.files import sync_folder

#: How the names of what has arrived end. Other programs' end otherwise, so it is known whose they are.
INCOMPLETE: Final = ".lemon-tray.incomplete"
#: How the names of repositories' folders begin.
FOLDER: Final = "models--"
_LOCKS: Final = ".locks"


class HubCache:
    """One repository in the cache below `root`."""

    def __init__(self, root: Path, repo: str) -> None:
        self.root = root
        self.folder = root / folder_of(repo)
        self.blobs = self.folder / "blobs"

    def blob(self, file: HubFile) -> Path:
        """Where a file's contents are kept, by their SHA-256."""
        return self.blobs / file.sha256

    def part(self, file: HubFile) -> Path:
        """Where what has arrived of it is kept; nobody takes that for a model."""
        return self.blobs / f"{file.sha256}{INCOMPLETE}"

    def pointer(self, commit: str, file: HubFile) -> Path:
        """Where programs look for it."""
        return self.folder.joinpath("snapshots", commit, *file.path.split("/"))

    def lock(self, file: HubFile) -> FileLock:
        """The lock that other programs take as well before they fetch a file."""
        return lock_of(self.root, self.folder.name, file.sha256)

    def is_placed(self, commit: str, file: HubFile) -> bool:
        """Whether programs find it, and it has the right size."""
        return _size(self.pointer(commit, file)) == file.size

    def missing(self, commit: str, files: Sequence[HubFile]) -> int:
        """Bytes that are still to be fetched of these."""
        return sum(file.size - self.kept(commit, file) for file in files)

    def kept(self, commit: str, file: HubFile) -> int:
        """Bytes of a file that are here."""
        if self.is_placed(commit, file) or _size(self.blob(file)) == file.size:
            return file.size
        return min(_size(self.part(file)), file.size)

    def has_blob(self, file: HubFile, abandoned: threading.Event) -> bool:
        """Whether its contents are here and right. Reads all of it, unless `abandoned` is set meanwhile."""
        path = self.blob(file)
        if _size(path) != file.size:
            return False
        digest = hashlib.sha256()
        with path.open("rb") as opened:
            while not abandoned.is_set() and (block := opened.read(BLOCK)):
                digest.update(block)
        return digest.hexdigest() == file.sha256

    def keep(self, file: HubFile) -> None:
        """What has arrived is whole and right: give it its name."""
        os.replace(self.part(file), self.blob(file))
        sync_folder(self.blobs)

    def place(self, listing: Listing, model: HubModel, revision: str) -> Path:
        """Let programs find a model whose files are here. Returns the path of its first file.

        The first file comes last: a model of several is looked for by it.
        """
        for file in reversed(model.all_files):
            self._link(listing.commit, file)
        if revision != listing.commit:
            _write(self.folder.joinpath("refs", *revision.split("/")), listing.commit)
        return self.pointer(listing.commit, model.files[0])

    def _link(self, commit: str, file: HubFile) -> None:
        pointer, blob = self.pointer(commit, file), self.blob(file)
        if self.is_placed(commit, file):
            return
        pointer.parent.mkdir(parents=True, exist_ok=True)
        temporary = pointer.with_name(f".{uuid.uuid4().hex}.tmp")
        try:
            os.symlink(os.path.relpath(blob, pointer.parent), temporary)
        except (OSError, NotImplementedError):
            # No links here, as on Windows without the right to make them: then the file itself lies there.
            os.replace(blob, pointer)
        else:
            os.replace(temporary, pointer)
        sync_folder(pointer.parent)


def folder_of(repo: str) -> str:
    """The name of a repository's folder."""
    return f"{FOLDER}{repo.replace('/', '--')}"


def lock_of(root: Path, folder: str, sha256: str) -> FileLock:
    """The lock on a file of a repository's folder. Makes the folder that it is in.

    Raises:
        OSError: that cannot be made.
    """
    path = root / _LOCKS / folder / f"{sha256}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        temporary.write_text(text, "utf-8")
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
