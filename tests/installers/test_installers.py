"""The installers' scripts: what they would put where, and that they take all of it away again."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import json
import os
import plistlib
import re
import shutil
import ssl
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import dev
from router.version import __version__

ROOT = Path(__file__).resolve().parents[2]
INSTALLERS = ROOT / "installers"


@pytest.fixture(scope="module")
def build() -> ModuleType:
    sys.path.insert(0, str(INSTALLERS))
    try:
        import build

        return build
    finally:
        sys.path.remove(str(INSTALLERS))


@pytest.fixture
def standin(tmp_path: Path) -> Path:
    """A payload in little: a program, libraries in folders, a link."""
    folder = tmp_path / "payload"
    (folder / "_internal" / "Qt" / "lib").mkdir(parents=True)
    (folder / "lemon-tray.exe").write_bytes(b"program")
    (folder / "_internal" / "Qt" / "lib" / "Qt6Core.dll").write_bytes(b"qt")
    (folder / "_internal" / "a name with spaces.txt").write_bytes(b"text")
    (folder / "_internal" / "link.dll").symlink_to("Qt/lib/Qt6Core.dll")
    return folder


# --- what goes in ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("PySide6/Qt/lib/libQt6Core.so.6", True),
        ("PySide6/Qt/lib/libQt6Widgets.so.6", True),
        ("PySide6/Qt/lib/libQt6Quick.so.6", False),
        ("PySide6\\Qt6Quick.dll", False),
        ("PySide6\\Qt6Network.dll", True),
        ("PySide6/Qt/lib/QtQml.framework/Versions/A/QtQml", False),
        ("PySide6/Qt/lib/QtGui.framework/Versions/A/QtGui", True),
        ("PySide6/Qt/plugins/platforms/libqxcb.so", True),
        ("PySide6/Qt/plugins/platforms/libqoffscreen.so", True),
        ("PySide6/Qt/plugins/platforms/libqminimal.so", False),
        ("PySide6\\plugins\\platforms\\qwindows.dll", True),
        ("PySide6\\plugins\\platforms\\qdirect2d.dll", False),
        ("PySide6/Qt/plugins/platforms/libqcocoa.dylib", True),
        ("PySide6/Qt/plugins/imageformats/libqsvg.so", True),
        ("PySide6/Qt/plugins/imageformats/libqpdf.so", False),
        ("PySide6/Qt/plugins/sqldrivers/libqsqlite.so", False),
        ("PySide6/Qt/plugins/platformthemes/libqgtk3.so", False),
        ("PySide6/Qt/plugins/platformthemes/libqxdgdesktopportal.so", True),
        ("PySide6/Qt/translations/qt_de.qm", False),
        ("libgtk-3.so.0", False),
        ("libglib-2.0.so.0", True),
        ("xllamacpp/xllamacpp.abi3.so", True),
        ("lemon_tray/resources/icons/icon-idle.svg", True),
    ],
)
def test_qt_is_trimmed_to_what_is_used(build: ModuleType, name: str, wanted: bool) -> None:
    assert build.payload.wanted(name) is wanted


def test_no_module_that_the_app_imports_is_left_out(build: ModuleType) -> None:
    source = "".join(path.read_text() for path in (ROOT / "lemon_tray").rglob("*.py"))
    used = set(re.findall(r"^\s*from PySide6\.(\w+) import", source, re.MULTILINE))
    assert used >= {"QtCore", "QtGui", "QtWidgets"}
    assert not used & {name.removeprefix("PySide6.") for name in build.payload.EXCLUDED_MODULES}
    assert not used & {f"Qt{name}" for name in build.payload.DROPPED_LIBRARIES}


def test_everything_imported_by_name_only_is_told_to_the_builder(build: ModuleType) -> None:
    named = set()
    for package in ("router", "lemon_tray"):
        for path in (ROOT / package).rglob("*.py"):
            named |= set(re.findall(r'import_module\("([\w.]+)"\)', path.read_text()))
    assert named
    assert named <= set(build.payload.HIDDEN_IMPORTS)
    for name in build.payload.HIDDEN_IMPORTS:
        if name.startswith("router."):
            assert (ROOT / f"{name.replace('.', '/')}.py").is_file()


def test_certificates_are_found_on_other_systems_than_the_builders(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spec = importlib.util.spec_from_file_location("start", INSTALLERS / "start.py")
    assert spec is not None
    assert spec.loader is not None
    start = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(start)
    bundle = tmp_path / "bundle.crt"
    bundle.touch()
    monkeypatch.setattr(start, "BUNDLES", (str(tmp_path / "none"), str(bundle)))
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: SimpleNamespace(cafile=None, capath=None))
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    monkeypatch.setenv("SSL_CERT_FILE", "mine")
    start.trust()
    assert os.environ["SSL_CERT_FILE"] == "mine"
    monkeypatch.delenv("SSL_CERT_FILE")
    start.trust()
    assert os.environ["SSL_CERT_FILE"] == str(bundle)


def test_the_version_is_in_one_place(build: ModuleType) -> None:
    assert __version__ == build.VERSION
    for path in INSTALLERS.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            assert __version__ not in path.read_text("utf-8"), path


def test_what_the_payload_is_made_of_exists(build: ModuleType) -> None:
    assert all((ROOT / name).exists() for name in (*build.SOURCES, *build.SOURCES_BESIDES))
    for name in build.SOURCES[3:]:
        assert Path(ROOT / name).is_file()


def test_a_dry_run_prints_every_command_and_writes_nothing(
    build: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds = [kind for kind in build.KINDS if kind != "payload"]
    assert build.main([*kinds, "--dry-run", "--payload", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    for part in ("pip wheel", "dpkg-deb", "makensis", "build_dmg.sh", "appimagetool", "SHA256SUMS"):
        assert part in out
    assert not (tmp_path / "out").exists()


def test_the_list_of_what_is_inside(build: ModuleType) -> None:
    document = json.loads(build.sbom())
    names = {component["name"] for component in document["components"]}
    assert {"PySide6_Essentials", "xllamacpp", "aiohttp", "CPython"} <= names
    assert not names & {"pytest", "pyinstaller", "hatchling"}
    assert document["metadata"]["component"]["version"] == __version__
    assert "LGPL" in build.third_party()


def test_packagers_are_asked_for_only_where_needed() -> None:
    if sys.platform == "linux":
        assert dev.missing_packagers(["tar"], lambda tool: None) == ["binutils"]
        assert dev.missing_packagers(["deb", "nsis"], lambda tool: None) == ["binutils", "dpkg", "nsis"]
    assert dev.missing_packagers(["deb", "nsis"], lambda tool: "/bin/x") == []


# --- Windows -----------------------------------------------------------------------------------------

SCRIPT = (INSTALLERS / "windows" / "lemon-tray.nsi").read_text("utf-8")


def section(name: str) -> str:
    found = re.search(
        rf'^Section (?:/o )?"{re.escape(name)}".*?^SectionEnd', SCRIPT, re.MULTILINE | re.DOTALL
    )
    assert found is not None
    return found[0]


def test_the_uninstaller_removes_all_that_the_installer_writes() -> None:
    installing = section("${NAME}") + section("Start at login")
    removing = section("Uninstall")
    values = re.findall(r'^\s*WriteReg\w+ (\w+) "([^"]+)" "([^"]+)"', installing, re.MULTILINE)
    assert len(values) >= 10
    for root, key, value in values:
        whole = f'DeleteRegKey {root} "{key}"'
        assert whole in removing or f'DeleteRegValue {root} "{key}" "{value}"' in removing, (key, value)
    files = re.findall(r'^\s*(?:CreateShortcut|WriteUninstaller) "([^"]+)"', installing, re.MULTILINE)
    assert len(files) == 2
    for file in files:
        assert f'Delete "{file}"' in removing
    assert "INSTALL_PAYLOAD" in installing
    assert "REMOVE_PAYLOAD" in removing
    # Nothing else that writes, and nobody else's registry.
    writing = re.findall(
        r"^\s*(File|WriteINI\w+|CreateDirectory|Rename|CopyFiles|HKLM)", installing, re.MULTILINE
    )
    assert writing == []
    assert "HKLM" not in SCRIPT


def test_only_the_users_own_data_is_removed_as_a_whole_and_only_when_asked() -> None:
    assert re.findall(r"RMDir /r (.*)", SCRIPT) == ['"$LOCALAPPDATA\\${ID}"']
    before, after = section("Uninstall").split("RMDir /r")
    assert "MB_DEFBUTTON2" in before
    assert "/SD IDNO" in before
    assert "UPGRADE" in before
    assert "RMDir" not in after


def test_it_needs_no_administrator_and_upgrades_in_place() -> None:
    assert "RequestExecutionLevel user" in SCRIPT
    assert "InstallDirRegKey HKCU" in SCRIPT
    assert '"--hidden"' in section("Start at login")
    assert SCRIPT.count("Section /o") == 1


def test_each_file_of_the_payload_is_installed_and_removed(build: ModuleType, standin: Path) -> None:
    listing = build.nsis_listing(standin)
    installs, removes = listing.split("!macroend")[:2]
    placed = set()
    where = ""
    for line in installs.splitlines():
        if found := re.match(r'\s*SetOutPath "(.*)"', line):
            where = found[1]
        elif found := re.match(r'\s*File "(.*)"', line):
            placed.add(f"{where}\\{Path(found[1]).name}")
    assert placed == set(re.findall(r'Delete "(.*)"', removes))
    assert len(placed) == 4
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


# --- macOS -------------------------------------------------------------------------------------------


def test_the_bundle_is_described(build: ModuleType) -> None:
    template = (INSTALLERS / "macos" / "Info.plist").read_bytes()
    found = plistlib.loads(template.replace(b"@VERSION@", build.VERSION.encode()))
    assert found["LSUIElement"] is True
    assert found["CFBundleIdentifier"] == build.payload.BUNDLE_ID
    assert found["CFBundleShortVersionString"] == found["CFBundleVersion"] == __version__
    assert found["CFBundleExecutable"] == build.NAME
    entitlements = plistlib.loads((INSTALLERS / "macos" / "entitlements.plist").read_bytes())
    # Qt and the engine are signed by nobody's team but the one that signs the bundle, or not at all.
    assert entitlements["com.apple.security.cs.disable-library-validation"] is True


@pytest.fixture
def mac(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """Stand-ins for the tools of macOS that record how they were called, and a bundle."""
    tools = tmp_path / "tools"
    tools.mkdir()
    log = tmp_path / "log"
    for name in ("codesign", "hdiutil", "xcrun"):
        stub = tools / name
        stub.write_text(
            f'#!/bin/sh\necho {name} "$@" >>"{log}"\n[ {name} != hdiutil ] || for out; do :; done\n'
        )
        if name == "hdiutil":
            stub.write_text(
                f'#!/bin/sh\necho {name} "$@" >>"{log}"\nfor out; do :; done\necho image >"$out"\n'
            )
        stub.chmod(0o755)
    bundle = tmp_path / "Lemon Tray.app"
    (bundle / "Contents" / "MacOS").mkdir(parents=True)
    (bundle / "Contents" / "Frameworks").mkdir()
    (bundle / "Contents" / "Frameworks" / "a library.dylib").write_bytes(b"x")
    return tmp_path, {"PATH": f"{tools}:/usr/bin:/bin", "TMPDIR": str(tmp_path)}


def image(mac: tuple[Path, dict[str, str]], **settings: str) -> tuple[int, list[str]]:
    folder, environment = mac
    done = subprocess.run(
        ["bash", INSTALLERS / "macos" / "build_dmg.sh", folder / "Lemon Tray.app", folder / "out.dmg"],
        env={**environment, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    log = folder / "log"
    return done.returncode, log.read_text().splitlines() if log.exists() else []


def test_an_image_without_a_certificate(mac: tuple[Path, dict[str, str]]) -> None:
    code, calls = image(mac)
    assert code == 0
    assert [call.split()[0] for call in calls] == ["codesign", "hdiutil"]
    assert "--sign -" in calls[0]
    assert (mac[0] / "out.dmg").exists()
    assert not list(mac[0].glob("tmp.*"))


def test_an_image_that_is_signed_and_notarized(mac: tuple[Path, dict[str, str]]) -> None:
    code, calls = image(mac, LEMON_TRAY_SIGN_IDENTITY="Developer ID", LEMON_TRAY_NOTARY_PROFILE="p")
    assert code == 0
    tools = [" ".join(call.split()[:2]) for call in calls]
    # From the inside out, then checked; the image after it is made; the ticket last.
    assert tools == [
        "codesign --force",
        "codesign --force",
        "codesign --verify",
        "hdiutil create",
        "codesign --force",
        "xcrun notarytool",
        "xcrun stapler",
    ]
    assert "a library.dylib" in calls[0]
    assert "--entitlements" in calls[1]
    assert "--keychain-profile p" in calls[5]


def test_what_is_not_signed_is_not_notarized(mac: tuple[Path, dict[str, str]]) -> None:
    assert image(mac, LEMON_TRAY_NOTARY_PROFILE="p") == (2, [])


# --- Linux -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "script", [*sorted(INSTALLERS.rglob("*.sh")), INSTALLERS / "linux" / "deb" / "prerm"]
)
def test_scripts_are_sound(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", script], check=True)


@pytest.fixture
def unpacked(build: ModuleType, tmp_path: Path) -> Path:
    """The archive's folder, with a program in little."""
    program = tmp_path / "given"
    program.mkdir()
    (program / "lemon-tray").write_text("#!/bin/sh\necho Lemon Tray\n")
    (program / "lemon-tray").chmod(0o755)
    builder = build.Builder(given=program, out=tmp_path / "out")
    builder.build = tmp_path / "build"
    builder.tar()
    (archive,) = (tmp_path / "out").glob("*.tar.xz")
    folder = tmp_path / "un packed"
    folder.mkdir()
    # Python's own reader: a bare system has tar, but not always xz.
    with tarfile.open(archive) as packed:
        packed.extractall(folder, **({"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}))
    return folder / f"lemon-tray-{__version__}"


def everything(home: Path) -> set[str]:
    return {str(path.relative_to(home)) for path in home.rglob("*") if not path.is_dir() or path.is_symlink()}


def test_the_archive_installs_upgrades_and_goes_without_a_trace(unpacked: Path, tmp_path: Path) -> None:
    home = tmp_path / "ho me"
    home.mkdir()
    environment = {"HOME": str(home), "PATH": os.environ["PATH"]}
    settings = home / ".config" / "lemon-tray" / "config.json"
    settings.parent.mkdir(parents=True)
    settings.write_text("{}")
    autostart = home / ".config" / "autostart" / "lemon-tray.desktop"

    def run(*command: object) -> str:
        done = subprocess.run(
            [str(c) for c in command], env=environment, check=True, capture_output=True, text=True
        )
        return done.stdout

    for _ in range(2):  # the second is an upgrade
        assert "is installed" in run(unpacked / "install.sh")
    link = home / ".local" / "bin" / "lemon-tray"
    assert run(link) == "Lemon Tray\n"
    data = home / ".local" / "share"
    entry = (data / "applications" / "lemon-tray.desktop").read_text()
    assert f'Exec="{data}/lemon-tray-app/lemon-tray"\n' in entry
    assert __version__ in gzip.decompress((data / "man" / "man1" / "lemon-tray.1.gz").read_bytes()).decode()
    assert not autostart.exists()

    autostart.parent.mkdir()
    autostart.write_text("[Desktop Entry]")
    run(data / "lemon-tray-app" / "uninstall.sh")
    left = everything(home)
    assert ".config/lemon-tray/config.json" in left
    assert {name for name in left if not name.endswith("mimeinfo.cache")} == {
        ".config/lemon-tray/config.json"
    }

    run(unpacked / "install.sh")
    run(data / "lemon-tray-app" / "uninstall.sh", "--purge")
    assert {name for name in everything(home) if not name.endswith("mimeinfo.cache")} == set()


def test_the_desktop_entry_is_valid(build: ModuleType, tmp_path: Path) -> None:
    if shutil.which("desktop-file-validate") is None:
        pytest.skip("desktop-file-validate (package desktop-file-utils) is not installed")
    entry = tmp_path / "lemon-tray.desktop"
    entry.write_bytes((INSTALLERS / "linux" / "lemon-tray.desktop").read_bytes().replace(b"@EXEC@", b"sh"))
    done = subprocess.run(["desktop-file-validate", entry], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_debian_package_says_what_it_needs(build: ModuleType) -> None:
    text = build.control_file("amd64", 123)
    fields = dict(re.findall(r"^([\w-]+): (.*)$", text, re.MULTILINE))
    assert (fields["Package"], fields["Version"], fields["Installed-Size"]) == (
        "lemon-tray",
        __version__,
        "123",
    )
    assert "libc6 (>= " in fields["Depends"]
    assert text.endswith("\n")


def test_the_release_builds_on_all_three_systems() -> None:
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8")
    for part in ("ubuntu-22.04", "windows-2022", "macos-15", "package all", "build.py all", "SHA256SUMS"):
        assert part in text
