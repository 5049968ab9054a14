"""The panel's sections, from head to feed. Each shows its part of the view and sets its own height."""

from __future__ import annotations

from typing import Any, Final

from PySide6.QtCore import QPointF, QRectF, Qt, Signal
from PySide6.QtGui import QKeyEvent, QPainter, QPaintEvent, QPen, QPixmap
from PySide6.QtWidgets import QWidget

from lemon_tray.bars import DeviceBlock, Swatch
from lemon_tray.buttons import Button, IconButton, LinkButton
from lemon_tray.edits import Edits
from lemon_tray.icons import mark_pixmap
from lemon_tray.labels import Run, Text
from lemon_tray.load_bar import LoadBar
from lemon_tray.paint import draw_glyph
from lemon_tray.pool import Breakdown, PoolLine, Slots
from lemon_tray.switches import Stepper, Switch, ToggleBox
from lemon_tray.theme import CONTENT, INSET, WIDTH, Look, Role, segment_style
from lemon_tray.view import (
    Banner,
    BannerKind,
    Bar,
    Command,
    Controls,
    FeedRow,
    Head,
    Kind,
    ModelRow,
    Option,
    Pool,
)
from lemon_tray.words import translate

FEED_SHORT: Final = 3
BANNER_GLYPHS: Final = {
    BannerKind.ERROR: "error",
    BannerKind.NOTICE: "info",
    BannerKind.WARNING: "warning",
    BannerKind.INFO: "info",
}


class Section(QWidget):
    """A part of the panel as wide as it, with a hairline on top. `relaid` tells that its height changed."""

    relaid = Signal()
    asked = Signal(object)
    has_line = True

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.look = look

    @property
    def inset(self) -> int:
        return self.look.px(INSET) - 1  # the panel's border is the first pixel

    @property
    def content(self) -> int:
        return self.look.px(CONTENT)

    def set_height(self, height: int) -> None:
        width = self.look.px(WIDTH) - 2
        if (self.width(), self.height()) != (width, height):
            self.setFixedSize(width, height)
            self.relaid.emit()

    def arrange(self) -> None:
        """Place the parts and set the height."""
        raise NotImplementedError

    def restyle(self) -> None:
        self.arrange()
        self.update()

    def ask(self, kind: Kind, target: str = "", value: Any = None) -> None:
        self.asked.emit(Command(kind, target, value))

    def paintEvent(self, event: QPaintEvent) -> None:
        if self.has_line:
            painter = QPainter(self)
            painter.fillRect(0, 0, self.width(), 1, self.look.colour("line"))


class MarkView(QWidget):
    """The mark in the panel's head."""

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.look = look
        self._head: Head | None = None
        self.restyle()

    def restyle(self) -> None:
        self.setFixedSize(self.look.px(32), self.look.px(32))
        self.update()

    def show_head(self, head: Head) -> None:
        if self._head is None or head.mark != self._head.mark:
            self.update()
        self._head = head
        self.setAccessibleName(head.accessible)

    def pixmap(self) -> QPixmap:
        assert self._head is not None
        return mark_pixmap(self._head.mark, self.width(), self.devicePixelRatioF())

    def paintEvent(self, event: QPaintEvent) -> None:
        if self._head is not None:
            QPainter(self).drawPixmap(0, 0, self.pixmap())


class HeadSection(Section):
    """State and endpoint."""

    has_line = False

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(look, parent)
        self.mark = MarkView(look, self)
        self.title = Text(look, Role.TITLE, parent=self)
        self.endpoint = Text(look, Role.KEY, "ink2", parent=self)
        self.copy = IconButton(look, "copy", self, size=24, glyph_size=14)
        self.copy.setAccessibleName(translate("Head", "Copy endpoint address"))
        self.copy.setToolTip(translate("Head", "Copy endpoint address"))
        self.copy.clicked.connect(lambda: self.ask(Kind.COPY, "endpoint"))
        self.menu = IconButton(look, "menu", self, size=32)
        self.menu.setAccessibleName(translate("Head", "Menu"))
        self.menu.setToolTip(translate("Head", "Menu"))

    def show_head(self, head: Head) -> None:
        self.mark.show_head(head)
        self.title.show_text(head.title)
        self.endpoint.show_runs([Run(head.endpoint)])
        self.copy.setAccessibleDescription(head.endpoint)
        self.copy.setVisible(bool(head.endpoint))
        self.arrange()

    def arrange(self) -> None:
        px, x = self.look.px, self.inset
        self.mark.move(x, px(15))
        left, room = x + px(44), self.content - px(44) - px(40)
        self.title.place(left, px(11), room)
        width = min(self.endpoint.natural_width(), room - px(28))
        self.endpoint.place(left, px(35), width)
        self.copy.move(left + width + px(4), px(31))
        self.menu.move(x + self.content - px(32), px(11))
        self.set_height(px(63))


