"""What is particular to the installer for Windows: which files it installs, and removes again one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Final

#: What a build on another system than Windows wraps, to check the script: a payload's shape, in little.
STAND_IN: Final = {
    "lemon-tray.exe": b"stands for the tray app",
    "lemon-tray-cli.exe": b"stands for the command line",
    "LICENSE": b"stands for the licence",
    "_internal/python311.dll": b"stands for Python",
    "_internal/PySide6/Qt6Core.dll": b"stands for Qt",
    "_internal/PySide6/plugins/platforms/qwindows.dll": b"stands for a plugin",
    "_internal/lemon_tray/resources/a name with spaces.svg": b"stands for a resource",
}


class Unwritable(ValueError):
    """A file's name cannot be written in the installer's script."""


def stand_in(folder: Path) -> Path:
    """Write the stand-in into the folder; returns it."""
    for name, data in STAND_IN.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def listing(folder: Path) -> str:
    """Two macros for the Windows installer: one installs each file of a folder, one removes each again."""
    entries = sorted(folder.rglob("*"))
    folders = [path for path in entries if path.is_dir() and not path.is_symlink()]
    # A link to a file is that file once more: Windows has no links for everybody.
    found = [path for path in entries if path.is_file()]
    if any("$" in str(path.relative_to(folder)) or '"' in path.name for path in entries):
        raise Unwritable("A file's name cannot be written in the installer's script.")

    def place(path: Path) -> str:
        inside = str(path.relative_to(folder)).replace("/", "\\")
        return "$INSTDIR" if inside == "." else f"$INSTDIR\\{inside}"

    size = sum(path.stat().st_size for path in found)
    lines = [f"!define PAYLOAD_KIB {size // 1024}", "!macro INSTALL_PAYLOAD"]
    for where in (folder, *folders):
        lines.append(f'  SetOutPath "{place(where)}"')
        lines += [f'  File "{path}"' for path in found if path.parent == where]
    lines += ["!macroend", "!macro REMOVE_PAYLOAD"]
    lines += [f'  Delete "{place(path)}"' for path in found]
    lines += [f'  RMDir "{place(path)}"' for path in reversed(folders)]
    return "\n".join([*lines, "!macroend", ""])
