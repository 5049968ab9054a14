#!/usr/bin/env python3
"""Builds the installers: `python3 dev.py package KIND ...` runs this with the locked tools.

Every package is a thin wrapping of one payload, PyInstaller's folder. The payload is made again only when
what goes into it has changed. `--dry-run` prints each command and runs none.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import importlib.metadata
import json
import lzma
import os
import platform
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tarfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import payload  # noqa: E402  # beside this file, which may be run from anywhere

ROOT: Final = HERE.parent
NAME: Final = "lemon-tray"
TITLE: Final = "Lemon Tray"
SUMMARY: Final = "Language models for all your apps on one endpoint"
MAINTAINER: Final = "The Lemon Tray developers <lemon-tray@users.noreply.github.com>"
HOMEPAGE: Final = "https://github.com/lemon-tray/lemon-tray"
VERSION: Final = payload.version()

#: What the payload is made of: it is built again when any of it changes.
SOURCES: Final = ("lemon_tray", "router", "resources", "installers/lemon-tray.spec", "installers/start.py")
SOURCES_BESIDES: Final = ("installers/payload.py", "requirements-package.lock", "pyproject.toml")

#: Debian packages of what is not in the payload: the C library, and the side of drawing that is the system's.
DEB_DEPENDS: Final = (
    "ca-certificates",
    "fonts-dejavu-core | fonts-freefont-ttf | fonts-noto-core | fontconfig",
    "libc6 (>= {glibc})",
    "libegl1",
    "libgl1",
    "libxcb1",
)
DEB_RECOMMENDS: Final = ("default-dbus-session-bus | dbus-session-bus",)
DEB_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


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
        (self.payload / "THIRD-PARTY.txt").write_text(third_party(), encoding="utf-8")
        (self.payload / "sbom.cdx.json").write_text(sbom(), encoding="utf-8")
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
                gzip.compress(filled((HERE / "linux" / f"{NAME}.1").read_text("utf-8")).encode(), 9, mtime=0),
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
        architecture = DEB_ARCHITECTURES.get(platform.machine(), platform.machine())
        target = self.out / f"{NAME}_{VERSION}_{architecture}.deb"
        stage = self.fresh(self.build / "deb")
        if not self.dry:
            self._fill_deb(stage, architecture)
            self.out.mkdir(exist_ok=True)
        self.run(
            *("dpkg-deb", "--root-owner-group", *(("-Zgzip", "-z1") if self.fast else ("-Zxz", "-z6"))),
            *("--build", stage, stage.with_suffix(".deb")),
            env={"SOURCE_DATE_EPOCH": str(source_date())},
        )
        if not self.dry:  # in one step: half a package must not be taken for one
            shutil.move(stage.with_suffix(".deb"), target)
        self.finished(target)

    def _fill_deb(self, stage: Path, architecture: str) -> None:
        library = stage / "usr" / "lib" / NAME
        shutil.copytree(self.payload, library, symlinks=True)
        for path in library.rglob("*"):
            if path.is_file() and not path.is_symlink():
                executable = path == library / NAME
                path.chmod(0o755 if executable else 0o644)
        (stage / "usr" / "bin").mkdir()
        (stage / "usr" / "bin" / NAME).symlink_to(f"../lib/{NAME}/{NAME}")
        self._share(stage / "usr" / "share", NAME)
        documents = stage / "usr" / "share" / "doc" / NAME
        documents.mkdir(parents=True)
        (library / "LICENSE").unlink()
        (documents / "copyright").write_text(
            (HERE / "linux" / "deb" / "copyright").read_text(encoding="utf-8"), encoding="utf-8"
        )
        third = (library / "THIRD-PARTY.txt").read_bytes()
        (library / "THIRD-PARTY.txt").unlink()
        (documents / "THIRD-PARTY.txt.gz").write_bytes(gzip.compress(third, 9, mtime=0))
        (documents / "changelog.gz").write_bytes(
            gzip.compress(
                f"{NAME} ({VERSION}) stable; urgency=medium\n\n"
                f"  * See {HOMEPAGE}/blob/main/CHANGELOG.md\n\n"
                f" -- {MAINTAINER}  {debian_date(source_date())}\n".encode(),
                9,
                mtime=0,
            )
        )
        overrides = stage / "usr" / "share" / "lintian" / "overrides" / NAME
        overrides.parent.mkdir(parents=True)
        overrides.write_bytes((HERE / "linux" / "deb" / "lintian-overrides").read_bytes())
        control = stage / "DEBIAN"
        control.mkdir()
        size = sum(path.lstat().st_size for path in stage.rglob("*") if path.is_file())
        (control / "control").write_text(control_file(architecture, size // 1024), encoding="utf-8")
        sums = [
            f"{md5(path)}  {path.relative_to(stage)}\n"
            for path in sorted((stage / "usr").rglob("*"))
            if path.is_file() and not path.is_symlink()
        ]
        (control / "md5sums").write_text("".join(sums), encoding="utf-8")
        for name in ("prerm", "postrm"):
            script = control / name
            script.write_bytes((HERE / "linux" / "deb" / name).read_bytes())
            script.chmod(0o755)
        for folder in (stage, *(path for path in stage.rglob("*") if path.is_dir())):
            folder.chmod(0o755)

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
        """The installer for Windows. Its script compiles on any system. Raises Failed."""
        self.make_payload()
        target = self.out / f"{NAME}-{VERSION}-windows-x64-setup.exe"
        if not self.dry:
            self.out.mkdir(exist_ok=True)
        listing = self.build / "files.nsh"
        print(f"+ list {self.payload} in {listing}", flush=True)
        if not self.dry:
            self.build.mkdir(exist_ok=True)
            listing.write_text(nsis_listing(self.payload), encoding="utf-8")
        dash = "/" if sys.platform == "win32" else "-"
        values = {"VERSION": VERSION, "PAYLOAD": self.payload, "FILES": listing, "OUTFILE": target}
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
        (self.out / f"{NAME}-{VERSION}-{sys.platform}.cdx.json").write_text(sbom(), encoding="utf-8")
        lines = [
            f"{digest(path)}  {path.name}\n"
            for path in sorted(self.out.iterdir())
            if path.is_file() and not path.name.startswith("SHA256SUMS")
        ]
        (self.out / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")


def nsis_listing(folder: Path) -> str:
    """Two macros for the Windows installer: one installs each file of a folder, one removes each again."""
    entries = sorted(folder.rglob("*"))
    folders = [path for path in entries if path.is_dir() and not path.is_symlink()]
    # A link to a file is that file once more: Windows has no links for everybody.
    found = [path for path in entries if path.is_file()]
    if any("$" in str(path.relative_to(folder)) or '"' in path.name for path in entries):
        raise Failed("A file's name cannot be written in the installer's script.")

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


def filled(text: str) -> str:
    return text.replace("@VERSION@", VERSION)


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def md5(path: Path) -> str:
    """As dpkg keeps them, against damage on disk."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


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


