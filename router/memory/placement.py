"""What a worker takes on each device, from the model's header and a placement that is fixed beforehand.

The rules are llama.cpp's: where it puts each block, the output and the input; how it lays tensors out; what
its graph needs. Nothing is asked of a device and nothing is allocated.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

from msgspec import Struct

from router.memory.cache import (
    CACHE_TYPES,
    ENCODERS,
    CacheShape,
    block_caches,
    cache_shape,
    windowed_blocks,
)
from router.memory.demand import COMPUTE_FLOOR, ENCODER_UBATCH, OVERHEAD, UBATCH, model_type
from router.memory.header import ModelHeader, Sizes
from router.units import MIB

#: The id of the host's memory in a demand.
HOST: Final = "host"
#: What a process takes on a GPU before it loads anything.
DEVICE_OVERHEAD: Final = 512 * MIB
#: The most that the graph of a projector takes, besides its tensors.
PROJECTOR_GRAPH: Final = 512 * MIB

#: Architectures whose weights and cache are exact: the tests compare each with the engine's own planner.
EXACT: Final = frozenset(
    {
        "bert",
        "cohere2",
        "deci",
        "gemma",
        "gemma2",
        "gemma3",
        "gpt-oss",
        "granite",
        "llama",
        "phi3",
        "qwen2",
        "qwen2moe",
        "qwen3",
        "qwen3moe",
        "smollm3",
    }
)
#: Copies of the graph's inputs that the engine keeps when several GPUs work one after another.
_COPIES: Final = 4
#: A batch of at least so many rows is computed on the GPU even where the weights are on the host.
_OFFLOAD_ROWS: Final = 32


class PlacementOptions(Struct, frozen=True):
    """A frozen placement: everything on which the demand depends, and which the engine is told.

    Attributes:
        devices: ids of the GPUs that the engine is given, in its order; none for the processor alone.
        split_mode: `none` puts all on `devices[main_gpu]`, `layer` puts whole blocks on all of them.
        tensor_split: shares of the devices, in their order; empty for equal shares. The engine's own default
            depends on what is free at the moment, so the shares have to be passed on to it.
        n_gpu_layers: blocks on GPUs, from the last one back, the output being one more; negative for all.
        n_cpu_moe: the experts of so many of the first blocks stay on the host.
        ctx_size: tokens of context, shared by `parallel` slots.
        kv_unified: the slots share one cache, so that each may use the whole context.
        cache_type_k, cache_type_v: element types of the cache, by the engine's names.
        flash_attn: `auto` counts as on, which it is on all GPUs but old ones.
        swa_full: windowed blocks hold the whole context.
        ubatch: tokens that are computed at once; 0 for what the worker uses for a model of this type.
        repack: the engine may keep a second form of quantized weights for the processor.
        projector_bytes: bytes of a projector's tensors; it goes to the main device. 0 for none.
        device_overhead, host_overhead: bytes that the process takes besides, on each GPU and on the host.
    """

    devices: tuple[str, ...] = ()
    split_mode: Literal["none", "layer"] = "layer"
    main_gpu: int = 0
    tensor_split: tuple[float, ...] = ()
    n_gpu_layers: int = -1
    n_cpu_moe: int = 0
    ctx_size: int = 4096
    parallel: int = 1
    kv_unified: bool = True
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    flash_attn: Literal["auto", "on", "off"] = "auto"
    swa_full: bool = False
    ubatch: int = 0
    repack: bool = True
    projector_bytes: int = 0
    device_overhead: int = DEVICE_OVERHEAD
    host_overhead: int = OVERHEAD


class Parts(Struct, frozen=True):
    """Bytes on one device."""

    weights: int = 0
    kv_cache: int = 0
    compute: int = 0
    projector: int = 0
    overhead: int = 0

    @property
    def total(self) -> int:
        """All parts together."""
        return self.weights + self.kv_cache + self.compute + self.projector + self.overhead


class DeviceDemand(Struct, frozen=True):
    """What a worker takes, by device.

    Attributes:
        per_device: every device of the placement, and the host, even where little is needed.
        source: where the numbers come from: `formula` here; a load that was measured says `measured`.
        estimate: weights and cache are an upper bound too; compute and overhead always are one.
    """

    per_device: Mapping[str, Parts]
    source: str = "formula"
    estimate: bool = False

    def bytes_by_device(self) -> dict[str, int]:
        """The total of each device."""
        return {device: parts.total for device, parts in self.per_device.items()}

    @property
    def total(self) -> int:
        """All devices together."""
        return sum(parts.total for parts in self.per_device.values())


def device_demand(header: ModelHeader, options: PlacementOptions, size_bytes: int = 0) -> DeviceDemand:
    """Bytes of a worker for this model on each device.

    `size_bytes`, the size of the model's files, counts where the header tells of fewer bytes in tensors than
    there are: the rest is spread over the blocks, and the result marked as an estimate.

    Raises:
        ValueError: options that contradict each other: shares that fit no devices, an unknown cache type, a
            main GPU that is not there.
    """
    _check(options)
    used = options.devices if options.split_mode == "layer" else _only(options.devices, options.main_gpu)
    places = block_places(header.block_count, used, options)
    flash_attn = options.flash_attn != "off"
    ubatch = options.ubatch or (UBATCH if model_type(header) == "llm" else ENCODER_UBATCH)
    shape = cache_shape(
        header, options.ctx_size, options.parallel, options.kv_unified, ubatch, options.swa_full
    )
    caches = block_caches(
        header, shape, options.parallel, options.cache_type_k, options.cache_type_v, flash_attn
    )
    table = {device: Sizes() for device in (*used, HOST)}
    kept = dict(table)
    _place_weights(header, options, places, table)
    unplaced = max(header.weights_bytes, size_bytes if not header.weights_bytes else 0) - _counted(header)
    if unplaced > 0:
        _spread(unplaced, places, table)
    for device, cache in zip(places, caches, strict=False):
        kept[device] += cache
    graph = _Graph(header, options, shape, min(ubatch, max(shape.cells, 1)), used, places, caches)
    main = used[0] if used else HOST
    per_device: dict[str, Parts] = {}
    for device in table:
        on_host = device == HOST
        has_projector = device == main and options.projector_bytes > 0
        per_device[device] = Parts(
            weights=table[device].host if on_host else table[device].gpu,
            kv_cache=kept[device].host if on_host else kept[device].gpu,
            compute=graph.host() if on_host else graph.gpu(device),
            projector=options.projector_bytes + PROJECTOR_GRAPH if has_projector else 0,
            overhead=options.host_overhead if on_host else options.device_overhead,
        )
    doubtful = header.architecture not in EXACT or unplaced > 0 or bool(header.nextn_layers)
    doubtful |= bool(header.shared_kv_layers or header.state_bytes or header.is_latent)
    doubtful |= not header.has_output and _repacks(header, options)
    return DeviceDemand(per_device, estimate=doubtful)


def _check(options: PlacementOptions) -> None:
    count = len(options.devices)
    if len(set(options.devices)) != count or HOST in options.devices:
        raise ValueError(f"devices: each GPU once, and not the host; got {', '.join(options.devices)}")
    if count and not 0 <= options.main_gpu < count:
        raise ValueError(f"main_gpu: there is no device {options.main_gpu} among {count}")
    if options.tensor_split:
        if len(options.tensor_split) != count:
            raise ValueError(f"tensor_split: {len(options.tensor_split)} shares for {count} devices")
        if not all(0 <= share <= 1e30 for share in options.tensor_split) or not any(options.tensor_split):
            raise ValueError("tensor_split: shares are positive numbers, not all of them 0")
    for kind in (options.cache_type_k, options.cache_type_v):
        if kind not in CACHE_TYPES:
            raise ValueError(f"cache type {kind}: known are {', '.join(CACHE_TYPES)}")


def _only(devices: tuple[str, ...], index: int) -> tuple[str, ...]:
    return devices[index : index + 1]


def _single(value: float) -> float:
    """Rounded as the engine's arithmetic rounds: to a 32-bit float."""
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded


