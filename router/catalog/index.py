"""Finding a file on the Python package index that this machine is set up for.

pip's configuration is where people and companies name their index, its certificates and the way to it; it is
read from its files and variables, so that it counts also where no pip is installed.
"""

from __future__ import annotations

import configparser
import json
import os
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final

import aiohttp
from msgspec import Struct

from router.errors import RouterError
from router.fetch import describe, without_secrets

PYPI: Final = "https://pypi.org/simple"
JSON_TYPE: Final = "application/vnd.pypi.simple.v1+json"
ACCEPT: Final = f"{JSON_TYPE}, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
PAGE_LIMIT: Final = 16 << 20


class IndexConfig(Struct, frozen=True):
    """Where packages come from here.

    Attributes:
        urls: base addresses of simple indexes, the main one first.
        find_links: folders, or pages' addresses, that hold files directly.
        cert: a file of certificates to trust, "" for the system's own.
        proxy: the proxy's address, "" for what the environment says.
    """

    urls: tuple[str, ...] = (PYPI,)
    find_links: tuple[str, ...] = ()
    cert: str = ""
    proxy: str = ""


def index_config(
    environ: Mapping[str, str], prefix: str = sys.prefix, etc: Path = Path("/etc")
) -> IndexConfig:
    """pip's configuration: its files, the system's first, then its variables. Blocks."""
    options: dict[str, str] = {}
    for file in _config_files(environ, prefix, etc):
        parser = configparser.RawConfigParser()
        try:
            parser.read(file, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError):
            # pip itself will complain of it; here the other sources still count.
            continue
        for section in ("global", "download", "install"):
            if parser.has_section(section):
                options.update({_key(key): value for key, value in parser.items(section)})
    for name, value in environ.items():
        if name.startswith("PIP_") and value:
            options[_key(name.removeprefix("PIP_"))] = value
    urls = (options.get("index-url") or PYPI, *options.get("extra-index-url", "").split())
    if _is_on(options.get("no-index", "")):
        urls = ()
    return IndexConfig(
        urls=tuple(dict.fromkeys(url.strip() for url in urls)),
        find_links=tuple(options.get("find-links", "").split()),
        cert=options.get("cert", ""),
        proxy=options.get("proxy", ""),
    )


def _key(written: str) -> str:
    return written.lower().replace("_", "-").removeprefix("--")


def _is_on(text: str) -> bool:
    return text.strip().lower() in {"1", "true", "yes", "on", "y", "t"}


def _config_files(environ: Mapping[str, str], prefix: str, etc: Path) -> Iterator[Path]:
    """Later files override earlier ones."""
    named = environ.get("PIP_CONFIG_FILE", "")
    if named == os.devnull:
        return
    home = Path(environ.get("HOME") or os.path.expanduser("~"))
    if sys.platform == "win32":
        name = "pip.ini"
        yield Path(environ.get("PROGRAMDATA", "C:\\ProgramData")) / "pip" / name
        yield home / "pip" / name
        yield Path(environ.get("APPDATA", home / "AppData" / "Roaming")) / "pip" / name
    else:
        name = "pip.conf"
        for folder in reversed((environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")):
            yield Path(folder) / "pip" / name
        yield etc / name
        if sys.platform == "darwin":
            yield Path("/Library/Application Support/pip") / name
        yield home / ".pip" / name
        yield Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "pip" / name
        if sys.platform == "darwin":
            yield home / "Library" / "Application Support" / "pip" / name
    yield Path(prefix) / name
    if named:
        yield Path(named)


def local_file(config: IndexConfig, project: str, file: str) -> Path | None:
    """The file in a folder that the configuration names, if it is there. Blocks."""
    for place in config.find_links:
        found = _as_folder(place)
        if found is not None and (found / file).is_file():
            return found / file
    for url in config.urls:
        found = _as_folder(url)
        if found is not None and (found / project / file).is_file():
            return found / project / file
    return None


def _as_folder(place: str) -> Path | None:
    parts = urllib.parse.urlsplit(place)
    if parts.scheme == "file":
        return Path(urllib.request.url2pathname(parts.path))
    return Path(place) if parts.scheme == "" or len(parts.scheme) == 1 else None


async def find_file(session: aiohttp.ClientSession, config: IndexConfig, project: str, file: str) -> str:
    """The address of a project's file.

    Raises:
        RouterError: no index has it; the message says what each answered.
    """
    answers: list[str] = []
    for base in config.urls:
        if _as_folder(base) is not None:
            answers.append(f"{without_secrets(base)} has no {file}")
            continue
        page = f"{base.rstrip('/')}/{project}/"
        try:
            url = await _ask(session, config, page, file)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            answers.append(f"{without_secrets(base)}: {describe(error)}")
            continue
        if url is not None:
            return url
        answers.append(f"{without_secrets(base)} has no {file}")
    if not answers:
        answers.append("pip is set up to use no index")
    raise RouterError(
        f"The package index did not help: {'; '.join(answers)}.", code="download_failed", status=502
    )


async def _ask(session: aiohttp.ClientSession, config: IndexConfig, page: str, file: str) -> str | None:
    async with session.get(
        page, headers={"Accept": ACCEPT}, proxy=config.proxy or None, raise_for_status=True
    ) as response:
        body = bytearray()
        async for chunk in response.content.iter_chunked(1 << 16):
            body += chunk
            if len(body) > PAGE_LIMIT:
                raise ValueError("its page is too long")
        base = str(response.url)
        if response.content_type.endswith("json"):
            found = _in_json(json.loads(body), file)
        else:
            found, base = _in_html(body.decode(response.get_encoding(), "replace"), file, base)
    if found is None:
        return None
    return _with_login(urllib.parse.urljoin(base, found), page)


def _in_json(page: Any, file: str) -> str | None:
    files = page.get("files") if isinstance(page, dict) else None
    for item in files if isinstance(files, list) else ():
        if isinstance(item, dict) and item.get("filename") == file and isinstance(item.get("url"), str):
            return str(item["url"])
    return None


class _Anchors(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.base = ""
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        href = dict(attrs).get("href") or ""
        if tag == "base" and not self.base:
            self.base = href
        elif tag == "a" and href:
            self.links.append(href)


def _in_html(page: str, file: str, base: str) -> tuple[str | None, str]:
    parser = _Anchors()
    parser.feed(page)
    parser.close()
    base = urllib.parse.urljoin(base, parser.base)
    for link in parser.links:
        path = urllib.parse.urlsplit(link).path
        if urllib.parse.unquote(path.rsplit("/", 1)[-1]) == file:
            return urllib.parse.urldefrag(link).url, base
    return None, base


def _with_login(url: str, page: str) -> str:
    """The address with the user and password of the page's, if both are on one host."""
    target, origin = urllib.parse.urlsplit(url), urllib.parse.urlsplit(page)
    same = (target.scheme, target.hostname, target.port) == (origin.scheme, origin.hostname, origin.port)
    if not same or "@" in target.netloc or "@" not in origin.netloc:
        return url
    login = origin.netloc.rpartition("@")[0]
    return urllib.parse.urlunsplit(target._replace(netloc=f"{login}@{target.netloc}"))
