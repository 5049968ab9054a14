"""API keys on disk: made here, and kept where other users cannot read them.

A small file of mode 0600 has the keys' names and digests, which is all that is needed to check one. The keys
themselves are in the system's keyring, so that they can be shown again, or else in that file. So a locked
keyring never keeps the router from starting.
"""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
import time
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from router.errors import BadRequest, ConfigError, Conflict, NotFound
from router.settings import keyring as keyrings
from router.settings.files import read_private, write_atomically, written_entries
from router.settings.keyring import SecretStore as SecretStore
from router.settings.keyring import system_keyring as system_keyring
from router.settings.schema import API_KEY_VARIABLE

log = logging.getLogger(__name__)

FILE_NAME: Final = "api-keys.json"
VARIABLE: Final = API_KEY_VARIABLE
IN_KEYRING: Final = "keyring"
IN_FILE: Final = "file"

_PREFIX: Final = "lt-"
_NAME: Final = re.compile(r"[\w.@-]{1,64}")


class Entry(Struct, frozen=True):
    """One key. `secret` is the key itself where there is no keyring, else ""."""

    name: str
    digest: str
    created: str
    kept_in: str
    secret: str = ""


class _File(Struct, frozen=True):
    keys: tuple[Entry, ...] = ()


class KeyFile:
    """The keys on disk. Everything here blocks: use it from a command, or from a thread."""

    def __init__(self, path: Path, keyring: SecretStore | None = None) -> None:
        self.path = path
        self._keyring = keyring

    def read(self) -> tuple[Entry, ...]:
        """The keys.

        Raises:
            ConfigError: the file cannot be read, or is none of ours.
        """
        return self._decoded(read_private(self.path))

    def _decoded(self, data: bytes | None) -> tuple[Entry, ...]:
        if data is None:
            return ()
        try:
            return msgspec.json.decode(data, type=_File).keys
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{self.path} is no file of API keys: {error}.") from error

    def add(self, name: str) -> tuple[Entry, str]:
        """Make a key. Returns its entry and the key itself.

        Raises:
            BadRequest: the name cannot be one.
            Conflict: there is a key of that name.
            ConfigError: as `read`, or the file cannot be written.
        """
        if not _NAME.fullmatch(name):
            raise BadRequest(
                f"{name[:80]!r} cannot be a key's name: up to 64 letters, digits and . _ @ - are allowed.",
                param="name",
            )
        entries = self.read()
        if any(entry.name == name for entry in entries):
            raise Conflict(f"There is a key {name} already.", hint=f"Remove it with: key remove {name}")
        secret = _PREFIX + secrets.token_urlsafe(32)
        kept_in = IN_KEYRING if keyrings.put(self._keyring, name, secret) else IN_FILE
        created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        entry = Entry(name, digest(secret), created, kept_in, secret if kept_in == IN_FILE else "")
        self._write((*entries, entry))
        return entry, secret

    def show(self, name: str) -> str:
        """The key of that name.

        Raises:
            NotFound: there is none, or the keyring does not give it.
            ConfigError: as `read`.
        """
        entry = self._entry(self.read(), name)
        if entry.kept_in == IN_FILE:
            return entry.secret
        secret = keyrings.get(self._keyring, name)
        if secret is None:
            raise NotFound(f"The keyring does not give the key {name}.", hint="Remove it and make another.")
        return secret

    def remove(self, name: str) -> None:
        """Take a key back. It is refused within about a second.

        Raises:
            NotFound: there is none of that name.
            ConfigError: as `add`.
        """
        entries = self.read()
        entry = self._entry(entries, name)
        self._write(tuple(other for other in entries if other is not entry))
        if entry.kept_in == IN_KEYRING:
            keyrings.remove(self._keyring, name)

    def _entry(self, entries: tuple[Entry, ...], name: str) -> Entry:
        for entry in entries:
            if entry.name == name:
                return entry
        raise NotFound(f"There is no key {name}.", param="name")

    def _write(self, entries: tuple[Entry, ...]) -> None:
        """Replace the file; it is never readable by others, not even for a moment."""
        known = read_private(self.path)
        self._decoded(known)  # It may have been edited since it was read.
        try:
            write_atomically(self.path, written_entries(known, "keys", entries))
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be written: {error.strerror or error}.") from error


def digest(secret: str) -> str:
    """What is kept of a key for comparing. Keys are long and random, so a plain hash is enough."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()
