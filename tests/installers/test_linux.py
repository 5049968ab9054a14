"""The Linux packages: scripts, desktop entry, manual page, AppDir."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
import tarfile
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from lemon_tray.autostart import quoted_for_exec
from lemon_tray.commands import CLI_COMMANDS
from router.version import __version__

ROOT = Path(__file__).resolve().parents[2]
INSTALLERS = ROOT / "installers"


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


def test_an_odd_prefix_is_a_prefix(unpacked: Path, tmp_path: Path) -> None:
    """Named from where one stands, with all that means something to a shell, to sed or to a desktop."""
    name = '-an $odd `one`, 100 % "so" \\ & |'
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    # With CDPATH, and without HOME, which is not needed for it.
    environment = {"PATH": os.environ["PATH"], "CDPATH": f"{tmp_path}:{elsewhere}"}
    command = [str(unpacked / "install.sh"), "--prefix", name]
    subprocess.run(command, cwd=elsewhere, env=environment, check=True, capture_output=True)
    prefix = elsewhere / name
    program = prefix / "share" / "lemon-tray-app" / "lemon-tray"
    assert subprocess.run([prefix / "bin" / "lemon-tray"], capture_output=True, check=True).stdout
    lines = (prefix / "share" / "applications" / "lemon-tray.desktop").read_text().splitlines()
    assert f"Exec={quoted_for_exec([str(program)])}" in lines
    assert f"TryExec={program}".replace("\\", "\\\\") in lines
    environment["HOME"] = str(tmp_path / "home")
    subprocess.run([program.with_name("uninstall.sh")], env=environment, check=True, capture_output=True)
    assert {name for name in everything(prefix) if not name.endswith("mimeinfo.cache")} == set()


def test_a_place_that_is_no_full_path_does_not_count(unpacked: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    names = ("CONFIG", "DATA", "STATE", "CACHE")
    environment = {"HOME": str(home), "PATH": os.environ["PATH"]}
    environment |= {f"XDG_{name}_HOME": "relative" for name in names}
    theirs = tmp_path / "relative" / "lemon-tray" / "theirs"
    theirs.parent.mkdir(parents=True)
    theirs.touch()
    options = {"cwd": tmp_path, "capture_output": True, "text": True}
    subprocess.run([unpacked / "install.sh"], env=environment, check=True, **options)
    program = home / ".local" / "share" / "lemon-tray-app"
    assert (program / "lemon-tray").exists()
    for state in (".config", ".local/share", ".local/state", ".cache"):
        (home / state / "lemon-tray").mkdir(parents=True)
        (home / state / "lemon-tray" / "kept").touch()

    # Who is nobody is told so, before anything goes.
    for script in (unpacked / "install.sh", program / "uninstall.sh"):
        done = subprocess.run([script], env={"PATH": os.environ["PATH"]}, check=False, **options)
        assert done.returncode == 2
        assert f"{script.name}: HOME is not set" in done.stderr
    assert (home / ".local" / "bin" / "lemon-tray").exists()

    subprocess.run([program / "uninstall.sh", "--purge"], env=environment, check=True, **options)
    assert theirs.exists()
    assert {name for name in everything(home) if not name.endswith("mimeinfo.cache")} == set()


def test_an_installation_that_broke_off_is_mended_by_the_next(unpacked: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    environment = {"HOME": str(home), "PATH": os.environ["PATH"]}

    def install() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [unpacked / "install.sh"], env=environment, check=False, capture_output=True, text=True
        )

    assert install().returncode == 0
    program = home / ".local" / "share" / "lemon-tray-app"
    # Killed between its two moves; then a copy that fails, as on a full disk.
    program.rename(program.with_name("lemon-tray-app.old"))
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "cp").write_text('#!/bin/sh\nmkdir -p "$3"\necho "No space left on device" >&2\nexit 1\n')
    (tools / "cp").chmod(0o755)
    environment["PATH"] = f"{tools}:{os.environ['PATH']}"
    assert install().returncode == 1
    assert (program / "lemon-tray").exists()
    assert [path.name for path in program.parent.iterdir() if path.name.startswith("lemon-tray-app")] == [
        "lemon-tray-app"
    ]
    environment["PATH"] = os.environ["PATH"]
    assert install().returncode == 0
    assert (program / "lemon-tray").exists()


def test_the_desktop_entry_is_valid(build: ModuleType, tmp_path: Path) -> None:
    if shutil.which("desktop-file-validate") is None:
        pytest.skip("desktop-file-validate (package desktop-file-utils) is not installed")
    entry = tmp_path / "lemon-tray.desktop"
    entry.write_bytes((INSTALLERS / "linux" / "lemon-tray.desktop").read_bytes().replace(b"@EXEC@", b"sh"))
    done = subprocess.run(["desktop-file-validate", entry], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_debian_package_says_what_it_needs(debian: ModuleType, project: ModuleType) -> None:
    text = debian.control_file(123)
    fields = dict(re.findall(r"^([\w-]+): (.*)$", text, re.MULTILINE))
    assert (fields["Package"], fields["Version"], fields["Installed-Size"]) == (
        "lemon-tray",
        __version__,
        "123",
    )
    assert "libc6 (>= " in fields["Depends"]
    assert fields["Maintainer"] == project.MAINTAINER
    assert ("Homepage" in fields) == bool(project.HOMEPAGE)
    assert text.endswith("\n")
    assert "\n\n" not in text


def test_no_home_is_invented(project: ModuleType, payload: ModuleType) -> None:
    """As long as pyproject.toml names none, packages name no page, and an address that cannot exist."""
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert metadata["authors"][0]["name"] == project.PUBLISHER
    assert metadata.get("urls", {}).get("Homepage", "") == project.HOMEPAGE
    if not project.HOMEPAGE:
        assert "Source:" not in project.filled((INSTALLERS / "linux" / "deb" / "copyright").read_text())
        ours = [path for path in INSTALLERS.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        named = {
            found
            for path in ours
            for found in re.findall(r"(?:https?://|@)[\w.-]*lemon-?tray[\w./-]*", path.read_text("utf-8"))
        }
        assert named == {"@lemon-tray.invalid"}


def test_overrides_of_lintian_give_their_reasons() -> None:
    lines = (INSTALLERS / "linux" / "deb" / "lintian-overrides").read_text("utf-8").splitlines()
    overrides = [i for i, line in enumerate(lines) if line.startswith("lemon-tray: ")]
    assert overrides
    for i in overrides:
        before = lines[i - 1]
        assert before.startswith(("# ", "lemon-tray: ")), lines[i]


def test_the_manual_page_names_every_command_and_is_rendered_without_a_warning(
    manual: ModuleType, tmp_path: Path
) -> None:
    page = manual.page()
    assert __version__ in page
    assert not re.search(r"@[A-Z]+@", page)
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    source = tmp_path / "lemon-tray.1"
    source.write_text(page)
    command = ["groff", "-man", "-Tutf8", "-ww", "-rLL=100n", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    shown = re.sub(r"\x1b\[[0-9;]*m|.\x08", "", done.stdout)
    for name in CLI_COMMANDS:
        assert re.search(rf"^ +(?:lemon.tray )?{name.replace('-', '.')}\b", shown, re.MULTILINE), name
    for section in ("NAME", "SYNOPSIS", "COMMANDS", "OPTIONS", "EXIT STATUS", "ENVIRONMENT", "FILES"):
        assert f"\n{section}\n" in f"\n{shown}"


def test_a_line_of_the_manual_cannot_become_a_request(manual: ModuleType) -> None:
    assert manual.escaped(".so /etc/passwd") == "\\&.so /etc/passwd"
    assert manual.escaped("a\\b --c") == "a\\eb \\-\\-c"


def test_the_appdir_starts_from_anywhere_and_is_complete(build: ModuleType, tmp_path: Path) -> None:
    program = tmp_path / "given"
    program.mkdir()
    (program / "lemon-tray").write_text('#!/bin/sh\necho "$0" "$@"\n')
    (program / "lemon-tray").chmod(0o755)
    builder = build.Builder(given=program, out=tmp_path / "out")
    builder.build = tmp_path / "bu ild"
    calls = tmp_path / "calls"
    tools = tmp_path / "tools"
    tools.mkdir()
    tool = tools / "appimagetool"
    tool.write_text(f'#!/bin/sh\necho "$ARCH" "$@" >"{calls}"\nfor out; do :; done\necho image >"$out"\n')
    tool.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
        (tmp_path / "out").mkdir()
        builder.appdir()
    appdir = tmp_path / "bu ild" / "lemon-tray.AppDir"
    link = tmp_path / "link"
    link.symlink_to(appdir / "AppRun")
    for start in (appdir / "AppRun", link):
        said = subprocess.run([start, "a b"], capture_output=True, text=True, check=True, cwd="/").stdout
        assert said == f"{appdir}/usr/lib/lemon-tray/lemon-tray a b\n"
    # What appimagetool wants at the top: one entry, the icon that it names, and the folder's own icon.
    (entry,) = appdir.glob("*.desktop")
    fields = dict(line.split("=", 1) for line in entry.read_text().splitlines() if "=" in line)
    assert fields["Exec"] == fields["TryExec"] == "lemon-tray"
    assert (appdir / f"{fields['Icon']}.svg").read_text().lstrip().startswith("<svg")
    assert (appdir / ".DirIcon").resolve() == appdir / f"{fields['Icon']}.svg"
    assert (appdir / "usr/share/icons/hicolor/scalable/apps/lemon-tray.svg").is_file()
    assert (
        calls.read_text().split()[-1]
        == str(tmp_path / "out") + f"/{build.NAME}-{__version__}-{os.uname().machine}.AppImage"
    )
    assert (tmp_path / "out").exists()
    if shutil.which("desktop-file-validate"):
        done = subprocess.run(["desktop-file-validate", entry], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "")
