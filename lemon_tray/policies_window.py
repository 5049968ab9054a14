"""The policies: what each chooses from, whether it is in force, what was decided, and what would be."""

from __future__ import annotations

from PySide6.QtCore import QPointF, Qt, Signal
from PySide6.QtGui import QKeyEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QHBoxLayout, QVBoxLayout, QWidget

from lemon_tray.buttons import Button
from lemon_tray.cards import Card, Column
from lemon_tray.fields import Combo, Entry
from lemon_tray.labels import Run, Text
from lemon_tray.paint import draw_glyph
from lemon_tray.placing import flipped, put, tip_text
from lemon_tray.present_policies import (
    DecisionView,
    PolicyCard,
    decisions,
    present_policies,
)
from lemon_tray.switches import Switch
from lemon_tray.theme import Look, Role
from lemon_tray.view import Command, FeedRow, Kind
from lemon_tray.windows import AppWindow, Line, scroll_area
from lemon_tray.words import translate


class PolicyWidget(Card):
    """One policy."""

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(look, parent)
        self.card: PolicyCard | None = None
        self.title = Text(look, Role.NAME, parent=self)
        self.summary = Text(look, Role.SMALL, "ink2", wrap=True, parent=self)
        self.candidates = Text(look, Role.SMALL, wrap=True, parent=self)
        self.missing = Text(look, Role.SMALL, "warning.ink", wrap=True, parent=self)
        self.switch = Switch(look, self)
        self.switch.asked.connect(self._switched)

    def show_card(self, card: PolicyCard) -> None:
        if card == self.card:
            return
        self.card = card
        self.title.show_runs([Run(card.label)])
        self.summary.show_runs([Run(card.summary)])
        self.candidates.show_runs([Run(card.candidates)] if card.candidates else [])
        self.missing.show_runs([Run(card.unresolved)] if card.unresolved else [])
        self.switch.show_value(card.enabled)
        self.switch.setAccessibleName(card.switch_name)
        self.switch.setToolTip(tip_text(card.switch_name))
        for text in (self.title, self.candidates):
            text.set_colour("ink" if card.enabled else "ink2")
        self.resized.emit()

    def _switched(self, on: bool) -> None:
        if self.card is not None:
            self.asked.emit(Command(Kind.ENABLE_POLICY, self.card.name, on))

    def arrange(self, width: int) -> int:
        px, x, y = self.look.px, self.look.px(24), self.look.px(12)
        put(self.switch, width - x - self.switch.width(), y + px(2))
        room = width - 2 * x - self.switch.width() - px(16)
        y += self.title.place(x, y, room) + px(2)
        y += self.summary.place(x, y, room)
        if self.candidates.text():
            y += px(2)
            y += self.candidates.place(x, y, room)
        if self.missing.text():
            y += px(2)
            y += self.missing.place(x + px(20), y, room - px(20))
        return y + px(13)

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        if self.missing.text():
            px = self.look.px
            centre = QPointF(flipped(self, px(31)), self.missing.y() + px(8))
            draw_glyph(QPainter(self), "warning", centre, px(14), self.look.colour("warning.ink"))


class DecisionLine(Card):
    """One decision of the past."""

    def __init__(self, look: Look, row: FeedRow, parent: QWidget | None = None) -> None:
        super().__init__(look, parent)
        self.row = row
        self.time = Text(look, Role.SMALL, "ink2", parent=self)
        self.text = Text(
            look, Role.SMALL, "error.ink" if row.severity == "error" else "ink", wrap=True, parent=self
        )
        self.time.show_text(row.time)
        self.text.show_runs([Run(row.text)])

    def arrange(self, width: int) -> int:
        px = self.look.px
        self.time.place(px(24), px(4), px(44))
        return self.text.place(px(72), px(4), width - px(96)) + px(8)

    def paintEvent(self, event: QPaintEvent) -> None:
        """No rule between lines."""


class _Prompt(Entry):
    """Enter tries the prompt."""

    entered = Signal()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        super().keyPressEvent(event)
        if event.isAccepted() and event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self.entered.emit()


