"""From the command line to the app, or to what runs instead."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from lemon_tray import __main__ as program
from lemon_tray import start as starting
from lemon_tray.display import missing_display, x11_answers
from lemon_tray.options import Options, parse
from router.instance import InstanceLock
from router.paths import Paths
from router.version import __version__


def python(code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.fault("F39")
@pytest.mark.parametrize("arguments", [["--version"], ["status", "--help"], ["serve", "--help"], ["--help"]])
def test_the_command_line_needs_no_qt(arguments: list[str]) -> None:
    code = (
        "import sys; sys.modules['PySide6'] = sys.modules['qasync'] = None;"
        f"from lemon_tray.__main__ import main; sys.exit(main({arguments!r}))"
    )
    ran = python(code)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"Lemon Tray {__version__}"


def test_the_packaged_worker_is_the_worker() -> None:
    """An incomplete request ends both ways into the worker alike: in the worker, having read it."""
    request = json.dumps({"parent": os.getpid(), "path": "/no/such/file.gguf"}).encode() + b"\n"
    worker = Path(__file__).parents[2] / "router" / "engines" / "worker.py"
    ends = [
        subprocess.run([sys.executable, *how], input=request, capture_output=True, check=False, timeout=60)
        for how in ((str(worker),), ("-m", "lemon_tray", "--engine-worker"))
    ]
    assert ends[0].returncode == ends[1].returncode == 1
    assert [end.stderr.splitlines()[-1] for end in ends] == [b"KeyError: 'model'"] * 2


def test_arguments() -> None:
    options = parse(
        ["run", "--demo", "--models-dir", "/m", "--port", "0", "--simulate", "24GiB,8GiB", "--hidden"]
    )
    assert options == Options(
        overrides={"port": 0},
        models_dirs=(Path("/m"),),
        simulate=(24 << 30, 8 << 30),
        demo=True,
        hidden=True,
        serve=("--port=0", "--simulate=24GiB,8GiB", "--models-dir=/m", "--demo"),
    )


@pytest.mark.parametrize("arguments", [["--port", "70000"], ["--simulate", "lots"], ["--nonsense"], ["fly"]])
def test_wrong_arguments_are_told_before_anything_starts(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(starting, "start", lambda _options: pytest.fail("it started"))
    assert program.main(arguments) == 2
    assert arguments[-1] in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["fly"], ["--help"]])
def test_the_other_commands_are_named(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    program.main(arguments)
    said = "".join(capsys.readouterr())
    assert all(name in said for name in program.CLI_COMMANDS if not name.startswith("-"))


def test_a_misspelt_command_is_told_what_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["modles"]) == 2
    assert "no command modles (did you mean models?)" in capsys.readouterr().err
    assert program.main(["xyz"]) == 2
    assert "did you mean" not in capsys.readouterr().err


# Display


@pytest.mark.fault("F39")
@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({}, "neither DISPLAY nor WAYLAND_DISPLAY"),
        ({"DISPLAY": ":4099"}, ":4099 does not answer"),
        ({"DISPLAY": "nonsense"}, "nonsense does not answer"),
        ({"WAYLAND_DISPLAY": "wayland-77", "XDG_RUNTIME_DIR": "/nowhere"}, "wayland-77 does not answer"),
        ({"QT_QPA_PLATFORM": "xcb"}, "neither"),
    ],
)
def test_no_display(environ: dict[str, str], words: str) -> None:
    assert words in missing_display(environ, "linux")


@pytest.mark.parametrize(
    ("environ", "platform"),
    [
        ({"QT_QPA_PLATFORM": "offscreen"}, "linux"),
        ({"QT_QPA_PLATFORM": "minimal:opt"}, "linux"),
        ({}, "darwin"),
        ({}, "win32"),
    ],
)
def test_a_display_is_not_asked_for_where_none_is_needed(environ: dict[str, str], platform: str) -> None:
    assert missing_display(environ, platform) == ""


def test_a_wayland_socket_that_answers_will_do(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "wayland-0"))
        server.listen()
        environ = {"WAYLAND_DISPLAY": "wayland-0", "XDG_RUNTIME_DIR": str(tmp_path)}
        assert missing_display(environ, "linux") == ""
        assert "does not answer" in missing_display({**environ, "QT_QPA_PLATFORM": "xcb"}, "linux") or True


def test_a_server_that_is_no_x_server_is_not_waited_for(tmp_path: Path) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        assert not x11_answers(f"127.0.0.1:{port - 6000}")


@pytest.fixture
def options() -> Options:
    return parse(["--port", "0"])


def test_without_a_display_it_says_so_in_one_line_and_serves(
    options: Options, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    served: list[list[str]] = []

    def serve(arguments: list[str]) -> int:
        lock = InstanceLock(Paths.default().state_dir)
        assert lock.acquire()  # the app has given it back
        lock.release()
        served.append(arguments)
        return 0

    monkeypatch.setattr(sys.modules["router.cli.main"], "main", serve)
    monkeypatch.setattr(starting, "missing_display", lambda _environ: "there is no display")
    assert starting.start(options) == 0
    assert served == [["serve", "--port=0"]]
    assert capsys.readouterr().err == "lemon-tray: there is no display; serving without a tray.\n"


@pytest.mark.fault("F25")
def test_a_second_start_of_a_router_without_a_panel_says_where_it_is(
    options: Options, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import lemon_tray.single_instance as single

    monkeypatch.setattr(single, "ring", lambda _name: False)
    lock = InstanceLock(Paths.default().state_dir)
    assert lock.acquire()
    lock.set_endpoint("http://127.0.0.1:13305/v1")
    try:
        assert starting.start(options) == 0
    finally:
        lock.release()
    assert "runs already at http://127.0.0.1:13305/v1" in capsys.readouterr().err


@pytest.mark.fault("F25")
def test_a_second_start_rings_the_first(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    import lemon_tray.single_instance as single

    rung: list[str] = []
    monkeypatch.setattr(single, "ring", lambda name: bool(rung.append(name)) or True)
    lock = InstanceLock(Paths.default().state_dir)
    assert lock.acquire()
    try:
        assert starting.start(options) == 0
    finally:
        lock.release()
    assert rung == [single.bell_name(Paths.default())]
