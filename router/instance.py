"""One instance a user: a lock that the kernel gives back when its holder dies, and who holds it."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import IO, Final

import msgspec
from msgspec import Struct

from router.errors import InstanceError

log = logging.getLogger(__name__)

LOCK_NAME: Final = "instance.lock"
HOLDER_NAME: Final = "instance.json"
# Whoever asks for the holder takes the lock for a moment; starting must not mistake that for an instance.
TRIES: Final = 20
PAUSE_S: Final = 0.01

if sys.platform == "win32":
    import msvcrt

    def _lock(file: IO[bytes]) -> None:
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)

    def _unlock(file: IO[bytes]) -> None:
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock(file: IO[bytes]) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _unlock(file: IO[bytes]) -> None:
        fcntl.flock(file, fcntl.LOCK_UN)


def ending_signals() -> tuple[signal.Signals, ...]:
    """The signals that ask an instance to end.

    A hang-up that is ignored already stays so: `nohup` has a program outlive its terminal.
    """
    names = ("SIGTERM", "SIGINT", "SIGHUP", "SIGBREAK")
    found = [signal.Signals[name] for name in names if hasattr(signal, name)]
    return tuple(
        number for number in found if number.name != "SIGHUP" or signal.getsignal(number) != signal.SIG_IGN
    )


class Holder(Struct, frozen=True):
    """The running instance: process id, start in Unix seconds, base URL once it answers ("" before)."""

    pid: int
    started: float
    endpoint: str = ""


class FileLock:
    """A lock on one file, between processes. Taking it blocks for a fifth of a second at most."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None

    def acquire(self) -> bool:
        """Take the lock; False if somebody else has it.

        Raises:
            OSError: the file cannot be made, or its file system knows no locks.
        """
        self._file = _try(self._path)
        return self._file is not None

    def release(self) -> None:
        """Give the lock back. Idempotent."""
        if self._file is not None:
            _unlock(self._file)
            self._file.close()
            self._file = None


class InstanceLock:
    """The lock on one state folder. Files left by a dead instance do not matter: the lock died with it."""

    def __init__(self, state_dir: Path) -> None:
        self._lock_path = state_dir / LOCK_NAME
        self._holder_path = state_dir / HOLDER_NAME
        self._file: IO[bytes] | None = None
        self._holder: Holder | None = None

    @property
    def held(self) -> bool:
        """This process holds the lock, by this object."""
        return self._file is not None

    def acquire(self) -> bool:
        """Take the lock; False if another instance has it. Takes a fifth of a second at most.

        Raises:
            InstanceError: the file cannot be made, its file system knows no locks, or has no room.
        """
        if self._file is not None:
            return True
        try:
            self._lock_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = _try(self._lock_path)
        except OSError as error:
            raise InstanceError(
                f"{self._lock_path} cannot be locked: {error.strerror or error}.",
                hint="The state folder must be writable and on a file system with locks.",
            ) from error
        if file is None:
            return False
        self._file = file
        self._holder = Holder(os.getpid(), time.time())
        try:
            self._write()
        except OSError as error:
            self.release()
            raise InstanceError(
                f"{self._holder_path} cannot be written: {error.strerror or error}.",
                hint="The state folder must be writable, and have room.",
            ) from error
        return True

    def set_endpoint(self, url: str) -> None:
        """Record where this instance answers, for those that start later.

        Raises:
            InstanceError: the lock is not held.
        """
        if self._holder is None:
            raise InstanceError("The instance lock is not held.")
        self._holder = msgspec.structs.replace(self._holder, endpoint=url)
        try:
            self._write()
        except OSError as error:
            # It answers all the same: only who starts later has to be told where.
            log.warning(
                "%s cannot be written: %s. Commands find this router by --endpoint %s only.",
                self._holder_path,
                error.strerror or error,
                url,
            )

    def release(self) -> None:
        """Give the lock back. Idempotent."""
        if self._file is None:
            return
        self._holder_path.unlink(missing_ok=True)
        _unlock(self._file)
        self._file.close()
        self._file = self._holder = None

    def _write(self) -> None:
        temporary = self._holder_path.with_suffix(".new")
        try:
            temporary.write_bytes(msgspec.json.encode(self._holder))
            os.replace(temporary, self._holder_path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise


def read_holder(state_dir: Path) -> Holder | None:
    """The instance that holds the lock on this folder; None if there is none, whatever files say."""
    path = state_dir / LOCK_NAME
    if not path.exists():
        return None
    try:
        free = _once(path)
    except OSError:
        return None
    if free is not None:
        _unlock(free)
        free.close()
        return None
    try:
        return msgspec.json.decode((state_dir / HOLDER_NAME).read_bytes(), type=Holder)
    except (OSError, msgspec.MsgspecError):
        # It has the lock and has not yet written, or is just leaving.
        return None


def _try(path: Path) -> IO[bytes] | None:
    """Raises OSError."""
    for attempt in range(TRIES):
        if attempt:
            time.sleep(PAUSE_S)  # noqa: TID251  # before there is a loop, and short
        file = _once(path)
        if file is not None:
            return file
    return None


def _once(path: Path) -> IO[bytes] | None:
    """The locked file, or None if another process has the lock. Raises OSError for any other reason."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    file = os.fdopen(handle, "r+b", buffering=0)
    try:
        _lock(file)
    except (BlockingIOError, PermissionError):
        file.close()
        return None
    except BaseException:
        file.close()
        raise
    return file
