"""The app as a whole, with a router that is none: faces, faults, no tray, and the way out."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QApplication, QFileDialog
from pytestqt.qtbot import QtBot

from lemon_tray.app import Shell
from lemon_tray.autostart import DesktopEntry
from lemon_tray.options import Options, parse
from lemon_tray.settings_window import SettingsWindow
from lemon_tray.tray import Tray
from lemon_tray.view import BannerKind, Command, Kind
from router.errors import InstanceError, RouterError
from router.instance import InstanceLock, read_holder
from router.paths import Paths
from tests.ui import canned
from tests.ui.conftest import until
from tests.ui.fake_door import FakeDoor

Run = Callable[[Coroutine[Any, Any, Any]], Any]


class FakeRouter(FakeDoor):
    """A door that starts and stops."""

    fails: RouterError | None = None

    def __init__(self) -> None:
        super().__init__(canned.snapshot(scanned=False, models=(), endpoint="", generation=0))
        self.calls: list[str] = []

    async def start(self) -> None:
        self.calls.append("start")
        if self.fails is not None:
            raise self.fails
        self.publish(scanned=True, endpoint=canned.ENDPOINT)

    async def stop(self) -> None:
        self.calls.append("stop")


class Stage:
    """A shell and what it stands on."""

    def __init__(
        self, qapp: QApplication, root: Path, *arguments: str, fails: RouterError | None = None
    ) -> None:
        self.paths = Paths.under(root)
        self.paths.ensure()
        self.lock = InstanceLock(self.paths.state_dir)
        assert self.lock.acquire()
        self.stop = asyncio.Event()
        self.routers: list[FakeRouter] = []
        self.fails = fails
        self.shell = Shell(
            qapp,
            asyncio.get_running_loop(),
            self.paths,
            self.lock,
            parse(arguments),
            self.stop,
            make_router=self.make,  # type: ignore[arg-type]  # it is router enough
            autostart=DesktopEntry(root / "autostart", ("lemon-tray",)),
        )

    def make(self, _paths: Paths, _options: Options) -> FakeRouter:
        router = FakeRouter()
        router.fails = self.fails
        self.routers.append(router)
        return router

    @property
    def router(self) -> FakeRouter:
        return self.routers[-1]

    async def close(self) -> None:
        await self.shell.close()
        self.lock.release()


@pytest.fixture(autouse=True)
def tray_there(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the desktop has a tray; the offscreen platform has none."""
    there = [True]
    monkeypatch.setattr(Tray, "is_available", lambda _self: there[0])
    return there


def test_it_starts_shows_its_endpoint_and_records_it(qloop: Run, qapp: QApplication, tmp_path: Path) -> None:
    async def flow() -> None:
        stage = Stage(qapp, tmp_path)
        stage.shell.start()
        await until(lambda: stage.shell.panel.isVisible())
        await until(lambda: stage.shell.panel.head.endpoint.text() == "http://127.0.0.1:13305/v1")
        holder = read_holder(stage.paths.state_dir)
        assert holder is not None
        assert holder.endpoint == "http://127.0.0.1:13305/v1"
        await stage.close()
        assert stage.router.calls == ["start", "stop"]

    qloop(flow())


def test_hidden_means_no_panel(qloop: Run, qapp: QApplication, tmp_path: Path) -> None:
    async def flow() -> None:
        stage = Stage(qapp, tmp_path, "--hidden")
        stage.shell.start()
        await until(lambda: stage.shell.view is not None and bool(stage.shell.view.head.endpoint))
        assert stage.shell.panel.isHidden()
        stage.shell.tray.clicked.emit()
        assert stage.shell.panel.isVisible()
        await stage.close()

    qloop(flow())


