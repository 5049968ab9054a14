"""Which candidate a request goes to: pure. What takes a model or much time is asked of whoever runs it."""

from __future__ import annotations

import functools
from collections.abc import Generator, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from router.policy import ecma
from router.policy.document import (
    AllOf,
    AnyOf,
    Classifier,
    Condition,
    HasImages,
    HasTools,
    Keywords,
    Match,
    MaxChars,
    Metadata,
    MinChars,
    Not,
    Policy,
    Regex,
    Score,
)
from router.policy.parse import VERSION
from router.policy.request import RequestView

REGEX_INPUT: Final = 1 << 20
"""Bytes of text beyond which no regular expression matches."""
SEARCH_S: Final = 0.25
"""Seconds that one regular expression may take."""
QUICK_INPUT: Final = 16 << 10
QUICK_S: Final = 0.002
"""Texts of so many characters are searched at once, for so long; what is not found out then is asked for."""

BLANKS: Final = " \t\n\v\f\r"


class Step(Struct, frozen=True, omit_defaults=True):
    """One condition that was evaluated, and what came of it.

    Attributes:
        score: what the classifier gave the label; for conditions on a classifier.
        label: the label, where the policy names it.
        rationale: why, in the classifier's own words.
        error: why the condition could not be evaluated properly.
    """

    condition: str
    result: bool
    score: float | None = None
    label: str | None = None
    rationale: str | None = None
    error: str | None = None


class Decision(Struct, frozen=True):
    """Where a request goes, and why. `matched_rule` is "" when no rule matched."""

    route_to: str
    matched_rule: str
    default_used: bool
    outputs: dict[str, Any] = {}
    version: str = VERSION
    trace: tuple[Step, ...] = ()

    def document(self, *, trace: bool) -> dict[str, Any]:
        """The decision as clients see it, with or without its trace."""
        told: dict[str, Any] = {
            "version": self.version,
            "route_to": self.route_to,
            "matched_rule": self.matched_rule,
            "default_used": self.default_used,
            "outputs": self.outputs,
        }
        if trace:
            told["trace"] = [msgspec.to_builtins(step) for step in self.trace]
        return told


class Scores(Struct, frozen=True):
    """What a classifier says: label to score, 0 to 1."""

    by_label: Mapping[str, float]
    rationale: str | None = None


class Failure(Struct, frozen=True):
    """Why a classifier could not say anything."""

    error: str


class AskScores(Struct, frozen=True):
    """The scores of this classifier for the request are needed: answer with `Scores` or a `Failure`."""

    classifier: Classifier


class AskSearch(Struct, frozen=True):
    """Whether this regular expression is found in the request's text is needed, and may take a while.

    Answer true or false, or None if it took too long.
    """

    source: str


Question = AskScores | AskSearch
Answer = Scores | Failure | bool | None
Evaluation = Generator[Question, Answer, Decision]


def evaluation(policy: Policy, view: RequestView) -> Evaluation:
    """Evaluate a policy; the first rule that matches decides, else its default model is taken.

    A generator: it yields what it needs, is sent the answer, and returns the decision. Each classifier is
    asked for at most once, and only when a condition that counts needs it.
    """
    return _Evaluation(policy, view).run()


def decide(
    policy: Policy, view: RequestView, scores: Mapping[str, Scores | Failure] | None = None
) -> Decision:
    """Evaluate a policy here and now, with these scores by classifier id. May take as long as its regular
    expressions do."""
    running = evaluation(policy, view)
    answer: Answer = None
    try:
        while True:
            question = running.send(answer)
            if isinstance(question, AskScores):
                answer = (scores or {}).get(question.classifier.id, Failure("there are no scores for it"))
            else:
                answer = found(question.source, view.text)
    except StopIteration as end:
        decision: Decision = end.value
        return decision


def found(source: str, text: str, budget_s: float = SEARCH_S, *, release: bool = False) -> bool | None:
    """The answer to `AskSearch`. With `release` other threads may run meanwhile."""
    try:
        return ecma.search(source, text, budget_s, release=release)
    except ecma.TooSlow:
        return None


