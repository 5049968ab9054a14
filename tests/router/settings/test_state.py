"""What the app remembers of itself, where it keeps things, and who runs."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from router.errors import ConfigError, InstanceError
from router.instance import HOLDER_NAME, LOCK_NAME, InstanceLock, read_holder
from router.paths import Paths
from router.settings.state import State, StateFile
from router.settings.watching import Settling, Waker


async def test_state_is_kept_between_runs(tmp_path: Path) -> None:
    first = StateFile(tmp_path / "state")
    assert first.load() == State()
    await first.update(last_run_version="0.1.0")
    await asyncio.gather(*(first.tell(name) for name in ("a", "b", "a")))
    again = StateFile(tmp_path / "state")
    assert again.load() == State(last_run_version="0.1.0", told=("a", "b"))


async def test_what_a_newer_version_remembers_is_kept(tmp_path: Path) -> None:
    state = StateFile(tmp_path)
    state.path.write_text('{"last_run_version": "9.0.0", "of a newer version": [1]}')
    assert state.load().last_run_version == "9.0.0"
    await state.update(last_run_version="0.1.0")
    assert json.loads(state.path.read_text())["of a newer version"] == [1]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"told": 3}', "\xff"])
def test_damaged_state_is_that_of_a_first_run(tmp_path: Path, content: str) -> None:
    state = StateFile(tmp_path)
    state.path.write_text(content, "latin-1")
    assert state.load() == State()


# Paths


def test_the_places_follow_xdg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("CONFIG", "DATA", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    paths = Paths.default()
    assert paths.config_file == tmp_path / "CONFIG" / "lemon-tray" / "config.json"
    assert paths.policies_dir == tmp_path / "CONFIG" / "lemon-tray" / "policies"
    assert paths.models_dir == tmp_path / "DATA" / "lemon-tray" / "models"
    assert paths.state_dir == tmp_path / "STATE" / "lemon-tray"
    assert paths.cache_dir == tmp_path / "CACHE" / "lemon-tray"
    assert paths.runtime_dir == tmp_path / "lemon-tray"


def test_private_folders_are_closed_to_others(tmp_path: Path) -> None:
    paths = Paths.under(tmp_path / "root")
    paths.ensure()
    paths.ensure()
    for folder in (paths.config_file.parent, paths.policies_dir, paths.state_dir, paths.log_dir):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert paths.models_dir.is_dir()


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    paths = Paths.under(tmp_path)
    paths.state_dir.write_text("")
    with pytest.raises(ConfigError, match=str(paths.state_dir)):
        paths.ensure()


# One instance


HOLD = """
import sys
from pathlib import Path
from router.instance import InstanceLock
lock = InstanceLock(Path(sys.argv[1]))
got = lock.acquire()
if got:
    lock.set_endpoint("http://127.0.0.1:1/v1")
print(got, flush=True)
sys.stdin.read()
"""


def hold(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str]) -> None:
    process.communicate("", timeout=30)


@pytest.mark.fault("F25")
def test_of_two_started_at_the_same_moment_one_gets_the_lock(tmp_path: Path) -> None:
    both = [hold(tmp_path), hold(tmp_path)]
    answers = [process.stdout.readline().strip() for process in both if process.stdout]
    assert sorted(answers) == ["False", "True"]
    holder = read_holder(tmp_path)
    assert holder is not None
    assert holder.pid == both[answers.index("True")].pid
    assert holder.endpoint == "http://127.0.0.1:1/v1"
    for process in both:
        finish(process)
    assert read_holder(tmp_path) is None


@pytest.mark.fault("F25")
def test_a_killed_holder_leaves_no_lock_behind(tmp_path: Path) -> None:
    process = hold(tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "True"
    assert not InstanceLock(tmp_path).acquire()
    process.kill()
    finish(process)
    assert (tmp_path / HOLDER_NAME).exists()
    assert read_holder(tmp_path) is None
    lock = InstanceLock(tmp_path)
    assert lock.acquire()
    lock.release()


@pytest.mark.fault("F25")
def test_a_stale_file_with_the_process_id_of_another_program_is_no_instance(tmp_path: Path) -> None:
    (tmp_path / LOCK_NAME).write_text("")
    (tmp_path / HOLDER_NAME).write_text(json.dumps({"pid": os.getppid(), "started": 1.0, "endpoint": "x"}))
    assert read_holder(tmp_path) is None
    lock = InstanceLock(tmp_path)
    assert lock.acquire()
    assert lock.acquire()
    assert lock.held
    assert (holder := read_holder(tmp_path)) is not None
    assert holder.pid == os.getpid()
    lock.release()
    lock.release()
    assert not lock.held
    assert read_holder(tmp_path) is None


def test_a_holder_that_has_not_written_yet_is_held_all_the_same(tmp_path: Path) -> None:
    lock = InstanceLock(tmp_path)
    assert lock.acquire()
    (tmp_path / HOLDER_NAME).write_text("{")
    assert read_holder(tmp_path) is None
    assert not InstanceLock(tmp_path).acquire()
    lock.release()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InstanceError, match="cannot be locked"):
        InstanceLock(tmp_path / "file" / "state").acquire()
    with pytest.raises(InstanceError, match="not held"):
        InstanceLock(tmp_path).set_endpoint("x")


# Watching


def test_a_removal_is_due_only_when_it_lasted() -> None:
    now = 0.0
    settling = Settling(2.0, lambda: now)
    assert not settling.due(["a"])
    now = 1.9
    assert not settling.due(["a", "b"])
    assert settling.pending
    now = 2.0
    assert settling.due(["a", "b"]) == {"a"}
    assert not settling.due(["b"])  # seen again in between: "a" begins anew
    assert settling.due([]) == frozenset()
    assert not settling.pending


async def test_a_watch_survives_a_failure_and_can_be_woken(caplog: pytest.LogCaptureFixture) -> None:
    looks: asyncio.Queue[int] = asyncio.Queue()
    count = 0

    async def look() -> None:
        nonlocal count
        count += 1
        looks.put_nowait(count)
        if count == 1:
            raise OSError("gone")

    waker = Waker(3600)
    task = asyncio.create_task(waker.run(look, "things"))
    assert await looks.get() == 1
    waker.wake()
    assert await asyncio.wait_for(looks.get(), 30) == 2
    assert "changes of things failed" in caplog.text
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.fault("F06")
@pytest.mark.parametrize("turns", range(6))
async def test_a_watch_that_is_woken_and_cancelled_at_once_ends(turns: int) -> None:
    looked = asyncio.Event()

    async def look() -> None:
        looked.set()

    waker = Waker(3600)
    task = asyncio.create_task(waker.run(look, "things"))
    await looked.wait()
    for _ in range(3):
        await asyncio.sleep(0)
    waker.wake()
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=30)
    assert done
    assert task.cancelled()
