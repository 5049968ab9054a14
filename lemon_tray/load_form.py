"""The options of one load, to be filled in."""

from __future__ import annotations

from typing import Any, Final

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QComboBox, QWidget

from lemon_tray.fields import Combo, Entry
from lemon_tray.labels import Text
from lemon_tray.placing import put
from lemon_tray.present_catalog import load_options
from lemon_tray.present_devices import HOST, device_labels, usable_devices
from lemon_tray.switches import Switch
from lemon_tray.theme import Look, Role
from lemon_tray.words import translate
from router.snapshot import Snapshot

CPU_ONLY: Final = "cpu"
CONTEXTS: Final = ("auto", "4096", "8192", "16384", "32768")
CACHES: Final = ("f16", "q8_0", "q4_0")


class _Field(QWidget):
    """A labelled choice that may be left open."""

    changed = Signal()

    def __init__(self, look: Look, label: str, width: int, editable: bool, parent: QWidget) -> None:
        super().__init__(parent)
        self.look = look
        self._width = width
        self.label = Text(look, Role.SMALL, "ink2", parent=self)
        self.label.show_text(label)
        self.combo = Combo(look, self)
        self.combo.setEditable(editable)
        self.combo.is_open_first = not editable
        if editable:
            entry = Entry(look)
            entry.put_into_combo()
            entry.setPlaceholderText(translate("Catalog", "as set"))
            self.combo.setLineEdit(entry)
            self.combo.setCompleter(None)  # type: ignore[arg-type]  # none is what Qt documents
            self.combo.setInsertPolicy(QComboBox.InsertPolicy.NoInsert)
            entry.setAccessibleName(label)
        self.combo.setAccessibleName(label)
        self.combo.currentTextChanged.connect(lambda _text: self.changed.emit())
        self.restyle()

    def restyle(self) -> None:
        px = self.look.px
        self.setFixedSize(px(self._width), px(50))
        self.label.place(0, 0, px(self._width))
        self.combo.setFixedWidth(px(self._width))
        put(self.combo, 0, px(18))


class LoadForm(QWidget):
    """The options of one load. What is left open is taken from the model's own options and the settings."""

    changed = Signal()

    def __init__(self, look: Look, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.look = look
        self._devices: dict[str, str] = {}
        self.fields: dict[str, _Field] = {}
        for key, label, width, editable in (
            ("ctx_size", translate("Catalog", "Context"), 104, True),
            ("device", translate("Catalog", "Device"), 152, False),
            ("n_gpu_layers", translate("Catalog", "GPU layers"), 96, True),
            ("parallel", translate("Catalog", "Slots"), 88, True),
            ("cache_type", translate("Catalog", "KV cache"), 96, False),
            ("keep_alive", translate("Catalog", "Keep for"), 104, True),
        ):
            field = self.fields[key] = _Field(look, label, width, editable, self)
            field.changed.connect(self.changed)
        open_ = translate("Catalog", "as set")
        self.fields["ctx_size"].combo.offer(("", *CONTEXTS))
        self.fields["n_gpu_layers"].combo.offer(("", "all", "0"))
        self.fields["parallel"].combo.offer(("", "1", "2", "4", "8"))
        self.fields["keep_alive"].combo.offer(("", "10m", "1h", "24h", "-1"))
        self.fields["cache_type"].combo.offer((open_, *CACHES))
        self.save = Switch(look, self)
        self.save_label = Text(look, Role.SMALL, parent=self)
        self.save_label.show_text(translate("Catalog", "Keep these options for the model"))
        self.save.setAccessibleName(self.save_label.text())
        self.save.asked.connect(self.save.show_value)

    def show_devices(self, snapshot: Snapshot) -> None:
        """Offer the devices that the engine reaches."""
        labels = device_labels(snapshot)
        words = {translate("Catalog", "as set"): ""}
        for device in usable_devices(snapshot):
            if device.kind != HOST:
                words[labels[device.id]] = labels[device.id]
        words[translate("Catalog", "processor only")] = CPU_ONLY
        if words != self._devices:
            self._devices = words
            self.fields["device"].combo.offer(words)

    def clear(self) -> None:
        """Leave everything open."""
        for field in self.fields.values():
            field.combo.blockSignals(True)
            field.combo.setCurrentIndex(0)
            if field.combo.isEditable():
                field.combo.setEditText("")
            field.combo.blockSignals(False)
        self.save.show_value(False)

    def options(self) -> dict[str, Any]:
        """What is filled in, as options of a load."""
        texts = {key: field.combo.currentText() for key, field in self.fields.items()}
        texts["device"] = self._devices.get(texts["device"], "")
        cache = self.fields["cache_type"].combo
        word = cache.currentText() if cache.currentIndex() > 0 else ""
        del texts["cache_type"]
        options = load_options({**texts, "cache_type_k": word, "cache_type_v": word})
        if options and self.save.isChecked():
            options["save_options"] = True
        return options

    def place(self, x: int, y: int, width: int) -> int:
        """Stand at `x` from the leading edge, and `y`; returns the height, which grows where it is narrow."""
        height = self._rows(width) * self.look.px(58) + self.look.px(24)
        put(self, x, y, width, height)
        self._arrange()
        return height

    def restyle(self) -> None:
        self._arrange()

    def _rows(self, width: int) -> int:
        return 1 + max(row for row, _ in self._places(width))

    def _places(self, width: int) -> list[tuple[int, int]]:
        """Row and leading edge of each field: as many in a row as have room."""
        places, row, x = [], 0, 0
        for field in self.fields.values():
            if x and x + field.width() > width:
                row, x = row + 1, 0
            places.append((row, x))
            x += field.width() + self.look.px(12)
        return places

    def _arrange(self) -> None:
        px = self.look.px
        for field, (row, x) in zip(self.fields.values(), self._places(self.width()), strict=True):
            put(field, x, row * px(58))
        y = self._rows(self.width()) * px(58)
        put(self.save, 0, y)
        self.save_label.place(px(44), y + px(2), self.save_label.natural_width() + 1)
