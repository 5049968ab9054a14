"""When a notice counts as told: it stood painted in a visible panel for a second, or a button of it was used.

Told is recorded at once, so that no restart shows it again; on the screen it stays until the panel closes, so
that nobody has a second to read it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from PySide6.QtCore import QObject, QTimer, Signal

from router.snapshot import NoticeView, Snapshot

SEEN_MS: Final = 1000

PREFIX: Final = "notice:"
"""How the ids of notices' banners begin."""


class Notices(QObject):
    """Watches the notices' banners. `told` carries a notice's id, once."""

    told = Signal(str)

    def __init__(
        self, is_shown: Callable[[str], bool], parent: QObject | None = None, *, seen_ms: int = SEEN_MS
    ) -> None:
        """`is_shown` tells whether the banner of that id stands in a visible panel now."""
        super().__init__(parent)
        self._is_shown = is_shown
        self._due: dict[str, NoticeView] = {}
        self._told: set[str] = set()
        self._watched = ""
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.setInterval(seen_ms)
        self._timer.timeout.connect(self._seen)

    def take(self, snapshot: Snapshot) -> None:
        """Take over the notices that are due; what was told during this opening of the panel stays."""
        kept = {id: notice for id, notice in self._due.items() if id in self._told and snapshot.pool.at_risk}
        self._due = kept | {notice.id: notice for notice in snapshot.notices}

    def shown(self) -> tuple[NoticeView, ...]:
        """The notices to show now."""
        return tuple(self._due.values())

    def painted(self, banner: str) -> None:
        """A banner has been painted."""
        if not banner.startswith(PREFIX) or banner.removeprefix(PREFIX) in self._told:
            return
        if self._watched != banner or not self._timer.isActive():
            self._watched = banner
            self._timer.start()

    def closed(self) -> None:
        """The panel was closed: what was not seen for long enough counts as not seen."""
        self._timer.stop()
        for told in self._told:
            self._due.pop(told, None)

    def used(self, banner: str) -> None:
        """A button of a banner was used: if it is a notice's, that is told, and goes."""
        if not banner.startswith(PREFIX):
            return
        id = banner.removeprefix(PREFIX)
        self._tell(id)
        self._due.pop(id, None)

    def _seen(self) -> None:
        if self._is_shown(self._watched):
            self._tell(self._watched.removeprefix(PREFIX))

    def _tell(self, id: str) -> None:
        if id not in self._told:
            self._told.add(id)
            self.told.emit(id)
