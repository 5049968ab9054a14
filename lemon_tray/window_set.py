"""The app's ordinary windows: made when they are first opened, fed with snapshots, styled together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from PySide6.QtCore import QObject, Signal

from lemon_tray.edits import Edits
from lemon_tray.engines_window import EnginesWindow
from lemon_tray.get_window import GetWindow
from lemon_tray.log_window import LogWindow, Spawn
from lemon_tray.models_window import ModelsWindow
from lemon_tray.policies_window import PoliciesWindow
from lemon_tray.present_catalog import PlanView
from lemon_tray.present_policies import DecisionView
from lemon_tray.settings_window import SettingsWindow
from lemon_tray.theme import Look
from lemon_tray.windows import AppWindow
from router.logs import LOG_NAME
from router.paths import Paths
from router.snapshot import DeletionView, Snapshot

SETTINGS: Final = "settings"
MODELS: Final = "models"
GET: Final = "get"
ENGINES: Final = "engines"
POLICIES: Final = "policies"
LOG: Final = "log"


class WindowSet(QObject):
    """All windows but the panel, by name."""

    asked = Signal(object)
    opened = Signal(str)
    plan_wanted = Signal(str, object)
    try_wanted = Signal(str, str)

    def __init__(
        self, look: Look, edits: Edits, paths: Paths, spawn: Spawn, parent: QObject | None = None
    ) -> None:
        super().__init__(parent)
        self._snapshot: Snapshot | None = None
        self._config_file = str(paths.config_file)
        self._windows: dict[str, AppWindow] = {}
        self._at_start: Mapping[str, Any] = {}
        self._starts_at_login: bool | None = None
        self._makers: dict[str, Callable[[], AppWindow]] = {
            SETTINGS: lambda: SettingsWindow(look, edits),
            MODELS: lambda: ModelsWindow(look),
            GET: lambda: GetWindow(look),
            ENGINES: lambda: EnginesWindow(look),
            POLICIES: lambda: PoliciesWindow(look),
            LOG: lambda: LogWindow(look, paths.log_dir / LOG_NAME, spawn),
        }

    def open(self, name: str) -> None:
        """Show the window of that name, or bring it to the front.

        Raises:
            KeyError: there is none of that name.
        """
        window = self._windows.get(name)
        if window is None:
            window = self._windows[name] = self._makers[name]()
            window.asked.connect(self.asked)
            self._wire(window)
        if self._snapshot is not None:
            window.snapshot = self._snapshot
        window.open()
        self.opened.emit(name)

    def _wire(self, window: AppWindow) -> None:
        if isinstance(window, ModelsWindow):
            window.plan_wanted.connect(self.plan_wanted)
        if isinstance(window, PoliciesWindow):
            window.try_wanted.connect(self.try_wanted)
        self._prime(window)

    def _prime(self, window: AppWindow) -> None:
        if isinstance(window, SettingsWindow):
            window.at_start = self._at_start
            window.config_file = self._config_file
            window.starts_at_login = self._starts_at_login

    def show_plan(self, model: str, plan: PlanView | None) -> None:
        """What a plan said, for the model browser."""
        window = self._windows.get(MODELS)
        if isinstance(window, ModelsWindow):
            window.show_plan(model, plan)

    def show_deletion(self, model: str, answer: DeletionView | str | None) -> None:
        """What deleting a model would take away, why it is not deleted, or None: it is."""
        window = self._windows.get(MODELS)
        if isinstance(window, ModelsWindow):
            window.details.show_deletion(model, answer)

    def show_pull(self, name: str, refusal: str) -> None:
        """What asking for a model came to, for the window that gets them."""
        window = self._windows.get(GET)
        if isinstance(window, GetWindow):
            window.answer(name, refusal)

    def show_answer(self, answer: DecisionView | str) -> None:
        """What trying a prompt on a policy came to."""
        window = self._windows.get(POLICIES)
        if isinstance(window, PoliciesWindow):
            window.show_answer(answer)

    def get(self, name: str) -> AppWindow | None:
        """The window of that name if it has been opened once."""
        return self._windows.get(name)

    def is_visible(self, name: str) -> bool:
        window = self._windows.get(name)
        return window is not None and window.isVisible()

    def show_snapshot(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        for window in self._windows.values():
            window.show_snapshot(snapshot)

    def refresh(self) -> None:
        """Show again what is known: a setting has been asked for, or refused."""
        for window in self._windows.values():
            if window.isVisible():
                window.refresh()

    def router_started(self, settings: Mapping[str, Any]) -> None:
        """The router runs with these settings: what differs from them later may wait for a restart."""
        self._at_start = dict(settings)
        self._prime_all()

    def tell_autostart(self, on: bool | None) -> None:
        """Whether the app starts at login; None where there is no such thing."""
        self._starts_at_login = on
        self._prime_all()

    def _prime_all(self) -> None:
        for window in self._windows.values():
            self._prime(window)
        self.refresh()

    def restyle(self) -> None:
        for window in self._windows.values():
            window.restyle()

    def close(self) -> None:
        """Take all windows away."""
        for window in self._windows.values():
            window.hide()
            window.deleteLater()
        self._windows.clear()
