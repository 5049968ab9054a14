"""The panel: a small frameless window at the tray, or an ordinary one where there is no tray to stand at."""

from __future__ import annotations

from typing import Final

from PySide6.QtCore import QElapsedTimer, QEvent, QPoint, QRect, QRectF, QSize, Qt, QTimer, Signal
from PySide6.QtGui import (
    QAccessible,
    QAccessibleAnnouncementEvent,
    QCloseEvent,
    QCursor,
    QGuiApplication,
    QHideEvent,
    QKeyEvent,
    QKeySequence,
    QPainter,
    QPaintEvent,
    QPalette,
    QPen,
    QScreen,
    QShowEvent,
)
from PySide6.QtWidgets import QApplication, QFrame, QScrollArea, QWidget

from lemon_tray.banner_section import BannerSection
from lemon_tray.bars import DeviceBlock
from lemon_tray.controls_section import ControlsSection
from lemon_tray.devices_section import DevicesSection
from lemon_tray.edits import Edits
from lemon_tray.feed_section import FeedSection
from lemon_tray.head_section import HeadSection, NoteSection
from lemon_tray.models_section import ModelsSection
from lemon_tray.pool_section import PoolSection
from lemon_tray.providers_section import ProvidersSection
from lemon_tray.section import Section
from lemon_tray.theme import WIDTH, Look
from lemon_tray.tip import Tip
from lemon_tray.view import Command, Controls, Kind, PanelView
from lemon_tray.words import translate

MARGIN: Final = 8
FOOT: Final = 10  # stays free below what scrolls: the round corners are there
COPIED_MS: Final = 1500
REOPEN_MS: Final = 250


def place_panel(size: QSize, available: QRect, anchor: QRect | None) -> QPoint:
    """Where the panel's upper left corner goes.

    Beside `anchor` (the tray icon, or the cursor), on the side that faces the middle of the screen; without
    one, in the corner where trays usually are. Always inside `available`, 8 px from its edges.
    """
    left, top = available.left() + MARGIN, available.top() + MARGIN
    right = available.right() + 1 - MARGIN - size.width()
    bottom = available.bottom() + 1 - MARGIN - size.height()
    if anchor is None:
        return QPoint(max(left, right), top if available.top() > 0 else max(top, bottom))
    x = anchor.center().x() - size.width() // 2
    above = anchor.center().y() > available.center().y()
    y = anchor.top() - MARGIN - size.height() if above else anchor.bottom() + 1 + MARGIN
    return QPoint(min(max(x, left), max(left, right)), min(max(y, top), max(top, bottom)))


def kept_inside(frame: QRect, room: QRect) -> QPoint:
    """Where the upper left corner of a window goes so that no edge of it lies outside, its head the last."""
    x = min(frame.left(), room.right() + 1 - frame.width())
    y = min(frame.top(), room.bottom() + 1 - frame.height())
    return QPoint(max(x, room.left()), max(y, room.top()))


