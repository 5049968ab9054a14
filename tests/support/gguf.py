"""Writes small GGUF files: headers only, models that really load, and files that are broken on purpose.

Everything is deterministic and needs the standard library only.
"""

from __future__ import annotations

import itertools
import random
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

F32: Final = 0
F16: Final = 1
Q4_0: Final = 2
Q8_0: Final = 8
Q4_K: Final = 12
Q6_K: Final = 14
MXFP4: Final = 39

#: Elements in a block and bytes of a block, for the types that the tests use.
_BLOCK: Final = {
    F32: (1, 4),
    F16: (1, 2),
    Q4_0: (32, 18),
    Q8_0: (32, 34),
    Q4_K: (256, 144),
    Q6_K: (256, 210),
    MXFP4: (32, 17),
}
_ALIGNMENT: Final = 32

# Value types of the format.
_UINT8, _INT8, _UINT16, _INT16, _UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY, _UINT64 = range(11)


class Typed:
    """A value with an explicit value type, where the guess from its Python type would be another."""

    def __init__(self, kind: int, layout: str, value: object) -> None:
        self.kind = kind
        self.layout = layout
        self.value = value


def u64(value: int) -> Typed:
    """A value written as uint64."""
    return Typed(_UINT64, "Q", value)


Value = (
    str
    | bytes
    | bool
    | int
    | float
    | Typed
    | Sequence[str]
    | Sequence[bytes]
    | Sequence[int]
    | Sequence[float]
)


class Tensor:
    """A tensor's entry: extents as the format orders them (fastest first), element type, data or none.

    `offset` overrides the computed place in the data section, for broken files.
    """

    def __init__(
        self,
        name: str,
        shape: Sequence[int],
        kind: int = F16,
        data: bytes | None = None,
        offset: int | None = None,
    ) -> None:
        self.name = name
        self.shape = tuple(shape)
        self.kind = kind
        self.data = data
        self.offset = offset

    @property
    def size(self) -> int:
        """Bytes of the data."""
        count = 1
        for extent in self.shape:
            count *= extent
        elements, block_bytes = _BLOCK[self.kind]
        return count // elements * block_bytes


def _text(value: str | bytes, order: str) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack(order + "Q", len(raw)) + raw


def _value(value: Value, order: str) -> bytes:
    def kinded(kind: int, raw: bytes) -> bytes:
        return struct.pack(order + "I", kind) + raw

    if isinstance(value, Typed):
        return kinded(value.kind, struct.pack(order + value.layout, value.value))
    if isinstance(value, bool):
        return kinded(_BOOL, struct.pack("?", value))
    if isinstance(value, int):
        return kinded(_UINT32, struct.pack(order + "I", value))
    if isinstance(value, float):
        return kinded(_FLOAT32, struct.pack(order + "f", value))
    if isinstance(value, str | bytes):
        return kinded(_STRING, _text(value, order))
    items = list(value)
    if items and isinstance(items[0], str | bytes):
        kind, raw = _STRING, b"".join(_text(item, order) for item in items)  # type: ignore[arg-type]  # checked above
    elif items and isinstance(items[0], float):
        kind, raw = _FLOAT32, struct.pack(f"{order}{len(items)}f", *items)
    else:
        kind, raw = _INT32, struct.pack(f"{order}{len(items)}i", *items)
    return kinded(_ARRAY, struct.pack(order + "IQ", kind, len(items)) + raw)


