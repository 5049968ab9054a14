"""The engines: which one runs the models, which others are here, and which can be had."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtCore import QPointF, Qt, Signal
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QVBoxLayout, QWidget

from lemon_tray.buttons import Button
from lemon_tray.cards import Card, Column
from lemon_tray.labels import Run, Text
from lemon_tray.load_bar import LoadBar
from lemon_tray.paint import draw_glyph
from lemon_tray.placing import flipped, put
from lemon_tray.present_engines import EngineRow, present_engines
from lemon_tray.theme import Look, Role
from lemon_tray.view import Command, Kind
from lemon_tray.windows import AppWindow, Line, row_of_window, scroll_area
from lemon_tray.words import translate


class EngineCard(Card):
    """One engine."""

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(look, parent)
        self.row: EngineRow | None = None
        self.title = Text(look, Role.NAME, parent=self)
        self.state = Text(look, Role.SMALL, "ink2", parent=self)
        self.detail = Text(look, Role.SMALL, "ink2", wrap=True, parent=self)
        self.problem = Text(look, Role.SMALL, "error.ink", wrap=True, parent=self)
        self.bar = LoadBar(look, self)
        self.done = Text(look, Role.SMALL, "ink2", align=Qt.AlignmentFlag.AlignRight, parent=self)
        self.buttons: list[Button] = []

    def show_row(self, row: EngineRow) -> None:
        if row == self.row:
            return
        self.row = row
        self.title.show_runs([Run(row.title)])
        self.state.set_colour("error.ink" if row.problem else "good.ink" if row.in_use else "ink2")
        self.state.show_text(row.state)
        self.detail.show_runs([Run(row.detail)] if row.detail else [])
        self.problem.show_runs([Run(row.problem)] if row.problem else [])
        while len(self.buttons) < len(row.options):
            button = Button(self.look, parent=self)
            button.clicked.connect(self._clicker(len(self.buttons)))
            self.buttons.append(button)
        for button, option in zip(self.buttons, row.options, strict=False):
            button.show_as(option.label, primary=option.primary, accessible=option.accessible)
            button.show()
        for button in self.buttons[len(row.options) :]:
            button.hide()
        for part in (self.bar, self.done):
            part.setVisible(row.progress is not None)
        if row.progress is not None:
            self.bar.show_progress(row.progress.fraction, "ink2")
            self.bar.setAccessibleName(row.title)
            self.bar.setAccessibleDescription(row.progress.text)
            self.done.show_text(row.progress.text)
        self.setAccessibleName(f"{row.title}, {row.state}")
        self.resized.emit()

    def _clicker(self, at: int) -> Callable[[], None]:
        def clicked() -> None:
            if self.row is not None and at < len(self.row.options):
                self.asked.emit(self.row.options[at].command)

        return clicked

    def arrange(self, width: int) -> int:
        px, y = self.look.px, self.look.px(14)
        left = px(48)
        right = width - px(24)
        for button in reversed([b for b in self.buttons if not b.isHidden()]):
            wide = max(px(80), button.natural_width())
            right -= wide
            put(button, right, y, wide, px(32))
            right -= px(8)
        room = right - px(8) - left
        state = min(self.state.natural_width() + 1, room // 2)
        title = min(self.title.natural_width() + 1, room - state - px(10))
        self.title.place(left, y, title)
        self.state.place(left + title + px(10), y + px(2), state)
        y += px(22)
        if self.detail.text():
            y += self.detail.place(left, y, room)
        if self.problem.text():
            y += px(2) + self.problem.place(left, y + px(2), room)
        if not self.bar.isHidden():
            y += px(6)
            beside = self.done.natural_width() + 1
            put(self.bar, left, y + px(4), room - beside - px(8), px(8))
            self.done.place(left + room - beside, y, beside)
            y += px(16)
        return max(y, px(48)) + px(14)

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        row = self.row
        if row is None:
            return
        glyph, colour = ("check", "good.ink") if row.in_use else ("cube", "ink2")
        if row.problem:
            glyph, colour = "error", "error.ink"
        elif any(o.command.kind in (Kind.GET_ENGINE, Kind.PULL, Kind.CANCEL_DOWNLOAD) for o in row.options):
            glyph, colour = "download", "ink2"
        px = self.look.px
        centre = QPointF(flipped(self, px(32)), px(24))
        draw_glyph(QPainter(self), glyph, centre, px(16), self.look.colour(colour))


class EngineColumn(Column):
    """A card for each row. `asked` carries commands."""

    asked = Signal(object)

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(look, parent)
        self.by_id: dict[str, EngineCard] = {}

    def show_rows(self, rows: Sequence[EngineRow]) -> None:
        """Show these in this order; a card stays with the row of its id."""
        shown: dict[str, EngineCard] = {}
        for row in rows:
            card = self.by_id.get(row.id)
            if card is None:
                card = EngineCard(self.look)
                card.asked.connect(self.asked)
            card.show_row(row)
            shown[row.id] = card
        self.by_id = shown
        cards: list[Card] = list(shown.values())
        if cards != self.cards:
            self.show_cards(cards)


class EnginesWindow(AppWindow):
    """Lists the engines. Nothing is asked of the network before the user does."""

    def __init__(self, look: Look) -> None:
        super().__init__(look, translate("Engine", "Engines"), (760, 480), (560, 320))
        self.column = EngineColumn(look)
        self.column.asked.connect(self.asked)
        self.note = Text(look, Role.SMALL, "ink2", wrap=True)
        self.note.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self.note.show_text(
            translate(
                "Engine",
                "Models load with the engine in use. GPU builds are official llama.cpp releases; "
                "looking for them asks github.com.",
            )
        )
        self.look_up = Button(look)
        self.look_up.show_as(translate("Engine", "Look for GPU builds"), glyph="search")
        self.look_up.clicked.connect(lambda: self.ask(Command(Kind.REFRESH_ENGINES)))
        whole = QVBoxLayout(self)
        whole.setContentsMargins(0, look.px(8), 0, 0)
        whole.setSpacing(0)
        whole.addWidget(scroll_area(self.column), 1)
        whole.addWidget(Line(look))
        bottom = row_of_window(look, 16)
        bottom.addWidget(self.note, 1)
        bottom.addWidget(self.look_up)
        whole.addLayout(bottom)
        self.dress()

    def refresh(self) -> None:
        if self.snapshot is None:
            return
        self.column.show_rows(present_engines(self.snapshot))
