"""What loads were seen to take, remembered across restarts: where it is more, it goes before the formula."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from router.settings.files import write_atomically

log = logging.getLogger(__name__)

FORMAT: Final = 1
MAX_ENTRIES: Final = 2000
MAX_BYTES: Final = 4 << 20

#: A load that died for want of memory is planned with so many times what was planned, and at most so many.
SHORT_FACTOR: Final = 1.25
SHORT_MOST: Final = 2.0


class Seen(Struct, frozen=True):
    """What is known of one model with one set of options and one layout.

    Attributes:
        devices: most bytes that were seen, by device id.
        factor: what a plan is multiplied by, since it was too low; 1 where none was.
    """

    devices: dict[str, int] = {}
    factor: float = 1.0


class _File(Struct, frozen=True):
    format: int
    seen: dict[str, Seen]


class Measured:
    """A small file of measurements. `load` and `save` block: call them in a thread; the rest is in memory.

    The file may be damaged or deleted at any time: then loads are planned by formula again.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._seen: dict[str, Seen] = {}
        self._lock = threading.Lock()
        self.is_dirty = False

    def load(self) -> None:
        """Read the file, if there is one."""
        if self._path is None:
            return
        try:
            with self._path.open("rb") as file:
                raw = file.read(MAX_BYTES + 1)
            told = msgspec.json.decode(raw, type=_File)
        except FileNotFoundError:
            return
        except (OSError, msgspec.DecodeError, RecursionError) as error:
            log.info("What loads took is not known from before: %s: %s", self._path, error)
            return
        if told.format == FORMAT:
            self._seen = {key: seen for key, seen in told.seen.items() if _is_sound(seen)}

    def save(self) -> None:
        """Write what has changed, as a whole or not at all.

        Raises:
            OSError: the folder cannot be written.
        """
        if self._path is None:
            return
        with self._lock:
            self.is_dirty = False
            write_atomically(self._path, msgspec.json.encode(_File(FORMAT, dict(self._seen))))

    def get(self, key: str) -> Seen | None:
        """What is known of this key."""
        return self._seen.get(key)

    def note(self, key: str, devices: Mapping[str, int]) -> None:
        """A load was seen to take so many bytes."""
        before = self._seen.get(key, Seen())
        most = {name: max(size, before.devices.get(name, 0)) for name, size in devices.items()}
        self._put(key, msgspec.structs.replace(before, devices={**before.devices, **most}))

    def ran_short(self, key: str) -> None:
        """A load died for want of memory although the plan had fitted."""
        before = self._seen.get(key, Seen())
        factor = min(before.factor * SHORT_FACTOR, SHORT_MOST)
        self._put(key, msgspec.structs.replace(before, factor=factor))

    def _put(self, key: str, seen: Seen) -> None:
        if self._seen.get(key) == seen:
            return
        self._seen.pop(key, None)
        self._seen[key] = seen
        while len(self._seen) > MAX_ENTRIES:
            del self._seen[next(iter(self._seen))]
        self.is_dirty = True


def _is_sound(seen: Seen) -> bool:
    return 1.0 <= seen.factor <= SHORT_MOST and all(0 <= size < 1 << 50 for size in seen.devices.values())


def key_of(*parts: object) -> str:
    """A key of everything that the use of memory depends on."""
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogateescape")).hexdigest()[:32]