class NoteSection(Section):
    """One line of information below the head, such as that there is no tray."""

    has_line = True

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(look, parent)
        self.text = Text(look, Role.SMALL, "ink2", wrap=True, parent=self)

    def show_text(self, text: str) -> None:
        self.text.show_text(text)
        self.setVisible(bool(text))
        self.arrange()

    def arrange(self) -> None:
        px = self.look.px
        height = self.text.place(self.inset + px(22), px(8), self.content - px(22))
        self.set_height(height + px(16))

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        px = self.look.px
        draw_glyph(
            QPainter(self), "info", QPointF(self.inset + px(7), px(16)), px(14), self.look.colour("ink2")
        )


class _OptionRow:
    """A banner's button with what it sets and does beside it."""

    def __init__(self, box: BannerSection) -> None:
        self.button = Button(box.look, parent=box)
        self.key = Text(box.look, Role.SMALL, parent=box)
        self.effect = Text(box.look, Role.SMALL, "ink2", parent=box)
        self.option: Option | None = None
        self._box = box
        self.button.clicked.connect(self._clicked)

    def _clicked(self) -> None:
        if self.option is not None:
            self._box.asked.emit(self.option.command)

    def show_option(self, option: Option) -> None:
        self.option = option
        self.button.show_as(
            option.label,
            primary=option.primary,
            glyph=option.glyph,
            accessible=option.accessible.replace("`", ""),
        )
        self.key.show_text(option.key)
        self.effect.show_text(option.effect)
        for part in (self.button, self.key, self.effect):
            part.show()

    def hide(self) -> None:
        for part in (self.button, self.key, self.effect):
            part.hide()


