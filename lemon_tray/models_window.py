"""The model browser: every model, whether it fits, and loading one with options of one's own."""

from __future__ import annotations

from typing import Any, Final

from PySide6.QtCore import QPointF, QRectF, Qt, QTimer, Signal
from PySide6.QtGui import QPainter, QPaintEvent, QPen, QResizeEvent
from PySide6.QtWidgets import QComboBox, QVBoxLayout, QWidget

from lemon_tray.buttons import Button
from lemon_tray.fields import Combo, Entry, Segmented
from lemon_tray.labels import Run, Text
from lemon_tray.models_table import VERDICTS, CatalogTable, legend_colours
from lemon_tray.paint import draw_glyph, hatch_fill, rounded
from lemon_tray.placing import flipped, mirrored, put, worded
from lemon_tray.present_catalog import (
    CatalogRow,
    Fact,
    PlanView,
    Verdict,
    facts,
    load_options,
    present_catalog,
    shown_rows,
    type_text,
    types_of,
)
from lemon_tray.present_devices import HOST, device_labels, usable_devices
from lemon_tray.search import SearchWindow
from lemon_tray.switches import Switch
from lemon_tray.theme import Look, Role
from lemon_tray.view import Command, Kind
from lemon_tray.windows import Line, row_of_window
from lemon_tray.words import translate
from router.snapshot import Snapshot

PLAN_AFTER_MS: Final = 300
CPU_ONLY: Final = "cpu"
CONTEXTS: Final = ("auto", "4096", "8192", "16384", "32768")
CACHES: Final = ("f16", "q8_0", "q4_0")


class _Field(QWidget):
    """A labelled choice that may be left open."""

    changed = Signal()

    def __init__(self, look: Look, label: str, width: int, editable: bool, parent: QWidget) -> None:
        super().__init__(parent)
        self.look = look
        self._width = width
        self.label = Text(look, Role.SMALL, "ink2", parent=self)
        self.label.show_text(label)
        self.combo = Combo(look, self)
        self.combo.setEditable(editable)
        if editable:
            entry = Entry(look)
            entry.put_into_combo()
            entry.setPlaceholderText(translate("Catalog", "as set"))
            self.combo.setLineEdit(entry)
            self.combo.setCompleter(None)  # type: ignore[arg-type]  # none is what Qt documents
            self.combo.setInsertPolicy(QComboBox.InsertPolicy.NoInsert)
            entry.setAccessibleName(label)
        self.combo.setAccessibleName(label)
        self.combo.currentTextChanged.connect(lambda _text: self.changed.emit())
        self.restyle()

    def restyle(self) -> None:
        px = self.look.px
        self.setFixedSize(px(self._width), px(50))
        self.label.place(0, 0, px(self._width))
        self.combo.setFixedWidth(px(self._width))
        put(self.combo, 0, px(18))


class LoadForm(QWidget):
    """The options of one load. What is left open is taken from the model's own options and the settings."""

    changed = Signal()

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.look = look
        self._devices: dict[str, str] = {}
        self.fields: dict[str, _Field] = {}
        for key, label, width, editable in (
            ("ctx_size", translate("Catalog", "Context"), 104, True),
            ("device", translate("Catalog", "Device"), 152, False),
            ("n_gpu_layers", translate("Catalog", "GPU layers"), 96, True),
            ("parallel", translate("Catalog", "Slots"), 88, True),
            ("cache_type", translate("Catalog", "KV cache"), 96, False),
            ("keep_alive", translate("Catalog", "Keep for"), 104, True),
        ):
            field = self.fields[key] = _Field(look, label, width, editable, self)
            field.changed.connect(self.changed)
        open_ = translate("Catalog", "as set")
        self.fields["ctx_size"].combo.offer(("", *CONTEXTS))
        self.fields["n_gpu_layers"].combo.offer(("", "all", "0"))
        self.fields["parallel"].combo.offer(("", "1", "2", "4", "8"))
        self.fields["keep_alive"].combo.offer(("", "10m", "1h", "24h", "-1"))
        self.fields["cache_type"].combo.offer((open_, *CACHES))
        self.save = Switch(look, self)
        self.save_label = Text(look, Role.SMALL, parent=self)
        self.save_label.show_text(translate("Catalog", "Keep these options for the model"))
        self.save.setAccessibleName(self.save_label.text())
        self.save.asked.connect(self.save.show_value)
        self._arrange()

    def show_devices(self, snapshot: Snapshot) -> None:
        """Offer the devices that the engine reaches."""
        labels = device_labels(snapshot)
        words = {translate("Catalog", "as set"): ""}
        for device in usable_devices(snapshot):
            if device.kind != HOST:
                words[labels[device.id]] = labels[device.id]
        words[translate("Catalog", "processor only")] = CPU_ONLY
        if words != self._devices:
            self._devices = words
            self.fields["device"].combo.offer(words)

    def clear(self) -> None:
        """Leave everything open."""
        for field in self.fields.values():
            field.combo.blockSignals(True)
            field.combo.setCurrentIndex(0)
            if field.combo.isEditable():
                field.combo.setEditText("")
            field.combo.blockSignals(False)
        self.save.show_value(False)

    def options(self) -> dict[str, Any]:
        """What is filled in, as options of a load."""
        texts = {key: field.combo.currentText() for key, field in self.fields.items()}
        texts["device"] = self._devices.get(texts["device"], "")
        cache = self.fields["cache_type"].combo
        word = cache.currentText() if cache.currentIndex() > 0 else ""
        del texts["cache_type"]
        options = load_options({**texts, "cache_type_k": word, "cache_type_v": word})
        if options and self.save.isChecked():
            options["save_options"] = True
        return options

    def restyle(self) -> None:
        self._arrange()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._arrange()

    def _arrange(self) -> None:
        px, x = self.look.px, 0
        for field in self.fields.values():
            put(field, x, 0)
            x += field.width() + px(12)
        y = px(58)
        put(self.save, 0, y)
        self.save_label.place(px(44), y + px(2), self.save_label.natural_width() + 1)
        self.setMinimumSize(x, y + px(24))


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

    def restyle(self) -> None:
        self.arrange()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.arrange()

    def arrange(self) -> None:
        px, x, y = self.look.px, self.look.px(24), self.look.px(12)
        right = self.width() - x
        for button in (self.load, self.pin, self.copy):
            width = button.natural_width()
            right -= width
            put(button, right, y, width, px(32))
            right -= px(8)
        self.name.place(x, y + px(4), max(px(120), min(self.name.natural_width() + 1, right - x)))
        y += px(36)
        room = self.width() - 2 * x
        y += self.fact_text.place(x, y, room) + px(10)
        put(self.form, x, y, room, self.form.minimumHeight())
        y += self.form.height() + px(6)
        height = self.plan_text.place(x + px(24), y, room - px(24))
        y += max(height, px(32))
        self.setFixedHeight(y + px(8))

    def paintEvent(self, event: QPaintEvent) -> None:
        look, painter = self.look, QPainter(self)
        if self._plan is not None and self._plan.verdict is not Verdict.UNKNOWN:
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
            (860, 520),
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
