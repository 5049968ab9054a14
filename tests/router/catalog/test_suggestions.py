"""The models to begin with: described soundly, and sized as any other."""

from __future__ import annotations

import pytest

from router.catalog.hub import parse_reference
from router.catalog.suggestions import header_of, suggestions
from router.units import GIB


def test_each_can_be_pulled_by_its_name() -> None:
    names = [suggestion.name for suggestion in suggestions()]
    assert len(set(names)) == len(names) >= 10
    for name in names:
        reference = parse_reference(name)
        assert str(reference) == name
        assert reference.wanted == reference.wanted.upper()


def test_they_go_from_small_to_large() -> None:
    sizes = [suggestion.bytes for suggestion in suggestions()]
    assert sizes == sorted(sizes)
    assert sizes[0] < GIB
    assert sizes[-1] > 40 * GIB


@pytest.mark.parametrize("name", [suggestion.name for suggestion in suggestions()])
def test_what_is_said_of_one_adds_up(name: str) -> None:
    suggestion = next(s for s in suggestions() if s.name == name)
    header = header_of(suggestion)
    weights = header.weights
    blocks = sum(size.gpu for size in (*weights.blocks, *weights.experts))
    total = blocks + weights.token_embd.gpu + weights.output.gpu
    assert total == pytest.approx(suggestion.bytes, rel=0.001)
    assert min(size.gpu for size in weights.blocks) > 0
    # A parameter takes 4 to 9 bits in all of these: a slip in a number would show.
    attention = suggestion.embedding * suggestion.head_size * (2 * suggestion.heads + 2 * suggestion.kv_heads)
    table = suggestion.vocabulary * suggestion.embedding * (1 if suggestion.tied else 2)
    if not suggestion.experts_used:
        parameters = table + suggestion.layers * (
            attention + 3 * suggestion.embedding * suggestion.feed_forward
        )
        assert 4.3 < suggestion.bytes * 8 / parameters < 9.0
    assert suggestion.about in {"tiny", "small", "general", "fast", "reasoning", "vision"}
