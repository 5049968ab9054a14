"""The model browser: every model, whether it fits, and loading one with options of one's own."""

from __future__ import annotations

import itertools
from typing import Final

from PySide6.QtCore import QPointF, QRectF, Qt, QTimer, Signal
from PySide6.QtGui import QKeyEvent, QPainter, QPaintEvent, QPen, QResizeEvent
from PySide6.QtWidgets import QVBoxLayout, QWidget

from lemon_tray.buttons import Button
from lemon_tray.deletion_prompt import DeletionPrompt
from lemon_tray.fields import Segmented
from lemon_tray.labels import Run, Text
from lemon_tray.load_form import LoadForm
from lemon_tray.models_table import VERDICTS, CatalogTable, legend_colours
from lemon_tray.paint import draw_glyph, hatch_fill, rounded
from lemon_tray.placing import flipped, mirrored, put, tip_text, worded
from lemon_tray.present_catalog import (
    CatalogRow,
    Fact,
    PlanView,
    Verdict,
    facts,
    present_catalog,
    present_deletion,
    shown_rows,
    type_text,
    types_of,
)
from lemon_tray.search import SearchWindow
from lemon_tray.theme import Look, Role
from lemon_tray.view import Command, Kind
from lemon_tray.windows import Line, row_of_window
from lemon_tray.words import translate
from router.snapshot import DeletionView, Snapshot

PLAN_AFTER_MS: Final = 300
LEAST_WIDTH: Final = 640


class Details(QWidget):
    """The chosen model: what is known of it, and what can be done with it."""

    asked = Signal(object)
    plan_wanted = Signal(str, object)

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.look = look
        self.row: CatalogRow | None = None
        self._facts: tuple[Fact, ...] = ()
        self._plan: PlanView | None = None
        self.name = Text(look, Role.TITLE, parent=self)
        self.fact_text = Text(look, Role.SMALL, "ink2", wrap=True, parent=self)
        self.plan_text = Text(look, Role.SMALL, wrap=True, parent=self)
        self.form = LoadForm(look, self)
        self.load = Button(look, parent=self)
        self.pin = Button(look, parent=self)
        self.copy = Button(look, parent=self)
        self.copy.show_as(translate("Catalog", "Copy name"))
        self.delete = Button(look, parent=self)
        self.delete.show_as(translate("Catalog", "Delete…"))
        self.prompt = DeletionPrompt(look, self)
        self.prompt.hide()
        self.prompt.sure.clicked.connect(self._delete)
        self.prompt.keep.clicked.connect(self.keep_files)
        self.delete.clicked.connect(self.ask_deletion)
        self.load.clicked.connect(self._load)
        self.pin.clicked.connect(self._pin)
        self.copy.clicked.connect(self._copy)
        self._ask_plan = QTimer(self)
        self._ask_plan.setSingleShot(True)
        self._ask_plan.setInterval(PLAN_AFTER_MS)
        self._ask_plan.timeout.connect(self._want_plan)
        self.form.changed.connect(self._form_changed)

    def show_model(self, row: CatalogRow | None, found: tuple[Fact, ...], snapshot: Snapshot) -> None:
        """Show a model; the form is emptied when it is another one than before."""
        before = self.row.model if self.row is not None else ""
        self.setVisible(row is not None)
        if (row, found) == (self.row, self._facts):
            return
        self.row, self._facts = row, found
        if row is None:
            return
        self.form.show_devices(snapshot)
        if row.model != before:
            self.form.clear()
            self.show_plan("", None)
            self._show_prompt(False)
            if not row.loaded and row.action is not None:
                self._ask_plan.start()
        self.name.show_runs([Run(row.label)])
        words = [f"{fact.label}: {fact.text}" for fact in found] or [row.about]
        self.fact_text.show_runs([Run("   ".join(words))])
        self._show_buttons()
        self.arrange()

    def _show_buttons(self) -> None:
        row = self.row
        if row is None:
            return
        options = bool(self.form.options())
        label = translate("Catalog", "Load")
        if options:
            label = translate("Catalog", "Load with these")
            if row.loaded:
                label = translate("Catalog", "Load anew with these")
        self.load.show_as(label, primary=True)
        self.load.setEnabled((not row.loaded and row.action is not None) or (row.loaded and options))
        pin = translate("Catalog", "Unpin") if row.pinned else translate("Catalog", "Pin")
        self.pin.show_as(pin)
        self.pin.setEnabled(row.action is not None)
        self.delete.setEnabled(not row.keeps)
        self.delete.setToolTip(tip_text(row.keeps))
        self.delete.setAccessibleDescription(row.keeps)

    def show_plan(self, model: str, plan: PlanView | None) -> None:
        """Show what a plan said of `model`, if that is still the chosen one."""
        if model and (self.row is None or model != self.row.model):
            return
        self._plan = plan
        self.plan_text.show_runs([Run(plan.text)] if plan is not None else [])
        self.arrange()
        self.update()

    def _form_changed(self) -> None:
        self._show_buttons()
        self.arrange()
        self._ask_plan.start()

    def _want_plan(self) -> None:
        if self.row is not None and self.isVisible():
            options = self.form.options()
            options.pop("save_options", None)
            self.plan_wanted.emit(self.row.model, options)

    def _load(self) -> None:
        if self.row is not None:
            self.asked.emit(Command(Kind.LOAD, self.row.model, self.form.options()))

    def _pin(self) -> None:
        if self.row is not None:
            self.asked.emit(Command(Kind.PIN, self.row.model, not self.row.pinned))

    def _copy(self) -> None:
        if self.row is not None:
            self.asked.emit(Command(Kind.COPY, "text", self.row.model))

    # Deleting: first what would go is asked for, then the user, then it is done.

    def ask_deletion(self) -> None:
        """Ask what deleting the model would take away, if it can be deleted."""
        if self.row is not None and self.delete.isEnabled() and self.prompt.isHidden():
            self.asked.emit(Command(Kind.PLAN_DELETION, self.row.model))

    def show_deletion(self, model: str, answer: DeletionView | str | None) -> None:
        """Ask the user for the deletion of `model`, or say why it is not deleted; None: it is."""
        if self.row is None or model != self.row.model:
            return
        if answer is not None:
            self.prompt.show_deletion(present_deletion(model, answer))
        self._show_prompt(answer is not None)

    def keep_files(self) -> None:
        """Put the question away, and delete nothing."""
        self._show_prompt(False)
        self.delete.setFocus(Qt.FocusReason.OtherFocusReason)

    def _delete(self) -> None:
        if self.row is not None:
            self.prompt.show_busy()
            self.asked.emit(Command(Kind.DELETE, self.row.model))

    def _show_prompt(self, shown: bool) -> None:
        self.prompt.setVisible(shown)
        for part in (self.load, self.pin, self.copy, self.delete, self.name, self.fact_text, self.form):
            part.setVisible(not shown)
        self.plan_text.setVisible(not shown)
        if shown:
            self.prompt.keep.setFocus(Qt.FocusReason.OtherFocusReason)
        self.arrange()
        self.update()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape and not self.prompt.isHidden():
            self.keep_files()
        else:
            super().keyPressEvent(event)

    def restyle(self) -> None:
        self.arrange()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.arrange()

    def arrange(self) -> None:
        if not self.prompt.isHidden():
            self.setFixedHeight(self.prompt.place(self.width()))
            return
        px, x, y = self.look.px, self.look.px(24), self.look.px(12)
        right = self.width() - x
        for button in (self.load, self.pin, self.copy, self.delete):
            width = button.natural_width()
            right -= width
            put(button, right, y, width, px(32))
            right -= px(8)
        self.name.place(x, y + px(4), max(px(120), min(self.name.natural_width() + 1, right - x)))
        y += px(36)
        room = self.width() - 2 * x
        y += self.fact_text.place(x, y, room) + px(10)
        y += self.form.place(x, y, room) + px(6)
        height = self.plan_text.place(x + px(24), y, room - px(24))
        y += max(height, px(32))
        self.setFixedHeight(y + px(8))

    def paintEvent(self, event: QPaintEvent) -> None:
        look, painter = self.look, QPainter(self)
        if self.prompt.isHidden() and self._plan is not None and self._plan.verdict is not Verdict.UNKNOWN:
            glyph, colour = VERDICTS[self._plan.verdict]
            centre = QPointF(flipped(self, look.px(34)), self.plan_text.y() + look.px(8))
            draw_glyph(painter, glyph, centre, look.px(16), look.colour(colour))


