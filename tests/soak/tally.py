"""What came of a soak: every request under one heading, and the table at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

#: Reasons for which a request may be refused here. Anything else is a fault.
REFUSALS: Final = frozenset(
    {
        "admission_rejected",
        "candidate_not_found",
        "insufficient_memory",
        "load_backoff",
        "load_failed",
        "model_not_found",
        "out_of_memory",
        "paused",
        "policy_disabled",
        "queue_full",
        "queue_timeout",
        "slots_pinned_error",
        "unloaded",
    }
)
#: What a prompt that asks for it may bring about besides.
ASKED_FOR: Final[Mapping[str, frozenset[str]]] = {
    "die": frozenset({"worker_died"}),
    "cut": frozenset({"worker_answer_broken"}),
    "refuse": frozenset({"500"}),
    "rubbish": frozenset({"worker_answer_broken"}),
}


class Cut(Struct, frozen=True):
    """An answer that its worker's end broke off: whose, and from when to when it was asked for."""

    model: str
    began: float
    ended: float


class Kill(Struct, frozen=True):
    """The end of a worker that somebody caused, or may have; the model "" is not known."""

    model: str
    began: float
    ended: float


class Tally:
    """Counts, and sentences about what must not be."""

    def __init__(self) -> None:
        self.asked = 0
        self.answered = 0
        self.left = 0
        self.refused: Counter[str] = Counter()
        self.misdone: Counter[str] = Counter()
        self.lost: list[str] = []
        self.cuts: list[Cut] = []
        self.kills: list[Kill] = []
        self.faults: list[str] = []
        self.health_s: list[float] = []
        self.deeds: Counter[str] = Counter()

    def refuse(self, code: str, model: str, misdeed: str, began: float, ended: float) -> None:
        """A request was answered with an error, or its stream ended with one."""
        if misdeed == "die":
            # Whatever came of the request itself, such as another try that was refused.
            self.kills.append(Kill(model, began, ended))
        if code in ASKED_FOR.get(misdeed, ()):
            self.misdone[misdeed] += 1
        elif code == "worker_died":
            self.cuts.append(Cut(model, began, ended))
        elif code in REFUSALS:
            self.refused[code] += 1
        else:
            self.refused[code] += 1
            self.faults.append(f"{model} was refused with {code}")

    def unexplained(self, policies: Sequence[str]) -> list[Cut]:
        """Cuts without anybody who ended that model's worker meanwhile."""
        return [
            cut
            for cut in self.cuts
            if not any(
                kill.began <= cut.ended + 1.0
                and cut.began <= kill.ended + 1.0
                and (not kill.model or kill.model == cut.model or {kill.model, cut.model} & set(policies))
                for kill in self.kills
            )
        ]


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The slope of the line through the points, by least squares; 0 for fewer than two."""
    count = len(points)
    mean_x, mean_y = (sum(p[axis] for p in points) / count if count else 0.0 for axis in (0, 1))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


def table(rows: Sequence[tuple[str, Any]]) -> str:
    """Two columns, as Markdown."""
    wide = max(len(name) for name, _ in rows)
    lines = [f"| {'what'.ljust(wide)} | value |", f"| {'-' * wide} | --- |"]
    return "\n".join([*lines, *(f"| {name.ljust(wide)} | {value} |" for name, value in rows)])