def block_places(count: int, used: Sequence[str], options: PlacementOptions) -> tuple[str, ...]:
    """Where each of `count` blocks goes, and then where the output goes.

    Shares are added up and compared as 32-bit floats: with doubles a block at a border would be elsewhere.
    """
    layers = count + 1
    if not used:
        return (HOST,) * layers
    offloaded = layers if options.n_gpu_layers < 0 else min(options.n_gpu_layers, layers)
    start = layers - offloaded
    shares = (
        options.tensor_split if options.split_mode == "layer" and options.tensor_split else (1.0,) * len(used)
    )
    sums = list(itertools.accumulate(map(_single, shares), lambda total, share: _single(total + share)))
    edges = [_single(edge / sums[-1]) for edge in sums]

    def place(layer: int) -> str:
        if layer < start:
            return HOST
        at = _single((layer - start) / offloaded)
        return next((device for device, edge in zip(used, edges, strict=True) if edge > at), used[-1])

    return tuple(place(layer) for layer in range(layers))


def _place_weights(
    header: ModelHeader, options: PlacementOptions, places: Sequence[str], table: dict[str, Sizes]
) -> None:
    weights, output = header.weights, places[-1]
    for block, (dense, experts) in enumerate(zip(weights.blocks, weights.experts, strict=True)):
        table[places[block]] += dense
        table[HOST if block < options.n_cpu_moe else places[block]] += experts
    table[HOST] += weights.inputs + weights.token_embd
    table[places[0]] += weights.first
    for device in {places[block] for block in range(len(weights.blocks))}:
        table[device] += weights.rotary
    table[output] += weights.output
    # Without an output table the embedding table serves as one, in a copy unless it is there already. On the
    # processor there is a copy too where the engine turns quantized weights into another form.
    if not header.has_output and header.architecture not in ENCODERS:
        copied = output != HOST or _repacks(header, options)
        table[output] += weights.token_embd if copied else Sizes()


