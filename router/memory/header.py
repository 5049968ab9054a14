"""What a GGUF file says of itself, read without touching tensor data.

The format is the one of the ggml project, versions 2 and 3, little endian. The file is untrusted: no count
and no length in it is believed further than the bytes that are really there.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import stat
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from msgspec import Struct

from router.errors import ConfigError

VERSIONS: Final = (2, 3)
MAGIC: Final = b"GGUF"

#: Bounds on what a sound header holds, an order of magnitude above the largest known ones. They bound the
#: time that a hostile file can cost.
MAX_HEADER_BYTES: Final = 256 << 20
MAX_KEYS: Final = 65_536
MAX_TENSORS: Final = 1 << 20
MAX_STRINGS: Final = 1 << 23
MAX_NAME_BYTES: Final = 65_535
MAX_BLOCKS: Final = 4096
MAX_DIMENSIONS: Final = 4
#: Alignments beyond this are a sign of a damaged file; the format's default is 32.
MAX_ALIGNMENT: Final = 1 << 20

_READ_BYTES: Final = 1 << 20
#: Characters of a reason that are shown.
_SHOWN: Final = 400

_UINT8, _INT8, _UINT16, _INT16, _UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = range(10)
_UINT64, _INT64, _FLOAT64 = range(10, 13)

_SCALARS: Final = {
    _UINT8: struct.Struct("<B"),
    _INT8: struct.Struct("<b"),
    _UINT16: struct.Struct("<H"),
    _INT16: struct.Struct("<h"),
    _UINT32: struct.Struct("<I"),
    _INT32: struct.Struct("<i"),
    _FLOAT32: struct.Struct("<f"),
    _BOOL: struct.Struct("<?"),
    _UINT64: struct.Struct("<Q"),
    _INT64: struct.Struct("<q"),
    _FLOAT64: struct.Struct("<d"),
}

#: Elements and bytes of one block, by ggml's number of the element type.
_BLOCKS: Final = {
    0: (1, 4),  # F32
    1: (1, 2),  # F16
    2: (32, 18),  # Q4_0
    3: (32, 20),  # Q4_1
    6: (32, 22),  # Q5_0
    7: (32, 24),  # Q5_1
    8: (32, 34),  # Q8_0
    9: (32, 36),  # Q8_1
    10: (256, 84),  # Q2_K
    11: (256, 110),  # Q3_K
    12: (256, 144),  # Q4_K
    13: (256, 176),  # Q5_K
    14: (256, 210),  # Q6_K
    15: (256, 292),  # Q8_K
    16: (256, 66),  # IQ2_XXS
    17: (256, 74),  # IQ2_XS
    18: (256, 98),  # IQ3_XXS
    19: (256, 50),  # IQ1_S
    20: (32, 18),  # IQ4_NL
    21: (256, 110),  # IQ3_S
    22: (256, 82),  # IQ2_S
    23: (256, 136),  # IQ4_XS
    24: (1, 1),  # I8
    25: (1, 2),  # I16
    26: (1, 4),  # I32
    27: (1, 8),  # I64
    28: (1, 8),  # F64
    29: (256, 56),  # IQ1_M
    30: (1, 2),  # BF16
    34: (256, 54),  # TQ1_0
    35: (256, 66),  # TQ2_0
    39: (32, 17),  # MXFP4
}

#: Q4_0, Q8_0, Q2_K, Q4_K, Q5_K, Q6_K, IQ4_NL, MXFP4: the engine may interleave their rows for a processor.
_REPACKED: Final = frozenset(_BLOCKS[kind] for kind in (2, 8, 10, 12, 13, 14, 20, 39))

Scalar = int | float | bool | str

#: How GPU back ends of the CUDA family lay out a tensor: a row of quantized elements is filled up to a
#: multiple of so many elements, and the next tensor begins at a multiple of so many bytes; in host memory of
#: so many.
GPU_ROW: Final = 512
GPU_ALIGNMENT: Final = 128
HOST_ALIGNMENT: Final = 32


def padded(size: int, alignment: int) -> int:
    """The least multiple of `alignment` that holds `size`."""
    return -(-size // alignment) * alignment


class Sizes(Struct, frozen=True, array_like=True):
    """Bytes that the same tensors take in host memory and in a GPU's."""

    host: int = 0
    gpu: int = 0

    def __add__(self, other: Sizes) -> Sizes:
        return Sizes(self.host + other.host, self.gpu + other.gpu)