class _Evaluation:
    def __init__(self, policy: Policy, view: RequestView) -> None:
        self._policy = policy
        self._view = view
        self._trace: list[Step] = []
        self._scores: dict[str, Scores | Failure] = {}

    def run(self) -> Evaluation:
        for rule in self._policy.rules:
            if (yield from self._holds(rule.match)):
                return Decision(rule.route_to, rule.id, False, rule.outputs, trace=tuple(self._trace))
        return Decision(self._policy.default_model, "", True, trace=tuple(self._trace))

    def _holds(self, match: Match) -> Generator[Question, Answer, bool]:
        match match:
            case AnyOf():
                for each in match.of:
                    if (yield from self._holds(each)):
                        return True
                return False
            case AllOf():
                for each in match.of:
                    if not (yield from self._holds(each)):
                        return False
                return True
            case Not():
                return not (yield from self._holds(match.of))
            case Score():
                step = yield from self._scored(match)
            case Regex():
                step = yield from self._searched(match)
            case _:
                step = Step(*self._plain(match))
        self._trace.append(step)
        return step.result

    def _plain(self, condition: Condition) -> tuple[str, bool]:
        """Name and result of a condition that takes neither model nor time."""
        view = self._view
        match condition:
            case Keywords():
                text, words = self._folded, _folded_words(condition.words)
                if condition.every:
                    return "keywords_all", all(word in text for word in words)
                return "keywords_any", any(word in text for word in words)
            case MinChars():
                return "min_chars", len(self._bytes) >= condition.bytes
            case MaxChars():
                return "max_chars", len(self._bytes) <= condition.bytes
            case HasTools():
                return "has_tools", view.has_tools is condition.value
            case HasImages():
                return "has_images", view.has_images is condition.value
            case Metadata():
                return "metadata", _metadata_holds(condition, view.metadata.get(condition.key, ""))
        raise TypeError(f"{condition!r} is no condition")

    @functools.cached_property
    def _bytes(self) -> bytes:
        return _bytes(self._view.text)

    @functools.cached_property
    def _folded(self) -> bytes:
        return self._bytes.lower()

    def _searched(self, condition: Regex) -> Generator[Question, Answer, Step]:
        text = self._view.text
        if len(text) > REGEX_INPUT // 4 and len(self._bytes) > REGEX_INPUT:
            return Step("regex", False, error=f"the text is longer than {REGEX_INPUT >> 20} MiB")
        if len(text) <= QUICK_INPUT:
            try:
                return Step("regex", ecma.search(condition.source, text, QUICK_S))
            except ecma.TooSlow:
                pass  # It gets more time, where that holds nobody up.
        answer = yield AskSearch(condition.source)
        if answer is None:
            return Step("regex", False, error="it took too long")
        return Step("regex", bool(answer))

    def _scored(self, condition: Score) -> Generator[Question, Answer, Step]:
        id = condition.classifier
        classifier = self._policy.classifier(id)
        if id not in self._scores:
            answer = yield AskScores(classifier)
            self._scores[id] = answer if isinstance(answer, (Scores, Failure)) else Failure("no answer")
        scores = self._scores[id]
        name = f"classifier:{id}"
        label = condition.label if condition.shown_label else None
        if isinstance(scores, Failure):
            return Step(name, classifier.on_error, label=label, error=scores.error)
        score = scores.by_label.get(condition.label)
        if score is None:
            return Step(
                name,
                classifier.on_error,
                label=label,
                error=f"{classifier.model} gave no score for {condition.label}",
            )
        return Step(name, _in_band(condition, score), score=score, label=label, rationale=scores.rationale)


def _in_band(condition: Score, score: float) -> bool:
    low, high = condition.min_score, condition.max_score
    return (low is None or score >= low) and (high is None or score <= high)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


@functools.lru_cache(maxsize=4096)
def _folded_words(words: tuple[str, ...]) -> tuple[bytes, ...]:
    """In UTF-8 with the ASCII letters in lower case; all others stay, as version "1" has it."""
    return tuple(_bytes(word).lower() for word in words)


def _metadata_holds(condition: Metadata, value: str) -> bool:
    there = bool(value.strip(BLANKS))
    if condition.exists is not None:
        return there is condition.exists
    if not there:
        return False
    if condition.any is not None:
        tokens = {token.strip(BLANKS) for token in value.split(",")} - {""}
        return not tokens.isdisjoint(condition.any)
    return value == condition.equals
