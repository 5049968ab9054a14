"""A model folder of small text files, read by a reader that stands in for the header's."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from router.catalog.catalog import Catalog
from router.errors import ConfigError
from router.memory.header import ModelHeader
from router.settings.watching import Settling


def header(
    architecture: str = "llama", weights: int = 1, kind: str = "", width: str = "8", projects: str = "0"
) -> ModelHeader:
    return ModelHeader(
        architecture=architecture,
        name="",
        context_length=4096,
        block_count=1,
        embedding_length=int(width),
        feed_forward_length=8,
        head_count=1,
        head_count_kv=(1,),
        key_length=8,
        value_length=8,
        vocab_size=8,
        weights_bytes=weights,
        token_embd_bytes=1,
        kind=kind,
        projection_length=int(projects),
    )


class Reader:
    """Takes the first word of a file for its architecture, and others such as `kind=adapter` for more.

    It refuses `bad`, and remembers what it read.
    """

    def __init__(self) -> None:
        self.read: list[str] = []
        self.before: Callable[[Path], None] = lambda _path: None

    def __call__(self, paths: Sequence[Path]) -> ModelHeader:
        path = paths[0]
        self.before(path)
        self.read.append(path.name)
        words = path.read_text("utf-8").split()
        if not words or words[0] == "bad":
            raise ConfigError(f"{path.name} is no GGUF file.")
        return header(
            words[0],
            sum(each.stat().st_size for each in paths),
            **dict(word.split("=") for word in words[1:] if "=" in word),
        )


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def type_of(found: ModelHeader) -> str:
    return "embedding" if found.architecture == "bert" else "llm"


@pytest.fixture
def reader() -> Reader:
    return Reader()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "models"
    made.mkdir()
    return made


@pytest.fixture
def catalog(folder: Path, reader: Reader, clock: Clock) -> Catalog:
    return Catalog([folder], read=reader, type_of=type_of, settling=Settling(2.0, clock), interval_s=0.01)


def put(path: Path, text: str = "llama") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return path


def age(path: Path) -> None:
    """Make a folder look as if nothing had changed in it for an hour."""
    found = path.stat()
    os.utime(path, ns=(found.st_atime_ns - 3_600_000_000_000, found.st_mtime_ns - 3_600_000_000_000))