class Panel(QWidget):
    """Shows the newest view while visible, and does nothing at all while hidden."""

    asked = Signal(object)
    opened = Signal(bool)

    def __init__(self, look: Look, edits: Edits, *, as_window: bool = False, rounded: bool = False) -> None:
        super().__init__(None)
        self.look = look
        self.edits = edits
        self._view: PanelView | None = None
        self._applied: PanelView | None = None
        self._applied_controls: tuple[Controls, int, int] | None = None
        self._anchor: QRect | None = None
        self._arranging = False
        self._held = 0
        self._closed_for = QElapsedTimer()
        self._rounded = rounded
        self._as_window = as_window
        self.setWindowTitle(translate("Panel", "Lemon Tray"))
        self._build()
        self._dress()

    def _build(self) -> None:
        look = self.look
        self.head = HeadSection(look, self)
        self.note = NoteSection(look, self)
        self.note.hide()
        self.banner = BannerSection(look, self)
        self.banner.hide()
        self.scroller = QScrollArea(self)
        self.scroller.setFrameShape(QFrame.Shape.NoFrame)
        self.scroller.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.scroller.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.body = QWidget()
        self.devices = DevicesSection(look, self.body)
        self.pool = PoolSection(look, self.body)
        self.models = ModelsSection(look, self.body)
        self.providers = ProvidersSection(look, self.body)
        self.controls = ControlsSection(look, self.body)
        self.feed = FeedSection(look, self.body)
        self.scroller.setWidget(self.body)
        self.tip = Tip(look, self)
        for section in self.sections():
            section.relaid.connect(self._relaid)
            section.asked.connect(self.asked)
        self.head.menu.clicked.connect(lambda: self.asked.emit(Command(Kind.OPEN_MENU)))

    def sections(self) -> tuple[Section, ...]:
        return (self.head, self.note, self.banner, *self.scrolled())

    def scrolled(self) -> tuple[Section, ...]:
        """The sections that scroll when the screen is too low for all; head and banner stay."""
        return (self.devices, self.pool, self.models, self.providers, self.controls, self.feed)

    def _dress(self) -> None:
        """Set the window up for its mode. Only while hidden: changing flags makes a new window."""
        if self._as_window:
            flags = Qt.WindowType.Window | Qt.WindowType.WindowCloseButtonHint | Qt.WindowType.WindowTitleHint
            flags |= Qt.WindowType.CustomizeWindowHint | Qt.WindowType.WindowMinimizeButtonHint
        else:
            flags = (
                Qt.WindowType.Tool | Qt.WindowType.FramelessWindowHint | Qt.WindowType.WindowStaysOnTopHint
            )
        self.setWindowFlags(flags)
        self.head.show_menu(self._as_window)
        self.setAttribute(Qt.WidgetAttribute.WA_TranslucentBackground, self._rounded and not self._as_window)
        self.restyle()

    # What is shown

    @property
    def as_window(self) -> bool:
        return self._as_window

    def set_mode(self, *, as_window: bool) -> None:
        """Stand at the tray, or be an ordinary window. A visible panel changes when it is opened next."""
        if as_window == self._as_window:
            return
        was_visible = self.isVisible()
        self._as_window = as_window
        self.hide()
        self._dress()
        if was_visible:
            self.open()

    def show_view(self, view: PanelView) -> None:
        """Show `view`: at once if visible, else when the panel opens."""
        self._view = view
        if self.isVisible():
            self._apply()

    def show_note(self, text: str) -> None:
        self.note.show_text(text)
        self._relaid()

    def _apply(self) -> None:
        view = self._view
        if view is None:
            return
        self._arranging = True
        before = self._applied
        # Sections place their parts anew at each call: those that would show the same are not called.
        if before is None or view.head != before.head:
            self.head.show_head(view.head)
        self.banner.show_banner(view.banner)
        if before is None or (view.bars, view.devices_note) != (before.bars, before.devices_note):
            for block in self.devices.show_bars(view.bars, view.devices_note):
                self._wire(block)
        if before is None or view.pool != before.pool:
            self.pool.show_pool(view.pool)
        models = (view.models, view.models_note, view.menu.paused)
        if before is None or models != (before.models, before.models_note, before.menu.paused):
            self.models.show_rows(view.models, view.models_note, paused=view.menu.paused)
        self.providers.show_rows(view.providers)
        loaded = sum(1 for row in view.models if not row.loading and not row.failed)
        controls = (view.controls, loaded, self.edits.version)
        if controls != self._applied_controls:
            self._applied_controls = controls
            self.controls.show_controls(view.controls, loaded, self.edits)
        self.feed.show_feed(view.feed)
        self._applied = view
        self._arranging = False
        self._arrange()
        if before is None or _structure(before) != _structure(view):
            self._order_focus()

    def _wire(self, block: DeviceBlock) -> None:
        block.bar.tip_wanted.connect(lambda stop: self.tip.show_at(stop, stop.tip))
        block.bar.tip_over.connect(self.tip.hide)

    def restyle(self) -> None:
        """Take over changed tokens, fonts and lengths."""
        look = self.look
        palette = self.palette()
        palette.setColor(QPalette.ColorRole.Window, look.colour("bg"))
        self.setPalette(palette)
        for ground in (self.scroller.viewport(), self.body):
            ground.setPalette(palette)  # opaque, so that what stands on it can be painted alone
            ground.setAutoFillBackground(True)
        self.scroller.verticalScrollBar().setStyleSheet(
            f"QScrollBar:vertical {{ background: {look.tokens.bg}; width: {look.px(8)}px; margin: 0; }}"
            f"QScrollBar::handle:vertical {{ background: {look.tokens.edge}; border-radius: {look.px(3)}px;"
            f" min-height: {look.px(32)}px; margin: 1px; }}"
            "QScrollBar::add-line, QScrollBar::sub-line { height: 0; }"
            "QScrollBar::add-page, QScrollBar::sub-page { background: none; }"
        )
        self._arranging = True
        for widget in self.findChildren(QWidget):
            if not isinstance(widget, Section) and (again := getattr(widget, "restyle", None)) is not None:
                again()
        for section in self.sections():
            section.restyle()
        self._arranging = False
        self._arrange()
        self.update()

    # Size and place

    def _relaid(self) -> None:
        if not self._arranging:
            self._arrange()

    def _screen(self) -> QScreen:
        at = self._anchor.center() if self._anchor is not None else self.frameGeometry().center()
        return QGuiApplication.screenAt(at) or self.screen()

    def _arrange(self) -> None:
        width = self.look.px(WIDTH)
        y = 1
        fixed: tuple[Section, ...] = (self.head, self.note, self.banner)
        for section in fixed:
            if not section.isHidden():
                section.move(1, y)
                y += section.height()
        height = 0
        for section in self.scrolled():
            if not section.isHidden():
                section.move(0, height)
                height += section.height()
        self.body.setFixedSize(width - 2, height)
        tallest = self._screen().availableGeometry().height() - 2 * MARGIN
        if self._as_window:
            tallest -= 32  # the title bar
        foot = self.look.px(FOOT)
        total = max(min(y + height + foot, tallest), y + self.look.px(80))
        self.scroller.setGeometry(1, y, width - 2, total - y - foot)
        if (self.width(), self.height()) != (width, total):
            self.setFixedSize(width, total)
            if self.isVisible():
                self._place()

    def _place(self) -> None:
        room = self._screen().availableGeometry()
        if not self._as_window:
            # `move` would reckon with the frame that the window had while it was an ordinary one.
            self.setGeometry(QRect(place_panel(self.size(), room, self._anchor), self.size()))
            return
        frame = self.frameGeometry()
        kept = kept_inside(frame, room)
        if kept != frame.topLeft():
            self.move(kept)

    # Opening and closing

    def open(self, anchor: QRect | None = None, *, at_cursor: bool = False) -> None:
        """Show the panel beside the tray icon at `anchor`, or the cursor, and give it the keyboard."""
        if anchor is None and at_cursor:
            anchor = QRect(QCursor.pos(), QSize(1, 1))
        self._anchor = anchor
        self._apply()
        self._arrange()
        if not self._as_window:
            self._place()
        self.show()
        if self.isMinimized():
            self.showNormal()
        if self._as_window:
            self._place()  # it may have grown, or have stood at the edge as a panel
        self.raise_()
        self.activateWindow()
        self.setFocus(Qt.FocusReason.ActiveWindowFocusReason)

    def toggle(self, anchor: QRect | None = None, *, at_cursor: bool = False) -> None:
        """Open or close. The click that took the focus away, and so closed it, does not open it again."""
        if self.isVisible() and not (self._as_window and not self.isActiveWindow()):
            self.hide()
        elif not (self._closed_for.isValid() and self._closed_for.elapsed() < REOPEN_MS):
            self.open(anchor, at_cursor=at_cursor)

    def hold(self) -> None:
        """Stay open although another window has the keyboard, until `let_go`."""
        self._held += 1

    def let_go(self) -> None:
        self._held = max(0, self._held - 1)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.opened.emit(True)

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self.tip.hide()
        self.edits.forget_refusals()
        self.opened.emit(False)

    def closeEvent(self, event: QCloseEvent) -> None:
        event.ignore()
        self.hide()  # closing a window does not quit

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.ActivationChange and not self.isActiveWindow():
            QTimer.singleShot(0, self, self._lost_activation)

    def _lost_activation(self) -> None:
        if self._as_window or self._held or not self.isVisible() or self.isActiveWindow():
            return
        if QApplication.activeWindow() is None and QApplication.activePopupWidget() is None:
            self._closed_for.start()
            self.hide()

    # Keyboard

    def _order_focus(self) -> None:
        head = self.head
        chain: list[QWidget] = [head.copy, head.models, head.settings, head.menu, *self.banner.buttons()]
        if self._applied is not None and self._applied.banner is not None and self._applied.banner.more:
            chain.append(self.banner.more)
        for block in self.devices.shown():
            chain += [s for s in block.bar.shown_stops() if s.focusPolicy() != Qt.FocusPolicy.NoFocus]
        chain += [self.pool.details, self.models.pause, self.models.free_all]
        for row in self.models.rows.values():
            chain += [row.pin, row.eject, row.log, row.cancel]
        controls = self.controls
        chain += [controls.autosize, controls.auto_evict, controls.stepper, controls.unlimited, self.feed.all]
        previous: QWidget = self
        for widget in chain:
            QWidget.setTabOrder(previous, widget)
            previous = widget

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape:
            if self.pool.details.isChecked():
                self.pool.details.setChecked(False)
            else:
                self.hide()
        elif event.matches(QKeySequence.StandardKey.Copy):
            self.asked.emit(Command(Kind.COPY, "endpoint"))
        elif event.key() == Qt.Key.Key_Comma and event.modifiers() == Qt.KeyboardModifier.ControlModifier:
            self.asked.emit(Command(Kind.OPEN_WINDOW, "settings"))
        else:
            super().keyPressEvent(event)

    def tell_copied(self) -> None:
        """Show, and say, that the endpoint is on the clipboard."""
        button = self.head.copy
        button.set_glyph("check")
        QTimer.singleShot(COPIED_MS, button, lambda: button.set_glyph("copy"))
        said = QAccessibleAnnouncementEvent(button, translate("Head", "Copied"))
        QAccessible.updateAccessibility(said)

    def paintEvent(self, event: QPaintEvent) -> None:
        look, painter = self.look, QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        rect = QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5)
        painter.setBrush(look.colour("bg"))
        painter.setPen(QPen(look.colour("edge"), 1))
        if self._as_window:
            painter.fillRect(self.rect(), look.colour("bg"))
        elif self._rounded:
            painter.drawRoundedRect(rect, look.px(10), look.px(10))
        else:
            painter.drawRect(rect)


def _structure(view: PanelView) -> tuple[object, ...]:
    """What decides which widgets there are."""
    banner = view.banner
    return (
        (banner.id, len(banner.options), banner.more) if banner else None,
        tuple((bar.id, len(bar.segments)) for bar in view.bars),
        tuple((row.model, row.loading, row.failed) for row in view.models),
    )
