"""Snapshots on their way from the router to the widgets: the newest one, at most ten times a second."""

from __future__ import annotations

from typing import Final

from PySide6.QtCore import QElapsedTimer, QObject, QTimer, Signal

from lemon_tray.door import Door
from router.snapshot import Snapshot

LEAST_MS: Final = 100


class Bridge(QObject):
    """Emits `changed` with the newest snapshot: at once if the last one is long ago, else when it is time."""

    changed = Signal(object)

    def __init__(self, door: Door, parent: QObject | None = None, *, least_ms: int = LEAST_MS) -> None:
        super().__init__(parent)
        self._door = door
        self._least_ms = least_ms
        self._since = QElapsedTimer()
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.timeout.connect(self._send)
        self._end = door.subscribe(self._arrived)

    def close(self) -> None:
        """No snapshot comes any more. Idempotent."""
        self._end()
        self._end = _nothing
        self._timer.stop()

    def _arrived(self, _snapshot: Snapshot) -> None:
        if self._timer.isActive():
            return
        passed = self._since.elapsed() if self._since.isValid() else self._least_ms
        if passed >= self._least_ms:
            self._send()
        else:
            self._timer.start(self._least_ms - int(passed))

    def _send(self) -> None:
        self._since.start()
        self.changed.emit(self._door.snapshot)


def _nothing() -> None:
    return None
