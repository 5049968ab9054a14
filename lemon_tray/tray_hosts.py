"""Whether anything on this desktop could host an icon, asked without Qt.

Qt looks for hosts on D-Bus once in a process, at its first thought of a tray icon, and never again: one that
comes later, as at login, would be missed for good. So on Linux Qt is not asked before there is something.
"""

from __future__ import annotations

import os
import sys
from typing import Final

from PySide6.QtCore import QObject, Signal
from PySide6.QtGui import QGuiApplication

from lemon_tray.display import has_xembed_tray

WATCHER: Final = "org.kde.StatusNotifierWatcher"


class TrayHosts(QObject):
    """Looks for hosts. `appeared` tells of one on D-Bus at once; the others are found by asking again."""

    appeared = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.on_bus = False
        """A host on D-Bus has been there: Qt, if asked now, takes that one."""
        self._watcher: QObject | None = None
        self.matters = sys.platform == "linux" and QGuiApplication.platformName() in ("xcb", "wayland")
        if self.matters:
            self.matters = self._watch()

    def _watch(self) -> bool:
        """Begin to watch the session's bus; False where there is none, and so nothing to come on it."""
        from PySide6.QtDBus import QDBusConnection, QDBusServiceWatcher

        bus = QDBusConnection.sessionBus()
        if not bus.isConnected():
            return False
        watcher = QDBusServiceWatcher(
            WATCHER, bus, QDBusServiceWatcher.WatchModeFlag.WatchForRegistration, self
        )
        watcher.serviceRegistered.connect(self._registered)
        self._watcher = watcher
        self.on_bus = bool(bus.interface().isServiceRegistered(WATCHER).value())
        return True

    def _registered(self, _name: str) -> None:
        self.on_bus = True
        self.appeared.emit()

    def any(self) -> bool:
        """Qt may be asked now: a host is there, or it makes no difference when Qt is asked."""
        if not self.matters or self.on_bus:
            return True
        return QGuiApplication.platformName() == "xcb" and has_xembed_tray(os.environ.get("DISPLAY", ""))