class Weights(Struct, frozen=True, array_like=True):
    """Tensors added up by where an engine puts them: enough to place them, and small for any model.

    Attributes:
        blocks: by block, without its experts.
        experts: by block, the tensors of its experts.
        token_embd: the table of token embeddings.
        inputs: other tables that stay with the input, on the host.
        first: tensors that go where the first block goes.
        rotary: tables that every device with a block has a copy of.
        output: all others; they go where the output goes.
        largest: of the blocks' tensors without experts, the largest.
        largest_expert: of the experts' tensors, the largest; one tensor holds all experts of a block.
        table_repacked: the embedding table has a type that a processor may compute with in another form.
    """

    blocks: tuple[Sizes, ...] = ()
    experts: tuple[Sizes, ...] = ()
    token_embd: Sizes = Sizes()
    inputs: Sizes = Sizes()
    first: Sizes = Sizes()
    rotary: Sizes = Sizes()
    output: Sizes = Sizes()
    largest: int = 0
    largest_expert: int = 0
    table_repacked: bool = False


class ModelHeader(Struct, frozen=True):
    """The fields that the router uses. Per-layer values are tuples with one entry a block.

    Attributes:
        head_count_kv: key/value heads by block; 0 for a block without attention.
        key_length, value_length: elements of one head.
        weights_bytes: bytes of all tensors.
        token_embd_bytes: bytes of the token embedding table (a part of `weights_bytes`).
        pooling_type: `A.pooling_type`, or None where the key is absent.
        file_type: number of the quantization that most tensors have, or None.
        expert_used_count, expert_feed_forward_length: 0 for a model without experts.
        sliding_window: tokens that the windowed blocks see; 0 if there are none.
        state_bytes: bytes of recurrent state of one block and one slot; 0 for plain attention.
        has_output: there is an output table of its own; without one the embedding table serves twice.
        weights: the tensors by place; empty where only their sum is known.
        expert_shared_feed_forward_length: of the expert that sees every token; 0 if there is none.
        window_pattern: which blocks are windowed, as the file tells: nothing, one period, or a flag a block.
        key_length_swa, value_length_swa: of windowed blocks.
        shared_kv_layers: so many of the last blocks use another block's cache.
        nextn_layers: so many of the last blocks only predict further tokens.
        is_latent: keys and values are kept compressed, together.
        indexer_key_length: elements a token of a further cache that picks tokens; 0 if there is none.
        full_attention_interval: of so many blocks the last has attention, the others recurrent state.
        shard_count: files that the model is made of, by the file's own words.
        kind: what the file says it is: `model`, `adapter`, `mmproj` and others; "" where it does not.
        projection_length: elements of what a projector hands to its model; 0 for all else.
    """

    architecture: str
    name: str
    context_length: int
    block_count: int
    embedding_length: int
    feed_forward_length: int
    head_count: int
    head_count_kv: tuple[int, ...]
    key_length: int
    value_length: int
    vocab_size: int
    weights_bytes: int
    token_embd_bytes: int
    pooling_type: int | None = None
    file_type: int | None = None
    expert_used_count: int = 0
    expert_feed_forward_length: int = 0
    sliding_window: int = 0
    state_bytes: int = 0
    has_output: bool = True
    weights: Weights = Weights()
    expert_shared_feed_forward_length: int = 0
    window_pattern: tuple[int, ...] = ()
    key_length_swa: int = 0
    value_length_swa: int = 0
    shared_kv_layers: int = 0
    nextn_layers: int = 0
    is_latent: bool = False
    indexer_key_length: int = 0
    full_attention_interval: int = 0
    shard_count: int = 1
    kind: str = ""
    projection_length: int = 0


