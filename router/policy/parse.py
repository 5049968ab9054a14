"""From a `collection.router` document, version "1", to a policy: strictly, naming the place of any fault."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Mapping
from typing import Any, Final, NoReturn

from router.errors import BadRequest
from router.policy.document import Policy, Rule

VERSION: Final = "1"
RECIPE: Final = "collection.router"
NAME_LENGTH: Final = 255

_ROOT: Final = ("version", "recipe", "model_name", "components", "routing")
_ROUTING: Final = ("candidates", "default_model", "rules")
_RULE: Final = ("id", "match", "route_to", "outputs")
_MATCH: Final = ("keywords_any",)
# Parts of version "1" that this router cannot evaluate yet: named so, not called unknown.
_LATER_ROUTING: Final = frozenset({"classifiers", "router"})
_LATER_MATCH: Final = frozenset(
    {
        "all",
        "any",
        "classifier",
        "has_images",
        "has_tools",
        "keywords_all",
        "max_chars",
        "metadata",
        "min_chars",
        "not",
        "regex",
    }
)
_ID: Final = re.compile(r"[A-Za-z0-9._-]+")


class PolicyFault(BadRequest):
    """A document that is no policy. `param` is the JSON path of the fault."""

    code = "invalid_policy"


def parse_policy(document: Any) -> Policy:
    """The policy that a document describes.

    Args:
        document: the JSON text as bytes, or what it decodes to.

    Raises:
        PolicyFault: naming the JSON path and what was expected there.
    """
    value = decode(document) if isinstance(document, (bytes, bytearray)) else document
    root = _object(value, "$")
    _keys(root, "$", required=_ROOT, optional=("enabled",))
    if root["version"] != VERSION:
        _fault("$.version", f'this router reads version "{VERSION}"', root["version"])
    if root["recipe"] != RECIPE:
        _expected("$.recipe", f'"{RECIPE}"', root["recipe"])
    name = _name(root["model_name"], "$.model_name")
    enabled = root.get("enabled", True)
    if not isinstance(enabled, bool):
        _expected("$.enabled", "true or false", enabled)
    components = _names(root["components"], "$.components")
    if name in components:
        _fault("$.components", "a policy cannot be a component of itself", name)

    routing = _object(root["routing"], "$.routing")
    _keys(routing, "$.routing", required=_ROUTING, later=_LATER_ROUTING)
    candidates = _names(routing["candidates"], "$.routing.candidates")
    for place, candidate in enumerate(candidates):
        _one_of(candidate, components, f"$.routing.candidates[{place}]", "components")
    default = _one_of(routing["default_model"], candidates, "$.routing.default_model", "candidates")
    rules = _rules(routing["rules"], candidates)
    return Policy(
        name=name,
        components=components,
        candidates=candidates,
        default_model=default,
        rules=rules,
        enabled=enabled,
    )


def decode(text: bytes | bytearray) -> Any:
    """The JSON value of a document.

    Raises:
        PolicyFault: it is no JSON, or an object in it names a key twice.
    """
    try:
        return json.loads(text, object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except RecursionError as error:
        raise PolicyFault("$: it is nested too deeply", param="$") from error
    except ValueError as error:
        raise PolicyFault(f"$: it is no JSON: {error}", param="$") from error


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"{_shown(next(k for k in keys if keys.count(k) > 1))} is named twice in one object")
    return found


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON number")


def _rules(value: Any, candidates: Collection[str]) -> tuple[Rule, ...]:
    if not isinstance(value, list):
        _expected("$.routing.rules", "a list of rules", value)
    rules: list[Rule] = []
    places: dict[str, int] = {}
    for place, item in enumerate(value):
        path = f"$.routing.rules[{place}]"
        rule = _rule(item, path, candidates)
        if rule.id in places:
            _fault(f"{path}.id", f"already the id of $.routing.rules[{places[rule.id]}]", rule.id)
        places[rule.id] = place
        rules.append(rule)
    return tuple(rules)


def _rule(value: Any, path: str, candidates: Collection[str]) -> Rule:
    rule = _object(value, path)
    _keys(rule, path, required=_RULE[:3], optional=_RULE[3:])
    if not isinstance(rule["id"], str) or not _ID.fullmatch(rule["id"]):
        _expected(f"{path}.id", "a text of letters, digits, '.', '_' and '-'", rule["id"])
    match = _object(rule["match"], f"{path}.match")
    _keys(match, f"{path}.match", required=_MATCH, later=_LATER_MATCH)
    keywords = match["keywords_any"]
    where = f"{path}.match.keywords_any"
    if not isinstance(keywords, list) or not keywords:
        _expected(where, "a list of at least one text", keywords)
    for place, keyword in enumerate(keywords):
        if not isinstance(keyword, str) or not keyword:
            _expected(f"{where}[{place}]", "a text that is not empty", keyword)
    return Rule(
        id=rule["id"],
        keywords_any=tuple(keywords),
        route_to=_one_of(rule["route_to"], candidates, f"{path}.route_to", "candidates"),
        outputs=_object(rule.get("outputs", {}), f"{path}.outputs"),
    )


def _object(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        _expected(path, "an object", value)
    return value


def _keys(
    found: Mapping[str, Any],
    path: str,
    *,
    required: Collection[str],
    optional: Collection[str] = (),
    later: Collection[str] = (),
) -> None:
    known = (*required, *optional)
    for key in found:
        if key in known:
            continue
        if key in later:
            raise PolicyFault(
                f'{path}.{key}: this part of version "{VERSION}" is not supported yet',
                code="unsupported_policy",
                param=f"{path}.{key}",
                hint=f"Supported here: {', '.join(known)}.",
            )
        near = difflib.get_close_matches(str(key), known, n=1)
        advice = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
        raise PolicyFault(f"{path}: unknown key {_shown(key)} ({advice})", param=path)
    for key in required:
        if key not in found:
            raise PolicyFault(f"{path}: the key {_shown(key)} is missing", param=path)


def _name(value: Any, path: str) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable() or len(value) > NAME_LENGTH:
        _expected(path, f"a name of 1 to {NAME_LENGTH} printable characters", value)
    return value


def _names(value: Any, path: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        _expected(path, "a list of at least one model name", value)
    return tuple(_name(item, f"{path}[{place}]") for place, item in enumerate(value))


def _one_of(value: Any, allowed: Collection[str], path: str, kind: str) -> str:
    if not isinstance(value, str) or value not in allowed:
        _expected(path, f"one of the {kind}: {', '.join(map(_shown, dict.fromkeys(allowed)))}", value)
    return value


def _expected(path: str, form: str, value: Any) -> NoReturn:
    raise PolicyFault(f"{path}: expected {form}; got {_shown(value)}", param=path)


def _fault(path: str, what: str, value: Any) -> NoReturn:
    raise PolicyFault(f"{path}: {what}; got {_shown(value)}", param=path)


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."
