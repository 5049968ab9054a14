"""That Qt is not asked for a tray before there is one: it would remember the answer for good."""

from __future__ import annotations

import pytest
from PySide6.QtWidgets import QApplication

from lemon_tray import tray_hosts
from lemon_tray.edits import Edits
from lemon_tray.menu import TrayMenu
from lemon_tray.notify import Message
from lemon_tray.tray import Tray
from lemon_tray.tray_hosts import TrayHosts
from tests.ui import canned
from tests.ui.conftest import view_of


@pytest.fixture
def xembed(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    there = [False]
    monkeypatch.setattr(tray_hosts, "has_xembed_tray", lambda _display: there[0])
    monkeypatch.setattr(tray_hosts.QGuiApplication, "platformName", lambda: "xcb")
    return there


def waiting(hosts: TrayHosts) -> TrayHosts:
    hosts.matters = True  # as where there is a session bus
    hosts.on_bus = False
    return hosts


def test_where_nothing_can_come_later_qt_is_asked_at_once(qapp: QApplication) -> None:
    hosts = TrayHosts()
    assert not hosts.matters  # the offscreen platform has no tray at all
    assert hosts.any()


@pytest.mark.fault("F24")
def test_it_waits_for_either_kind(qapp: QApplication, xembed: list[bool]) -> None:
    hosts, told = waiting(TrayHosts()), []
    hosts.appeared.connect(lambda: told.append(True))
    assert not hosts.any()
    xembed[0] = True
    assert hosts.any()
    xembed[0] = False
    hosts._registered(tray_hosts.WATCHER)
    assert hosts.any()
    assert told == [True]


@pytest.mark.fault("F24")
def test_without_a_host_there_is_no_icon_and_all_goes_on(
    qapp: QApplication, xembed: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tray, "is_available", lambda _self: True)
    menu = TrayMenu(Edits())
    tray = Tray(menu)
    waiting(tray._hosts)
    found: list[bool] = []
    tray.found.connect(found.append)
    tray.start()
    assert tray.icon is None
    tray.show_view(view_of(canned.warning()))
    tray.tell(Message("title", "text"))
    assert tray.anchor() is None
    assert found == [False]
    tray._hosts._registered(tray_hosts.WATCHER)
    assert found == [False, True]
    assert tray.icon is not None
    assert tray.icon.toolTip().startswith("Lemon Tray: Ready · 1 warning")
    assert menu.text.exported
    tray.stop()
    tray.deleteLater()
    menu.menu.deleteLater()
