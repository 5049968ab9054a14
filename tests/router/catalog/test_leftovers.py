"""What pulls that did not end left in the cache: shown, and deleted only where nobody wants it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from router.catalog.hub_cache import INCOMPLETE, lock_of
from router.catalog.leftovers import KEPT_S, discard, find_leftovers, sweep
from router.instance import FileLock
from tests.support.hub import sha256

REPO = "models--acme--Tiny-GGUF"
A, B = sha256(b"a"), sha256(b"b")


def left(root: Path, sha: str, size: int = 10, *, repo: str = REPO, age_s: float = 0.0) -> Path:
    path = root / repo / "blobs" / f"{sha}{INCOMPLETE}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    written = time.time() - age_s
    os.utime(path, (written, written))
    return path


def test_ours_are_found_with_their_sizes_and_nothing_else_is(tmp_path: Path) -> None:
    left(tmp_path, A, 10)
    left(tmp_path, B, 20, repo="models--acme--Other--GGUF")
    blobs = tmp_path / REPO / "blobs"
    elsewhere = tmp_path / f"{A}{INCOMPLETE}"
    elsewhere.write_bytes(b"x")
    (blobs / A).write_bytes(b"a whole file")
    (blobs / f"{A}.incomplete").write_bytes(b"another program's")
    (blobs / f"short{INCOMPLETE}").write_bytes(b"no hash")
    (blobs / f"{B}{INCOMPLETE}").symlink_to(elsewhere)
    (tmp_path / "models--linked--GGUF").symlink_to(tmp_path / REPO)
    assert [(each.repo, each.sha256, each.size) for each in find_leftovers(tmp_path)] == [
        ("acme/Other--GGUF", B, 20),
        ("acme/Tiny-GGUF", A, 10),
    ]
    assert sum(each.size for each in discard(tmp_path)) == 30
    assert find_leftovers(tmp_path) == ()
    assert {path.name for path in blobs.iterdir()} == {
        A,
        f"{A}.incomplete",
        f"short{INCOMPLETE}",
        f"{B}{INCOMPLETE}",
    }
    assert elsewhere.exists()
    assert not (tmp_path / "models--acme--Other--GGUF").exists()


def test_a_cache_that_is_not_there_has_none(tmp_path: Path) -> None:
    assert find_leftovers(tmp_path / "none") == ()
    assert discard(tmp_path / "none") == ()


def test_what_is_being_fetched_stays_and_so_do_the_others_of_its_repository(tmp_path: Path) -> None:
    left(tmp_path, A)
    left(tmp_path, B)
    left(tmp_path, A, repo="models--acme--Other-GGUF")
    fetching = lock_of(tmp_path, REPO, B)
    assert fetching.acquire()
    assert [each.repo for each in discard(tmp_path)] == ["acme/Other-GGUF"]
    assert len(find_leftovers(tmp_path)) == 2
    fetching.release()
    assert len(discard(tmp_path)) == 2
    # The locks are given back.
    again = lock_of(tmp_path, REPO, A)
    assert again.acquire()
    again.release()


def test_where_nobody_can_tell_who_fetches_all_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(_lock: FileLock) -> bool:
        raise OSError(38, "Function not implemented")

    left(tmp_path, A)
    monkeypatch.setattr(FileLock, "acquire", no_locks)
    assert discard(tmp_path) == ()
    assert len(find_leftovers(tmp_path)) == 1


def test_only_what_is_long_abandoned_is_swept(tmp_path: Path) -> None:
    left(tmp_path, A, age_s=KEPT_S + 60)
    left(tmp_path, A, repo="models--acme--Young-GGUF", age_s=KEPT_S - 3_600)
    # A pull of several files works on one after the other.
    left(tmp_path, A, repo="models--acme--Both-GGUF", age_s=KEPT_S + 60)
    left(tmp_path, B, repo="models--acme--Both-GGUF")
    sweep(tmp_path)
    assert [each.repo for each in find_leftovers(tmp_path)] == [
        "acme/Both-GGUF",
        "acme/Both-GGUF",
        "acme/Young-GGUF",
    ]
