"""What a GGUF file says of itself, read without touching tensor data.

The format is the one of the ggml project, versions 2 and 3, little endian. The file is untrusted: no count
and no length in it is believed further than the bytes that are really there.
"""

from __future__ import annotations

import itertools
import os
import stat
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

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

Scalar = int | float | bool | str


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


def read_header(path: Path) -> ModelHeader:
    """Read the header of one file. Blocks: call it in a thread.

    Raises:
        ConfigError: the file cannot be read or is not a sound GGUF file; the message names it and says why.
            Where the cause is an OSError, that is the exception's `__cause__`.
    """
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
_PER_BLOCK: Final = (".attention.head_count", ".attention.head_count_kv", ".feed_forward_length")
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


def _parse(source: _Source) -> ModelHeader:
    tensor_count, key_count = _file_head(source)
    metadata = _Metadata()
    for _ in range(key_count):
        _read_value(source, metadata, source.text())
    architecture = metadata.scalars.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        raise _Unsound("it names no architecture")
    sizes = _tensor_sizes(source, tensor_count, metadata.integer("general.alignment", 32, MAX_ALIGNMENT))
    return _header(architecture, metadata, sizes)


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


def _read_value(source: _Source, metadata: _Metadata, key: str) -> None:
    (kind,) = source.take(_KIND)
    scalar = _SCALARS.get(kind)
    if scalar is not None:
        metadata.scalars[key] = source.take(scalar)[0]
    elif kind == _STRING:
        if key in ("general.architecture", "general.name"):
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
    elif key.endswith(_PER_BLOCK) and count <= MAX_BLOCKS and kind not in (_FLOAT32, _FLOAT64, _BOOL):
        metadata.arrays[key] = tuple(source.take(scalar)[0] for _ in range(count))
    else:
        source.skip(count * scalar.size)


def _tensor_sizes(source: _Source, count: int, alignment: int) -> dict[str, int]:
    """Bytes by tensor name, each checked to lie within the file."""
    if alignment <= 0 or alignment & (alignment - 1):
        raise _Unsound(f"its alignment is {alignment}, which is no power of two")
    sizes: dict[str, int] = {}
    unknown: dict[str, int] = {}
    places: dict[str, int] = {}
    for _ in range(count):
        name = source.text()
        (dimensions,) = source.take(_KIND)
        if dimensions > MAX_DIMENSIONS:
            raise _Unsound(f"tensor {name} claims {dimensions} dimensions")
        elements = 1
        for extent in source.take(_EXTENTS[dimensions]):
            elements *= extent
        kind, offset = source.take(_TENSOR_TAIL)
        if name in places:
            raise _Unsound(f"it holds tensor {name} twice")
        places[name] = offset
        block = _BLOCKS.get(kind)
        if block is None:
            # An element type newer than this table: the tensor reaches to the next one at most.
            unknown[name] = kind
        else:
            sizes[name] = -(-elements // block[0]) * block[1]
    data = -(-source.place // alignment) * alignment
    room = source.size - data
    if unknown:
        edges = sorted({*places.values(), max(room, 0)})
        following = dict(itertools.pairwise(edges))
        for name in unknown:
            sizes[name] = following.get(places[name], places[name]) - places[name]
    for name, offset in places.items():
        if offset + sizes[name] > room:
            raise _Unsound(
                f"it is incomplete: tensor {name} ends at byte {data + offset + sizes[name]}, "
                f"but the file has {source.size} bytes"
            )
    return sizes


def _header(architecture: str, metadata: _Metadata, sizes: Mapping[str, int]) -> ModelHeader:
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
    name = metadata.scalars.get("general.name", "")
    kinds = ("general.file_type", f"{architecture}.pooling_type")
    file_type, pooling = (metadata.integer(key) if key in metadata.scalars else None for key in kinds)
    return ModelHeader(
        architecture=architecture,
        name=name if isinstance(name, str) else "",
        context_length=number("context_length"),
        block_count=blocks,
        embedding_length=embedding,
        feed_forward_length=feed_forward,
        head_count=heads,
        head_count_kv=by_block_kv,
        key_length=number("attention.key_length", width, 1 << 24),
        value_length=number("attention.value_length", width, 1 << 24),
        vocab_size=metadata.lengths.get(_VOCABULARY, 0) or number("vocab_size"),
        weights_bytes=sum(sizes.values()),
        token_embd_bytes=sizes.get("token_embd.weight", 0),
        pooling_type=pooling,
        file_type=file_type,
        expert_used_count=number("expert_used_count", 0, 1 << 16),
        expert_feed_forward_length=number("expert_feed_forward_length", 0, 1 << 24),
        sliding_window=number("attention.sliding_window"),
        state_bytes=_state_bytes(number, embedding),
        has_output="output.weight" in sizes or not sizes,
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
