"""What the tests of commands share."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.paths import Paths


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    """The app's own places, in a folder of the test's."""
    for kind in ("CONFIG", "DATA", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind))
    return Paths.default()
