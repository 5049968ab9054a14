"""Editors of values: each shows the value in force and asks for another; what is being typed stays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from PySide6.QtCore import QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QFocusEvent, QKeyEvent, QPainter, QPaintEvent, QPen, QWheelEvent
from PySide6.QtWidgets import QComboBox, QHBoxLayout, QLineEdit, QWidget

from lemon_tray.buttons import Button, IconButton
from lemon_tray.labels import Run, Text
from lemon_tray.paint import draw_glyph, focus_ring
from lemon_tray.placing import flipped, forward, mirrored, put, tip_text, worded
from lemon_tray.switches import Switch
from lemon_tray.theme import Look, Role
from lemon_tray.words import translate
from router.errors import BadRequest

HEIGHT: Final = 32


class Entry(QLineEdit):
    """A line of text. Escape takes back what was typed, and only then reaches the window."""

    taken_back = Signal()

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.look = look
        self.in_combo = False
        self.restyle()

    def restyle(self) -> None:
        self.setFont(self.look.font(Role.BODY))
        if not self.in_combo:
            self.setFixedHeight(self.look.px(HEIGHT))

    def put_into_combo(self) -> None:
        """Leave frame and height to the combo box that it is put into."""
        self.in_combo = True
        self.setMinimumHeight(0)
        self.setMaximumHeight(1 << 14)
        self.setStyleSheet(
            "QLineEdit, QLineEdit:focus { border: 0; padding: 0 4px; background: transparent; }"
        )

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape and self.isModified():
            self.taken_back.emit()
            return
        super().keyPressEvent(event)
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            event.accept()


class Combo(QComboBox):
    """A choice of words, drawn as the other fields. The wheel scrolls the page, never the value."""

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.look = look
        self.is_open_first = False  # the first word leaves the choice open, and is written paler
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.restyle()

    def restyle(self) -> None:
        self.setFont(self.look.font(Role.BODY))
        self.setFixedHeight(self.look.px(HEIGHT))
        self.update()

    def offer(self, words: Iterable[str]) -> None:
        """Offer these words; what stands there stays."""
        wanted = list(words)
        if wanted == [self.itemText(i) for i in range(self.count())]:
            return
        text = self.currentText()
        self.blockSignals(True)
        self.clear()
        self.addItems(wanted)
        if self.isEditable():
            self.setEditText(text)
        else:
            self.setCurrentIndex(max(0, self.findText(text)))
        self.blockSignals(False)

    def sizeHint(self) -> QSize:
        metrics = self.look.metrics(Role.BODY)
        words = [self.itemText(i) for i in range(self.count())] or [""]
        widest = max(metrics.horizontalAdvance(word) for word in words)
        return QSize(widest + self.look.px(44), self.look.px(HEIGHT))

    def wheelEvent(self, event: QWheelEvent) -> None:
        event.ignore()

    def focusInEvent(self, event: QFocusEvent) -> None:
        super().focusInEvent(event)
        self.update()

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        look, px, painter = self.look, self.look.px, QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        area = QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5)
        enabled = self.isEnabled()
        painter.setPen(QPen(look.colour("ctl" if enabled else "line"), 1))
        ground = "sunk" if not enabled else "hover" if self.underMouse() and not self.isEditable() else "bg"
        painter.setBrush(look.colour(ground))
        painter.drawRoundedRect(area, px(6), px(6))
        if self.hasFocus():
            focus_ring(painter, look, QRectF(self.rect()), px(6))
        centre = QPointF(flipped(self, self.width() - px(16)), self.height() / 2)
        draw_glyph(painter, "chevron-down", centre, px(14), look.colour("ink2" if enabled else "ctl"))
        if not self.isEditable():
            is_open = self.is_open_first and self.currentIndex() == 0
            painter.setPen(look.colour("ink" if enabled and not is_open else "ink2"))
            painter.setFont(look.font(Role.BODY))
            room = mirrored(self, QRectF(px(10), 0, self.width() - px(36), self.height()))
            text = look.metrics(Role.BODY).elidedText(
                self.currentText(), Qt.TextElideMode.ElideMiddle, int(room.width())
            )
            painter.drawText(room, int(Qt.AlignmentFlag.AlignVCenter), worded(self, text))


class _Part(Button):
    """One word of a `Segmented`."""

    def __init__(self, look: Look, word: str, first: bool, last: bool, parent: QWidget) -> None:
        super().__init__(look, parent=parent)
        self._first, self._last = first, last
        self.setCheckable(True)
        self.show_label(word)
        self.restyle()

    def restyle(self) -> None:
        px = self.look.px
        width = self.look.metrics(Role.BODY).horizontalAdvance(self.label) + px(24)
        self.setFixedSize(width, px(HEIGHT))
        self.update()

    def nextCheckState(self) -> None:
        """A click only asks."""

    def keyPressEvent(self, event: QKeyEvent) -> None:
        step = {Qt.Key.Key_Left: -1, Qt.Key.Key_Right: 1}.get(Qt.Key(forward(self, event.key())))
        parent = self.parent()
        if step is not None and isinstance(parent, Segmented):
            parent.step(self, step)
            return
        super().keyPressEvent(event)

    def paintEvent(self, event: QPaintEvent) -> None:
        look, px, painter = self.look, self.look.px, QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        on = self.isChecked()
        # Drawn wider than it is on the sides where a neighbour follows, so that only outer corners are round.
        area = QRectF(self.rect()).adjusted(
            0.5 if self._first else -px(8), 0.5, -0.5 if self._last else px(8), -0.5
        )
        area = mirrored(self, area)
        ground = "switch_on" if on else "hover" if self.isEnabled() and self.underMouse() else "bg"
        painter.setPen(QPen(look.colour("ctl"), 1))
        painter.setBrush(look.colour(ground if self.isEnabled() or on else "sunk"))
        painter.drawRoundedRect(area, px(6), px(6))
        if not self._first and not on:
            edge = mirrored(self, QRectF(0, 1, 1, self.height() - 2))
            painter.fillRect(edge, look.colour("line"))
        painter.setFont(look.font(Role.BODY))
        painter.setPen(look.colour("bg" if on else "ink" if self.isEnabled() else "ink2"))
        painter.drawText(QRectF(self.rect()), int(Qt.AlignmentFlag.AlignCenter), worded(self, self.label))
        if self.has_ring:
            focus_ring(painter, look, QRectF(self.rect()), px(6))


class Segmented(QWidget):
    """One of a few words, all of them in sight. A click only asks (`asked`) for the other one."""

    asked = Signal(object)

    def __init__(self, look: Look, choices: Sequence[tuple[Any, str]], parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.look = look
        self.values = [value for value, _ in choices]
        box = QHBoxLayout(self)
        box.setContentsMargins(0, 0, 0, 0)
        box.setSpacing(0)
        self.parts: list[_Part] = []
        for index, (value, word) in enumerate(choices):
            part = _Part(look, word, index == 0, index == len(choices) - 1, self)
            part.clicked.connect(lambda _on=False, value=value: self.asked.emit(value))
            box.addWidget(part)
            self.parts.append(part)

    def name_parts(self, name: str) -> None:
        """Accessible names, for those who do not see which row the words stand in."""
        for part in self.parts:
            part.setAccessibleName(f"{name}: {part.label}")

    def show_value(self, value: Any) -> None:
        for part, its in zip(self.parts, self.values, strict=True):
            chosen = its == value
            if part.isChecked() is not chosen:
                part.setChecked(chosen)
                part.update()
            part.setFocusPolicy(Qt.FocusPolicy.TabFocus if chosen else Qt.FocusPolicy.NoFocus)
        if value not in self.values and self.parts:
            self.parts[0].setFocusPolicy(Qt.FocusPolicy.TabFocus)

    def step(self, part: _Part, by: int) -> None:
        index = min(max(self.parts.index(part) + by, 0), len(self.parts) - 1)
        target = self.parts[index]
        target.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        target.setFocus(Qt.FocusReason.OtherFocusReason)
        self.asked.emit(self.values[index])


class Editor(QWidget):
    """What the editors have in common.

    `asked` carries a value that the user wants, `failed` why what was typed is none; `settled` tells that
    nothing is being typed any more.
    """

    asked = Signal(object)
    failed = Signal(str)
    settled = Signal()

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.look = look

    def beside(self, *parts: QWidget) -> None:
        """Put the parts into a row."""
        box = QHBoxLayout(self)
        box.setContentsMargins(0, 0, 0, 0)
        box.setSpacing(self.look.px(8))
        for part in parts:
            box.addWidget(part)

    @property
    def is_dirty(self) -> bool:
        """Something is being typed that has not been asked for."""
        return False

    def show_value(self, value: Any) -> None:
        """Show the value in force, unless something is being typed."""
        raise NotImplementedError  # Qt's metaclass leaves no room for the one of abstract classes

    def say(self, name: str, description: str) -> None:
        """Names for a screen reader."""
        raise NotImplementedError


class SwitchEditor(Editor):
    """On or off."""

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(look, parent)
        self.switch = Switch(look, self)
        self.switch.asked.connect(lambda on: self.asked.emit(on))
        self.beside(self.switch)

    def show_value(self, value: Any) -> None:
        self.switch.show_value(bool(value))

    def say(self, name: str, description: str) -> None:
        self.switch.setAccessibleName(name)
        self.switch.setAccessibleDescription(description)


class ChoiceEditor(Editor):
    """One of a few words."""

    def __init__(self, look: Look, choices: Sequence[tuple[Any, str]], parent: QWidget | None = None) -> None:
        super().__init__(look, parent)
        self.segmented = Segmented(look, choices, self)
        self.segmented.asked.connect(self.asked)
        self.beside(self.segmented)

    def show_value(self, value: Any) -> None:
        self.segmented.show_value(value)

    def say(self, name: str, description: str) -> None:
        self.segmented.name_parts(name)
        self.segmented.setAccessibleDescription(description)


class TextEditor(Editor):
    """A value that is typed. `offers` are words that can be picked as well.

    It is asked for with Enter or when the keyboard goes elsewhere; Escape takes it back.
    """

    def __init__(
        self,
        look: Look,
        read: Callable[[str], Any],
        write: Callable[[Any], str],
        *,
        width: int,
        offers: Sequence[str] = (),
        right: bool = False,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(look, parent)
        self._read, self._write = read, write
        self._in_force: Any = None
        self._dirty = False
        self._width = width
        self.combo: Combo | None = None
        self.entry = Entry(look)
        if offers:
            self.combo = Combo(look, self)
            self.combo.setEditable(True)
            self.combo.setInsertPolicy(QComboBox.InsertPolicy.NoInsert)
            self.combo.setLineEdit(self.entry)
            # After the line edit: a combo box gives each new one a completer that finishes words by itself.
            self.combo.setCompleter(None)  # type: ignore[arg-type]  # none is what Qt documents
            self.combo.offer(offers)
            self.combo.activated.connect(self._picked)
            self.entry.put_into_combo()
            self.beside(self.combo)
        else:
            self.beside(self.entry)
        if right:
            self.entry.setAlignment(Qt.AlignmentFlag.AlignRight)
        self.entry.textEdited.connect(self._typed)
        self.entry.editingFinished.connect(self._finished)
        self.entry.taken_back.connect(self.take_back)
        self.restyle()

    def restyle(self) -> None:
        (self.combo or self.entry).setFixedWidth(self.look.px(self._width))

    @property
    def is_dirty(self) -> bool:
        return self._dirty

    def show_value(self, value: Any) -> None:
        self._in_force = value
        if not self._dirty:
            text = self._write(value)
            if text != self.entry.text():
                self.entry.setText(text)
                self.entry.setCursorPosition(0)

    def say(self, name: str, description: str) -> None:
        for part in (self.combo, self.entry):
            if part is not None:
                part.setAccessibleName(name)
                part.setAccessibleDescription(description)

    def take_back(self) -> None:
        """Forget what was typed."""
        self._dirty = False
        self.entry.setText(self._write(self._in_force))
        self.entry.setModified(False)
        self.settled.emit()

    def _typed(self) -> None:
        self._dirty = True

    def _picked(self, _index: int) -> None:
        self._dirty = True
        self._finished()

    def _finished(self) -> None:
        if not self._dirty:
            return
        try:
            value = self._read(self.entry.text())
        except BadRequest as error:
            self.failed.emit(error.message.partition(": ")[2] or error.message)
            return
        self._dirty = False
        self.entry.setModified(False)
        self.settled.emit()
        if value == self._in_force:
            self.show_value(value)
        else:
            self.asked.emit(value)


class SizeEditor(TextEditor):
    """A number of bytes as number and unit. Another unit shows the same size otherwise."""

    def __init__(
        self,
        look: Look,
        read: Callable[[str], Any],
        parts: Callable[[Any], tuple[str, str]],
        factors: dict[str, int],
        parent: QWidget | None = None,
    ) -> None:
        self._factors = factors
        self._parts = parts
        self._unit = next(iter(factors))
        super().__init__(look, self._read_size, self._write_size, width=88, right=True, parent=parent)
        self._read_text = read
        self.units = Combo(look, self)
        self.units.offer(factors)
        self.units.activated.connect(self._other_unit)
        row = self.layout()
        assert row is not None
        row.addWidget(self.units)

    def say(self, name: str, description: str) -> None:
        super().say(name, description)
        self.units.setAccessibleName(translate("Settings", "Unit of {name}").format(name=name))

    def show_value(self, value: Any) -> None:
        if value != self._in_force and not self.is_dirty:
            self._unit = self._parts(value)[1]
            self.units.setCurrentText(self._unit)
        super().show_value(value)

    def _other_unit(self, _index: int) -> None:
        self._unit = self.units.currentText()
        if not self.is_dirty:
            self.show_value(self._in_force)

    def _read_size(self, text: str) -> Any:
        bare = text.strip()
        return self._read_text(bare if bare[-1:].isalpha() else f"{bare}{self._unit}")

    def _write_size(self, value: Any) -> str:
        if value is None:
            return ""
        number = value / self._factors[self._unit]
        return f"{number:.6f}".rstrip("0").rstrip(".")


class FoldersEditor(Editor):
    """A list of folders: remove one, or add one by `browse`."""

    browse = Signal()

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(look, parent)
        self._folders: tuple[str, ...] = ()
        self._rows: list[tuple[Text, IconButton]] = []
        self._name = ""
        self.add = Button(look, Role.BODY, self)
        self.add.show_as(translate("Settings", "Add a folder…"), glyph="folder")
        self.add.clicked.connect(self.browse)
        self.arrange()

    def show_value(self, value: Any) -> None:
        folders = tuple(value)
        if folders == self._folders:
            return
        self._folders = folders
        while len(self._rows) < len(folders):
            remove = IconButton(self.look, "cross", self)
            remove.clicked.connect(self._remover(len(self._rows)))
            self._rows.append((Text(self.look, Role.KEY, parent=self), remove))
        for index, (text, remove) in enumerate(self._rows):
            there = index < len(folders)
            text.setVisible(there)
            remove.setVisible(there)
            if there:
                text.show_runs([Run(folders[index])])
                said = translate("Settings", "Remove {folder}").format(folder=folders[index])
                remove.setAccessibleName(said)
                remove.setToolTip(tip_text(said))
        self.arrange()

    def _remover(self, index: int) -> Callable[[], None]:
        def remove() -> None:
            if index < len(self._folders):
                self.asked.emit([f for i, f in enumerate(self._folders) if i != index])

        return remove

    def say(self, name: str, description: str) -> None:
        self.add.setAccessibleDescription(name)
        self.setAccessibleName(name)

    def height_for(self, width: int) -> int:
        """The height at this width, after which the parts stand there."""
        self.setFixedWidth(width)
        self.arrange()
        return self.height()

    def arrange(self) -> None:
        px, y = self.look.px, 0
        for text, remove in self._rows:
            if not text.isHidden():
                text.place(0, y + px(6), min(text.natural_width() + 1, self.width() - px(36)))
                put(remove, text.width() + px(4), y)
                y += px(28)
        put(self.add, 0, y + px(4), self.add.natural_width(), px(HEIGHT))
        self.setFixedHeight(y + px(4) + px(HEIGHT))

    def restyle(self) -> None:
        self.arrange()
