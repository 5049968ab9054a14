"""The bell: rung by later starts, deaf to everything else."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from lemon_tray.single_instance import DONE, PEERS, SHOW, Bell, bell_name, ring
from router.paths import Paths
from tests.ui.conftest import LONGEST_MS

pytestmark = [
    pytest.mark.fault("F25"),
    pytest.mark.skipif(sys.platform == "win32", reason="needs Unix sockets"),
]


@pytest.fixture
def name(tmp_path: Path) -> str:
    return str(tmp_path / "bell")


@pytest.fixture
def bell(name: str, qapp: object) -> Iterator[Bell]:
    made = Bell(name)
    assert made.listen()
    yield made
    made.close()


def connect(name: str) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(5)
    peer.connect(name)
    return peer


def ring_in_thread(name: str) -> threading.Thread:
    code = f"import sys; from lemon_tray.single_instance import ring; sys.exit(0 if ring({name!r}) else 1)"
    thread = threading.Thread(target=lambda: results.append(subprocess.call([sys.executable, "-c", code])))
    results: list[int] = []
    thread.results = results  # type: ignore[attr-defined]  # read by the test when it has ended
    thread.start()
    return thread


def test_a_second_start_rings_and_is_answered(bell: Bell, name: str, qtbot: QtBot) -> None:
    with qtbot.waitSignal(bell.rung, timeout=LONGEST_MS):
        thread = ring_in_thread(name)
    qtbot.waitUntil(lambda: not thread.is_alive(), timeout=LONGEST_MS)
    assert thread.results == [0]  # type: ignore[attr-defined]  # as above


def test_nobody_there(name: str, qapp: object) -> None:
    assert not ring(name, for_s=0)


def test_a_listener_that_says_nothing_is_no_instance(name: str, qapp: object) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        assert not ring(name, for_s=0)


def test_a_stale_socket_file_is_replaced(name: str, qapp: object, qtbot: QtBot) -> None:
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(name)
    dead.close()
    assert Path(name).exists()
    made = Bell(name)
    assert made.listen()
    with connect(name) as peer, qtbot.waitSignal(made.rung, timeout=LONGEST_MS):
        peer.sendall(SHOW)
    made.close()


def test_only_the_user_may_ring(bell: Bell, name: str) -> None:
    assert os.stat(name).st_mode & 0o077 == 0


def test_a_peer_that_sends_ten_megabytes_is_dropped(bell: Bell, name: str, qtbot: QtBot) -> None:
    rung: list[int] = []
    bell.rung.connect(lambda: rung.append(1))
    ended: list[bool] = []

    def flood() -> None:
        with connect(name) as peer:
            try:
                peer.sendall(b"x" * 10_000_000)
                ended.append(peer.recv(1) == b"")
            except OSError:
                ended.append(True)

    thread = threading.Thread(target=flood)
    thread.start()
    qtbot.waitUntil(lambda: bool(ended), timeout=LONGEST_MS)
    thread.join()
    assert ended == [True]
    assert rung == []
    with connect(name) as peer, qtbot.waitSignal(bell.rung, timeout=LONGEST_MS):
        peer.sendall(SHOW)


def test_silent_peers_are_few_and_do_not_stay(bell: Bell, name: str, qtbot: QtBot) -> None:
    peers = [connect(name) for _ in range(PEERS + 5)]
    qtbot.waitUntil(lambda: len(bell.peers) == PEERS, timeout=LONGEST_MS)
    qtbot.waitUntil(lambda: len(bell.peers) == 0, timeout=LONGEST_MS)
    for peer in peers:
        assert peer.recv(1) == b""
        peer.close()


def test_a_word_in_pieces_is_understood_and_another_word_is_not(bell: Bell, name: str, qtbot: QtBot) -> None:
    rung: list[int] = []
    bell.rung.connect(lambda: rung.append(1))
    with connect(name) as other:
        qtbot.waitUntil(lambda: bool(bell.peers), timeout=LONGEST_MS)
        other.sendall(b"lemon-tray 2 show\n")
        qtbot.waitUntil(lambda: not bell.peers, timeout=LONGEST_MS)
        assert other.recv(1) == b""
    assert rung == []
    with connect(name) as peer:
        peer.sendall(SHOW[:5])
        qtbot.waitUntil(lambda: any(peer.said for peer in bell.peers), timeout=LONGEST_MS)
        peer.sendall(SHOW[5:])
        qtbot.waitUntil(lambda: rung == [1], timeout=LONGEST_MS)
        assert peer.recv(len(DONE)) == DONE


def test_each_state_folder_has_a_bell_of_its_own(tmp_path: Path) -> None:
    one, other = Paths.under(tmp_path / "a"), Paths.under(tmp_path / "b")
    assert bell_name(one) != bell_name(other)
    assert Path(bell_name(one)).parent in (one.runtime_dir, Path("/tmp"))
    deep = Paths.under(tmp_path / ("x" * 100))
    assert len(os.fsencode(bell_name(deep))) <= 100
