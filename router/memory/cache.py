"""What the keys and values of a context take, block by block."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from router.memory.gguf import padded
from router.memory.header import GPU_ALIGNMENT, GPU_ROW, HOST_ALIGNMENT, ModelHeader, Sizes

#: Architectures that read a whole text at once and keep no cache.
ENCODERS: Final = frozenset(
    {
        "bert",
        "eurobert",
        "gemma-embedding",
        "jina-bert-v2",
        "jina-bert-v3",
        "modern-bert",
        "neo-bert",
        "nomic-bert",
        "nomic-bert-moe",
        "t5encoder",
    }
)
#: Of so many blocks the last sees everything and the others a window only, where the file does not tell.
WINDOW_PERIODS: Final = {"cohere2": 4, "gemma2": 2, "gemma3": 6, "gpt-oss": 2}
#: Architectures of which only so many of the first blocks have a cache of their own.
_OWN_CACHES: Final = {"gemma3n": 20}
#: The engine rounds a context up to a multiple of this.
CTX_STEP: Final = 256

#: Elements and bytes of one block, by the engine's name of the type.
CACHE_TYPES: Final = {
    "f32": (1, 4),
    "f16": (1, 2),
    "bf16": (1, 2),
    "q8_0": (32, 34),
    "q5_1": (32, 24),
    "q5_0": (32, 22),
    "q4_1": (32, 20),
    "q4_0": (32, 18),
    "iq4_nl": (32, 18),
}


class CacheShape(Struct, frozen=True):
    """How the context is cut.

    Attributes:
        cells: tokens that a stream holds.
        window_cells: tokens that a stream holds in a windowed block; equal to `cells` without windows.
        streams: separate caches; 1 where all slots share one.
    """

    cells: int
    window_cells: int
    streams: int


def cache_shape(
    header: ModelHeader,
    ctx_size: int,
    parallel: int,
    unified: bool,
    ubatch: int,
    swa_full: bool = False,
) -> CacheShape:
    """Cells of `ctx_size` tokens for `parallel` slots: shared by them if `unified`, else cut in equal parts.

    A windowed block holds the window, for each slot that shares it, and one batch of `ubatch` tokens.
    """
    parallel = max(parallel, 1)
    context = max(padded(ctx_size, CTX_STEP), CTX_STEP)
    cells = context if unified else max(padded(context // parallel, CTX_STEP), CTX_STEP)
    window = cells
    if header.sliding_window and not swa_full:
        reach = header.sliding_window * (parallel if unified else 1) + ubatch
        window = padded(min(cells, reach), CTX_STEP)
    return CacheShape(cells, window, 1 if unified else parallel)


def windowed_blocks(header: ModelHeader) -> tuple[bool, ...]:
    """For each block whether it sees a window only.

    Only where that is certain: a block that may see everything counts as one that does.
    """
    count = header.block_count
    pattern = header.window_pattern
    period = WINDOW_PERIODS.get(header.architecture, 0)
    if not header.sliding_window or (not period and header.architecture != "gemma4"):
        return (False,) * count
    if len(pattern) == count and count > 1:
        return tuple(map(bool, pattern))
    if len(pattern) == 1:
        period = pattern[0]
        if period == 0:
            return (True,) * count
    if not period:
        return (False,) * count
    return tuple(block % period < period - 1 for block in range(count))


def block_caches(
    header: ModelHeader,
    shape: CacheShape,
    parallel: int,
    type_k: str = "f16",
    type_v: str = "f16",
    flash_attn: bool = True,
) -> tuple[Sizes, ...]:
    """Bytes by block, in host memory and in a GPU's: keys and values, and recurrent state if there is any.

    Source: the cache's tensors are rows of one token, `heads * length` elements of the cache's type.

    Raises:
        KeyError: a cache type that is not in `CACHE_TYPES`.
    """
    count = header.block_count
    if header.architecture in ENCODERS:
        return (Sizes(),) * count
    windowed = windowed_blocks(header)
    own = _OWN_CACHES.get(header.architecture, count - header.shared_kv_layers)
    own = min(own, count - header.nextn_layers)
    widest = max(
        (
            (header.value_length_swa if windowed[block] else header.value_length) * heads
            for block, heads in enumerate(header.head_count_kv)
        ),
        default=0,
    )
    sizes: list[Sizes] = []
    for block, heads in enumerate(header.head_count_kv):
        total = Sizes()
        if block >= own:
            sizes.append(total)
            continue
        if _is_recurrent(header, block):
            state = header.state_bytes * max(parallel, 1)
            sizes.append(Sizes(padded(state, HOST_ALIGNMENT), padded(state, GPU_ALIGNMENT)))
            continue
        cells = shape.window_cells if windowed[block] else shape.cells
        key = (header.key_length_swa if windowed[block] else header.key_length) or header.key_length
        value = (header.value_length_swa if windowed[block] else header.value_length) or header.value_length
        total += _rows(type_k, key * heads, cells * shape.streams)
        if not header.is_latent:
            # Without flash attention values lie transposed, and all blocks are as wide as the widest.
            width = value * heads if flash_attn or not heads else max(widest, value * heads)
            total += _rows(type_v, width, cells * shape.streams)
        if header.indexer_key_length:
            total += _rows("f32", header.indexer_key_length, cells * shape.streams)
        if header.state_bytes:
            state = header.state_bytes * max(parallel, 1)
            total += Sizes(padded(state, HOST_ALIGNMENT), padded(state, GPU_ALIGNMENT))
        sizes.append(total)
    return tuple(sizes)


def _is_recurrent(header: ModelHeader, block: int) -> bool:
    """The block has recurrent state and no keys and values; in doubt it has both."""
    if not header.state_bytes:
        return False
    interval = header.full_attention_interval
    return (block + 1) % interval != 0 if interval else header.head_count_kv[block] == 0


def _rows(kind: str, width: int, count: int) -> Sizes:
    elements, size = CACHE_TYPES[kind]
    plain = -(-width // elements) * size * count
    gpu = plain
    if elements > 1 and width % GPU_ROW:
        gpu += (GPU_ROW - width % GPU_ROW) // elements * size
    return Sizes(padded(plain, HOST_ALIGNMENT), padded(gpu, GPU_ALIGNMENT)) if width else Sizes()
