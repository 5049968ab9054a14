"""An invented language: every text in brackets and longer by 40 %, as German is, or from right to left.

What shows without brackets cannot be translated. What is clipped or lies over its neighbour has no room.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from PySide6.QtCore import QPoint, QRect, QSize, Qt
from PySide6.QtWidgets import QApplication, QComboBox, QLineEdit, QMenu, QTableView, QWidget
from pytestqt.qtbot import QtBot

from lemon_tray.buttons import Button
from lemon_tray.edits import Edits
from lemon_tray.labels import Text
from lemon_tray.menu import TrayMenu
from lemon_tray.pool import PoolLine
from lemon_tray.theme import LIGHT, Look
from lemon_tray.words import use_translator
from router.settings.schema import describe
from router.snapshot import Snapshot
from tests.ui import canned
from tests.ui.conftest import view_of
from tests.ui.faces import open_panel, open_windows

MORE = 0.4
KEPT = re.compile(r"(\{\w+\}|`[^`]*`)")
WORD = re.compile(r"[^\W\d_]{2,}")
UNITS = frozenset({"GiB", "MiB", "tok", "CPU", "GPU", "CUDA", "llama", "cpp", "percent", "http", "curl"})


def bracketed(_context: str, text: str, _count: int) -> str:
    """A text of the invented language; what is to be filled in, or is code, stays as it is."""
    return f"⟦{text}{'~' * round(len(KEPT.sub('', text)) * MORE)}⟧"


@pytest.fixture
def invented() -> Iterator[None]:
    use_translator(bracketed)
    yield
    use_translator(None)


@pytest.fixture
def from_the_right(qapp: QApplication) -> Iterator[None]:
    qapp.setLayoutDirection(Qt.LayoutDirection.RightToLeft)
    yield
    qapp.setLayoutDirection(Qt.LayoutDirection.LeftToRight)


def shown_texts(root: QWidget) -> Iterator[tuple[QWidget, str]]:
    """Every text that people read or hear of what is in sight."""
    for widget in (root, *root.findChildren(QWidget)):
        if not widget.isVisible():
            continue
        for text in (widget.accessibleName(), widget.accessibleDescription(), widget.toolTip()):
            yield widget, text
        match widget:
            case Text():
                yield widget, widget.text()
            case Button():
                yield widget, widget.label
            case QLineEdit():
                yield widget, widget.placeholderText()
            case QComboBox():
                for index in range(widget.count()):
                    yield widget, widget.itemText(index)
            case QTableView():
                for column in range(widget.model().columnCount()):
                    yield widget, widget.model().headerData(column, Qt.Orientation.Horizontal) or ""
    yield root, root.windowTitle()


def untranslated(text: str, known: frozenset[str]) -> list[str]:
    """Words outside of all brackets that are no data."""
    depth, outside = 0, []
    for sign in text:
        depth = max(0, depth + {"⟦": 1, "⟧": -1}.get(sign, 0))
        if depth == 0 and sign != "⟧":
            outside.append(sign)
    return [word for word in WORD.findall("".join(outside)) if word not in known]


def data_of(snapshot: Snapshot, *more: str) -> frozenset[str]:
    """The words that come with a snapshot, such as what the router said, and keys and values of settings."""
    words = set(WORD.findall(msgspec.json.encode(snapshot).decode()))
    for info in describe():
        words.update(WORD.findall(f"{info.key} {info.default} {' '.join(info.choices)}"))
    for text in more:
        words.update(WORD.findall(text))
    return frozenset(words) | UNITS


@pytest.mark.parametrize("state", canned.STATES)
def test_every_text_of_the_panel_is_translated(state: str, invented: None, look: Look, qtbot: QtBot) -> None:
    of = canned.STATES[state]()
    known = data_of(of)
    with open_panel(look, of) as panel:
        for widget, text in shown_texts(panel):
            assert untranslated(text, known) == [], (widget, text)
        for part in panel.findChildren(PoolLine):
            assert part.accessibleName().startswith("⟦")


@pytest.mark.parametrize("make", [canned.catalog, canned.routed, canned.fetching, canned.empty])
def test_every_text_of_the_windows_is_translated(
    make: object, invented: None, look: Look, qtbot: QtBot, tmp_path: Path
) -> None:
    assert callable(make)
    of = make()
    # What a combo box offers to be typed is a value; so is the path of the log.
    known = data_of(of, str(tmp_path), "all auto embedded log Plan Decision Step as")
    with open_windows(look, of, tmp_path) as windows:
        for name, window in windows.items():
            for widget, text in shown_texts(window):
                assert untranslated(text, known) == [], (name, widget, text)


@pytest.mark.parametrize("state", canned.STATES)
def test_every_text_of_the_menu_is_translated(state: str, invented: None, qtbot: QtBot) -> None:
    of = canned.STATES[state]()
    known = data_of(of)
    menu = TrayMenu(Edits())
    qtbot.addWidget(menu.menu)
    view = view_of(of)
    menu.show_view(view)
    rows = 0
    for part in (menu.menu, *menu.menu.findChildren(QMenu)):
        said = [action.text() for action in part.actions() if action.isVisible()]
        rows += len(said)
        # A long text goes over several rows; one that is cut has lost its bracket.
        whole = re.sub("…$", "⟧", "\n".join(said), flags=re.MULTILINE)
        assert untranslated(whole, known) == []
    assert rows > 40
    assert untranslated(view.menu.tooltip, known) == []


def test_what_is_not_translated_would_be_found(look: Look, qtbot: QtBot) -> None:
    of = canned.loading()
    with open_panel(look, of) as panel:  # in plain English
        found = [word for _, text in shown_texts(panel) for word in untranslated(text, data_of(of))]
    assert {"Models", "Settings", "Autosize"} <= set(found)


def check_room(root: QWidget) -> int:
    """No text is clipped, none lies over another, and what is shortened says the whole."""
    places: dict[QWidget, list[tuple[QRect, str]]] = {}
    seen = 0
    for text in root.findChildren(Text):
        if not text.isVisible() or not text.text():
            continue
        seen += 1
        natural = text.natural_width()
        if not text._wrap and natural > text.width() + 1:
            text.grab()  # it may have been scrolled out of sight
            assert text.is_elided, text.text()
            assert text.toolTip() == text.text()
        used = text.width() if text._wrap else min(text.width(), natural)
        far = (text._align is Qt.AlignmentFlag.AlignRight) is not text.isRightToLeft()
        left = text.width() - used if far else 0
        if text._wrap:
            assert text.height() >= text.height_for(text.width()), text.text()
        parent = text.parentWidget()
        place = QRect(text.pos() + QPoint(left, 0), QSize(used, text.height()))
        assert parent.rect().contains(place), (text.text(), place, parent.rect())
        places.setdefault(parent, []).append((place, text.text()))
    for beside in places.values():
        for (one, a), (other, b) in itertools.combinations(beside, 2):
            assert not one.intersects(other), (a, b)
    for button in root.findChildren(Button):
        if button.isVisible() and type(button) is Button:
            assert button.width() >= button.natural_width() - 8, button.label
            assert button.parentWidget().rect().contains(button.geometry()), button.label
    return seen


@pytest.mark.parametrize("base_px", [14, 21])
@pytest.mark.parametrize("state", canned.STATES)
def test_long_words_have_room_in_the_panel(state: str, base_px: int, invented: None, qtbot: QtBot) -> None:
    with open_panel(Look(LIGHT, base_px=base_px, motion=False), canned.STATES[state]()) as panel:
        panel.grab()
        assert check_room(panel) > 15
        for row in panel.models.rows.values():
            assert not row.size_text.is_elided  # numbers are never cut


@pytest.mark.parametrize("base_px", [14, 21])
@pytest.mark.parametrize("make", [canned.catalog, canned.routed, canned.fetching])
def test_long_words_have_room_in_the_windows(
    make: object, base_px: int, invented: None, qtbot: QtBot, tmp_path: Path
) -> None:
    assert callable(make)
    with open_windows(Look(LIGHT, base_px=base_px, motion=False), make(), tmp_path) as windows:
        for window in windows.values():
            window.grab()
            check_room(window)


def geometry(root: QWidget) -> list[tuple[str, str, QRect, QSize]]:
    """Where everything in sight stands in its parent."""
    return [
        (type(w).__name__, w.accessibleName(), w.geometry(), w.parentWidget().size())
        for w in root.findChildren(QWidget)
        if w.isVisible() and "Scroll" not in type(w).__name__ and "scroll" not in w.objectName()
    ]


@pytest.mark.parametrize("state", canned.STATES)
def test_from_right_to_left_the_panel_is_its_mirror_image(
    state: str, look: Look, qtbot: QtBot, qapp: QApplication
) -> None:
    of = canned.STATES[state]()
    with open_panel(look, of) as panel:
        before = geometry(panel)
    qapp.setLayoutDirection(Qt.LayoutDirection.RightToLeft)
    try:
        with open_panel(look, of) as panel:
            panel.grab()
            after = geometry(panel)
            check_room(panel)
    finally:
        qapp.setLayoutDirection(Qt.LayoutDirection.LeftToRight)
    assert len(after) == len(before)
    for (kind, name, place, within), (_, _, mirror, _) in zip(before, after, strict=True):
        there = within.width() - place.x() - place.width()
        # A segment's edges lie between pixels: they are rounded outwards.
        assert mirror.width() == pytest.approx(place.width(), abs=1), (kind, name)
        assert mirror.x() == pytest.approx(there, abs=1), (kind, name)
        assert mirror.y() == place.y(), (kind, name)


def test_from_right_to_left_the_windows_have_room(
    from_the_right: None, look: Look, qtbot: QtBot, tmp_path: Path
) -> None:
    with open_windows(look, canned.catalog(), tmp_path) as windows:
        for window in windows.values():
            window.grab()
            check_room(window)
