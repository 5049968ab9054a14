"""The panel's residents, a row each."""

from __future__ import annotations

from msgspec import structs
from PySide6.QtCore import QPointF, Qt, Signal
from PySide6.QtGui import QKeyEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QWidget

from lemon_tray.buttons import Button, IconButton, WordButton
from lemon_tray.labels import Run, Text
from lemon_tray.legend import Swatch
from lemon_tray.load_bar import LoadBar
from lemon_tray.paint import draw_glyph
from lemon_tray.placing import flipped, put, tip_text
from lemon_tray.section import Section
from lemon_tray.theme import CONTENT, Look, Role, segment_style
from lemon_tray.view import Command, Kind, ModelRow
from lemon_tray.words import translate


def _steady(row: ModelRow) -> ModelRow:
    """The row without its numbers."""
    there = "there" if row.size else ""
    return structs.replace(row, state="", size=there, size_of="", rate="", progress=None)


class RowWidget(QWidget):
    """A resident: name over state, numbers, and what can be done with it."""

    asked = Signal(object)

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.look = look
        self.row: ModelRow | None = None
        self.swatch = Swatch(look, self)
        self.name = Text(look, Role.NAME, parent=self)
        self.state = Text(look, Role.SMALL, "ink2", parent=self)
        self.failure = Text(look, Role.SMALL, "error.ink", wrap=True, parent=self)
        self.size_text = Text(look, Role.BODY, align=Qt.AlignmentFlag.AlignRight, parent=self)
        self.rate = Text(look, Role.SMALL, "ink2", align=Qt.AlignmentFlag.AlignRight, parent=self)
        self.pin = IconButton(look, "pin", self)
        self.pin.setCheckable(True)
        self.eject = IconButton(look, "eject", self)
        self.cancel = Button(look, Role.SMALL, self)
        self.log = Button(look, Role.SMALL, self)
        self.log.show_as(translate("Models", "Log"), accessible=translate("Models", "Open the log"))
        self.log.clicked.connect(lambda: self.asked.emit(Command(Kind.OPEN_WINDOW, "log")))
        self.load = LoadBar(look, self)
        self.pin.clicked.connect(self._pin)
        self.eject.clicked.connect(self._unload)
        self.cancel.clicked.connect(self._unload)

    def show_row(self, row: ModelRow) -> None:
        before = self.row
        if row == before:
            return
        self.row = row
        self._show_numbers(row)
        if before is None or _steady(row) != _steady(before):
            self._show_rest(row)
        self.arrange()

    def _show_numbers(self, row: ModelRow) -> None:
        """What changes many times a second while a model loads or answers."""
        self.state.show_runs([Run(row.state)])
        self.failure.show_runs([Run(row.state)])
        self.size_text.show_runs([Run(row.size), *([Run(row.size_of, None, "ink2")] if row.size_of else [])])
        self.rate.show_text(row.rate)
        if row.progress is not None:
            self.load.setAccessibleDescription(row.rate)
            self.load.show_progress(row.progress, segment_style(self.look.tokens, row.number)[0])

    def _show_rest(self, row: ModelRow) -> None:
        self.swatch.show_model(row.number, row.loading)
        self.name.show_runs([Run(row.label)])
        self.state.set_colour("error.ink" if row.is_error else "ink2")
        self.state.setVisible(not row.failed)
        self.failure.setVisible(row.failed)
        self.pin.setChecked(row.pinned)
        self.pin.setAccessibleName(row.pin_name)
        self.pin.setToolTip(tip_text(row.pin_name))
        self.eject.setAccessibleName(row.unload_name)
        self.eject.setToolTip(tip_text(row.unload_name))
        self.eject.setEnabled(row.can_unload)
        label = translate("Models", "Retry") if row.failed else translate("Models", "Cancel")
        self.cancel.show_as(label, accessible=row.unload_name)
        one_button = row.loading or row.failed
        self.pin.setVisible(not one_button)
        self.eject.setVisible(not one_button)
        self.cancel.setVisible(one_button)
        self.log.setVisible(row.failed)
        self.load.setVisible(row.loading)
        self.swatch.setVisible(not row.failed)
        self.size_text.setVisible(bool(row.size))
        self.load.setAccessibleName(row.load_name)

    def restyle(self) -> None:
        if self.row is not None and self.row.progress is not None:
            self.load.show_progress(self.row.progress, segment_style(self.look.tokens, self.row.number)[0])
        self.arrange()

    def arrange(self) -> None:
        row, px = self.row, self.look.px
        if row is None:
            return
        width = px(CONTENT)
        if self.width() != width:
            self.setFixedWidth(width)  # parts are placed from either edge
        actions = px(64) if self.cancel.isHidden() else max(px(64), self.cancel.natural_width())
        logs = 0 if self.log.isHidden() else max(px(52), self.log.natural_width()) + px(8)
        edge = width - actions - logs - px(8)
        put(self.swatch, 0, px(10))
        numbers = max(self.size_text.natural_width(), self.rate.natural_width()) + 1
        self.size_text.place(edge - numbers, px(6) if row.rate else px(14), numbers)
        self.rate.place(edge - numbers, px(26), numbers)
        self.rate.setVisible(bool(row.rate))
        left = px(20)
        room = edge - numbers - px(8) - left
        self.name.place(left, px(6), room)
        self.state.place(left, px(26), room if row.rate else edge - left - (numbers + px(8)))
        reason = self.failure.place(left, px(26), edge - left) if row.failed else 0
        put(self.pin, width - px(64), px(10))
        put(self.eject, width - px(28), px(10))
        put(self.cancel, width - actions, px(10), actions, px(28))
        put(self.log, width - actions - logs, px(10), max(0, logs - px(8)), px(28))
        put(self.load, left, px(48), width - left, px(8))
        self.setFixedSize(width, px(64) if row.loading else max(px(48), px(32) + reason))

    def column(self, index: int) -> Button:
        """The button in this column; a loading row has one for both."""
        if not self.cancel.isHidden():
            return self.cancel
        return self.pin if index == 0 else self.eject

    def _pin(self) -> None:
        if self.row is not None:
            wanted = not self.row.pinned
            self.pin.setChecked(self.row.pinned)  # the snapshot says what is
            self.asked.emit(Command(Kind.PIN, self.row.model, wanted))

    def _unload(self) -> None:
        if self.row is not None:
            kind = Kind.LOAD if self.row.failed else Kind.UNLOAD
            self.asked.emit(Command(kind, self.row.model))

    def paintEvent(self, event: QPaintEvent) -> None:
        if self.row is not None and self.row.failed:
            px = self.look.px
            centre = QPointF(flipped(self, px(6)), px(16))
            draw_glyph(QPainter(self), "error", centre, px(14), self.look.colour("error.ink"))


