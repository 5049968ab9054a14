"""The panel's pool of language models."""

from __future__ import annotations

from PySide6.QtWidgets import QWidget

from lemon_tray.buttons import LinkButton
from lemon_tray.labels import Text
from lemon_tray.placing import put
from lemon_tray.pool import Breakdown, PoolLine, Slots
from lemon_tray.section import Section
from lemon_tray.theme import Look, Role
from lemon_tray.view import Pool
from lemon_tray.words import translate


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
        put(self.details, x + self.content - details, y + px(6), details, px(20))
        left = x + max(px(70), heading + px(14))
        put(self.slots, left, y, x + self.content - details - px(8) - left, px(34))
        y += px(32) + px(4)
        put(self.line, x, y, self.content, px(16))
        y += px(16) + px(8)
        open_ = self.details.isChecked()
        self.breakdown.setVisible(open_)
        if open_:
            put(self.breakdown, x, y)
            y += self.breakdown.height()
        self.set_height(y + px(4))
