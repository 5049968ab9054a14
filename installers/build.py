#!/usr/bin/env python3
"""Builds the installers: `python3 dev.py package KIND ...` runs this with the locked tools.

Every package is a thin wrapping of one payload, PyInstaller's folder. The payload is made again only when
what goes into it has changed. `--dry-run` prints each command and runs none.
"""

from __future__ import annotations

import argparse
import hashlib
import lzma
import os
import platform
import shlex
import shutil
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

# Beside this file, which may be run from anywhere.
import debian  # noqa: E402
import manual  # noqa: E402
import nsis  # noqa: E402
from inventory import Contents, sbom, third_party  # noqa: E402
from project import DEBIAN_VERSION, NAME, NUMBERS, PUBLISHER, TITLE, VERSION, filled  # noqa: E402

ROOT: Final = HERE.parent

#: What the payload is made of: it is built again when any of it changes.
SOURCES: Final = ("lemon_tray", "router", "resources", "installers/lemon-tray.spec", "installers/start.py")
SOURCES_BESIDES: Final = (
    "installers/payload.py",
    "installers/inventory.py",
    "installers/project.py",
    "requirements-package.lock",
    "pyproject.toml",
)


#: Where the payload keeps the list of what is inside.
SBOM: Final = "sbom.cdx.json"


class Failed(Exception):
    """A package could not be built; the text says why."""


