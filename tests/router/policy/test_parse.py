"""Reading policy documents strictly."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from router.policy.parse import PolicyFault, parse_policy

DOCUMENT: dict[str, Any] = {
    "version": "1",
    "recipe": "collection.router",
    "model_name": "user.Triage",
    "components": ["small", "large", "helper"],
    "routing": {
        "candidates": ["small", "large", "small"],
        "default_model": "small",
        "rules": [
            {"id": "code", "match": {"keywords_any": ["def ", "class"]}, "route_to": "large"},
            {
                "id": "law.1_a-B",
                "match": {"keywords_any": ["statute"]},
                "route_to": "large",
                "outputs": {"n": {"list": [1, 2.5, None]}},
            },
        ],
    },
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """The document with one value replaced, added, or (value `...`) taken out; `path` is dotted."""
    document: Any = copy.deepcopy(DOCUMENT)
    *way, last = (int(part) if part.isdigit() else part for part in path.split("."))
    place = document
    for step in way:
        place = place[step]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return document  # type: ignore[no-any-return]  # a dict of dicts


def test_a_policy() -> None:
    policy = parse_policy(DOCUMENT)
    assert policy.name == "user.Triage"
    assert policy.components == ("small", "large", "helper")
    assert policy.candidates == ("small", "large", "small")
    assert policy.default_model == "small"
    assert [rule.id for rule in policy.rules] == ["code", "law.1_a-B"]
    assert policy.rules[0].keywords_any == ("def ", "class")
    assert policy.rules[1].outputs == {"n": {"list": [1, 2.5, None]}}
    assert policy.enabled


def test_bytes_and_the_decoded_document_are_the_same_policy() -> None:
    assert parse_policy(json.dumps(DOCUMENT).encode()) == parse_policy(DOCUMENT)


def test_a_policy_can_be_off_and_have_no_rules() -> None:
    assert not parse_policy(changed("enabled", False)).enabled
    assert parse_policy(changed("routing.rules", [])).rules == ()


@pytest.mark.fault("F20")
@pytest.mark.parametrize(
    ("path", "value", "place", "words"),
    [
        ("version", "2", "$.version", 'version "1"'),
        ("version", 1, "$.version", 'version "1"'),
        ("version", ..., "$", '"version" is missing'),
        ("recipe", "llamacpp", "$.recipe", 'expected "collection.router"'),
        ("model_name", "", "$.model_name", "expected a name"),
        ("model_name", "a\nb", "$.model_name", "expected a name"),
        ("model_name", "x" * 256, "$.model_name", "expected a name"),
        ("model_name", "small", "$.components", "component of itself"),
        ("components", [], "$.components", "a list of at least one"),
        ("components", {}, "$.components", "a list of at least one"),
        ("components.1", 3, "$.components[1]", "expected a name"),
        ("enabled", 1, "$.enabled", "true or false"),
        ("comment", "x", "$", 'unknown key "comment"'),
        ("routing", [], "$.routing", "expected an object"),
        ("routing.candidates", [], "$.routing.candidates", "a list of at least one"),
        ("routing.candidates.1", "huge", "$.routing.candidates[1]", "one of the components"),
        ("routing.default_model", "helper", "$.routing.default_model", "one of the candidates"),
        ("routing.default_model", ..., "$.routing", '"default_model" is missing'),
        ("routing.defaultmodel", "small", "$.routing", "did you mean default_model?"),
        ("routing.rules", ..., "$.routing", '"rules" is missing'),
        ("routing.rules", {}, "$.routing.rules", "expected a list of rules"),
        ("routing.rules.0", "x", "$.routing.rules[0]", "expected an object"),
        ("routing.rules.1.id", "code", "$.routing.rules[1].id", "already the id of $.routing.rules[0]"),
        ("routing.rules.1.id", "a b", "$.routing.rules[1].id", "letters, digits"),
        ("routing.rules.1.id", "a\n", "$.routing.rules[1].id", "letters, digits"),
        ("routing.rules.1.id", "", "$.routing.rules[1].id", "letters, digits"),
        ("routing.rules.0.route_to", "helper", "$.routing.rules[0].route_to", "one of the candidates"),
        ("routing.rules.0.route_to", ["small"], "$.routing.rules[0].route_to", "one of the candidates"),
        ("routing.rules.0.match", ..., "$.routing.rules[0]", '"match" is missing'),
        ("routing.rules.0.match", {}, "$.routing.rules[0].match", '"keywords_any" is missing'),
        (
            "routing.rules.0.match.keyword_any",
            ["x"],
            "$.routing.rules[0].match",
            "did you mean keywords_any?",
        ),
        (
            "routing.rules.0.match.keywords_any",
            [],
            "$.routing.rules[0].match.keywords_any",
            "at least one text",
        ),
        (
            "routing.rules.0.match.keywords_any",
            "x",
            "$.routing.rules[0].match.keywords_any",
            "at least one text",
        ),
        (
            "routing.rules.0.match.keywords_any.1",
            "",
            "$.routing.rules[0].match.keywords_any[1]",
            "not empty",
        ),
        ("routing.rules.0.outputs", [], "$.routing.rules[0].outputs", "expected an object"),
        ("routing.rules.0.weight", 1, "$.routing.rules[0]", 'unknown key "weight"'),
    ],
)
def test_a_fault_is_named_with_its_place(path: str, value: Any, place: str, words: str) -> None:
    with pytest.raises(PolicyFault) as caught:
        parse_policy(changed(path, value))
    assert caught.value.param == place
    assert caught.value.message.startswith(f"{place}: ")
    assert words in caught.value.message
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("routing.classifiers", []),
        ("routing.router", {"type": "llm"}),
        *(
            (f"routing.rules.0.match.{key}", value)
            for key, value in {
                "any": [],
                "all": [],
                "not": {},
                "keywords_all": ["x"],
                "regex": "x",
                "min_chars": 1,
                "max_chars": 1,
                "has_tools": True,
                "has_images": True,
                "metadata": {},
                "classifier": {},
            }.items()
        ),
    ],
)
def test_what_is_not_supported_yet_is_called_so(path: str, value: Any) -> None:
    with pytest.raises(PolicyFault, match="not supported yet") as caught:
        parse_policy(changed(path, value))
    assert caught.value.code == "unsupported_policy"


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b'{"version": "1",}',
        b"\xff",
        b'{"version": NaN}',
        b'{"a": 1, "a": 2}',
        b"[" * 100_000,
        b"[]",
        b"1",
    ],
)
def test_text_that_is_no_document(text: bytes) -> None:
    with pytest.raises(PolicyFault) as caught:
        parse_policy(text)
    assert caught.value.message.startswith("$: ")