class TryBox(QWidget):
    """A prompt, a policy, and where that would send it. `wanted` carries both."""

    wanted = Signal(str, str)

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.look = look
        px = look.px
        self.heading = Text(look, Role.HEADING, "ink2")
        self.heading.show_text(translate("Policies", "Try a prompt"))
        self.policy = Combo(look)
        self.policy.setAccessibleName(translate("Policies", "Policy to try"))
        self.policy.setMinimumWidth(px(140))
        self.prompt = _Prompt(look)
        self.prompt.setPlaceholderText(translate("Policies", "A prompt, as an app would send it"))
        self.prompt.setAccessibleName(translate("Policies", "Prompt to try"))
        self.run = Button(look)
        self.run.show_as(translate("Policies", "Try"))
        self.result = Text(look, Role.BODY, wrap=True)
        self.steps = Text(look, Role.SMALL, "ink2", wrap=True)
        self.run.clicked.connect(self._run)
        self.prompt.entered.connect(self._run)
        box = QVBoxLayout(self)
        box.setContentsMargins(px(24), px(12), px(24), px(12))
        box.setSpacing(px(6))
        self.heading.setFixedHeight(px(20))
        box.addWidget(self.heading)
        row = QHBoxLayout()
        row.setSpacing(px(8))
        row.addWidget(self.policy)
        row.addWidget(self.prompt, 1)
        row.addWidget(self.run)
        box.addLayout(row)
        box.addWidget(self.result)
        box.addWidget(self.steps)
        self.result.hide()
        self.steps.hide()

    def offer(self, policies: list[str]) -> None:
        self.policy.offer(policies)
        for part in (self.policy, self.prompt, self.run):
            part.setEnabled(bool(policies))

    def _run(self) -> None:
        if self.policy.currentText():
            self.wanted.emit(self.policy.currentText(), self.prompt.text())

    def show_answer(self, answer: DecisionView | str) -> None:
        """Show a decision, or why there is none."""
        failed = isinstance(answer, str)
        self.result.set_colour("error.ink" if failed else "ink")
        title, steps = (answer, ()) if isinstance(answer, str) else (answer.title, answer.steps)
        self.result.show_runs([Run(title)])
        self.steps.show_runs([Run(" · ".join(steps))] if steps else [])
        self.result.show()
        self.steps.setVisible(bool(steps))
        for text in (self.result, self.steps):
            text.updateGeometry()


class PoliciesWindow(AppWindow):
    """All policies, tried and true."""

    try_wanted = Signal(str, str)

    def __init__(self, look: Look) -> None:
        super().__init__(look, translate("Policies", "Policies"), (760, 680), (560, 420))
        self.column = Column(look)
        self.widgets: dict[str, PolicyWidget] = {}
        self.past = Column(look)
        self._past_rows: tuple[FeedRow, ...] = ()
        self.nothing = Text(look, Role.BODY, "ink2", wrap=True)
        self.nothing.show_text(
            translate(
                "Policies",
                "No policies yet. A policy is a model to apps, and chooses which model answers each prompt. "
                "Register one from its file with `lemon-tray policy add FILE`, or with `POST /v1/pull`.",
            )
        )
        self.box = TryBox(look)
        self.box.wanted.connect(self.try_wanted)
        self.heading = Text(look, Role.HEADING, "ink2")
        self.heading.show_text(translate("Policies", "Last decisions"))
        self.none_yet = Text(look, Role.SMALL, "ink2")
        self.none_yet.show_text(translate("Policies", "None yet."))
        px = look.px
        whole = QVBoxLayout(self)
        whole.setContentsMargins(0, px(4), 0, px(8))
        whole.setSpacing(0)
        self._empty = QWidget()
        top = QVBoxLayout(self._empty)
        top.setContentsMargins(px(24), px(12), px(24), px(12))
        top.addWidget(self.nothing)
        whole.addWidget(self._empty)
        whole.addWidget(scroll_area(self.column), 3)
        self.rule = Line(look)
        whole.addWidget(self.rule)
        whole.addWidget(self.box)
        whole.addWidget(Line(look))
        head = QVBoxLayout()
        head.setContentsMargins(px(24), px(12), px(24), px(4))
        head.addWidget(self.heading)
        head.addWidget(self.none_yet)
        whole.addLayout(head)
        whole.addWidget(scroll_area(self.past), 2)
        self.dress()
        self.box.prompt.setFocus(Qt.FocusReason.OtherFocusReason)

    def refresh(self) -> None:
        if self.snapshot is None:
            return
        cards = present_policies(self.snapshot)
        self._empty.setVisible(not cards)
        shown: list[Card] = []
        for card in cards:
            widget = self.widgets.get(card.name)
            if widget is None:
                widget = self.widgets[card.name] = PolicyWidget(self.look)
                widget.asked.connect(self.asked)
            widget.show_card(card)
            shown.append(widget)
        self.widgets = {card.name: self.widgets[card.name] for card in cards}
        if shown != self.column.cards:
            self.column.show_cards(shown)
        self.box.offer([card.name for card in cards])
        past = decisions(self.snapshot)
        if past != self._past_rows:
            self._past_rows = past
            self.past.show_cards([DecisionLine(self.look, row) for row in past])
        self.none_yet.setVisible(not past)

    def show_answer(self, answer: DecisionView | str) -> None:
        """What trying a prompt came to."""
        self.box.show_answer(answer)
