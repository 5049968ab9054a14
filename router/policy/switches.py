"""How often a conversation moves from one model to another, which costs it the prompt's cache."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

KEPT: Final = 4_096


class Switches:
    """Remembers the model of each conversation's last request, for the newest conversations."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._last: OrderedDict[tuple[str, int], str] = OrderedDict()

    def note(self, policy: str, conversation: int | None, model: str) -> bool:
        """Note where a request goes; true if its conversation's last one went to another model."""
        if conversation is None:
            return False
        key = policy, conversation
        before = self._last.pop(key, model)
        self._last[key] = model
        if len(self._last) > self._kept:
            self._last.popitem(last=False)
        return before != model
