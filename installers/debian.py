"""What is particular to the Debian package: its fields, and the files that Debian's policy asks for."""

from __future__ import annotations

import email.utils
import gzip
import hashlib
import platform
import shutil
from pathlib import Path
from typing import Final

import project
from payload import ROOT

HERE: Final = Path(__file__).resolve().parent / "linux" / "deb"

#: Debian packages of what is not in the payload: the C library, and the side of drawing that is the system's.
#: fontconfig-config says where fonts are, and brings one.
DEPENDS: Final = (
    "ca-certificates",
    "fontconfig-config",
    "libc6 (>= {glibc})",
    "libegl1",
    "libgl1",
    "libxcb1",
)
RECOMMENDS: Final = ("default-dbus-session-bus | dbus-session-bus",)
ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


def architecture() -> str:
    """Debian's name for the machine that builds."""
    return ARCHITECTURES.get(platform.machine(), platform.machine())


def glibc() -> str:
    """The oldest C library that the payload runs on: the one it is built on."""
    return platform.libc_ver()[1] or "2.35"


def control_file(kibibytes: int) -> str:
    """The package's fields."""
    depends = ", ".join(part.format(glibc=glibc()) for part in DEPENDS)
    return (
        f"Package: {project.NAME}\n"
        f"Version: {project.DEBIAN_VERSION}\n"
        f"Architecture: {architecture()}\n"
        f"Maintainer: {project.MAINTAINER}\n"
        f"Installed-Size: {kibibytes}\n"
        f"Depends: {depends}\n"
        f"Recommends: {', '.join(RECOMMENDS)}\n"
        "Section: net\n"
        "Priority: optional\n"
        f"{f'Homepage: {project.HOMEPAGE}{chr(10)}' if project.HOMEPAGE else ''}"
        "Description: tray app and local router that runs language models\n"
        " Lemon Tray runs language models on your own machine and gives all your apps\n"
        " one OpenAI-compatible endpoint for them. It loads models when they are asked\n"
        " for, unloads idle ones to make room, and shows all of it in a tray icon with\n"
        " a panel. The same router runs without a screen as 'lemon-tray serve'.\n"
        " .\n"
        " The engine, llama.cpp, and Qt are inside.\n"
    )


def changelog(seconds: int) -> str:
    """Debian's own changelog, which names the version and when it was made."""
    date = email.utils.formatdate(seconds, localtime=False).replace("-0000", "+0000")
    return (
        f"{project.NAME} ({project.DEBIAN_VERSION}) stable; urgency=medium\n\n"
        "  * What changed is in CHANGELOG.md.gz beside this file.\n\n"
        f" -- {project.MAINTAINER}  {date}\n"
    )


def packed(data: bytes) -> bytes:
    """As files of documentation are kept, the same each time."""
    return gzip.compress(data, 9, mtime=0)


def md5(path: Path) -> str:
    """As dpkg keeps them, against damage on disk."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def fill(stage: Path, payload: Path, seconds: int) -> None:
    """Everything but what lies below /usr/share for desktops: the payload, documents, control files."""
    library = stage / "usr" / "lib" / project.NAME
    shutil.copytree(payload, library, symlinks=True)
    for path in library.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(0o755 if path == library / project.NAME else 0o644)
    (stage / "usr" / "bin").mkdir()
    (stage / "usr" / "bin" / project.NAME).symlink_to(f"../lib/{project.NAME}/{project.NAME}")
    documents = stage / "usr" / "share" / "doc" / project.NAME
    documents.mkdir(parents=True)
    (library / "LICENSE").unlink()
    copyright_file = project.filled((HERE / "copyright").read_text(encoding="utf-8"))
    (documents / "copyright").write_text(copyright_file, encoding="utf-8")
    third = library / "THIRD-PARTY.txt"
    (documents / "THIRD-PARTY.txt.gz").write_bytes(packed(third.read_bytes()))
    third.unlink()
    (documents / "CHANGELOG.md.gz").write_bytes(packed((ROOT / "CHANGELOG.md").read_bytes()))
    (documents / "changelog.gz").write_bytes(packed(changelog(seconds).encode()))
    overrides = stage / "usr" / "share" / "lintian" / "overrides" / project.NAME
    overrides.parent.mkdir(parents=True)
    overrides.write_bytes((HERE / "lintian-overrides").read_bytes())


def describe(stage: Path) -> None:
    """The control files, once all others are there; and the modes of folders."""
    control = stage / "DEBIAN"
    control.mkdir()
    files = sorted(path for path in (stage / "usr").rglob("*") if path.is_file() and not path.is_symlink())
    size = sum(path.stat().st_size for path in files)
    (control / "control").write_text(control_file(size // 1024), encoding="utf-8")
    sums = "".join(f"{md5(path)}  {path.relative_to(stage)}\n" for path in files)
    (control / "md5sums").write_text(sums, encoding="utf-8")
    for name in ("prerm", "postrm"):
        (control / name).write_bytes((HERE / name).read_bytes())
        (control / name).chmod(0o755)
    for folder in (stage, *(path for path in stage.rglob("*") if path.is_dir())):
        folder.chmod(0o755)
