"""The second start raises the first one's panel.

Who is first is decided by the kernel's lock (`router.instance`), never by a socket: that is only the bell.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from PySide6.QtCore import QObject, QTimer, Signal
from PySide6.QtNetwork import QLocalServer, QLocalSocket

from router.paths import Paths

log = logging.getLogger(__name__)

SHOW: Final = b"lemon-tray 1 show\n"
DONE: Final = b"lemon-tray 1 done\n"
PEERS: Final = 8
PEER_MS: Final = 2_000
RING_MS: Final = 500
RING_S: Final = 4.0
LONGEST_PATH: Final = 100


def bell_name(paths: Paths) -> str:
    """The socket's path (or, on Windows, the pipe's name): one for each user and state folder."""
    digest = hashlib.sha256(os.fsencode(paths.state_dir.absolute())).hexdigest()[:12]
    if sys.platform == "win32":
        return f"lemon-tray-{digest}"
    path = paths.runtime_dir / f"activate-{digest}"
    if len(os.fsencode(path)) > LONGEST_PATH:  # the kernel takes 107 bytes
        path = Path(tempfile.gettempdir()) / f"lemon-tray-{os.getuid()}-{digest}"
    return str(path)


class _Peer(QObject):
    """One connection: says its word within two seconds, or is dropped. It owns its socket and timer."""

    word = Signal()
    over = Signal(QObject)

    def __init__(self, socket: QLocalSocket, parent: QObject) -> None:
        super().__init__(parent)
        self.said = b""
        self._open = True
        self._socket = socket
        socket.setParent(self)
        socket.setReadBufferSize(len(SHOW) + 1)
        socket.readyRead.connect(self._read)
        socket.disconnected.connect(self.drop)
        self._patience = QTimer(self)
        self._patience.setSingleShot(True)
        self._patience.timeout.connect(self.drop)
        self._patience.start(PEER_MS)

    def listen(self) -> None:
        """Take what has arrived before anyone was connected."""
        if self._socket.bytesAvailable():
            self._read()

    def _read(self) -> None:
        if not self._open:
            return
        self.said += self._socket.read(len(SHOW) + 1).data()
        if self.said == SHOW:
            self._socket.write(DONE)
            self._socket.flush()
            self._socket.disconnectFromServer()
            self.word.emit()
        elif not SHOW.startswith(self.said):
            self.drop()  # talks about something else, or too much

    def drop(self) -> None:
        if self._open:
            self._open = False
            self._patience.stop()
            self._socket.abort()
            self.over.emit(self)
            self.deleteLater()


class Bell(QObject):
    """Listens for later starts. Only the holder of the instance lock may make one."""

    rung = Signal()

    def __init__(self, name: str, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._name = name
        self.peers: list[_Peer] = []
        self._server = QLocalServer(self)
        self._server.setSocketOptions(QLocalServer.SocketOption.UserAccessOption)
        self._server.newConnection.connect(self._accept)

    def listen(self) -> bool:
        """Begin. A socket file left by a dead instance is removed: the lock is ours, so it is stale."""
        QLocalServer.removeServer(self._name)
        if not self._server.listen(self._name):
            log.warning("A second start cannot raise this one: %s.", self._server.errorString())
            return False
        return True

    def close(self) -> None:
        for peer in list(self.peers):
            peer.drop()
        self._server.close()

    def _accept(self) -> None:
        while self._server.hasPendingConnections():
            socket = self._server.nextPendingConnection()
            if len(self.peers) >= PEERS:
                socket.abort()
                socket.deleteLater()
                continue
            peer = _Peer(socket, self)
            self.peers.append(peer)
            peer.word.connect(self.rung)
            peer.over.connect(self._gone)
            peer.listen()

    def _gone(self, peer: _Peer) -> None:
        if peer in self.peers:
            self.peers.remove(peer)


def ring(name: str, for_s: float = RING_S) -> bool:
    """Ask the instance behind `name` to show its panel; True if it did.

    Tries for `for_s` seconds, as an instance that is just starting has no bell yet. It runs before there is a
    loop, so it may wait.
    """
    end = time.monotonic() + for_s
    while True:
        socket = QLocalSocket()
        socket.connectToServer(name)
        if socket.waitForConnected(RING_MS):
            socket.write(SHOW)
            socket.waitForBytesWritten(RING_MS)
            answer = b""
            while len(answer) < len(DONE) and socket.waitForReadyRead(RING_MS):
                answer += socket.readAll().data()
            if answer == DONE:
                return True
        socket.abort()
        left = end - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(0.1, left))  # noqa: TID251  # before there is a loop
