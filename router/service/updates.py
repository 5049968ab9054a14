"""Looking whether a newer version has been released: only if the user wants it. Nothing is ever installed.

A release feed is a small JSON document: an object, or a list of objects, each with `version` and `url` (or
`tag_name` and `html_url`, as GitHub names them), and `prerelease` or `draft` where that is so.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
import urllib.parse
from collections.abc import Awaitable, Callable
from typing import Any, Final

import aiohttp
import msgspec
from msgspec import Struct

from router.errors import RouterError
from router.fetch import FileThread, describe, open_session, without_secrets
from router.settings.schema import Settings
from router.settings.state import StateFile
from router.snapshot import UpdateView
from router.version import __version__

log = logging.getLogger(__name__)

DAY_S: Final = 86_400.0
#: Many programs start at the same moments, such as nine in the morning: each waits a while of its own.
JITTER_S: Final = 3_600.0
#: After a start the check comes when the machine is done with starting.
SOON_S: Final = 60.0
LIMIT: Final = 1 << 20
ANSWER_S: Final = 30.0

_VERSION: Final = re.compile(
    r"v?(?P<release>\d{1,9}(?:\.\d{1,9}){0,7})"
    r"(?:[-_.]?(?P<pre>alpha|beta|preview|pre|rc|a|b|c)[-_.]?(?P<pre_number>\d{0,9}))?"
    r"(?:[-_.]?(?:post|rev|r)[-_.]?(?P<post>\d{0,9})|-(?P<bare>\d{1,9}))?"
    r"(?P<dev>[-_.]?dev[-_.]?(?P<dev_number>\d{0,9}))?"
    r"(?:\+[a-z0-9]+(?:[-_.][a-z0-9]+)*)?",
    re.IGNORECASE,
)
_PRE: Final = {"a": 0, "alpha": 0, "b": 1, "beta": 1, "c": 2, "rc": 2, "pre": 2, "preview": 2}


class Release(Struct, frozen=True):
    """A version that was released, and the page that tells of it ("" for none)."""

    version: str
    url: str = ""


def order(version: str) -> tuple[Any, ...] | None:
    """What versions are compared by, as Python packages order theirs; None for what is no version."""
    match = _VERSION.fullmatch(version.strip())
    if match is None:
        return None
    release = [int(part) for part in match["release"].split(".")]
    while len(release) > 1 and not release[-1]:
        release.pop()
    has_dev = match["dev"] is not None
    after = match["bare"] if match["post"] is None else match["post"]
    dev = (0, int(match["dev_number"] or 0)) if has_dev else (1, 0)
    if match["pre"] is not None:
        pre: tuple[int, int] = (_PRE[match["pre"].lower()], int(match["pre_number"] or 0))
    else:
        # A version that is only in development comes before its first alpha; a final one after the last rc.
        pre = (-1, 0) if has_dev and after is None else (3, 0)
    post = -1 if after is None else int(after or 0)
    return tuple(release), pre, post, dev


def is_final(version: str) -> bool:
    """Neither a pre-release nor one in development."""
    match = _VERSION.fullmatch(version.strip())
    return match is not None and match["pre"] is None and match["dev"] is None


def newest(data: bytes, running: str = __version__) -> Release | None:
    """The newest release of a feed that is newer than the one that runs; None if there is none.

    Those who run a final version are told of final ones only.

    Raises:
        ValueError: it is no release feed.
    """
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError("it is no JSON") from error
    entries = document if isinstance(document, list) else [document]
    if isinstance(document, dict) and isinstance(document.get("releases"), list):
        entries = document["releases"]
    own = order(running)
    found: list[tuple[tuple[Any, ...], Release]] = []
    is_feed = False
    for entry in entries:
        if not isinstance(entry, dict):
            continue
        version = entry.get("version", entry.get("tag_name"))
        if not isinstance(version, str) or (key := order(version)) is None:
            continue
        is_feed = True
        unwanted = entry.get("draft") is True or entry.get("yanked") is True
        early = entry.get("prerelease") is True or not is_final(version)
        if unwanted or (early and is_final(running)) or own is None or key <= own:
            continue
        found.append((key, Release(version.strip().removeprefix("v"), _page(entry))))
    if entries and not is_feed:
        raise ValueError("it names no version")
    return max(found, key=lambda item: item[0])[1] if found else None


def _page(entry: dict[str, Any]) -> str:
    url = entry.get("url", "") if "version" in entry else entry.get("html_url", "")
    if not isinstance(url, str) or len(url) > 2000 or not url.isprintable():
        return ""
    try:
        return url if urllib.parse.urlsplit(url).scheme == "https" else ""
    except ValueError:
        return ""


async def read_feed(address: str) -> bytes:
    """The bytes of a feed.

    Raises:
        RouterError: it is not there, its certificate is not trusted, or it is too long.
    """
    thread = FileThread("updates")
    try:
        async with asyncio.timeout(ANSWER_S), open_session(thread) as session:
            headers = {"Accept": "application/json", "User-Agent": f"lemon-tray/{__version__}"}
            async with session.get(
                address, headers=headers, raise_for_status=True, allow_redirects=True, max_redirects=5
            ) as answer:
                if not _is_safe(str(answer.url)):
                    raise RouterError("It leads to an address without encryption.", code="update_failed")
                data = bytearray()
                async for chunk in answer.content.iter_chunked(1 << 16):
                    data += chunk
                    if len(data) > LIMIT:
                        raise RouterError("It is too long for a release feed.", code="update_failed")
                return bytes(data)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise RouterError(f"{describe(error)}.", code="update_failed", status=502) from error
    finally:
        await thread.close()


def _is_safe(address: str) -> bool:
    """Encrypted, or on this machine."""
    parts = urllib.parse.urlsplit(address)
    return parts.scheme == "https" or (
        parts.scheme == "http" and parts.hostname in ("127.0.0.1", "::1", "localhost")
    )


class Updates:
    """Asks once a day, from the moment it is wanted.

    Args:
        state: remembers when it was asked, what was found and what was told.
        tell: called once for each version that is newer, with a code and a sentence.
        on_change: called when `view` has changed.
        read: for tests; reads a feed.
        clock, jitter: the time in Unix seconds, and a number between 0 and 1.
    """

    def __init__(
        self,
        state: StateFile,
        tell: Callable[[str, str], None],
        on_change: Callable[[], None],
        *,
        read: Callable[[str], Awaitable[bytes]] = read_feed,
        clock: Callable[[], float] = time.time,
        jitter: Callable[[], float] = random.random,
        running: str = __version__,
    ) -> None:
        self._state = state
        self._tell = tell
        self._on_change = on_change
        self._read = read
        self._clock = clock
        self._jitter = jitter
        self._running = running
        self._is_on = False
        self._feed = ""
        self._problem = ""
        self._changed = asyncio.Event()

    @property
    def view(self) -> UpdateView:
        """For the snapshot."""
        state = self._state.state
        known, own = order(state.update_version), order(self._running)
        is_newer = self._is_on and known is not None and own is not None and known > own
        return UpdateView(
            is_on=self._is_on,
            version=state.update_version if is_newer else "",
            url=state.update_url if is_newer else "",
            checked=state.update_checked,
            problem=self._problem if self._is_on else "",
        )

    def configure(self, settings: Settings) -> None:
        """The settings in force."""
        before = (self._is_on, self._feed)
        self._is_on, self._feed = settings.update_check, settings.update_feed.strip()
        if before == (self._is_on, self._feed):
            return
        self._problem = self._fault() if self._is_on else ""
        if self._problem:
            log.warning("%s", self._problem)
        self._changed.set()
        self._on_change()

    def _fault(self) -> str:
        if not self._feed:
            return (
                "Updates cannot be looked for: update_feed names no release feed, and Lemon Tray has no "
                "public one yet."
            )
        if not _is_safe(self._feed):
            return "Updates cannot be looked for: update_feed must be an https address."
        return ""

    async def run(self) -> None:
        """Ask whenever it is due, until cancelled."""
        wait_s = SOON_S
        while True:
            self._changed.clear()
            if not self._is_on or self._problem_of_settings:
                await self._changed.wait()
                wait_s = 0.0
                continue
            due_s = max(wait_s, self._state.state.update_checked + DAY_S - self._clock())
            # A clock that was set back must not put the check off for years.
            due_s = min(due_s, DAY_S) + self._jitter() * (JITTER_S if due_s > SOON_S else SOON_S)
            try:
                async with asyncio.timeout(due_s):
                    await self._changed.wait()
                wait_s = 0.0
                continue
            except TimeoutError:
                await self.check()

    @property
    def _problem_of_settings(self) -> bool:
        return bool(self._fault())

    async def check(self) -> None:
        """Ask now."""
        feed = self._feed
        await self._remember(update_checked=self._clock())
        try:
            found = newest(await self._read(feed), self._running)
        except RouterError as error:
            self._failed(feed, error.message)
            return
        except ValueError as error:
            self._failed(feed, f"{error}.")
            return
        self._problem = ""
        if found is not None:
            # Told in the moment in which it can be seen, not when that has been written.
            if self._state.state.update_told != found.version:
                where = f" See {found.url}" if found.url else ""
                self._tell(
                    "update_available",
                    f"Lemon Tray {found.version} has been released; {self._running} runs.{where}",
                )
            await self._remember(
                update_version=found.version, update_url=found.url, update_told=found.version
            )
        else:
            await self._remember(update_version="", update_url="")
        self._on_change()

    def _failed(self, feed: str, reason: str) -> None:
        self._problem = f"Updates could not be looked for at {without_secrets(feed)}: {reason}"
        log.info("%s", self._problem)
        self._on_change()

    async def _remember(self, **changes: Any) -> None:
        try:
            await self._state.update(**changes)
        except OSError as error:
            log.warning("%s could not be written: %s", self._state.path, error)
