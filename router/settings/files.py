"""Writing and reading small files so that a crash or a full disk leaves the old one whole."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from router.errors import ConfigError

log = logging.getLogger(__name__)

#: Seconds after which no write is still under way.
LEFT_S: Final = 3600.0
_TEMPORARY: Final = re.compile(r"\..+\.[a-z0-9_]{8}\.tmp")


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file's contents, all or nothing, readable by its owner only. Blocks: call it off the loop.

    A symbolic link stays a link: the file it leads to is replaced.

    Raises:
        OSError: nothing was changed.
    """
    target = Path(os.path.realpath(path))
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    sync_folder(target.parent)


def remove_leftovers(folders: Iterable[Path], older_than_s: float = LEFT_S) -> None:
    """Remove what writes left behind that a power cut or a kill broke off. Blocks.

    Younger ones stay: they may be another process's, which is at work.
    """
    newest = time.time() - older_than_s
    for folder in folders:
        with contextlib.suppress(OSError):  # it is not there, or not ours: then so are its files
            for entry in os.scandir(folder):
                if _TEMPORARY.fullmatch(entry.name) and entry.stat(follow_symlinks=False).st_mtime < newest:
                    os.unlink(entry.path)
                    log.info("Removed %s, which a broken write left behind.", entry.path)


def read_private(path: Path) -> bytes | None:
    """What a file with keys holds; None if there is none. One that others could read is closed to them.

    Blocks: call it off the loop.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        data = path.read_bytes()
        if os.name == "posix" and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            log.warning("%s could be read by others; its mode is 0600 now.", path)
            path.chmod(0o600)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}.") from error
    return data


def sync_folder(folder: Path) -> None:
    """Make a rename in a folder last through a power cut, as far as the file system can."""
    # The new contents are in place by now; a file system without this call is no reason to report a failure.
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def set_aside(path: Path) -> Path:
    """Rename a file that cannot be used to `NAME.corrupt-TIME` beside it; returns the new path.

    Raises:
        OSError: it could not be renamed.
    """
    target = Path(os.path.realpath(path))
    base = f"{target.name}.corrupt-{time.strftime('%Y%m%dT%H%M%S')}"
    aside = target.with_name(base)
    count = 1
    while aside.exists():
        count += 1
        aside = target.with_name(f"{base}-{count}")
    os.replace(target, aside)
    return aside


def read_object(data: bytes) -> dict[str, Any]:
    """A JSON object, read so that what is odd can be named instead of lost: not-a-number is let through.

    Raises:
        ValueError: it is no JSON object, or an object in it names a key twice; the text says where.
    """
    if not data.strip():
        raise ValueError("it is empty")
    try:
        value = json.loads(data, object_pairs_hook=_object)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"it is no text in UTF-8, from byte {error.start} on") from error
    except json.JSONDecodeError as error:
        raise ValueError(
            f"it is no JSON, from line {error.lineno}, column {error.colno} on: {error.msg}"
        ) from error
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"it names {json.dumps(twice)} twice")
    return found


def written_entries(known: bytes | None, member: str, entries: Sequence[Struct]) -> bytes:
    """The bytes of a file that lists entries with names in `member`, in the place of a `known` file.

    What a newer version put beside them stays, in the file and in the entries that stay: going back to an
    older version for a day must not lose it.
    """
    old: Any = msgspec.json.decode(known) if known is not None else {}
    beside: dict[str, dict[str, Any]] = {}
    for kept in old.get(member, ()):
        beside.setdefault(kept["name"], kept)
    shown: list[dict[str, Any]] = []
    for entry in entries:
        fields: dict[str, Any] = msgspec.to_builtins(entry)
        kept = beside.get(fields["name"], {})
        shown.append(fields | {key: value for key, value in kept.items() if key not in fields})
    return msgspec.json.format(msgspec.json.encode({**old, member: shown}), indent=2) + b"\n"


def write_object(value: dict[str, Any]) -> bytes:
    """The bytes of a JSON object as people edit it."""
    try:
        return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
    except UnicodeEncodeError:
        # A text with half a surrogate pair can be written only with escapes.
        return (json.dumps(value, indent=2) + "\n").encode()
