"""A virtual desktop for each test."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.desktop import Desktop

TOOLS = ("Xvfb", "openbox", "trayer", "xdotool", "xwininfo", "xprop", "import")
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            if missing and not os.environ.get("CI"):
                item.add_marker(pytest.mark.skip(reason=f"{', '.join(missing)} not installed"))


@pytest.fixture
def bare_desktop(tmp_path: Path) -> Iterator[Desktop]:
    """A screen with a window manager, and no tray."""
    with Desktop(tmp_path / "desktop") as desktop:
        yield desktop


@pytest.fixture
def desktop(bare_desktop: Desktop) -> Desktop:
    """A screen with a window manager and a tray."""
    bare_desktop.start_tray()
    return bare_desktop
