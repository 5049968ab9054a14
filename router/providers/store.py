"""The providers on disk, and their keys: in the system's keyring where there is one, else in the same file.

The file has the mode 0600. A key may also be named by an environment variable; then it is written nowhere.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from router import logs
from router.catalog.kinds import TYPES
from router.errors import BadRequest, ConfigError, NotFound
from router.providers.address import base_url, origin
from router.settings import keyring as keyrings
from router.settings.files import read_private, write_atomically, written_entries
from router.settings.keyring import SecretStore

log = logging.getLogger(__name__)

FILE_NAME: Final = "providers.json"
IN_KEYRING: Final = "keyring"
IN_FILE: Final = "file"
IN_VARIABLE: Final = "variable"
NO_KEY: Final = "none"

IDLE_S: Final = 600.0
MAX_PROVIDERS: Final = 64
MAX_LISTED: Final = 1_000

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,31}")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_MOST_KEY: Final = 4_096
#: Distinguishes a provider's key in the keyring from the endpoint's own ones, whose names have no colon.
_USER: Final = "provider:{}"


class Provider(Struct, frozen=True):
    """One provider, as it is kept.

    Attributes:
        name: the first part of the names of its models.
        url: its base URL, to which `/models` and `/chat/completions` are added.
        key: where its key is kept: `keyring`, `file`, `variable`, or `none`.
        secret: the key, where it is kept in the file.
        variable: the environment variable that has the key.
        models: only these, by the provider's own names; empty for all that it lists.
        types: types of models, where the provider does not tell or tells another.
        allow_http: plain HTTP is allowed to a host that is not private.
        proxy: the proxy that the environment names is used.
        ca_file: a file of certificates to trust; "" for those of the system.
        idle_s: seconds without a byte of an answer after which it is given up.
    """

    name: str
    url: str
    key: str = NO_KEY
    secret: str = ""
    variable: str = ""
    models: tuple[str, ...] = ()
    types: dict[str, str] = {}
    allow_http: bool = False
    proxy: bool = False
    ca_file: str = ""
    idle_s: float = IDLE_S


class _File(Struct, frozen=True):
    providers: tuple[Provider, ...] = ()


def make_provider(given: Mapping[str, Any]) -> Provider:
    """A provider of what a request or a command says. It has no key yet.

    Raises:
        BadRequest: naming the member at fault.
    """
    try:
        made = msgspec.convert(dict(given), Provider, strict=True)
    except msgspec.ValidationError as error:
        raise BadRequest(f"The provider is wrong: {error}.") from error
    return _checked(made)


def _checked(made: Provider) -> Provider:
    if not _NAME.fullmatch(made.name):
        raise BadRequest(
            f"{made.name[:80]!r} cannot be a provider's name: 1 to 32 small letters, digits and . _ - are "
            "allowed, the first one a letter or digit.",
            param="name",
        )
    if len(made.models) > MAX_LISTED or not all(m.strip() and m.isprintable() for m in made.models):
        raise BadRequest(f"`models` are 1 to {MAX_LISTED} names.", param="models")
    for model, kind in made.types.items():
        if kind not in TYPES:
            raise BadRequest(
                f"{kind[:40]!r} is no type of model ({', '.join(TYPES)}): {model[:80]}.", param="types"
            )
    if made.variable and not _VARIABLE.fullmatch(made.variable):
        raise BadRequest(f"{made.variable[:80]!r} cannot be a variable's name.", param="variable")
    if not 1 <= made.idle_s <= 86_400:
        raise BadRequest("`idle_s` must be from 1 to 86400 seconds.", param="idle_s")
    return msgspec.structs.replace(
        made,
        url=base_url(made.url, allow_http=made.allow_http),
        models=tuple(dict.fromkeys(made.models)),
        key=IN_VARIABLE if made.variable else made.key,
    )


class ProviderFile:
    """The providers on disk. Everything here blocks: use it from a command, or from a thread.

    `keyring` finds one in place of the system's; it is called only if a key is, or is to be, in there.
    """

    def __init__(
        self,
        path: Path,
        *,
        keyring: Callable[[], SecretStore | None] | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self.path = path
        self._given = keyring
        self._environ = environ

    def _keyring(self) -> SecretStore | None:
        return keyrings.system_keyring() if self._given is None else self._given()

    def stamp(self) -> tuple[int, ...]:
        """What changes when the file does."""
        try:
            found = self.path.stat()
        except OSError:
            return ()
        return (found.st_mtime_ns, found.st_size, found.st_ino)

    def read(self) -> tuple[Provider, ...]:
        """The providers, by name. One that is wrong is left out, and told in the log.

        Raises:
            ConfigError: the file cannot be read, or is none of ours.
        """
        good: dict[str, Provider] = {}
        for provider in self._kept():
            logs.hide(provider.secret)
            try:
                good.setdefault(provider.name, _checked(provider))
            except BadRequest as error:
                log.warning("%s: the provider %r is left out. %s", self.path, provider.name, error.message)
        return tuple(sorted(good.values(), key=lambda each: each.name))

    def _kept(self) -> tuple[Provider, ...]:
        """What the file has, also what is wrong in it: to write the file must not lose that."""
        return self._decoded(read_private(self.path))

    def _decoded(self, data: bytes | None) -> tuple[Provider, ...]:
        if data is None:
            return ()
        try:
            return msgspec.json.decode(data, type=_File).providers
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{self.path} is no file of providers: {error}.") from error

    def secret(self, provider: Provider) -> str | None:
        """The provider's key; "" if it has none, None if it has one that cannot be had now."""
        found: str | None = None  # Also for one that a newer version keeps elsewhere.
        if provider.key == NO_KEY:
            found = ""
        elif provider.key == IN_FILE:
            found = provider.secret
        elif provider.key == IN_VARIABLE:
            found = self._environ.get(provider.variable, "").strip() or None
        elif provider.key == IN_KEYRING:
            found = keyrings.get(self._keyring(), _USER.format(provider.name))
        if found:
            logs.hide(found)
        return found

    def put(self, provider: Provider, secret: str | None) -> Provider:
        """Keep a provider, in place of the one of its name. Returns it with where its key is.

        Args:
            secret: its key; "" for none, None to keep the one that it has, for the same host only.

        Raises:
            BadRequest: the key cannot be one, or there are too many providers.
            ConfigError: as `read`, or the file cannot be written.
        """
        others = self._kept()
        known = next((each for each in others if each.name == provider.name), None)
        others = tuple(each for each in others if each.name != provider.name)
        if len(others) >= MAX_PROVIDERS:
            raise BadRequest(f"There are {len(others)} providers already, as many as are kept.", param="name")
        if secret is not None:
            kept = self._keep_key(provider, secret)
        elif known is not None and known.key != NO_KEY and not provider.variable:
            if origin(known.url) != origin(provider.url):
                raise BadRequest(
                    f"The key of {provider.name} is for {origin(known.url)}. Give the one for "
                    f"{origin(provider.url)}.",
                    param="key",
                )
            kept = msgspec.structs.replace(
                provider, key=known.key, secret=known.secret, variable=known.variable
            )
        else:
            kept = msgspec.structs.replace(provider, key=IN_VARIABLE if provider.variable else NO_KEY)
        if known is not None and known.key == IN_KEYRING and kept.key != IN_KEYRING:
            keyrings.remove(self._keyring(), _USER.format(provider.name))
        self._write((*others, kept))
        return kept

    def _keep_key(self, provider: Provider, secret: str) -> Provider:
        if provider.variable:
            raise BadRequest("Give a key, or the variable that has it; not both.", param="variable")
        if not secret:
            return msgspec.structs.replace(provider, key=NO_KEY, secret="")
        if len(secret) > _MOST_KEY or not secret.isascii() or not secret.isprintable() or " " in secret:
            raise BadRequest("The key has characters that no key has, or is too long.", param="key")
        logs.hide(secret)
        if keyrings.put(self._keyring(), _USER.format(provider.name), secret):
            return msgspec.structs.replace(provider, key=IN_KEYRING, secret="")
        return msgspec.structs.replace(provider, key=IN_FILE, secret=secret)

    def remove(self, name: str) -> None:
        """Forget a provider and its key.

        Raises:
            NotFound: there is none of that name.
            ConfigError: as `put`.
        """
        kept = self._kept()
        found = next((each for each in kept if each.name == name), None)
        if found is None:
            raise no_provider(name, [each.name for each in kept])
        self._write(tuple(each for each in kept if each is not found))
        if found.key == IN_KEYRING:
            keyrings.remove(self._keyring(), _USER.format(name))

    def _write(self, providers: tuple[Provider, ...]) -> None:
        known = read_private(self.path)
        self._decoded(known)  # It may have been edited since it was read.
        listed = sorted(providers, key=lambda each: each.name)
        try:
            write_atomically(self.path, written_entries(known, "providers", listed))
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be written: {error.strerror or error}.") from error


def no_provider(name: str, known: list[str]) -> NotFound:
    """The error for a name that no provider has."""
    hint = f"There are {', '.join(known)}." if known else "Add one with: lemon-tray provider add NAME URL"
    return NotFound(f"There is no provider {name[:80]}.", code="provider_not_found", param="name", hint=hint)
