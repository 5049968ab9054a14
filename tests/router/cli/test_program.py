"""The program hands each command to the command line, and everything else to the tray app."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lemon_tray.commands import CLI_COMMANDS
from router.cli.main import parser
from router.cli.plan import render_plan
from router.cli.status import plain
from router.paths import Paths


def test_every_command_of_the_command_line_is_one_of_the_program() -> None:
    [commands] = [a for a in parser()._actions if isinstance(a, argparse._SubParsersAction)]
    assert set(commands.choices) | {"--version"} == CLI_COMMANDS


def run(*arguments: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-P", "-m", "router.cli", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.run(command, check=False, timeout=60, **pipes)  # type: ignore[call-overload,no-any-return]  # options of any kind


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no device that is always full")
def test_output_that_cannot_be_written_is_told_in_one_line(paths: Paths) -> None:
    with open("/dev/full", "wb") as full:
        done = run("config", "get", stdout=full)
    assert done.returncode == 1
    assert done.stderr.decode().splitlines()[-1] == "lemon-tray: The output: No space left on device."
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr


def test_a_reader_that_has_gone_is_no_fault(paths: Paths) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = run("config", "get", "port", stdout=writing)
    finally:
        os.close(writing)
    assert done.returncode == 1
    assert done.stderr.startswith(b"lemon-tray: Lemon Tray is not running; read from")
    assert done.stderr.count(b"\n") == 1


def test_a_name_that_the_terminal_lacks_letters_for_is_shown(paths: Paths, tmp_path: Path) -> None:
    folder = tmp_path / "Übung"
    folder.mkdir()
    done = run(
        *("import", "lemonade", str(folder)),
        env={**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C.UTF-8"},
    )
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"?bung" in done.stderr
    assert b"Traceback" not in done.stderr


def test_sizes_are_found_by_who_searches_the_output() -> None:
    assert plain("1.5\N{NO-BREAK SPACE}GiB of \x1b[2J") == "1.5 GiB of \N{REPLACEMENT CHARACTER}[2J"
    row = {"label": "CPU", "needed": 3 << 29, "parts": {"weights": 1 << 30}}
    shown = render_plan({"model": "m", "verdict": "loaded", "reason": "", "devices": [row]})
    assert "1.5 GiB" in shown
    assert "weights 1.0 GiB" in shown


def test_what_is_wrong_with_the_settings_is_said_once(paths: Paths) -> None:
    paths.config_file.parent.mkdir(parents=True)
    paths.config_file.write_text('{"prot": 1}')
    for command in (("get", "port"), ("set", "max_queue=3")):
        done = run("config", *command)
        assert done.returncode == 0
        lines = done.stderr.decode().splitlines()
        assert sum("prot: no such setting (did you mean port?)" in line for line in lines) == 1
        assert all(line.startswith("lemon-tray: ") for line in lines)
    paths.config_file.write_text("{")
    lines = run("config", "set", "max_queue=4").stderr.decode().splitlines()
    assert sum("it was set aside" in line for line in lines) == 1