def read_header(path: Path) -> ModelHeader:
    """Read the header of one file. Blocks: call it in a thread.

    Raises:
        ConfigError: the file cannot be read or is not a sound GGUF file; the message names it and says why.
            Where the cause is an OSError, that is the exception's `__cause__`.
    """
    return _described(path, *_read(path))


def read_shards(paths: Sequence[Path]) -> ModelHeader:
    """Read the headers of all files of a model, in order. The first describes it; tensors come from all.

    Blocks: call it in a thread.

    Raises:
        ConfigError: as `read_header`, and where a file is missing, twice there, or of another model.
    """
    if not paths:
        raise ValueError("a model has at least one file")
    metadata, tensors = _read(paths[0])
    for number, path in enumerate(paths):
        more, others = (metadata, tensors) if number == 0 else _read(path)
        try:
            # Merging shards leaves a count of 0.
            count, place = more.integer("split.count", 1) or 1, more.integer("split.no")
        except _Unsound as error:
            raise _fault(path, str(error)) from None
        if count != len(paths) or place != number:
            raise _fault(path, f"it is file {place + 1} of {count}, not {number + 1} of {len(paths)}")
        if number:
            if twice := tensors.keys() & others.keys():
                raise _fault(path, f"tensor {min(twice)} is in another file too")
            tensors = tensors | others
    return _described(paths[0], metadata, tensors)


def _described(path: Path, metadata: _Metadata, tensors: Mapping[str, _Tensor]) -> ModelHeader:
    try:
        architecture = metadata.scalars.get("general.architecture")
        if not isinstance(architecture, str) or not architecture:
            raise _Unsound("it names no architecture")
        return _header(architecture, metadata, tensors)
    except _Unsound as error:
        raise _fault(path, str(error)) from None


def _read(path: Path) -> tuple[_Metadata, dict[str, _Tensor]]:
    try:
        # Not blocking, so that a pipe without a writer is opened, found to be no file, and refused.
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (OSError, ValueError) as error:
        raise _fault(path, _reason(error)) from error
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise _Unsound("not a regular file")
        return _parse(_Source(fd, status.st_size))
    except _Unsound as error:
        raise _fault(path, str(error)) from None
    except OSError as error:
        raise _fault(path, _reason(error)) from error
    finally:
        os.close(fd)


def _reason(error: Exception) -> str:
    return f"cannot be read: {getattr(error, 'strerror', None) or error}"


def _fault(path: Path, reason: str) -> ConfigError:
    # Names come out of the file: they may be long and hold anything.
    plain = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in reason[:_SHOWN])
    shown = os.fsencode(path).decode("utf-8", "replace")
    return ConfigError(f"{shown}: {plain}.", code="model_file_invalid")


class _Unsound(Exception):
    """The file is not what it should be; the text says how."""


