"""The bounded feed of decisions: a code for programs and one plain sentence for people."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable

from router.snapshot import FeedEntry, Severity


class Feed:
    """The last `keep` entries, ids rising by one without gaps."""

    def __init__(self, keep: int = 500, wall: Callable[[], float] = time.time) -> None:
        self._entries: deque[FeedEntry] = deque(maxlen=keep)
        self._wall = wall
        self._last_id = 0
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(
        self,
        code: str,
        message: str,
        *,
        severity: Severity = Severity.INFO,
        model: str | None = None,
        device: str | None = None,
        reason: str | None = None,
    ) -> FeedEntry:
        """Append an entry, stamped with the wall clock."""
        self._last_id += 1
        self._counts[code, reason or ""] += 1
        entry = FeedEntry(
            id=self._last_id,
            time=self._wall(),
            code=code,
            message=message,
            severity=severity,
            model=model,
            device=device,
            reason=reason,
        )
        self._entries.append(entry)
        return entry

    def counts(self) -> tuple[tuple[str, str, int], ...]:
        """Code, reason ("" without one) and number of all entries ever added."""
        return tuple((code, reason, count) for (code, reason), count in sorted(self._counts.items()))

    def latest(self, count: int) -> tuple[FeedEntry, ...]:
        """The newest `count` entries, oldest first."""
        return tuple(self._entries)[-count:]

    def since(self, last_id: int) -> tuple[FeedEntry, ...]:
        """The kept entries with a higher id, oldest first."""
        return tuple(entry for entry in self._entries if entry.id > last_id)