@pytest.mark.fault("F25")
def test_a_taken_port_is_named_with_its_remedy_and_tried_again_on_demand(
    qloop: Run, qapp: QApplication, tmp_path: Path
) -> None:
    async def flow() -> None:
        stage = Stage(
            qapp,
            tmp_path,
            "--hidden",
            fails=InstanceError("Port 13305 is taken.", hint="Choose another port."),
        )
        stage.shell.start()
        await until(lambda: stage.shell.panel.isVisible())  # told unasked
        banner = stage.shell.view.banner  # type: ignore[union-attr]
        assert banner is not None
        assert banner.kind is BannerKind.ERROR
        assert banner.text == "Port 13305 is taken. Choose another port."
        assert [o.command.kind for o in banner.options] == [Kind.RETRY_START, Kind.QUIT]
        assert stage.shell.tray._mark.status == "error"
        assert len(stage.routers) == 1  # no tight loop
        stage.fails = None
        stage.shell.do(banner.options[0].command)
        await until(lambda: len(stage.routers) == 2 and bool(stage.shell.view.head.endpoint))  # type: ignore[union-attr]
        await until(lambda: stage.shell.view.banner.id == "no-models")  # type: ignore[union-attr]
        assert stage.routers[0].calls == ["start", "stop"]
        await stage.close()
        assert stage.routers[1].calls == ["start", "stop"]

    qloop(flow())


@pytest.mark.fault("F24")
def test_without_a_tray_the_panel_is_a_window_and_becomes_one_no_more(
    qloop: Run, qapp: QApplication, tmp_path: Path, tray_there: list[bool]
) -> None:
    async def flow() -> None:
        tray_there[0] = False
        stage = Stage(qapp, tmp_path)
        stage.shell.start()
        panel = stage.shell.panel
        await until(panel.isVisible)
        assert panel.as_window
        assert "No tray was found" in panel.note.text.text()
        panel.close()
        assert panel.isHidden()
        assert not stage.stop.is_set()  # closing a window does not quit
        stage.shell.bell.rung.emit()  # a second launch raises it
        assert panel.isVisible()
        tray_there[0] = True
        stage.shell.tray.look_again()
        assert not panel.as_window
        assert panel.note.isHidden()
        assert stage.shell.tray.icon is not None
        assert stage.shell.tray.icon.isVisible()
        tray_there[0] = False
        stage.shell.tray.look_again()
        assert panel.as_window
        await stage.close()

    qloop(flow())


@pytest.mark.fault("F24")
def test_at_login_it_waits_for_a_tray_before_it_shows_a_window(
    qloop: Run, qapp: QApplication, tmp_path: Path, tray_there: list[bool]
) -> None:
    async def flow() -> None:
        tray_there[0] = False
        stage = Stage(qapp, tmp_path, "--hidden")
        stage.shell.start()
        await until(lambda: "start" in stage.router.calls)
        assert stage.shell.panel.isHidden()
        stage.shell._open_without_tray()  # half a minute has passed
        assert stage.shell.panel.isVisible()
        await stage.close()

    qloop(flow())


def test_demo_fetches_the_model_only_if_there_is_none(qloop: Run, qapp: QApplication, tmp_path: Path) -> None:
    async def flow() -> None:
        stage = Stage(qapp, tmp_path / "a", "--demo", "--hidden")
        stage.shell.start()
        await until(lambda: ("pull_demo",) in stage.router.asked)
        await stage.close()
        stage = Stage(qapp, tmp_path / "b", "--demo", "--hidden")
        stage.router.publish(models=canned.MODELS)
        stage.shell.start()
        await until(lambda: bool(stage.shell.view and stage.shell.view.head.endpoint))
        assert stage.router.asked == []
        await stage.close()

    qloop(flow())


def test_copying(qloop: Run, qapp: QApplication, tmp_path: Path) -> None:
    async def flow() -> None:
        stage = Stage(qapp, tmp_path)
        stage.shell.start()
        await until(lambda: bool(stage.shell.view and stage.shell.view.head.endpoint))
        clipboard = QGuiApplication.clipboard()
        stage.shell.do(Command(Kind.COPY, "endpoint"))
        assert clipboard.text() == "http://127.0.0.1:13305/v1"
        stage.shell.do(Command(Kind.COPY, "curl"))
        assert clipboard.text().startswith("curl http://127.0.0.1:13305/v1/chat/completions")
        stage.shell.do(Command(Kind.COPY, "text", "Qwen3-8B"))
        assert clipboard.text() == "Qwen3-8B"
        await stage.close()

    qloop(flow())


