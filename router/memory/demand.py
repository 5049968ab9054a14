"""How much memory a model needs, from its header alone."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from router.memory.cache import CTX_STEP, ENCODERS
from router.memory.header import ModelHeader
from router.units import MIB

#: Architectures whose compute graph is the one that the compute formula was fitted to.
_FITTED: Final = frozenset(
    {"gemma", "gemma2", "gemma3", "granite", "llama", "mistral3", "phi3", "qwen2", "qwen3", "smollm3"}
    | ENCODERS
)
#: ggml's number for pooling that ranks.
_POOLING_RANK: Final = 4

AUTO_CTX: Final = 16_384
#: Context for a model that does not tell its own.
UNKNOWN_CTX: Final = 4096
#: Tokens that are computed at once: for language models, and at most for models that embed or rank, which
#: must see a whole text at once.
UBATCH: Final = 512
ENCODER_UBATCH: Final = 2048
#: Least compute buffer that is planned for, and what the worker process itself holds.
COMPUTE_FLOOR: Final = 64 * MIB
OVERHEAD: Final = 64 * MIB


class Demand(Struct, frozen=True):
    """Planned bytes of one worker.

    Attributes:
        weights: all tensors.
        kv_cache: keys and values of the whole context, and recurrent state.
        compute: scratch buffers of the compute graph and the logits.
        overhead: what the process holds besides.
        source: where the numbers come from; always `estimate` here.
    """

    weights: int
    kv_cache: int
    compute: int
    overhead: int
    source: str = "estimate"

    @property
    def total(self) -> int:
        """All parts together, in bytes."""
        return self.weights + self.kv_cache + self.compute + self.overhead


def model_type(header: ModelHeader) -> str:
    """`llm`, `embedding` or `reranking`: by pooling, and for encoders without one by architecture."""
    if header.pooling_type == _POOLING_RANK:
        return "reranking"
    if header.pooling_type or header.architecture in ENCODERS:
        return "embedding"
    return "llm"


def default_ctx(header: ModelHeader, setting: int) -> int:
    """The context size in tokens: a positive setting as it is, else the model's own, at most 16384.

    A setting beyond the model's own length is not lowered: the user asked for it.
    """
    if setting > 0:
        return setting
    return min(header.context_length or UNKNOWN_CTX, AUTO_CTX)


def demand(header: ModelHeader, size_bytes: int, ctx_size: int, parallel: int) -> Demand:
    """What a worker needs for this model, with `ctx_size` tokens shared by `parallel` slots.

    Weights are exact. The cache is exact for plain attention with half floats and an upper bound for sliding
    windows, shared and latent caches. Compute is an estimate. `size_bytes`, the size of the model's files, is
    used for weights only if the header tells none.
    """
    return Demand(
        weights=header.weights_bytes or size_bytes,
        kv_cache=_cache(header, ctx_size, parallel),
        compute=_compute(header, ctx_size, parallel),
        overhead=OVERHEAD,
    )


def _cells(ctx_size: int) -> int:
    return max(-(-ctx_size // CTX_STEP), 1) * CTX_STEP


def _cache(header: ModelHeader, ctx_size: int, parallel: int) -> int:
    """For each block, `2 * (key_length + value_length) * heads * cells` bytes: two bytes an element.

    Recurrent state does not depend on the context: one for each slot in each block.
    """
    if header.architecture in ENCODERS:
        return 0
    width = 2 * (header.key_length + header.value_length) * sum(header.head_count_kv)
    return width * _cells(ctx_size) + header.state_bytes * header.block_count * max(parallel, 1)


def _compute(header: ModelHeader, ctx_size: int, parallel: int) -> int:
    """For `t` tokens at once, `t * (2 * cells + 4 * (3 * F + 4 * E))` bytes, with flash attention.

    `F` and `E` are the feed-forward and embedding lengths. The logits take `4 * vocabulary` bytes a slot,
    once while computing and once for the answer. Measured for llama-like graphs; others get 15 % more.
    """
    cells = _cells(ctx_size)
    is_llm = model_type(header) == "llm"
    tokens = min(UBATCH if is_llm else ENCODER_UBATCH, cells)
    experts = header.expert_used_count * (header.expert_feed_forward_length or header.feed_forward_length)
    feed_forward = max(header.feed_forward_length, experts)
    graph = tokens * (2 * cells + 4 * (3 * feed_forward + 4 * header.embedding_length))
    logits = 4 * max(parallel, 1) * header.vocab_size if is_llm else 0
    estimate = max(graph, logits) + logits
    if header.architecture not in _FITTED:
        estimate = estimate * 115 // 100
    return max(estimate, COMPUTE_FLOOR)
