"""Reading headers: sound ones, and files that are broken or hostile."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from router.errors import ConfigError
from router.memory.header import read_header
from tests.support import gguf

BASE: dict[str, gguf.Value] = {"general.architecture": "llama", "llama.block_count": 1}


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        read_header(path)
    assert str(path) in caught.value.message
    assert caught.value.code == "model_file_invalid"
    return caught.value.message


def written(path: Path, raw: bytes) -> Path:
    path.write_bytes(raw)
    return path


def test_a_model_that_loads_is_read_whole(tmp_path: Path) -> None:
    header = read_header(gguf.write_model(tmp_path / "tiny.gguf", layers=3, vocab=500))
    assert header.architecture == "llama"
    assert header.name == "tiny"
    assert (header.block_count, header.context_length, header.embedding_length) == (3, 2048, 64)
    assert (header.head_count, header.head_count_kv) == (4, (2, 2, 2))
    assert (header.key_length, header.value_length) == (16, 16)
    assert (header.feed_forward_length, header.vocab_size) == (128, 500)
    assert header.token_embd_bytes == 500 * 64 * 2
    per_layer = 2 * (64 * 64 + 32 * 64 + 32 * 64 + 64 * 64 + 3 * 64 * 128) + 4 * 2 * 64
    assert header.weights_bytes == 2 * 500 * 64 * 2 + 4 * 64 + 3 * per_layer
    assert header.pooling_type is None
    assert header.has_output


def test_lengths_of_a_head_follow_from_the_embedding_where_they_are_absent(tmp_path: Path) -> None:
    values = BASE | {"llama.embedding_length": 96, "llama.attention.head_count": 3, "llama.block_count": 2}
    header = read_header(gguf.write_gguf(tmp_path / "m.gguf", values))
    assert (header.key_length, header.value_length, header.head_count_kv) == (32, 32, (3, 3))


@pytest.mark.fault("F30")
def test_head_counts_may_differ_by_block(tmp_path: Path) -> None:
    values = BASE | {
        "llama.block_count": 3,
        "llama.attention.head_count": [8, 8, 4],
        "llama.attention.head_count_kv": [4, 0, 2],
    }
    header = read_header(gguf.write_gguf(tmp_path / "m.gguf", values))
    assert header.head_count_kv == (4, 0, 2)
    assert header.head_count == 8


@pytest.mark.fault("F30")
def test_missing_keys_are_zero_and_not_an_error(tmp_path: Path) -> None:
    header = read_header(gguf.write_gguf(tmp_path / "m.gguf", {"general.architecture": "new"}))
    assert (header.block_count, header.context_length, header.head_count_kv, header.name) == (0, 0, (), "")


@pytest.mark.parametrize(
    ("kind", "size"), [(gguf.F32, 256), (gguf.F16, 128), (gguf.Q4_0, 36), (gguf.Q8_0, 68)]
)
def test_bytes_of_tensors_by_element_type(tmp_path: Path, kind: int, size: int) -> None:
    path = gguf.write_gguf(tmp_path / "m.gguf", BASE, [gguf.Tensor("t", (64,), kind)])
    assert read_header(path).weights_bytes == size


def test_an_element_type_of_the_future_counts_up_to_the_next_tensor(tmp_path: Path) -> None:
    tensors = [gguf.Tensor("a", (64,), gguf.F16), gguf.Tensor("b", (64,), gguf.F16)]
    raw = bytearray(gguf.header_bytes(BASE, tensors) + bytes(256))
    place = raw.index(struct.pack("<QQI", 1, 64, 0)[8:12] + b"\0\0\0\0" + struct.pack("<I", gguf.F16))
    raw[place + 8 : place + 12] = struct.pack("<I", 777)
    assert read_header(written(tmp_path / "m.gguf", bytes(raw))).weights_bytes == 128 + 128


def test_long_arrays_are_passed_over_and_what_follows_is_read(tmp_path: Path) -> None:
    values: dict[str, gguf.Value] = {
        "tokenizer.ggml.tokens": [f"piece {number}" for number in range(150_000)],
        "tokenizer.ggml.scores": [0.0] * 150_000,
        "tokenizer.ggml.merges": ["x" * 50_000, "", "y" * 3_000_000],
        **BASE,
        "llama.context_length": gguf.u64(4096),
    }
    header = read_header(gguf.write_gguf(tmp_path / "m.gguf", values))
    assert (header.vocab_size, header.context_length) == (150_000, 4096)


def test_version_2_is_read(tmp_path: Path) -> None:
    path = written(tmp_path / "m.gguf", gguf.header_bytes(BASE, version=2))
    assert read_header(path).architecture == "llama"


def test_a_path_with_spaces_and_signs_of_any_script(tmp_path: Path) -> None:
    path = gguf.write_gguf(tmp_path / "ein Modell 模型 🙂.gguf", BASE)
    assert read_header(path).block_count == 1


GOOD = gguf.header_bytes(BASE, [gguf.Tensor("t", (64,), gguf.F16)])


@pytest.mark.fault("F26")
@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "empty"),
        (b"GGU", "too short"),
        (b"GGUF", "ends inside its header"),
        (b"GGUF\x03\0\0\0", "ends inside its header"),
        (b"<!DOCTYPE html><html>Not found</html>", "not a GGUF file"),
        (gguf.header_bytes(BASE, version=99), "version is 99"),
        (gguf.header_bytes(BASE, version=1), "version is 1"),
        (gguf.header_bytes(BASE, order=">"), "big-endian"),
        (gguf.header_bytes(BASE, tensor_count=1 << 63), "claims 9223372036854775808 tensors"),
        (gguf.header_bytes(BASE, tensor_count=1000), "ends inside its header"),
        (gguf.header_bytes(BASE, value_count=1 << 62), "keys"),
        (gguf.header_bytes(BASE, value_count=60_000), "ends inside its header"),
        (GOOD, "incomplete: tensor t ends"),
        (gguf.header_bytes(BASE, [gguf.Tensor("t", (64,), offset=1 << 40)]) + bytes(128), "incomplete"),
        (gguf.header_bytes(BASE, [gguf.Tensor("t", (1 << 63, 1 << 63, 1 << 63))]), "incomplete"),
        (gguf.header_bytes(BASE, [gguf.Tensor("t", (1, 1, 1, 1, 1))]), "5 dimensions"),
        (gguf.header_bytes(BASE, [gguf.Tensor("t", (1,)), gguf.Tensor("t", (1,))]), "twice"),
        (gguf.header_bytes({"llama.block_count": 1}), "no architecture"),
        (gguf.header_bytes(BASE | {"llama.block_count": 1 << 31}), "block_count is 2147483648"),
        (gguf.header_bytes(BASE | {"llama.context_length": 1.5}), "not a whole number"),
        (
            gguf.header_bytes(BASE | {"llama.block_count": 3, "llama.feed_forward_length": [1]}),
            "1 entries for 3",
        ),
        (gguf.header_bytes(BASE | {"llama.attention.head_count": [-1]}), "cannot be"),
        (gguf.header_bytes(BASE | {"general.alignment": 24}), "no power of two"),
        (gguf.header_bytes(BASE | {"general.alignment": 0}), "no power of two"),
    ],
)
def test_a_broken_file_is_refused_with_its_reason(tmp_path: Path, raw: bytes, reason: str) -> None:
    path = written(tmp_path / "broken.gguf", raw)
    assert reason in refusal(path)


def _value_of(kind: int, rest: bytes) -> bytes:
    key = b"k"
    return b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, len(key)) + key + struct.pack("<I", kind) + rest


@pytest.mark.fault("F26")
@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 60), "name of 1152921504606846976 bytes"),
        (_value_of(8, struct.pack("<Q", 1 << 60)), "claims 1152921504606846976 bytes"),
        (_value_of(8, struct.pack("<Q", (1 << 64) - 8)), "claims"),
        (_value_of(9, struct.pack("<IQ", 4, 1 << 62)), "claims"),
        (_value_of(9, struct.pack("<IQ", 8, 1 << 62)), "claims 4611686018427387904 strings"),
        (_value_of(9, struct.pack("<IQ", 8, 1000)), "ends inside its header"),
        (_value_of(9, struct.pack("<IQQ", 8, 2, 1 << 60)), "beyond its end"),
        (_value_of(9, struct.pack("<IQ", 9, 3)), "unusable value type 9"),
        (_value_of(77, b""), "unknown value type 77"),
    ],
)
def test_lengths_are_not_believed(tmp_path: Path, raw: bytes, reason: str) -> None:
    assert reason in refusal(written(tmp_path / "hostile.gguf", raw))


@pytest.mark.fault("F26")
def test_every_prefix_of_a_sound_file_is_refused(tmp_path: Path) -> None:
    raw = GOOD + bytes(128)
    path = tmp_path / "m.gguf"
    assert read_header(written(path, raw)).weights_bytes == 128
    for length in range(len(raw)):
        refusal(written(path, raw[:length]))


@pytest.mark.fault("F26")
def test_any_damaged_byte_gives_a_header_or_a_refusal(tmp_path: Path) -> None:
    raw = gguf.header_bytes(BASE | {"llama.attention.head_count_kv": [2]}, [gguf.Tensor("t", (64,))]) + bytes(
        128
    )
    path = tmp_path / "m.gguf"
    outcomes = set()
    for place in range(len(raw) - 128):
        for value in (0, 0x7F, 0xFF):
            path.write_bytes(raw[:place] + bytes([value]) + raw[place + 1 :])
            try:
                read_header(path)
                outcomes.add("read")
            except ConfigError:
                outcomes.add("refused")
    assert outcomes == {"read", "refused"}


@pytest.mark.fault("F26")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "pipe.gguf"
    os.mkfifo(path)
    assert "not a regular file" in refusal(path)


@pytest.mark.fault("F26")
@pytest.mark.parametrize("path", [Path("/dev/zero"), Path("/dev/null")])
def test_a_device_is_refused(path: Path) -> None:
    assert "not a regular file" in refusal(path)


@pytest.mark.fault("F26")
def test_a_folder_is_refused(tmp_path: Path) -> None:
    refusal(tmp_path)


@pytest.mark.fault("F26")
def test_a_missing_file_keeps_its_cause(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file") as caught:
        read_header(tmp_path / "gone.gguf")
    assert isinstance(caught.value.__cause__, FileNotFoundError)


@pytest.mark.fault("F26")
def test_an_unreadable_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    # Not by mode bits: tests may run as a user who can read everything.
    monkeypatch.setattr(os, "open", denied)
    path = tmp_path / "secret.gguf"
    assert "Permission denied" in refusal(path)


@pytest.mark.fault("F26")
def test_a_name_from_the_file_cannot_flood_or_forge_a_message(tmp_path: Path) -> None:
    name = "evil\n\x1b[31m" + "x" * 60_000
    raw = gguf.header_bytes(BASE, [gguf.Tensor(name, (64,))])
    message = refusal(written(tmp_path / "m.gguf", raw))
    assert message.isprintable()
    assert len(message) < 1000