def test_adding_a_folder_opens_no_nested_loop_and_keeps_the_others(
    qloop: Run, qapp: QApplication, tmp_path: Path
) -> None:
    async def flow() -> None:
        stage = Stage(qapp, tmp_path)
        stage.shell.start()
        await until(stage.shell.panel.isVisible)
        stage.router.publish(settings={"models_dirs": ["/old"]})
        ticks = [0]

        async def tick() -> None:
            while True:
                ticks[0] += 1
                await asyncio.sleep(0)

        ticker = asyncio.create_task(tick())
        stage.shell.do(Command(Kind.ADD_FOLDER))
        before = ticks[0]
        await until(lambda: ticks[0] > before + 5)  # others go on while it is open
        dialog = stage.shell._dialog
        assert isinstance(dialog, QFileDialog)
        stage.shell.do(Command(Kind.ADD_FOLDER))
        assert stage.shell._dialog is dialog
        dialog.fileSelected.emit("/new")
        dialog.close()
        await until(lambda: ("set", {"models_dirs": ["/old", "/new"]}) in stage.router.asked)
        await until(lambda: stage.shell._dialog is None)
        stage.shell._add_folder("/new")
        assert len(stage.router.asked) == 1  # known already
        ticker.cancel()
        await stage.close()

    qloop(flow())


def test_banners_can_be_put_away_and_paged(qloop: Run, qapp: QApplication, tmp_path: Path) -> None:
    async def flow() -> None:
        stage = Stage(qapp, tmp_path)
        stage.shell.start()
        await until(lambda: bool(stage.shell.view and stage.shell.view.head.endpoint))
        stage.router.publish(pool=canned.pool(auto_evict=False))
        view = lambda: stage.shell.view.banner  # type: ignore[union-attr]  # noqa: E731  # short
        await until(lambda: view() is not None and view().more == 1)  # type: ignore[union-attr]
        assert view().id == "exceeds"  # type: ignore[union-attr]
        stage.shell.do(Command(Kind.NEXT_BANNER))
        assert view().id == "no-models"  # type: ignore[union-attr]
        stage.shell.do(Command(Kind.DISMISS, "no-models"))
        assert view().id == "exceeds"  # type: ignore[union-attr]
        await stage.close()

    qloop(flow())


def test_quit_from_the_menu_sets_the_event_and_twice_is_once(
    qloop: Run, qapp: QApplication, tmp_path: Path
) -> None:
    async def flow() -> None:
        stage = Stage(qapp, tmp_path)
        stage.shell.start()
        await until(stage.shell.panel.isVisible)
        stage.shell.menu.quit.trigger()
        stage.shell.menu.quit.trigger()
        assert stage.stop.is_set()
        await stage.close()
        stage.shell.do(Command(Kind.LOAD, "A"))  # too late
        assert stage.router.asked == []
        assert stage.shell.panel.isHidden()

    qloop(flow())


def test_a_call_from_outside_ends_the_app_without_a_question(
    qloop: Run, qapp: QApplication, tmp_path: Path
) -> None:
    async def flow() -> None:
        stage = Stage(qapp, tmp_path, fails=RouterError("the first start fails"))
        stage.shell.start()
        await until(lambda: stage.router.calls == ["start"])
        stage.fails = None
        await until(lambda: stage.shell.view is not None and stage.shell.view.banner is not None)
        stage.shell.do(Command(Kind.RETRY_START))
        await until(lambda: len(stage.routers) == 2)
        # Of the second router too, which took the place of the failed one.
        for router in stage.routers:
            stage.stop.clear()
            router.on_shutdown()
            assert stage.stop.is_set()
        await stage.close()

    qloop(flow())


