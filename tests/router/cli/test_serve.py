"""`serve` as a process: signals, the lock, the one line. A small router stands in for the real one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from router.instance import read_holder
from router.version import __version__

# Runs the real `serve` with a router whose start, life and stop the arguments decide.
PROGRAM = """
import asyncio, sys, types
behaviour = sys.argv[1]
from router.errors import InstanceError, RouterError
class Router:
    endpoint = "http://127.0.0.1:4242"
    snapshot = types.SimpleNamespace(
        notices=(), models=[types.SimpleNamespace(broken="")] if behaviour == "has-models" else []
    )
    async def pull_demo(self):
        print("pull", file=sys.stderr, flush=True)
        async def end():
            if behaviour == "no-network":
                raise RouterError("The index cannot be reached.")
        return end()
    def __init__(self, paths, *, overrides, models_dirs, simulate):
        print("given", sorted(overrides.items()), [p.name for p in models_dirs], simulate, file=sys.stderr)
    async def start(self):
        if behaviour == "taken":
            raise InstanceError("Port 4242 is taken by nginx.", hint="Choose another: --port")
        if behaviour == "slow-start":
            print("starting", file=sys.stderr, flush=True)
            await asyncio.Event().wait()
    async def stop(self):
        print("stopping", file=sys.stderr, flush=True)
        if behaviour == "slow-stop":
            await asyncio.Event().wait()
        print("stopped", type(asyncio.get_running_loop()).__module__, file=sys.stderr, flush=True)
service = types.ModuleType("router.service")
service.Router = Router
sys.modules["router.service"] = service
from router.cli import main
sys.exit(main(["serve", *sys.argv[2:]]))
"""


class Process:
    def __init__(self, environ: dict[str, str], behaviour: str, *argv: str) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, behaviour, *argv],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.err = ""

    def line(self) -> str:
        assert self.popen.stdout is not None
        return self.popen.stdout.readline()

    def until(self, text: str) -> None:
        """Read the standard error until a line holds the text."""
        assert self.popen.stderr is not None
        for line in self.popen.stderr:
            self.err += line
            if text in line:
                return
        raise AssertionError(f"{text!r} never came in:\n{self.err}")

    def end(self) -> tuple[int, str]:
        out, err = self.popen.communicate(timeout=60)
        self.err += err
        return self.popen.returncode, out


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    given = dict(os.environ)
    for kind in ("CONFIG", "DATA", "STATE", "CACHE"):
        given[f"XDG_{kind}_HOME"] = str(tmp_path / kind)
    return given


@pytest.fixture
def start(environ: dict[str, str]) -> Iterator[list[Process]]:
    started: list[Process] = []
    yield started
    for process in started:
        process.popen.kill()
        process.popen.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_one_line_then_a_signal_then_exit_status_zero(
    environ: dict[str, str], start: list[Process], tmp_path: Path, number: int
) -> None:
    process = Process(
        environ, "plain", "--port", "0", "--models-dir", "m", "--simulate", "1GiB,2GiB", "--log-json"
    )
    start.append(process)
    assert process.line() == f"Lemon Tray {__version__} answers at http://127.0.0.1:4242/v1\n"
    holder = read_holder(tmp_path / "STATE" / "lemon-tray")
    assert holder is not None
    assert (holder.pid, holder.endpoint) == (process.popen.pid, "http://127.0.0.1:4242/v1")
    process.popen.send_signal(number)
    assert process.end() == (0, "")
    assert "given [('log_json', True), ('port', 0)] ['m'] (1073741824, 2147483648)" in process.err
    assert "stopped uvloop" in process.err
    assert read_holder(tmp_path / "STATE" / "lemon-tray") is None


@pytest.mark.skipif(sys.platform != "linux", reason="it is read from /proc what a process ignores")
def test_under_nohup_it_outlives_its_terminal(environ: dict[str, str], start: list[Process]) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = Process(environ, "plain")
    finally:
        signal.signal(signal.SIGHUP, before)
    start.append(process)
    assert process.line()
    status = Path(f"/proc/{process.popen.pid}/status").read_text()
    (ignored,) = (int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigIgn:"))
    assert ignored & 1 << (signal.SIGHUP - 1)
    process.popen.send_signal(signal.SIGTERM)
    assert process.end() == (0, "")


def test_a_signal_while_it_starts_ends_it_too(environ: dict[str, str], start: list[Process]) -> None:
    process = Process(environ, "slow-start")
    start.append(process)
    process.until("starting")
    process.popen.send_signal(signal.SIGTERM)
    assert process.end() == (0, "")
    assert "stopped" in process.err


def test_the_second_signal_ends_it_at_once(environ: dict[str, str], start: list[Process]) -> None:
    process = Process(environ, "slow-stop")
    start.append(process)
    assert process.line()
    process.popen.send_signal(signal.SIGINT)
    process.until("stopping")
    process.popen.send_signal(signal.SIGTERM)
    assert process.end()[0] == -signal.SIGTERM


@pytest.mark.fault("F25")
def test_a_second_instance_says_where_the_first_is(environ: dict[str, str], start: list[Process]) -> None:
    first = Process(environ, "plain")
    start.append(first)
    assert first.line()
    second = Process(environ, "plain")
    start.append(second)
    assert second.end() == (1, "")
    assert second.err == (
        f"lemon-tray: Lemon Tray runs already at http://127.0.0.1:4242/v1 (process {first.popen.pid}). "
        "(ask it with: lemon-tray status)\n"
    )
    first.popen.kill()
    first.end()
    third = Process(environ, "plain")
    start.append(third)
    assert third.line().startswith("Lemon Tray")


@pytest.mark.fault("F25")
def test_a_taken_port_is_one_clear_line(environ: dict[str, str], start: list[Process]) -> None:
    process = Process(environ, "taken")
    start.append(process)
    assert process.end() == (1, "")
    assert "lemon-tray: Port 4242 is taken by nginx. (Choose another: --port)\n" in process.err
    assert "Traceback" not in process.err


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [("plain", "The demo model is here"), ("no-network", "did not arrive: The index cannot be reached.")],
)
def test_the_demo_model_is_fetched_on_request_and_a_failure_ends_nothing(
    environ: dict[str, str], start: list[Process], behaviour: str, said: str
) -> None:
    process = Process(environ, behaviour, "--demo")
    start.append(process)
    assert "answers at" in process.line()
    assert process.line().startswith("Fetching the demo model")
    assert said in process.line()
    assert process.popen.poll() is None
    process.popen.send_signal(signal.SIGTERM)
    assert process.end() == (0, "")


def test_who_has_models_gets_no_demo(environ: dict[str, str], start: list[Process]) -> None:
    process = Process(environ, "has-models", "--demo")
    start.append(process)
    assert "answers at" in process.line()
    process.popen.send_signal(signal.SIGTERM)
    assert process.end() == (0, "")
    assert "pull" not in process.err