class _Source:
    """The file as a sequence of bytes, read ahead in pieces of bounded size.

    Plain reads and no memory map: a mapped file that another program cuts short ends the process.
    """

    def __init__(self, fd: int, size: int) -> None:
        self._fd = fd
        self.size = size
        self.place = 0
        self._buffer = b""
        self._start = 0

    def ensure(self, count: int) -> tuple[bytes, int]:
        """A buffer and the place in it from which at least `count` bytes are there. Does not move on."""
        if self.place + count > self.size:
            raise _Unsound(f"it ends inside its header, at byte {self.size}")
        begin = self.place - self._start
        if begin < 0 or begin + count > len(self._buffer):
            if self.place > MAX_HEADER_BYTES:
                raise _Unsound(f"its header is longer than {MAX_HEADER_BYTES >> 20} MiB")
            os.lseek(self._fd, self.place, os.SEEK_SET)
            wanted = max(count, _READ_BYTES)
            pieces: list[bytes] = []
            while wanted > 0 and (piece := os.read(self._fd, wanted)):
                pieces.append(piece)
                wanted -= len(piece)
            self._buffer = b"".join(pieces)
            self._start = self.place
            begin = 0
            if len(self._buffer) < count:
                raise _Unsound("it became shorter while it was read")
        return self._buffer, begin

    def take(self, layout: struct.Struct) -> tuple[int, ...]:
        buffer, begin = self.ensure(layout.size)
        self.place += layout.size
        return layout.unpack_from(buffer, begin)

    def text(self) -> str:
        """A string that is wanted. The caller has a short one in mind."""
        (length,) = self.take(_LENGTH)
        if length > MAX_NAME_BYTES:
            raise _Unsound(f"it claims a name of {length} bytes")
        buffer, begin = self.ensure(length)
        self.place += length
        return buffer[begin : begin + length].decode("utf-8", "replace")

    def skip(self, count: int) -> None:
        if self.place + count > self.size:
            raise _Unsound(f"it claims {count} bytes at byte {self.place}, but has {self.size} bytes in all")
        self.place += count

    def skip_string(self) -> None:
        (length,) = self.take(_LENGTH)
        self.skip(length)

    def skip_strings(self, count: int) -> None:
        """Pass over an array of strings; vocabularies have hundreds of thousands."""
        unpack, size = _LENGTH.unpack_from, self.size
        while count:
            buffer, at = self.ensure(8)
            base, end = self.place - at, len(buffer) - 8
            while count and at <= end:
                at += 8 + unpack(buffer, at)[0]
                count -= 1
            if base + at > size:
                raise _Unsound(f"a string in it goes beyond its end at byte {size}")
            self.place = base + at


_LENGTH: Final = struct.Struct("<Q")
_ARRAY_HEAD: Final = struct.Struct("<IQ")
_KIND: Final = struct.Struct("<I")
_FILE_HEAD: Final = struct.Struct("<QQ")
_TENSOR_TAIL: Final = struct.Struct("<IQ")
_EXTENTS: Final = tuple(struct.Struct(f"<{count}Q") for count in range(MAX_DIMENSIONS + 1))

#: Number arrays with one entry a block that are wanted, by the end of their key.
_PER_BLOCK: Final = (
    ".attention.head_count",
    ".attention.head_count_kv",
    ".attention.sliding_window_pattern",
    ".feed_forward_length",
)
_VOCABULARY: Final = "tokenizer.ggml.tokens"


class _Metadata:
    """The values that are wanted, by key."""

    def __init__(self) -> None:
        self.scalars: dict[str, Scalar] = {}
        self.arrays: dict[str, tuple[int, ...]] = {}
        self.lengths: dict[str, int] = {}

    def integer(self, key: str, default: int = 0, most: int = 1 << 40) -> int:
        """A whole number from 0 to `most`, or the default where there is none."""
        value = self.scalars.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise _Unsound(f"{key} is not a whole number")
        if not 0 <= value <= most:
            raise _Unsound(f"{key} is {value}, which cannot be")
        return value

    def hint(self, key: str, default: int = 0, most: int = 1 << 24) -> int:
        """Like `integer`, where a value that cannot be is no reason to refuse the file."""
        value = self.scalars.get(key)
        return value if isinstance(value, int) and 0 <= value <= most else default

    def by_block(self, key: str, blocks: int, default: int) -> tuple[int, ...]:
        """One number a block; a single number in the file stands for all blocks."""
        values = self.arrays.get(key)
        if values is None:
            return (self.integer(key, default, 1 << 24),) * blocks
        if len(values) < blocks:
            raise _Unsound(f"{key} has {len(values)} entries for {blocks} blocks")
        if min(values, default=0) < 0 or max(values, default=0) > 1 << 24:
            raise _Unsound(f"{key} holds a number that cannot be")
        return values[:blocks]


