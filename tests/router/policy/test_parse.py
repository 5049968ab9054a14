"""Reading policy documents strictly."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from router.policy.document import AllOf, HasTools, Keywords, MinChars, Score
from router.policy.parse import PolicyFault, normalized, parse_policy

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
    assert policy.rules[0].match == Keywords(("def ", "class"))
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
        ("routing.rules.0.match", {}, "$.routing.rules[0].match", "with conditions"),
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


def with_classifiers(*classifiers: dict[str, Any], match: dict[str, Any]) -> dict[str, Any]:
    document = changed("routing.classifiers", list(classifiers))
    document["routing"]["rules"][0]["match"] = match
    return document


TOPIC = {
    "id": "topic",
    "type": "semantic_similarity",
    "model": "helper",
    "reference_phrases": {"law": ["sue them", "a contract"]},
}
RISK = {"id": "risk", "type": "llm", "model": "small", "prompt": "?", "labels": ["y", "n"]}


def test_classifiers_make_their_models_helpers() -> None:
    policy = parse_policy(
        with_classifiers(TOPIC, RISK, {**RISK, "id": "other"}, match={"classifier": "topic"})
    )
    assert policy.helpers == ("helper", "small")
    topic = policy.classifier("topic")
    assert topic.labels == ("law",)
    assert topic.phrases == (("law", ("sue them", "a contract")),)
    assert not topic.on_error


def test_keys_beside_each_other_are_an_all_with_the_classifier_first() -> None:
    match = {"min_chars": 10.0, "has_tools": True, "max_score": 0.5, "label": "n", "classifier": "risk"}
    policy = parse_policy(with_classifiers(RISK, match=match))
    assert policy.rules[0].match == AllOf((Score("risk", "n", None, 0.5), HasTools(True), MinChars(10)))


def test_a_score_without_bounds_is_one_from_a_half() -> None:
    policy = parse_policy(with_classifiers(TOPIC, match={"classifier": "topic"}))
    assert policy.rules[0].match == Score("topic", "law", 0.5, None, shown_label=False)


ROUTER = {"type": "llm", "model": "helper", "prompt": "Choose."}


def routed() -> dict[str, Any]:
    document = changed("routing.rules", ...)
    document["routing"]["router"] = ROUTER
    return document


def test_a_router_stands_for_a_classifier_and_a_rule_for_each_candidate() -> None:
    written = normalized(routed())
    assert "router" not in written["routing"]
    assert written["routing"]["classifiers"] == [
        {
            "id": "__router",
            "type": "llm",
            "model": "helper",
            "prompt": "Choose.",
            "labels": ["small", "large"],
        }
    ]
    assert [rule["route_to"] for rule in written["routing"]["rules"]] == ["small", "large"]
    assert parse_policy(written) == parse_policy(routed())
    assert parse_policy(routed()).helpers == ("helper",)
    assert normalized(written) == written


def test_fallback_is_off_unless_asked_for() -> None:
    assert not parse_policy(DOCUMENT).fallback
    document = changed("routing.fallback", True)
    assert parse_policy(document).fallback
    assert not parse_policy(document).fallback_remote
    document["routing"]["fallback_remote"] = True
    assert parse_policy(document).fallback_remote


def test_a_policy_that_is_tried_out_needs_no_name() -> None:
    document = changed("model_name", ...)
    with pytest.raises(PolicyFault):
        parse_policy(document)
    assert parse_policy(document, named=False).rules == parse_policy(DOCUMENT).rules


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("routing.rules.0.outputs", {"x": [0] * 200_001}, "more than 200000 values"),
        ("routing.rules.0.match.keywords_any.0", "x" * (4 << 20), "larger than 4 MiB"),
    ],
)
def test_a_document_that_is_too_large_is_refused(path: str, value: Any, words: str) -> None:
    with pytest.raises(PolicyFault, match=words):
        parse_policy(json.dumps(changed(path, value)).encode())


def test_so_many_expressions_are_refused_before_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.policy.ecma.check", lambda source: pytest.fail("it was read"))
    match = {"any": [{"not": {"regex": f"{n}"}} for n in range(501)]}
    with pytest.raises(PolicyFault, match="501 regular expressions; at most 500") as caught:
        parse_policy(changed("routing.rules.0.match", match))
    assert caught.value.param == "$.routing.rules"


def test_nesting_is_bounded_wherever_it_is() -> None:
    deep: Any = {}
    for _ in range(5_000):
        deep = {"x": [deep]}
    for path in ("routing.rules.0.outputs", "routing.rules.0.match", "components"):
        with pytest.raises(PolicyFault, match="nested more than 200 deep"):
            parse_policy(changed_raw(path, deep))


def changed_raw(path: str, value: Any) -> dict[str, Any]:
    """As `changed`, without a copy of the value."""
    document: Any = copy.deepcopy(DOCUMENT)
    *way, last = (int(part) if part.isdigit() else part for part in path.split("."))
    place = document
    for step in way:
        place = place[step]
    place[last] = value
    return document  # type: ignore[no-any-return]  # a dict of dicts


def test_a_long_value_is_shown_shortened() -> None:
    with pytest.raises(PolicyFault) as caught:
        parse_policy(changed("routing.default_model", "x" * 100_000))
    assert len(caught.value.message) < 200
    with pytest.raises(PolicyFault) as caught:
        parse_policy(changed("components", {"x": 1} | {str(i): i for i in range(100)}))
    assert caught.value.message.endswith("got an object with 101 entries")
