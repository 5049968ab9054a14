"""Headers kept on disk."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from router.errors import ConfigError
from router.memory.header import ModelHeader, read_shards
from router.memory.store import HeaderStore
from tests.support import gguf


class Counting:
    """Reads, and counts."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, paths: Sequence[Path]) -> ModelHeader:
        self.count += 1
        return read_shards(paths)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return gguf.write_model(tmp_path / "m.gguf", layers=3)


def test_a_header_is_read_once_and_known_after_a_restart(tmp_path: Path, model: Path) -> None:
    read = Counting()
    store = HeaderStore(tmp_path / "cache", read)
    first = store.get([model])
    assert store.get([model]) == first == read_shards([model])
    assert HeaderStore(tmp_path / "cache", read).get([model]) == first
    assert read.count == 1


@pytest.mark.fault("F26")
def test_a_file_that_changed_is_read_again(tmp_path: Path, model: Path) -> None:
    read = Counting()
    assert HeaderStore(tmp_path / "cache", read).get([model]).block_count == 3
    gguf.write_model(model, layers=4)
    assert HeaderStore(tmp_path / "cache", read).get([model]).block_count == 4
    os.utime(model, ns=(1, 1))
    HeaderStore(tmp_path / "cache", read).get([model])
    assert read.count == 3
    assert len(list((tmp_path / "cache").iterdir())) == 1


@pytest.mark.parametrize(
    "damage", [b"", b"{}", b"[" * 100_000, b"\xff\x00", b'{"format":1,"files":[],"header":3}']
)
def test_what_is_damaged_is_read_anew(tmp_path: Path, model: Path, damage: bytes) -> None:
    read = Counting()
    store = HeaderStore(tmp_path / "cache", read)
    whole = store.get([model])
    (kept,) = (tmp_path / "cache").iterdir()
    kept.write_bytes(damage)
    assert HeaderStore(tmp_path / "cache", read).get([model]) == whole
    assert read.count == 2
    assert HeaderStore(tmp_path / "cache", read).get([model]) == whole
    assert read.count == 2


def test_no_more_than_the_limit_is_kept(tmp_path: Path) -> None:
    read = Counting()
    store = HeaderStore(tmp_path / "cache", read, limit=2)
    models = [gguf.write_model(tmp_path / f"{number}.gguf") for number in range(4)]
    for model in models:
        store.get([model])
    assert len(list((tmp_path / "cache").iterdir())) == 2
    store.get([models[3]])
    assert read.count == 4


def test_a_folder_that_cannot_be_made_is_no_obstacle(tmp_path: Path, model: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    assert HeaderStore(tmp_path / "cache").get([model]).block_count == 3


def test_a_broken_file_is_refused_and_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(ConfigError):
        HeaderStore(tmp_path / "cache").get([path])
    assert not (tmp_path / "cache").exists()


def test_a_missing_file_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        HeaderStore(tmp_path / "cache").get([tmp_path / "gone.gguf"])
