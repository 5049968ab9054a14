"""A registered policy, parsed: plain data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct

SEMANTIC_SIMILARITY = "semantic_similarity"
CLASSIFIER = "classifier"
LLM_CHOICE = "llm"


class AnyOf(Struct, frozen=True):
    """True if one of them is; they are asked in order, and no further than needed."""

    of: tuple[Match, ...]


class AllOf(Struct, frozen=True):
    """True if all of them are; they are asked in order, and no further than needed."""

    of: tuple[Match, ...]


class Not(Struct, frozen=True):
    """True if the other is not."""

    of: Match


class Keywords(Struct, frozen=True):
    """Whether some, or with `every` all, of the words occur; only ASCII letters match in either case."""

    words: tuple[str, ...]
    every: bool = False


class Regex(Struct, frozen=True):
    """Whether the regular expression is found anywhere."""

    source: str


class MinChars(Struct, frozen=True):
    """Whether the text has this many bytes in UTF-8, or more."""

    bytes: int


class MaxChars(Struct, frozen=True):
    """Whether the text has this many bytes in UTF-8, or fewer."""

    bytes: int


class HasTools(Struct, frozen=True):
    """Whether the request brings tools, or does not."""

    value: bool


class HasImages(Struct, frozen=True):
    """Whether the request brings images, or does not."""

    value: bool


class Metadata(Struct, frozen=True):
    """What one of the request's metadata says. Exactly one of the three tests is given."""

    key: str
    equals: str | None = None
    any: tuple[str, ...] | None = None
    exists: bool | None = None


class Score(Struct, frozen=True):
    """Whether a classifier's score for a label lies in a band whose ends belong to it.

    `shown_label` tells whether the policy names the label, or leaves it to the classifier.
    """

    classifier: str
    label: str
    min_score: float | None = None
    max_score: float | None = None
    shown_label: bool = True


Condition = Keywords | Regex | MinChars | MaxChars | HasTools | HasImages | Metadata | Score
Match = AnyOf | AllOf | Not | Condition


class Rule(Struct, frozen=True):
    """One rule: the first whose match holds decides. `outputs` go into the decision."""

    id: str
    match: Match
    route_to: str
    outputs: dict[str, Any] = {}


class Classifier(Struct, frozen=True):
    """A model that scores labels. `phrases` are the reference phrases of each label."""

    id: str
    type: str
    model: str
    labels: tuple[str, ...]
    prompt: str = ""
    default_label: str | None = None
    phrases: tuple[tuple[str, tuple[str, ...]], ...] = ()
    on_error: bool = False


class Policy(Struct, frozen=True):
    """A `collection.router` document. `candidates` are as written: names or aliases of models;
    `helpers` are the models that its classifiers ask.

    With `fallback`, a candidate that cannot answer gives way to the next one; from a local to a remote one
    only with `fallback_remote`. `breadth` is how many words and expressions its rules look for.
    """

    name: str
    components: tuple[str, ...]
    candidates: tuple[str, ...]
    default_model: str
    rules: tuple[Rule, ...]
    enabled: bool = True
    helpers: tuple[str, ...] = ()
    classifiers: tuple[Classifier, ...] = ()
    fallback: bool = False
    fallback_remote: bool = False
    breadth: int = 0

    def classifier(self, id: str) -> Classifier:
        """Its classifier of that id; a parsed policy has every one that its rules name."""
        return next(c for c in self.classifiers if c.id == id)


def breadth(rules: Iterable[Rule]) -> int:
    """How many words and expressions rules look for in a text."""
    leaves = (leaf for rule in rules for leaf in conditions(rule.match))
    return sum(len(leaf.words) if isinstance(leaf, Keywords) else 1 for leaf in leaves)


def conditions(match: Match) -> Iterator[Condition]:
    """The leaves of a match, in the order in which they are asked."""
    if isinstance(match, (AnyOf, AllOf)):
        for each in match.of:
            yield from conditions(each)
    elif isinstance(match, Not):
        yield from conditions(match.of)
    else:
        yield match
