"""What is held against models: loads that failed, workers that died, and how long each is refused for it."""

from __future__ import annotations

from collections.abc import Mapping

from router.catalog.model import Identity, Model
from router.errors import WorkerDied
from router.residency.world import Failure

BACKOFF_FIRST_S, BACKOFF_MAX_S = 5.0, 300.0
"""The n-th failure in a row is held against a model for the first times 2 to the n s, at most the second."""

DEATHS_WITHIN_S, DEATHS_BEFORE_BACKOFF = 120.0, 3


class Failures:
    """Failures in a row by model. Times are seconds on the loop's clock."""

    def __init__(self) -> None:
        self._failures: dict[str, tuple[Failure, Identity]] = {}
        self._deaths: dict[str, list[float]] = {}

    def rows(self) -> Mapping[str, Failure]:
        """The last failure of each model that has one."""
        return {model: failure for model, (failure, _) in self._failures.items()}

    def note(self, model: Model, message: str, now: float) -> None:
        """A load failed."""
        before = self._failures.get(model.name)
        count = before[0].count + 1 if before else 1
        until = now + min(BACKOFF_FIRST_S * 2**count, BACKOFF_MAX_S)
        self._failures[model.name] = Failure(count, until, message), model.identity

    def judge_death(
        self, model: Model, how: str, now: float, *, of_first_request: bool = False, last_words: str = ""
    ) -> WorkerDied | None:
        """What a worker's death says of its model. `how` is what it did, such as `ended with signal 9`, and
        `last_words` what it said of the cause, "" if nothing.

        One death is an accident: the next request loads the model again, and None is returned. One of the
        first request that a worker got, or several in a row, is a fault of the model like a failed load.
        """
        recent = [at for at in self._deaths.get(model.name, ()) if now - at < DEATHS_WITHIN_S]
        self._deaths[model.name] = [*recent, now]
        if not of_first_request and len(recent) + 1 < DEATHS_BEFORE_BACKOFF:
            return None
        often = f", {len(recent) + 1} times in a row" if recent else ""
        last = f" It said: {last_words}." if last_words else ""
        error = WorkerDied(f"The worker of {model.name} {how}{often}.{last}")
        self.note(model, error.message, now)
        return error

    def answered(self, model: str) -> None:
        """The model has answered a request."""
        self._failures.pop(model, None)

    def forget(self, model: str) -> None:
        """Somebody asked for the model explicitly: it gets a fresh start."""
        self._failures.pop(model, None)
        self._deaths.pop(model, None)

    def forget_changed(self, lookup: Mapping[str, Model]) -> None:
        """What is held against a file is not held against another of the same name."""
        for name, (_, identity) in list(self._failures.items()):
            model = lookup.get(name)
            if model is None or model.identity != identity:
                self.forget(name)
