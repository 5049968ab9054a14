"""What the tests of the installers share: their modules, and a payload in little."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

INSTALLERS = Path(__file__).resolve().parents[2] / "installers"


def _module(name: str) -> ModuleType:
    """One of installers/, whose files are run as programs and belong to no package."""
    sys.path.insert(0, str(INSTALLERS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(INSTALLERS))


@pytest.fixture(scope="session")
def build() -> ModuleType:
    return _module("build")


@pytest.fixture(scope="session")
def payload() -> ModuleType:
    return _module("payload")


@pytest.fixture(scope="session")
def project() -> ModuleType:
    return _module("project")


@pytest.fixture(scope="session")
def inventory() -> ModuleType:
    return _module("inventory")


@pytest.fixture(scope="session")
def nsis() -> ModuleType:
    return _module("nsis")


@pytest.fixture(scope="session")
def debian() -> ModuleType:
    return _module("debian")


@pytest.fixture(scope="session")
def manual() -> ModuleType:
    return _module("manual")


@pytest.fixture
def standin(tmp_path: Path) -> Path:
    """A payload in little: programs, libraries in folders, a link."""
    folder = tmp_path / "payload"
    (folder / "_internal" / "Qt" / "lib").mkdir(parents=True)
    (folder / "lemon-tray.exe").write_bytes(b"program")
    (folder / "lemon-tray-cli.exe").write_bytes(b"command line")
    (folder / "_internal" / "Qt" / "lib" / "Qt6Core.dll").write_bytes(b"qt")
    (folder / "_internal" / "a name with spaces.txt").write_bytes(b"text")
    (folder / "_internal" / "link.dll").symlink_to("Qt/lib/Qt6Core.dll")
    return folder
