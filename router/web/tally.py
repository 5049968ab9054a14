"""Counts of what was answered, for the metrics, and the timings of the newest answer."""

from __future__ import annotations

from collections import defaultdict

from msgspec import Struct


class Last(Struct, frozen=True):
    """How the newest answer of a model went.

    `time_to_first_token_s` is from the grant of a slot to the first byte of the answer. Rates are None where
    nothing tells them; the prompt's is of the tokens that were not in the cache.
    """

    model: str
    path: str
    time_to_first_token_s: float
    total_s: float
    prompt_tokens: int
    tokens: int
    tokens_per_s: float | None
    prompt_tokens_per_s: float | None


class Tally:
    """Counters since the start. `model` names a model that exists, or is "" for a request without one."""

    def __init__(self) -> None:
        self.requests: defaultdict[tuple[str, int], int] = defaultdict(int)
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.tokens: defaultdict[str, int] = defaultdict(int)
        self.prompt_tokens: defaultdict[str, int] = defaultdict(int)
        self.last: Last | None = None
        self.routes: defaultdict[tuple[str, str, str], int] = defaultdict(int)
        self.switches: defaultdict[str, int] = defaultdict(int)
        self.fallbacks: defaultdict[tuple[str, str, str], int] = defaultdict(int)

    def request(self, model: str, status: int, seconds: float) -> None:
        """Count a request and how long it took, in seconds."""
        self.requests[model, status] += 1
        self.seconds[model] += seconds

    def routed(self, policy: str, rule: str, candidate: str) -> None:
        """Count a decision of a policy. `rule` is `default` where none matched."""
        self.routes[policy, rule, candidate] += 1

    def gave_way(self, policy: str, candidate: str, reason: str) -> None:
        """Count a candidate that another one answered for."""
        self.fallbacks[policy, candidate, reason] += 1

    def switched(self, policy: str) -> None:
        """Count a conversation's move to another model."""
        self.switches[policy] += 1

    def answered(self, last: Last) -> None:
        """Count the tokens of an answer and of its prompt, and keep how it went."""
        self.last = last
        if last.tokens or last.prompt_tokens:
            self.tokens[last.model] += last.tokens
            self.prompt_tokens[last.model] += last.prompt_tokens