class BannerSection(Section):
    """At most one banner: a fact, its numbers, and the buttons that act on it."""

    has_line = False
    painted = Signal(str)

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(look, parent)
        self.banner: Banner | None = None
        self.title = Text(look, Role.NAME, wrap=True, parent=self)
        self.text = Text(look, Role.SMALL, wrap=True, parent=self)
        self.footer = Text(look, Role.SMALL, "ink2", wrap=True, parent=self)
        self.more = LinkButton(look, Role.SMALL, self)
        self.more.clicked.connect(lambda: self.ask(Kind.NEXT_BANNER))
        self.progress = LoadBar(look, self)
        self.progress_text = Text(look, Role.SMALL, "ink2", align=Qt.AlignmentFlag.AlignRight, parent=self)
        self.rows: list[_OptionRow] = []

    def show_banner(self, banner: Banner | None) -> None:
        if banner == self.banner:
            return
        self.banner = banner
        self.setVisible(banner is not None)
        if banner is None:
            self.set_height(0)
            return
        while len(self.rows) < len(banner.options):
            self.rows.append(_OptionRow(self))
        for row, option in zip(self.rows, banner.options, strict=False):
            row.show_option(option)
        for row in self.rows[len(banner.options) :]:
            row.hide()
        state = self._state()
        self.title.set_colour(f"{state}.ink" if state else "ink")
        self.title.show_runs([Run(banner.title)])
        self.text.show_text(banner.text)
        self.footer.show_text(banner.footer)
        self.footer.setVisible(bool(banner.footer))
        self.more.setVisible(banner.more > 0)
        self.more.setText(translate("Banner", "{count} more").format(count=banner.more))
        self.more.setAccessibleName(self.more.text())
        for part in (self.progress, self.progress_text):
            part.setVisible(banner.progress is not None)
        if banner.progress is not None:
            self.progress.show_progress(banner.progress.fraction, "ink2")
            self.progress.setAccessibleName(banner.text)
            self.progress_text.show_text(banner.progress.text)
        self.setAccessibleName(banner.title)
        self.setAccessibleDescription(banner.text.replace("`", ""))
        self.arrange()
        self.update()

    def buttons(self) -> list[Button]:
        """The banner's buttons, top to bottom."""
        return [row.button for row in self.rows if not row.button.isHidden()]

    def _state(self) -> str:
        kind = self.banner.kind if self.banner else BannerKind.INFO
        return {BannerKind.ERROR: "error", BannerKind.WARNING: "warning"}.get(kind, "")

    def arrange(self) -> None:
        if self.banner is None:
            return
        px = self.look.px
        x = self.inset + px(12)
        width = self.content - px(24)
        y = px(12)
        more = self.more.natural_width() + px(4) if self.banner.more else 0
        self.more.setGeometry(x + width - more, y, more, px(20))
        y += self.title.place(x + px(24), y, width - px(24) - more) + px(2)
        y += self.text.place(x, y, width)
        if self.banner.progress is not None:
            y += px(8)
            beside = max(px(72), self.progress_text.natural_width() + 1)
            self.progress.setGeometry(x, y + px(4), width - beside - px(8), px(8))
            self.progress_text.place(x + width - beside, y, beside)
            y += px(16)
        shown = self.rows[: len(self.banner.options)]
        button = max([px(140), *(row.button.natural_width() for row in shown)])
        for index, row in enumerate(shown):
            y += px(8) if index else px(10)
            row.button.setGeometry(x, y, button, px(36))
            left, room = x + button + px(12), width - button - px(12)
            both = bool(row.key.text()) and bool(row.effect.text())
            row.key.place(left, y + (px(2) if both else px(10)), room)
            row.effect.place(left, y + (px(18) if both else px(10)), room)
            y += px(36)
        if self.banner.footer:
            y += px(10)
            y += self.footer.place(x, y, width)
        self.set_height(y + px(12) + px(12))

    def paintEvent(self, event: QPaintEvent) -> None:
        if self.banner is None:
            return
        look, px, painter = self.look, self.look.px, QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        state = self._state()
        ground, line, ink = (
            (f"{state}.ground", f"{state}.line", f"{state}.ink") if state else ("sunk", "edge", "ink")
        )
        box = QRectF(self.inset, 0, self.content, self.height() - px(12)).adjusted(0.5, 0.5, -0.5, -0.5)
        painter.setPen(QPen(look.colour(line), 1))
        painter.setBrush(look.colour(ground))
        painter.drawRoundedRect(box, px(8), px(8))
        centre = QPointF(self.inset + px(12) + px(8), px(22))
        draw_glyph(painter, BANNER_GLYPHS[self.banner.kind], centre, px(16), look.colour(ink))
        self.painted.emit(self.banner.id)


class DevicesSection(Section):
    """A bar for each device."""

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(look, parent)
        self.blocks: list[DeviceBlock] = []
        self.note = Text(look, Role.SMALL, "ink2", wrap=True, parent=self)

    def show_bars(self, bars: tuple[Bar, ...], note: str) -> list[DeviceBlock]:
        """Show the bars; returns the blocks that are new."""
        new = []
        while len(self.blocks) < len(bars):
            block = DeviceBlock(self.look, self)
            self.blocks.append(block)
            new.append(block)
        for block, bar in zip(self.blocks, bars, strict=False):
            block.show_bar(bar)
            block.show()
        for block in self.blocks[len(bars) :]:
            block.hide()
        self.note.show_text(note)
        self.note.setVisible(bool(note))
        self.setVisible(bool(bars) or bool(note))
        self.arrange()
        return new

    def shown(self) -> list[DeviceBlock]:
        return [b for b in self.blocks if not b.isHidden()]

    def arrange(self) -> None:
        px, y = self.look.px, 1
        for index, block in enumerate(self.shown()):
            y += px(12) if index == 0 else px(8) if block.legend.rows() == 0 else px(12)
            block.move(self.inset, y)
            y += block.height()
        if not self.note.isHidden():
            y += px(6)
            y += self.note.place(self.inset + px(22), y, self.content - px(22))
        self.set_height(y + px(8))

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        if not self.note.isHidden():
            px = self.look.px
            centre = QPointF(self.inset + px(7), self.note.y() + px(8))
            draw_glyph(QPainter(self), "info", centre, px(14), self.look.colour("ink2"))


