"""One setting in the settings window: name, badge, help, key, its editor, and the way back to the default."""

from __future__ import annotations

from typing import Any

from PySide6.QtCore import QPointF, QRectF, Signal
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import QWidget

from lemon_tray.badges import Badge
from lemon_tray.buttons import IconButton
from lemon_tray.edits import Edits
from lemon_tray.fields import ChoiceEditor, Editor, FoldersEditor, SizeEditor, SwitchEditor, TextEditor
from lemon_tray.labels import Run, Text
from lemon_tray.paint import draw_glyph
from lemon_tray.placing import flipped, mirrored, put, tip_text
from lemon_tray.present_settings import (
    LOGIN,
    SettingView,
    marked,
    read_value,
    size_parts,
    value_text,
)
from lemon_tray.theme import Look, Role
from lemon_tray.view import Command, Kind
from lemon_tray.words import translate
from router.settings.schema import SettingInfo
from router.units import GIB, MIB, NBSP

MARGIN = 40
RIGHT = 76
LEAST_ROOM = 180  # with less beside its texts, an editor stands below them


def make_editor(look: Look, info: SettingInfo, parent: QWidget) -> Editor:
    """The editor that suits a setting's type."""

    def read(text: str) -> Any:
        return read_value(info, text)

    def write(value: Any) -> str:
        return value_text(info, value).replace(NBSP, " ") if value in info.special else str(value)

    match info.type:
        case "bool":
            return SwitchEditor(look, parent)
        case "choice":
            words = [(c, translate("Schema", c).capitalize()) for c in info.choices]
            return ChoiceEditor(look, words, parent)
        case "size":
            return SizeEditor(look, read, size_parts, {"MiB": MIB, "GiB": GIB}, parent)
        case "list" if info.items == "folder":
            return FoldersEditor(look, parent)
        case "list":
            return TextEditor(look, read, ", ".join, width=276, parent=parent)
        case "str":
            return TextEditor(
                look,
                read,
                str,
                width=220,
                offers=("auto", "embedded") if info.key == "engine" else (),
                parent=parent,
            )
    words_ = [translate("Schema", text) for text in info.special.values()]
    long = max((len(word) for word in words_), default=0)
    width = 112 if not words_ else 152 if long < 16 else 276
    return TextEditor(look, read, write, width=width, offers=words_, right=not words_, parent=parent)


