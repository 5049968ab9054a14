"""Settings files of older and newer versions: what they become, and that nothing is lost on the way."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from router.settings.files import write_atomically
from router.settings.migrations import MOST_COPIES, STEPS, Migrated, Step, back_up, migrate
from router.settings.store import SettingsStore


def rename(raw: dict[str, Any]) -> None:
    """From version 0 to 1 of a made-up history."""
    if "limit" in raw:
        raw["max_loaded_models"] = raw.pop("limit")


def to_list(raw: dict[str, Any]) -> None:
    """From 1 to 2."""
    if isinstance(raw.get("models_dirs"), str):
        raw["models_dirs"] = [raw["models_dirs"]]


HISTORY: Sequence[Step] = (rename, to_list)


@pytest.mark.parametrize(
    ("raw", "becomes", "changed"),
    [
        ({}, {"config_version": 2}, False),
        ({"port": 1}, {"config_version": 2, "port": 1}, False),
        ({"limit": 3}, {"config_version": 2, "max_loaded_models": 3}, True),
        (
            {"limit": 3, "models_dirs": "/a"},
            {"config_version": 2, "models_dirs": ["/a"], "max_loaded_models": 3},
            True,
        ),
        ({"config_version": 1, "models_dirs": "/a"}, {"config_version": 2, "models_dirs": ["/a"]}, True),
        # Of this version already: a key that an older one would have changed is somebody's own.
        ({"config_version": 2, "limit": 3}, {"config_version": 2, "limit": 3}, False),
        (
            {"my own": {"x": [1]}, "limit": 1},
            {"config_version": 2, "my own": {"x": [1]}, "max_loaded_models": 1},
            True,
        ),
    ],
)
def test_each_version_becomes_this_one(raw: dict[str, Any], becomes: dict[str, Any], changed: bool) -> None:
    before = json.dumps(raw)
    found = migrate(raw, HISTORY)
    assert found.raw == becomes
    assert found.changed is changed
    assert not found.newer
    assert not found.problem
    assert json.dumps(raw) == before


def test_a_newer_version_is_read_as_it_is() -> None:
    raw = {"config_version": 9, "limit": 3, "port": 1}
    found = migrate(raw, HISTORY)
    assert (found.raw, found.newer, found.changed) == (raw, True, False)
    assert "newer version" in found.problem


@pytest.mark.parametrize("version", [-1, True, "2", 1.5, None, [1]])
def test_what_is_no_version_is_put_right_and_changes_nothing_else(version: Any) -> None:
    raw = {"config_version": version, "limit": 3}
    found = migrate(raw, HISTORY)
    assert found == Migrated({"config_version": 2, "limit": 3}, 2, False, False, found.problem)
    assert "expected a number" in found.problem
    assert "read as of version 2" in found.problem
    assert raw["config_version"] is version


def test_every_real_step_can_be_repeated() -> None:
    """A crash between the steps and the write leaves the old file, and they run again."""
    raw = {"port": 1, "unknown": [1]}
    once = migrate(raw, STEPS).raw
    assert migrate(once, STEPS).raw == once
    assert {key: once[key] for key in raw} == raw


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config.json"


def store_of(path: Path, steps: Sequence[Step] = HISTORY) -> SettingsStore:
    return SettingsStore(path, {}, steps=steps)


def test_an_old_file_is_copied_before_it_is_written_anew(path: Path) -> None:
    old = '{"limit": 3, "theirs": 1}'
    path.write_text(old)
    store = store_of(path)
    store.load()
    assert store.settings.max_loaded_models == 3
    assert json.loads(path.read_text()) == {"config_version": 2, "theirs": 1, "max_loaded_models": 3}
    assert path.with_name("config.json.v0.bak").read_text() == old
    assert store.explicit == {"max_loaded_models", "theirs"}


def test_who_only_looks_leaves_an_old_file_alone(path: Path) -> None:
    path.write_text('{"limit": 3}')
    assert store_of(path).load(set_aside_corrupt=False).max_loaded_models == 3
    assert path.read_text() == '{"limit": 3}'
    assert list(path.parent.iterdir()) == [path]


def test_a_file_that_only_lacks_the_number_is_not_touched(path: Path) -> None:
    path.write_text('{"port": 5}')
    store_of(path).load()
    assert path.read_text() == '{"port": 5}'
    assert list(path.parent.iterdir()) == [path]


async def test_an_old_file_that_comes_while_running_is_copied_before_a_write(path: Path) -> None:
    store = store_of(path)
    store.load()
    path.write_text('{"limit": 3}')
    await store.change({"port": 5}).written
    assert json.loads(path.read_text()) == {"config_version": 2, "max_loaded_models": 3, "port": 5}
    assert path.with_name("config.json.v0.bak").read_text() == '{"limit": 3}'


async def test_a_newer_file_loses_nothing(path: Path) -> None:
    newer = {"config_version": 9, "port": "tcp:5", "max_loaded_models": 4, "future": {"deep": [1]}}
    path.write_text(json.dumps(newer))
    store = store_of(path)
    store.load()
    assert store.settings.max_loaded_models == 4
    assert any("newer version" in problem for problem in store.problems)
    for limit in (2, 3):
        await store.change({"max_loaded_models": limit}).written
    assert json.loads(path.read_text()) == {**newer, "max_loaded_models": 3}
    copies = list(path.parent.glob("*.bak"))
    assert [copy.name for copy in copies] == ["config.json.v9.bak"]
    assert json.loads(copies[0].read_text()) == newer


class Full:
    """A disk that takes no more."""

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def write(self, path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_file_that_cannot_be_written_anew_is_used_as_this_version_means_it(path: Path) -> None:
    path.write_text('{"limit": 3}')
    store = SettingsStore(path, {}, steps=HISTORY, io=Full())
    assert store.load().max_loaded_models == 3
    assert path.read_text() == '{"limit": 3}'
    assert any("No space left" in problem for problem in store.problems)


def test_copies_are_never_overwritten(path: Path) -> None:
    write_atomically(path, b"{}")
    names = [back_up(path, 0, data).name for data in (b"a", b"b", b"a", b"c")]
    assert names == [
        "config.json.v0.bak",
        "config.json.v0-2.bak",
        "config.json.v0.bak",
        "config.json.v0-3.bak",
    ]
    assert back_up(path, 0, b"d", once=True).name == "config.json.v0.bak"


def test_copies_do_not_pile_up_and_the_first_stays(path: Path) -> None:
    """Each import of another program's settings leaves one."""
    made = []
    for number in range(MOST_COPIES + 3):
        copy = back_up(path, 1, str(number).encode())
        os.utime(copy, (number, number))
        made.append(copy)
    kept = {copy: copy.read_bytes() for copy in path.parent.glob("*.bak")}
    assert len(kept) == MOST_COPIES
    assert kept[path.with_name("config.json.v1.bak")] == b"0"
    newest = {str(number).encode() for number in range(4, MOST_COPIES + 3)}
    assert set(kept.values()) == {b"0", *newest}
    assert back_up(path, 1, b"7") == made[7]
    assert back_up(path, 2, b"7").name == "config.json.v2.bak"
