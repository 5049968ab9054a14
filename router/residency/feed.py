"""The bounded feed of decisions: a code for programs and one plain sentence for people."""

from __future__ import annotations

import bisect
import time
from collections import Counter, deque
from collections.abc import Callable

from router.snapshot import LOAD_BOUNDS_S, FeedEntry, LoadTimes, Severity


class Feed:
    """The last `keep` entries, ids rising by one without gaps."""

    def __init__(self, keep: int = 500, wall: Callable[[], float] = time.time) -> None:
        self._entries: deque[FeedEntry] = deque(maxlen=keep)
        self._wall = wall
        self._last_id = 0
        self._counts: Counter[tuple[str, str]] = Counter()
        self._loads = [0] * (len(LOAD_BOUNDS_S) + 1)
        self._loads_s = 0.0

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

    def loaded(self, seconds: float) -> None:
        """Count a load that took so long."""
        self._loads[bisect.bisect_left(LOAD_BOUNDS_S, seconds)] += 1
        self._loads_s += seconds

    def load_times(self) -> LoadTimes:
        """How long all loads took that came to their end."""
        return LoadTimes(tuple(self._loads), self._loads_s)

    def counts(self) -> tuple[tuple[str, str, int], ...]:
        """Code, reason ("" without one) and number of all entries ever added."""
        return tuple((code, reason, count) for (code, reason), count in sorted(self._counts.items()))

    def latest(self, count: int) -> tuple[FeedEntry, ...]:
        """The newest `count` entries, oldest first."""
        return tuple(self._entries)[-count:]

    def since(self, last_id: int) -> tuple[FeedEntry, ...]:
        """The kept entries with a higher id, oldest first."""
        return tuple(entry for entry in self._entries if entry.id > last_id)