def _parse(source: _Source) -> tuple[_Metadata, dict[str, _Tensor]]:
    tensor_count, key_count = _file_head(source)
    metadata = _Metadata()
    for _ in range(key_count):
        _read_value(source, metadata, source.text())
    alignment = metadata.integer("general.alignment", 32, MAX_ALIGNMENT)
    return metadata, _tensors(source, tensor_count, alignment)


def _file_head(source: _Source) -> tuple[int, int]:
    if source.size == 0:
        raise _Unsound("it is empty")
    buffer, begin = source.ensure(min(4, source.size))
    magic = buffer[begin : begin + 4]
    if magic != MAGIC:
        raise _Unsound("not a GGUF file" if len(magic) == 4 else "it is too short for a GGUF file")
    source.place = 4
    (version,) = source.take(_KIND)
    if version & 0xFFFF == 0 and version:
        raise _Unsound("it is a big-endian GGUF file, which is not supported")
    if version not in VERSIONS:
        raise _Unsound(f"its GGUF version is {version}; supported are {' and '.join(map(str, VERSIONS))}")
    tensor_count, key_count = source.take(_FILE_HEAD)
    if tensor_count > MAX_TENSORS:
        raise _Unsound(f"it claims {tensor_count} tensors")
    if key_count > MAX_KEYS:
        raise _Unsound(f"it claims {key_count} keys")
    return tensor_count, key_count


_WANTED_TEXTS: Final = frozenset({"general.architecture", "general.name", "general.type"})


def _read_value(source: _Source, metadata: _Metadata, key: str) -> None:
    (kind,) = source.take(_KIND)
    scalar = _SCALARS.get(kind)
    if scalar is not None:
        metadata.scalars[key] = source.take(scalar)[0]
    elif kind == _STRING:
        if key in _WANTED_TEXTS:
            metadata.scalars[key] = source.text()
        else:
            source.skip_string()
    elif kind == _ARRAY:
        _read_array(source, metadata, key)
    else:
        raise _Unsound(f"{key} has the unknown value type {kind}")


def _read_array(source: _Source, metadata: _Metadata, key: str) -> None:
    kind, count = source.take(_ARRAY_HEAD)
    scalar = _SCALARS.get(kind)
    if kind == _STRING:
        if count > MAX_STRINGS:
            raise _Unsound(f"{key} claims {count} strings")
        if key == _VOCABULARY:
            metadata.lengths[key] = count
        source.skip_strings(count)
    elif scalar is None:
        raise _Unsound(f"{key} is an array of the unusable value type {kind}")
    elif key.endswith(_PER_BLOCK) and count <= MAX_BLOCKS and kind not in (_FLOAT32, _FLOAT64):
        metadata.arrays[key] = tuple(int(source.take(scalar)[0]) for _ in range(count))
    else:
        source.skip(count * scalar.size)


class _Tensor(NamedTuple):
    """An entry of the tensor table. `size` is in bytes, `columns` the elements of one row."""

    size: int
    columns: int
    block: tuple[int, int]
    offset: int


