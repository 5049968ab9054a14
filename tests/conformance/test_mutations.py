"""Known faults of an evaluator, put in one at a time: the golden cases must catch each of them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, ClassVar

import msgspec
import pytest

from router.policy import ecma, evaluate, parse, request
from router.policy.document import (
    AllOf,
    AnyOf,
    Condition,
    HasTools,
    Keywords,
    Match,
    MaxChars,
    Metadata,
    MinChars,
    Not,
    Policy,
    Score,
)
from router.policy.evaluate import (
    AskScores,
    Decision,
    Evaluation,
    Failure,
    Scores,
    Step,
    _Evaluation,
)
from router.policy.request import RequestView
from tests.conformance.run import replay, replay_refusals
from tests.conformance.test_corpus import CORPUS

Steps = Generator[Any, Any, Any]
MUTANTS: list[type[_Evaluation]] = []


def mutant(cls: type[_Evaluation]) -> type[_Evaluation]:
    MUTANTS.append(cls)
    return cls


def decide_with(cls: type[_Evaluation]) -> Callable[..., Decision]:
    def decide(policy: Policy, view: RequestView, scores: Mapping[str, Scores | Failure]) -> Decision:
        running = cls(policy, view).run()
        answer: Any = None
        try:
            while True:
                question = running.send(answer)
                if isinstance(question, AskScores):
                    answer = scores.get(question.classifier.id, Failure("none"))
                else:
                    answer = evaluate.found(question.source, view.text)
        except StopIteration as end:
            found: Decision = end.value
            return found

    return decide


# Bounds


@mutant
class MinIsExclusive(_Evaluation):
    def _plain(self, condition: Condition) -> tuple[str, bool]:
        if isinstance(condition, MinChars):
            return "min_chars", len(self._bytes) > condition.bytes
        return super()._plain(condition)


@mutant
class MaxIsExclusive(_Evaluation):
    def _plain(self, condition: Condition) -> tuple[str, bool]:
        if isinstance(condition, MaxChars):
            return "max_chars", len(self._bytes) < condition.bytes
        return super()._plain(condition)


@mutant
class MinCountsCharacters(_Evaluation):
    def _plain(self, condition: Condition) -> tuple[str, bool]:
        if isinstance(condition, MinChars):
            return "min_chars", len(self._view.text) >= condition.bytes
        return super()._plain(condition)


@mutant
class MaxCountsCharacters(_Evaluation):
    def _plain(self, condition: Condition) -> tuple[str, bool]:
        if isinstance(condition, MaxChars):
            return "max_chars", len(self._view.text) <= condition.bytes
        return super()._plain(condition)


# Order


@mutant
class LastRuleWins(_Evaluation):
    def run(self) -> Evaluation:
        self._policy = msgspec.structs.replace(self._policy, rules=self._policy.rules[::-1])
        return super().run()


class _OtherOrder(_Evaluation):
    key: ClassVar[Callable[[Match], Any]]

    def _holds(self, match: Match) -> Steps:
        if isinstance(match, AllOf):
            match = AllOf(tuple(sorted(match.of, key=type(self).key)))
        return super()._holds(match)


@mutant
class ClassifierLast(_OtherOrder):
    key = staticmethod(lambda match: isinstance(match, Score))


@mutant
class KeysBackwards(_Evaluation):
    def _holds(self, match: Match) -> Steps:
        return super()._holds(AllOf(match.of[::-1]) if isinstance(match, AllOf) else match)


# Short circuit and trace


@mutant
class AnyAsksAll(_Evaluation):
    def _holds(self, match: Match) -> Steps:
        if isinstance(match, AnyOf):
            results = []
            for each in match.of:
                results.append((yield from self._holds(each)))
            return any(results)
        return (yield from super()._holds(match))


@mutant
class AllAsksAll(_Evaluation):
    def _holds(self, match: Match) -> Steps:
        if isinstance(match, AllOf):
            results = []
            for each in match.of:
                results.append((yield from self._holds(each)))
            return all(results)
        return (yield from super()._holds(match))


@mutant
class NotIsTraced(_Evaluation):
    def _holds(self, match: Match) -> Steps:
        result = yield from super()._holds(match)
        if isinstance(match, Not):
            self._trace[-1] = msgspec.structs.replace(self._trace[-1], result=result)
        return result


@mutant
class OnlyMatchesAreTraced(_Evaluation):
    def _holds(self, match: Match) -> Steps:
        result = yield from super()._holds(match)
        self._trace = [step for step in self._trace if step.result]
        return result


@mutant
class OnlyTheLastRuleIsTraced(_Evaluation):
    def run(self) -> Evaluation:
        for rule in self._policy.rules:
            self._trace = []
            if (yield from self._holds(rule.match)):
                return Decision(rule.route_to, rule.id, False, rule.outputs, trace=tuple(self._trace))
        return Decision(self._policy.default_model, "", True, trace=tuple(self._trace))


@mutant
class TraceBackwards(_Evaluation):
    def run(self) -> Evaluation:
        decision = yield from super().run()
        return msgspec.structs.replace(decision, trace=decision.trace[::-1])


# Keywords


@mutant
class CaseCounts(_Evaluation):
    def _plain(self, condition: Condition) -> tuple[str, bool]:
        if isinstance(condition, Keywords):
            quantor = all if condition.every else any
            name = "keywords_all" if condition.every else "keywords_any"
            return name, quantor(word in self._view.text for word in condition.words)
        return super()._plain(condition)


class _Folded(_Evaluation):
    fold: ClassVar[Callable[[str], str]]
    fold_word: ClassVar[Callable[[str], str] | None] = None

    def _plain(self, condition: Condition) -> tuple[str, bool]:
        if isinstance(condition, Keywords):
            fold = type(self).fold
            fold_word = type(self).fold_word or fold
            quantor = all if condition.every else any
            name = "keywords_all" if condition.every else "keywords_any"
            return name, quantor(fold_word(word) in fold(self._view.text) for word in condition.words)
        return super()._plain(condition)


@mutant
class UnicodeLower(_Folded):
    fold = str.lower


@mutant
class UnicodeCasefold(_Folded):
    fold = str.casefold


@mutant
class OnlyTheTextIsFolded(_Folded):
    fold = staticmethod(lambda text: text.encode().lower().decode())
    fold_word = staticmethod(lambda word: word)


@mutant
class WholeWords(_Evaluation):
    def _plain(self, condition: Condition) -> tuple[str, bool]:
        if isinstance(condition, Keywords) and not condition.every:
            return "keywords_any", any(word in self._folded.split() for word in self._words(condition))
        return super()._plain(condition)

    @staticmethod
    def _words(condition: Keywords) -> tuple[bytes, ...]:
        return tuple(word.encode().lower() for word in condition.words)


@mutant
class AllIsAny(_Evaluation):
    def _plain(self, condition: Condition) -> tuple[str, bool]:
        if isinstance(condition, Keywords) and condition.every:
            return "keywords_all", super()._plain(Keywords(condition.words))[1]
        return super()._plain(condition)


# Features and metadata


@mutant
class ToolsOnlyIfAsked(_Evaluation):
    """`has_tools: false` counts as no condition."""

    def _plain(self, condition: Condition) -> tuple[str, bool]:
        if isinstance(condition, HasTools):
            return "has_tools", self._view.has_tools or not condition.value
        return super()._plain(condition)


class _MetadataMutant(_Evaluation):
    def _plain(self, condition: Condition) -> tuple[str, bool]:
        if isinstance(condition, Metadata):
            return "metadata", self._reads(condition, self._view.metadata.get(condition.key, ""))
        return super()._plain(condition)

    def _reads(self, condition: Metadata, value: str) -> bool:
        raise NotImplementedError


@mutant
class BlankIsThere(_MetadataMutant):
    def _reads(self, condition: Metadata, value: str) -> bool:
        if condition.exists is not None:
            return bool(value) is condition.exists
        return evaluate._metadata_holds(condition, value)


@mutant
class BlankEquals(_MetadataMutant):
    def _reads(self, condition: Metadata, value: str) -> bool:
        if condition.equals is not None:
            return value == condition.equals
        return evaluate._metadata_holds(condition, value)


@mutant
class EqualsIsTrimmed(_MetadataMutant):
    def _reads(self, condition: Metadata, value: str) -> bool:
        return evaluate._metadata_holds(condition, value.strip() if condition.equals is not None else value)


@mutant
class EqualsIsFolded(_MetadataMutant):
    def _reads(self, condition: Metadata, value: str) -> bool:
        if condition.equals is not None:
            return bool(value.strip()) and value.lower() == condition.equals.lower()
        return evaluate._metadata_holds(condition, value)


@mutant
class AnyIsNotTrimmed(_MetadataMutant):
    def _reads(self, condition: Metadata, value: str) -> bool:
        if condition.any is not None:
            return not set(value.split(",")).isdisjoint(condition.any)
        return evaluate._metadata_holds(condition, value)


@mutant
class AnyIsNotSplit(_MetadataMutant):
    def _reads(self, condition: Metadata, value: str) -> bool:
        if condition.any is not None:
            return value.strip() in condition.any
        return evaluate._metadata_holds(condition, value)


@mutant
class AnyKeepsEmptyTokens(_MetadataMutant):
    def _reads(self, condition: Metadata, value: str) -> bool:
        if condition.any is not None and value.strip():
            return not {token.strip() for token in value.split(",")}.isdisjoint(condition.any)
        return evaluate._metadata_holds(condition, value)


# Classifiers and the outcome


@mutant
class ErrorNeverMatches(_Evaluation):
    def _scored(self, condition: Score) -> Steps:
        step = yield from super()._scored(condition)
        return msgspec.structs.replace(step, result=False) if step.error else step


@mutant
class NoScoreIsZero(_Evaluation):
    def _scored(self, condition: Score) -> Steps:
        step: Step = yield from super()._scored(condition)
        return msgspec.structs.replace(step, error=None, score=0.0) if step.error else step


@mutant
class OutputsAreLost(_Evaluation):
    def run(self) -> Evaluation:
        return msgspec.structs.replace((yield from super().run()), outputs={})


@mutant
class DefaultIsNotTold(_Evaluation):
    def run(self) -> Evaluation:
        return msgspec.structs.replace((yield from super().run()), default_used=False)


def caught(**how: Any) -> str:
    """The first case that fails; "" if none does."""
    return next((outcome.name for outcome in replay(CORPUS, **how) if outcome.fault), "")


def test_the_evaluator_itself_passes() -> None:
    assert caught(decide=decide_with(_Evaluation)) == ""


@pytest.mark.parametrize("cls", MUTANTS, ids=lambda cls: cls.__name__)
def test_a_broken_evaluator_is_caught(cls: type[_Evaluation]) -> None:
    assert caught(decide=decide_with(cls)) != ""


Patch = tuple[Any, str, Any]


def _min_score_exclusive(condition: Score, score: float) -> bool:
    low, high = condition.min_score, condition.max_score
    return (low is None or score > low) and (high is None or score <= high)


def _max_score_exclusive(condition: Score, score: float) -> bool:
    low, high = condition.min_score, condition.max_score
    return (low is None or score >= low) and (high is None or score < high)


def _translated(change: Callable[[str], str]) -> Callable[[str], str]:
    real = ecma.translate
    return lambda source: change(real(source))


PARTS: dict[str, Patch] = {
    "min_score_exclusive": (evaluate, "_in_band", _min_score_exclusive),
    "max_score_exclusive": (evaluate, "_in_band", _max_score_exclusive),
    "regex_is_anchored": (ecma, "translate", _translated(lambda text: f"\\A(?:{text})\\Z")),
    "regex_ignores_case": (ecma, "translate", _translated(lambda text: f"(?i){text}")),
    "regex_is_pythons": (ecma, "translate", lambda source: source),
    "dollar_before_a_newline": (ecma, "translate", _translated(lambda text: text.replace(r"\Z", "$"))),
    "parts_are_joined_by_nothing": (
        request,
        "_parts",
        lambda items: "".join(i["text"] for i in items if isinstance(i, dict) and "text" in i),
    ),
    "prompts_are_joined_by_spaces": (
        request,
        "_lines",
        lambda value: " ".join(v for v in value if isinstance(v, str)) if isinstance(value, list) else value,
    ),
    "images_of_the_last_message": (
        request,
        "has_images",
        lambda body: any(
            isinstance(part, dict) and part.get("type") in ("image_url", "input_image")
            for item in (body.get("messages") or [{}])[-1:]
            for part in (item.get("content") or ())
        ),
    ),
}


@pytest.mark.parametrize("name", PARTS)
def test_a_broken_part_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, part, broken = PARTS[name]
    monkeypatch.setattr(module, part, broken)
    ecma._compiled.cache_clear()
    try:
        assert caught() != ""
    finally:
        ecma._compiled.cache_clear()


def test_values_of_metadata_that_are_no_texts_are_caught() -> None:
    def view(body: dict[str, Any]) -> RequestView:
        metadata = body.get("metadata")
        told = {k: str(v) for k, v in metadata.items()} if isinstance(metadata, dict) else {}
        return msgspec.structs.replace(request.request_view(body), metadata=told)

    assert caught(view=view) != ""


def test_the_first_user_message_instead_of_the_last_is_caught() -> None:
    def view(body: dict[str, Any]) -> RequestView:
        messages = body.get("messages")
        if isinstance(messages, list):
            body = {**body, "messages": messages[::-1]}
        return request.request_view(body)

    assert caught(view=view) != ""


@pytest.mark.parametrize(
    ("module", "check", "broken"),
    [
        (parse, "check_form", lambda value: None),
        (parse.ecma, "check", lambda source: None),
        (parse, "_one_of", lambda value, allowed, path, kind: value),
        (parse, "MAX_DEPTH", 65),
    ],
)
def test_a_check_that_is_left_out_is_caught(
    module: Any, check: str, broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, check, broken)
    assert [outcome.name for outcome in replay_refusals(CORPUS) if outcome.fault] != []
