"""Texts as labels of a menu, for menus that Qt draws and for those that a desktop's panel draws."""

from __future__ import annotations

from PySide6.QtGui import QAction


def escaped(text: str) -> str:
    """A text whose `&` is shown and marks no letter, in a menu that Qt draws."""
    return text.replace("&", "&&")


def escaped_for_panels(text: str) -> str:
    """The same for a panel, which marks letters by `_`.

    Qt hands labels on with their first `&` made a `_`, and every other sign as it is: a model's `Q4_K_M`
    would be shown as `Q4KM`.
    """
    before, sign, after = text.replace("_", "__").partition("&")
    return f"{before}{sign * 2}{after}"


class MenuText:
    """Puts texts on a menu's actions. `exported` tells that a panel draws it now."""

    def __init__(self) -> None:
        self.exported = False

    def label(self, text: str) -> str:
        return escaped_for_panels(text) if self.exported else escaped(text)

    def say(self, action: QAction, text: str) -> None:
        """Let the action say `text`, if it does not yet."""
        label = self.label(text)
        if action.text() != label:
            action.setText(label)
