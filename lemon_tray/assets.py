"""Where the files that come with the app are: inside the package once installed, beside it in a checkout."""

from __future__ import annotations

import functools
from importlib import resources
from pathlib import Path


@functools.cache
def resource_root() -> Path:
    """The folder that holds `icons/`.

    Raises:
        FileNotFoundError: neither the package nor a checkout has it.
    """
    installed = Path(str(resources.files("lemon_tray"))) / "resources"
    checkout = Path(__file__).resolve().parent.parent / "resources"
    for root in (installed, checkout):
        if (root / "icons").is_dir():
            return root
    raise FileNotFoundError(f"no icons in {installed} or {checkout}: reinstall Lemon Tray")


@functools.cache
def icon_svg(name: str) -> bytes:
    """The bytes of `icons/NAME.svg`.

    Raises:
        FileNotFoundError: there is no such icon.
    """
    return (resource_root() / "icons" / f"{name}.svg").read_bytes()
