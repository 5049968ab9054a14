"""The archive in a bare system: installed by a user, started, upgraded while it runs, and removed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from router.version import __version__
from tests.packages.bare import HOME, MODEL, USER, App, Bare, built, ends_with_an_error

pytestmark = [pytest.mark.packages, pytest.mark.timeout(1200)]

#: What the archive takes from the system, and what unpacks it.
WANTED: Final = ("ca-certificates", "fontconfig-config", "libegl1", "libgl1", "libxcb1", "xz-utils")
PROGRAM: Final = f"{HOME}/.local/bin/lemon-tray"


def kept(home: Path) -> set[str]:
    """The files below a home, without what programs make on their own for all others."""
    return {
        str(path.relative_to(home))
        for path in home.rglob("*")
        if (path.is_symlink() or not path.is_dir())
        and "mimeinfo" not in path.name
        and "fontconfig" not in path.parts
    }


def test_the_archive_from_its_installation_to_its_removal(
    bare: Bare, start: Callable[..., App], demo_model: Path
) -> None:
    bare.run("apt-get", "-y", "--no-install-recommends", "install", *WANTED)
    home = bare.root / HOME.lstrip("/")
    for left in home.iterdir():
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    (home / "gguf").mkdir()
    shutil.copyfile(demo_model, home / "gguf" / demo_model.name)
    shutil.copyfile(built(f"lemon-tray-{__version__}-linux-*.tar.xz"), home / "archive.tar.xz")
    bare.run("chown", "-R", f"{USER}:{USER}", HOME)
    given = kept(home)

    bare.run("tar", "-C", HOME, "-xf", f"{HOME}/archive.tar.xz", user=USER)
    unpacked = f"{HOME}/lemon-tray-{__version__}"
    before = bare.files()
    assert "is installed" in bare.run(f"{unpacked}/install.sh", user=USER)
    # Nothing outside the user's home.
    assert bare.files() == before
    assert __version__ in bare.run(PROGRAM, "--version", user=USER)

    app = start(PROGRAM)
    assert app.chat()
    answer = app.stream()
    # In place of the one that runs, which is ended in an orderly way.
    assert "Stopping Lemon Tray" in bare.run(f"{unpacked}/install.sh", user=USER)
    assert ends_with_an_error(answer)
    assert app.ended() == 0

    app = start(PROGRAM)
    assert app.get("/v1/models")["data"][0]["id"] == MODEL
    installed = f"{HOME}/.local/share/lemon-tray-app"
    said = bare.run(f"{installed}/uninstall.sh", user=USER)
    assert "Stopping Lemon Tray" in said
    assert app.ended() == 0
    shutil.rmtree(home / f"lemon-tray-{__version__}")
    left = kept(home) - given
    own = (
        ".config/lemon-tray/",
        ".local/share/lemon-tray/",
        ".local/state/lemon-tray/",
        ".cache/lemon-tray/",
    )
    assert left
    assert [name for name in left if not name.startswith(own)] == []

    bare.run("tar", "-C", HOME, "-xf", f"{HOME}/archive.tar.xz", user=USER)
    bare.run(f"{unpacked}/install.sh", user=USER)
    bare.run(f"{installed}/uninstall.sh", "--purge", user=USER)
    shutil.rmtree(home / f"lemon-tray-{__version__}")
    assert kept(home) == given