def header_bytes(
    values: Mapping[str, Value],
    tensors: Sequence[Tensor] = (),
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    value_count: int | None = None,
    tensor_count: int | None = None,
    order: str = "<",
) -> bytes:
    """The header with its tensor table, padded to where data begins. Counts may be forged."""
    parts = [
        magic,
        struct.pack(
            order + "IQQ",
            version,
            len(tensors) if tensor_count is None else tensor_count,
            len(values) if value_count is None else value_count,
        ),
    ]
    for key, value in values.items():
        parts += [_text(key, order), _value(value, order)]
    place = 0
    for tensor in tensors:
        offset = place if tensor.offset is None else tensor.offset
        parts += [
            _text(tensor.name, order),
            struct.pack(
                f"{order}I{len(tensor.shape)}QIQ", len(tensor.shape), *tensor.shape, tensor.kind, offset
            ),
        ]
        place += -(-tensor.size // _ALIGNMENT) * _ALIGNMENT
    raw = b"".join(parts)
    return raw + bytes(-len(raw) % _ALIGNMENT)


def write_gguf(path: Path, values: Mapping[str, Value], tensors: Sequence[Tensor] = ()) -> Path:
    """A well-formed file. Tensors without data become a hole: a file of many GiB takes no disk."""
    with path.open("wb") as out:
        out.write(header_bytes(values, tensors))
        for tensor in tensors:
            if tensor.data is None:
                out.seek(tensor.size, 1)
            else:
                out.write(tensor.data)
            out.seek(-out.tell() % _ALIGNMENT, 1)
        out.truncate()
    return path


def write_header_only(
    path: Path,
    *,
    architecture: str = "llama",
    layers: int = 32,
    heads: int = 32,
    kv_heads: int | Sequence[int] | None = 8,
    head_dim: int = 128,
    context: int = 131_072,
    weights_bytes: int = 4 << 30,
    vocab: int = 0,
    extra: Mapping[str, Value] | None = None,
) -> Path:
    """A model of any claimed size whose tensor data is a hole: it can be planned, but never loaded."""
    embd = heads * head_dim
    values: dict[str, Value] = {
        "general.architecture": architecture,
        "general.name": path.stem,
        f"{architecture}.block_count": layers,
        f"{architecture}.context_length": context,
        f"{architecture}.embedding_length": embd,
        f"{architecture}.feed_forward_length": 4 * embd,
        f"{architecture}.attention.head_count": heads,
        f"{architecture}.attention.key_length": head_dim,
        f"{architecture}.attention.value_length": head_dim,
    }
    if kv_heads is not None:
        values[f"{architecture}.attention.head_count_kv"] = kv_heads
    if vocab:
        values["tokenizer.ggml.tokens"] = [f"t{number}" for number in range(vocab)]
    values.update(extra or {})
    return write_gguf(path, values, [Tensor("blk.0.attn_q.weight", (weights_bytes // 2,), F16)])


_CHAT: Final = (
    "{% for m in messages %}{{ m['role'] + '> ' + m['content'] + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant> {% endif %}"
)


def _noise(rng: random.Random, count: int) -> bytes:
    """`count` half floats of random sign between 1/32 and 1/16: made by masking random bits."""
    bits = int.from_bytes(rng.randbytes(2 * count), "little")
    every = int.from_bytes(b"\x01\x00" * count, "little")
    return ((bits & (every * 0x83FF)) | (every * (10 << 10))).to_bytes(2 * count, "little")


def _floats(value: float, count: int) -> bytes:
    return struct.pack("<f", value) * count


def write_model(
    path: Path,
    *,
    layers: int = 2,
    embd: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    ff: int = 128,
    context: int = 2048,
    seed: int = 7,
    vocab: int = 0,
    says: Sequence[str] = (),
    extra: Mapping[str, Value] | None = None,
) -> Path:
    """A language model of a few hundred KiB with random weights that the engine really loads and runs.

    Its vocabulary has every byte, so any text can be tokenized; `vocab` pads it with unused entries. One that
    `says` something is no noise: after a line feed it says that, piece by piece, and ends.
    """
    rng = random.Random(seed)
    width = embd // heads
    pieces = [b"<unk>", b"<s>", b"</s>", *(b"<0x%02X>" % byte for byte in range(256))]
    kinds = [2, 3, 3, *[6] * 256]
    printable = ["\u2581".encode(), *(bytes([byte]) for byte in range(33, 127))]
    pieces += printable
    kinds += [1] * len(printable)
    for number in range(len(pieces), vocab):
        pieces.append(b"<pad%d>" % number)
        kinds.append(5)
    line_feed, end = 3 + 10, 2
    spoken = range(len(pieces), len(pieces) + len(says))
    pieces += [piece.encode() for piece in says]
    kinds += [4] * len(says)  # each one token, however it is made up
    values: dict[str, Value] = {
        "general.architecture": "llama",
        "general.name": path.stem,
        "llama.block_count": layers,
        "llama.context_length": context,
        "llama.embedding_length": embd,
        "llama.feed_forward_length": ff,
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": kv_heads,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.attention.key_length": width,
        "llama.attention.value_length": width,
        "llama.rope.dimension_count": width,
        "llama.vocab_size": len(pieces),
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.scores": [-float(number) for number in range(len(pieces))],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.chat_template": _CHAT,
        **(extra or {}),
    }

    def matrix(name: str, columns: int, rows: int) -> Tensor:
        data = bytes(2 * columns * rows) if says else _noise(rng, columns * rows)
        return Tensor(name, (columns, rows), F16, data)

    def norm(name: str) -> Tensor:
        return Tensor(name, (embd,), F32, _floats(1.0, embd))

    tensors = [matrix("token_embd.weight", embd, len(pieces)), norm("output_norm.weight")]
    tensors.append(matrix("output.weight", embd, len(pieces)))
    if says:
        # Without attention and feed-forward only the last token counts: each one's output is the next one.
        known, after = _noise(rng, embd * len(pieces)), bytearray(2 * embd * len(pieces))
        chain = (line_feed, *spoken, end)
        for token, following in itertools.pairwise(chain):
            after[2 * embd * following : 2 * embd * (following + 1)] = known[
                2 * embd * token : 2 * embd * (token + 1)
            ]
        tensors[0].data, tensors[2].data = known, bytes(after)
    for layer in range(layers):
        prefix = f"blk.{layer}."
        tensors += [
            norm(prefix + "attn_norm.weight"),
            matrix(prefix + "attn_q.weight", embd, embd),
            matrix(prefix + "attn_k.weight", embd, kv_heads * width),
            matrix(prefix + "attn_v.weight", embd, kv_heads * width),
            matrix(prefix + "attn_output.weight", embd, embd),
            norm(prefix + "ffn_norm.weight"),
            matrix(prefix + "ffn_gate.weight", embd, ff),
            matrix(prefix + "ffn_up.weight", embd, ff),
            matrix(prefix + "ffn_down.weight", ff, embd),
        ]
    return write_gguf(path, values, tensors)


def write_encoder(
    path: Path, *, pooling: int = 1, layers: int = 2, embd: int = 64, context: int = 512
) -> Path:
    """A tiny encoder: `pooling` 1 (mean) makes an embedding model, 4 (rank) a reranker."""
    rng = random.Random(11)
    words = [b"[PAD]", b"[UNK]", b"[CLS]", b"[SEP]", b"[MASK]"]
    letters = [bytes([byte]) for byte in range(33, 127)]
    pieces = [*words, *("\u2581".encode() + letter for letter in letters), *letters]
    values: dict[str, Value] = {
        "general.architecture": "bert",
        "general.name": path.stem,
        "bert.block_count": layers,
        "bert.context_length": 512,
        "bert.embedding_length": embd,
        "bert.feed_forward_length": 2 * embd,
        "bert.attention.head_count": 4,
        "bert.attention.layer_norm_epsilon": 1e-12,
        "bert.attention.causal": False,
        "bert.pooling_type": pooling,
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.token_type_count": 2,
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.scores": [0.0] * len(pieces),
        "tokenizer.ggml.token_type": [3] * len(words) + [1] * (len(pieces) - len(words)),
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 3,
        "tokenizer.ggml.seperator_token_id": 3,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.unknown_token_id": 1,
        "tokenizer.ggml.mask_token_id": 4,
    }

    def matrix(name: str, columns: int, rows: int) -> list[Tensor]:
        return [
            Tensor(name + ".weight", (columns, rows), F16, _noise(rng, columns * rows)),
            Tensor(name + ".bias", (rows,), F32, _floats(0.0, rows)),
        ]

    def norm(name: str) -> list[Tensor]:
        return [
            Tensor(name + ".weight", (embd,), F32, _floats(1.0, embd)),
            Tensor(name + ".bias", (embd,), F32, _floats(0.0, embd)),
        ]

    tensors = [
        Tensor("token_embd.weight", (embd, len(pieces)), F16, _noise(rng, embd * len(pieces))),
        Tensor("position_embd.weight", (embd, 512), F16, _noise(rng, embd * 512)),
        Tensor("token_types.weight", (embd, 2), F32, _floats(0.01, embd * 2)),
        *norm("token_embd_norm"),
    ]
    for layer in range(layers):
        prefix = f"blk.{layer}."
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            tensors += matrix(prefix + name, embd, embd)
        tensors += norm(prefix + "attn_output_norm")
        tensors += matrix(prefix + "ffn_up", embd, 2 * embd)
        tensors += matrix(prefix + "ffn_down", 2 * embd, embd)
        tensors += norm(prefix + "layer_output_norm")
    if pooling == 4:
        tensors += matrix("cls", embd, embd)
        tensors += matrix("cls.output", embd, 1)
    return write_gguf(path, values, tensors)