class Builder:
    """Runs the steps. With `dry` it prints commands instead, and touches no file."""

    def __init__(
        self, *, dry: bool = False, given: Path | None = None, out: Path | None = None, fast: bool = False
    ) -> None:
        self.dry = dry
        self.build = ROOT / "build"
        self.out = out or ROOT / "dist"
        self._given = given
        self.fast = fast
        self._ready = False
        self.made: list[Path] = []

    # Helpers

    def run(self, *command: str | Path, env: dict[str, str] | None = None, cwd: Path = ROOT) -> None:
        """Raises Failed."""
        words = [str(word) for word in command]
        settings = "".join(f"{name}={shlex.quote(value)} " for name, value in (env or {}).items())
        print(f"+ {settings}{shlex.join(words)}", flush=True)
        if self.dry:
            return
        try:
            done = subprocess.run(words, cwd=cwd, env={**os.environ, **(env or {})}, check=False)
        except FileNotFoundError as error:
            raise Failed(f"{words[0]} is not installed.") from error
        if done.returncode:
            raise Failed(f"{words[0]} ended with status {done.returncode}.")

    def finished(self, path: Path) -> None:
        self.made.append(path)
        if not self.dry:
            print(f"{path}: {path.stat().st_size / 1e6:.1f} MB", flush=True)

    @property
    def payload(self) -> Path:
        """The folder that PyInstaller makes, or the one that was given."""
        return self._given or self.build / "payload" / NAME

    def fresh(self, path: Path) -> Path:
        """An empty folder in place of what was there."""
        if not self.dry:
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir(parents=True)
        return path

    # Steps

    def make_payload(self) -> None:
        """PyInstaller's folder, with the licences of all that is in it. Raises Failed."""
        if self._given is not None or self._ready:
            return
        self._ready = True
        stamp = self.build / "payload" / "stamp"
        wanted = fingerprint()
        if not self.dry and stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
            return
        work = self.build / "pyinstaller"
        self.make_icons(work / "lemon-tray")
        self.run(
            *(sys.executable, "-m", "PyInstaller", "--noconfirm", "--log-level", "WARN"),
            *("--distpath", self.build / "payload", "--workpath", work, HERE / "lemon-tray.spec"),
            env={"SOURCE_DATE_EPOCH": str(source_date())},
        )
        if self.dry:
            return
        (self.payload / "LICENSE").write_bytes((ROOT / "LICENSE").read_bytes())
        contents = Contents.taken(work / "lemon-tray")
        (self.payload / "THIRD-PARTY.txt").write_text(third_party(contents), encoding="utf-8")
        (self.payload / SBOM).write_text(sbom(contents), encoding="utf-8")
        stamp.write_text(wanted, encoding="utf-8")

    def make_icons(self, folder: Path) -> None:
        """The program's icon as Windows and macOS want it, drawn from the SVG by Qt. Raises Failed."""
        suffix = {"win32": ".ico", "darwin": ".icns"}.get(sys.platform)
        if suffix is None:
            return
        if not self.dry:
            folder.mkdir(parents=True, exist_ok=True)
        self.run(sys.executable, HERE / "icons.py", folder / f"lemon-tray{suffix}")

    def tar(self) -> None:
        """A folder with its own install and uninstall scripts, for one user. Raises Failed."""
        self.make_payload()
        top = f"{NAME}-{VERSION}"
        target = self.out / f"{top}-linux-{platform.machine()}.tar.xz"
        stage = self.fresh(self.build / "tar") / top
        print(f"+ pack {stage} into {target}", flush=True)
        if self.dry:
            return
        shutil.copytree(self.payload, stage / NAME, symlinks=True)
        for name in ("install.sh", "uninstall.sh"):
            script = stage / name
            script.write_text(filled((HERE / "linux" / name).read_text(encoding="utf-8")), encoding="utf-8")
            script.chmod(0o755)
        self._share(stage / "share", "@BIN@")
        (stage / "LICENSE").write_bytes((ROOT / "LICENSE").read_bytes())
        self.out.mkdir(exist_ok=True)
        with (
            lzma.open(target, "wb", preset=0 if self.fast else 6) as packed,
            tarfile.open(fileobj=packed, mode="w") as archive,
        ):
            for path in sorted(stage.rglob("*")):
                archive.add(path, path.relative_to(stage.parent), recursive=False, filter=anonymous)
        self.finished(target)

    def _share(self, share: Path, program: str) -> None:
        """Desktop entry, icon and manual page, as below /usr/share."""
        for path, data in (
            (
                share / "applications" / f"{NAME}.desktop",
                (HERE / "linux" / f"{NAME}.desktop").read_bytes().replace(b"@EXEC@", program.encode()),
            ),
            (
                share / "icons" / "hicolor" / "scalable" / "apps" / f"{NAME}.svg",
                (ROOT / "resources" / "icons" / "icon-idle.svg").read_bytes(),
            ),
            (
                share / "man" / "man1" / f"{NAME}.1.gz",
                debian.packed(manual.page().encode()),
            ),
        ):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def wheel(self) -> None:
        """The packages without Python, for pip and pipx. Raises Failed."""
        if not self.dry:
            self.out.mkdir(exist_ok=True)
        self.run(
            *(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"),
            *("--quiet", "--wheel-dir", self.out, ROOT),
            env={"SOURCE_DATE_EPOCH": str(source_date())},
        )
        self.finished(self.out / f"lemon_tray-{VERSION}-py3-none-any.whl")

    def deb(self) -> None:
        """A Debian package of the payload. Raises Failed."""
        self.make_payload()
        target = self.out / f"{NAME}_{DEBIAN_VERSION}_{debian.architecture()}.deb"
        stage = self.fresh(self.build / "deb")
        if not self.dry:
            debian.fill(stage, self.payload, source_date())
            self._share(stage / "usr" / "share", NAME)
            debian.describe(stage)
            self.out.mkdir(exist_ok=True)
        self.run(
            *("dpkg-deb", "--root-owner-group", *(("-Zgzip", "-z1") if self.fast else ("-Zxz", "-z6"))),
            *("--build", stage, stage.with_suffix(".deb")),
            env={"SOURCE_DATE_EPOCH": str(source_date())},
        )
        if not self.dry:  # in one step: half a package must not be taken for one
            shutil.move(stage.with_suffix(".deb"), target)
        self.finished(target)

    def appdir(self) -> None:
        """What appimagetool makes an AppImage of; and the AppImage, where that tool is. Raises Failed."""
        self.make_payload()
        stage = self.build / f"{NAME}.AppDir"
        print(f"+ fill {stage}", flush=True)
        if not self.dry:
            self.fresh(stage)
            shutil.copytree(self.payload, stage / "usr" / "lib" / NAME, symlinks=True)
            self._share(stage / "usr" / "share", NAME)
            for source, name in (
                (stage / "usr" / "share" / "applications" / f"{NAME}.desktop", f"{NAME}.desktop"),
                (ROOT / "resources" / "icons" / "icon-idle.svg", f"{NAME}.svg"),
                (HERE / "linux" / "AppRun", "AppRun"),
            ):
                (stage / name).write_bytes(source.read_bytes())
            (stage / "AppRun").chmod(0o755)
            (stage / ".DirIcon").symlink_to(f"{NAME}.svg")
        tool = shutil.which("appimagetool")
        if tool is None and not self.dry:
            print(
                "appimagetool is not installed: the AppDir is ready, the AppImage was not made.", flush=True
            )
            return
        target = self.out / f"{NAME}-{VERSION}-{platform.machine()}.AppImage"
        self.run(
            *("appimagetool", "--no-appstream", stage, target),
            env={"ARCH": platform.machine(), "VERSION": VERSION},
        )
        self.finished(target)

    def nsis(self) -> None:
        """The installer for Windows; elsewhere its script is compiled from a stand-in. Raises Failed."""
        if sys.platform == "win32" or self._given is not None:
            self.make_payload()
            inside, out = self.payload, self.out
        else:
            print(
                "The payload for Windows is built there: this compiles the script, to check it.", flush=True
            )
            inside = self.fresh(self.build / "stand-in")
            out = self.build
            if not self.dry:
                nsis.stand_in(inside)
        target = out / f"{NAME}-{VERSION}-windows-x64-setup.exe"
        listing = self.build / "files.nsh"
        print(f"+ list {inside} in {listing}", flush=True)
        if not self.dry:
            out.mkdir(exist_ok=True)
            self.build.mkdir(exist_ok=True)
            try:
                listing.write_text(nsis.listing(inside), encoding="utf-8")
            except nsis.Unwritable as error:
                raise Failed(str(error)) from error
        dash = "/" if sys.platform == "win32" else "-"
        values = {
            "VERSION": VERSION,
            "NUMBERS": NUMBERS,
            "PUBLISHER": PUBLISHER,
            "PAYLOAD": inside,
            "FILES": listing,
            "OUTFILE": target,
        }
        if self.fast:
            values["FAST"] = "1"
        self.run(
            *("makensis", f"{dash}V2", f"{dash}WX", f"{dash}INPUTCHARSET", "UTF8"),
            *(f"{dash}D{name}={value}" for name, value in values.items()),
            HERE / "windows" / "lemon-tray.nsi",
        )
        self.finished(target)

    def dmg(self) -> None:
        """The disk image for macOS. Raises Failed."""
        if sys.platform != "darwin" and not self.dry and self._given is None:
            raise Failed("A disk image for macOS can be built on macOS only.")
        self.make_payload()
        bundle = self._given or self.build / "payload" / f"{TITLE}.app"
        target = self.out / f"{NAME}-{VERSION}-macos-{platform.machine()}.dmg"
        if not self.dry:
            self.out.mkdir(exist_ok=True)
        self.run("bash", HERE / "macos" / "build_dmg.sh", bundle, target)
        self.finished(target)

    def sums(self) -> None:
        """SHA-256 of everything in the output folder, and what it is made of."""
        print(f"+ write {self.out / 'SHA256SUMS'}", flush=True)
        if self.dry:
            return
        self.make_payload()
        inside = (self.payload / SBOM).read_bytes()
        (self.out / f"{NAME}-{VERSION}-{sys.platform}-{platform.machine()}.cdx.json").write_bytes(inside)
        lines = [
            f"{digest(path)}  {path.name}\n"
            for path in sorted(self.out.iterdir())
            if path.is_file() and not path.name.startswith("SHA256SUMS")
        ]
        (self.out / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """The same archive whoever builds it."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    entry.mtime = source_date()
    executable = entry.isdir() or bool(entry.mode & stat.S_IXUSR)
    entry.mode = 0o755 if executable else 0o644
    return entry


def source_date() -> int:
    """Seconds since 1970 of the last change, so that one source gives one package."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given:
        return int(given)
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):  # a source archive, or no git
        return int((ROOT / "CHANGELOG.md").stat().st_mtime)
    return int(done.stdout)


def files(names: Iterable[str]) -> Iterator[Path]:
    for name in names:
        path = ROOT / name
        if path.is_dir():
            yield from sorted(
                each for each in path.rglob("*") if each.is_file() and "__pycache__" not in each.parts
            )
        else:
            yield path


def fingerprint() -> str:
    """Changes with whatever goes into the payload."""
    total = hashlib.sha256(sys.version.encode())
    for path in files((*SOURCES, *SOURCES_BESIDES)):
        total.update(f"{path.relative_to(ROOT)} {digest(path)}\n".encode())
    return total.hexdigest()


KINDS: Final[dict[str, Callable[[Builder], None]]] = {
    "payload": Builder.make_payload,
    "tar": Builder.tar,
    "wheel": Builder.wheel,
    "deb": Builder.deb,
    "appdir": Builder.appdir,
    "nsis": Builder.nsis,
    "dmg": Builder.dmg,
    "sums": Builder.sums,
}
#: What `all` means on each system.
ALL: Final = {
    "linux": ("tar", "wheel", "deb", "appdir", "nsis", "sums"),
    "win32": ("nsis", "sums"),
    "darwin": ("dmg", "sums"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="dev.py package", description="Build installers into dist/.")
    parser.add_argument(
        "kinds", nargs="+", choices=(*KINDS, "all"), metavar="KIND", help=", ".join(KINDS) + ", all"
    )
    parser.add_argument("--dry-run", action="store_true", help="print each command, run none")
    parser.add_argument("--payload", type=Path, help="wrap this folder instead of building one")
    parser.add_argument("--out", type=Path, help="put the packages here instead of into dist/")
    parser.add_argument("--fast", action="store_true", help="compress less, for a try")
    given = parser.parse_args(arguments)
    kinds = [each for kind in given.kinds for each in (ALL[sys.platform] if kind == "all" else (kind,))]
    builder = Builder(
        dry=given.dry_run,
        given=given.payload.resolve() if given.payload else None,
        out=given.out.resolve() if given.out else None,
        fast=given.fast,
    )
    try:
        for kind in dict.fromkeys(kinds):
            KINDS[kind](builder)
    except Failed as error:
        print(f"package: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
