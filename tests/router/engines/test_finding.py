"""Where programs are looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.engines.finding import find_programs


def program(folder: Path, name: str = "llama-server", mode: int = 0o755) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text("")
    path.chmod(mode)
    return path


@pytest.fixture(autouse=True)
def no_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is installed on the machine that runs the tests does not count."""
    monkeypatch.setattr("router.engines.finding._FOLDERS", {"linux": ("~/.local/bin", "%PLACE%/bin")})
    monkeypatch.setattr("router.engines.finding._PATTERNS", {"linux": ("%PLACE%", "llama*/bin")})


def test_the_setting_comes_first_then_path_then_known_places(tmp_path: Path) -> None:
    named = program(tmp_path / "a folder", "my server")
    first, second = program(tmp_path / "one"), program(tmp_path / "two")
    local = program(tmp_path / "home" / ".local" / "bin")
    release = program(tmp_path / "place" / "llama-b9999" / "bin")
    environ = {
        "PATH": f"{tmp_path / 'one'}:{tmp_path / 'none'}::relative:{tmp_path / 'two'}:{tmp_path / 'one'}",
        "HOME": str(tmp_path / "home"),
        "PLACE": str(tmp_path / "place"),
    }
    assert find_programs(str(named), environ, "linux") == (named, first, second, local, release)
    assert find_programs("auto", environ, "linux")[0] == first
    assert find_programs("", {}, "linux") == ()


def test_the_users_home_may_be_in_the_setting(tmp_path: Path) -> None:
    named = program(tmp_path / "engines")
    assert find_programs("~/engines/llama-server", {"HOME": str(tmp_path)}, "linux") == (named,)


def test_only_executable_files_each_once(tmp_path: Path) -> None:
    real = program(tmp_path / "real")
    for name in ("link", "again"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "llama-server").symlink_to(real)
    (tmp_path / "folder" / "llama-server").mkdir(parents=True)
    (tmp_path / "loop").mkdir()
    (tmp_path / "loop" / "llama-server").symlink_to(tmp_path / "loop" / "llama-server")
    program(tmp_path / "plain", mode=0o644)
    parts = ("folder", "loop", "plain", "link", "again", "real")
    environ = {"PATH": ":".join(str(tmp_path / part) for part in parts)}
    assert find_programs("", environ, "linux") == (tmp_path / "link" / "llama-server",)


def test_windows_names(tmp_path: Path) -> None:
    exe = program(tmp_path / "bin", "llama-server.exe")
    assert find_programs("", {"PATH": f"{tmp_path / 'bin'};{tmp_path}"}, "win32") == (exe,)


def test_an_unknown_system_has_its_path(tmp_path: Path) -> None:
    found = program(tmp_path)
    assert find_programs("", {"PATH": str(tmp_path)}, "freebsd") == (found,)
