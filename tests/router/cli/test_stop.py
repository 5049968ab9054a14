"""`stop`, and the call behind it: a real router ends as quitting it does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from router.cli.client import Client, NotRunning
from router.cli.main import main
from router.cli.stop import ask_to_end, wait_until_ended
from router.errors import RouterError
from router.instance import Holder, InstanceLock, read_holder
from router.paths import Paths

# Holds the instance lock until the signal.
HOLDS = """
import signal, sys
from pathlib import Path
from router.instance import InstanceLock
lock = InstanceLock(Path(sys.argv[1]))
assert lock.acquire()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print(flush=True)
signal.sigwait({signal.SIGTERM})
lock.release()
"""


@pytest.fixture
def serving(paths: Paths) -> Iterator[subprocess.Popen[str]]:
    """A real `serve`, which answers."""
    process = subprocess.Popen(
        [sys.executable, "-m", "lemon_tray", "serve", "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert "answers at" in process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


def test_it_ends_the_one_that_runs(
    paths: Paths, serving: subprocess.Popen[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stop"]) == 0
    assert capsys.readouterr().out == "Lemon Tray has ended\n"
    assert serving.wait(30) == 0
    assert "was asked to end" in (paths.log_dir / "lemon-tray.log").read_text()
    assert main(["stop"]) == 3


def test_one_that_does_not_answer_gets_a_signal(paths: Paths) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(paths.state_dir)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        assert main(["stop"]) == 0
        assert process.wait(30) == 0


def test_on_windows_it_is_never_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("a signal was sent"))
    monkeypatch.setattr("router.cli.stop.HAS_SIGNALS", False)
    with pytest.raises(NotRunning, match="does not answer"):
        ask_to_end(Holder(1, 0.0, "x"), Client("http://127.0.0.1:9"))
    with pytest.raises(NotRunning, match="just starting"):
        ask_to_end(Holder(1, 0.0), None)


def test_one_that_is_gone_by_then_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []

    def kill(pid: int, number: int) -> None:
        sent.append((pid, number))
        raise ProcessLookupError

    monkeypatch.setattr(os, "kill", kill)
    ask_to_end(Holder(4242, 0.0), None)
    assert sent == [(4242, signal.SIGTERM)]


def test_one_that_does_not_end_is_told(tmp_path: Path) -> None:
    lock = InstanceLock(tmp_path)
    assert lock.acquire()
    holder = read_holder(tmp_path)
    assert holder is not None
    with pytest.raises(RouterError, match="does not end"):
        wait_until_ended(tmp_path, holder, 0.0)
    lock.release()
    wait_until_ended(tmp_path, holder, 0.0)
