"""What a plan costs: of a large model's header, read cold, kept on disk, and kept in memory.

The header is made up: 1,000 tensors and a vocabulary of 150,000 entries, with scores and merges.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from _common import often, report

from router.memory.header import read_header
from router.memory.placement import PlacementOptions, device_demand
from router.memory.store import HeaderStore
from tests.support import gguf

BLOCKS = 111
TOKENS = often(150_000, 5_000)
ROUNDS = often(15)
GPUS = PlacementOptions(devices=("gpu-a", "gpu-b"), ctx_size=32_768, parallel=4)


def write(path: Path) -> int:
    """The model's file. Returns how many tensors it has."""
    tensors = [
        gguf.Tensor(name, (4096, TOKENS), gguf.Q6_K) for name in ("token_embd.weight", "output.weight")
    ]
    for block in range(BLOCKS):
        tensors += [
            gguf.Tensor(f"blk.{block}.{name}.weight", (4096, rows), gguf.Q4_K)
            for name, rows in (
                ("attn_norm", 1),
                ("attn_q", 4096),
                ("attn_k", 1024),
                ("attn_v", 1024),
                ("attn_output", 4096),
                ("ffn_norm", 1),
                ("ffn_gate", 14_336),
                ("ffn_up", 14_336),
                ("ffn_down", 14_336),
            )
        ]
    values: dict[str, gguf.Value] = {
        "general.architecture": "llama",
        "llama.block_count": BLOCKS,
        "llama.context_length": 131_072,
        "llama.embedding_length": 4096,
        "llama.feed_forward_length": 14_336,
        "llama.attention.head_count": 32,
        "llama.attention.head_count_kv": 8,
        "tokenizer.ggml.tokens": [f"token{number}" for number in range(TOKENS)],
        "tokenizer.ggml.scores": [0.0] * TOKENS,
        "tokenizer.ggml.token_type": [1] * TOKENS,
        "tokenizer.ggml.merges": [f"to ken{number}" for number in range(TOKENS)],
    }
    gguf.write_gguf(path, values, tensors)
    return len(tensors)


def median_ms(work: Callable[[], object]) -> float:
    """Milliseconds of one call, the median of some."""
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1000


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(prefix="lemon-tray-bench-") as folder:
        path = Path(folder) / "large.gguf"
        count = write(path)
        kept = Path(folder) / "headers"
        store = HeaderStore(kept)
        header = store.get([path])
        numbers = {
            "tensors": count,
            "tokens": TOKENS,
            "cold_plan_ms": median_ms(lambda: device_demand(read_header(path), GPUS)),
            "from_disk_ms": median_ms(lambda: HeaderStore(kept).get([path])),
            "from_memory_ms": median_ms(lambda: store.get([path])),
            "plan_ms": median_ms(lambda: device_demand(header, GPUS)),
            "kept_bytes": len(msgspec.json.encode(header)),
        }
    report(
        {name: round(value, 3) for name, value in numbers.items()},
        f"{count} tensors, {TOKENS} tokens: {numbers['cold_plan_ms']:.1f} ms to read and plan; the header"
        f" again {numbers['from_disk_ms']:.2f} ms from disk, {numbers['from_memory_ms']:.3f} ms from memory;"
        f" the plan alone {numbers['plan_ms']:.2f} ms",
    )


if __name__ == "__main__":
    main()
