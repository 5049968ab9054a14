"""Settings that the user is changing: what to show until the router has answered, and why it refused."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class _Pending(Struct):
    ticket: int
    value: Any
    generation: int | None = None


class Edits:
    """Between a click and the snapshot that shows it.

    A control shows the asked value while the router decides; then the value in force, whatever it is. So a
    refused value is gone with the refusal, and quick clicks build on each other.
    """

    def __init__(self) -> None:
        self._pending: dict[str, _Pending] = {}
        self._refusals: dict[str, str] = {}
        self._tickets = 0
        self.version = 0
        """Grows with each change, so that who has shown this state need not show it again."""

    def begin(self, key: str, value: Any) -> int:
        """The user asks for `value`. Returns a ticket for `done` or `refused`."""
        self._tickets += 1
        self.version += 1
        self._pending[key] = _Pending(self._tickets, value)
        self._refusals.pop(key, None)
        return self._tickets

    def done(self, key: str, ticket: int, generation: int, current: int) -> None:
        """Applied: snapshots from `generation` on show it; `current` is the newest one shown."""
        pending = self._pending.get(key)
        if pending is not None and pending.ticket == ticket:
            pending.generation = generation
            self.seen(current)

    def refused(self, key: str, ticket: int, reason: str) -> None:
        """Not applied: the value in force shows again, with the reason."""
        pending = self._pending.get(key)
        if pending is not None and pending.ticket == ticket:
            del self._pending[key]
            self._refusals[key] = reason
            self.version += 1

    def seen(self, generation: int) -> None:
        """A snapshot of this generation is shown."""
        for key, pending in list(self._pending.items()):
            if pending.generation is not None and pending.generation <= generation:
                del self._pending[key]
                self.version += 1

    def shown(self, key: str, in_force: Any) -> Any:
        """What a control for `key` is to show."""
        pending = self._pending.get(key)
        return in_force if pending is None else pending.value

    def refusal(self, key: str) -> str:
        """Why the last edit of `key` was refused, or ""."""
        return self._refusals.get(key, "")

    def forget_refusals(self) -> None:
        """The user has seen them."""
        if self._refusals:
            self._refusals.clear()
            self.version += 1