class FitLegend(QWidget):
    """What the colours of the bars mean."""

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.look = look
        self.restyle()

    def restyle(self) -> None:
        self.setFixedHeight(self.look.px(32))
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        look, px, painter = self.look, self.look.px, QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setFont(look.font(Role.SMALL))
        metrics, x = look.metrics(Role.SMALL), px(24)
        side, top = px(12), (self.height() - px(12)) / 2
        entries = [*legend_colours(look), (translate("Catalog", "Short"), None)]
        for text, colour in entries:
            area = mirrored(self, QRectF(x, top, side, side))
            if colour is None:
                painter.save()
                painter.setClipPath(rounded(area, px(2)))
                hatch_fill(painter, look, area, "error.ink")
                painter.restore()
            else:
                painter.fillPath(rounded(area, px(2)), colour)
            x += px(20)
            self._say(painter, x, text)
            x += metrics.horizontalAdvance(text) + px(20)
        tick = mirrored(self, QRectF(x + px(4), top - 1, 2, side + 2))
        painter.fillRect(tick, look.colour("ink"))
        self._say(painter, x + px(14), translate("Catalog", "Margin"))
        painter.setPen(QPen(look.colour("ink2")))
        note = translate("Catalog", "Nothing is loaded by looking.")
        flags = int(Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignRight)
        painter.drawText(QRectF(self.rect()).adjusted(px(24), 0, -px(24), 0), flags, worded(self, note))

    def _say(self, painter: QPainter, x: float, text: str) -> None:
        painter.setPen(self.look.colour("ink"))
        area = mirrored(self, QRectF(x, 0, self.width(), self.height()))
        painter.drawText(area, int(Qt.AlignmentFlag.AlignVCenter), worded(self, text))


