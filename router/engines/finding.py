"""Where a llama-server may be on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

PROGRAM: Final = "llama-server"

#: Folders that package managers put programs in; on PATH in a shell, but often not for a desktop's apps.
_FOLDERS: Final = {
    "linux": (
        *("~/.local/bin", "/usr/local/bin", "/usr/bin", "/home/linuxbrew/.linuxbrew/bin", "/snap/bin"),
        *("~/.nix-profile/bin", "/run/current-system/sw/bin", "/opt/llama.cpp/bin", "/opt/llama.cpp"),
        *("~/.local/share/flatpak/exports/bin", "/var/lib/flatpak/exports/bin", "~/llama.cpp/build/bin"),
    ),
    "darwin": (
        *("/opt/homebrew/bin", "/usr/local/bin", "/opt/local/bin", "~/.local/bin", "~/.nix-profile/bin"),
        *("/opt/llama.cpp/bin", "~/llama.cpp/build/bin"),
    ),
    "win32": (
        *("%LOCALAPPDATA%/Microsoft/WinGet/Links", "%ProgramFiles%/WinGet/Links", "%ProgramFiles%/llama.cpp"),
        *("%ProgramFiles%/llama.cpp/bin", "%LOCALAPPDATA%/Programs/llama.cpp", "~/scoop/shims"),
        *("%ProgramData%/chocolatey/bin",),
    ),
}
#: The same, with a part of the name that differs.
_PATTERNS: Final = {
    "linux": ("/opt", "llama*/bin"),
    "darwin": ("/opt", "llama*/bin"),
    "win32": ("%LOCALAPPDATA%/Microsoft/WinGet/Packages", "ggml.llamacpp_*"),
}


def find_programs(
    setting: str = "", environ: Mapping[str, str] | None = None, system: str = sys.platform
) -> tuple[Path, ...]:
    """Programs that may be a llama-server: executable files, each once, the likeliest first.

    First the one that `setting` names, if it is a path; then those on PATH; then those in the places that
    package managers use. A program that is reached by several names is listed by the first. None is run.
    Looks at the disk: call it in a thread.
    """
    variables = os.environ if environ is None else environ
    found: dict[str, Path] = {}
    for path in _candidates(setting, variables, system):
        if not _is_program(path):
            continue
        try:
            found.setdefault(os.path.realpath(path), path)
        except OSError:
            continue
    return tuple(found.values())


def _candidates(setting: str, environ: Mapping[str, str], system: str) -> Iterator[Path]:
    home = environ.get("USERPROFILE" if system == "win32" else "HOME", "")
    name = f"{PROGRAM}.exe" if system == "win32" else PROGRAM
    if ("/" in setting or "\\" in setting) and (named := _expanded(setting, environ, home)):
        yield named
    separator = ";" if system == "win32" else ":"
    for folder in environ.get("PATH", "").split(separator):
        # An empty part is the folder where the program happens to stand.
        if folder and os.path.isabs(folder):
            yield Path(folder, name)
    for text in _FOLDERS.get(system, ()):
        if known := _expanded(text, environ, home):
            yield known / name
    if system in _PATTERNS:
        root, pattern = _PATTERNS[system]
        parent = _expanded(root, environ, home)
        if parent is not None and parent.is_dir():
            yield from (folder / name for folder in sorted(parent.glob(pattern)))


def _expanded(text: str, environ: Mapping[str, str], home: str) -> Path | None:
    """With the user's home and one variable filled in; None if that is not known."""
    if text.startswith("~"):
        if not home:
            return None
        text = home + text[1:]
    if text.startswith("%"):
        variable, _, rest = text[1:].partition("%")
        value = environ.get(variable, "")
        if not value:
            return None
        text = value + rest
    path = Path(text)
    return path if path.is_absolute() else None


def _is_program(path: Path) -> bool:
    try:
        return path.is_file() and os.access(path, os.X_OK)
    except (OSError, ValueError):
        return False
