"""What an explicit load asks for."""

from __future__ import annotations

from typing import Any

import pytest

from router.catalog.options import NO_OPTIONS, LoadOptions
from router.errors import BadRequest
from router.service.options import Asked, load_options


def test_nothing_is_asked_for() -> None:
    assert load_options({}) == Asked()
    assert load_options({}).options is NO_OPTIONS
    assert load_options({"pinned": None, "save_options": False}).options is NO_OPTIONS


def test_options_pin_and_what_to_save() -> None:
    base = LoadOptions(device=("A", "B"), parallel=2)
    asked = load_options({"ctx_size": 8192, "pinned": True, "save_options": True}, base)
    assert asked.options == LoadOptions(ctx_size=8192)
    assert asked.pinned is True
    assert asked.save == LoadOptions(device=("A", "B"), parallel=2, ctx_size=8192)
    assert load_options({"ctx_size": 8192}, base).save is None


def test_what_contradicts_the_options_that_the_model_has_is_refused() -> None:
    with pytest.raises(BadRequest, match="one share for each device"):
        load_options({"tensor_split": "1,1,1"}, LoadOptions(device=("A", "B")))


@pytest.mark.parametrize(
    ("given", "param"),
    [({"pinned": 1}, "pinned"), ({"save_options": "yes"}, "save_options"), ({"context": 5}, "context")],
)
def test_what_is_wrong_is_named(given: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        load_options(given)
    assert caught.value.param == param
