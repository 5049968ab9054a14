"""The system's keyring, where there is one that keeps what it is given."""

from __future__ import annotations

import logging
from typing import Final, Protocol

log = logging.getLogger(__name__)

SERVICE: Final = "lemon-tray"


class SecretStore(Protocol):
    """The system's keyring, or something like it. Calls may block, and raise what they like."""

    def set_password(self, service: str, username: str, password: str) -> None: ...

    def get_password(self, service: str, username: str) -> str | None: ...

    def delete_password(self, service: str, username: str) -> None: ...


def system_keyring() -> SecretStore | None:
    """The system's keyring; None without one. Looking for it blocks."""
    try:
        import keyring
        from keyring.backends import chainer, fail, null

        found = keyring.get_keyring()
    except Exception as error:  # A back end may fail in any way while it is looked for.
        log.info("There is no keyring: %s", error)
        return None
    useless = (fail.Keyring, null.Keyring)
    if isinstance(found, useless) or (isinstance(found, chainer.ChainerBackend) and not found.backends):
        return None
    return found


def put(keyring: SecretStore | None, username: str, secret: str) -> bool:
    """Keep a secret in the keyring; False if it does not take it. Blocks."""
    if keyring is None:
        return False
    try:
        keyring.set_password(SERVICE, username, secret)
        return keyring.get_password(SERVICE, username) == secret
    except Exception as error:  # A keyring that is locked, or refuses: a file of mode 0600 is as good.
        log.warning("The keyring does not take the key: %s", error)
        return False


def get(keyring: SecretStore | None, username: str) -> str | None:
    """A secret of the keyring; None if it does not give one. Blocks, for as long as a locked one asks."""
    if keyring is None:
        return None
    try:
        return keyring.get_password(SERVICE, username)
    except Exception as error:  # Whatever the keyring's own errors are.
        log.warning("The keyring does not answer: %s", error)
        return None


def remove(keyring: SecretStore | None, username: str) -> None:
    """Take a secret out of the keyring. Blocks."""
    if keyring is None:
        return
    try:
        keyring.delete_password(SERVICE, username)
    except Exception as error:  # It is of no use any more; that it stays there does no harm.
        log.warning("The key could not be taken out of the keyring: %s", error)
