"""The settings in force and their file."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import stat
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from router.errors import BadRequest, ConfigError, RouterError, ShuttingDown
from router.settings.files import write_atomically
from router.settings.schema import Settings
from router.settings.store import DiskIO, SettingsStore, peek


class SlowDisk(DiskIO):
    """A disk whose writes wait until they are let through, can fail, and are counted."""

    def __init__(self, *, open_gate: bool = True) -> None:
        self.gate = threading.Event()
        self.begun = threading.Event()
        self.failures: list[OSError] = []
        self.writes: list[dict[str, Any]] = []
        if open_gate:
            self.gate.set()

    def write(self, path: Path, data: bytes) -> None:
        self.begun.set()
        assert self.gate.wait(30)
        if self.failures:
            raise self.failures.pop(0)
        super().write(path, data)
        self.writes.append(json.loads(data))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config" / "config.json"


def put(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")


def loaded(path: Path, environ: Mapping[str, str] | None = None, **more: Any) -> SettingsStore:
    store = SettingsStore(path, environ or {}, **more)
    store.load()
    return store


def written(path: Path) -> Any:
    """What the file says, but for the version that every write records."""
    found = json.loads(path.read_text("utf-8"))
    found.pop("config_version", None)
    return found


# Reading


def test_without_a_file_the_defaults_are_in_force(path: Path) -> None:
    store = loaded(path)
    assert store.settings == Settings()
    assert not store.existed
    assert not store.problems
    assert not store.explicit


def test_the_file_is_in_force(path: Path) -> None:
    put(path, {"max_loaded_models": 3, "models_dirs": ["/m"]})
    store = loaded(path)
    assert (store.settings.max_loaded_models, store.settings.models_dirs) == (3, ("/m",))
    assert store.existed
    assert store.explicit == {"max_loaded_models", "models_dirs"}


@pytest.mark.fault("F20")
@pytest.mark.parametrize(
    "content",
    ["", "{", '{"port": 1,}', '// note\n{"port": 1}', "[]", "null", '{"port": 1, "port": 2}', "[" * 100_000],
)
def test_a_file_that_is_no_json_object_is_set_aside(path: Path, content: str) -> None:
    put(path, content)
    store = loaded(path)
    assert store.settings == Settings()
    assert not path.exists()
    (aside,) = path.parent.glob("config.json.corrupt-*")
    assert aside.read_text("utf-8") == content
    (problem,) = store.problems
    assert str(path) in problem
    assert aside.name in problem


def test_two_files_set_aside_in_one_second_are_both_kept(path: Path) -> None:
    for content in ("{1", "{2", "{3"):
        put(path, content)
        loaded(path)
    assert {p.read_text() for p in path.parent.glob("config.json.corrupt-*")} == {"{1", "{2", "{3"}


@pytest.mark.fault("F20")
def test_a_wrong_value_gives_way_to_its_default_and_the_rest_counts(path: Path) -> None:
    put(path, '{"port": "8080", "auto_evict_threshold_pct": NaN, "parallel": true, "max_loaded_models": 2}')
    store = loaded(path)
    assert store.settings == Settings(max_loaded_models=2)
    assert len(store.problems) == 3
    assert (
        f'{path}: port: expected a whole number from 1 to 65535, or 0 for any free port; got "8080"'
        in (store.problems[0])
    )
    assert "got NaN" in store.problems[1]


@pytest.mark.fault("F20")
async def test_an_unknown_key_is_reported_with_the_nearest_and_kept(path: Path) -> None:
    put(path, {"max_modles": 4, "x": {"y": [1]}})
    store = loaded(path)
    assert "max_modles: no such setting (did you mean max_loaded_models?)" in store.problems[0]
    await store.change({"port": 1}).written
    assert written(path) == {"max_modles": 4, "x": {"y": [1]}, "port": 1}
    await store.close()


async def test_only_what_was_set_is_written(path: Path) -> None:
    store = loaded(path)
    await store.change({"auto_evict": True}).written
    assert written(path) == {"auto_evict": True}
    await store.close()


async def test_an_unreadable_file_is_no_corrupt_one_and_is_not_replaced(path: Path) -> None:
    class Forbidden(DiskIO):
        def read(self, path: Path) -> bytes:
            raise PermissionError(errno.EACCES, "Permission denied")

    put(path, {"port": 1})
    store = loaded(path, io=Forbidden())
    assert "cannot be read (Permission denied)" in store.problems[0]
    with pytest.raises(RouterError, match="Permission denied"):
        await store.change({"port": 2}).written
    assert written(path) == {"port": 1}
    await store.close()


def test_a_folder_in_place_of_the_file_is_reported(path: Path) -> None:
    path.mkdir(parents=True)
    store = loaded(path)
    assert store.settings == Settings()
    assert "cannot be read" in store.problems[0]
    assert path.is_dir()


# Overrides


def test_a_variable_goes_before_the_file_and_the_command_line_before_both(path: Path) -> None:
    put(path, {"port": 1, "parallel": 1, "max_queue": 1})
    store = loaded(path, {"LEMON_TRAY_PORT": "2", "LEMON_TRAY_PARALLEL": "2"}, forced={"parallel": 3})
    assert (store.settings.port, store.settings.parallel, store.settings.max_queue) == (2, 3, 1)
    assert store.overridden == {"port": "LEMON_TRAY_PORT", "parallel": "the command line"}


def test_a_wrong_variable_is_an_error_that_names_it(path: Path) -> None:
    with pytest.raises(ConfigError, match="LEMON_TRAY_PORT is wrong: port: expected") as caught:
        loaded(path, {"LEMON_TRAY_PORT": "http"})
    assert caught.value.param == "LEMON_TRAY_PORT"


def test_a_misspelt_variable_is_reported(path: Path) -> None:
    store = loaded(path, {"LEMON_TRAY_MAX_LOADED_MODEL": "2", "LEMON_TRAY_TEST_CACHE": "/x"})
    assert store.problems == (
        "The environment variable LEMON_TRAY_MAX_LOADED_MODEL is no setting "
        "(did you mean LEMON_TRAY_MAX_LOADED_MODELS?)",
    )


@pytest.mark.fault("F27")
async def test_an_overridden_setting_cannot_be_changed_and_says_why(path: Path) -> None:
    store = loaded(path, {"LEMON_TRAY_PORT": "2"})
    with pytest.raises(BadRequest, match="port: set by LEMON_TRAY_PORT"):
        store.change({"max_queue": 3, "port": 3})
    assert store.settings == Settings(port=2)
    assert not path.exists()


# Changing


async def test_a_change_is_in_force_at_once_and_then_on_disk(path: Path) -> None:
    seen: list[Settings] = []
    store = loaded(path, on_change=seen.append)
    change = store.change({"max_loaded_models": 3})
    assert store.settings.max_loaded_models == change.settings.max_loaded_models == 3
    assert seen == [store.settings]
    assert not change.written.done()
    await change.written
    assert written(path) == {"max_loaded_models": 3}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert loaded(path).settings == store.settings
    await store.close()


async def test_a_refused_change_changes_nothing(path: Path) -> None:
    seen: list[Settings] = []
    store = loaded(path, on_change=seen.append)
    with pytest.raises(BadRequest):
        store.change({"max_queue": 3, "max_loaded_models": 0})
    await store.close()
    assert store.settings == Settings()
    assert not seen
    assert not path.exists()


async def test_a_thousand_edits_take_few_writes_and_the_last_one_wins(path: Path) -> None:
    disk = SlowDisk(open_gate=False)
    store = loaded(path, io=disk)
    changes = [store.change({"max_queue": 1})]
    await asyncio.to_thread(disk.begun.wait, 30)
    changes += [store.change({"max_queue": number}) for number in range(2, 1001)]
    disk.gate.set()
    await asyncio.gather(*(change.written for change in changes))
    assert [write["max_queue"] for write in disk.writes] == [1, 1000]
    assert store.settings.max_queue == 1000
    await store.close()


async def test_edits_that_trickle_in_share_writes(path: Path) -> None:
    disk = SlowDisk()
    store = loaded(path, io=disk, group_s=30.0)
    await store.change({"max_queue": 1}).written
    for number in range(2, 200):
        store.change({"max_queue": number})
        await asyncio.sleep(0)
    # The pause between writes is long: only closing cuts it short.
    await store.close()
    assert written(path) == {"max_queue": 199}
    assert len(disk.writes) <= 3


async def test_a_failed_write_is_taken_back_and_told(path: Path) -> None:
    put(path, {"max_queue": 7})
    disk = SlowDisk()
    disk.failures = [OSError(errno.ENOSPC, "No space left on device")]
    seen: list[Settings] = []
    store = loaded(path, io=disk, on_change=seen.append)
    first = store.change({"max_queue": 8, "auto_evict": True})
    second = store.change({"parallel": 2})
    for change in (first, second):
        with pytest.raises(RouterError, match="No space left on device") as caught:
            await change.written
        assert caught.value.code == "settings_not_written"
    assert store.settings == Settings(max_queue=7)
    assert seen[-1] == store.settings
    assert written(path) == {"max_queue": 7}
    await store.change({"max_queue": 9}).written
    assert written(path) == {"max_queue": 9}
    await store.close()


async def test_taking_back_spares_what_a_later_group_set(path: Path) -> None:
    disk = SlowDisk(open_gate=False)
    disk.failures = [OSError(errno.EIO, "Input/output error")]
    store = loaded(path, io=disk)
    first = store.change({"max_queue": 2, "parallel": 2})
    await asyncio.to_thread(disk.begun.wait, 30)
    second = store.change({"max_queue": 3})
    disk.gate.set()
    with pytest.raises(RouterError):
        await first.written
    await second.written
    assert store.settings == Settings(max_queue=3)
    assert written(path) == {"max_queue": 3}
    await store.close()


async def test_two_failed_groups_go_back_to_what_is_on_disk(path: Path) -> None:
    disk = SlowDisk(open_gate=False)
    disk.failures = [OSError(errno.EIO, "Input/output error"), OSError(errno.EIO, "Input/output error")]
    store = loaded(path, io=disk)
    first = store.change({"max_queue": 2})
    await asyncio.to_thread(disk.begun.wait, 30)
    second = store.change({"max_queue": 3})
    disk.gate.set()
    assert all(
        isinstance(r, RouterError)
        for r in await asyncio.gather(first.written, second.written, return_exceptions=True)
    )
    assert store.settings == Settings()
    await store.close()


async def test_a_waiter_that_gives_up_does_not_stop_the_write(path: Path) -> None:
    disk = SlowDisk(open_gate=False)
    store = loaded(path, io=disk)
    change = store.change({"max_queue": 2})
    other = store.change({"max_queue": 3})
    change.written.cancel()
    disk.gate.set()
    await other.written
    assert written(path) == {"max_queue": 3}
    await store.close()


async def test_persist_waits_for_all_that_was_changed(path: Path) -> None:
    store = loaded(path)
    store.change({"max_queue": 2})
    store.change({"parallel": 2})
    await store.persist()
    assert written(path) == {"max_queue": 2, "parallel": 2}
    await store.persist()
    await store.close()


@pytest.mark.fault("F05")
async def test_closing_writes_what_is_left_and_takes_no_more(path: Path) -> None:
    store = loaded(path)
    for number in range(1, 21):
        store.change({"max_queue": number})
    await store.close()
    assert written(path) == {"max_queue": 20}
    with pytest.raises(ShuttingDown):
        store.change({"max_queue": 1})
    await store.close()


async def test_a_symbolic_link_stays_one(path: Path, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles" / "lemon.json"
    put(real, {"port": 1})
    path.parent.mkdir(parents=True)
    path.symlink_to(real)
    store = loaded(path)
    await store.change({"port": 2}).written
    assert path.is_symlink()
    assert written(real) == {"port": 2}
    assert list(real.parent.iterdir()) == [real]
    await store.close()


@pytest.mark.fault("F34")
async def test_a_path_with_every_odd_character(tmp_path: Path) -> None:
    path = tmp_path / "山 月 ü 'q' \"d\" $HOME ;x" / "config.json"
    store = loaded(path)
    await store.change({"models_dirs": ["/山 月/ü 'q' \"d\" $HOME ;x"]}).written
    assert "山" in path.read_text("utf-8")
    assert loaded(path).settings == store.settings
    await store.close()


def test_a_write_that_fails_leaves_the_old_file_and_no_other(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(path, {"port": 1})

    def fail(_handle: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output"):
        write_atomically(path, b"{}")
    assert written(path) == {"port": 1}
    assert list(path.parent.iterdir()) == [path]


# Edits by others


@pytest.mark.fault("F27")
async def test_an_edit_by_others_is_not_overwritten(path: Path) -> None:
    put(path, {"port": 1})
    store = loaded(path)
    put(path, {"port": 1, "parallel": 4})
    await store.change({"port": 2}).written
    assert written(path) == {"port": 2, "parallel": 4}
    await store.reload()
    assert store.settings == Settings(port=2, parallel=4)
    await store.close()


@pytest.mark.fault("F20")
async def test_reloading_takes_what_is_right_and_keeps_the_rest_as_it_runs(path: Path) -> None:
    put(path, {"parallel": 2, "max_queue": 5})
    seen: list[Settings] = []
    store = loaded(path, on_change=seen.append)
    put(path, '{"parallel": 3, ')
    await store.reload()
    assert store.settings == Settings(parallel=2, max_queue=5)
    assert not seen
    assert str(path) in store.problems[0]
    assert path.exists()
    put(path, {"parallel": 0, "max_queue": 6})
    await store.reload()
    assert store.settings == Settings(parallel=2, max_queue=6)
    assert "parallel: expected" in store.problems[0]
    put(path, {"max_queue": 6})
    await store.reload()
    assert store.settings == Settings(max_queue=6)
    assert not store.problems
    path.unlink()
    await store.reload()
    assert store.settings == Settings(max_queue=6)


async def test_reloading_does_not_undo_a_change_that_is_being_written(path: Path) -> None:
    put(path, {"max_queue": 5})
    disk = SlowDisk(open_gate=False)
    store = loaded(path, io=disk)
    first = store.change({"max_queue": 6})
    await asyncio.to_thread(disk.begun.wait, 30)
    second = store.change({"parallel": 3})
    reloading = asyncio.create_task(store.reload())
    disk.gate.set()
    await asyncio.gather(first.written, second.written, reloading)
    assert store.settings == Settings(max_queue=6, parallel=3)
    await store.close()


async def test_watching_reloads_after_an_edit(path: Path) -> None:
    put(path, {"max_queue": 5})
    changed = asyncio.Event()
    store = loaded(path, on_change=lambda _: changed.set(), interval_s=0.01)
    watch = asyncio.create_task(store.watch())
    await asyncio.sleep(0)
    replacement = path.with_name("new")
    put(replacement, {"max_queue": 60})
    replacement.replace(path)
    await asyncio.wait_for(changed.wait(), 30)
    assert store.settings.max_queue == 60
    watch.cancel()
    await asyncio.wait([watch])


@pytest.mark.fault("F20")
async def test_where_a_file_was_set_aside_is_still_told_once_the_watch_has_looked(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(path, "{oops")
    store = loaded(path, interval_s=0.01)
    told = store.problems
    looks = asyncio.Semaphore(0)
    stamp = store._stamp

    def look() -> object:
        looks.release()
        return stamp()

    monkeypatch.setattr(store, "_stamp", look)
    watch = asyncio.create_task(store.watch())
    for _ in range(3):
        await asyncio.wait_for(looks.acquire(), 30)
    watch.cancel()
    await asyncio.wait([watch])
    assert "set aside" in told[0]
    assert store.problems == told


async def test_a_file_that_became_corrupt_is_set_aside_when_it_must_be_written(path: Path) -> None:
    put(path, {"max_queue": 5})
    store = loaded(path)
    put(path, "{oops")
    await store.change({"parallel": 2}).written
    assert written(path) == {"max_queue": 5, "parallel": 2}
    (aside,) = path.parent.glob("config.json.corrupt-*")
    assert aside.read_text() == "{oops"
    assert aside.name in store.problems[0]
    await store.close()


def test_peek_never_fails(path: Path) -> None:
    assert peek(path, {}, "log_json") is False
    put(path, {"log_json": True})
    assert peek(path, {}, "log_json") is True
    assert peek(path, {"LEMON_TRAY_LOG_JSON": "off"}, "log_json") is False
    put(path, {"log_json": 3})
    assert peek(path, {}, "log_json") is False
    put(path, "{")
    assert peek(path, {}, "log_json") is False
    assert path.exists()