class PoolSection(Section):
    """Slots, sentence, and the breakdown behind Details."""

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(look, parent)
        self.heading = Text(look, Role.HEADING, "ink2", parent=self)
        self.heading.show_text(translate("Pool", "LLM pool"))
        self.slots = Slots(look, self)
        self.details = LinkButton(look, Role.SMALL, self)
        self.details.setCheckable(True)
        self.details.setText(translate("Pool", "Details"))
        self.details.toggled.connect(lambda _on: self.arrange())
        self.line = PoolLine(look, self)
        self.breakdown = Breakdown(look, self)

    def show_pool(self, pool: Pool) -> None:
        self.slots.show_pool(pool)
        self.line.show_pool(pool)
        self.breakdown.show_pool(pool)
        self.details.setAccessibleName(pool.details_name)
        self.arrange()

    def restyle(self) -> None:
        self.breakdown.restyle()
        super().restyle()

    def arrange(self) -> None:
        px, x = self.look.px, self.inset
        y = 1 + px(8)
        heading = self.heading.natural_width()
        self.heading.place(x, y + px(6), heading)
        details = self.details.natural_width() + px(4)
        self.details.setGeometry(x + self.content - details, y + px(6), details, px(20))
        left = x + max(px(70), heading + px(14))
        self.slots.setGeometry(left, y, x + self.content - details - px(8) - left, px(34))
        y += px(32) + px(4)
        self.line.setGeometry(x, y, self.content, px(16))
        y += px(16) + px(8)
        open_ = self.details.isChecked()
        self.breakdown.setVisible(open_)
        if open_:
            self.breakdown.move(x, y)
            y += self.breakdown.height()
        self.set_height(y + px(4))


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
        self.size_text = Text(look, Role.BODY, align=Qt.AlignmentFlag.AlignRight, parent=self)
        self.rate = Text(look, Role.SMALL, "ink2", align=Qt.AlignmentFlag.AlignRight, parent=self)
        self.pin = IconButton(look, "pin", self)
        self.pin.setCheckable(True)
        self.eject = IconButton(look, "eject", self)
        self.cancel = Button(look, Role.SMALL, self)
        self.load = LoadBar(look, self)
        self.pin.clicked.connect(self._pin)
        self.eject.clicked.connect(self._unload)
        self.cancel.clicked.connect(self._unload)

    def show_row(self, row: ModelRow) -> None:
        if row == self.row:
            return
        self.row = row
        self.swatch.show_model(row.number, row.loading)
        self.name.show_runs([Run(row.label)])
        self.state.set_colour("error.ink" if row.is_error else "ink2")
        self.state.show_runs([Run(row.state)])
        self.size_text.show_runs([Run(row.size), *([Run(row.size_of, None, "ink2")] if row.size_of else [])])
        self.rate.show_text(row.rate)
        self.pin.setChecked(row.pinned)
        self.pin.setAccessibleName(row.pin_name)
        self.pin.setToolTip(row.pin_name)
        self.eject.setAccessibleName(row.unload_name)
        self.eject.setToolTip(row.unload_name)
        self.eject.setEnabled(row.can_unload)
        label = translate("Models", "Retry") if row.failed else translate("Models", "Cancel")
        self.cancel.show_as(label, accessible=row.unload_name)
        one_button = row.loading or row.failed
        self.pin.setVisible(not one_button)
        self.eject.setVisible(not one_button)
        self.cancel.setVisible(one_button)
        self.load.setVisible(row.loading)
        self.swatch.setVisible(not row.failed)
        self.size_text.setVisible(bool(row.size))
        if row.progress is not None:
            self.load.setAccessibleName(row.load_name)
            self.load.setAccessibleDescription(row.rate)
            self.load.show_progress(row.progress, segment_style(self.look.tokens, row.number)[0])
        self.arrange()

    def restyle(self) -> None:
        if self.row is not None and self.row.progress is not None:
            self.load.show_progress(self.row.progress, segment_style(self.look.tokens, self.row.number)[0])
        self.arrange()

    def arrange(self) -> None:
        row, px = self.row, self.look.px
        if row is None:
            return
        width = px(CONTENT)
        actions = px(64) if self.cancel.isHidden() else max(px(64), self.cancel.natural_width())
        edge = width - actions - px(8)
        self.swatch.move(0, px(10))
        numbers = max(self.size_text.natural_width(), self.rate.natural_width()) + 1
        self.size_text.place(edge - numbers, px(6) if row.rate else px(14), numbers)
        self.rate.place(edge - numbers, px(26), numbers)
        self.rate.setVisible(bool(row.rate))
        left = px(20)
        room = edge - numbers - px(8) - left
        self.name.place(left, px(6), room)
        self.state.place(left, px(26), room if row.rate else edge - left - (numbers + px(8)))
        self.pin.move(width - px(64), px(10))
        self.eject.move(width - px(28), px(10))
        self.cancel.setGeometry(width - actions, px(10), actions, px(28))
        self.load.setGeometry(left, px(48), width - left, px(8))
        self.setFixedSize(width, px(64) if row.loading else px(48))

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
            centre = QPointF(px(6), px(16))
            draw_glyph(QPainter(self), "error", centre, px(14), self.look.colour("error.ink"))