def debian_date(seconds: int) -> str:
    import email.utils

    return email.utils.formatdate(seconds, localtime=False).replace("-0000", "+0000")


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


def glibc() -> str:
    """The oldest C library that the payload runs on: the one it is built on."""
    return platform.libc_ver()[1] or "2.35"


def control_file(architecture: str, kibibytes: int) -> str:
    depends = ", ".join(part.format(glibc=glibc()) for part in DEB_DEPENDS)
    return (
        f"Package: {NAME}\n"
        f"Version: {VERSION}\n"
        f"Architecture: {architecture}\n"
        f"Maintainer: {MAINTAINER}\n"
        f"Installed-Size: {kibibytes}\n"
        f"Depends: {depends}\n"
        f"Recommends: {', '.join(DEB_RECOMMENDS)}\n"
        "Section: net\n"
        "Priority: optional\n"
        f"Homepage: {HOMEPAGE}\n"
        "Description: tray app and local router that runs language models\n"
        " Lemon Tray runs language models on your own machine and gives all your apps\n"
        " one OpenAI-compatible endpoint for them. It loads models when they are asked\n"
        " for, unloads idle ones to make room, and shows all of it in a tray icon with\n"
        " a panel. The same router runs without a screen as 'lemon-tray serve'.\n"
        " .\n"
        " The engine, llama.cpp, and Qt are inside.\n"
    )


# What is inside


def locked() -> list[str]:
    """The names in the lock file of what runs, without those that only build."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==", (ROOT / "requirements.lock").read_text("utf-8"), re.MULTILINE)
    return [
        name
        for name in found
        if name not in ("editables", "hatchling", "pathspec", "pluggy", "trove-classifiers")
    ]


def distributions() -> list[importlib.metadata.Distribution]:
    """What is locked and installed: some of it is for other systems only."""
    found = []
    for name in locked():
        try:
            found.append(importlib.metadata.distribution(name))
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def licence(one: importlib.metadata.Distribution) -> str:
    """In short, as its own metadata has it."""
    metadata = one.metadata.json
    if metadata.get("license_expression"):
        return str(metadata["license_expression"])
    classes = [
        line.rsplit(" :: ", 1)[-1]
        for line in one.metadata.get_all("Classifier") or []
        if line.startswith("License ::")
    ]
    short = str(metadata.get("license") or "").split("\n")[0]
    return "; ".join(classes) or short or "see its licence below"


def third_party() -> str:
    """The licences of all packages inside, as they come with them."""
    parts = [
        f"{TITLE} {VERSION} contains the packages below, and Python {platform.python_version()} "
        "(PSF-2.0, https://docs.python.org/3/license.html). Qt is used under the LGPL-3.0: its libraries are "
        "separate files in this folder, and you may replace them. Its source: https://download.qt.io/. "
        "llama.cpp (MIT) is inside xllamacpp.\n"
    ]
    for one in distributions():
        parts.append(f"\n{'=' * 78}\n{one.metadata['Name']} {one.version}: {licence(one)}\n{'=' * 78}\n")
        for path in one.files or ():
            if "licen" in str(path).lower() or path.name.upper().startswith(("COPYING", "NOTICE")):
                where = Path(str(one.locate_file(path)))
                if where.is_file() and ".dist-info" in str(path):
                    parts.append(f"\n--- {path.name} ---\n{where.read_text('utf-8', 'replace').strip()}\n")
    return "".join(parts)


def sbom() -> str:
    """What is inside, in CycloneDX's form."""
    components: list[dict[str, object]] = [
        {
            "type": "library",
            "bom-ref": f"pkg:pypi/{one.metadata['Name'].lower()}@{one.version}",
            "name": one.metadata["Name"],
            "version": one.version,
            "purl": f"pkg:pypi/{one.metadata['Name'].lower()}@{one.version}",
            "licenses": [{"license": {"name": licence(one)}}],
        }
        for one in distributions()
    ]
    components.append(
        {
            "type": "library",
            "bom-ref": f"pkg:generic/python@{platform.python_version()}",
            "name": "CPython",
            "version": platform.python_version(),
            "licenses": [{"license": {"id": "PSF-2.0"}}],
        }
    )
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'{HOMEPAGE}/{VERSION}/{sys.platform}')}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": NAME,
                "name": NAME,
                "version": VERSION,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": components,
        "dependencies": [{"ref": NAME, "dependsOn": [each["bom-ref"] for each in components]}],
    }
    return json.dumps(document, indent=2) + "\n"


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
    "linux": ("tar", "wheel", "deb", "appdir", "sums"),
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
