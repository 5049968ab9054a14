"""Models of several files, and headers made by chance."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.errors import ConfigError
from router.memory.header import read_header, read_shards
from router.memory.placement import PlacementOptions, device_demand
from tests.support import gguf
from tests.support.gguf import F16, Q4_0, Tensor

BASE: dict[str, gguf.Value] = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.embedding_length": 64,
    "llama.attention.head_count": 4,
    "llama.attention.sliding_window_pattern": [1, 0],
}


def shard(folder: Path, number: int, count: int, tensors: list[Tensor]) -> Path:
    values: dict[str, gguf.Value] = {"split.no": number, "split.count": count}
    return gguf.write_gguf(folder / f"m-{number}.gguf", (BASE if number == 0 else {}) | values, tensors)


def test_tensors_of_all_files_count(tmp_path: Path) -> None:
    tensors = [Tensor(f"blk.{block}.attn_q.weight", (64, 64), Q4_0) for block in range(2)]
    tensors.append(Tensor("output.weight", (64, 8), F16))
    whole = read_header(gguf.write_gguf(tmp_path / "whole.gguf", BASE, tensors))
    paths = [shard(tmp_path, number, 3, [tensor]) for number, tensor in enumerate(tensors)]
    parts = read_shards(paths)
    assert (parts.weights, parts.weights_bytes) == (whole.weights, whole.weights_bytes)
    assert parts.has_output
    assert (read_header(paths[0]).shard_count, read_header(paths[0]).has_output) == (3, False)


@pytest.mark.fault("F26")
@pytest.mark.parametrize(
    ("order", "reason"),
    [((0, 1), "file 1 of 3, not 1 of 2"), ((0, 2, 1), "file 3 of 3, not 2 of 3"), ((1, 0, 2), "not 1 of 3")],
)
def test_files_in_disorder_are_refused(tmp_path: Path, order: tuple[int, ...], reason: str) -> None:
    paths = [shard(tmp_path, number, 3, [Tensor(f"t{number}", (1,))]) for number in range(3)]
    with pytest.raises(ConfigError, match=reason):
        read_shards([paths[number] for number in order])


@pytest.mark.fault("F26")
def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    paths = [shard(tmp_path, number, 2, [Tensor("t", (1,))]) for number in range(2)]
    with pytest.raises(ConfigError, match="tensor t is in another file too"):
        read_shards(paths)


KEYS = st.sampled_from(
    [
        "general.architecture",
        "general.alignment",
        "llama.block_count",
        "llama.embedding_length",
        "llama.feed_forward_length",
        "llama.vocab_size",
        "llama.context_length",
        "llama.attention.head_count",
        "llama.attention.head_count_kv",
        "llama.attention.key_length",
        "llama.attention.key_length_mla",
        "llama.attention.shared_kv_layers",
        "llama.attention.sliding_window",
        "llama.attention.sliding_window_pattern",
        "llama.expert_used_count",
        "llama.nextn_predict_layers",
        "llama.full_attention_interval",
        "llama.ssm.conv_kernel",
        "llama.ssm.inner_size",
        "split.count",
        "tokenizer.ggml.tokens",
    ]
) | st.text(max_size=8)
NUMBERS = st.integers(0, 2**32 - 1) | st.integers(0, 8)
VALUES: st.SearchStrategy[gguf.Value] = st.one_of(
    NUMBERS,
    NUMBERS.map(gguf.u64),
    st.booleans(),
    st.floats(width=32),
    st.sampled_from(["llama", "gemma3", "mamba", ""]),
    st.lists(st.integers(-(2**31), 2**31 - 1), max_size=6),
    st.lists(st.text(max_size=4), max_size=6),
)
NAMES = st.sampled_from(
    [
        "token_embd.weight",
        "output.weight",
        "rope_freqs.weight",
        "blk.0.a",
        "blk.1.ffn_up_exps.weight",
        "blk.9999.a",
    ]
)
TENSORS = st.builds(
    Tensor,
    NAMES | st.text(max_size=8),
    st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 64), max_size=4),
    st.sampled_from([gguf.F32, F16, Q4_0, gguf.Q6_K]),
    st.none(),
    st.none() | st.integers(0, 2**64 - 1),
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("chance") / "m.gguf"


@pytest.mark.fault("F26")
@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(
    values=st.dictionaries(KEYS, VALUES, max_size=8),
    tensors=st.lists(TENSORS, max_size=4),
    sound=st.booleans(),
    damage=st.lists(st.tuples(st.integers(0, 600), st.integers(0, 255)), max_size=3),
    tail=st.integers(0, 4096),
)
def test_whatever_a_file_holds_it_is_planned_or_refused(
    place: Path,
    values: dict[str, gguf.Value],
    tensors: list[Tensor],
    sound: bool,
    damage: list[tuple[int, int]],
    tail: int,
) -> None:
    try:
        raw = bytearray(gguf.header_bytes((BASE if sound else {}) | values, tensors))
    except struct.error:
        # A place beyond 64 bits, computed from extents that cannot be.
        return
    for at, byte in damage:
        if at < len(raw):
            raw[at] = byte
    place.write_bytes(bytes(raw) + bytes(tail))
    try:
        header = read_header(place)
    except ConfigError:
        return
    assert header.weights_bytes <= (len(raw) + tail) * len(tensors)
    for options in (PlacementOptions(), PlacementOptions(devices=("a", "b"), n_gpu_layers=1, n_cpu_moe=1)):
        demand = device_demand(header, options)
        assert all(
            min(parts.weights, parts.kv_cache, parts.compute) >= 0 for parts in demand.per_device.values()
        )
        placed = sum(parts.weights for parts in demand.per_device.values())
        assert placed >= header.weights_bytes - header.token_embd_bytes
