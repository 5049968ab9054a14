"""What the app's ordinary windows have in common: look, keys, and doing nothing while hidden."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import (
    QCloseEvent,
    QGuiApplication,
    QHideEvent,
    QKeyEvent,
    QKeySequence,
    QPainter,
    QPaintEvent,
    QPalette,
    QShowEvent,
)
from PySide6.QtWidgets import QFrame, QHBoxLayout, QScrollArea, QWidget

from lemon_tray.theme import Look, Role
from lemon_tray.view import Command
from router.snapshot import Snapshot


def style_sheet(look: Look) -> str:
    """How Qt's own widgets look in the app's windows."""
    t, px = look.tokens, look.px
    return (
        f"QLineEdit, QPlainTextEdit {{ background: {t.bg}; color: {t.ink}; border: 1px solid {t.ctl};"
        f" border-radius: {px(6)}px; padding: {px(4)}px {px(8)}px;"
        f" selection-background-color: {t.switch_on}; selection-color: {t.bg}; }}"
        f"QLineEdit:focus, QPlainTextEdit:focus {{ border: 2px solid {t.ink};"
        f" padding: {px(4) - 1}px {px(8) - 1}px; }}"
        f"QLineEdit {{ placeholder-text-color: {t.ink2}; }}"
        f"QLineEdit:disabled {{ background: {t.sunk}; color: {t.ink2}; border-color: {t.line}; }}"
        f"QAbstractItemView {{ background: {t.bg}; color: {t.ink}; border: 1px solid {t.edge};"
        f" selection-background-color: {t.hover}; selection-color: {t.ink}; outline: 0; }}"
        f"QTableView {{ border: 0; gridline-color: {t.line}; }}"
        f"QHeaderView {{ background: {t.bg}; border: 0; }}"
        f"QHeaderView::section {{ background: {t.bg}; color: {t.ink2}; border: 0; padding: 0 {px(8)}px;"
        f" border-bottom: 1px solid {t.line}; font-weight: 600; font-size: {px(12)}px; }}"
        f"QHeaderView::section:first {{ padding-left: {px(24)}px; }}"
        f"QScrollArea, QScrollArea > QWidget > QWidget {{ background: {t.bg}; border: 0; }}"
        f"QScrollBar:vertical {{ background: {t.bg}; width: {px(12)}px; margin: 0; }}"
        f"QScrollBar:horizontal {{ background: {t.bg}; height: {px(12)}px; margin: 0; }}"
        f"QScrollBar::handle {{ background: {t.ctl}; border-radius: {px(3)}px; margin: {px(3)}px;"
        f" min-height: {px(32)}px; min-width: {px(32)}px; }}"
        "QScrollBar::add-line, QScrollBar::sub-line { width: 0; height: 0; }"
        "QScrollBar::add-page, QScrollBar::sub-page { background: none; }"
        f"QToolTip {{ background: {t.ink}; color: {t.bg}; border: 0; padding: {px(4)}px {px(8)}px; }}"
    )


class Line(QFrame):
    """A hairline."""

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.look = look
        self.setFixedHeight(1)
        self.setAutoFillBackground(True)
        self.restyle()

    def restyle(self) -> None:
        palette = self.palette()
        palette.setColor(QPalette.ColorRole.Window, self.look.colour("line"))
        self.setPalette(palette)


def row_of_window(look: Look, spacing: int) -> QHBoxLayout:
    """A row at a window's edge, for what stands above or below its lines. `spacing` is in the design's px."""
    row = QHBoxLayout()
    row.setContentsMargins(look.px(24), look.px(12), look.px(24), look.px(12))
    row.setSpacing(look.px(spacing))
    return row


def scroll_area(body: QWidget) -> QScrollArea:
    """`body` in an area that scrolls it up and down; its width follows the area's."""
    area = QScrollArea()
    area.setFrameShape(QFrame.Shape.NoFrame)
    area.setWidgetResizable(True)
    area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
    area.setFocusPolicy(Qt.FocusPolicy.NoFocus)
    area.setWidget(body)
    return area


class AppWindow(QWidget):
    """A window of the app. Closing it hides it and ends nothing; while hidden it draws nothing."""

    asked = Signal(object)
    opened = Signal(bool)

    def __init__(self, look: Look, title: str, size: tuple[int, int], least: tuple[int, int]) -> None:
        super().__init__(None)
        self.look = look
        self.snapshot: Snapshot | None = None
        self.setWindowTitle(title)
        room = QGuiApplication.primaryScreen().availableGeometry()
        # On a screen that is lower than that, the end of the window could not be reached.
        self.setMinimumSize(look.px(least[0]), min(look.px(least[1]), max(240, room.height() - 40)))
        self.resize(
            max(self.minimumWidth(), min(look.px(size[0]), room.width() - 48)),
            max(self.minimumHeight(), min(look.px(size[1]), room.height() - 80)),
        )

    def dress(self) -> None:
        """Take over the look; call it once all widgets are there."""
        look = self.look
        palette = self.palette()
        for role, name in (
            (QPalette.ColorRole.Window, "bg"),
            (QPalette.ColorRole.Base, "bg"),
            (QPalette.ColorRole.WindowText, "ink"),
            (QPalette.ColorRole.Text, "ink"),
            (QPalette.ColorRole.PlaceholderText, "ink2"),
            (QPalette.ColorRole.Highlight, "hover"),
            (QPalette.ColorRole.HighlightedText, "ink"),
        ):
            palette.setColor(role, look.colour(name))
        self.setPalette(palette)
        self.setFont(look.font(Role.BODY))
        self.setStyleSheet(style_sheet(look))

    def restyle(self) -> None:
        """Take over changed tokens, fonts and lengths."""
        self.dress()
        for widget in self.findChildren(QWidget):
            if (again := getattr(widget, "restyle", None)) is not None:
                again()
        self.update()

    def ask(self, command: Command) -> None:
        self.asked.emit(command)

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """Show it: at once if visible, else when the window opens."""
        self.snapshot = snapshot
        if self.isVisible():
            self.refresh()

    def refresh(self) -> None:
        """Bring everything up to date with `snapshot`."""
        raise NotImplementedError  # Qt's metaclass leaves no room for the one of abstract classes

    def open(self) -> None:
        """Show the window, or bring it to the front."""
        if self.snapshot is not None:
            self.refresh()
        self.show()
        if self.isMinimized():
            self.showNormal()
        self.raise_()
        self.activateWindow()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.opened.emit(True)

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self.opened.emit(False)

    def closeEvent(self, event: QCloseEvent) -> None:
        event.ignore()
        self.hide()

    def paintEvent(self, event: QPaintEvent) -> None:
        # Under a style sheet the palette alone does not reach the ground of a window again.
        QPainter(self).fillRect(self.rect(), self.look.colour("bg"))

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape or event.matches(QKeySequence.StandardKey.Close):
            self.hide()
        else:
            super().keyPressEvent(event)