def test_many_snapshots_reach_the_faces_ten_times_a_second_at_most(
    qloop: Run, qapp: QApplication, qtbot: QtBot, tmp_path: Path
) -> None:
    async def flow() -> None:
        stage = Stage(qapp, tmp_path)
        stage.shell.start()
        await until(stage.shell.panel.isVisible)
        shown = 0
        original = stage.shell.panel.show_view

        def count(view: Any) -> None:
            nonlocal shown
            shown += 1
            original(view)

        stage.shell.panel.show_view = count  # type: ignore[method-assign]
        for number in range(300):
            stage.router.publish_pool(loaded=number)
            await asyncio.sleep(0)
        await until(lambda: stage.shell.view.pool.loaded == "299 loaded")  # type: ignore[union-attr]
        assert shown < 30
        await stage.close()

    qloop(flow())


# The real way out, in a process of its own

SCRIPT = """
import asyncio, os, signal, sys, threading
from pathlib import Path
import lemon_tray.app as app
from lemon_tray.options import parse
from router.instance import InstanceLock
from router.paths import Paths
from tests.ui.test_app import FakeRouter

how, root = sys.argv[1], Path(sys.argv[2])

class Router(FakeRouter):
    async def start(self):
        await super().start()
        self.background = asyncio.get_running_loop().create_task(self.forever())
        loop = asyncio.get_running_loop()
        if how == "menu":
            loop.call_later(0.1, lambda: shells[0].menu.quit.trigger())
        elif how == "twice":
            # The second click comes while the first is being obeyed: in the router's stop.
            loop.call_later(0.1, lambda: shells[0].menu.quit.trigger())
        elif how == "session":
            loop.call_later(0.1, lambda: shells[0]._session_ends(None))
        elif how == "slot":
            from PySide6.QtCore import QTimer
            def boom():
                raise ValueError("boom in a slot")
            QTimer.singleShot(50, boom)
            loop.call_later(0.2, lambda: shells[0].menu.quit.trigger())
        elif how == "crash":
            loop.call_later(0.1, lambda: shells[0]._app.exit(1))
        elif how == "wedged":
            loop.call_later(0.1, lambda: shells[0].menu.quit.trigger())
        else:
            number = getattr(signal, how)
            threading.Timer(0.1, lambda: os.kill(os.getpid(), number)).start()
    async def forever(self):
        try:
            await asyncio.Event().wait()
        finally:
            print("background ended", flush=True)
    async def stop(self):
        self.background.cancel()
        if how == "twice":
            shells[0].menu.quit.trigger()
        if how == "wedged":
            await asyncio.Event().wait()
        await asyncio.wait([self.background])
        await super().stop()
        print("router stopped", flush=True)

shells = []
class Shell(app.Shell):
    def __init__(self, *args, **kwargs):
        shells.append(self)
        super().__init__(*args, make_router=lambda paths, options: Router(), **kwargs)
app.Shell = Shell
app.STOP_S = 1.0
paths = Paths.under(root)
paths.ensure()
lock = InstanceLock(paths.state_dir)
assert lock.acquire()
code = app.run(paths, lock, parse(sys.argv[3:]))
lock.release()
print("returned", code, flush=True)
sys.exit(code)
"""


def run_out(how: str, root: Path) -> tuple[int, list[str], str]:
    ran = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", SCRIPT, how, str(root)],
        env={**os.environ, "QT_QPA_PLATFORM": "offscreen"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=Path(__file__).parents[2],
    )
    # What the offscreen platform says, and asyncio's debug mode of a busy machine.
    says = ("does not support raise", "systemTrayWindowChanged", "propagateSizeHints", "Executing <")
    errors = "\n".join(line for line in ran.stderr.splitlines() if not any(s in line for s in says))
    return ran.returncode, ran.stdout.split("\n")[:-1], errors


@pytest.mark.fault("F06")
@pytest.mark.fault("F08")
@pytest.mark.parametrize(
    "how",
    ["menu", "twice", "session", *(s for s in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, s))],
)
def test_every_way_out_cleans_up_and_says_nothing(how: str, tmp_path: Path) -> None:
    code, said, errors = run_out(how, tmp_path)
    assert (code, said, errors) == (0, ["background ended", "router stopped", "returned 0"], "")


