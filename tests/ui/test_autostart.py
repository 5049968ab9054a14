"""Starting at login on three systems."""

from __future__ import annotations

import plistlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lemon_tray import autostart
from lemon_tray.autostart import DesktopEntry, LaunchAgent, RunKey, quoted_for_exec, start_command
from router.errors import RouterError

COMMAND = ("/opt/Lemon Tray/bin/python", "-m", "lemon_tray", "--hidden")


def test_a_desktop_entry_comes_and_goes(tmp_path: Path) -> None:
    entry = DesktopEntry(tmp_path / "autostart", COMMAND)
    assert not entry.is_on()
    entry.turn(True)
    assert entry.is_on()
    text = entry.path.read_text()
    assert text.startswith("[Desktop Entry]\n")
    assert 'Exec="/opt/Lemon Tray/bin/python" "-m" "lemon_tray" "--hidden"\n' in text
    assert "TryExec=/opt/Lemon Tray/bin/python\n" in text
    assert [p.name for p in entry.path.parent.iterdir()] == ["lemon-tray.desktop"]
    entry.turn(True)
    entry.turn(False)
    assert not entry.is_on()
    entry.turn(False)


@pytest.mark.parametrize("line", ["Hidden=true", "X-GNOME-Autostart-enabled = false"])
def test_an_entry_that_the_desktop_switched_off_is_off(line: str, tmp_path: Path) -> None:
    entry = DesktopEntry(tmp_path, COMMAND)
    entry.turn(True)
    entry.path.write_text(f"{entry.path.read_text()}{line}\n")
    assert not entry.is_on()


@pytest.mark.parametrize(
    ("argument", "quoted"),
    [
        ("plain", '"plain"'),
        ("50%", '"50%%"'),
        ('a"b', '"a\\\\"b"'),
        ("a$b`c", '"a\\\\$b\\\\`c"'),
        ("a\\b", '"a\\\\\\\\b"'),
    ],
)
def test_signs_with_a_meaning_are_quoted(argument: str, quoted: str) -> None:
    assert quoted_for_exec([argument]) == quoted


def test_a_launch_agent_comes_and_goes(tmp_path: Path) -> None:
    agent = LaunchAgent(tmp_path / "LaunchAgents", COMMAND)
    assert not agent.is_on()
    agent.turn(True)
    assert agent.is_on()
    content = plistlib.loads(agent.path.read_bytes())
    assert content["ProgramArguments"] == list(COMMAND)
    agent.path.write_bytes(b"no list")
    assert not agent.is_on()
    agent.turn(False)
    assert not agent.path.exists()


class FakeRegistry(SimpleNamespace):
    HKEY_CURRENT_USER, REG_SZ = 1, 2

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def _key(self, root: int, path: str) -> Any:
        assert (root, path) == (1, autostart.RUN_KEY)
        return self

    OpenKey = CreateKey = _key

    def __enter__(self) -> FakeRegistry:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def QueryValueEx(self, _key: Any, name: str) -> str:
        if name not in self.values:
            raise FileNotFoundError(name)
        return self.values[name]

    def SetValueEx(self, _key: Any, name: str, _reserved: int, _kind: int, value: str) -> None:
        self.values[name] = value

    def DeleteValue(self, _key: Any, name: str) -> None:
        if self.values.pop(name, None) is None:
            raise FileNotFoundError(name)


def test_a_run_key_comes_and_goes() -> None:
    registry = FakeRegistry()
    key = RunKey(("C:\\Program Files\\Lemon Tray\\lemon-tray.exe", "--hidden"), registry)
    assert not key.is_on()
    key.turn(True)
    assert key.is_on()
    assert registry.values == {"Lemon Tray": '"C:\\Program Files\\Lemon Tray\\lemon-tray.exe" "--hidden"'}
    key.turn(False)
    key.turn(False)
    assert not key.is_on()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(RouterError, match="Starting at login could not be changed"):
        autostart.turn(DesktopEntry(blocked / "autostart", COMMAND), True)


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"HOME": "/home/ada"}, "/home/ada/.config/autostart"),
        ({"HOME": "/home/ada", "XDG_CONFIG_HOME": "/c"}, "/c/autostart"),
        ({"HOME": "/home/ada", "XDG_CONFIG_HOME": "relative"}, "/home/ada/.config/autostart"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="the XDG folder is Linux's")
def test_where_the_entry_lies(environ: dict[str, str], folder: str) -> None:
    found = autostart.for_this_system(environ)
    assert isinstance(found, DesktopEntry)
    assert str(found.path.parent) == folder


def test_what_is_started_is_this_program_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    assert start_command() == (sys.executable, "-m", "lemon_tray", "--hidden")
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert start_command({}) == (sys.executable, "--hidden")
    assert start_command({"APPIMAGE": "/apps/lemon.AppImage"}) == ("/apps/lemon.AppImage", "--hidden")


def run_help(command: Sequence[str]) -> str:
    done = subprocess.run([*command[:-1], "--help"], capture_output=True, text=True, cwd="/", check=True)
    return done.stdout


def test_the_command_works_from_any_folder() -> None:
    assert "--hidden" in run_help(start_command())
