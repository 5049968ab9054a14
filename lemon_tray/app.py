"""The app: one Qt application whose event loop is asyncio's too, the router on it, and the faces of both.

Quit sets an event; `main` cleans up and returns; only then does Qt's loop end. Nothing here ends that loop
from within, opens a nested one or waits in it: that would lose the cleanup or break other tasks.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from PySide6.QtCore import QCoreApplication, QObject, QPoint, QTimer, QUrl
from PySide6.QtGui import QDesktopServices, QGuiApplication, QSessionManager
from PySide6.QtWidgets import QApplication, QFileDialog

from lemon_tray.actions import Actions, fault_banner, said
from lemon_tray.autostart import Autostart, for_this_system, turn
from lemon_tray.bridge import Bridge
from lemon_tray.display import is_composited
from lemon_tray.door import Door
from lemon_tray.icons import mark_icon
from lemon_tray.language import use_language
from lemon_tray.loop import make_loop
from lemon_tray.menu import TrayMenu
from lemon_tray.names import base_url, plain
from lemon_tray.notices import Notices
from lemon_tray.notify import Notifier
from lemon_tray.options import Options
from lemon_tray.panel import Panel
from lemon_tray.present_devices import Reading, last_readings
from lemon_tray.presenter import model_numbers, present
from lemon_tray.single_instance import Bell, bell_name
from lemon_tray.theme import Look
from lemon_tray.tray import Tray
from lemon_tray.view import Banner, BannerKind, Command, Kind, Mark, Option, PanelView
from lemon_tray.window_set import SETTINGS, WindowSet
from lemon_tray.words import counted, translate, use_translator
from router.errors import RouterError
from router.instance import InstanceLock, ending_signals
from router.paths import Paths
from router.service import Router
from router.snapshot import Snapshot, Status
from router.version import __version__

log = logging.getLogger(__name__)

STOP_S: Final = 8.0
EXIT_S: Final = 10.0
MODELS_DIRS: Final = "models_dirs"
ASKS_TO_QUIT: Final = "fault:quit"
OPEN_AFTER_MS: Final = 300


def run(paths: Paths, lock: InstanceLock, options: Options) -> int:
    """Run the app until it is quit; returns the exit status."""
    _find_plugins()
    app = QApplication([sys.argv[0] if sys.argv else "lemon-tray"])
    app.setApplicationName("lemon-tray")
    app.setApplicationDisplayName("Lemon Tray")
    app.setApplicationVersion(__version__)
    app.setDesktopFileName("lemon-tray")
    app.setQuitOnLastWindowClosed(False)
    app.setWindowIcon(mark_icon(Mark(Status.READY)))
    use_language(app)
    previous_hook = sys.excepthook
    try:
        with asyncio.Runner(loop_factory=lambda: make_loop(app)) as runner:
            return runner.run(_main(app, paths, lock, options))
    except RuntimeError as error:
        # Qt ended its loop by itself, as when the X server goes away. The runner has cleaned up.
        log.error("The desktop ended the app: %s.", error)
        return 1
    finally:
        sys.excepthook = previous_hook
        use_translator(None)


def _find_plugins() -> None:
    """In a package Qt looks for its plugins in the wrong place: it takes itself to be installed."""
    plugins = Path(sys.prefix) / "PySide6" / "Qt" / "plugins"
    if getattr(sys, "frozen", False) and sys.platform == "linux" and plugins.is_dir():
        QCoreApplication.setLibraryPaths([str(plugins)])


async def _main(app: QApplication, paths: Paths, lock: InstanceLock, options: Options) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    _catch_exceptions(loop)
    restore = _on_signals(loop, stop.set)
    shell = Shell(app, loop, paths, lock, options, stop)

    try:
        shell.start()
        await stop.wait()
    finally:
        watchdog = _watchdog()
        try:
            await shell.close()
        finally:
            watchdog.cancel()
            restore()
    return 0


def _catch_exceptions(loop: asyncio.AbstractEventLoop) -> None:
    """One place for what nobody caught: slots come by `sys.excepthook`, tasks by the loop's handler."""

    def log_it(message: str, error: BaseException | None) -> None:
        log.error("%s", message, exc_info=error)

    def from_slot(kind: type[BaseException], error: BaseException, _traceback: TracebackType | None) -> None:
        log_it(f"Nobody caught a {kind.__name__}.", error)

    def from_loop(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        log_it(str(context.get("message", "Nobody caught an error.")), context.get("exception"))

    sys.excepthook = from_slot
    loop.set_exception_handler(from_loop)


def _on_signals(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> Callable[[], None]:
    """Have signals call `stop`. The returned function puts back what was."""
    signals = ending_signals()
    for number in signals:
        try:
            loop.add_signal_handler(number, stop)
        except NotImplementedError:
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop))

    def restore() -> None:
        for number in signals:
            with contextlib.suppress(NotImplementedError, ValueError):
                loop.remove_signal_handler(number)

    return restore


