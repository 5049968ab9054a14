"""The settings, generated from their declaration. Each value is saved as it is changed."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, Final

from PySide6.QtCore import QRectF, QSize, Qt, QTimer, Signal
from PySide6.QtGui import QKeyEvent, QPainter, QPaintEvent, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QHBoxLayout, QSizePolicy, QVBoxLayout, QWidget

from lemon_tray.badges import KINDS, BadgeFilter
from lemon_tray.buttons import Button
from lemon_tray.cards import Stack
from lemon_tray.edits import Edits
from lemon_tray.fields import TextEditor
from lemon_tray.labels import Run, Text
from lemon_tray.names import plain
from lemon_tray.paint import focus_ring
from lemon_tray.placing import mirrored, put, worded
from lemon_tray.present_engines import OFFER
from lemon_tray.present_settings import (
    LOGIN,
    GroupView,
    SettingView,
    groups,
    matches,
    present_settings,
    waiting_for_restart,
)
from lemon_tray.search import SearchWindow
from lemon_tray.setting_row import SettingRow
from lemon_tray.theme import Look, Role
from lemon_tray.view import Command, Kind
from lemon_tray.windows import Line, row_of_window, scroll_area
from lemon_tray.words import counted, translate
from router.snapshot import Snapshot

SURE_MS: Final = 4000
AT_A_TIME: Final = 3
SIDE: Final = 208


class NavButton(Button):
    """A line of the side bar: a name with a number."""

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(look, parent=parent)
        self.setCheckable(True)
        self._count = 0
        self.ruled = False

    def show_line(self, name: str, count: int) -> None:
        if (name, count) != (self.label, self._count):
            self.show_label(name)
            self._count = count
            self.setAccessibleName(f"{name}, {count}")
            self.update()

    def sizeHint(self) -> QSize:
        return QSize(self.look.px(SIDE - 24), self.look.px(36))

    def paintEvent(self, event: QPaintEvent) -> None:
        look, px, painter = self.look, self.look.px, QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        area = QRectF(self.rect())
        if self.isChecked() or self.underMouse():
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(look.colour("hover" if self.isChecked() else "track"))
            painter.drawRoundedRect(area, px(6), px(6))
        left = px(12)
        if self.ruled:
            rule = mirrored(self, QRectF(px(12), px(10), px(3), self.height() - px(20)))
            painter.fillRect(rule, look.colour("accedge"))
            left = px(24)
        role = Role.NAME if self.isChecked() else Role.BODY
        painter.setFont(look.font(role))
        painter.setPen(look.colour("ink"))
        room = mirrored(self, area.adjusted(left, 0, -px(40), 0))
        text = look.metrics(role).elidedText(self.label, Qt.TextElideMode.ElideRight, int(room.width()))
        painter.drawText(room, int(Qt.AlignmentFlag.AlignVCenter), worded(self, text))
        painter.setFont(look.font(Role.SMALL))
        painter.setPen(look.colour("ink2"))
        flags = int(Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignRight)
        painter.drawText(mirrored(self, area.adjusted(0, 0, -px(12), 0)), flags, str(self._count))
        if self.has_ring:
            focus_ring(painter, look, area, px(6))


class _GroupHead(QWidget):
    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.look = look
        self.name = Text(look, Role.TITLE, parent=self)
        self.count = Text(look, Role.SMALL, "ink2", parent=self)

    def show_group(self, name: str, count: int) -> None:
        self.name.show_text(name)
        words = counted("Settings", "{count} settings", count, one="{count} setting")
        self.count.show_text(words.format(count=count))

    def arrange(self) -> int:
        px = self.look.px
        width = self.name.natural_width() + 1
        self.name.place(px(40), px(20), width)
        self.count.place(px(40) + width + px(8), px(25), self.count.natural_width() + 1)
        return px(52)

    def paintEvent(self, event: QPaintEvent) -> None:
        px = self.look.px
        area = QRectF(px(40), self.height() - 1, self.width() - px(68), 1)
        QPainter(self).fillRect(mirrored(self, area), self.look.colour("line"))


class SettingsBody(Stack):
    """All rows, in their groups."""

    asked = Signal(object)
    unfinished = Signal()

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(look, parent)
        self.rows: dict[str, SettingRow] = {}
        self.heads: dict[str, _GroupHead] = {}
        self._groups: tuple[GroupView, ...] = ()
        self.nothing = Text(look, Role.BODY, "ink2", parent=self)
        self.nothing.show_text(translate("Settings", "No setting answers to that."))
        self.nothing.hide()

    def show_views(
        self, views: tuple[SettingView, ...], shown: frozenset[str], edits: Edits, query: str
    ) -> None:
        """Bring every row up to date; only those of `shown` are in sight.

        Rows are made a few at a time, for the loop that they are made on carries every client's answer:
        `unfinished` asks to be called again.
        """
        self._groups = groups(views)
        made = 0
        for view in views:
            row = self.rows.get(view.key)
            if row is None:
                if view.key not in shown:
                    continue
                if made == AT_A_TIME:
                    QTimer.singleShot(0, self, self.unfinished.emit)
                    break
                made += 1
                row = self.rows[view.key] = SettingRow(self.look, view, self)
                row.asked.connect(self.asked)
                row.resized.connect(self.later.start)
            row.show_view(view, edits, query)
            row.setVisible(view.key in shown)
        keys = {view.key for view in views}
        for key in [k for k in self.rows if k not in keys]:
            self.rows.pop(key).deleteLater()
        for group in self._groups:
            head = self.heads.get(group.name)
            if head is None:
                head = self.heads[group.name] = _GroupHead(self.look, self)
            count = sum(key in shown for key in group.keys)
            head.show_group(group.name, count)
            head.setVisible(any(key in shown and key in self.rows for key in group.keys))
        self.nothing.setVisible(not shown)
        self.later.stop()
        self.arrange()

    def arrange(self) -> None:
        width, y = self.width(), self.look.px(4)
        for group in self._groups:
            head = self.heads[group.name]
            if head.isHidden():
                continue
            head.resize(width, head.height())  # parts are placed from either edge
            height = head.arrange()
            head.setGeometry(0, y, width, height)
            y += height
            for key in group.keys:
                row = self.rows.get(key)
                if row is not None and not row.isHidden():
                    row.resize(width, row.height())
                    height = row.arrange(width)
                    row.setGeometry(0, y, width, height)
                    y += height
        if not self.nothing.isHidden():
            self.nothing.place(self.look.px(40), self.look.px(40), width - self.look.px(80))
            y += self.look.px(80)
        self.setMinimumHeight(y + self.look.px(24))

    def order(self) -> list[str]:
        """The keys in the order in which they stand."""
        return [key for group in self._groups for key in group.keys if key in self.rows]


class SettingsWindow(SearchWindow):
    """Shows what is in force, follows edits made elsewhere, and saves each change at once."""

    def __init__(self, look: Look, edits: Edits) -> None:
        super().__init__(
            look,
            translate("Settings", "Settings"),
            (920, 860),
            (720, 520),
            translate("Settings", "Search by name, key or help text"),
        )
        self.edits = edits
        self.starts_at_login: bool | None = None
        self.config_file = ""
        self.at_start: Mapping[str, Any] = {}
        self._only_changed = False
        self._state: tuple[object, ...] = ()
        self._ordered: list[str] = []
        self._kinds: set[str] = set()
        self._views: tuple[SettingView, ...] = ()
        self._jump = ""
        self.search.textChanged.connect(lambda _text: self.refresh())
        self.filters = {kind: BadgeFilter(look, kind) for kind in KINDS}
        for kind, button in self.filters.items():
            button.toggled.connect(lambda on, kind=kind: self._filter(kind, on))
        self.body = SettingsBody(look)
        self.body.asked.connect(self.asked)
        self.body.unfinished.connect(self._go_on)
        self.area = scroll_area(self.body)
        self.area.verticalScrollBar().valueChanged.connect(lambda _at: self._follow_scroll())
        self.side: dict[str, NavButton] = {}
        self.changed = NavButton(look)
        self.changed.ruled = True
        self.changed.clicked.connect(self._toggle_changed)
        self.note = Text(look, Role.SMALL, "ink2")
        self.restart = Button(look)
        self.restart.show_as(translate("Settings", "Restart the router"), primary=True)
        self.restart.clicked.connect(lambda: self.ask(Command(Kind.RESTART)))
        self.open_file = Button(look)
        self.open_file.show_as(translate("Settings", "Open the file"))
        self.open_file.clicked.connect(lambda: self.ask(Command(Kind.OPEN_FILE, "settings")))
        self.reset_all = Button(look)
        self.reset_all.clicked.connect(self._reset_all)
        self._sure = QTimer(self)
        self._sure.setSingleShot(True)
        self._sure.setInterval(SURE_MS)
        self._sure.timeout.connect(self._show_footer)
        self._lay_out()
        self.dress()

    def _lay_out(self) -> None:
        px = self.look.px
        whole = QHBoxLayout(self)
        whole.setContentsMargins(0, 0, 0, 0)
        whole.setSpacing(0)
        self._side_bar = _SideBar(self.look)
        whole.addWidget(self._side_bar)
        right = QVBoxLayout()
        right.setSpacing(0)
        whole.addLayout(right, 1)
        top = row_of_window(self.look, 8)
        top.addWidget(self.search, 1)
        top.addSpacing(px(8))
        self._show = Text(self.look, Role.SMALL, "ink2")
        self._show.show_text(translate("Settings", "Show"))
        self._show.setFixedHeight(px(16))
        top.addWidget(self._show)
        for button in self.filters.values():
            top.addWidget(button)
        right.addLayout(top)
        right.addWidget(Line(self.look))
        right.addWidget(self.area, 1)
        right.addWidget(Line(self.look))
        bottom = row_of_window(self.look, 8)
        self.note.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        bottom.addWidget(self.note, 1)
        for push in (self.restart, self.open_file, self.reset_all):
            bottom.addWidget(push)
        right.addLayout(bottom)

    # What is shown

    def refresh(self) -> None:
        if self.snapshot is None:
            return
        state = (
            self.snapshot.settings,
            self.snapshot.overridden,
            tuple(e.id for e in self.snapshot.engines),
            self.starts_at_login,
            self.at_start,
            self.search.text(),
            frozenset(self._kinds),
            self._only_changed,
            self.edits.version,
            self._problem(),
        )
        if state == self._state:
            return
        self._state = state
        self._views = present_settings(self.snapshot.settings, self.snapshot.overridden, self.starts_at_login)
        query = self.search.text()
        shown = frozenset(
            v.key
            for v in self._views
            if matches(v, query)
            and (not self._kinds or v.kind in self._kinds)
            and (v.changed or not self._only_changed)
        )
        self.body.show_views(self._views, shown, self.edits, query)
        self._offer_engines(self.snapshot)
        for kind, button in self.filters.items():
            button.show_count(sum(v.kind == kind and v.key != LOGIN for v in self._views))
        found = groups(self._views)
        for group in found:
            line = self.side.get(group.name)
            if line is None:
                line = self.side[group.name] = NavButton(self.look)
                line.clicked.connect(lambda _on=False, name=group.name: self.go_to(name))
            line.show_line(group.name, len(group.keys))
        self.changed.show_line(translate("Settings", "Changed"), sum(v.changed for v in self._views))
        self.changed.setChecked(self._only_changed)
        self._side_bar.show_buttons([*self.side.values()], self.changed)
        self._show_footer()
        self._follow_scroll()
        self._order_focus()

    def _order_focus(self) -> None:
        """The keyboard goes as the eye does: search, badges, groups, rows, what is below."""
        order = self.body.order()
        if order == self._ordered:
            return
        self._ordered = order
        chain: list[QWidget] = [self.search, *self.filters.values(), *self.side.values(), self.changed]
        for key in order:
            row = self.body.rows[key]
            chain += [
                part
                for part in row.editor.findChildren(QWidget)
                if part.focusPolicy() & Qt.FocusPolicy.TabFocus and part.window() is self
            ]
            chain.append(row.reset)
        for one, following in itertools.pairwise([*chain, self.restart, self.open_file, self.reset_all]):
            QWidget.setTabOrder(one, following)

    def _go_on(self) -> None:
        if self.isVisible():
            self._state = ()
            self.refresh()

    def _offer_engines(self, snapshot: Snapshot) -> None:
        row = self.body.rows.get("engine")
        if row is not None and isinstance(row.editor, TextEditor) and row.editor.combo is not None:
            here = [e.id for e in snapshot.engines if e.kind != OFFER and not e.problem]
            row.editor.combo.offer(dict.fromkeys(("auto", "embedded", *here)))

    def _show_footer(self) -> None:
        waiting = waiting_for_restart(self._views, self.at_start)
        self.restart.setVisible(bool(waiting))
        if waiting:
            text = counted(
                "Settings",
                "{count} changes wait for a restart: {keys}",
                len(waiting),
                one="{count} change waits for a restart: {keys}",
            )
            self.note.show_text(text.format(count=len(waiting), keys=", ".join(waiting)))
        elif problem := self._problem():
            self.note.show_runs([Run(problem)])
        else:
            self.note.show_text(translate("Settings", "Changes are saved as you make them."))
        self.note.set_colour("error.ink" if self._problem() and not waiting else "ink2")
        count = len(self._resettable())
        self.reset_all.setEnabled(count > 0)
        label = translate("Settings", "Reset all…")
        if self._sure.isActive() and count:
            label = translate("Settings", "Reset {count}?").format(count=count)
        self.reset_all.show_as(label)

    def _problem(self) -> str:
        """What is wrong with the settings file itself; "" if nothing is."""
        problems = self.snapshot.problems if self.snapshot is not None and self.config_file else ()
        found = next((p for p in problems if p.startswith(self.config_file)), "")
        if not found:
            return ""
        what = plain(found.removeprefix(self.config_file).lstrip(": "), 300)
        return translate("Settings", "Settings file: {problem}").format(problem=what)

    def _resettable(self) -> list[SettingView]:
        return [v for v in self._views if v.changed and not v.overridden]

    def _reset_all(self) -> None:
        if not self._sure.isActive():
            self._sure.start()
            self._show_footer()
            return
        self._sure.stop()
        for view in self._resettable():
            default = view.info.default
            value = list(default) if isinstance(default, tuple) else default
            self.ask(Command(Kind.SET, view.key, value))
        self._show_footer()

    def _filter(self, kind: str, on: bool) -> None:
        (self._kinds.add if on else self._kinds.discard)(kind)
        self.refresh()

    def _toggle_changed(self) -> None:
        self._only_changed = not self._only_changed
        self.refresh()

    # Moving about

    def go_to(self, group: str) -> None:
        """Show a group from its head on."""
        if self._only_changed:
            self._only_changed = False
            self.refresh()
        head = self.body.heads.get(group)
        if head is not None and not head.isHidden():
            self._jump = group
            self.area.verticalScrollBar().setValue(head.y())
            self._follow_scroll()
            self._jump = ""

    def _follow_scroll(self) -> None:
        """Check the group whose rows stand at the top, or the one that was just chosen."""
        at = self.area.verticalScrollBar().value() + self.look.px(16)
        current = self._jump
        if not current:
            for name, head in self.body.heads.items():
                if not head.isHidden() and (not current or head.y() <= at):
                    current = name
        for name, button in self.side.items():
            button.setChecked(name == current and not self._only_changed)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        # In a language of long words the badges need the room of the word before them.
        badges = sum(button.width() + self.look.px(8) for button in self.filters.values())
        room = self.width() - self.look.px(SIDE + 2 * 24 + 180) - badges
        self._show.setVisible(room >= self._show.natural_width())

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        QTimer.singleShot(0, self, self._go_on)


class _SideBar(QWidget):
    """The groups, and what differs from the defaults."""

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.look = look
        self._shown: list[NavButton] = []
        self._rule = 0
        self.restyle()

    def restyle(self) -> None:
        self.setFixedWidth(self.look.px(SIDE))
        self._arrange()
        self.update()

    def show_buttons(self, buttons: list[NavButton], changed: NavButton) -> None:
        wanted = [*buttons, changed]
        if wanted != self._shown:
            self._shown = wanted
            for button in wanted:
                button.setParent(self)
                button.show()
            self._arrange()

    def _arrange(self) -> None:
        px, y = self.look.px, self.look.px(16)
        for index, button in enumerate(self._shown):
            if index == len(self._shown) - 1:
                self._rule = y + px(6)
                y += px(13)
            put(button, px(12), y, px(SIDE - 24), px(36))
            y += px(36)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        step = {Qt.Key.Key_Up: -1, Qt.Key.Key_Down: 1}.get(Qt.Key(event.key()))
        at = next((i for i, b in enumerate(self._shown) if b.hasFocus()), None)
        if step is None or at is None:
            super().keyPressEvent(event)
            return
        target = self._shown[min(max(at + step, 0), len(self._shown) - 1)]
        target.setFocus(Qt.FocusReason.OtherFocusReason)

    def paintEvent(self, event: QPaintEvent) -> None:
        look, px, painter = self.look, self.look.px, QPainter(self)
        painter.fillRect(self.rect(), look.colour("sunk"))
        edge = mirrored(self, QRectF(self.width() - 1, 0, 1, self.height()))
        painter.fillRect(edge, look.colour("line"))
        if self._shown:
            painter.fillRect(px(24), self._rule, self.width() - px(48), 1, look.colour("edge"))
