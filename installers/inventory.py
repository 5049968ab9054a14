"""What is inside a package: the licences of all of it, and a list for machines (CycloneDX)."""

from __future__ import annotations

import ast
import contextlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import urllib.parse
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import project
from payload import ROOT

_Distribution = importlib.metadata.Distribution
_WORD: Final = re.compile(r"[A-Za-z0-9._-]+")


def _plain(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def locked() -> list[str]:
    """The names in the lock file of what runs."""
    text = (ROOT / "requirements.lock").read_text("utf-8")
    return re.findall(r"^([A-Za-z0-9._-]+)==", text, re.MULTILINE)


@dataclass(frozen=True)
class SystemPackage:
    """A package of Debian's that gave a library to the payload."""

    name: str
    version: str
    source: str

    @property
    def purl(self) -> str:
        kind = platform.freedesktop_os_release().get("ID", "debian")
        return f"pkg:deb/{kind}/{self.name}@{urllib.parse.quote(self.version)}"

    @property
    def terms(self) -> str:
        """Its file of copyrights and licences; "" if it is not installed."""
        path = Path("/usr/share/doc", self.name, "copyright")
        return path.read_text("utf-8", "replace") if path.is_file() else ""


@dataclass(frozen=True)
class Contents:
    """What a payload was made of, besides the project itself and Python."""

    packages: tuple[_Distribution, ...]
    libraries: tuple[SystemPackage, ...] = ()

    @classmethod
    def locked(cls) -> Contents:
        """What may be in one: the locked packages that are installed. Some are for other systems only."""
        found = []
        for name in locked():
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                found.append(importlib.metadata.distribution(name))
        return cls(tuple(found))

    @classmethod
    def taken(cls, work: Path) -> Contents:
        """What PyInstaller took, by the lists that it leaves in its work folder.

        Raises:
            OSError, SyntaxError, ValueError: they are not there, or not of the form that is known.
        """
        sources: set[str] = set()
        for name in ("PYZ-00.toc", "COLLECT-00.toc"):
            for part in ast.literal_eval((work / name).read_text("utf-8")):
                if isinstance(part, list):
                    sources.update(os.path.realpath(source) for _, source, *_ in part if source)
        packages = []
        for one in cls.locked().packages:
            files = {os.path.realpath(str(one.locate_file(file))) for file in one.files or ()}
            if files & sources:
                packages.append(one)
        return cls(tuple(packages), _libraries(sources) if sys.platform == "linux" else ())


def _libraries(sources: Iterable[str]) -> tuple[SystemPackage, ...]:
    """The system's packages that own those of the files that are the system's."""
    owned = [source for source in sources if source.startswith(("/usr/lib/", "/lib/"))]
    if not owned or shutil.which("dpkg-query") is None:
        return ()
    # /lib leads to /usr/lib, and packages list their files as being in either.
    owned += [source.removeprefix("/usr") for source in owned if source.startswith("/usr/lib/")]
    asked = subprocess.run(
        ["dpkg-query", "--search", *owned], capture_output=True, text=True, check=False
    ).stdout
    names = sorted({line.split(": ")[0] for line in asked.splitlines() if not line.startswith("diversion")})
    shape = "${Package}\t${Version}\t${source:Package}\n"
    told = subprocess.run(
        ["dpkg-query", "--show", f"--showformat={shape}", *names], capture_output=True, text=True, check=False
    ).stdout
    return tuple(sorted((SystemPackage(*line.split("\t")) for line in told.splitlines()), key=str))


def licence(one: _Distribution) -> str:
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


def third_party(contents: Contents) -> str:
    """The licences of all packages inside, as they come with them."""
    parts = [
        f"{project.TITLE} {project.VERSION} contains the packages below, and Python "
        f"{platform.python_version()} (PSF-2.0, https://docs.python.org/3/license.html). Qt is used under "
        "the LGPL-3.0: its libraries are separate files in this folder, and you may replace them. Its "
        "source: https://download.qt.io/. llama.cpp (MIT) is inside xllamacpp.\n"
    ]
    for one in contents.packages:
        parts.append(f"\n{'=' * 78}\n{one.metadata['Name']} {one.version}: {licence(one)}\n{'=' * 78}\n")
        for path in one.files or ():
            if "licen" in str(path).lower() or path.name.upper().startswith(("COPYING", "NOTICE")):
                where = one.locate_file(path)
                if ".dist-info" in str(path) and where.is_file():
                    parts.append(f"\n--- {path.name} ---\n{where.read_text('utf-8', 'replace').strip()}\n")
    for library in contents.libraries:
        title = f"{library.name} {library.version} (Debian's package, source {library.source})"
        parts.append(f"\n{'=' * 78}\n{title}\n{'=' * 78}\n\n{library.terms.strip()}\n")
    return "".join(parts)


def _component(one: _Distribution) -> dict[str, Any]:
    purl = f"pkg:pypi/{_plain(one.metadata['Name'])}@{one.version}"
    expression = one.metadata.json.get("license_expression")
    return {
        "type": "library",
        "bom-ref": purl,
        "name": one.metadata["Name"],
        "version": one.version,
        "purl": purl,
        "licenses": [{"expression": expression} if expression else {"license": {"name": licence(one)}}],
    }


def _dependencies(found: dict[str, _Distribution]) -> list[dict[str, Any]]:
    """Who needs whom, as the packages themselves say it for this system."""
    edges = []
    for one in found.values():
        needed = set()
        for line in one.requires or ():
            wanted = _WORD.match(line)
            key = _plain(wanted[0]) if wanted else ""
            # What only an extra asks for, or another system, is here only if something else brings it.
            if key in found and "extra ==" not in line:
                needed.add(_component(found[key])["bom-ref"])
        edges.append({"ref": _component(one)["bom-ref"], "dependsOn": sorted(needed)})
    return edges


def _qt(found: Mapping[str, _Distribution]) -> list[dict[str, Any]]:
    """Qt itself, whose faults are told under its own name. Its bindings' wheel brings it."""
    bindings = found.get("pyside6-essentials")
    if bindings is None:
        return []
    purl = f"pkg:generic/qt@{bindings.version}"
    licences = [{"license": {"id": "LGPL-3.0-only"}}]
    return [
        {
            "type": "framework",
            "bom-ref": purl,
            "name": "Qt",
            "version": bindings.version,
            "purl": purl,
            "licenses": licences,
        }
    ]


def sbom(contents: Contents) -> str:
    """What is inside, in CycloneDX's form."""
    found = {_plain(one.metadata["Name"]): one for one in contents.packages}
    python = {
        "type": "library",
        "bom-ref": f"pkg:generic/python@{platform.python_version()}",
        "name": "CPython",
        "version": platform.python_version(),
        "purl": f"pkg:generic/python@{platform.python_version()}",
        "licenses": [{"license": {"id": "PSF-2.0"}}],
    }
    libraries = [
        {
            "type": "library",
            "bom-ref": library.purl,
            "name": library.name,
            "version": library.version,
            "purl": library.purl,
        }
        for library in contents.libraries
    ]
    components = [*(_component(one) for one in found.values()), *_qt(found), *libraries, python]
    product = f"{project.NAME}@{project.VERSION}"
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        # The same contents have the same number.
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, f'{json.dumps(components)} {product}')}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": product,
                "name": project.NAME,
                "version": project.VERSION,
                "publisher": project.PUBLISHER,
                "licenses": [{"license": {"id": project.LICENCE}}],
            },
            "properties": [{"name": "platform", "value": f"{sys.platform} {platform.machine()}"}],
        },
        "components": components,
        "dependencies": [
            {"ref": product, "dependsOn": [each["bom-ref"] for each in components]},
            *_dependencies(found),
        ],
    }
    return json.dumps(document, indent=2) + "\n"
