"""The panel's banner."""

from __future__ import annotations

from typing import Final

from PySide6.QtCore import QPointF, QRectF, Qt, Signal
from PySide6.QtGui import QAccessible, QAccessibleAnnouncementEvent, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QWidget

from lemon_tray.buttons import Button, LinkButton
from lemon_tray.labels import Run, Text
from lemon_tray.load_bar import LoadBar
from lemon_tray.paint import draw_glyph
from lemon_tray.placing import flipped, put
from lemon_tray.section import Section
from lemon_tray.theme import Look, Role
from lemon_tray.view import Banner, BannerKind, Kind, Option
from lemon_tray.words import counted

BANNER_GLYPHS: Final = {
    BannerKind.ERROR: "error",
    BannerKind.NOTICE: "info",
    BannerKind.WARNING: "warning",
    BannerKind.INFO: "info",
}


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
        if banner is not None and banner.kind is BannerKind.ERROR and not self._shows(banner):
            said = QAccessibleAnnouncementEvent(self, banner.title)
            said.setPoliteness(QAccessible.AnnouncementPoliteness.Assertive)
            QAccessible.updateAccessibility(said)
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
        more = counted("Banner", "{count} more", banner.more)
        self.more.show_label(more.format(count=banner.more))
        self.more.setAccessibleName(self.more.label)
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

    def _shows(self, banner: Banner) -> bool:
        return self.banner is not None and self.banner.id == banner.id

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
        put(self.more, x + width - more, y, more, px(20))
        y += self.title.place(x + px(24), y, width - px(24) - more) + px(2)
        y += self.text.place(x, y, width)
        if self.banner.progress is not None:
            y += px(8)
            beside = max(px(72), self.progress_text.natural_width() + 1)
            put(self.progress, x, y + px(4), width - beside - px(8), px(8))
            self.progress_text.place(x + width - beside, y, beside)
            y += px(16)
        shown = self.rows[: len(self.banner.options)]
        button = max([px(140), *(row.button.natural_width() for row in shown)])
        for index, row in enumerate(shown):
            y += px(8) if index else px(10)
            put(row.button, x, y, button, px(36))
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
        centre = QPointF(flipped(self, self.inset + px(12) + px(8)), px(22))
        draw_glyph(painter, BANNER_GLYPHS[self.banner.kind], centre, px(16), look.colour(ink))
        self.painted.emit(self.banner.id)
