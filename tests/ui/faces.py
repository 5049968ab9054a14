"""Everything that people see, made from a snapshot: the panel and all windows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from PySide6.QtCore import QRect
from PySide6.QtWidgets import QApplication, QWidget

from lemon_tray.edits import Edits
from lemon_tray.models_window import ModelsWindow
from lemon_tray.panel import Panel
from lemon_tray.policies_window import PoliciesWindow
from lemon_tray.present_catalog import PlanView, Verdict
from lemon_tray.present_policies import DecisionView
from lemon_tray.settings_window import SettingsWindow
from lemon_tray.theme import Look
from lemon_tray.window_set import WindowSet
from router.paths import Paths
from router.snapshot import Snapshot
from tests.ui.conftest import view_of


class TallScreen:
    """A screen on which nothing has to scroll; the offscreen platform's is low."""

    @staticmethod
    def availableGeometry() -> QRect:
        return QRect(0, 0, 3000, 4000)


@contextlib.contextmanager
def open_panel(look: Look, snapshot: Snapshot) -> Iterator[Panel]:
    """The panel, open and in full height, with the breakdown of its pool."""
    panel = Panel(look, Edits())
    panel._screen = TallScreen  # type: ignore[assignment, method-assign]
    try:
        panel.show_view(view_of(snapshot))
        panel.open()
        panel.pool.details.setChecked(True)
        QApplication.processEvents()
        yield panel
    finally:
        panel.hide()
        panel.deleteLater()


@contextlib.contextmanager
def open_windows(look: Look, snapshot: Snapshot, root: Path) -> Iterator[dict[str, QWidget]]:
    """All windows, open and complete, by name."""
    windows = WindowSet(look, Edits(), Paths.under(root), lambda work: work.close())
    windows.show_snapshot(snapshot)
    windows.tell_autostart(True)
    try:
        made: dict[str, QWidget] = {}
        for name in windows._makers:
            windows.open(name)
            window = windows.get(name)
            assert window is not None
            made[name] = window
            if isinstance(window, ModelsWindow) and snapshot.models:
                window.show_plan(window.table.current(), PlanView(Verdict.GOOD, "Plan 1"))
            if isinstance(window, PoliciesWindow):
                window.show_answer(DecisionView("Decision 1", ("Step 1",)))
        for _ in range(60):  # the rows of the settings come a few at a time
            QApplication.processEvents()
        settings = made["settings"]
        assert isinstance(settings, SettingsWindow)
        assert len(settings.body.rows) > 25
        yield made
    finally:
        windows.close()
