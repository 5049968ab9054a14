"""The GGUF file format: its metadata and its table of tensors, read without touching tensor data.

The format is the one of the ggml project, versions 2 and 3, little endian. The file is untrusted: no count
and no length in it is believed further than the bytes that are really there.
"""

from __future__ import annotations

import itertools
import math
import os
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

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

MAX_TEXT_BYTES: Final = 1 << 20

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
BLOCKS: Final = {
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

_T = TypeVar("_T")


def padded(size: int, alignment: int) -> int:
    """The least multiple of `alignment` that holds `size`."""
    return -(-size // alignment) * alignment


def read_tables(path: Path) -> tuple[Metadata, dict[str, Tensor]]:
    """The metadata that is wanted, and the tensors by name.

    Raises:
        ConfigError: the file cannot be read or is not a sound GGUF file; the message names it and says why.
            Where the cause is an OSError, that is the exception's `__cause__`.
    """
    return _opened(path, _parse)


def read_values(path: Path) -> dict[str, Scalar]:
    """All single values of the metadata, with its texts of up to 1 MiB each. Blocks: call it in a thread.

    Raises:
        ConfigError: as `read_tables`.
    """
    return _opened(path, lambda source: _metadata(source, _file_head(source)[1], MAX_TEXT_BYTES).scalars)


def _opened(path: Path, parse: Callable[[_Source], _T]) -> _T:
    try:
        # Not blocking, so that a pipe without a writer is opened, found to be no file, and refused.
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (OSError, ValueError) as error:
        raise fault(path, _reason(error)) from error
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise Unsound("not a regular file")
        return parse(_Source(fd, status.st_size))
    except Unsound as error:
        raise fault(path, str(error)) from None
    except OSError as error:
        raise fault(path, _reason(error)) from error
    finally:
        os.close(fd)


def _reason(error: Exception) -> str:
    return f"cannot be read: {getattr(error, 'strerror', None) or error}"


def fault(path: Path, reason: str) -> ConfigError:
    """The error that says so of this file."""
    # Names come out of the file: they may be long and hold anything.
    plain = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in reason[:_SHOWN])
    shown = os.fsencode(path).decode("utf-8", "replace")
    return ConfigError(f"{shown}: {plain}.", code="model_file_invalid")


class Unsound(Exception):
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
            raise Unsound(f"it ends inside its header, at byte {self.size}")
        begin = self.place - self._start
        if begin < 0 or begin + count > len(self._buffer):
            if self.place > MAX_HEADER_BYTES:
                raise Unsound(f"its header is longer than {MAX_HEADER_BYTES >> 20} MiB")
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
                raise Unsound("it became shorter while it was read")
        return self._buffer, begin

    def take(self, layout: struct.Struct) -> tuple[int, ...]:
        buffer, begin = self.ensure(layout.size)
        self.place += layout.size
        return layout.unpack_from(buffer, begin)

    def text(self, most: int = MAX_NAME_BYTES) -> str:
        """A string that is wanted. The caller has a short one in mind."""
        (length,) = self.take(_LENGTH)
        if length > most:
            raise Unsound(f"it claims a name of {length} bytes")
        buffer, begin = self.ensure(length)
        self.place += length
        return buffer[begin : begin + length].decode("utf-8", "replace")

    def next_length(self) -> int:
        """The length of the string that comes next, in bytes. Does not move on."""
        buffer, begin = self.ensure(_LENGTH.size)
        length: int = _LENGTH.unpack_from(buffer, begin)[0]
        return length

    def skip(self, count: int) -> None:
        if self.place + count > self.size:
            raise Unsound(f"it claims {count} bytes at byte {self.place}, but has {self.size} bytes in all")
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
                raise Unsound(f"a string in it goes beyond its end at byte {size}")
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
VOCABULARY: Final = "tokenizer.ggml.tokens"


class Metadata:
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
            raise Unsound(f"{key} is not a whole number")
        if not 0 <= value <= most:
            raise Unsound(f"{key} is {value}, which cannot be")
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
            raise Unsound(f"{key} has {len(values)} entries for {blocks} blocks")
        if min(values, default=0) < 0 or max(values, default=0) > 1 << 24:
            raise Unsound(f"{key} holds a number that cannot be")
        return values[:blocks]


def _parse(source: _Source) -> tuple[Metadata, dict[str, Tensor]]:
    tensor_count, key_count = _file_head(source)
    metadata = _metadata(source, key_count)
    alignment = metadata.integer("general.alignment", 32, MAX_ALIGNMENT)
    return metadata, _tensors(source, tensor_count, alignment)


def _metadata(source: _Source, key_count: int, texts_of: int = 0) -> Metadata:
    """The metadata; with `texts_of`, texts of up to so many bytes besides those that are always wanted."""
    metadata = Metadata()
    for _ in range(key_count):
        _read_value(source, metadata, source.text(), texts_of)
    return metadata


def _file_head(source: _Source) -> tuple[int, int]:
    if source.size == 0:
        raise Unsound("it is empty")
    buffer, begin = source.ensure(min(4, source.size))
    magic = buffer[begin : begin + 4]
    if magic != MAGIC:
        raise Unsound("not a GGUF file" if len(magic) == 4 else "it is too short for a GGUF file")
    source.place = 4
    (version,) = source.take(_KIND)
    if version & 0xFFFF == 0 and version:
        raise Unsound("it is a big-endian GGUF file, which is not supported")
    if version not in VERSIONS:
        raise Unsound(f"its GGUF version is {version}; supported are {' and '.join(map(str, VERSIONS))}")
    tensor_count, key_count = source.take(_FILE_HEAD)
    if tensor_count > MAX_TENSORS:
        raise Unsound(f"it claims {tensor_count} tensors")
    if key_count > MAX_KEYS:
        raise Unsound(f"it claims {key_count} keys")
    return tensor_count, key_count


_WANTED_TEXTS: Final = frozenset({"general.architecture", "general.name", "general.type"})


def _read_value(source: _Source, metadata: Metadata, key: str, texts_of: int = 0) -> None:
    (kind,) = source.take(_KIND)
    scalar = _SCALARS.get(kind)
    if scalar is not None:
        metadata.scalars[key] = source.take(scalar)[0]
    elif kind == _STRING:
        if key in _WANTED_TEXTS:
            metadata.scalars[key] = source.text()
        elif texts_of and source.next_length() <= texts_of:
            metadata.scalars[key] = source.text(texts_of)
        else:
            source.skip_string()
    elif kind == _ARRAY:
        _read_array(source, metadata, key)
    else:
        raise Unsound(f"{key} has the unknown value type {kind}")


def _read_array(source: _Source, metadata: Metadata, key: str) -> None:
    kind, count = source.take(_ARRAY_HEAD)
    scalar = _SCALARS.get(kind)
    if kind == _STRING:
        if count > MAX_STRINGS:
            raise Unsound(f"{key} claims {count} strings")
        if key == VOCABULARY:
            metadata.lengths[key] = count
        source.skip_strings(count)
    elif scalar is None:
        raise Unsound(f"{key} is an array of the unusable value type {kind}")
    elif key.endswith(_PER_BLOCK) and count <= MAX_BLOCKS and kind not in (_FLOAT32, _FLOAT64):
        metadata.arrays[key] = tuple(int(source.take(scalar)[0]) for _ in range(count))
    else:
        source.skip(count * scalar.size)


class Tensor(NamedTuple):
    """An entry of the tensor table. `size` is in bytes, `columns` the elements of one row."""

    size: int
    columns: int
    block: tuple[int, int]
    offset: int


def _tensors(source: _Source, count: int, alignment: int) -> dict[str, Tensor]:
    """The tensors by name, each checked to lie within the file."""
    if alignment <= 0 or alignment & (alignment - 1):
        raise Unsound(f"its alignment is {alignment}, which is no power of two")
    found: dict[str, Tensor] = {}
    unknown: list[str] = []
    for _ in range(count):
        name = source.text()
        (dimensions,) = source.take(_KIND)
        if dimensions > MAX_DIMENSIONS:
            raise Unsound(f"tensor {name} claims {dimensions} dimensions")
        extents = source.take(_EXTENTS[dimensions])
        elements = math.prod(extents)
        kind, offset = source.take(_TENSOR_TAIL)
        if name in found:
            raise Unsound(f"it holds tensor {name} twice")
        block = BLOCKS.get(kind)
        if block is None:
            # An element type newer than this table: the tensor reaches to the next one at most.
            unknown.append(name)
            block = (1, 1)
        columns = extents[0] if extents else 1
        found[name] = Tensor(-(-elements // block[0]) * block[1], columns, block, offset)
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
            raise Unsound(
                f"it is incomplete: tensor {name} ends at byte {data + tensor.offset + tensor.size}, "
                f"but the file has {source.size} bytes"
            )
    return found
