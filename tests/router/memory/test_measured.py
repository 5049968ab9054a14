"""What loads were seen to take, kept across restarts."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.memory import measured
from router.memory.measured import Measured, Seen, key_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "measured.json"


def test_the_most_that_was_seen_is_kept_across_a_restart(path: Path) -> None:
    first = Measured(path)
    first.load()
    assert not first.is_dirty
    first.note("k", {"gpu": 5, "host": 2})
    first.note("k", {"gpu": 3, "other": 1})
    first.ran_short("k")
    assert first.is_dirty
    first.save()
    assert not first.is_dirty
    second = Measured(path)
    second.load()
    assert second.get("k") == Seen({"gpu": 5, "host": 2, "other": 1}, 1.25)
    assert second.get("x") is None
    second.note("k", {"gpu": 4})
    assert not second.is_dirty


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"format":1,"seen":{"k":{"devices":{"g":"5"}}}}', b"\xff" * 100, b"[" * 100_000],
)
def test_a_damaged_file_is_as_good_as_none(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    kept = Measured(path)
    kept.load()
    assert kept.get("k") is None
    kept.note("k", {"g": 1})
    kept.save()
    again = Measured(path)
    again.load()
    assert again.get("k") == Seen({"g": 1})


def test_figures_that_cannot_be_are_left_out(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(
        b'{"format":1,"seen":{"a":{"devices":{"g":-1},"factor":1.0},"b":{"devices":{},"factor":9.0},'
        b'"c":{"devices":{"g":7},"factor":1.5}}}'
    )
    kept = Measured(path)
    kept.load()
    assert [kept.get(key) is not None for key in "abc"] == [False, False, True]


def test_another_format_is_not_read(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b'{"format":99,"seen":{"c":{"devices":{"g":7},"factor":1.5}}}')
    kept = Measured(path)
    kept.load()
    assert kept.get("c") is None


def test_only_so_many_are_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "MAX_ENTRIES", 3)
    kept = Measured(path)
    for key in "abcd":
        kept.note(key, {"g": 1})
    kept.note("b", {"g": 2})
    kept.note("e", {"g": 1})
    assert [key for key in "abcde" if kept.get(key)] == ["b", "d", "e"]


def test_without_a_place_nothing_is_written(tmp_path: Path) -> None:
    kept = Measured()
    kept.note("k", {"g": 1})
    kept.save()
    kept.load()
    assert kept.get("k") == Seen({"g": 1})
    assert list(tmp_path.iterdir()) == []


def test_keys_differ_by_every_part() -> None:
    assert key_of("a", 1) == key_of("a", 1)
    assert len({key_of("a", 1), key_of("a", 2), key_of("b", 1), key_of(("a", 1))}) == 4
    assert key_of("\udcff")
