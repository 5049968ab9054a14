"""From a `collection.router` document, version "1", to a policy: strictly, naming the place of any fault."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, NoReturn

from router.policy import ecma
from router.policy.document import (
    LLM_CHOICE,
    SEMANTIC_SIMILARITY,
    AllOf,
    AnyOf,
    Classifier,
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
    Rule,
    Score,
    breadth,
)
from router.policy.schema import PolicyFault, check_form, expected, fault, shown

__all__ = ["RECIPE", "VERSION", "PolicyFault", "decode", "normalized", "parse_policy"]

VERSION: Final = "1"
RECIPE: Final = "collection.router"
MAX_DEPTH: Final = 64
"""How deep any, all and not may be nested."""
MAX_SIZE: Final = 4 << 20
MAX_VALUES: Final = 200_000
MAX_NESTING: Final = 200
MAX_EXPRESSIONS: Final = 500
"""Bounds on a document: bytes, values in it, how deep they are nested, regular expressions."""

ROUTER_ID: Final = "__router"

_GROUPS: Final = ("any", "all", "not")
_OF_SCORE: Final = ("label", "min_score", "max_score")
_TESTS: Final = ("equals", "any", "exists")


def parse_policy(document: Any, *, named: bool = True) -> Policy:
    """The policy that a document describes. A large one takes a while: call it off the loop.

    Args:
        document: the JSON text as bytes, or what it decodes to.
        named: it must have a name; one that is only tried out need not.

    Raises:
        PolicyFault: naming the JSON path and what was expected there.
    """
    value = decode(document) if isinstance(document, (bytes, bytearray)) else document
    _check_size(value)
    if not isinstance(value, dict):
        expected("$", "an object", value)
    if value.get("version", VERSION) != VERSION:
        fault("$.version", f'this router reads version "{VERSION}"', value["version"])
    if value.get("recipe", RECIPE) != RECIPE:
        expected("$.recipe", f'"{RECIPE}"', value["recipe"])
    if named and "model_name" not in value:
        raise PolicyFault('$: the key "model_name" is missing', param="$")
    check_form(value)
    return _policy(value)


def decode(text: bytes | bytearray) -> Any:
    """The JSON value of a document.

    Raises:
        PolicyFault: it is no JSON, or an object in it names a key twice.
    """
    if len(text) > MAX_SIZE:
        raise PolicyFault(f"$: it is larger than {MAX_SIZE >> 20} MiB", param="$")
    try:
        return json.loads(text, object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except RecursionError as error:
        raise PolicyFault("$: it is nested too deeply", param="$") from error
    except ValueError as error:
        raise PolicyFault(f"$: it is no JSON: {error}", param="$") from error


def normalized(document: Mapping[str, Any]) -> dict[str, Any]:
    """A document that `parse_policy` accepts, with `routing.router` written out as what it stands for."""
    routing = document["routing"]
    if "router" not in routing:
        return dict(document)
    return {**document, "routing": _written_out(routing)}


def _written_out(routing: Mapping[str, Any]) -> dict[str, Any]:
    router = routing["router"]
    candidates = list(dict.fromkeys(routing["candidates"]))
    classifier = {
        "id": ROUTER_ID,
        "type": LLM_CHOICE,
        "model": router["model"],
        "prompt": router["prompt"],
        "labels": candidates,
    }
    rules = [
        {
            "id": f"__route_{place}",
            "match": {"classifier": ROUTER_ID, "label": candidate, "min_score": 1.0},
            "route_to": candidate,
        }
        for place, candidate in enumerate(candidates)
    ]
    rest = {key: value for key, value in routing.items() if key != "router"}
    return {**rest, "classifiers": [classifier], "rules": rules}


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        twice = next(key for key, count in counts.items() if count > 1)
        raise ValueError(f"{shown(twice)} is named twice in one object")
    return found


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON number")


def _check_size(document: Any) -> None:
    level, values = [document], 0
    for _ in range(MAX_NESTING):
        values += len(level)
        if values > MAX_VALUES:
            raise PolicyFault(f"$: it has more than {MAX_VALUES} values", param="$")
        level = list(_inner(level))
        if not level:
            return
    raise PolicyFault(f"$: it is nested more than {MAX_NESTING} deep", param="$")


def _inner(values: list[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, dict):
            yield from value.values()
        elif isinstance(value, list):
            yield from value


def _policy(root: Mapping[str, Any]) -> Policy:
    name = _name(root.get("model_name", "(unnamed)"), "$.model_name")
    components = _names(root["components"], "$.components")
    if "model_name" in root and name in components:
        fault("$.components", "a policy cannot be a component of itself", name)

    routing = root["routing"]
    candidates = _names(routing["candidates"], "$.routing.candidates")
    for place, candidate in enumerate(candidates):
        _one_of(candidate, components, f"$.routing.candidates[{place}]", "components")
    default = _one_of(routing["default_model"], candidates, "$.routing.default_model", "candidates")
    if "router" in routing:
        for other in ("rules", "classifiers"):
            if other in routing:
                raise PolicyFault(
                    f"$.routing: router and {other} exclude each other; give one of them",
                    param="$.routing",
                )
        _one_of(routing["router"]["model"], components, "$.routing.router.model", "components")
        routing = _written_out(routing)
    elif "rules" not in routing:
        raise PolicyFault('$.routing: the key "rules" is missing (or "router" instead)', param="$.routing")
    classifiers = _classifiers(routing.get("classifiers", []), components)
    _check_expressions([rule["match"] for rule in routing["rules"]])
    rules = _rules(routing["rules"], candidates, classifiers)
    return Policy(
        name=name,
        components=components,
        candidates=candidates,
        default_model=default,
        rules=rules,
        enabled=root.get("enabled", True),
        helpers=tuple(dict.fromkeys(c.model for c in classifiers.values())),
        classifiers=tuple(classifiers.values()),
        fallback=routing.get("fallback", False),
        fallback_remote=routing.get("fallback_remote", False),
        breadth=breadth(rules),
    )


def _check_expressions(value: Any) -> None:
    """Each takes a moment to be understood; so many of them would take long."""
    level, count = [value], 0
    while level:
        count += sum("regex" in each for each in level if isinstance(each, dict))
        level = list(_inner(level))
    if count > MAX_EXPRESSIONS:
        raise PolicyFault(
            f"$.routing.rules: they have {count} regular expressions; at most {MAX_EXPRESSIONS} are read",
            param="$.routing.rules",
        )


def _classifiers(items: list[dict[str, Any]], components: Collection[str]) -> dict[str, Classifier]:
    found: dict[str, Classifier] = {}
    places: dict[str, int] = {}
    for place, item in enumerate(items):
        path = f"$.routing.classifiers[{place}]"
        classifier = _classifier(item, path, components)
        if classifier.id in found:
            of = f"already the id of $.routing.classifiers[{places[classifier.id]}]"
            fault(f"{path}.id", of, classifier.id)
        found[classifier.id] = classifier
        places[classifier.id] = place
    return found


def _classifier(item: dict[str, Any], path: str, components: Collection[str]) -> Classifier:
    kind = item["type"]
    needs = {SEMANTIC_SIMILARITY: ("reference_phrases",), LLM_CHOICE: ("prompt", "labels")}.get(kind, ())
    for key in needs:
        if key not in item:
            raise PolicyFault(f"{path}: the key {shown(key)} is missing", param=path)
    phrases = {label: tuple(each) for label, each in item.get("reference_phrases", {}).items()}
    if "" in phrases:
        expected(f"{path}.reference_phrases", "labels that are not empty", "")
    if kind == SEMANTIC_SIMILARITY:
        labels = tuple(phrases)
    else:
        labels = tuple(item.get("labels", ()))
        if len(set(labels)) != len(labels):
            fault(f"{path}.labels", "a label is named twice", list(labels))
    default = item.get("default_label")
    if default is not None and labels:
        _one_of(default, labels, f"{path}.default_label", "labels")
    return Classifier(
        id=item["id"],
        type=kind,
        model=_one_of(item["model"], components, f"{path}.model", "components"),
        labels=labels,
        prompt=item.get("prompt", ""),
        default_label=default,
        phrases=tuple(phrases.items()),
        on_error=item.get("on_error") == "match_true",
    )


def _rules(
    items: list[dict[str, Any]], candidates: Collection[str], classifiers: Mapping[str, Classifier]
) -> tuple[Rule, ...]:
    rules: list[Rule] = []
    places: dict[str, int] = {}
    for place, item in enumerate(items):
        path = f"$.routing.rules[{place}]"
        rule = Rule(
            id=item["id"],
            match=_match(item["match"], f"{path}.match", classifiers, 0),
            route_to=_one_of(item["route_to"], candidates, f"{path}.route_to", "candidates"),
            outputs=item.get("outputs", {}),
        )
        if rule.id in places:
            fault(f"{path}.id", f"already the id of $.routing.rules[{places[rule.id]}]", rule.id)
        places[rule.id] = place
        rules.append(rule)
    return tuple(rules)


def _match(node: dict[str, Any], path: str, classifiers: Mapping[str, Classifier], depth: int) -> Match:
    if depth > MAX_DEPTH:
        raise PolicyFault(f"{path}: any, all and not are nested more than {MAX_DEPTH} deep", param=path)
    groups = [key for key in _GROUPS if key in node]
    if groups:
        if len(node) > 1:
            other = next(key for key in node if key != groups[0])
            raise PolicyFault(
                f"{path}: {groups[0]} stands alone in its object; put {other} beside it with all", param=path
            )
        return _group(groups[0], node[groups[0]], path, classifiers, depth)
    lone = next((key for key in _OF_SCORE if key in node), None)
    if lone is not None and "classifier" not in node:
        raise PolicyFault(f"{path}: {lone} needs a classifier beside it", param=path)
    leaves: list[Match] = []
    if "classifier" in node:
        leaves.append(_score(node, path, classifiers))
    for key in sorted(node):
        match key:
            case "keywords_any" | "keywords_all":
                leaves.append(Keywords(tuple(node[key]), every=key == "keywords_all"))
            case "regex":
                leaves.append(_regex(node[key], f"{path}.regex"))
            case "min_chars":
                leaves.append(MinChars(int(node[key])))
            case "max_chars":
                leaves.append(MaxChars(int(node[key])))
            case "has_tools":
                leaves.append(HasTools(node[key]))
            case "has_images":
                leaves.append(HasImages(node[key]))
            case "metadata":
                leaves.append(_metadata(node[key], f"{path}.metadata"))
    return leaves[0] if len(leaves) == 1 else AllOf(tuple(leaves))


def _group(
    kind: str, of: Any, path: str, classifiers: Mapping[str, Classifier], depth: int
) -> AnyOf | AllOf | Not:
    path = f"{path}.{kind}"
    if kind == "not":
        return Not(_match(of, path, classifiers, depth + 1))
    parts = tuple(_match(each, f"{path}[{n}]", classifiers, depth + 1) for n, each in enumerate(of))
    return AnyOf(parts) if kind == "any" else AllOf(parts)


def _regex(source: str, path: str) -> Regex:
    try:
        ecma.check(source)
    except ecma.RegexFault as error:
        raise PolicyFault(f"{path}: {error}; got {shown(source)}", param=path) from error
    return Regex(source)


def _metadata(node: dict[str, Any], path: str) -> Metadata:
    given = [key for key in _TESTS if key in node]
    if len(given) != 1:
        got = " and ".join(given) or "none of them"
        raise PolicyFault(f"{path}: expected exactly one of equals, any and exists; got {got}", param=path)
    listed = tuple(node["any"]) if "any" in node else None
    return Metadata(node["key"], node.get("equals"), listed, node.get("exists"))


def _score(node: dict[str, Any], path: str, classifiers: Mapping[str, Classifier]) -> Score:
    id = node["classifier"]
    if id not in classifiers:
        known = _listed(classifiers) or "there is none"
        expected(f"{path}.classifier", f"the id of a classifier ({known})", id)
    classifier = classifiers[id]
    label = node.get("label")
    if label is not None:
        if classifier.labels:
            _one_of(label, classifier.labels, f"{path}.label", f"labels of {id}")
    elif classifier.default_label is not None:
        label = classifier.default_label
    elif len(classifier.labels) == 1:
        label = classifier.labels[0]
    else:
        raise PolicyFault(
            f'{path}: the key "label" is missing, and the classifier {id} has no default_label', param=path
        )
    low, high = node.get("min_score"), node.get("max_score")
    if low is None and high is None:
        low = 0.5
    return Score(id, label, low, high, shown_label="label" in node)


def _name(value: str, path: str) -> str:
    if not value.strip() or not value.isprintable():
        expected(path, "a name of 1 to 255 printable characters", value)
    return value


def _names(values: list[str], path: str) -> tuple[str, ...]:
    return tuple(_name(item, f"{path}[{place}]") for place, item in enumerate(values))


def _one_of(value: str, allowed: Collection[str], path: str, kind: str) -> str:
    if value not in allowed:
        expected(path, f"one of the {kind}: {_listed(allowed)}", value)
    return value


def _listed(names: Collection[str]) -> str:
    distinct = list(dict.fromkeys(names))
    more = f" and {len(distinct) - 20} more" if len(distinct) > 20 else ""
    return ", ".join(map(shown, distinct[:20])) + more
