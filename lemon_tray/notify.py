"""Which desktop notification is due, if any: one for each cause, grouped, never a flood. No Qt."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from lemon_tray.names import plain, unmarked
from lemon_tray.words import counted, translate
from router.snapshot import FeedEntry, Severity

SAME_CAUSE_S: Final = 600.0
LEAST_APART_S: Final = 20.0
LENGTH: Final = 200
WELCOME: Final = frozenset({"update_available"})
"""Codes of entries that are told although nothing is wrong."""


class Message(Struct, frozen=True):
    title: str
    text: str


class Notifier:
    """Looks at the feed; entries from before the first look are old news."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: int | None = None
        self._told: dict[tuple[str, str | None], float] = {}
        self._last = float("-inf")

    def consider(self, feed: Sequence[FeedEntry], *, panel_visible: bool) -> Message | None:
        """The message that is due for failures, and a newer version, that are new since the last call.

        None while the panel shows them anyway, for a cause told within ten minutes, or right after another.
        """
        newest = max((entry.id for entry in feed), default=self._seen or 0)
        since, self._seen = self._seen, newest
        if since is None:
            return None
        now = self._clock()
        fresh = [e for e in feed if e.id > since and (e.severity is Severity.ERROR or e.code in WELCOME)]
        fresh = [e for e in fresh if now - self._told.get((e.code, e.model), float("-inf")) >= SAME_CAUSE_S]
        if not fresh or panel_visible or now - self._last < LEAST_APART_S:
            return None
        self._told = {cause: t for cause, t in self._told.items() if now - t < SAME_CAUSE_S}
        for entry in fresh:
            self._told[(entry.code, entry.model)] = now
        fresh.sort(key=lambda entry: entry.code in WELCOME)  # what is wrong comes first
        self._last = now
        text = unmarked(plain(fresh[0].message, LENGTH))
        if len(fresh) > 1:
            rest = len(fresh) - 1
            more = counted("Notify", "{text} And {count} more.", rest)
            title = counted("Notify", "Lemon Tray: {count} problems", len(fresh))
            return Message(title.format(count=len(fresh)), more.format(text=text, count=rest))
        return Message(translate("Notify", "Lemon Tray"), text)
