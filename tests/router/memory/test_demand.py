"""Planned memory, against measured figures and calculation by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from router.memory.demand import COMPUTE_FLOOR, OVERHEAD, Demand, default_ctx, demand, model_type
from router.memory.header import ModelHeader, read_header
from router.units import GIB, MIB
from tests.support import gguf

#: SmolLM2-135M.
SMOL = ModelHeader(
    architecture="llama",
    name="SmolLM2 135M",
    context_length=8192,
    block_count=30,
    embedding_length=576,
    feed_forward_length=1536,
    head_count=9,
    head_count_kv=(3,) * 30,
    key_length=64,
    value_length=64,
    vocab_size=49_152,
    weights_bytes=96_575_488,
    token_embd_bytes=0,
)


def big(**changes: object) -> ModelHeader:
    """32 blocks of 8 key/value heads of 128: an 8B model."""
    values = {
        "block_count": 32,
        "embedding_length": 4096,
        "feed_forward_length": 14_336,
        "head_count": 32,
        "head_count_kv": (8,) * 32,
        "key_length": 128,
        "value_length": 128,
        "vocab_size": 128_256,
        "context_length": 131_072,
    }
    return replace(SMOL, **(values | changes))


@pytest.mark.fault("F30")
@pytest.mark.parametrize(("ctx_size", "expected"), [(1024, 22.5), (4096, 90.0)])
def test_cache_equals_what_the_engine_allocates(ctx_size: int, expected: float) -> None:
    assert demand(SMOL, 0, ctx_size, 1).kv_cache == expected * MIB


@pytest.mark.fault("F30")
@pytest.mark.parametrize(("ctx_size", "expected"), [(4096, GIB // 2), (131_072, 16 * GIB)])
def test_cache_grows_with_the_context(ctx_size: int, expected: int) -> None:
    # 2 bytes * (128 + 128) * 8 heads * 32 blocks = 128 KiB a token
    assert demand(big(), 0, ctx_size, 1).kv_cache == expected


@pytest.mark.fault("F30")
def test_slots_share_one_cache() -> None:
    assert demand(big(), 0, 4096, 4).kv_cache == demand(big(), 0, 4096, 1).kv_cache


def test_context_is_rounded_up_as_the_engine_does() -> None:
    assert demand(SMOL, 0, 1025, 1).kv_cache == demand(SMOL, 0, 1280, 1).kv_cache
    assert demand(SMOL, 0, 0, 1).kv_cache == demand(SMOL, 0, 256, 1).kv_cache


@pytest.mark.fault("F30")
def test_blocks_without_attention_have_no_cache() -> None:
    half = big(head_count_kv=(8, 0) * 16)
    assert demand(half, 0, 4096, 1).kv_cache == GIB // 4


def test_recurrent_state_is_held_for_each_slot_and_not_for_each_token() -> None:
    # A Mamba of 4 blocks, inner size 128, state 16, kernel 4: 3 * 128 + 16 * 128 floats a block.
    mamba = replace(
        SMOL, architecture="mamba", block_count=4, head_count_kv=(0,) * 4, state_bytes=4 * (384 + 2048)
    )
    assert demand(mamba, 0, 1024, 1).kv_cache == 4 * 9728
    assert demand(mamba, 0, 8192, 4).kv_cache == 4 * 4 * 9728


def test_state_is_read_from_the_header(tmp_path: Path) -> None:
    values: dict[str, gguf.Value] = {
        "general.architecture": "mamba",
        "mamba.block_count": 4,
        "mamba.embedding_length": 64,
        "mamba.attention.head_count": 0,
        "mamba.ssm.conv_kernel": 4,
        "mamba.ssm.inner_size": 128,
        "mamba.ssm.state_size": 16,
    }
    header = read_header(gguf.write_gguf(tmp_path / "m.gguf", values))
    # The engine's own figure for 4 slots' worth of this model is 155648 bytes.
    assert demand(header, 0, 1024, 4).kv_cache == 155_648


def test_an_encoder_keeps_no_cache(tmp_path: Path) -> None:
    header = read_header(gguf.write_encoder(tmp_path / "e.gguf"))
    assert demand(header, 0, 512, 1).kv_cache == 0
    assert demand(header, 0, 512, 1).compute == COMPUTE_FLOOR


@pytest.mark.fault("F30")
def test_compute_of_a_large_model_by_hand() -> None:
    # 512 tokens * (2 * 16384 cells + 4 * (3 * 14336 + 4 * 4096)) + 4 * 128256 for the answer
    assert demand(big(), 0, 16_384, 1).compute == 512 * (32_768 + 4 * 59_392) + 513_024


def test_compute_has_a_floor() -> None:
    assert demand(SMOL, 0, 4096, 1).compute == COMPUTE_FLOOR


def test_an_unknown_architecture_gets_more_compute() -> None:
    known, new = big(), big(architecture="brandnew")
    assert demand(new, 0, 16_384, 1).compute == demand(known, 0, 16_384, 1).compute * 115 // 100


def test_experts_count_as_many_as_are_used() -> None:
    experts = big(expert_used_count=8, expert_feed_forward_length=4096)
    assert demand(experts, 0, 4096, 1).compute > demand(big(), 0, 4096, 1).compute


def test_logits_of_many_slots_count() -> None:
    one, many = demand(big(), 0, 4096, 1), demand(big(), 0, 4096, 64)
    assert many.compute - one.compute == 63 * 4 * 128_256


def test_weights_are_the_tensors_and_the_files_only_without_them() -> None:
    assert demand(SMOL, 10**9, 1024, 1).weights == SMOL.weights_bytes
    assert demand(replace(SMOL, weights_bytes=0), 10**9, 1024, 1).weights == 10**9


def test_total_is_the_sum_and_says_that_it_is_an_estimate() -> None:
    planned = demand(SMOL, 0, 1024, 1)
    assert planned.total == planned.weights + planned.kv_cache + planned.compute + planned.overhead
    assert planned.overhead == OVERHEAD
    assert planned.source == "estimate"


@pytest.mark.fault("F30")
def test_a_context_of_a_milliard_is_planned_and_not_wrapped() -> None:
    assert demand(big(), 0, 10**9, 1).kv_cache == 131_072 * 1_000_000_000


def test_nothing_known_is_nothing_but_the_file(tmp_path: Path) -> None:
    header = read_header(gguf.write_gguf(tmp_path / "m.gguf", {"general.architecture": "new"}))
    assert demand(header, 5000, 4096, 1) == Demand(5000, 0, COMPUTE_FLOOR, OVERHEAD)


@pytest.mark.parametrize(
    ("own", "setting", "expected"),
    [(8192, 0, 8192), (131_072, 0, 16_384), (0, 0, 4096), (8192, 2048, 2048), (8192, 1 << 20, 1 << 20)],
)
def test_context_by_default(own: int, setting: int, expected: int) -> None:
    assert default_ctx(replace(SMOL, context_length=own), setting) == expected


@pytest.mark.parametrize(
    ("architecture", "pooling", "expected"),
    [
        ("llama", None, "llm"),
        ("llama", 0, "llm"),
        ("qwen3", 3, "embedding"),
        ("qwen3", 4, "reranking"),
        ("bert", 1, "embedding"),
        ("bert", None, "embedding"),
        ("bert", 4, "reranking"),
        ("nomic-bert", 0, "embedding"),
    ],
)
def test_type_of_a_model(architecture: str, pooling: int | None, expected: str) -> None:
    assert model_type(replace(SMOL, architecture=architecture, pooling_type=pooling)) == expected