def _repacks(header: ModelHeader, options: PlacementOptions) -> bool:
    """There may be a second form of the embedding table, depending on the processor."""
    return options.repack and header.weights.table_repacked and not options.devices


def _counted(header: ModelHeader) -> int:
    weights = header.weights
    parts: Iterable[Sizes] = (
        *weights.blocks,
        *weights.experts,
        weights.token_embd,
        weights.inputs,
        weights.first,
        weights.rotary,
        weights.output,
    )
    return sum(part.host for part in parts)


def _spread(unplaced: int, places: Sequence[str], table: dict[str, Sizes]) -> None:
    """Give each block an equal part of bytes of which only the sum is known, rounded up."""
    blocks = places[:-1] or places
    part = -(-unplaced // len(blocks))
    for device in blocks:
        table[device] += Sizes(part, part)


class _Graph:
    """Scratch memory of the compute graph, by device.

    Sums of the tensors that live at the same time where most do: in the feed-forward part, in attention, or
    at the logits. Compared with the engine's planner for models from a few hundred KiB to 70 GB.
    """

    def __init__(
        self,
        header: ModelHeader,
        options: PlacementOptions,
        shape: CacheShape,
        tokens: int,
        used: Sequence[str],
        places: Sequence[str],
        caches: Sequence[Sizes],
    ) -> None:
        self._header = header
        self._used = used
        self._places = places
        is_llm = model_type(header) == "llm"
        encoder = header.architecture in ENCODERS
        embd = 4 * header.embedding_length
        heads = max(header.head_count, 1)
        queries = 4 * header.head_count * header.key_length
        keys = 4 * max(header.head_count_kv, default=0) * header.key_length
        windows = any(windowed_blocks(header))
        seen = tokens if encoder else shape.cells
        also = shape.window_cells if windows else 0
        flash_attn = options.flash_attn != "off"
        # The mask has a half float for each token and cell; without flash attention a float, and each head
        # has its scores.
        cell = 2 if flash_attn else 4
        masks = cell * (seen + also)
        self._input = tokens * (masks + 4 * embd + (0 if flash_attn else 2 * keys * (2 if windows else 1)))
        scores = 0 if flash_attn else 4 * heads * seen
        attention = tokens * (masks + scores + 3 * queries + 2 * keys + 3 * embd)
        self._partial = bool(used) and (
            0 <= options.n_gpu_layers <= header.block_count or options.n_cpu_moe > 0
        )
        self._pipelined = len(used) > 1 and not self._partial
        spare = tokens * embd
        feed_forward = tokens * (masks + self._feed_forward(header) + 5 * embd)
        answers = max(options.parallel, 1)
        # A model that embeds has logits computed for every token, if it has a table for them.
        rows = answers if is_llm else 0 if encoder else tokens
        self._logits = 4 * header.vocab_size * answers if is_llm else 0
        self._output = 4 * header.vocab_size * rows + self._input
        # The last block's feed-forward part sees the tokens that are answered, not the whole batch.
        self._last = attention
        self._graph = max(feed_forward, attention)
        self._spare = spare
        # Of the graph's inputs the GPU of the first block keeps all, the others masks and what is handed on.
        self._inputs = (_COPIES - 1) * self._input
        self._handed = (_COPIES - 1) * tokens * masks + 8 * spare
        # Weights on the host are copied to the first GPU for large batches, and so are keys and values of
        # blocks on the host.
        self._visited = self._twice = 0
        if self._partial:
            copied = header.weights.largest + 3 * spare
            away = [cache.gpu for cache, place in zip(caches, places, strict=False) if place == HOST]
            visiting = attention + max(away, default=0)
            if answers >= _OFFLOAD_ROWS:
                # So many slots are a large batch of their own: the output is copied, and most of the caches.
                if places[-1] == HOST:
                    copied = max(copied, header.weights.output.gpu + header.weights.token_embd.gpu)
                visiting = self._graph + copied + sum(away)
                self._twice = tokens * masks
            self._visited = max(self._graph + copied, visiting)
            if header.weights.largest_expert:
                slack = header.weights.largest_expert + self._expert_slack(header, tokens)
                self._visited = max(self._visited, max(self._graph, visiting) + slack)

    @staticmethod
    def _feed_forward(header: ModelHeader) -> int:
        """Bytes a token: three vectors of the feed-forward's width; with experts, of all that are used."""
        width = header.feed_forward_length
        if not header.expert_used_count:
            return 12 * width
        used = header.expert_used_count
        experts = used * (header.expert_feed_forward_length or width)
        outputs = 4 * used * header.embedding_length
        shared = 12 * header.expert_shared_feed_forward_length
        return max(12 * width, 12 * experts, 2 * outputs) + shared

    @staticmethod
    def _expert_slack(header: ModelHeader, tokens: int) -> int:
        """A vector of all experts that are used: what lies between two copies of their weights."""
        width = header.expert_feed_forward_length or header.feed_forward_length
        return 4 * tokens * header.expert_used_count * min(width, header.embedding_length)

    def _rounded(self, size: int) -> int:
        """An upper bound: 3 % more, 18 % for an architecture that was never compared; and the floor."""
        if self._header.architecture not in EXACT:
            size = size * 115 // 100
        return max(size * 33 // 32, COMPUTE_FLOOR)

    def gpu(self, device: str) -> int:
        """Bytes on a GPU. Also one without a block gets the floor, for it takes part."""
        output = self._output if device == self._places[-1] else 0
        if self._partial and device == self._used[0]:
            return self._rounded(max(self._visited, output))
        if device not in self._places[:-1]:
            return self._rounded(output)
        graph = self._graph if device in self._places[:-2] else self._last
        copies = 0
        if self._pipelined:
            copies = self._inputs + self._spare if device == self._places[0] else self._handed
        return self._rounded(max(graph, output) + copies)

    def host(self) -> int:
        """Bytes on the host: the whole graph if it computes blocks, else the inputs; and the answer's logits.

        What is computed on the processor alone has the embeddings there too.
        """
        if not self._used or self._partial:
            graph = max(self._graph + self._spare, self._output)
            return self._rounded(graph + self._logits + self._twice)
        return self._rounded(self._input * (_COPIES if self._pipelined else 1) + self._logits)