class ModelsSection(Section):
    """The residents."""

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(look, parent)
        self.heading = Text(look, Role.HEADING, "ink2", parent=self)
        self.heading.show_text(translate("Models", "Models"))
        self.note = Text(look, Role.SMALL, "ink2", wrap=True, parent=self)
        self.rows: dict[str, RowWidget] = {}

    def show_rows(self, rows: tuple[ModelRow, ...], note: str) -> None:
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
        self.heading.place(x, y, self.content)
        y += px(20)
        for row in self.rows.values():
            row.move(x, y)
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


class ControlsSection(Section):
    """Autosize, auto-evict, max loaded: they act at once and show the value in force."""

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(look, parent)
        self.heading = Text(look, Role.HEADING, "ink2", parent=self)
        self.heading.show_text(translate("Controls", "Live controls"))
        self.autosize = Switch(look, self)
        self.auto_evict = Switch(look, self)
        self.stepper = Stepper(look, self)
        self.unlimited = ToggleBox(look, "infinity", self)
        texts = (
            (
                "llm_pool_autosize",
                translate("Controls", "Autosize the pool"),
                translate("Controls", "Room for every model your policies name"),
                self.autosize,
            ),
            (
                "auto_evict",
                translate("Controls", "Auto-evict"),
                translate("Controls", "Unload idle models when a device is short"),
                self.auto_evict,
            ),
            (
                "max_loaded_models",
                translate("Controls", "Max loaded models"),
                translate("Controls", "Per type, 1 to 16 or no limit"),
                self.stepper,
            ),
        )
        self.labels: dict[str, tuple[Text, Text, Text]] = {}
        for key, name, help_text, widget in texts:
            label = Text(look, Role.BODY, parent=self)
            label.show_text(name)
            help_line = Text(look, Role.SMALL, "ink2", parent=self)
            help_line.show_text(help_text)
            refusal = Text(look, Role.SMALL, "error.ink", wrap=True, parent=self)
            refusal.hide()
            self.labels[key] = (label, help_line, refusal)
            widget.setAccessibleName(name)
            widget.setAccessibleDescription(help_text)
        self.unlimited.setAccessibleName(translate("Controls", "No limit"))
        self.unlimited.setToolTip(translate("Controls", "No limit"))
        self._last_finite = 0
        self._loaded = 0
        self.autosize.asked.connect(lambda on: self.ask(Kind.SET, "llm_pool_autosize", on))
        self.auto_evict.asked.connect(lambda on: self.ask(Kind.SET, "auto_evict", on))
        self.stepper.asked.connect(lambda value: self.ask(Kind.SET, "max_loaded_models", value))
        self.unlimited.asked.connect(self._toggle_limit)

    def show_controls(self, controls: Controls, loaded: int, edits: Edits) -> None:
        self._loaded = loaded
        self.autosize.show_value(bool(edits.shown("llm_pool_autosize", controls.autosize)))
        self.auto_evict.show_value(bool(edits.shown("auto_evict", controls.auto_evict)))
        limit = int(edits.shown("max_loaded_models", controls.max_loaded))
        if limit > 0:
            self._last_finite = limit
        self.stepper.show_value(limit)
        self.unlimited.show_value(limit < 0)
        for key, (_, _, refusal) in self.labels.items():
            reason = edits.refusal(key)
            refusal.show_runs([Run(reason)] if reason else [])
            refusal.setVisible(bool(reason))
        self.arrange()

    def _toggle_limit(self, on: bool) -> None:
        # Back from no limit: the last limit that there was, else one that unloads nothing now.
        back = self._last_finite or min(max(self._loaded, 1), Stepper.HIGHEST)
        self.ask(Kind.SET, "max_loaded_models", -1 if on else back)

    def arrange(self) -> None:
        px, x = self.look.px, self.inset
        y = 1 + px(12)
        self.heading.place(x, y, self.content)
        y += px(20) + px(4)
        right = x + self.content
        widths = {"max_loaded_models": self.stepper.width() + px(8) + self.unlimited.width()}
        for key, (label, help_line, refusal) in self.labels.items():
            room = self.content - widths.get(key, px(36)) - px(12)
            label.place(x, y + px(2), room)
            help_line.place(x, y + px(22), room)
            middle = y + px(20)
            match key:
                case "llm_pool_autosize":
                    self.autosize.move(right - self.autosize.width(), middle - self.autosize.height() // 2)
                case "auto_evict":
                    self.auto_evict.move(
                        right - self.auto_evict.width(), middle - self.auto_evict.height() // 2
                    )
                case _:
                    top = middle - self.stepper.height() // 2
                    self.unlimited.move(right - self.unlimited.width(), top)
                    self.stepper.move(self.unlimited.x() - px(8) - self.stepper.width(), top)
            y += px(40)
            if not refusal.isHidden():
                y += refusal.place(x, y, self.content) + px(4)
        self.set_height(y + px(8))


class FeedSection(Section):
    """The last decisions; All shows what the router still remembers of them."""

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(look, parent)
        self.heading = Text(look, Role.HEADING, "ink2", parent=self)
        self.heading.show_text(translate("Feed", "Recent decisions"))
        self.all = LinkButton(look, Role.SMALL, self)
        self.all.setCheckable(True)
        self.all.setText(translate("Feed", "All"))
        self.all.setAccessibleName(translate("Feed", "All recent decisions"))
        self.all.toggled.connect(lambda _on: self._fill())
        self.setAccessibleName(translate("Feed", "Recent decisions"))
        self.note = Text(look, Role.SMALL, "ink2", parent=self)
        self.note.show_text(translate("Feed", "Nothing yet."))
        self._rows: tuple[FeedRow, ...] = ()
        self._lines: list[tuple[Text, Text]] = []
        self._fill()

    def show_feed(self, rows: tuple[FeedRow, ...]) -> None:
        if rows != self._rows:
            self._rows = rows
            self._fill()

    def _fill(self) -> None:
        shown = self._rows if self.all.isChecked() else self._rows[:FEED_SHORT]
        while len(self._lines) < len(shown):
            moment = Text(self.look, Role.SMALL, "ink2", parent=self)
            entry = Text(self.look, Role.SMALL, wrap=True, parent=self)
            self._lines.append((moment, entry))
        for (moment, entry), row in zip(self._lines, shown, strict=False):
            moment.show_text(row.time)
            entry.set_colour("error.ink" if row.severity == "error" else "ink")
            entry.show_runs([Run(row.text)])
            moment.show()
            entry.show()
        for moment, entry in self._lines[len(shown) :]:
            moment.hide()
            entry.hide()
        self.all.setVisible(len(self._rows) > FEED_SHORT)
        self.note.setVisible(not self._rows)
        self.arrange()

    def arrange(self) -> None:
        px, x = self.look.px, self.inset
        y = 1 + px(12)
        self.heading.place(x, y, self.content - px(60))
        width = self.all.natural_width() + px(4)
        self.all.setGeometry(x + self.content - width, y, width, px(20))
        y += px(20) + px(4)
        if not self.note.isHidden():
            y += self.note.place(x, y, self.content) + px(4)
        for moment, entry in self._lines:
            if entry.isHidden():
                continue
            moment.place(x, y, px(40))
            y += entry.place(x + px(44), y, self.content - px(44)) + px(4)
        self.set_height(y + px(2))
