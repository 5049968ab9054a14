"""How a provider does: a small state machine without a clock or I/O of its own."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from msgspec import Struct

from router.errors import RouterError

CHECK_S: Final = 60.0
"""Seconds between two looks at a provider that answers."""
BACKOFF_S: Final = (1.0, 2.0, 4.0, 8.0, 15.0)
"""Seconds until the next look at one that does not, by looks in vain."""
BUSY_S: Final = 15.0
"""Seconds until the next look at one that was too busy for it."""
FAULTS: Final = 3
"""So many server errors of one model in a row keep requests away from it for a while."""
LEAST_BLOCK_S: Final = 2.0
MAX_BLOCK_S: Final = 60.0
"""Bounds of how long a model is left alone, whatever the provider asks for."""


class State(StrEnum):
    """What is known: nothing yet, it answers, it does not answer, it refuses the key."""

    CHECKING = "checking"
    READY = "ready"
    DOWN = "down"
    REFUSED = "refused"


class Block(Struct, frozen=True):
    """A model that is to be left alone until a time on the loop's clock, and what to tell who asks for it.

    `asked` tells that the provider wants that; else it is because the model failed again and again.
    """

    until: float
    error: RouterError
    asked: bool


class Health:
    """The state of one provider.

    Attributes:
        problem: a sentence on what is wrong; "" if nothing is.
        due: when to look next, on the loop's clock.
    """

    def __init__(self) -> None:
        self.state = State.CHECKING
        self.problem = ""
        self.due = 0.0
        self._vain = 0
        self._key_refused = False
        self._faults: dict[str, int] = {}
        self._blocks: dict[str, Block] = {}

    @property
    def is_down(self) -> bool:
        """Nothing should be sent there before a look has found it well."""
        return self.state is State.DOWN

    def looked(self, now: float) -> bool:
        """A look found it well. Returns whether the state changed.

        Some list their models to anybody: that says nothing of a key that they refused with a request.
        """
        self._vain = 0
        self.due = now + CHECK_S
        if self._key_refused:
            return False
        return self._set(State.READY, "")

    def unanswered(self, now: float) -> None:
        """A look got no answer, from a provider that is sending others at this time: it is busy."""
        self.due = now + BUSY_S

    def failed(self, now: float, problem: str, *, refused: bool = False) -> bool:
        """A look, or a connection for a request, failed. Returns whether the state changed."""
        if refused:
            self.due = now + CHECK_S
        elif self.state is not State.DOWN or now >= self.due:
            # Many requests may fail together: they count as one.
            self.due = now + BACKOFF_S[min(self._vain, len(BACKOFF_S) - 1)]
            self._vain += 1
        return self._set(State.REFUSED if refused else State.DOWN, problem)

    def answered(self, model: str) -> bool:
        """A request was answered, be it with an error that is the request's own fault."""
        self._faults.pop(model, None)
        self._blocks.pop(model, None)
        self._key_refused = False
        self._vain = 0
        return self._set(State.READY, "")

    def key_refused(self, problem: str) -> bool:
        """A request was refused for its key. Only one that is answered shows that the key is good again."""
        self._key_refused = True
        return self._set(State.REFUSED, problem)

    def fault(self, model: str, now: float, error: RouterError) -> None:
        """A request ended in a server error."""
        count = self._faults.pop(model, 0) + 1
        self._faults[model] = count
        if count >= FAULTS:
            self._block(
                model,
                Block(now + min(LEAST_BLOCK_S * 2 ** (count - FAULTS), MAX_BLOCK_S), error, asked=False),
            )
        while len(self._faults) > 1_000:
            del self._faults[next(iter(self._faults))]

    def busy(self, model: str, now: float, error: RouterError) -> None:
        """The provider wants requests for a model to come later, after `error.retry_after_s`."""
        wait_s = min(error.retry_after_s or 0.0, MAX_BLOCK_S)
        self._block(model, Block(now + wait_s, error, asked=True))

    def block(self, model: str, now: float) -> Block | None:
        """Why a model is to be left alone now; None if it is not."""
        found = self._blocks.get(model)
        if found is not None and found.until <= now:
            del self._blocks[model]
            return None
        return found

    def _block(self, model: str, block: Block) -> None:
        self._blocks.pop(model, None)
        self._blocks[model] = block
        while len(self._blocks) > 1_000:
            del self._blocks[next(iter(self._blocks))]

    def _set(self, state: State, problem: str) -> bool:
        changed = (state, problem) != (self.state, self.problem)
        self.state, self.problem = state, problem
        return changed
