"""Counts of what was answered, for the metrics."""

from __future__ import annotations

from collections import defaultdict


class Tally:
    """Counters since the start. `model` names a model that exists, or is "" for a request without one."""

    def __init__(self) -> None:
        self.requests: defaultdict[tuple[str, int], int] = defaultdict(int)
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.tokens: defaultdict[str, int] = defaultdict(int)
        self.prompt_tokens: defaultdict[str, int] = defaultdict(int)

    def request(self, model: str, status: int, seconds: float) -> None:
        """Count a request and how long it took, in seconds."""
        self.requests[model, status] += 1
        self.seconds[model] += seconds

    def generated(self, model: str, tokens: int, prompt_tokens: int) -> None:
        """Count the tokens of an answer and of its prompt."""
        self.tokens[model] += tokens
        self.prompt_tokens[model] += prompt_tokens
