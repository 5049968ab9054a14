"""Demand by device, calculated by hand. The comparison with the engine's planner is in tests/oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from router.devices.base import HOST_ID
from router.memory.cache import cache_shape, windowed_blocks
from router.memory.demand import COMPUTE_FLOOR
from router.memory.header import ModelHeader, Sizes, Weights, read_header
from router.memory.placement import (
    DEVICE_OVERHEAD,
    HOST,
    PROJECTOR_GRAPH,
    Parts,
    PlacementOptions,
    block_places,
    device_demand,
)
from router.units import GIB, MIB
from tests.support import gguf
from tests.support.gguf import F16, F32, Q4_0, Tensor

TWO = ("gpu-a", "gpu-b")


def header(**changes: Any) -> ModelHeader:
    """32 blocks of 8 key/value heads of 128; 100 MiB a block, 60 of them experts; tables of 300 MiB."""
    block, experts = Sizes(40 * MIB, 40 * MIB), Sizes(60 * MIB, 60 * MIB)
    table = Sizes(300 * MIB, 300 * MIB)
    plain = ModelHeader(
        architecture="llama",
        name="m",
        context_length=131_072,
        block_count=32,
        embedding_length=4096,
        feed_forward_length=14_336,
        head_count=32,
        head_count_kv=(8,) * 32,
        key_length=128,
        value_length=128,
        vocab_size=1000,
        weights_bytes=3800 * MIB,
        token_embd_bytes=300 * MIB,
        weights=Weights((block,) * 32, (experts,) * 32, token_embd=table, output=table),
    )
    return replace(plain, **changes)


def weights(model: ModelHeader, **options: Any) -> dict[str, int]:
    demand = device_demand(model, PlacementOptions(**options))
    return {device: parts.weights // MIB for device, parts in demand.per_device.items()}


def test_the_hosts_id_is_that_of_the_devices() -> None:
    assert HOST == HOST_ID


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "h" * 33),
        ({"devices": TWO}, "a" * 17 + "b" * 16),
        ({"devices": TWO, "tensor_split": (3, 1)}, "a" * 25 + "b" * 8),
        ({"devices": TWO, "tensor_split": (0, 1)}, "b" * 33),
        ({"devices": TWO, "n_gpu_layers": 0}, "h" * 33),
        ({"devices": TWO, "n_gpu_layers": 1}, "h" * 32 + "a"),
        ({"devices": TWO, "n_gpu_layers": 10}, "h" * 23 + "a" * 5 + "b" * 5),
        ({"devices": TWO, "n_gpu_layers": 999}, "a" * 17 + "b" * 16),
    ],
)
def test_blocks_and_the_output_go_where_the_shares_say(options: dict[str, Any], expected: str) -> None:
    placement = PlacementOptions(**options)
    places = block_places(32, placement.devices, placement)
    assert "".join("h" if place == HOST else place[-1] for place in places) == expected


def test_shares_are_compared_as_the_engine_compares_them() -> None:
    # With doubles, 0.1 + 0.2 is more than 3 of 10 layers, and the fourth would be b's.
    options = PlacementOptions(devices=("a", "b", "c"), tensor_split=(0.1, 0.2, 0.7))
    assert block_places(9, options.devices, options) == ("a", "b", "b", *("c",) * 7)


def test_weights_by_device() -> None:
    assert weights(header()) == {HOST: 3800}
    assert weights(header(), devices=("a",)) == {"a": 3500, HOST: 300}
    assert weights(header(), devices=TWO) == {"gpu-a": 1700, "gpu-b": 1800, HOST: 300}
    assert weights(header(), devices=TWO, split_mode="none", main_gpu=1) == {"gpu-b": 3500, HOST: 300}
    assert weights(header(), devices=("a",), n_gpu_layers=32) == {"a": 3100 + 300, HOST: 400}
    assert weights(header(), devices=("a",), n_cpu_moe=10) == {"a": 2900, HOST: 900}


def test_a_table_that_serves_twice_is_there_twice() -> None:
    whole = header().weights
    once = Weights(whole.blocks, whole.experts, token_embd=whole.token_embd)
    tied = header(has_output=False, weights=once, weights_bytes=3500 * MIB)
    assert weights(tied, devices=("a",)) == {"a": 3500, HOST: 300}
    assert weights(tied) == {HOST: 3500}
    # The processor may use another form of it, in a copy.
    quantized = replace(tied, weights=replace(once, table_repacked=True))
    assert weights(quantized) == {HOST: 3800}
    assert weights(quantized, repack=False) == {HOST: 3500}
    assert device_demand(quantized, PlacementOptions()).estimate
    assert weights(replace(tied, architecture="bert"), devices=("a",)) == {"a": 3200, HOST: 300}


def test_rows_of_quantized_tensors_are_filled_up_on_gpus_only(tmp_path: Path) -> None:
    values: dict[str, gguf.Value] = {"general.architecture": "llama", "llama.block_count": 1}
    tensors = [
        Tensor("blk.0.attn_q.weight", (576, 10), Q4_0),
        Tensor("blk.0.attn_norm.weight", (9,), F32),
        Tensor("blk.0.ffn_up_exps.weight", (64, 1), F16),
        Tensor("token_embd.weight", (1024, 3), Q4_0),
        Tensor("token_embd_norm.weight", (8,), F32),
        Tensor("rope_freqs.weight", (8,), F32),
        Tensor("blk.7.stray", (8,), F32),
    ]
    read = read_header(gguf.write_gguf(tmp_path / "m.gguf", values, tensors)).weights
    # 576 * 10 elements are 3240 bytes; 448 more fill the last row: 252 bytes, and 3492 rounds up to 3584.
    assert read.blocks == (Sizes(3264 + 64, 3584 + 128),)
    assert read.experts == (Sizes(128, 128),)
    assert read.token_embd == Sizes(1728, 1792)
    assert (read.first, read.rotary, read.output) == (Sizes(32, 128), Sizes(32, 128), Sizes(32, 128))
    assert (read.largest, read.largest_expert, read.table_repacked) == (3584, 128, True)


@pytest.mark.fault("F30")
def test_the_cache_lies_where_its_blocks_lie() -> None:
    demand = device_demand(header(), PlacementOptions(devices=TWO, ctx_size=4096, n_gpu_layers=21))
    # 12 blocks on the host; 2 * 256 * 8 * 4096 bytes each are 16 MiB.
    assert [parts.kv_cache // MIB for parts in demand.per_device.values()] == [11 * 16, 9 * 16, 12 * 16]


@pytest.mark.fault("F30")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"cache_type_k": "q8_0", "cache_type_v": "q8_0"}, GIB // 2 * 17 // 32),
        ({"cache_type_k": "q8_0"}, GIB // 4 + GIB // 4 * 17 // 32),
        ({"parallel": 4}, GIB // 2),
        ({"parallel": 3, "kv_unified": False}, GIB // 2 * 3 * 1536 // 4096),
        ({"ctx_size": 131_072}, 16 * GIB),
    ],
)
def test_the_cache_by_type_and_slots(options: dict[str, Any], expected: int) -> None:
    demand = device_demand(header(), PlacementOptions(**({"ctx_size": 4096} | options)))
    assert demand.per_device[HOST].kv_cache == expected


def test_windowed_blocks_hold_their_window_and_a_batch() -> None:
    gemma = header(architecture="gemma3", sliding_window=1024)
    assert windowed_blocks(gemma)[:7] == (True, True, True, True, True, False, True)
    shape = cache_shape(gemma, 32_768, 2, unified=True, ubatch=512)
    assert (shape.cells, shape.window_cells, shape.streams) == (32_768, 2560, 1)
    assert cache_shape(gemma, 32_768, 2, unified=False, ubatch=512).window_cells == 1536
    full = device_demand(gemma, PlacementOptions(ctx_size=32_768, swa_full=True)).per_device[HOST].kv_cache
    small = device_demand(gemma, PlacementOptions(ctx_size=32_768)).per_device[HOST].kv_cache
    # 27 of 32 blocks have windows.
    assert full - small == 27 * 4096 * (32_768 - 1536)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"architecture": "new", "sliding_window": 1024}, [False] * 4),
        ({"architecture": "gpt-oss", "sliding_window": 128}, [True, False] * 2),
        ({"architecture": "gemma3", "sliding_window": 128, "window_pattern": (2,)}, [True, False] * 2),
        (
            {"architecture": "gemma3", "sliding_window": 128, "window_pattern": (0, 0, 1, 1)},
            [False, False, True, True],
        ),
        ({"architecture": "gemma3"}, [False] * 4),
    ],
)  # fmt: skip
def test_which_blocks_are_windowed(changes: dict[str, Any], expected: list[bool]) -> None:
    assert list(windowed_blocks(header(block_count=4, head_count_kv=(8,) * 4, **changes))) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"architecture": "new"},
        {"nextn_layers": 1},
        {"state_bytes": 100},
        {"is_latent": True},
        {"shared_kv_layers": 4},
        {"weights_bytes": 4000 * MIB},
    ],
)
@pytest.mark.fault("F30")
def test_what_is_not_certain_is_an_estimate(changes: dict[str, Any]) -> None:
    options = PlacementOptions(devices=TWO)
    assert not device_demand(header(), options).estimate
    assert device_demand(header(**changes), options).estimate


def test_latent_shared_and_further_caches() -> None:
    def cache(**changes: Any) -> int:
        return device_demand(header(**changes), PlacementOptions()).per_device[HOST].kv_cache // MIB

    assert cache() == 512
    assert cache(is_latent=True) == 256
    assert cache(shared_kv_layers=16) == 256
    assert cache(nextn_layers=2) == 480
    assert cache(head_count_kv=(0, 8) * 16, state_bytes=MIB) == 16 + 16 * 17
    assert cache(full_attention_interval=4, state_bytes=MIB) == 24 + 8 * 17


def test_bytes_of_files_that_the_header_does_not_tell_of_are_spread() -> None:
    sharded = header(weights_bytes=3800 * MIB + 320 * MIB)
    assert weights(sharded, devices=("a",)) == {"a": 3500 + 320, HOST: 300}
    unknown = header(weights=Weights(), weights_bytes=0)
    demand = device_demand(unknown, PlacementOptions(devices=("a",)), size_bytes=3200 * MIB)
    assert demand.per_device["a"].weights == 3200 * MIB


def test_pipelined_gpus_keep_copies_of_the_inputs() -> None:
    def compute(**options: Any) -> int:
        demand = device_demand(header(), PlacementOptions(ctx_size=16_384, **options))
        return demand.per_device["gpu-a"].compute

    alone, together = compute(devices=TWO[:1]), compute(devices=TWO)
    assert together > alone + 3 * 512 * 2 * 16_384
    assert compute(devices=TWO, n_cpu_moe=1) < together
    assert compute(devices=TWO, split_mode="none") == alone
    assert compute(devices=TWO[:1], flash_attn="off") > alone + 4 * 512 * 16_384 * 31


def test_overhead_and_a_projector_are_added() -> None:
    demand = device_demand(
        header(), PlacementOptions(devices=TWO, main_gpu=1, split_mode="none", projector_bytes=GIB)
    )
    assert demand.per_device["gpu-b"].projector == GIB + PROJECTOR_GRAPH
    assert demand.per_device["gpu-b"].overhead == DEVICE_OVERHEAD
    assert demand.per_device[HOST].projector == 0
    plain = device_demand(header(), PlacementOptions(devices=TWO, device_overhead=7))
    assert [parts.overhead for parts in plain.per_device.values()][:2] == [7, 7]
    assert plain.bytes_by_device()["gpu-a"] == plain.per_device["gpu-a"].total
    assert plain.total == sum(plain.bytes_by_device().values())


def test_a_gpu_without_a_block_takes_its_overhead_and_the_floor() -> None:
    demand = device_demand(header(), PlacementOptions(devices=TWO, tensor_split=(1, 0)))
    assert demand.per_device["gpu-b"] == Parts(0, 0, COMPUTE_FLOOR, 0, DEVICE_OVERHEAD)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"devices": TWO, "tensor_split": (1,)}, "1 shares for 2"),
        ({"devices": TWO, "tensor_split": (0, 0)}, "not all of them 0"),
        ({"devices": TWO, "tensor_split": (-1, 2)}, "positive"),
        ({"devices": TWO, "tensor_split": (1, float("nan"))}, "positive"),
        ({"devices": TWO, "main_gpu": 2, "split_mode": "none"}, "no device 2 among 2"),
        ({"devices": ("a", "a")}, "each GPU once"),
        ({"devices": (HOST,)}, "not the host"),
        ({"cache_type_v": "q9"}, "cache type q9"),
    ],
)
def test_options_that_contradict_each_other(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        device_demand(header(), PlacementOptions(**options))


@pytest.mark.fault("F30")
def test_nothing_known_is_planned_too() -> None:
    empty = header(
        block_count=0, head_count_kv=(), weights=Weights(), weights_bytes=0, embedding_length=0, head_count=0
    )
    demand = device_demand(empty, PlacementOptions(devices=("a",), ctx_size=10**9), size_bytes=GIB)
    assert demand.per_device["a"].weights == GIB
    assert demand.per_device["a"].kv_cache == 0