@pytest.mark.fault("F06")
def test_a_router_that_does_not_stop_is_left(tmp_path: Path) -> None:
    code, said, errors = run_out("wedged", tmp_path)
    assert (code, said[-1]) == (0, "returned 0")
    assert "did not stop" in errors


@pytest.mark.fault("F08")
def test_a_crash_in_a_slot_is_logged_and_the_app_goes_on(tmp_path: Path) -> None:
    code, said, errors = run_out("slot", tmp_path)
    assert (code, said[-1]) == (0, "returned 0")
    assert "boom in a slot" in errors


@pytest.mark.fault("F06")
def test_a_loop_that_qt_ends_by_itself_is_cleaned_up_too(tmp_path: Path) -> None:
    code, said, errors = run_out("crash", tmp_path)
    assert code == 1
    assert said == ["background ended", "router stopped", "returned 1"]
    assert "The desktop ended the app" in errors
    assert "pending" not in errors


async def _with_notice(stage: Stage) -> FakeRouter:
    stage.shell.start()
    router = stage.router
    await until(lambda: bool(router.snapshot.endpoint))
    router.publish(**{name: getattr(canned.notice(), name) for name in ("pool", "notices", "models")})
    await until(lambda: _kind_shown(stage) is BannerKind.NOTICE)
    return router


def _kind_shown(stage: Stage) -> BannerKind | None:
    view = stage.shell.view
    return view.banner.kind if view is not None and view.banner is not None else None


def _told(router: FakeRouter) -> list[str]:
    return [asked[1] for asked in router.asked if asked[0] == "told"]


@pytest.mark.fault("F31")
def test_a_notice_is_told_once_it_stood_in_the_open_panel(
    qloop: Run, qapp: QApplication, tmp_path: Path
) -> None:
    async def story() -> None:
        stage = Stage(qapp, tmp_path, "--hidden")
        shell = stage.shell
        try:
            router = await _with_notice(stage)
            assert shell.view is not None
            banner = shell.view.banner
            assert banner is not None
            # Not in a hidden panel, and not in one that closes before anyone could read it.
            shell.notices.painted(banner.id)
            shell.panel.open()
            shell.panel.grab()
            shell.panel.hide()
            assert not shell.notices._timer.isActive()
            assert _told(router) == []
            shell.panel.open()
            shell.panel.grab()
            await until(lambda: _told(router) == ["pool-autosize"])
            # It stays while the panel is open, and is gone when that opens again.
            assert _kind_shown(stage) is BannerKind.NOTICE
            shell.panel.hide()
            shell.panel.open()
            assert _kind_shown(stage) is not BannerKind.NOTICE
            assert _told(router) == ["pool-autosize"]
        finally:
            await stage.close()

    qloop(story())


@pytest.mark.parametrize("button", [0, 1, 2])
def test_a_notices_button_tells_it_and_does_what_it_says(
    qloop: Run, qapp: QApplication, tmp_path: Path, button: int
) -> None:
    async def story() -> None:
        stage = Stage(qapp, tmp_path, "--hidden")
        shell = stage.shell
        try:
            router = await _with_notice(stage)
            assert shell.view is not None
            assert shell.view.banner is not None
            option = shell.view.banner.options[button]
            shell.do(option.command)
            await until(lambda: _told(router) == ["pool-autosize"])
            if option.command.kind is Kind.SET:
                await until(lambda: ("set", {option.command.target: option.command.value}) in router.asked)
            await until(lambda: _kind_shown(stage) is not BannerKind.NOTICE)
        finally:
            await stage.close()

    qloop(story())


