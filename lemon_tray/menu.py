"""The text menu. It holds everything that the panel can do, for desktops whose trays show only menus.

Entries are changed in place. While the menu is open its structure stays as it is under the pointer: rows of
models that went are switched off, new ones come when it has closed. A click acts on the model that the row
was made for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from PySide6.QtCore import QObject, QPoint, QTimer, Signal
from PySide6.QtGui import QAction, QActionGroup, QColor, QGuiApplication, QPalette
from PySide6.QtWidgets import QMenu, QWidget

from lemon_tray.edits import Edits
from lemon_tray.menu_text import MenuText
from lemon_tray.names import limit_text, plain
from lemon_tray.view import Banner, BannerKind, Command, Kind, MenuModel, Option, PanelView
from lemon_tray.words import counted, translate

LIMITS: Final = (*range(1, 17), -1)
FEED_ROWS: Final = 10
LINE: Final = 90
PALE: Final = 0.35
"""How far the colour of rows that only tell something is on its way from ink to ground."""


def mixed(one: QColor, other: QColor, share: float) -> QColor:
    """A colour between two: `share` of the one, the rest of the other."""
    pairs = ((one.redF(), other.redF()), (one.greenF(), other.greenF()), (one.blueF(), other.blueF()))
    return QColor.fromRgbF(*(a * share + b * (1 - share) for a, b in pairs))


class _Lines:
    """Rows of plain information. Rows are kept and hidden, never removed."""

    def __init__(self, text: MenuText, menu: QMenu, before: QAction | None = None) -> None:
        self._text = text
        self._menu = menu
        self._before = before
        self.actions: list[QAction] = []

    def show(self, lines: list[str]) -> None:
        while len(self.actions) < len(lines):
            action = QAction(self._menu)
            action.setEnabled(False)
            if self._before is None:
                self._menu.addAction(action)
            else:
                self._menu.insertAction(self._before, action)
            self.actions.append(action)
        for action, line in zip(self.actions, lines, strict=False):
            self._text.say(action, plain(line, LINE))
            action.setVisible(True)
        for action in self.actions[len(lines) :]:
            action.setVisible(False)


class _ModelMenu(QMenu):
    """One resident: pin it, unload it."""

    def __init__(self, text: MenuText, model: str, ask: Callable[[Command], None], parent: QWidget) -> None:
        super().__init__(parent)
        self._text = text
        self.model = model
        self.detail = self.addAction("")
        self.detail.setEnabled(False)
        self.addSeparator()
        self.pinned = self.addAction(translate("Menu", "Pinned"))
        self.pinned.setCheckable(True)
        self.unload = self.addAction("")
        self.copy_name = self.addAction(translate("Menu", "Copy model name"))
        self.pinned.triggered.connect(lambda on: ask(Command(Kind.PIN, model, on)))
        self.unload.triggered.connect(lambda: ask(Command(Kind.UNLOAD, model)))
        self.copy_name.triggered.connect(lambda: ask(Command(Kind.COPY, "text", model)))

    def show_model(self, entry: MenuModel) -> None:
        say = self._text.say
        say(self.menuAction(), entry.label)
        say(self.detail, entry.detail)
        self.pinned.setChecked(entry.pinned)
        self.pinned.setEnabled(not entry.loading)
        say(
            self.unload, translate("Menu", "Cancel loading") if entry.loading else translate("Menu", "Unload")
        )
        self.menuAction().setEnabled(True)


class TrayMenu(QObject):
    """The menu and its submenus."""

    asked = Signal(object)

    def __init__(self, edits: Edits, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._edits = edits
        self._view: PanelView | None = None
        self.text = MenuText()
        self._exported_again = False
        self.menu = QMenu()
        self.menu.setTitle(translate("Menu", "Lemon Tray"))
        self._build()
        self.menu.aboutToHide.connect(self._closed)
        self.menu.aboutToShow.connect(self._make_legible)

    def _make_legible(self) -> None:
        """Rows that only tell something are switched off; styles draw such rows too pale to be read."""
        system = QGuiApplication.palette()
        ink, ground = system.color(QPalette.ColorRole.WindowText), system.color(QPalette.ColorRole.Window)
        pale = mixed(ink, ground, 1 - PALE)
        palette = QPalette()
        for role in (QPalette.ColorRole.Text, QPalette.ColorRole.WindowText, QPalette.ColorRole.ButtonText):
            palette.setColor(QPalette.ColorGroup.Disabled, role, pale)
        # A style draws a white shadow below what is switched off, unless that has the colour of the ground.
        palette.setColor(QPalette.ColorGroup.Disabled, QPalette.ColorRole.Light, ground)
        for menu in (self.menu, *self.menu.findChildren(QMenu)):
            menu.setPalette(palette)

    def _add(self, text: str, command: Command) -> QAction:
        action = self.menu.addAction(self.text.label(text))
        action.triggered.connect(lambda: self.asked.emit(command))
        return action

    def _build(self) -> None:
        menu = self.menu
        self.banner_end = menu.addSeparator()
        self._banner_mark = QAction(menu)  # what stands above the banner's buttons goes before it
        self._banner_mark.setVisible(False)
        menu.insertAction(self.banner_end, self._banner_mark)
        self._banner_lines = _Lines(self.text, menu, self._banner_mark)
        self.banner_options: list[QAction] = []
        self.banner_commands: list[Command] = []
        self.open_panel = self._add(translate("Menu", "Open panel"), Command(Kind.OPEN_PANEL))
        menu.addSeparator()
        self._status_end = menu.addSeparator()
        self.status = _Lines(self.text, menu, self._status_end)
        self.cancel_load = menu.addAction("")
        self.cancel_load.triggered.connect(self._cancel_load)
        self._loading_model = ""

        self.models = QMenu(translate("Menu", "Models"), menu)
        menu.addMenu(self.models)
        self.resident_menus: dict[str, _ModelMenu] = {}
        self._models_note = self.models.addAction(translate("Menu", "None loaded"))
        self._models_note.setEnabled(False)
        self._residents_end = self.models.addSeparator()
        self.load = QMenu(translate("Menu", "Load"), self.models)
        self.models.addMenu(self.load)
        self.load_actions: dict[str, QAction] = {}
        self.free_all = menu.addAction(translate("Menu", "Free all VRAM now"))
        self.free_all.triggered.connect(lambda: self.asked.emit(Command(Kind.FREE_ALL)))
        self.pause = menu.addAction(translate("Menu", "Pause loading"))
        self.pause.setCheckable(True)
        self.pause.triggered.connect(lambda on: self.asked.emit(Command(Kind.PAUSE, value=on)))
        self.add_folder = self._add(translate("Menu", "Add a folder with models…"), Command(Kind.ADD_FOLDER))

        menu.addSeparator()
        self.autosize = menu.addAction(translate("Menu", "Autosize the pool"))
        self.auto_evict = menu.addAction(translate("Menu", "Auto-evict"))
        for action, key in ((self.autosize, "llm_pool_autosize"), (self.auto_evict, "auto_evict")):
            action.setCheckable(True)
            action.triggered.connect(self._setter(key))
        self.limit = QMenu(menu)
        menu.addMenu(self.limit)
        self._limit_group = QActionGroup(self.limit)
        self.limit_actions: dict[int, QAction] = {}
        for value in LIMITS:
            if value < 0:
                self.limit.addSeparator()
            action = self.limit.addAction(limit_text(value).capitalize())
            action.setCheckable(True)
            self._limit_group.addAction(action)
            action.triggered.connect(self._limit_setter(value))
            self.limit_actions[value] = action
        self.why = QMenu(menu)
        menu.addMenu(self.why)
        self.why_lines = _Lines(self.text, self.why)

        menu.addSeparator()
        self.copy_endpoint = self._add("", Command(Kind.COPY, "endpoint"))
        self.copy_curl = self._add(translate("Menu", "Copy curl command"), Command(Kind.COPY, "curl"))
        self.feed = QMenu(translate("Menu", "Recent decisions"), menu)
        menu.addMenu(self.feed)
        self.feed_lines = _Lines(self.text, self.feed)

        menu.addSeparator()
        self.windows = {
            name: self._add(text, Command(Kind.OPEN_WINDOW, name))
            for name, text in (
                ("models", translate("Menu", "All models…")),
                ("get", translate("Menu", "Get models…")),
                ("policies", translate("Menu", "Policies…")),
                ("engines", translate("Menu", "Engines…")),
                ("settings", translate("Menu", "Settings…")),
                ("log", translate("Menu", "Log…")),
            )
        }
        self.at_login = menu.addAction(translate("Menu", "Start at login"))
        self.at_login.setCheckable(True)
        self.at_login.setEnabled(False)
        self.at_login.triggered.connect(lambda on: self.asked.emit(Command(Kind.START_AT_LOGIN, value=on)))
        menu.addSeparator()
        self.quit = self._add(translate("Menu", "Quit Lemon Tray"), Command(Kind.QUIT))

    def _setter(self, key: str) -> Callable[[bool], None]:
        return lambda on: self.asked.emit(Command(Kind.SET, key, on))

    def _limit_setter(self, value: int) -> Callable[[], None]:
        return lambda: self.asked.emit(Command(Kind.SET, "max_loaded_models", value))

    def _cancel_load(self) -> None:
        self.asked.emit(Command(Kind.UNLOAD, self._loading_model))

    @property
    def is_open(self) -> bool:
        """The menu is on the screen. Hosts that draw it themselves never say so; their rows may change."""
        return self.menu.isVisible()

    def _closed(self) -> None:
        # Hiding comes before the click that caused it is delivered: its row must still be there.
        self.text.exported |= self._exported_again
        self._exported_again = False
        QTimer.singleShot(0, self, self._catch_up)

    def _catch_up(self) -> None:
        if self._view is not None:
            self.show_view(self._view)

    def export(self, exported: bool) -> None:
        """Write for the desktop's panel, which draws the menu itself, or for Qt."""
        if exported != self.text.exported:
            self.text.exported = exported
            self._catch_up()

    def popup(self, at: QPoint) -> None:
        """Show the menu there as a window of our own."""
        exported = self.text.exported
        self.export(False)
        self.menu.popup(at)
        if exported:
            self._exported_again = True

    def show_autostart(self, on: bool) -> None:
        """Check the entry if the app starts at login; until this is known it cannot be used."""
        self.at_login.setEnabled(True)
        self.at_login.setChecked(on)

    def show_view(self, view: PanelView) -> None:
        """Bring all texts, checks and rows up to date."""
        self._view = view
        if not self.is_open:
            self._show_banner(view.banner)
            self.status.show(list(view.menu.status))
        else:
            for action, line in zip(self.status.actions, view.menu.status, strict=False):
                self.text.say(action, plain(line, LINE))
        self._show_models(view)
        self.pause.setChecked(view.menu.paused)
        self._show_controls(view)
        self.text.say(
            self.copy_endpoint, translate("Menu", "Copy endpoint {url}").format(url=view.head.endpoint)
        )
        self.copy_endpoint.setEnabled(bool(view.head.endpoint))
        self.copy_curl.setEnabled(bool(view.head.endpoint))
        if not self.feed.isVisible():
            rows = [f"{row.time}  {row.text}" for row in view.feed[:FEED_ROWS]]
            self.feed_lines.show(rows or [translate("Menu", "Nothing yet")])

    def _show_banner(self, banner: Banner | None) -> None:
        lines: list[str] = []
        options = banner.options if banner else ()
        if banner is not None and banner.more:
            text = counted("Menu", "Show the next ({count} more)", banner.more)
            text = text.format(count=banner.more)
            options = (*options, Option(label=text, command=Command(Kind.NEXT_BANNER)))
        if banner is not None:
            title = banner.title
            if banner.kind is BannerKind.WARNING:
                title = translate("Menu", "Warning: {title}").format(title=title)
            elif banner.kind is BannerKind.ERROR:
                title = translate("Menu", "Error: {title}").format(title=title)
            lines = [title, *_wrapped(banner.text.replace("`", ""))]
            if banner.progress is not None:
                lines.append(banner.progress.text)
        self._banner_lines.show(lines)
        while len(self.banner_options) < len(options):
            action = QAction(self.menu)
            self.menu.insertAction(self.banner_end, action)
            action.triggered.connect(self._banner_clicker(len(self.banner_options)))
            self.banner_options.append(action)
        self.banner_commands = [option.command for option in options]
        self.add_folder.setVisible(not any(c.kind is Kind.ADD_FOLDER for c in self.banner_commands))
        for action, option in zip(self.banner_options, options, strict=False):
            self.text.say(action, option.menu_label or option.label)
            action.setVisible(True)
        for action in self.banner_options[len(options) :]:
            action.setVisible(False)
        self.banner_end.setVisible(banner is not None)

    def _banner_clicker(self, index: int) -> Callable[[], None]:
        def clicked() -> None:
            if index < len(self.banner_commands):
                self.asked.emit(self.banner_commands[index])

        return clicked

    def _show_models(self, view: PanelView) -> None:
        entries = {entry.model: entry for entry in view.menu.residents}
        fixed = self.is_open
        for model in [m for m in self.resident_menus if m not in entries]:
            gone = self.resident_menus[model]
            gone.menuAction().setEnabled(False)
            if not fixed:
                self.models.removeAction(gone.menuAction())
                del self.resident_menus[model]
                gone.deleteLater()
        for model, entry in entries.items():
            menu = self.resident_menus.get(model)
            if menu is None and not fixed:
                menu = self.resident_menus[model] = _ModelMenu(self.text, model, self.asked.emit, self.models)
                self.models.insertMenu(self._residents_end, menu)
            if menu is not None:
                menu.show_model(entry)
        if not fixed:
            self._models_note.setVisible(not entries)
        self.free_all.setEnabled(bool(entries))
        self._show_loadable(dict(view.menu.loadable), fixed)
        loading = [entry.model for entry in entries.values() if entry.loading]
        if fixed:
            self.cancel_load.setEnabled(self._loading_model in loading)
            return
        self._loading_model = loading[0] if loading else ""
        self.cancel_load.setVisible(bool(loading))
        self.cancel_load.setEnabled(True)
        name = plain(self._loading_model, 60)
        self.text.say(self.cancel_load, translate("Menu", "Cancel loading {model}").format(model=name))

    def _show_loadable(self, loadable: dict[str, str], fixed: bool) -> None:
        for model in [m for m in self.load_actions if m not in loadable]:
            self.load_actions[model].setEnabled(False)
            if not fixed:
                gone = self.load_actions.pop(model)
                self.load.removeAction(gone)
                gone.deleteLater()
        for model, label in loadable.items():
            if model not in self.load_actions and not fixed:
                action = self.load_actions[model] = self.load.addAction("")
                action.triggered.connect(self._loader(model))
            if model in self.load_actions:
                self.text.say(self.load_actions[model], label)
                self.load_actions[model].setEnabled(True)
        # A submenu with nothing in it is worse than none.
        self.load.menuAction().setEnabled(bool(loadable))

    def _loader(self, model: str) -> Callable[[], None]:
        return lambda: self.asked.emit(Command(Kind.LOAD, model))

    def _show_controls(self, view: PanelView) -> None:
        edits, controls = self._edits, view.controls
        self.autosize.setChecked(bool(edits.shown("llm_pool_autosize", controls.autosize)))
        self.auto_evict.setChecked(bool(edits.shown("auto_evict", controls.auto_evict)))
        limit: Any = edits.shown("max_loaded_models", controls.max_loaded)
        text = translate("Menu", "Max loaded models: {limit}").format(limit=limit_text(limit))
        self.text.say(self.limit.menuAction(), text)
        chosen = self.limit_actions.get(limit)
        if chosen is not None:
            chosen.setChecked(True)
        elif (checked := self._limit_group.checkedAction()) is not None:
            # A limit above 16, set elsewhere, is none of these rows.
            self._limit_group.setExclusive(False)
            checked.setChecked(False)
            self._limit_group.setExclusive(True)
        self.text.say(self.why.menuAction(), translate("Menu", "{why}?").format(why=view.pool.details_name))
        if not self.why.isVisible():
            rows = [f"{row.label}: {row.text or '-'} ({row.count})" for row in view.pool.rows]
            if view.pool.total is not None:
                rows.append(f"{view.pool.total.label}: {view.pool.total.count}")
            self.why_lines.show([*rows, *view.pool.remarks])


def _wrapped(text: str, width: int = 64) -> list[str]:
    """A sentence or two as menu rows, three at most."""
    lines: list[str] = []
    for word in text.split():
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    if len(lines) > 3:
        lines = [*lines[:2], f"{lines[2]} …"]
    return lines
