"""Models of several architectures and of any size, whose tensor data is a hole in the file: the planner reads
headers only, so an 8B model costs no disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from tests.support import gguf
from tests.support.gguf import F32, Tensor


class Shape(Struct, frozen=True):
    """What a model is like.

    `kind` is the element type of its matrices, `output_kind` that of the embedding and output tables; `tied`
    leaves the output table out; `rotary` adds a table of rotary factors for all blocks.
    """

    architecture: str = "llama"
    layers: int = 4
    embd: int = 512
    heads: int = 8
    kv_heads: int | list[int] = 2
    head_dim: int = 64
    ff: int = 1024
    vocab: int = 512
    context: int = 131_072
    experts: int = 0
    experts_used: int = 2
    shared_ff: int = 0
    window: int = 0
    kind: int = gguf.F16
    output_kind: int = gguf.F16
    tied: bool = False
    rotary: bool = False
    extra: Mapping[str, Any] = {}


def write(path: Path, shape: Shape) -> Path:
    """The model's file."""
    a = shape.architecture
    pieces = [b"<unk>", b"<s>", b"</s>", *(b"<0x%02X>" % byte for byte in range(256))]
    kinds = [2, 3, 3, *[6] * 256]
    for number in range(len(pieces), shape.vocab):
        pieces.append(b"<pad%d>" % number)
        kinds.append(5)
    values: dict[str, gguf.Value] = {
        "general.architecture": a,
        "general.name": path.stem,
        f"{a}.block_count": shape.layers,
        f"{a}.context_length": shape.context,
        f"{a}.embedding_length": shape.embd,
        f"{a}.feed_forward_length": shape.ff,
        f"{a}.attention.head_count": shape.heads,
        f"{a}.attention.head_count_kv": shape.kv_heads,
        f"{a}.attention.key_length": shape.head_dim,
        f"{a}.attention.value_length": shape.head_dim,
        f"{a}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{a}.attention.layer_norm_epsilon": 1e-5,
        f"{a}.rope.dimension_count": shape.head_dim,
        f"{a}.vocab_size": len(pieces),
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.scores": [-float(number) for number in range(len(pieces))],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    if shape.experts:
        values[f"{a}.expert_count"] = shape.experts
        values[f"{a}.expert_used_count"] = shape.experts_used
        values[f"{a}.expert_feed_forward_length"] = shape.ff
    if shape.shared_ff:
        values[f"{a}.expert_shared_feed_forward_length"] = shape.shared_ff
    if shape.window:
        values[f"{a}.attention.sliding_window"] = shape.window
    values.update(shape.extra)
    return gguf.write_gguf(path, values, list(_tensors(shape, len(pieces))))


def _tensors(shape: Shape, vocab: int) -> list[Tensor]:
    tensors = [
        Tensor("token_embd.weight", (shape.embd, vocab), shape.output_kind),
        Tensor("output_norm.weight", (shape.embd,), F32),
    ]
    if not shape.tied:
        tensors.append(Tensor("output.weight", (shape.embd, vocab), shape.output_kind))
    if shape.rotary:
        tensors.append(Tensor("rope_freqs.weight", (shape.head_dim // 2,), F32))
    for layer in range(shape.layers):
        tensors += [
            Tensor(f"blk.{layer}.{name}", extents, kind) for name, extents, kind in _block(shape, layer)
        ]
    return tensors


def _block(shape: Shape, layer: int) -> list[tuple[str, tuple[int, ...], int]]:
    a, embd, kind = shape.architecture, shape.embd, shape.kind
    queries = shape.heads * shape.head_dim
    heads = shape.kv_heads if isinstance(shape.kv_heads, int) else shape.kv_heads[layer]
    keys = heads * shape.head_dim
    parts: list[tuple[str, tuple[int, ...], int]] = [("attn_norm.weight", (embd,), F32)]

    def matrix(name: str, columns: int, rows: int, bias: bool = False) -> None:
        parts.append((f"{name}.weight", (columns, rows), kind))
        if bias:
            parts.append((f"{name}.bias", (rows,), F32))

    biased = a in ("qwen2", "gpt-oss", "qwen2moe")
    if a == "phi3":
        matrix("attn_qkv", embd, queries + 2 * keys)
    else:
        matrix("attn_q", embd, queries, biased)
        matrix("attn_k", embd, keys, biased)
        matrix("attn_v", embd, keys, biased)
    matrix("attn_output", queries, embd, a == "gpt-oss")
    if a in ("qwen3", "qwen3moe", "gemma3"):
        parts += [
            ("attn_q_norm.weight", (shape.head_dim,), F32),
            ("attn_k_norm.weight", (shape.head_dim,), F32),
        ]
    if a in ("gemma2", "gemma3", "gpt-oss"):
        parts.append(("post_attention_norm.weight", (embd,), F32))
    if a in ("gemma2", "gemma3"):
        parts.append(("post_ffw_norm.weight", (embd,), F32))
    if a == "gpt-oss":
        parts.append(("attn_sinks.weight", (shape.heads,), F32))
    elif a != "cohere2":
        parts.append(("ffn_norm.weight", (embd,), F32))
    if shape.experts:
        parts.append(("ffn_gate_inp.weight", (embd, shape.experts), F32))
        for name, columns, rows in (
            ("gate", embd, shape.ff),
            ("up", embd, shape.ff),
            ("down", shape.ff, embd),
        ):
            parts.append((f"ffn_{name}_exps.weight", (columns, rows, shape.experts), kind))
            if a == "gpt-oss":
                parts.append((f"ffn_{name}_exps.bias", (rows, shape.experts), F32))
        if a == "gpt-oss":
            parts.append(("ffn_gate_inp.bias", (shape.experts,), F32))
        if shape.shared_ff:
            parts.append(("ffn_gate_inp_shexp.weight", (embd,), F32))
            matrix("ffn_gate_shexp", embd, shape.shared_ff)
            matrix("ffn_up_shexp", embd, shape.shared_ff)
            matrix("ffn_down_shexp", shape.shared_ff, embd)
    else:
        if a != "phi3":
            matrix("ffn_gate", embd, shape.ff)
        matrix("ffn_up", embd, 2 * shape.ff if a == "phi3" else shape.ff)
        matrix("ffn_down", shape.ff, embd)
    return parts