def _watchdog() -> threading.Timer:
    """Ends the process for good if cleaning up hangs. Workers end with it: they watch for that."""

    def end() -> None:
        log.critical("Cleaning up took more than %.0f s; ending at once.", EXIT_S)
        faulthandler.dump_traceback()
        os._exit(1)

    timer = threading.Timer(EXIT_S - 0.5, end)
    timer.daemon = True
    timer.start()
    return timer


class Shell(QObject):
    """Owns the router and the faces, and carries snapshots one way and commands the other."""

    def __init__(
        self,
        app: QApplication,
        loop: asyncio.AbstractEventLoop,
        paths: Paths,
        lock: InstanceLock,
        options: Options,
        stop: asyncio.Event,
        *,
        make_router: Callable[[Paths, Options], Router] | None = None,
        autostart: Autostart | None = None,
    ) -> None:
        super().__init__()
        self._app = app
        self._loop = loop
        self._paths = paths
        self._lock = lock
        self._options = options
        self._stop = stop
        self._make_router = make_router or _make_router
        self._router = self._make_router(paths, options)
        self._router.on_shutdown = stop.set
        self._bridge: Bridge | None = None
        self._starting: asyncio.Task[None] | None = None
        self._numbers: dict[str, int] = {}
        self._readings: dict[str, Reading] = {}
        self._dismissed: set[str] = set()
        self._fault: Banner | None = None
        self._banner_index = 0
        self._phase = ""
        self._dialog: QFileDialog | None = None
        self._folder_key = MODELS_DIRS
        self._closing = False
        self._chores: set[asyncio.Task[None]] = set()
        self._autostart = autostart or for_this_system()
        self.view: PanelView | None = None
        self.look = Look.of_system()
        self.actions = Actions(self._router, loop, self)
        self.actions.edited.connect(self._show)
        self.actions.shows_refusals = lambda: self.windows.is_visible(SETTINGS)
        self.actions.failed.connect(self._show_fault)
        self.menu = TrayMenu(self.actions.edits, self)
        self.menu.asked.connect(self.do)
        self.panel = Panel(
            self.look,
            self.actions.edits,
            as_window=_is_wayland(),
            rounded=_has_compositor(),
        )
        self.panel.asked.connect(self.do)
        self.windows = WindowSet(self.look, self.actions.edits, paths, self._chore, self)
        self.windows.asked.connect(self.do)
        self.windows.opened.connect(self._window_opened)
        self.windows.plan_wanted.connect(self.actions.plan)
        self.actions.planned.connect(self.windows.show_plan)
        self.actions.pulled.connect(self.windows.show_pull)
        self.actions.deletion.connect(self.windows.show_deletion)
        self.windows.try_wanted.connect(self.actions.try_policy)
        self.actions.tried.connect(self.windows.show_answer)
        self.notices = Notices(self._is_banner_shown, self)
        self.notices.told.connect(lambda id: self.actions.run(Command(Kind.TELL_NOTICE, id)))
        self.panel.banner.painted.connect(self.notices.painted)
        self.panel.opened.connect(self._panel_opened)
        self.tray = Tray(self.menu, self)
        self.tray.clicked.connect(lambda: self.panel.toggle(self.tray.anchor(), at_cursor=True))
        self.tray.found.connect(self._tray_found)
        self.tray.message_clicked.connect(self._open)
        self.bell = Bell(bell_name(paths), self)
        self.bell.rung.connect(self._open)
        self._notifier = Notifier()
        hints = app.styleHints()
        hints.colorSchemeChanged.connect(self._restyle)
        hints.accessibility().contrastPreferenceChanged.connect(self._restyle)

    # Life

    def start(self) -> None:
        """Show the faces and start the router."""
        self.bell.listen()
        self._app.commitDataRequest.connect(self._session_ends)
        self._connect()
        self.tray.start()
        self._begin()
        self._chore(self._look_at_autostart())
        if not self._options.hidden:
            # An XEmbed icon takes a moment to arrive at its place, where the panel is to stand.
            QTimer.singleShot(OPEN_AFTER_MS, self, self._open)

    def _session_ends(self, _manager: QSessionManager | None) -> None:
        self._stop.set()  # obeyed at once, nothing is asked

    def _connect(self) -> None:
        self._bridge = Bridge(self._router, self)
        self._bridge.changed.connect(self._arrived)
        self._arrived(self._router.snapshot)

    def _begin(self) -> None:
        self._starting = self._loop.create_task(self._start_router(), name="start")

    async def _start_router(self) -> None:
        self._phase = translate("App", "Starting")
        self._show()
        try:
            await self._router.start()
        except RouterError as error:
            log.error("The router did not start: %s", said(error))
            self._show_failed_start(said(error))
            return
        except Exception as error:
            # The app is the only place where the user can be told.
            log.exception("The router did not start")
            where = self._paths.log_dir
            text = translate("App", "{kind}: {error}. The log in {folder} has more.")
            self._show_failed_start(text.format(kind=type(error).__name__, error=error, folder=where))
            return
        self._phase = ""
        self._fault = None
        self.windows.router_started(self._router.snapshot.settings)
        endpoint = base_url(self._router.endpoint)
        self._lock.set_endpoint(endpoint)
        self._show()
        if sys.stdout is not None and sys.stdout.isatty():
            print(f"Lemon Tray {__version__} answers at {endpoint}", flush=True)  # noqa: T201  # as `serve`
        if self._options.demo and not any(not m.broken for m in self._router.snapshot.models):
            self.do(Command(Kind.GET_DEMO))

    def _show_failed_start(self, reason: str) -> None:
        self._phase = translate("App", "Error")
        retry = Option(
            label=translate("App", "Try again"),
            command=Command(Kind.RETRY_START),
            effect=translate("App", "once the cause is gone"),
        )
        quit_ = Option(label=translate("App", "Quit"), command=Command(Kind.QUIT))
        title = translate("App", "The router did not start")
        self._show_fault(fault_banner("start", title, plain(reason, 400), retry, quit_))
        if self.panel.isHidden():
            self._open()

    async def _restart_router(self) -> None:
        """After a failed start: a fresh router, as a half-started one cannot be started again."""
        await self.actions.close()
        if self._bridge is not None:
            self._bridge.close()
        await self._router.stop()
        self._router = self._make_router(self._paths, self._options)
        self._router.on_shutdown = self._stop.set
        self.actions.use(self._router)
        self._fault = None
        self._connect()
        await self._start_router()

    async def close(self) -> None:
        """Take the faces away, then stop the router; bounded."""
        self._closing = True
        self._app.commitDataRequest.disconnect(self._session_ends)
        self.panel.hide()
        self.windows.close()
        self.tray.stop()
        self.bell.close()
        if self._bridge is not None:
            self._bridge.close()
        try:
            async with asyncio.timeout(STOP_S):
                if self._starting is not None and not self._starting.done():
                    self._starting.cancel()
                    await asyncio.wait((self._starting,))
                await self.actions.close()
                if self._chores:
                    await asyncio.wait(self._chores)
                await self._router.stop()
        except TimeoutError:
            log.error("The router did not stop in %.0f s.", STOP_S)
        self.panel.deleteLater()
        self.menu.menu.deleteLater()

    # Snapshots to faces

    def _arrived(self, snapshot: Snapshot) -> None:
        self._numbers = model_numbers(self._numbers, snapshot)
        self._readings = last_readings(self._readings, snapshot, time.time())
        self.actions.edits.seen(snapshot.generation)
        self.notices.take(snapshot)
        if self._fault is not None and self._fault.id == ASKS_TO_QUIT and not _running(snapshot):
            self._fault = None  # nothing would be cut off any more
        self._show()
        message = self._notifier.consider(snapshot.feed, panel_visible=self.panel.isVisible())
        if message is not None:
            self.tray.tell(message)

    def _show(self) -> None:
        if self._closing:
            return
        self.view = present(
            self._router.snapshot,
            numbers=self._numbers,
            dismissed=frozenset(self._dismissed),
            notices=self.notices.shown(),
            fault=self._fault,
            banner_index=self._banner_index,
            phase=self._phase,
            readings=self._readings,
        )
        if self.view.banner is None or not self.view.banner.more:
            self._banner_index = 0
        self.tray.show_view(self.view)
        self.menu.show_view(self.view)
        self.panel.show_view(self.view)
        self.windows.show_snapshot(self._router.snapshot)

    def _show_fault(self, fault: Banner) -> None:
        self._fault = fault
        self._banner_index = 0
        self._dismissed.discard(fault.id)
        self._show()

    def _is_banner_shown(self, banner: str) -> bool:
        shown = self.view.banner if self.view is not None else None
        return shown is not None and shown.id == banner and self.panel.isVisible()

    def _panel_opened(self, is_open: bool) -> None:
        if not is_open:
            self.notices.closed()
            self._show()

    def _restyle(self) -> None:
        self.look.follow_system()
        self.panel.restyle()
        self.windows.restyle()

    # Tray or no tray

    def _tray_found(self, available: bool) -> None:
        self.panel.set_mode(as_window=not available or _is_wayland())
        if available:
            self.panel.show_note("")
            return
        self.panel.show_note(
            translate(
                "App",
                "No tray was found on this desktop, so this window stands in for it. Closing it leaves "
                "Lemon Tray running; the menu above has Quit.",
            )
        )
        if self._options.hidden and not self.tray.settled:
            # At login trays come late: give it half a minute before a window appears unasked.
            QTimer.singleShot(30_000, self, self._open_without_tray)
        else:
            self._open_without_tray()

    def _open_without_tray(self) -> None:
        if not self.tray.available and not self._closing:
            self._open()

    def _open(self) -> None:
        if not self._closing:
            self.panel.open(self.tray.anchor())

    # Commands

    def do(self, command: Command) -> None:
        """Carry out what a button or a menu entry asks for."""
        banner = self.view.banner if self.view is not None else None
        if banner is not None and command in (option.command for option in banner.options):
            self.notices.used(banner.id)
        if self._closing or self.actions.run(command):
            return
        match command.kind:
            case Kind.QUIT:
                self._quit(sure=command.value is True)
            case Kind.OPEN_PANEL:
                self.panel.open(self.tray.anchor(), at_cursor=True)
            case Kind.OPEN_MENU:
                button = self.panel.head.menu
                self.menu.popup(button.mapToGlobal(QPoint(0, button.height())))
            case Kind.COPY:
                self._copy(command)
            case Kind.ADD_FOLDER:
                self._ask_folder(command.target or MODELS_DIRS)
            case Kind.OPEN_WINDOW:
                self.windows.open(command.target)
                if not self.panel.as_window:
                    self.panel.hide()  # it stays on top of all windows, and would cover this one
            case Kind.OPEN_FILE:
                self._open_file(command.target)
            case Kind.OPEN_PAGE:
                page = QUrl(command.target)
                if page.scheme() == "https":  # it comes from outside: it must not name a program
                    QDesktopServices.openUrl(page)
            case Kind.START_AT_LOGIN:
                self._chore(self._turn_autostart(bool(command.value)))
            case Kind.RESTART:
                if self._starting is None or self._starting.done():
                    self._starting = self._loop.create_task(self._restart_router(), name="restart")
            case Kind.DISMISS:
                self._dismissed.add(command.target)
                if self._fault is not None and self._fault.id == command.target:
                    self._fault = None
                self._show()
            case Kind.NEXT_BANNER:
                self._banner_index += 1
                self._show()
            case Kind.RETRY_START:
                if self._starting is None or self._starting.done():
                    self._starting = self._loop.create_task(self._restart_router(), name="restart")
            case _:
                log.error("No one knows the command %s.", command.kind)

    def _quit(self, *, sure: bool) -> None:
        """Quit, unless answers are running and the user has not been asked. Who asks twice is sure."""
        running = _running(self._router.snapshot)
        if sure or not running or (self._fault is not None and self._fault.id == ASKS_TO_QUIT):
            self._stop.set()
            return
        title = counted(
            "App", "{count} answers are being written", running, one="{count} answer is being written"
        ).format(count=running)
        quit_now = Option(
            label=translate("App", "Quit now"),
            command=Command(Kind.QUIT, value=True),
            effect=translate("App", "cuts them off"),
        )
        stay = Option(label=translate("App", "Stay"), command=Command(Kind.DISMISS, ASKS_TO_QUIT))
        text = translate("App", "Apps that wait for them get an error if Lemon Tray ends now.")
        self._show_fault(
            Banner(id=ASKS_TO_QUIT, kind=BannerKind.WARNING, title=title, text=text, options=(quit_now, stay))
        )
        self._open()

    def _copy(self, command: Command) -> None:
        if self.view is None:
            return
        clipboard = QGuiApplication.clipboard()
        match command.target:
            case "endpoint":
                clipboard.setText(self.view.head.endpoint)
                self.panel.tell_copied()
            case "curl":
                clipboard.setText(self.view.menu.curl)
            case _:
                clipboard.setText(str(command.value))

    def _chore(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)

    async def _look_at_autostart(self) -> None:
        try:
            on = await asyncio.to_thread(self._autostart.is_on)
        except OSError as error:
            log.warning("Whether the app starts at login cannot be told: %s", error)
            return
        self._tell_autostart(on)

    async def _turn_autostart(self, on: bool) -> None:
        try:
            await asyncio.to_thread(turn, self._autostart, on)
        except RouterError as error:
            self._show_fault(fault_banner("login", translate("App", "Login start not changed"), said(error)))
        await self._look_at_autostart()

    def _tell_autostart(self, on: bool) -> None:
        if not self._closing:
            self.menu.show_autostart(on)
            self.windows.tell_autostart(on)

    def _window_opened(self, name: str) -> None:
        if name == SETTINGS:  # somebody else may have changed it meanwhile
            self._chore(self._look_at_autostart())

    def _open_file(self, name: str) -> None:
        places = {"settings": self._paths.config_file, "logs": self._paths.log_dir}
        QDesktopServices.openUrl(QUrl.fromLocalFile(str(places[name])))

    def _ask_folder(self, key: str) -> None:
        self._folder_key = key
        if self._dialog is not None:
            self._dialog.raise_()
            self._dialog.activateWindow()
            return
        dialog = QFileDialog(None, translate("App", "Add a folder with models"))
        dialog.setFileMode(QFileDialog.FileMode.Directory)
        dialog.setOption(QFileDialog.Option.ShowDirsOnly)
        dialog.fileSelected.connect(self._add_folder)
        dialog.finished.connect(self._folder_asked)
        self._dialog = dialog
        self.panel.hold()
        dialog.open()

    def _folder_asked(self, _result: int) -> None:
        self.panel.let_go()
        if self._dialog is not None:
            self._dialog.deleteLater()
            self._dialog = None

    def _add_folder(self, folder: str) -> None:
        known = [str(path) for path in self._router.snapshot.settings.get(self._folder_key, ())]
        if folder and folder not in known:
            self.do(Command(Kind.SET, self._folder_key, [*known, folder]))


def _running(snapshot: Snapshot) -> int:
    """How many requests are being answered."""
    return sum(resident.in_use for resident in snapshot.residents)


def _make_router(paths: Paths, options: Options) -> Router:
    return Router(
        paths, overrides=options.overrides, models_dirs=options.models_dirs, simulate=options.simulate
    )


def _is_wayland() -> bool:
    # A Wayland client cannot choose where its window stands.
    return QGuiApplication.platformName().startswith("wayland")


def _has_compositor() -> bool:
    if QGuiApplication.platformName() == "xcb":
        return is_composited(os.environ.get("DISPLAY", ""))
    return QGuiApplication.platformName() not in ("offscreen", "minimal")


def _is_door(router: Router) -> Door:
    """The router is a door: mypy checks it here."""
    return router
