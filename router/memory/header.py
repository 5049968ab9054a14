"""What a GGUF file says of itself, read without touching tensor data."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct


class ModelHeader(Struct, frozen=True):
    """The fields that the router uses. Per-layer values are tuples with one entry a block.

    Attributes:
        head_count_kv, key_length, value_length: by block; lengths in elements.
        weights_bytes: bytes of all tensors.
        token_embd_bytes: bytes of the token embedding table (a part of `weights_bytes`).
        pooling_type: `A.pooling_type`, or None where the key is absent.
    """

    architecture: str
    name: str
    context_length: int
    block_count: int
    embedding_length: int
    feed_forward_length: int
    head_count: int
    head_count_kv: tuple[int, ...]
    key_length: int
    value_length: int
    vocab_size: int
    weights_bytes: int
    token_embd_bytes: int
    pooling_type: int | None = None


def read_header(path: Path) -> ModelHeader:
    raise LookupError(path)
