"""The icon in the tray: state, tooltip, menu, and whether there is a tray at all."""

from __future__ import annotations

from typing import Final

from PySide6.QtCore import QElapsedTimer, QObject, QRect, QTimer, Signal
from PySide6.QtWidgets import QSystemTrayIcon

from lemon_tray.icons import mark_icon
from lemon_tray.menu import TrayMenu
from lemon_tray.notify import Message
from lemon_tray.tray_hosts import TrayHosts
from lemon_tray.view import Mark, PanelView
from router.snapshot import Status

SOON_MS: Final = 2_000
SELDOM_MS: Final = 10_000
SETTLED_MS: Final = 30_000


class Tray(QObject):
    """A system tray icon that outlives its host: trays may start later than we do, end, and come back."""

    clicked = Signal()
    found = Signal(bool)
    message_clicked = Signal()

    def __init__(self, menu: TrayMenu, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._mark = Mark(Status.LOADING, 0)
        self._tooltip = ""
        self._available: bool | None = None
        self._running = QElapsedTimer()
        self._waiting_message = False
        self._menu = menu
        self._hosts = TrayHosts(self)
        self._hosts.appeared.connect(self.look_again)
        self.icon: QSystemTrayIcon | None = None
        self._timer = QTimer(self)
        self._timer.timeout.connect(self.look_again)

    @property
    def available(self) -> bool:
        """There is a tray, as of the last look."""
        return bool(self._available)

    @property
    def settled(self) -> bool:
        """So long after the start that a tray which has not come will not come at login any more."""
        return self._running.isValid() and self._running.elapsed() >= SETTLED_MS

    def start(self) -> None:
        """Show the icon and begin to look for a tray."""
        self._running.start()
        self._timer.start(SOON_MS)
        self.look_again()

    def stop(self) -> None:
        self._timer.stop()
        if self.icon is not None:
            self.icon.hide()

    def look_again(self) -> None:
        """Ask whether there is a tray; `found` tells of a change, and once of the first answer."""
        if self.icon is None and self._hosts.any():
            self._make_icon()
        available = self.icon is not None and self.is_available()
        if self.settled and self._timer.interval() != SELDOM_MS:
            self._timer.setInterval(SELDOM_MS)
        if available != self._available:
            self._available = available
            if available and self.icon is not None and not self.icon.isVisible():
                self.icon.show()
            self.found.emit(available)

    def _make_icon(self) -> None:
        self._menu.export(self._hosts.on_bus)
        self.icon = QSystemTrayIcon(mark_icon(self._mark), self)
        self.icon.setContextMenu(self._menu.menu)
        self.icon.setToolTip(self._tooltip)
        self.icon.activated.connect(self._activated)
        self.icon.messageClicked.connect(self._message_clicked)
        self.icon.show()

    def is_available(self) -> bool:
        """`isVisible` says nothing about a tray; this does."""
        return QSystemTrayIcon.isSystemTrayAvailable()

    def anchor(self) -> QRect | None:
        """Where the icon is; None where the host does not tell."""
        geometry = self.icon.geometry() if self.icon is not None else QRect()
        return geometry if geometry.isValid() and not geometry.isEmpty() else None

    def show_view(self, view: PanelView) -> None:
        """Another icon or tooltip, only if they changed."""
        if view.head.mark != self._mark:
            self._mark = view.head.mark
            if self.icon is not None:
                self.icon.setIcon(mark_icon(self._mark))
        if view.menu.tooltip != self._tooltip:
            self._tooltip = view.menu.tooltip
            if self.icon is not None:
                self.icon.setToolTip(self._tooltip)

    def tell(self, message: Message) -> None:
        """A desktop notification, where the desktop has them."""
        if self.icon is not None and self._available and QSystemTrayIcon.supportsMessages():
            self._waiting_message = True
            self.icon.showMessage(message.title, message.text, QSystemTrayIcon.MessageIcon.Warning)

    def _message_clicked(self) -> None:
        # Some hosts send this for messages that are not ours.
        if self._waiting_message:
            self._waiting_message = False
            self.message_clicked.emit()

    def _activated(self, reason: QSystemTrayIcon.ActivationReason) -> None:
        if reason in (QSystemTrayIcon.ActivationReason.Trigger, QSystemTrayIcon.ActivationReason.MiddleClick):
            self.clicked.emit()
