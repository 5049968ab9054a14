"""The installer for Windows, as far as another system can tell: its script, and what it holds."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from platformdirs import windows

from lemon_tray.commands import CLI_COMMANDS
from router.paths import APP_NAME

ROOT = Path(__file__).resolve().parents[2]
INSTALLERS = ROOT / "installers"


SCRIPT = (INSTALLERS / "windows" / "lemon-tray.nsi").read_text("utf-8")


def section(name: str) -> str:
    found = re.search(
        rf'^Section (?:/o )?"{re.escape(name)}".*?^SectionEnd', SCRIPT, re.MULTILINE | re.DOTALL
    )
    assert found is not None
    return found[0]


#: Instructions that change nothing outside the installer's own variables and windows.
HARMLESS = {
    "Abort", "Call", "ClearErrors", "FileClose", "FileOpen", "IntOp", "MessageBox", "Pop", "ReadEnvStr",
    "Return", "SectionIn", "SetErrorLevel", "SetOutPath", "SetShellVarContext", "Sleep", "StrCpy",
}  # fmt: skip
#: Those that write what the uninstaller has to take away.
WRITING = {"CreateShortcut", "WriteRegStr", "WriteRegDWORD", "WriteUninstaller"}
#: Those that take away, or run something.
OTHERS = {"Delete", "ExecWait", "nsExec::Exec"}


def instructions(text: str) -> list[tuple[str, list[str]]]:
    """Each instruction of a piece of the script with its arguments; comments, labels and logic left out."""
    found = []
    for line in text.splitlines():
        words = [a or b or c for a, b, c in re.findall(r"\"([^\"]*)\"|'([^']*)'|(\S+)", line.strip())]
        if (
            not words
            or words[0].startswith((";", "!", "${", "Section", "Function"))
            or words[0].endswith(":")
        ):
            continue
        found.append((words[0], words[1:]))
    return found


def functions_for_installing() -> str:
    """Functions that the installing sections call, with the macros that they are made of."""
    bodies = re.findall(
        r"^(?:Function (?!un\.)|!macro (?!MUI_)).*?^(?:FunctionEnd|!macroend)", SCRIPT, re.M | re.S
    )
    assert len(bodies) >= 3
    return "\n".join(bodies)


def test_the_uninstaller_removes_all_that_the_installer_writes() -> None:
    installing = instructions(section("${NAME}") + section("Start at login"))
    removing = instructions(section("Uninstall"))
    written = 0
    for name, given in installing:
        if name.startswith("WriteReg"):
            root, key, value, *_ = given
            undone = ("DeleteRegKey", [root, key]), ("DeleteRegValue", [root, key, value])
            assert any(each in removing for each in undone), (key, value)
        elif name in ("CreateShortcut", "WriteUninstaller"):
            assert ("Delete", given[:1]) in removing, given
        written += name in WRITING
    assert written >= 12
    assert "INSTALL_PAYLOAD" in section("${NAME}")
    assert "REMOVE_PAYLOAD" in section("Uninstall")


def test_nothing_else_of_the_installer_writes_and_nobody_elses_registry_is_touched() -> None:
    everything = instructions(section("${NAME}") + section("Start at login") + functions_for_installing())
    used = {name for name, _ in everything}
    assert used <= HARMLESS | WRITING | OTHERS, used - HARMLESS - WRITING - OTHERS
    assert {given[0] for name, given in everything if name.startswith("WriteReg")} == {"HKCU"}
    assert not re.search(r"\b(HKLM|HKCR|HKU|SHCTX)\b", SCRIPT)
    assert {given[0] for name, given in everything if name == "Delete"} == {"$INSTDIR\\uninstall.exe"}


def test_it_is_asked_to_quit_before_anything_of_it_goes_and_ended_by_force_only_silently() -> None:
    for name in ("${NAME}", "Uninstall"):
        calls = [line.strip() for line in section(name).splitlines()]
        waits = next(i for i, line in enumerate(calls) if line.endswith("WaitUntilItHasEnded"))
        writes = next(i for i, line in enumerate(calls) if "_PAYLOAD" in line)
        assert waits < writes
    found = re.search(r"^Function \$\{un\}WaitUntilItHasEnded.*?^FunctionEnd", SCRIPT, re.M | re.S)
    assert found is not None
    waiting = found[0]
    assert (
        waiting.index('lemon-tray-cli.exe" stop')
        < waiting.index("${If} ${Silent}")
        < waiting.index("taskkill")
    )
    # The user is asked first, where one looks on.
    assert waiting.index("MB_OKCANCEL") < waiting.index('" stop')
    assert "stop" in CLI_COMMANDS


def test_only_the_users_own_data_is_removed_as_a_whole_and_only_when_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    removed = re.findall(r'RMDir /r "(.*)"', SCRIPT)
    # All places of the app's on Windows are below those.
    local = "C:\\Users\\x\\AppData\\Local"
    monkeypatch.setattr(windows, "get_win_folder", lambda name: local)
    places = windows.Windows(APP_NAME, appauthor=False)
    below = [folder.replace("$LOCALAPPDATA", local).replace("${ID}", APP_NAME) for folder in removed]
    for kind in ("config", "data", "state", "cache", "log", "runtime"):
        place = getattr(places, f"user_{kind}_dir").replace("/", "\\")
        assert any(place == folder or place.startswith(f"{folder}\\") for folder in below), place
    assert len(removed) == 2
    assert "RMDir /r" not in SCRIPT.replace(section("Uninstall"), "")
    asked, _ = section("Uninstall").split("RMDir /r", 1)
    assert "MB_DEFBUTTON2" in asked
    assert "/SD IDNO" in asked
    assert "UPGRADE" in asked


def test_it_needs_no_administrator_and_upgrades_in_place() -> None:
    assert "RequestExecutionLevel user" in SCRIPT
    assert "InstallDirRegKey HKCU" in SCRIPT
    assert '"--hidden"' in section("Start at login")
    assert SCRIPT.count("Section /o") == 1


def test_each_file_of_the_payload_is_installed_and_removed(nsis: ModuleType, standin: Path) -> None:
    listing = nsis.listing(standin)
    installs, removes = listing.split("!macroend")[:2]
    placed = set()
    where = ""
    for line in installs.splitlines():
        if found := re.match(r'\s*SetOutPath "(.*)"', line):
            where = found[1]
        elif found := re.match(r'\s*File "(.*)"', line):
            placed.add(f"{where}\\{Path(found[1]).name}")
    assert placed == set(re.findall(r'Delete "(.*)"', removes))
    assert len(placed) == 5
    folders = re.findall(r'RMDir "(.*)"', removes)
    assert folders == sorted(folders, reverse=True)
    assert {name.rsplit("\\", 1)[0] for name in placed} - {"$INSTDIR"} <= set(folders)


def test_the_windows_installer_compiles_and_holds_the_payload(
    build: ModuleType, standin: Path, tmp_path: Path
) -> None:
    if shutil.which("makensis") is None or shutil.which("7z") is None:
        pytest.skip("makensis and 7z (packages nsis and p7zip-full) are not installed")
    builder = build.Builder(given=standin, out=tmp_path / "out", fast=True)
    builder.build = tmp_path / "build"
    builder.nsis()
    (setup,) = (tmp_path / "out").glob("*-setup.exe")
    unpacked = tmp_path / "unpacked"
    subprocess.run(["7z", "x", "-bd", f"-o{unpacked}", setup], check=True, capture_output=True)

    def sums(folder: Path) -> dict[str, str]:
        return {
            str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in folder.rglob("*")
            if path.is_file()
        }

    held = sums(unpacked)
    assert held.pop("uninstall.exe")
    assert {name: digest for name, digest in held.items() if not name.startswith("$PLUGINSDIR")} == sums(
        standin
    )


def test_on_other_systems_the_script_is_compiled_from_a_stand_in_that_nobody_takes_for_the_real_one(
    build: ModuleType, nsis: ModuleType, tmp_path: Path
) -> None:
    if shutil.which("makensis") is None or sys.platform == "win32":
        pytest.skip("makensis (package nsis) is not installed, or this builds the real one")
    builder = build.Builder(out=tmp_path / "dist", fast=True)
    builder.build = tmp_path / "build"
    builder.nsis()
    assert not (tmp_path / "dist").exists()
    assert list((tmp_path / "build").glob("*-setup.exe"))
    stand_in = {
        str(path.relative_to(tmp_path / "build" / "stand-in"))
        for path in (tmp_path / "build" / "stand-in").rglob("*")
        if path.is_file()
    }
    assert stand_in == set(nsis.STAND_IN)


def test_a_name_that_the_script_cannot_hold_stops_the_build(nsis: ModuleType, standin: Path) -> None:
    (standin / "a$b").write_bytes(b"")
    with pytest.raises(nsis.Unwritable):
        nsis.listing(standin)
