"""The bundle and the disk image for macOS, with stand-ins for its tools."""

from __future__ import annotations

import plistlib
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from lemon_tray.autostart import LABEL
from router.version import __version__

ROOT = Path(__file__).resolve().parents[2]
INSTALLERS = ROOT / "installers"


def test_the_bundle_is_described(project: ModuleType, payload: ModuleType) -> None:
    template = (INSTALLERS / "macos" / "Info.plist").read_text("utf-8")
    found = plistlib.loads(project.filled(template).encode())
    assert not [value for value in found.values() if "@" in str(value)]
    assert found["LSUIElement"] is True
    assert found["CFBundleIdentifier"] == payload.BUNDLE_ID == LABEL
    assert found["CFBundleShortVersionString"] == found["CFBundleVersion"] == __version__
    assert found["CFBundleExecutable"] == project.NAME
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
    # As Qt's libraries are: a file without an ending, in a folder that is signed as a whole.
    core = bundle / "Contents" / "Frameworks" / "Qt" / "QtCore.framework" / "Versions" / "A" / "QtCore"
    core.parent.mkdir(parents=True)
    core.write_bytes(b"x")
    return tmp_path, {"PATH": f"{tools}:/usr/bin:/bin", "TMPDIR": str(tmp_path)}


def image(
    mac: tuple[Path, dict[str, str]], bundle: str = "Lemon Tray.app", **settings: str
) -> tuple[int, list[str]]:
    folder, environment = mac
    done = subprocess.run(
        ["bash", INSTALLERS / "macos" / "build_dmg.sh", f"{folder}/{bundle}", folder / "out.dmg"],
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
        "codesign --force",
        "codesign --verify",
        "hdiutil create",
        "codesign --force",
        "xcrun notarytool",
        "xcrun stapler",
    ]
    assert "a library.dylib" in calls[0]
    assert calls[1].endswith("/QtCore.framework")
    assert "--entitlements" in calls[2]
    assert "--keychain-profile p" in calls[6]


def test_a_bundle_may_be_named_with_a_slash(mac: tuple[Path, dict[str, str]]) -> None:
    """As the shell completes it. The cp of macOS would copy what is in it, in place of it."""
    copier = mac[0] / "tools" / "cp"
    copier.write_text(f'#!/bin/sh\necho cp "$@" >>"{mac[0] / "log"}"\nexec /bin/cp "$@"\n')
    copier.chmod(0o755)
    code, calls = image(mac, "Lemon Tray.app/")
    assert code == 0
    assert f"cp -R {mac[0]}/Lemon Tray.app " in calls[0]


def test_what_is_not_signed_is_not_notarized(mac: tuple[Path, dict[str, str]]) -> None:
    assert image(mac, LEMON_TRAY_NOTARY_PROFILE="p") == (2, [])