def test_starting_at_login_is_switched_in_the_menu_and_in_the_settings(
    qloop: Run, qapp: QApplication, tmp_path: Path
) -> None:
    async def flow() -> None:
        stage = Stage(qapp, tmp_path, "--hidden")
        stage.shell.start()
        entry = tmp_path / "autostart" / "lemon-tray.desktop"
        await until(stage.shell.menu.at_login.isEnabled)
        stage.shell.menu.at_login.trigger()
        await until(entry.exists)
        stage.shell.do(Command(Kind.OPEN_WINDOW, "settings"))
        window = stage.shell.windows.get("settings")
        assert isinstance(window, SettingsWindow)
        await until(lambda: window.starts_at_login is True and "start_at_login" in window.body.rows)
        switch = window.body.rows["start_at_login"].editor.switch  # type: ignore[attr-defined]
        assert switch.isChecked()
        switch.click()
        await until(lambda: not entry.exists() and not stage.shell.menu.at_login.isChecked())
        await stage.close()

    qloop(flow())


def test_quit_asks_while_an_answer_is_running_and_not_otherwise(
    qloop: Run, qapp: QApplication, tmp_path: Path
) -> None:
    async def flow() -> None:
        stage = Stage(qapp, tmp_path, "--hidden")
        shell = stage.shell
        shell.start()
        await until(lambda: shell.view is not None and bool(shell.view.head.endpoint))
        busy = canned.resident("Qwen3-8B", 9.1, {"gpu0": 9.1}, in_use=2)
        stage.router.publish(residents=(busy,), models=canned.MODELS)
        shell.menu.quit.trigger()
        assert not stage.stop.is_set()
        assert shell.panel.isVisible()
        banner = shell.view.banner  # type: ignore[union-attr]
        assert banner is not None
        assert banner.title == "2 answers are being written"
        stay = next(o.command for o in banner.options if o.label == "Stay")
        shell.do(stay)
        assert shell.view.banner is None  # type: ignore[union-attr]
        shell.menu.quit.trigger()
        idle = canned.resident("Qwen3-8B", 9.1, {"gpu0": 9.1})
        stage.router.publish(residents=(idle,))
        await until(lambda: shell.view.banner is None)  # type: ignore[union-attr]
        assert not stage.stop.is_set()
        stage.router.publish(residents=(busy,))
        await until(lambda: bool(stage.router.snapshot.residents[0].in_use))
        shell.menu.quit.trigger()
        assert not stage.stop.is_set()
        shell.menu.quit.trigger()  # who asks twice is sure
        assert stage.stop.is_set()
        stage.stop.clear()
        shell.do(banner.options[0].command)
        assert stage.stop.is_set()
        await stage.close()

    qloop(flow())


def test_a_window_is_not_covered_by_the_panel(qloop: Run, qapp: QApplication, tmp_path: Path) -> None:
    async def flow() -> None:
        stage = Stage(qapp, tmp_path)
        stage.shell.start()
        await until(lambda: stage.shell.panel.isVisible())
        for name in ("models", "policies", "engines", "log"):
            stage.shell.panel.open()
            stage.shell.do(Command(Kind.OPEN_WINDOW, name))
            assert stage.shell.windows.is_visible(name)
            assert not stage.shell.panel.isVisible()
        await stage.close()

    qloop(flow())


def test_a_login_entry_that_cannot_be_written_is_told(qloop: Run, qapp: QApplication, tmp_path: Path) -> None:
    async def flow() -> None:
        stage = Stage(qapp, tmp_path, "--hidden")
        (tmp_path / "autostart").write_text("in the way")
        stage.shell.start()
        await until(stage.shell.menu.at_login.isEnabled)
        stage.shell.menu.at_login.trigger()
        await until(lambda: stage.shell.view.banner.title == "Login start not changed")  # type: ignore[union-attr]
        await until(lambda: not stage.shell.menu.at_login.isChecked())
        await stage.close()

    qloop(flow())


def test_the_router_starts_again_for_a_change_that_waits(
    qloop: Run, qapp: QApplication, tmp_path: Path
) -> None:
    async def flow() -> None:
        stage = Stage(qapp, tmp_path, "--hidden")
        stage.shell.start()
        await until(lambda: stage.shell.view is not None and bool(stage.shell.view.head.endpoint))
        stage.shell.do(Command(Kind.RESTART))
        await until(lambda: len(stage.routers) == 2 and bool(stage.routers[1].calls))
        assert stage.routers[0].calls == ["start", "stop"]
        await stage.close()

    qloop(flow())
