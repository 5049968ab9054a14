"""Where the app keeps its files, on odd machines."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import platformdirs
import pytest

from router.errors import ConfigError
from router.paths import Paths

NAMES = ("CONFIG", "DATA", "STATE", "CACHE")


def test_a_relative_place_is_no_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As the XDG specification has it; else files would lie wherever the app was started."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for value in ("", "relative/folder"):
        for name in NAMES:
            monkeypatch.setenv(f"XDG_{name}_HOME", value)
        paths = Paths.default()
        assert paths.config_file == tmp_path / ".config" / "lemon-tray" / "config.json"
        assert paths.models_dir == tmp_path / ".local" / "share" / "lemon-tray" / "models"
        assert paths.state_dir == tmp_path / ".local" / "state" / "lemon-tray"
        assert paths.cache_dir == tmp_path / ".cache" / "lemon-tray"


def test_a_user_without_a_home_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: object) -> Path:
        raise RuntimeError("could not determine the home directory")

    monkeypatch.setattr(platformdirs.PlatformDirs, "user_config_path", property(fail))
    with pytest.raises(ConfigError, match="no home folder") as caught:
        Paths.default()
    assert "HOME" in str(caught.value.hint)


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="there are no such folders")
def test_the_session_of_another_user_is_not_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`su` leaves the variable as it was."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert Paths.default().runtime_dir == tmp_path / "lemon-tray"
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    expected = Path(tempfile.gettempdir()) / f"runtime-{os.getuid()}" / "lemon-tray"
    assert Paths.default().runtime_dir == expected
