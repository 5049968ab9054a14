"""The log: its last lines, followed as it grows, narrowed by level and words."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

from PySide6.QtCore import Qt, QTimer
from PySide6.QtGui import QGuiApplication, QHideEvent, QShowEvent, QTextCursor
from PySide6.QtWidgets import QPlainTextEdit, QSizePolicy, QVBoxLayout

from lemon_tray.buttons import Button
from lemon_tray.fields import Segmented
from lemon_tray.labels import Text
from lemon_tray.log_tail import Place, read_news, wanted
from lemon_tray.search import SearchWindow
from lemon_tray.switches import Switch
from lemon_tray.theme import Look, Role
from lemon_tray.view import Command, Kind
from lemon_tray.windows import Line, row_of_window
from lemon_tray.words import translate

LOOK_MS: Final = 500
KEPT: Final = 5_000
TYPED_MS: Final = 150

Spawn = Callable[[Coroutine[Any, Any, None]], object]


class LogWindow(SearchWindow):
    """Reads the file in a thread while visible; hidden, it reads nothing.

    Args:
        path: the log file.
        spawn: runs a coroutine as a task.
    """

    def __init__(self, look: Look, path: Path, spawn: Spawn) -> None:
        super().__init__(
            look, translate("Log", "Log"), (980, 640), (560, 320), translate("Log", "Filter by words")
        )
        self.path = path
        self._spawn = spawn
        self._place: Place | None = None
        self._lines: deque[str] = deque(maxlen=KEPT)
        self._rank = 0
        self._reading = False
        self._problem = ""
        self._typed = QTimer(self)
        self._typed.setSingleShot(True)
        self._typed.setInterval(TYPED_MS)
        self._typed.timeout.connect(self._fill)
        self.search.textChanged.connect(lambda _text: self._typed.start())
        words = (
            (0, translate("Log", "All")),
            (1, translate("Log", "Warnings")),
            (2, translate("Log", "Errors")),
        )
        self.levels = Segmented(look, words)
        self.levels.name_parts(translate("Log", "Show"))
        self.levels.show_value(0)
        self.levels.asked.connect(self._choose)
        self.follow = Switch(look)
        self.follow.show_value(True)
        self.follow.asked.connect(self._set_follow)
        self.follow.setAccessibleName(translate("Log", "Follow new lines"))
        self.follow_label = Text(look, Role.BODY)
        self.follow_label.show_text(translate("Log", "Follow"))
        self.follow_label.setFixedHeight(look.px(20))
        self.text = QPlainTextEdit()
        self.text.setReadOnly(True)
        self.text.setMaximumBlockCount(KEPT)
        self.text.setUndoRedoEnabled(False)
        self.text.setLineWrapMode(QPlainTextEdit.LineWrapMode.WidgetWidth)
        self.text.setAccessibleName(translate("Log", "Log lines"))
        self.text.setTabChangesFocus(True)
        self.note = Text(look, Role.SMALL, "ink2")
        self.note.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.copy = Button(look)
        self.copy.show_as(translate("Log", "Copy what is shown"))
        self.copy.clicked.connect(self._copy)
        self.folder = Button(look)
        self.folder.show_as(translate("Log", "Open the folder"))
        self.folder.clicked.connect(lambda: self.ask(Command(Kind.OPEN_FILE, "logs")))
        self._timer = QTimer(self)
        self._timer.setInterval(LOOK_MS)
        self._timer.timeout.connect(self._look)
        self._lay_out()
        self.dress()

    def _lay_out(self) -> None:
        whole = QVBoxLayout(self)
        whole.setContentsMargins(0, 0, 0, 0)
        whole.setSpacing(0)
        top, bottom = row_of_window(self.look, 12), row_of_window(self.look, 12)
        top.addWidget(self.search, 1)
        for part in (self.levels, self.follow, self.follow_label):
            top.addWidget(part)
        bottom.addWidget(self.note, 1)
        bottom.addWidget(self.copy)
        bottom.addWidget(self.folder)
        whole.addLayout(top)
        whole.addWidget(Line(self.look))
        whole.addWidget(self.text, 1)
        whole.addWidget(Line(self.look))
        whole.addLayout(bottom)

    def dress(self) -> None:
        super().dress()
        self.text.setFont(self.look.font(Role.KEY))
        inset = self.look.px(20)
        frame = f"border: 0; border-radius: 0; padding: {self.look.px(8)}px {inset}px;"
        self.text.setStyleSheet(f"QPlainTextEdit, QPlainTextEdit:focus {{ {frame} }}")

    def refresh(self) -> None:
        """The log has nothing to do with snapshots."""

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._look()
        self._timer.start()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._timer.stop()

    # Reading

    def _look(self) -> None:
        if not self._reading:
            self._reading = True
            self._spawn(self._read())

    async def _read(self) -> None:
        try:
            news = await asyncio.to_thread(read_news, self.path, self._place)
        except OSError as error:
            self._problem = f"{self.path}: {error.strerror or error}"
            self._show_note()
            return
        finally:
            self._reading = False
        self._problem = ""
        self._place = news.place
        if news.lines:
            self._lines.extend(news.lines)
            query = self.search.text()
            self._append([line for line in news.lines if wanted(line, query, self._rank)])
        self._show_note()

    # What is shown

    def _append(self, lines: list[str]) -> None:
        if not lines:
            return
        bar = self.text.verticalScrollBar()
        at = bar.value()
        self.text.appendPlainText("\n".join(lines))
        bar.setValue(bar.maximum() if self.follow.isChecked() else at)

    def _fill(self) -> None:
        query = self.search.text()
        self.text.setPlainText("\n".join(line for line in self._lines if wanted(line, query, self._rank)))
        self.text.moveCursor(QTextCursor.MoveOperation.End)
        self._show_note()

    def _show_note(self) -> None:
        shown = self.text.blockCount() if self.text.document().characterCount() > 1 else 0
        text = translate("Log", "{shown} of {count} lines · {path}").format(
            shown=shown, count=len(self._lines), path=self.path
        )
        self.note.set_colour("error.ink" if self._problem else "ink2")
        self.note.show_text(self._problem or text)
        self.copy.setEnabled(shown > 0)

    def _choose(self, rank: int) -> None:
        self._rank = rank
        self.levels.show_value(rank)
        self._fill()

    def _set_follow(self, on: bool) -> None:
        self.follow.show_value(on)
        if on:
            bar = self.text.verticalScrollBar()
            bar.setValue(bar.maximum())

    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(self.text.toPlainText())

    def go_to_search(self) -> None:
        """Put the keyboard into the filter; what stands there is left as it is."""
        self.search.setFocus(Qt.FocusReason.ShortcutFocusReason)
