"""Who and what the project is, for every package: taken from pyproject.toml and router/version.py."""

from __future__ import annotations

import re
import tomllib
from typing import Any, Final

import payload

_PROJECT: Final[dict[str, Any]] = tomllib.loads(
    (payload.ROOT / "pyproject.toml").read_text(encoding="utf-8")
)["project"]
_AUTHOR: Final[dict[str, str]] = _PROJECT["authors"][0]

NAME: Final[str] = _PROJECT["name"]
TITLE: Final = "Lemon Tray"
VERSION: Final = payload.version()


def numbers(version: str) -> str:
    """As Windows has a version: four numbers, also before a release, such as 1.2.0rc1."""
    release = re.findall(r"\d+", re.split(r"[a-z]", version)[0])
    return ".".join([*release, "0", "0", "0", "0"][:4])


def debian_version(version: str) -> str:
    """As Debian sorts a version: what comes before a release has a tilde before it."""
    return re.sub(r"(?<=\d)\.?(a|b|rc|dev)(?=\d)", r"~\1", version)


NUMBERS: Final = numbers(VERSION)
DEBIAN_VERSION: Final = debian_version(VERSION)
LICENCE: Final[str] = _PROJECT["license"]
PUBLISHER: Final = _AUTHOR["name"]

#: The project has no public home yet, so there is no page to name and no address to write to. What a format
#: leaves out is left out; where Debian's wants an address there is one in the domain that never exists.
#: `urls.Homepage` and `authors[0].email` in pyproject.toml take the place of both as soon as they are there.
HOMELESS_ADDRESS: Final = "nobody@lemon-tray.invalid"

HOMEPAGE: Final[str] = _PROJECT.get("urls", {}).get("Homepage", "")
MAINTAINER: Final = f"{PUBLISHER} <{_AUTHOR.get('email', HOMELESS_ADDRESS)}>"


def filled(text: str) -> str:
    """A template with the project's own words."""
    for name, value in (
        ("VERSION", VERSION),
        ("PUBLISHER", PUBLISHER),
        ("LICENCE", LICENCE),
        ("BUNDLE_ID", payload.BUNDLE_ID),
        ("SOURCE", f"Source: {HOMEPAGE}\n" if HOMEPAGE else ""),
    ):
        text = text.replace(f"@{name}@", value)
    return text
