"""What a model's GGUF files say of it: its shape, and its tensors' bytes by where an engine puts them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from router.memory.gguf import (
    BLOCKS,
    MAX_BLOCKS,
    VOCABULARY,
    Metadata,
    Tensor,
    Unsound,
    fault,
    padded,
    read_tables,
)

#: Q4_0, Q8_0, Q2_K, Q4_K, Q5_K, Q6_K, IQ4_NL, MXFP4: the engine may interleave their rows for a processor.
_REPACKED: Final = frozenset(BLOCKS[kind] for kind in (2, 8, 10, 12, 13, 14, 20, 39))

#: How GPU back ends of the CUDA family lay out a tensor: a row of quantized elements is filled up to a
#: multiple of so many elements, and the next tensor begins at a multiple of so many bytes; in host memory of
#: so many.
GPU_ROW: Final = 512
GPU_ALIGNMENT: Final = 128
HOST_ALIGNMENT: Final = 32


class Sizes(Struct, frozen=True, array_like=True):
    """Bytes that the same tensors take in host memory and in a GPU's."""

    host: int = 0
    gpu: int = 0

    def __add__(self, other: Sizes) -> Sizes:
        return Sizes(self.host + other.host, self.gpu + other.gpu)


class Weights(Struct, frozen=True, array_like=True):
    """Tensors added up by where an engine puts them: enough to place them, and small for any model.

    Attributes:
        blocks: by block, without its experts.
        experts: by block, the tensors of its experts.
        token_embd: the table of token embeddings.
        inputs: other tables that stay with the input, on the host.
        first: tensors that go where the first block goes.
        rotary: tables that every device with a block has a copy of.
        output: all others; they go where the output goes.
        largest: of the blocks' tensors without experts, the largest.
        largest_expert: of the experts' tensors, the largest; one tensor holds all experts of a block.
        table_repacked: the embedding table has a type that a processor may compute with in another form.
    """

    blocks: tuple[Sizes, ...] = ()
    experts: tuple[Sizes, ...] = ()
    token_embd: Sizes = Sizes()
    inputs: Sizes = Sizes()
    first: Sizes = Sizes()
    rotary: Sizes = Sizes()
    output: Sizes = Sizes()
    largest: int = 0
    largest_expert: int = 0
    table_repacked: bool = False


