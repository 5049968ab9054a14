"""Workers that outlived their router are ended at the next start, and nobody else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from router.engines import leftovers
from router.engines.embedded import EmbeddedEngine
from router.engines.leftovers import Leftovers, Record, started

pytestmark = [
    pytest.mark.fault("F08"),
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a start time is told otherwise"),
]

Process = subprocess.Popen[bytes]


def spawn(code: str) -> Process:
    process = subprocess.Popen(
        [sys.executable, "-c", f"import signal, os; {code}; os.write(1, b'x'); signal.pause()"],
        start_new_session=True,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.read(1)
    return process


@pytest.fixture
def leftover() -> Iterator[Process]:
    with spawn("pass") as process:
        yield process
        process.kill()


@pytest.fixture
def dead_router() -> tuple[int, str]:
    with spawn("pass") as process:
        identity = started(process.pid)
        assert identity is not None
        process.kill()
    return process.pid, identity


def put(folder: Path, pid: int, begun: str | None, router: tuple[int, str]) -> Path:
    assert begun is not None
    path = folder / f"worker-{pid}.json"
    path.write_bytes(msgspec.json.encode(Record(pid, begun, *router)))
    return path


async def reap(folder: Path) -> tuple[int, ...]:
    return await EmbeddedEngine(state_dir=folder).reap_leftovers()


async def test_a_leftover_is_ended_and_forgotten(
    tmp_path: Path, leftover: Process, dead_router: tuple[int, str]
) -> None:
    path = put(tmp_path, leftover.pid, started(leftover.pid), dead_router)
    assert await reap(tmp_path) == (leftover.pid,)
    assert leftover.wait(20) == -signal.SIGTERM
    assert not path.exists()


async def test_a_stubborn_leftover_is_killed(
    tmp_path: Path, dead_router: tuple[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "TERMINATE_S", 0.1)
    monkeypatch.setattr(leftovers, "KILL_S", 30.0)
    with spawn("signal.signal(signal.SIGTERM, signal.SIG_IGN)") as process:
        put(tmp_path, process.pid, started(process.pid), dead_router)
        assert await reap(tmp_path) == (process.pid,)
        assert process.wait(20) == -signal.SIGKILL


async def test_a_process_that_has_the_id_by_now_is_never_touched(
    tmp_path: Path, leftover: Process, dead_router: tuple[int, str]
) -> None:
    path = put(tmp_path, leftover.pid, "another-boot/12345", dead_router)
    assert await reap(tmp_path) == ()
    assert leftover.poll() is None
    assert not path.exists()


async def test_a_worker_whose_router_still_runs_is_left_alone(tmp_path: Path, leftover: Process) -> None:
    own = started(os.getpid())
    assert own is not None
    path = put(tmp_path, leftover.pid, started(leftover.pid), (os.getpid(), own))
    assert await reap(tmp_path) == ()
    assert leftover.poll() is None
    assert path.exists()


async def test_a_worker_that_has_ended_is_forgotten(tmp_path: Path, dead_router: tuple[int, str]) -> None:
    path = put(tmp_path, *dead_router, dead_router)
    assert await reap(tmp_path) == ()
    assert not path.exists()


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'{"pid": "1"}', b"\xff", b'{"pid": -1, "started": ""}'])
async def test_a_damaged_record_is_removed_and_harms_nobody(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "worker-1.json").write_bytes(raw)
    (tmp_path / "notes.txt").write_text("not ours")
    assert await reap(tmp_path) == ()
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


async def test_without_a_folder_there_is_nothing_to_do(tmp_path: Path) -> None:
    assert await EmbeddedEngine().reap_leftovers() == ()
    assert await reap(tmp_path / "absent") == ()


def test_records_come_and_go(tmp_path: Path, leftover: Process) -> None:
    records = Leftovers(tmp_path / "state")
    records.add(leftover.pid)
    (path,) = (tmp_path / "state").iterdir()
    record = msgspec.json.decode(path.read_bytes(), type=Record)
    assert (record.pid, record.started) == (leftover.pid, started(leftover.pid))
    assert (record.router_pid, record.router_started) == (os.getpid(), started(os.getpid()))
    records.remove(leftover.pid)
    records.remove(leftover.pid)
    assert list((tmp_path / "state").iterdir()) == []


def test_start_times_tell_processes_apart(leftover: Process) -> None:
    assert started(leftover.pid) == started(leftover.pid)
    assert started(leftover.pid) != started(os.getpid())
    leftover.kill()
    os.waitid(os.P_PID, leftover.pid, os.WEXITED | os.WNOWAIT)
    assert started(leftover.pid) is None
