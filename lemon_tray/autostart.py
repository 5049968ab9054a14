"""Starting at login, the way each system does it. All of it blocks briefly: call it off the loop."""

from __future__ import annotations

import os
import plistlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from router.errors import RouterError

NAME: Final = "Lemon Tray"
FILE_ID: Final = "lemon-tray"
LABEL: Final = "local.lemon-tray"
RUN_KEY: Final = r"Software\Microsoft\Windows\CurrentVersion\Run"
OPTION: Final = "--hidden"


class Autostart(Protocol):
    """One system's way."""

    def is_on(self) -> bool:
        """Whether the app starts at login, as the system has it now."""

    def turn(self, on: bool) -> None:
        """Start at login from now on, or do not. Raises OSError."""


def start_command(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """What starts this app again: the packaged program, or this Python with the package."""
    if getattr(sys, "frozen", False):
        # The program in an AppImage lies in a folder that is gone when it ends.
        return (environ.get("APPIMAGE") or sys.executable, OPTION)
    return (sys.executable, "-m", "lemon_tray", OPTION)


def for_this_system(environ: Mapping[str, str] = os.environ) -> Autostart:
    """The way of the system that this runs on."""
    command = start_command(environ)
    if sys.platform == "win32":
        return RunKey(command)
    home = Path(environ.get("HOME") or Path.home())
    if sys.platform == "darwin":
        return LaunchAgent(home / "Library" / "LaunchAgents", command)
    config = environ.get("XDG_CONFIG_HOME", "")
    base = Path(config) if os.path.isabs(config) else home / ".config"
    return DesktopEntry(base / "autostart", command)


def turn(autostart: Autostart, on: bool) -> None:
    """As `Autostart.turn`.

    Raises:
        RouterError: saying which file could not be written.
    """
    try:
        autostart.turn(on)
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise RouterError(
            f"Starting at login could not be changed: {error.strerror or error}{where}."
        ) from error


def _write(path: Path, data: bytes) -> None:
    """Replace all or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(data)
    part.replace(path)


def quoted_for_exec(arguments: Sequence[str]) -> str:
    """A command as the `Exec` key of a desktop entry takes it."""
    words = []
    for argument in arguments:
        # A backslash is doubled as text of the file, and again within quotes; a percent sign begins a field.
        text = argument.replace("\\", "\\\\\\\\").replace("%", "%%")
        for sign in ('"', "`", "$"):
            text = text.replace(sign, f"\\\\{sign}")
        words.append(f'"{text}"')
    return " ".join(words)


def _escaped(text: str) -> str:
    """A plain value of a desktop entry."""
    return text.replace("\\", "\\\\")


class DesktopEntry:
    """Linux: an entry in the XDG autostart folder."""

    def __init__(self, folder: Path, command: Sequence[str]) -> None:
        self.path = folder / f"{FILE_ID}.desktop"
        self._command = command

    def is_on(self) -> bool:
        try:
            lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return False
        # Desktops switch an entry off by one of these rather than delete it.
        off = {"Hidden=true", "X-GNOME-Autostart-enabled=false"}
        return not any(line.strip().replace(" ", "") in off for line in lines)

    def turn(self, on: bool) -> None:
        if not on:
            self.path.unlink(missing_ok=True)
            return
        lines = (
            "[Desktop Entry]",
            "Type=Application",
            f"Name={NAME}",
            "Comment=Language models for all your apps on one endpoint",
            f"Exec={quoted_for_exec(self._command)}",
            # Once the program is gone, as when its package was removed, desktops leave the entry alone.
            f"TryExec={_escaped(self._command[0])}",
            f"Icon={FILE_ID}",
            "Terminal=false",
            "X-GNOME-Autostart-enabled=true",
        )
        _write(self.path, "\n".join((*lines, "")).encode())


class LaunchAgent:
    """macOS: a property list that launchd reads at login."""

    def __init__(self, folder: Path, command: Sequence[str]) -> None:
        self.path = folder / f"{LABEL}.plist"
        self._command = command

    def is_on(self) -> bool:
        try:
            content = plistlib.loads(self.path.read_bytes())
        except (OSError, plistlib.InvalidFileException, ValueError):
            return False
        return bool(content.get("RunAtLoad")) and not content.get("Disabled")

    def turn(self, on: bool) -> None:
        if not on:
            self.path.unlink(missing_ok=True)
            return
        content = {
            "Label": LABEL,
            "ProgramArguments": list(self._command),
            "RunAtLoad": True,
            "ProcessType": "Interactive",
        }
        _write(self.path, plistlib.dumps(content))


class RunKey:
    """Windows: a value below the user's Run key."""

    def __init__(self, command: Sequence[str], registry: Any = None) -> None:
        self._command = command
        self._registry = registry

    @property
    def _winreg(self) -> Any:
        if self._registry is None:
            import winreg

            self._registry = winreg
        return self._registry

    def is_on(self) -> bool:
        reg = self._winreg
        try:
            with reg.OpenKey(reg.HKEY_CURRENT_USER, RUN_KEY) as key:
                reg.QueryValueEx(key, NAME)
        except OSError:
            return False
        return True

    def turn(self, on: bool) -> None:
        reg = self._winreg
        with reg.CreateKey(reg.HKEY_CURRENT_USER, RUN_KEY) as key:
            if on:
                # No path may hold a quotation mark there, so quotes around each part are enough.
                line = " ".join(f'"{part}"' for part in self._command)
                reg.SetValueEx(key, NAME, 0, reg.REG_SZ, line)
                return
            try:
                reg.DeleteValue(key, NAME)
            except FileNotFoundError:
                return