class ModelsSection(Section):
    """The residents."""

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(look, parent)
        self.heading = Text(look, Role.HEADING, "ink2", parent=self)
        self.heading.show_text(translate("Models", "Models"))
        self.pause = WordButton(look, Role.SMALL, self)
        self.pause.setCheckable(True)
        self.pause.show_as(translate("Models", "Pause"), accessible=translate("Models", "Pause loading"))
        self.pause.setToolTip(translate("Models", "Load nothing that is not asked for here"))
        self.pause.clicked.connect(self._pause)
        self.free_all = WordButton(look, Role.SMALL, self)
        self.free_all.show_as(translate("Models", "Free all VRAM"))
        self.free_all.setAccessibleName(translate("Models", "Free all VRAM now"))
        self.free_all.setToolTip(translate("Models", "Unload all models now"))
        self.free_all.clicked.connect(lambda: self.ask(Kind.FREE_ALL))
        self._paused = False
        self.note = Text(look, Role.SMALL, "ink2", wrap=True, parent=self)
        self.rows: dict[str, RowWidget] = {}

    def _pause(self) -> None:
        self.pause.setChecked(self._paused)  # the snapshot says what is
        self.ask(Kind.PAUSE, value=not self._paused)

    def show_rows(self, rows: tuple[ModelRow, ...], note: str, *, paused: bool) -> None:
        self._paused = paused
        self.pause.setChecked(paused)
        self.free_all.setEnabled(any(not row.failed for row in rows))
        names = [row.model for row in rows]
        for model in [m for m in self.rows if m not in names]:
            gone = self.rows.pop(model)
            gone.hide()
            gone.deleteLater()
        for row in rows:
            widget = self.rows.get(row.model)
            if widget is None:
                widget = self.rows[row.model] = RowWidget(self.look, self)
                widget.asked.connect(self.asked)
            widget.show_row(row)
            widget.show()
        self.rows = {model: self.rows[model] for model in names}
        self.note.show_text(note)
        self.note.setVisible(bool(note))
        self.arrange()

    def arrange(self) -> None:
        px, x = self.look.px, self.inset
        y = 1 + px(12)
        right = x + self.content + px(6)  # the words end at the edge of the content
        for button in (self.free_all, self.pause):
            width = button.natural_width()
            right -= width
            put(button, right, y, width, px(20))
            right -= px(4)
        self.heading.place(x, y, max(0, right - x - px(8)))
        y += px(20)
        for row in self.rows.values():
            put(row, x, y)
            y += row.height()
        if not self.note.isHidden():
            y += px(4)
            y += self.note.place(x, y, self.content) + px(8)
        self.set_height(y + px(4))

    def keyPressEvent(self, event: QKeyEvent) -> None:
        step = {Qt.Key.Key_Up: -1, Qt.Key.Key_Down: 1}.get(Qt.Key(event.key()))
        rows = list(self.rows.values())
        focus = self.focusWidget()
        at = next((i for i, row in enumerate(rows) if focus in (row.pin, row.eject, row.cancel)), None)
        if step is None or at is None:
            event.ignore()
            return
        column = 0 if focus is rows[at].pin else 1
        rows[min(max(at + step, 0), len(rows) - 1)].column(column).setFocus(Qt.FocusReason.OtherFocusReason)
