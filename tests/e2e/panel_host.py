"""What a desktop's panel does over D-Bus: a bus, a host for tray icons (StatusNotifierItem), notifications.

The host knows of an icon what its interface tells, and acts on it as panels do: activates it, reads its menu
(`com.canonical.dbusmenu`) and clicks rows of that.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import threading
from collections.abc import Coroutine, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from dbus_fast import Message, MessageType, PropertyAccess, Variant
from dbus_fast.aio import MessageBus
from dbus_fast.service import ServiceInterface, dbus_property, method, signal

T = TypeVar("T")

ITEM: Final = "org.kde.StatusNotifierItem"
ITEM_PATH: Final = "/StatusNotifierItem"
MENU: Final = "com.canonical.dbusmenu"
ANSWER_S: Final = 20.0
BUS_CONFIG: Final = """\
<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>session</type>
  <listen>unix:dir={folder}</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow send_destination="*" eavesdrop="true"/>
    <allow eavesdrop="true"/>
    <allow own="*"/>
  </policy>
</busconfig>
"""
"""A bus with nothing on it: no service of the machine is started by asking for it."""


@contextlib.contextmanager
def private_bus(folder: Path, environ: Mapping[str, str]) -> Iterator[str]:
    """A message bus of its own; yields its address."""
    config = folder / "bus.conf"
    config.write_text(BUS_CONFIG.format(folder=folder), encoding="utf-8")
    daemon = subprocess.Popen(
        ["dbus-daemon", f"--config-file={config}", "--print-address", "--nofork", "--nopidfile"],
        env=dict(environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert daemon.stdout is not None
    try:
        yield daemon.stdout.readline().strip()
    finally:
        daemon.terminate()
        daemon.wait()
        daemon.stdout.close()


class Row(NamedTuple):
    """A row of a menu. `checked` is None for one without a check mark."""

    id: int
    label: str
    enabled: bool
    checked: bool | None
    rows: tuple[Row, ...]
    separator: bool

    def every(self) -> Iterator[Row]:
        """This row and all below."""
        yield self
        for row in self.rows:
            yield from row.every()

    def find(self, label: str) -> Row:
        """The row of that label."""
        return next(row for row in self.every() if row.label == label)


class Shown(NamedTuple):
    """A notification that was sent."""

    title: str
    text: str


class _Watcher(ServiceInterface):
    def __init__(self) -> None:
        super().__init__("org.kde.StatusNotifierWatcher")
        self.items: list[str] = []

    @method()
    def RegisterStatusNotifierItem(self, service: s):
        self.items.append(service)
        self.StatusNotifierItemRegistered(service)

    @method()
    def RegisterStatusNotifierHost(self, service: s):
        pass

    @dbus_property(access=PropertyAccess.READ)
    def RegisteredStatusNotifierItems(self) -> "as":
        return self.items

    @dbus_property(access=PropertyAccess.READ)
    def IsStatusNotifierHostRegistered(self) -> b:
        return True

    @dbus_property(access=PropertyAccess.READ)
    def ProtocolVersion(self) -> i:
        return 0

    @signal()
    def StatusNotifierItemRegistered(self, service: str) -> s:
        return service

    @signal()
    def StatusNotifierHostRegistered(self) -> None:
        return None


class _Notifications(ServiceInterface):
    def __init__(self) -> None:
        super().__init__("org.freedesktop.Notifications")
        self.shown: list[Shown] = []

    @method()
    def Notify(
        self,
        app: s,
        replaces: u,
        icon: s,
        title: s,
        text: s,
        actions: "as",
        hints: "a{sv}",
        timeout: i,
    ) -> u:
        self.shown.append(Shown(title, text))
        return len(self.shown)

    @method()
    def GetCapabilities(self) -> "as":
        return ["body", "body-markup"]

    @method()
    def CloseNotification(self, id_: u):
        pass

    @method()
    def GetServerInformation(self) -> ssss:
        return ["test", "test", "1", "1.2"]


class PanelHost:
    """A panel on a bus, in a thread of its own. Use it as a context."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="panel-host", daemon=True)
        self._watcher = _Watcher()
        self._notifications = _Notifications()
        self._bus: MessageBus | None = None

    def __enter__(self) -> PanelHost:
        self._thread.start()
        self._run(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        assert self._bus is not None
        self._loop.call_soon_threadsafe(self._bus.disconnect)
        self._run(self._bus.wait_for_disconnect())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(ANSWER_S)

    async def _start(self) -> None:
        self._bus = await MessageBus(bus_address=self._address).connect()
        self._bus.export("/StatusNotifierWatcher", self._watcher)
        self._bus.export("/org/freedesktop/Notifications", self._notifications)
        await self._bus.request_name("org.freedesktop.Notifications")
        await self._bus.request_name("org.kde.StatusNotifierWatcher")

    def _call(
        self, path: str, interface: str, member: str, signature: str = "", body: list[Any] | None = None
    ) -> list[Any]:
        async def work() -> list[Any]:
            assert self._bus is not None
            answer = await self._bus.call(
                Message(
                    destination=self._watcher.items[-1],
                    path=path,
                    interface=interface,
                    member=member,
                    signature=signature,
                    body=body or [],
                )
            )
            assert answer is not None
            assert answer.message_type is not MessageType.ERROR, answer.body
            return answer.body

        return self._run(work())

    # Icons

    @property
    def has_icon(self) -> bool:
        """An icon has been registered, and its program still answers."""
        if not self._watcher.items:
            return False
        try:
            return bool(self.properties())
        except AssertionError:
            return False

    def properties(self) -> dict[str, Any]:
        """What the icon says of itself."""
        answer = self._call(ITEM_PATH, "org.freedesktop.DBus.Properties", "GetAll", "s", [ITEM])
        return {key: value.value for key, value in answer[0].items()}

    def activate(self) -> None:
        """A left click. Where it was is told to nobody: panels say it, Qt does not hand it on."""
        self._call(ITEM_PATH, ITEM, "Activate", "ii", [600, 40])

    def activate_with_the_middle_button(self) -> None:
        self._call(ITEM_PATH, ITEM, "SecondaryActivate", "ii", [600, 40])

    def menu(self) -> Row:
        """The menu as it is now."""
        path = self.properties()["Menu"]
        self._call(path, MENU, "AboutToShow", "i", [0])
        layout = self._call(path, MENU, "GetLayout", "iias", [0, -1, []])
        return _row(layout[1])

    def choose(self, row: Row) -> None:
        """Click a row of the menu."""
        body = [row.id, "clicked", Variant("s", ""), 0]
        self._call(self.properties()["Menu"], MENU, "Event", "isvu", body)

    @property
    def notifications(self) -> list[Shown]:
        """What was shown so far."""
        return list(self._notifications.shown)


def _row(node: list[Any]) -> Row:
    id_, properties, children = node
    values = {key: value.value for key, value in properties.items()}
    shown = [child.value for child in children if child.value[1].get("visible", Variant("b", True)).value]
    return Row(
        id=id_,
        label=values.get("label", "").replace("__", "\0").replace("_", "").replace("\0", "_"),
        enabled=values.get("enabled", True),
        checked=bool(values["toggle-state"]) if values.get("toggle-type") else None,
        rows=tuple(_row(child) for child in shown),
        separator=values.get("type") == "separator",
    )
