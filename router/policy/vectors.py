"""Embeddings of reference phrases, kept on disk by the model that made them."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
from array import array
from collections.abc import Awaitable, Callable, Iterable, Sequence
from operator import mul
from pathlib import Path
from typing import Final

import msgspec

from router.settings.files import write_atomically

log = logging.getLogger(__name__)

MAX_PHRASES: Final = 20_000
"""Phrases kept for one model; beyond them those that were not asked for lately go."""
MAX_FILES: Final = 32

Vector = Sequence[float]
Embed = Callable[[list[str]], Awaitable[list[list[float]]]]


class _File(msgspec.Struct):
    """One model's phrases: little-endian 32-bit floats of unit length."""

    identity: str
    vectors: dict[str, bytes]


class Vectors:
    """Phrases to vectors of unit length. What is on disk is read once for each model, off the loop."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, dict[str, array[float]]] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def of(self, identity: str, phrases: Iterable[str], embed: Embed) -> dict[str, Vector]:
        """The vectors of phrases; those that are missing are embedded, once, and kept.

        Args:
            identity: of the model's file and of the options that change what it answers.
            embed: makes vectors of texts, in order; what it raises is passed on.

        Raises:
            ValueError: what `embed` returned are no usable vectors.
        """
        wanted = list(dict.fromkeys(phrases))
        async with self._locks.setdefault(identity, asyncio.Lock()):
            known = self._known.get(identity)
            if known is None:
                known = self._known[identity] = await asyncio.to_thread(self._read, identity)
            missing = [phrase for phrase in wanted if phrase not in known]
            if missing:
                for phrase, vector in zip(missing, await embed(missing), strict=True):
                    known[phrase] = array("f", unit(vector))
                while len(known) > max(MAX_PHRASES, len(wanted)):
                    known.pop(next(iter(known)))
                await asyncio.to_thread(self._write, identity, dict(known))
            found: dict[str, Vector] = {}
            for phrase in wanted:
                # The last used go to the end: the others are the first to be dropped.
                vector_of = known[phrase] = known.pop(phrase)
                found[phrase] = vector_of
            return found

    def _file(self, identity: str) -> Path:
        return self._folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.vectors"

    def _read(self, identity: str) -> dict[str, array[float]]:
        file = self._file(identity)
        try:
            stored = msgspec.msgpack.decode(file.read_bytes(), type=_File)
            if stored.identity == identity:
                return {phrase: _floats(data) for phrase, data in stored.vectors.items()}
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.MsgspecError, ValueError) as error:
            log.warning("%s cannot be read, its vectors are made anew: %s", file, error)
        return {}

    def _write(self, identity: str, vectors: dict[str, array[float]]) -> None:
        data = msgspec.msgpack.encode(_File(identity, {p: v.tobytes() for p, v in vectors.items()}))
        file = self._file(identity)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, data)
            files = sorted(self._folder.glob("*.vectors"), key=lambda f: f.stat().st_mtime)
            for old in files[:-MAX_FILES]:
                old.unlink(missing_ok=True)
        except OSError as error:
            # They are in memory, and can be made again.
            log.warning("%s cannot be written: %s", file, error)


def _floats(data: bytes) -> array[float]:
    vector = array("f")
    vector.frombytes(data)
    return vector


def unit(vector: Sequence[float]) -> list[float]:
    """The same direction, of length one.

    Raises:
        ValueError: it has no direction.
    """
    length = math.sqrt(sum(map(mul, vector, vector)))
    if not math.isfinite(length) or length == 0:
        raise ValueError("an embedding without a direction")
    return [x / length for x in vector]


def cosine(a: Vector, b: Vector) -> float:
    """The cosine of the angle between two vectors of unit length, within -1 and 1.

    Raises:
        ValueError: they have different dimensions.
    """
    if len(a) != len(b):
        raise ValueError(f"embeddings of {len(a)} and of {len(b)} dimensions")
    dot: float = sum(map(mul, a, b))
    return max(-1.0, min(1.0, dot))
