"""Getting models: one by its name, or one of those that fit this machine, with progress and cancel."""

from __future__ import annotations

from typing import Final

from PySide6.QtWidgets import QSizePolicy, QVBoxLayout

from lemon_tray.buttons import Button
from lemon_tray.engines_window import EngineColumn
from lemon_tray.fields import Entry
from lemon_tray.labels import Run, Text
from lemon_tray.present_get import present_get
from lemon_tray.theme import Look, Role
from lemon_tray.view import Command, Kind
from lemon_tray.windows import AppWindow, Line, row_of_window, scroll_area
from lemon_tray.words import translate

LONGEST_NAME: Final = 1200


class GetWindow(AppWindow):
    """Models to be had. Nothing is asked of the network before the user does."""

    def __init__(self, look: Look) -> None:
        super().__init__(look, translate("Get", "Get models"), (760, 620), (560, 360))
        self.name = Entry(look)
        self.name.setPlaceholderText(translate("Get", "owner/repo:Q4_K_M, or the address of a model's page"))
        self.name.setAccessibleName(translate("Get", "Name of a model on huggingface.co"))
        self.name.setMaxLength(LONGEST_NAME)
        self.name.textChanged.connect(lambda _text: self._typed())
        self.name.returnPressed.connect(self._get)
        self.get = Button(look)
        self.get.show_as(translate("Get", "Get"), primary=True, glyph="download")
        self.get.clicked.connect(self._get)
        self.refusal = Text(look, Role.SMALL, "error.ink", wrap=True)
        self.column = EngineColumn(look)
        self.column.asked.connect(self.asked)
        self.note = Text(look, Role.SMALL, "ink2", wrap=True)
        self.folder = Button(look)
        self.folder.show_as(translate("Get", "Add a folder…"), glyph="folder")
        self.folder.clicked.connect(lambda: self.ask(Command(Kind.ADD_FOLDER)))
        for text in (self.refusal, self.note):
            text.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self.note.show_text(
            translate(
                "Get",
                "Models come from huggingface.co, are checked, and are kept in its cache, where other "
                "programs find them too. Nothing is fetched before you ask for it.",
            )
        )
        self._asked_for = ""
        self._lay_out()
        self._typed()
        self.dress()

    def _lay_out(self) -> None:
        whole = QVBoxLayout(self)
        whole.setContentsMargins(0, 0, 0, 0)
        whole.setSpacing(0)
        top = row_of_window(self.look, 12)
        top.addWidget(self.name, 1)
        top.addWidget(self.get)
        whole.addLayout(top)
        self._refusal_row = row_of_window(self.look, 0)
        self._refusal_row.setContentsMargins(self.look.px(24), 0, self.look.px(24), 0)
        self._refusal_row.addWidget(self.refusal, 1)
        whole.addLayout(self._refusal_row)
        whole.addWidget(Line(self.look))
        whole.addWidget(scroll_area(self.column), 1)
        whole.addWidget(Line(self.look))
        bottom = row_of_window(self.look, 16)
        bottom.addWidget(self.note, 1)
        bottom.addWidget(self.folder)
        whole.addLayout(bottom)
        self.refusal.hide()

    def refresh(self) -> None:
        if self.snapshot is None:
            return
        self.column.show_rows(present_get(self.snapshot))

    def answer(self, name: str, refusal: str) -> None:
        """What asking for a model came to: why it is refused, or "" when it has begun."""
        if name != self._asked_for:
            return
        self._say(refusal)
        if not refusal and self.name.text().strip() == name:
            self.name.clear()

    def _say(self, refusal: str) -> None:
        self.refusal.setVisible(bool(refusal))
        self.refusal.show_runs([Run(refusal)] if refusal else [])
        bottom = self.look.px(10) if refusal else 0
        self._refusal_row.setContentsMargins(self.look.px(24), 0, self.look.px(24), bottom)

    def _typed(self) -> None:
        self.get.setEnabled(bool(self.name.text().strip()))
        self._say("")

    def _get(self) -> None:
        name = self.name.text().strip()
        if name:
            self._asked_for = name
            self.ask(Command(Kind.PULL, name))