class SettingRow(QWidget):
    """A row. `asked` carries commands; `resized` tells that it needs another height."""

    asked = Signal(object)
    resized = Signal()

    def __init__(self, look: Look, view: SettingView, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.look = look
        self.view = view
        self._query = ""
        self._typed_against: Any = None
        self.title = Text(look, Role.NAME, parent=self)
        self.badge = Badge(look, view.kind, self)
        self.help = Text(look, Role.SMALL, "ink2", wrap=True, parent=self)
        self.key_line = Text(look, Role.SMALL, "ink2", wrap=True, parent=self)
        self.origin = Text(look, Role.SMALL, wrap=True, parent=self)
        self.error = Text(look, Role.SMALL, "error.ink", wrap=True, parent=self)
        self.editor = make_editor(look, view.info, self)
        self.reset = IconButton(look, "undo", self)
        self.editor.asked.connect(self._ask)
        self.editor.failed.connect(self.show_error)
        self.editor.settled.connect(lambda: self.show_error(""))
        self.reset.clicked.connect(lambda: self._ask(self._default()))
        if isinstance(self.editor, FoldersEditor):
            self.editor.browse.connect(lambda: self.asked.emit(Command(Kind.ADD_FOLDER, view.key)))
        self.error.hide()
        self._refused = ""

    def _default(self) -> Any:
        default = self.view.info.default
        return list(default) if isinstance(default, tuple) else default

    def _ask(self, value: Any) -> None:
        self.show_error("")
        if self.view.key == LOGIN:
            self.asked.emit(Command(Kind.START_AT_LOGIN, value=bool(value)))
        else:
            self.asked.emit(Command(Kind.SET, self.view.key, value))

    def show_view(self, view: SettingView, edits: Edits, query: str = "") -> None:
        """Show the value in force, or the one that has been asked for; never over what is being typed."""
        before, self.view = self.view, view
        shown = edits.shown(view.key, view.value)
        if self.editor.is_dirty and view.value != before.value:
            now = translate("Settings", "It is {value} now, set elsewhere. Esc takes that over.")
            self.show_error(now.format(value=view.value_text), colour="warning.ink")
        self.editor.show_value(tuple(shown) if isinstance(shown, list) else shown)
        refusal = edits.refusal(view.key)
        if refusal and refusal != self._refused:
            self.show_error(refusal)
        self._refused = refusal
        if view != before or query != self._query or not self.title.text():
            self._query = query
            self._show_texts()
        self.editor.setEnabled(not view.overridden)
        self.reset.setVisible(view.changed and not view.overridden)

    def _show_texts(self) -> None:
        view, query = self.view, self._query
        self.title.show_runs([Run(t, marked=m) for t, m in marked(view.title, query)])
        self.help.show_runs([Run(t, marked=m) for t, m in marked(view.help, query)])
        runs = []
        if view.key != LOGIN:
            runs = [Run(t, Role.KEY, "ink", marked=m) for t, m in marked(view.key, query)]
        if view.meaning:
            runs.append(Run(f" · {view.meaning}"))
        if view.changed:
            text = translate("Settings", "changed, default is {value}").format(value=view.default_text)
            runs.append(Run(f" · {text}"))
        self.key_line.show_runs(runs)
        self.origin.setVisible(bool(view.overridden))
        if view.overridden:
            text = translate("Settings", "Set by {origin}").format(origin=f"`{view.overridden}`")
            self.origin.show_text(text)
        said = translate("Settings", "Reset {name} to {value}").format(
            name=view.title, value=view.default_text
        )
        self.reset.setAccessibleName(said)
        self.reset.setToolTip(tip_text(said))
        self.editor.say(view.title, f"{view.help} {self.key_line.text()}")
        self.resized.emit()
        self.update()

    def show_error(self, text: str, colour: str = "error.ink") -> None:
        """Say why a value was not taken; "" for nothing to say."""
        if text == self.error.text() and bool(text) is not self.error.isHidden():
            return
        self.error.set_colour(colour)
        self.error.show_runs([Run(text)] if text else [])
        self.error.setVisible(bool(text))
        self.editor.setProperty("error", bool(text))
        self.resized.emit()

    def arrange(self, width: int) -> int:
        """Place the parts for this width; returns the height."""
        px, x, y = self.look.px, self.look.px(MARGIN), self.look.px(12)
        folders = self.editor if isinstance(self.editor, FoldersEditor) else None
        right = width - px(RIGHT)
        control = 0 if folders else self.editor.sizeHint().width()
        least = max(px(LEAST_ROOM), self.title.natural_width() + 1 + px(8) + self.badge.width())
        below = folders is not None or right - control - px(24) - x < least
        room = right - x - (0 if below else control + px(24))
        title = min(self.title.natural_width() + 1, room - self.badge.width() - px(8))
        self.title.place(x, y, title)
        put(self.badge, x + title + px(8), y)
        put(self.reset, right + px(8), y)
        if not below:
            put(self.editor, right - control, y, control, max(px(32), self.editor.sizeHint().height()))
        y += px(22)
        y += self.help.place(x, y, room)
        if self.key_line.text():
            y += px(2)
            y += self.key_line.place(x, y, room)
        if below:
            y += px(6)
            if folders is not None:
                folders.height_for(right - x)
                put(folders, x, y)
            else:
                put(self.editor, x, y, control, max(px(32), self.editor.sizeHint().height()))
            y += self.editor.height()
        if not self.origin.isHidden():
            y += px(2)
            y += self.origin.place(x + px(20), y, room - px(20))
        if not self.error.isHidden():
            y += px(2)
            y += self.error.place(x, y, right - x)
        return max(y, px(48)) + px(13)

    def paintEvent(self, event: QPaintEvent) -> None:
        look, px, painter = self.look, self.look.px, QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        x = px(MARGIN)
        line = QRectF(x, self.height() - 1, self.width() - 2 * x + px(12), 1)
        painter.fillRect(mirrored(self, line), look.colour("line"))
        if self.view.changed:
            sign = mirrored(self, QRectF(x - px(12), px(14), px(3), px(18)))
            painter.fillRect(sign, look.colour("accedge"))
        if not self.origin.isHidden():
            centre = QPointF(flipped(self, x + px(7)), self.origin.y() + px(8))
            draw_glyph(painter, "lock", centre, px(14), look.colour("ink"))
