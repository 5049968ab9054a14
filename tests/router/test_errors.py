"""Errors: their messages may hold what a client sent, which may be megabytes."""

from __future__ import annotations

import difflib
from typing import Any, NoReturn

import pytest

from router.catalog import options
from router.errors import MAX_COMPARED, MAX_MESSAGE, BadRequest, RouterError, near_matches
from router.settings import schema

KNOWN = ["max_loaded_models", "max_queue", "llm_pool_autosize"]


def test_names_that_are_nearly_right() -> None:
    assert near_matches("max_loaded_modles", KNOWN) == ["max_loaded_models"]
    assert near_matches("max_queu", KNOWN, 3)[0] == "max_queue"
    assert near_matches("port", KNOWN) == []
    assert near_matches("max", KNOWN, alike=0.9) == []


@pytest.mark.fault("F04")
def test_what_is_far_too_long_for_a_name_is_compared_with_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparing takes time that grows with the length: seconds, for what a body may hold."""

    def compare(*_: Any, **__: Any) -> NoReturn:
        raise AssertionError("compared")

    monkeypatch.setattr(difflib, "get_close_matches", compare)
    name = "m" * (MAX_COMPARED + 1)
    assert near_matches(name, [name]) == []
    for check in (
        lambda: schema.check(name, 1),
        lambda: options.check_options({name: 1}),
    ):
        with pytest.raises(BadRequest) as refused:
            check()
        assert refused.value.param == name


@pytest.mark.fault("F04")
def test_of_thousands_of_names_few_are_compared_and_the_right_one_is_among_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Providers may list so many, and to compare them all holds every stream up for a second."""
    known = [f"p{n % 5}/org-{n % 50}/model-{n:05d}-instruct" for n in range(5_000)]
    compared: list[int] = []
    compare = difflib.get_close_matches

    def counting(name: str, names: list[str], **how: Any) -> list[str]:
        compared.append(len(names))
        return compare(name, names, **how)

    monkeypatch.setattr(difflib, "get_close_matches", counting)
    assert near_matches("p2/org-7/modle-04507-instruct", known) == ["p2/org-7/model-04507-instruct"]
    assert near_matches("p2", known) == []
    assert near_matches("", known) == []
    assert max(compared) <= 64


@pytest.mark.fault("F04")
def test_a_message_is_bounded() -> None:
    error = RouterError(f"There is no model {'m' * 5_000_000}.", param="p" * 5_000_000)
    assert error.message.startswith("There is no model mmm")
    assert error.message.endswith("mmm.")
    assert len(error.message) < MAX_MESSAGE + 10
    assert len(str(error)) < MAX_MESSAGE + 10
    assert error.param is not None
    assert len(error.param) < MAX_MESSAGE + 10
    assert RouterError("short").message == "short"
