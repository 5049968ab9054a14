"""Well-known models to begin with, described well enough to tell whether this machine could run them.

What is written of a model here is what the header of its file says, in short; its bytes may be those of a
file that its owner has replaced since. The hub tells the true ones to whoever pulls it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec import Struct

from router.catalog.kinds import LLM
from router.catalog.model import Identity, Model
from router.memory.header import ModelHeader, Sizes, Weights
from router.paths import resource

#: Bits of an element of the embedding table, which most quantizations leave finer than the rest.
_TABLE_BITS: Final = 6.6
#: The part of a block that its largest tensor takes, roughly: one of the three of its feed-forward.
_LARGEST: Final = 0.27
_LARGEST_EXPERT: Final = 0.34


class Suggestion(Struct, frozen=True, forbid_unknown_fields=True):
    """One model.

    Attributes:
        name: as it is pulled.
        about: what it is for: `tiny`, `small`, `general`, `fast`, `reasoning` or `vision`.
        bytes: of its file, or all of its shards; `projector_bytes` come on top.
        experts_used: 0 for a model without experts.
        expert_share: the part of its blocks' bytes that experts take.
        tied: the embedding table is the output's, too.
    """

    name: str
    title: str
    about: str
    architecture: str
    bytes: int
    layers: int
    embedding: int
    feed_forward: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    context: int
    projector_bytes: int = 0
    window: int = 0
    experts_used: int = 0
    expert_feed_forward: int = 0
    expert_share: float = 0.0
    tied: bool = False


@functools.cache
def suggestions() -> tuple[Suggestion, ...]:
    """All of them, the smallest first. Reads a small file once.

    Raises:
        FileNotFoundError: the app's resources are not there.
        ValueError: the file is damaged.
    """
    data = resource("models", "suggestions.json").read_bytes()
    found = msgspec.json.decode(data, type=tuple[Suggestion, ...])
    return tuple(sorted(found, key=lambda suggestion: suggestion.bytes))


def as_models(suggested: Iterable[Suggestion]) -> Mapping[str, Model]:
    """Suggestions as if they were here, by name: for asking whether they would fit."""
    return MappingProxyType({suggestion.name: _model(suggestion) for suggestion in suggested})


def _model(suggestion: Suggestion) -> Model:
    return Model(
        name=suggestion.name,
        path="",
        type=LLM,
        size_bytes=suggestion.bytes,
        identity=Identity(suggestion.name, suggestion.bytes, 0),
        header=header_of(suggestion),
        mmproj="projector" if suggestion.projector_bytes else "",
        mmproj_bytes=suggestion.projector_bytes,
    )


def header_of(suggestion: Suggestion) -> ModelHeader:
    """What the header of its file says, with its tensors spread evenly over its blocks."""
    tables = 1 if suggestion.tied else 2
    # Of a file that is far smaller than expected the tables are not more than all of it.
    table = min(
        int(suggestion.vocabulary * suggestion.embedding * _TABLE_BITS / 8), suggestion.bytes // tables
    )
    body = suggestion.bytes - tables * table
    experts = int(body * suggestion.expert_share) // suggestion.layers
    block = body // suggestion.layers - experts
    return ModelHeader(
        architecture=suggestion.architecture,
        name=suggestion.title,
        context_length=suggestion.context,
        block_count=suggestion.layers,
        embedding_length=suggestion.embedding,
        feed_forward_length=suggestion.feed_forward,
        head_count=suggestion.heads,
        head_count_kv=(suggestion.kv_heads,) * suggestion.layers,
        key_length=suggestion.head_size,
        value_length=suggestion.head_size,
        vocab_size=suggestion.vocabulary,
        weights_bytes=suggestion.bytes,
        token_embd_bytes=table,
        expert_used_count=suggestion.experts_used,
        expert_feed_forward_length=suggestion.expert_feed_forward or suggestion.feed_forward,
        sliding_window=suggestion.window,
        has_output=not suggestion.tied,
        weights=Weights(
            blocks=(Sizes(block, block),) * suggestion.layers,
            experts=(Sizes(experts, experts),) * suggestion.layers,
            token_embd=Sizes(table, table),
            output=Sizes() if suggestion.tied else Sizes(table, table),
            largest=int(block * _LARGEST),
            largest_expert=int(experts * _LARGEST_EXPERT),
        ),
    )