def _tensors(source: _Source, count: int, alignment: int) -> dict[str, _Tensor]:
    """The tensors by name, each checked to lie within the file."""
    if alignment <= 0 or alignment & (alignment - 1):
        raise _Unsound(f"its alignment is {alignment}, which is no power of two")
    found: dict[str, _Tensor] = {}
    unknown: list[str] = []
    for _ in range(count):
        name = source.text()
        (dimensions,) = source.take(_KIND)
        if dimensions > MAX_DIMENSIONS:
            raise _Unsound(f"tensor {name} claims {dimensions} dimensions")
        extents = source.take(_EXTENTS[dimensions])
        elements = math.prod(extents)
        kind, offset = source.take(_TENSOR_TAIL)
        if name in found:
            raise _Unsound(f"it holds tensor {name} twice")
        block = _BLOCKS.get(kind)
        if block is None:
            # An element type newer than this table: the tensor reaches to the next one at most.
            unknown.append(name)
            block = (1, 1)
        columns = extents[0] if extents else 1
        found[name] = _Tensor(-(-elements // block[0]) * block[1], columns, block, offset)
    data = padded(source.place, alignment)
    room = source.size - data
    if unknown:
        edges = sorted({*(tensor.offset for tensor in found.values()), max(room, 0)})
        following = dict(itertools.pairwise(edges))
        for name in unknown:
            offset = found[name].offset
            found[name] = found[name]._replace(size=following.get(offset, offset) - offset)
    for name, tensor in found.items():
        if tensor.offset + tensor.size > room:
            raise _Unsound(
                f"it is incomplete: tensor {name} ends at byte {data + tensor.offset + tensor.size}, "
                f"but the file has {source.size} bytes"
            )
    return found


_IN_BLOCK: Final = re.compile(r"(?:enc\.|dec\.)?blk\.(\d{1,5})\.(.+)", re.ASCII)
_EXPERTS: Final = re.compile(r"ffn_(?:up|down|gate|gate_up)_(?:ch|)exps")
_INPUTS: Final = ("position_embd.", "token_types.", "per_layer_token_embd.")
_ROTARY: Final = ("rope_freqs.", "rope_factors_long.", "rope_factors_short.")
_TABLE: Final = "token_embd.weight"


def _sizes(tensor: _Tensor) -> Sizes:
    elements, size = tensor.block
    gpu = tensor.size
    if elements > 1 and tensor.columns % GPU_ROW:
        gpu += (GPU_ROW - tensor.columns % GPU_ROW) // elements * size
    return Sizes(padded(tensor.size, HOST_ALIGNMENT), padded(gpu, GPU_ALIGNMENT))


def _weights(tensors: Mapping[str, _Tensor], count: int) -> Weights:
    """Add the tensors up by their place; `count` is the number of blocks."""
    blocks, experts = [Sizes()] * count, [Sizes()] * count
    sums = dict.fromkeys(("inputs", "first", "rotary", "output"), Sizes())
    largest = largest_expert = 0
    for name, tensor in tensors.items():
        sizes = _sizes(tensor)
        match = _IN_BLOCK.match(name)
        number = int(match[1]) if match else count
        if match and number < count:
            if _EXPERTS.match(match[2]):
                experts[number] += sizes
                largest_expert = max(largest_expert, sizes.gpu)
            else:
                blocks[number] += sizes
                largest = max(largest, sizes.gpu)
        elif name != _TABLE:
            starts = name.startswith
            place = "inputs" if starts(_INPUTS) else "rotary" if starts(_ROTARY) else "output"
            sums["first" if starts("token_embd_norm.") else place] += sizes
    table = tensors.get(_TABLE)
    return Weights(
        blocks=tuple(blocks),
        experts=tuple(experts),
        token_embd=_sizes(table) if table else Sizes(),
        largest=largest,
        largest_expert=largest_expert,
        table_repacked=table is not None and table.block in _REPACKED,
        **sums,
    )


def _header(architecture: str, metadata: _Metadata, tensors: Mapping[str, _Tensor]) -> ModelHeader:
    def number(key: str, default: int = 0, most: int = 1 << 40) -> int:
        return metadata.integer(f"{architecture}.{key}", default, most)

    blocks = number("block_count", 0, MAX_BLOCKS)
    embedding = number("embedding_length", 0, 1 << 24)
    head_counts = metadata.by_block(f"{architecture}.attention.head_count", max(blocks, 1), 0)
    heads = max(head_counts)
    by_block_kv = metadata.by_block(f"{architecture}.attention.head_count_kv", blocks, -1)
    if blocks and by_block_kv[0] == -1:
        by_block_kv = head_counts[:blocks]
    width = embedding // heads if heads else 0
    feed_forward = max(metadata.by_block(f"{architecture}.feed_forward_length", max(blocks, 1), 0))
    name, kind = (metadata.scalars.get(f"general.{key}", "") for key in ("name", "type"))
    kinds = ("general.file_type", f"{architecture}.pooling_type")
    file_type, pooling = (metadata.integer(key) if key in metadata.scalars else None for key in kinds)
    key_length = number("attention.key_length", width, 1 << 24)
    value_length = number("attention.value_length", width, 1 << 24)
    pattern = f"{architecture}.attention.sliding_window_pattern"
    flags = metadata.arrays.get(pattern)
    if flags is not None:
        window_pattern = tuple(int(bool(flag)) for flag in flags[:blocks]) if len(flags) >= blocks else ()
    else:
        window_pattern = (metadata.hint(pattern),) if pattern in metadata.scalars else ()

    def hint(key: str, default: int = 0) -> int:
        return metadata.hint(f"{architecture}.{key}", default)

    return ModelHeader(
        architecture=architecture,
        name=name if isinstance(name, str) else "",
        context_length=number("context_length"),
        block_count=blocks,
        embedding_length=embedding,
        feed_forward_length=feed_forward,
        head_count=heads,
        head_count_kv=by_block_kv,
        key_length=key_length,
        value_length=value_length,
        vocab_size=metadata.lengths.get(_VOCABULARY, 0) or number("vocab_size"),
        weights_bytes=sum(tensor.size for tensor in tensors.values()),
        token_embd_bytes=tensors[_TABLE].size if _TABLE in tensors else 0,
        pooling_type=pooling,
        file_type=file_type,
        expert_used_count=number("expert_used_count", 0, 1 << 16),
        expert_feed_forward_length=number("expert_feed_forward_length", 0, 1 << 24),
        sliding_window=number("attention.sliding_window"),
        state_bytes=_state_bytes(number, embedding),
        has_output="output.weight" in tensors or not tensors,
        weights=_weights(tensors, blocks),
        expert_shared_feed_forward_length=hint("expert_shared_feed_forward_length"),
        window_pattern=window_pattern,
        key_length_swa=hint("attention.key_length_swa", key_length),
        value_length_swa=hint("attention.value_length_swa", value_length),
        shared_kv_layers=hint("attention.shared_kv_layers"),
        nextn_layers=hint("nextn_predict_layers"),
        is_latent=hint("attention.key_length_mla") > 0 and hint("attention.value_length_mla") > 0,
        indexer_key_length=hint("attention.indexer.key_length"),
        full_attention_interval=hint("full_attention_interval"),
        shard_count=metadata.hint("split.count", 1) or 1,
        kind=kind if isinstance(kind, str) else "",
        projection_length=hint("vision.projection_dim") or hint("audio.projection_dim"),
    )


def _state_bytes(number: Callable[[str], int], embedding: int) -> int:
    """Bytes of recurrent state of one block and slot, in float32.

    Mamba keeps `(conv - 1) * (inner + 2 * groups * state)` elements of convolution and `inner * state` of
    state, RWKV `shift * embedding` and `embedding * head`, short convolutions `embedding * (cache - 1)`.
    """
    convolution = number("ssm.conv_kernel")
    inner, state = number("ssm.inner_size"), number("ssm.state_size")
    elements = max(convolution - 1, 0) * (inner + 2 * number("ssm.group_count") * state) + inner * state
    wkv = number("wkv.head_size")
    if wkv:
        elements += embedding * ((number("token_shift_count") or 2) + wkv)
    elements += embedding * max(number("shortconv.l_cache") - 1, 0)
    return 4 * elements
