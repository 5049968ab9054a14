"""The panel's remote providers. It is hidden while there are none."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QWidget

from lemon_tray.labels import Run, Text
from lemon_tray.section import Section
from lemon_tray.theme import Look, Role
from lemon_tray.view import ProviderRow
from lemon_tray.words import translate


class ProvidersSection(Section):
    """Name and state of each provider, and below that what is wrong."""

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(look, parent)
        self.heading = Text(look, Role.HEADING, "ink2", parent=self)
        self.heading.show_text(translate("Providers", "Remote providers"))
        self.setAccessibleName(translate("Providers", "Remote providers"))
        self._rows: tuple[ProviderRow, ...] = ()
        self._lines: list[tuple[Text, Text, Text]] = []
        self.hide()

    def show_rows(self, rows: tuple[ProviderRow, ...]) -> None:
        """Show these, in place of those that were shown."""
        if rows == self._rows:
            return
        self._rows = rows
        look = self.look
        while len(self._lines) < len(rows):
            name = Text(look, Role.BODY, parent=self)
            state = Text(look, Role.SMALL, "ink2", align=Qt.AlignmentFlag.AlignRight, parent=self)
            problem = Text(look, Role.SMALL, "error.ink", wrap=True, parent=self)
            self._lines.append((name, state, problem))
        for (name, state, problem), row in zip(self._lines, rows, strict=False):
            name.show_runs([Run(row.name)])
            name.setAccessibleName(row.accessible)
            state.show_runs([Run(row.state)])
            state.set_colour("error.ink" if row.is_error else "ink2")
            problem.show_runs([Run(row.problem)] if row.problem else [])
            name.show()
            state.show()
            problem.setVisible(bool(row.problem))
        for line in self._lines[len(rows) :]:
            for text in line:
                text.hide()
        self.setVisible(bool(rows))
        self.arrange()

    def arrange(self) -> None:
        px, x = self.look.px, self.inset
        y = 1 + px(12)
        y += self.heading.place(x, y, self.content) + px(4)
        for name, state, problem in self._lines[: len(self._rows)]:
            right = min(state.natural_width() + px(2), self.content // 2)
            height = name.place(x, y, self.content - right - px(8))
            offset = max(0, height - state.line_height()) // 2
            state.place(x + self.content - right, y + offset, right)
            y += height + px(2)
            if not problem.isHidden():
                y += problem.place(x, y, self.content) + px(4)
        self.set_height(y + px(6))
