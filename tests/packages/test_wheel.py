"""The wheel in an environment of its own."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from router.version import __version__
from tests.packages.bare import built

pytestmark = pytest.mark.packages


@pytest.fixture
def wheel() -> Path:
    return built(f"lemon_tray-{__version__}-py3-none-any.whl")


def test_it_holds_the_resources_and_no_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "lemon_tray/resources/icons/icon-idle.svg" in names
    assert any(name.startswith("lemon_tray/resources/schemas/") for name in names)
    assert not [name for name in names if name.startswith(("tests/", "resources/", "installers/"))]


def test_its_scripts_run_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    python = environment / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", str(wheel)]
    subprocess.run(pip, check=True)
    # What it depends on is taken from here rather than fetched once more.
    (site,) = (environment / "lib").glob("python*/site-packages")
    theirs = sysconfig.get_path("purelib")
    (site / "theirs.pth").write_text(f"{theirs}\n")
    for script in ("lemon-tray", "lemon-tray-gui"):
        done = subprocess.run(
            [environment / "bin" / script, "--version"], capture_output=True, text=True, check=True
        )
        assert __version__ in done.stdout
    code = (
        "from lemon_tray.assets import icon_svg, resource_root; icon_svg('icon-idle'); print(resource_root())"
    )
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == str(site / "lemon_tray" / "resources")