class ModelsWindow(SearchWindow):
    """All models of the catalog. `plan_wanted` carries a model and options whose plan is to be shown."""

    plan_wanted = Signal(str, object)

    def __init__(self, look: Look) -> None:
        super().__init__(
            look,
            translate("Catalog", "Models"),
            (1060, 760),
            (LEAST_WIDTH, 420),
            translate("Catalog", "Search models"),
        )
        self._kind = ""
        self._rows: tuple[CatalogRow, ...] = ()
        self.search.textChanged.connect(lambda _text: self._filter())
        self.types: Segmented | None = None
        self._type_words: list[tuple[str, str]] = []
        self.add_folder = Button(look)
        self.add_folder.show_as(translate("Catalog", "Add a folder…"), glyph="folder")
        self.add_folder.clicked.connect(lambda: self.ask(Command(Kind.ADD_FOLDER)))
        self.get_models = Button(look)
        self.get_models.show_as(translate("Catalog", "Get models…"), glyph="download")
        self.get_models.clicked.connect(lambda: self.ask(Command(Kind.OPEN_WINDOW, "get")))
        self.table = CatalogTable(look)
        self.table.act.connect(self.ask)
        self.table.chosen.connect(lambda _model: self._show_details())
        self.nothing = Text(look, Role.BODY, "ink2", align=Qt.AlignmentFlag.AlignHCenter)
        self.nothing.setFixedHeight(look.px(48))
        self.details = Details(look)
        self.details.asked.connect(self.ask)
        self.table.delete_wanted.connect(self.details.ask_deletion)
        self.details.plan_wanted.connect(self.plan_wanted)
        self._top = row_of_window(look, 12)
        self._lay_out()
        self.dress()

    def _lay_out(self) -> None:
        whole = QVBoxLayout(self)
        whole.setContentsMargins(0, 0, 0, 0)
        whole.setSpacing(0)
        self.search.setMinimumWidth(self.look.px(120))
        self._top.addWidget(self.search, 1)
        self._top.addStretch(1)
        self._top.addWidget(self.get_models)
        self._top.addWidget(self.add_folder)
        whole.addLayout(self._top)
        whole.addWidget(Line(self.look))
        whole.addWidget(self.nothing)
        whole.addWidget(self.table, 1)
        whole.addWidget(Line(self.look))
        whole.addWidget(self.details)
        whole.addWidget(Line(self.look))
        whole.addWidget(FitLegend(self.look))

    def refresh(self) -> None:
        if self.snapshot is None:
            return
        self._rows = present_catalog(self.snapshot)
        self._show_types(self.snapshot)
        self._filter()

    def _show_types(self, snapshot: Snapshot) -> None:
        counts = types_of(snapshot)
        every = translate("Catalog", "All {count}").format(count=len(snapshot.models))
        words = [("", every), *((kind, type_text(kind)) for kind, _ in counts)]
        if words == self._type_words:
            return
        self._type_words = words
        if self._kind not in [kind for kind, _ in words]:
            self._kind = ""
        if self.types is not None:
            self._top.removeWidget(self.types)
            self.types.deleteLater()
        self.types = Segmented(self.look, words, self)
        self.types.name_parts(translate("Catalog", "Show"))
        self.types.asked.connect(self._choose_type)
        self.types.show_value(self._kind)
        self._top.insertWidget(1, self.types)
        # Words in other languages are longer.
        self.setMinimumWidth(max(self.look.px(LEAST_WIDTH), self._top.minimumSize().width()))
        self._order_focus()

    def _order_focus(self) -> None:
        """Tab goes through the window as it is read."""
        details, types = self.details, self.types
        chain: list[QWidget] = [self.search, *(types.parts if types is not None else ())]
        chain += [self.get_models, self.add_folder, self.table, details.prompt.sure, details.prompt.keep]
        chain += [details.delete, details.copy, details.pin, details.load]
        chain += [*(field.combo for field in details.form.fields.values()), details.form.save]
        for before, after in itertools.pairwise(chain):
            QWidget.setTabOrder(before, after)

    def _choose_type(self, kind: str) -> None:
        self._kind = kind
        if self.types is not None:
            self.types.show_value(kind)
        self._filter()

    def _filter(self) -> None:
        rows = shown_rows(self._rows, self.search.text(), self._kind)
        self.nothing.setVisible(not rows)
        text = translate("Catalog", "No model answers to that.")
        if not self._rows:
            text = translate(
                "Catalog", "No models yet. Get one that fits this machine, or add a folder with GGUF files."
            )
        self.nothing.show_text("" if rows else text)
        self.table.show_rows(rows)
        self._show_details()

    def _show_details(self) -> None:
        if self.snapshot is None:
            return
        name = self.table.current()
        row = next((r for r in self.table.catalog.rows if r.model == name), None)
        self.details.show_model(row, facts(self.snapshot, name), self.snapshot)

    def show_plan(self, model: str, plan: PlanView | None) -> None:
        """What a plan said."""
        self.details.show_plan(model, plan)
