"""The panel's live controls."""

from __future__ import annotations

from PySide6.QtWidgets import QWidget

from lemon_tray.edits import Edits
from lemon_tray.labels import Run, Text
from lemon_tray.placing import put
from lemon_tray.section import Section
from lemon_tray.switches import Stepper, Switch, ToggleBox
from lemon_tray.theme import Look, Role
from lemon_tray.view import Controls, Kind
from lemon_tray.words import translate


class ControlsSection(Section):
    """Autosize, auto-evict, max loaded: they act at once and show the value in force."""

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(look, parent)
        self.heading = Text(look, Role.HEADING, "ink2", parent=self)
        self.heading.show_text(translate("Controls", "Live controls"))
        self.autosize = Switch(look, self)
        self.auto_evict = Switch(look, self)
        self.stepper = Stepper(look, self)
        self.unlimited = ToggleBox(look, "infinity", self)
        texts = (
            (
                "llm_pool_autosize",
                translate("Controls", "Autosize the pool"),
                translate("Controls", "Room for every model your policies name"),
                self.autosize,
            ),
            (
                "auto_evict",
                translate("Controls", "Auto-evict"),
                translate("Controls", "Unload idle models when a device is short"),
                self.auto_evict,
            ),
            (
                "max_loaded_models",
                translate("Controls", "Max loaded models"),
                translate("Controls", "Per type, 1 to 16 or no limit"),
                self.stepper,
            ),
        )
        self.labels: dict[str, tuple[Text, Text, Text]] = {}
        for key, name, help_text, widget in texts:
            label = Text(look, Role.BODY, parent=self)
            label.show_text(name)
            help_line = Text(look, Role.SMALL, "ink2", parent=self)
            help_line.show_text(help_text)
            refusal = Text(look, Role.SMALL, "error.ink", wrap=True, parent=self)
            refusal.hide()
            self.labels[key] = (label, help_line, refusal)
            widget.setAccessibleName(name)
            widget.setAccessibleDescription(help_text)
        self.unlimited.setAccessibleName(translate("Controls", "No limit"))
        self.unlimited.setToolTip(translate("Controls", "No limit"))
        self._last_finite = 0
        self._loaded = 0
        self.autosize.asked.connect(lambda on: self.ask(Kind.SET, "llm_pool_autosize", on))
        self.auto_evict.asked.connect(lambda on: self.ask(Kind.SET, "auto_evict", on))
        self.stepper.asked.connect(lambda value: self.ask(Kind.SET, "max_loaded_models", value))
        self.unlimited.asked.connect(self._toggle_limit)

    def show_controls(self, controls: Controls, loaded: int, edits: Edits) -> None:
        self._loaded = loaded
        self.autosize.show_value(bool(edits.shown("llm_pool_autosize", controls.autosize)))
        self.auto_evict.show_value(bool(edits.shown("auto_evict", controls.auto_evict)))
        limit = int(edits.shown("max_loaded_models", controls.max_loaded))
        if limit > 0:
            self._last_finite = limit
        self.stepper.show_value(limit)
        self.unlimited.show_value(limit < 0)
        for key, (_, _, refusal) in self.labels.items():
            reason = edits.refusal(key)
            refusal.show_runs([Run(reason)] if reason else [])
            refusal.setVisible(bool(reason))
        self.arrange()

    def _toggle_limit(self, on: bool) -> None:
        # Back from no limit: the last limit that there was, else one that unloads nothing now.
        back = self._last_finite or min(max(self._loaded, 1), Stepper.HIGHEST)
        self.ask(Kind.SET, "max_loaded_models", -1 if on else back)

    def arrange(self) -> None:
        px, x = self.look.px, self.inset
        y = 1 + px(12)
        self.heading.place(x, y, self.content)
        y += px(20) + px(4)
        right = x + self.content
        widths = {"max_loaded_models": self.stepper.width() + px(8) + self.unlimited.width()}
        for key, (label, help_line, refusal) in self.labels.items():
            room = self.content - widths.get(key, px(36)) - px(12)
            label.place(x, y + px(2), room)
            help_line.place(x, y + px(22), room)
            middle = y + px(20)
            match key:
                case "llm_pool_autosize":
                    put(self.autosize, right - self.autosize.width(), middle - self.autosize.height() // 2)
                case "auto_evict":
                    top = middle - self.auto_evict.height() // 2
                    put(self.auto_evict, right - self.auto_evict.width(), top)
                case _:
                    top = middle - self.stepper.height() // 2
                    left = right - self.unlimited.width()
                    put(self.unlimited, left, top)
                    put(self.stepper, left - px(8) - self.stepper.width(), top)
            y += px(40)
            if not refusal.isHidden():
                y += refusal.place(x, y, self.content) + px(4)
        self.set_height(y + px(8))
