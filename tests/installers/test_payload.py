"""What goes into a package, and what the steps say they do."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import ssl
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import dev
from router.version import __version__

ROOT = Path(__file__).resolve().parents[2]
INSTALLERS = ROOT / "installers"


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
def test_qt_is_trimmed_to_what_is_used(payload: ModuleType, name: str, wanted: bool) -> None:
    assert payload.wanted(name) is wanted


def test_no_module_that_the_app_imports_is_left_out(payload: ModuleType) -> None:
    source = "".join(path.read_text() for path in (ROOT / "lemon_tray").rglob("*.py"))
    used = set(re.findall(r"^\s*from PySide6\.(\w+) import", source, re.MULTILINE))
    assert used >= {"QtCore", "QtGui", "QtWidgets"}
    assert not used & {name.removeprefix("PySide6.") for name in payload.EXCLUDED_MODULES}
    assert not used & {f"Qt{name}" for name in payload.DROPPED_LIBRARIES}


def test_everything_imported_by_name_only_is_told_to_the_builder(payload: ModuleType) -> None:
    named = set()
    for package in ("router", "lemon_tray"):
        for path in (ROOT / package).rglob("*.py"):
            named |= set(re.findall(r'import_module\("([\w.]+)"\)', path.read_text()))
    assert named
    assert named <= set(payload.HIDDEN_IMPORTS)
    for name in payload.HIDDEN_IMPORTS:
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


@pytest.mark.parametrize(
    ("version", "numbers", "debian"),
    [
        ("1.2.3", "1.2.3.0", "1.2.3"),
        ("1.2", "1.2.0.0", "1.2"),
        ("0.2.0rc1", "0.2.0.0", "0.2.0~rc1"),
        ("0.2.0a10", "0.2.0.0", "0.2.0~a10"),
        ("0.2.0.dev3", "0.2.0.0", "0.2.0~dev3"),
    ],
)
def test_a_version_before_a_release_is_one_everywhere(
    project: ModuleType, version: str, numbers: str, debian: str
) -> None:
    """Windows' resources take four numbers only, and Debian would take 1.0rc1 for newer than 1.0."""
    assert project.numbers(version) == numbers
    assert project.debian_version(version) == debian
    if shutil.which("dpkg") and version != debian:
        release = re.split(r"[a-z~]|\.dev", version)[0].rstrip(".")
        subprocess.run(["dpkg", "--compare-versions", debian, "lt", release], check=True)


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


def test_a_dry_run_of_everything_names_what_this_system_builds(
    build: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build.main(["all", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "PyInstaller" in out
    if sys.platform == "linux":
        for part in (".tar.xz", "pip wheel", "dpkg-deb", "AppDir", "makensis", "SHA256SUMS"):
            assert part in out


@pytest.mark.skipif(sys.platform == "darwin", reason="a disk image can be built here")
def test_a_disk_image_is_refused_in_words_elsewhere(
    build: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build.main(["dmg"]) == 1
    assert "on macOS only" in capsys.readouterr().err


def test_the_checksums_are_of_all_that_was_built(build: ModuleType, standin: Path, tmp_path: Path) -> None:
    (standin / build.SBOM).write_text("{}")
    out = tmp_path / "out"
    out.mkdir()
    (out / "a.deb").write_bytes(b"a")
    (out / "SHA256SUMS").write_text("old")
    build.Builder(given=standin, out=out).sums()
    lines = dict(reversed(line.split("  ")) for line in (out / "SHA256SUMS").read_text().splitlines())
    names = {path.name for path in out.iterdir()} - {"SHA256SUMS"}
    assert set(lines) == names
    assert len(names) == 2
    for name, digest in lines.items():
        assert digest == hashlib.sha256((out / name).read_bytes()).hexdigest()


def test_packagers_are_asked_for_only_where_needed() -> None:
    if sys.platform == "linux":
        assert dev.missing_packagers(["tar"], lambda tool: None) == ["binutils"]
        assert dev.missing_packagers(["deb", "nsis"], lambda tool: None) == ["binutils", "dpkg", "nsis"]
        assert dev.missing_packagers(["all"], lambda tool: None) == ["binutils", "dpkg", "nsis"]
    assert dev.missing_packagers(["deb", "nsis"], lambda tool: "/bin/x") == []


def test_the_hubs_client_needs_nothing_that_is_left_out(payload: ModuleType) -> None:
    """It is imported at the first pull only, so that a package without a part of it would fail late."""
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({payload.EXCLUDED_MODULES!r}));"
        "import httpx2; from huggingface_hub import constants, errors, get_token;"
        "from huggingface_hub.hf_api import HfApi; HfApi('http://127.0.0.1:1', False)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
