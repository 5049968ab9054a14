"""Vectors of reference phrases on disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from router.policy import vectors
from router.policy.vectors import Vectors, cosine, unit


class Embedder:
    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    async def __call__(self, texts: list[str]) -> list[list[float]]:
        self.asked.append(texts)
        return [[float(len(text)), 1.0] for text in texts]


async def test_only_what_is_missing_is_embedded(tmp_path: Path) -> None:
    embed = Embedder()
    store = Vectors(tmp_path)
    first = await store.of("m", ["a", "bb", "a"], embed)
    assert list(first) == ["a", "bb"]
    assert first["bb"] == pytest.approx(unit([2.0, 1.0]))
    await store.of("m", ["bb", "ccc"], embed)
    await store.of("other", ["a"], embed)
    assert embed.asked == [["a", "bb"], ["ccc"], ["a"]]
    again = Vectors(tmp_path)
    assert (await again.of("m", ["ccc", "a"], embed))["a"] == pytest.approx(unit([1.0, 1.0]))
    assert len(embed.asked) == 3


@pytest.mark.parametrize("content", [b"", b"\xff", b"{}", b"\x82\xa8identity\xa1x\xa7vectors\x80"])
async def test_a_file_that_cannot_be_used_is_made_anew(tmp_path: Path, content: bytes) -> None:
    embed = Embedder()
    await Vectors(tmp_path).of("m", ["a"], embed)
    (file,) = tmp_path.iterdir()
    file.write_bytes(content)
    await Vectors(tmp_path).of("m", ["a"], embed)
    await Vectors(tmp_path).of("m", ["a"], embed)
    assert embed.asked == [["a"], ["a"]]


async def test_a_folder_that_cannot_be_written_harms_nothing(tmp_path: Path) -> None:
    embed = Embedder()
    (tmp_path / "x").write_text("a file where a folder should be")
    store = Vectors(tmp_path / "x" / "vectors")
    for _ in range(2):
        assert list(await store.of("m", ["a"], embed)) == ["a"]
    assert embed.asked == [["a"]]


async def test_what_was_not_used_lately_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "MAX_PHRASES", 3)
    embed = Embedder()
    store = Vectors(tmp_path)
    await store.of("m", ["a", "b", "c"], embed)
    await store.of("m", ["a"], embed)
    await store.of("m", ["d"], embed)
    await store.of("m", ["a", "c", "d"], embed)
    await store.of("m", ["b"], embed)
    assert embed.asked == [["a", "b", "c"], ["d"], ["b"]]


async def test_files_of_models_long_gone_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "MAX_FILES", 2)
    store = Vectors(tmp_path)
    for age, name in enumerate(("one", "two", "three")):
        await store.of(name, ["a"], Embedder())
        os.utime(store._file(name), (age, age))
    assert sorted(tmp_path.iterdir()) == sorted([store._file("two"), store._file("three")])


async def test_a_failure_to_embed_keeps_what_is_known(tmp_path: Path) -> None:
    async def fail(texts: list[str]) -> list[list[float]]:
        raise ValueError("no")

    embed = Embedder()
    store = Vectors(tmp_path)
    await store.of("m", ["a"], embed)
    with pytest.raises(ValueError, match="no"):
        await store.of("m", ["a", "b"], fail)
    assert list(await store.of("m", ["a"], fail)) == ["a"]


def test_the_cosine() -> None:
    assert cosine(unit([1.0, 0.0]), unit([0.0, 3.0])) == 0.0
    assert cosine(unit([1.0, 1.0]), unit([-2.0, -2.0])) == pytest.approx(-1.0)
    assert cosine([1.0 + 1e-9], [1.0]) == 1.0
    with pytest.raises(ValueError, match="dimensions"):
        cosine([1.0], [1.0, 0.0])
    for wrong in ([0.0, 0.0], [float("nan"), 1.0], [float("inf"), 1.0], []):
        with pytest.raises(ValueError, match="direction"):
            unit(wrong)
