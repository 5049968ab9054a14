"""The panel's recent decisions."""

from __future__ import annotations

from typing import Final

from PySide6.QtWidgets import QWidget

from lemon_tray.buttons import LinkButton
from lemon_tray.labels import Run, Text
from lemon_tray.placing import put
from lemon_tray.section import Section
from lemon_tray.theme import Look, Role
from lemon_tray.view import FeedRow
from lemon_tray.words import translate

FEED_SHORT: Final = 3


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
        put(self.all, x + self.content - width, y, width, px(20))
        y += px(20) + px(4)
        if not self.note.isHidden():
            y += self.note.place(x, y, self.content) + px(4)
        for moment, entry in self._lines:
            if entry.isHidden():
                continue
            moment.place(x, y, px(40))
            y += entry.place(x + px(44), y, self.content - px(44)) + px(4)
        self.set_height(y + px(2))