class ModelHeader(Struct, frozen=True):
    """The fields that the router uses. Per-layer values are tuples with one entry a block.

    Attributes:
        head_count_kv: key/value heads by block; 0 for a block without attention.
        key_length, value_length: elements of one head.
        weights_bytes: bytes of all tensors.
        token_embd_bytes: bytes of the token embedding table (a part of `weights_bytes`).
        pooling_type: `A.pooling_type`, or None where the key is absent.
        file_type: number of the quantization that most tensors have, or None.
        expert_used_count, expert_feed_forward_length: 0 for a model without experts.
        sliding_window: tokens that the windowed blocks see; 0 if there are none.
        state_bytes: bytes of recurrent state of one block and one slot; 0 for plain attention.
        has_output: there is an output table of its own; without one the embedding table serves twice.
        weights: the tensors by place; empty where only their sum is known.
        expert_shared_feed_forward_length: of the expert that sees every token; 0 if there is none.
        window_pattern: which blocks are windowed, as the file tells: nothing, one period, or a flag a block.
        key_length_swa, value_length_swa: of windowed blocks.
        shared_kv_layers: so many of the last blocks use another block's cache.
        nextn_layers: so many of the last blocks only predict further tokens.
        is_latent: keys and values are kept compressed, together.
        indexer_key_length: elements a token of a further cache that picks tokens; 0 if there is none.
        full_attention_interval: of so many blocks the last has attention, the others recurrent state.
        shard_count: files that the model is made of, by the file's own words.
        kind: what the file says it is: `model`, `adapter`, `mmproj` and others; "" where it does not.
        projection_length: elements of what a projector hands to its model; 0 for all else.
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
    file_type: int | None = None
    expert_used_count: int = 0
    expert_feed_forward_length: int = 0
    sliding_window: int = 0
    state_bytes: int = 0
    has_output: bool = True
    weights: Weights = Weights()
    expert_shared_feed_forward_length: int = 0
    window_pattern: tuple[int, ...] = ()
    key_length_swa: int = 0
    value_length_swa: int = 0
    shared_kv_layers: int = 0
    nextn_layers: int = 0
    is_latent: bool = False
    indexer_key_length: int = 0
    full_attention_interval: int = 0
    shard_count: int = 1
    kind: str = ""
    projection_length: int = 0


def read_header(path: Path) -> ModelHeader:
    """Read the header of one file. Blocks: call it in a thread.

    Raises:
        ConfigError: the file cannot be read or is not a sound GGUF file; the message names it and says why.
            Where the cause is an OSError, that is the exception's `__cause__`.
    """
    return _described(path, *read_tables(path))


def read_shards(paths: Sequence[Path]) -> ModelHeader:
    """Read the headers of all files of a model, in order. The first describes it; tensors come from all.

    Blocks: call it in a thread.

    Raises:
        ConfigError: as `read_header`, and where a file is missing, twice there, or of another model.
    """
    if not paths:
        raise ValueError("a model has at least one file")
    metadata, tensors = read_tables(paths[0])
    for number, path in enumerate(paths):
        more, others = (metadata, tensors) if number == 0 else read_tables(path)
        try:
            # Merging shards leaves a count of 0.
            count, place = more.integer("split.count", 1) or 1, more.integer("split.no")
        except Unsound as error:
            raise fault(path, str(error)) from None
        if count != len(paths) or place != number:
            raise fault(path, f"it is file {place + 1} of {count}, not {number + 1} of {len(paths)}")
        if number:
            if twice := tensors.keys() & others.keys():
                raise fault(path, f"tensor {min(twice)} is in another file too")
            tensors = tensors | others
    return _described(paths[0], metadata, tensors)


def _described(path: Path, metadata: Metadata, tensors: Mapping[str, Tensor]) -> ModelHeader:
    try:
        architecture = metadata.scalars.get("general.architecture")
        if not isinstance(architecture, str) or not architecture:
            raise Unsound("it names no architecture")
        return _header(architecture, metadata, tensors)
    except Unsound as error:
        raise fault(path, str(error)) from None


_IN_BLOCK: Final = re.compile(r"(?:enc\.|dec\.)?blk\.(\d{1,5})\.(.+)", re.ASCII)
_EXPERTS: Final = re.compile(r"ffn_(?:up|down|gate|gate_up)_(?:ch|)exps")
_INPUTS: Final = ("position_embd.", "token_types.", "per_layer_token_embd.")
_ROTARY: Final = ("rope_freqs.", "rope_factors_long.", "rope_factors_short.")
_TABLE: Final = "token_embd.weight"


def _sizes(tensor: Tensor) -> Sizes:
    elements, size = tensor.block
    gpu = tensor.size
    if elements > 1 and tensor.columns % GPU_ROW:
        gpu += (GPU_ROW - tensor.columns % GPU_ROW) // elements * size
    return Sizes(padded(tensor.size, HOST_ALIGNMENT), padded(gpu, GPU_ALIGNMENT))


def _weights(tensors: Mapping[str, Tensor], count: int) -> Weights:
    """Add the tensors up by their place; `count` is the number of blocks."""
    blocks, experts = [Sizes()] * count, [Sizes()] * count
    sums = dict.fromkeys(("inputs", "first", "rotary", "output"), Sizes())
    largest = largest_expert = 0
    for name, tensor in tensors.items():
        sizes = _sizes(tensor)
        match = _IN_BLOCK.match(name)
        number = int(match[1]) if match else count
        if match and number < count:
            if _EXPERTS.match(match[2]):
                experts[number] += sizes
                largest_expert = max(largest_expert, sizes.gpu)
            else:
                blocks[number] += sizes
                largest = max(largest, sizes.gpu)
        elif name != _TABLE:
            starts = name.startswith
            place = "inputs" if starts(_INPUTS) else "rotary" if starts(_ROTARY) else "output"
            sums["first" if starts("token_embd_norm.") else place] += sizes
    table = tensors.get(_TABLE)
    return Weights(
        blocks=tuple(blocks),
        experts=tuple(experts),
        token_embd=_sizes(table) if table else Sizes(),
        largest=largest,
        largest_expert=largest_expert,
        table_repacked=table is not None and table.block in _REPACKED,
        **sums,
    )


def _header(architecture: str, metadata: Metadata, tensors: Mapping[str, Tensor]) -> ModelHeader:
    def number(key: str, default: int = 0, most: int = 1 << 40) -> int:
        return metadata.integer(f"{architecture}.{key}", default, most)

    blocks = number("block_count", 0, MAX_BLOCKS)
    embedding = number("embedding_length", 0, 1 << 24)
    head_counts = metadata.by_block(f"{architecture}.attention.head_count", max(blocks, 1), 0)
    heads = max(head_counts)
    by_block_kv = metadata.by_block(f"{architecture}.attention.head_count_kv", blocks, -1)
    if blocks and by_block_kv[0] == -1:
        by_block_kv = head_counts[:blocks]
    width = embedding // heads if heads else 0
    feed_forward = max(metadata.by_block(f"{architecture}.feed_forward_length", max(blocks, 1), 0))
    name, kind = (metadata.scalars.get(f"general.{key}", "") for key in ("name", "type"))
    kinds = ("general.file_type", f"{architecture}.pooling_type")
    file_type, pooling = (metadata.integer(key) if key in metadata.scalars else None for key in kinds)
    key_length = number("attention.key_length", width, 1 << 24)
    value_length = number("attention.value_length", width, 1 << 24)
    pattern = f"{architecture}.attention.sliding_window_pattern"
    flags = metadata.arrays.get(pattern)
    if flags is not None:
        window_pattern = tuple(int(bool(flag)) for flag in flags[:blocks]) if len(flags) >= blocks else ()
    else:
        window_pattern = (metadata.hint(pattern),) if pattern in metadata.scalars else ()

    def hint(key: str, default: int = 0) -> int:
        return metadata.hint(f"{architecture}.{key}", default)

    return ModelHeader(
        architecture=architecture,
        name=name if isinstance(name, str) else "",
        context_length=number("context_length"),
        block_count=blocks,
        embedding_length=embedding,
        feed_forward_length=feed_forward,
        head_count=heads,
        head_count_kv=by_block_kv,
        key_length=key_length,
        value_length=value_length,
        vocab_size=metadata.lengths.get(VOCABULARY, 0) or number("vocab_size"),
        weights_bytes=sum(tensor.size for tensor in tensors.values()),
        token_embd_bytes=tensors[_TABLE].size if _TABLE in tensors else 0,
        pooling_type=pooling,
        file_type=file_type,
        expert_used_count=number("expert_used_count", 0, 1 << 16),
        expert_feed_forward_length=number("expert_feed_forward_length", 0, 1 << 24),
        sliding_window=number("attention.sliding_window"),
        state_bytes=_state_bytes(number, embedding),
        has_output="output.weight" in tensors or not tensors,
        weights=_weights(tensors, blocks),
        expert_shared_feed_forward_length=hint("expert_shared_feed_forward_length"),
        window_pattern=window_pattern,
        key_length_swa=hint("attention.key_length_swa", key_length),
        value_length_swa=hint("attention.value_length_swa", value_length),
        shared_kv_layers=hint("attention.shared_kv_layers"),
        nextn_layers=hint("nextn_predict_layers"),
        is_latent=hint("attention.key_length_mla") > 0 and hint("attention.value_length_mla") > 0,
        indexer_key_length=hint("attention.indexer.key_length"),
        full_attention_interval=hint("full_attention_interval"),
        shard_count=metadata.hint("split.count", 1) or 1,
        kind=kind if isinstance(kind, str) else "",
        projection_length=hint("vision.projection_dim") or hint("audio.projection_dim"),
    )


def _state_bytes(number: Callable[[str], int], embedding: int) -> int:
    """Bytes of recurrent state of one block and slot, in float32.

    Mamba keeps `(conv - 1) * (inner + 2 * groups * state)` elements of convolution and `inner * state` of
    state, RWKV `shift * embedding` and `embedding * head`, short convolutions `embedding * (cache - 1)`.
    """
    convolution = number("ssm.conv_kernel")
    inner, state = number("ssm.inner_size"), number("ssm.state_size")
    elements = max(convolution - 1, 0) * (inner + 2 * number("ssm.group_count") * state) + inner * state
    wkv = number("wkv.head_size")
    if wkv:
        elements += embedding * ((number("token_shift_count") or 2) + wkv)
    elements += embedding * max(number("shortconv.l_cache") - 1, 0)
    return 4 * elements
