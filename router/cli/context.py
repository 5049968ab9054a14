"""What every command needs: where the router is, its settings, and a way to say things aside."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from typing import Final

from router.cli.client import Client, NotRunning
from router.cli.status import plain
from router.errors import RouterError
from router.instance import Holder, read_holder
from router.paths import Paths
from router.settings.store import SettingsStore
from router.web.keyfile import FILE_NAME, VARIABLE, KeyFile, system_keyring

#: From taking its lock to answering; a machine that is busy may take long over it.
STARTS_WITHIN_S: Final = 10.0
PAUSE_S: Final = 0.05
# A router that listens on every address is asked on the local one.
_EVERYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # compared with, not bound to


class Context:
    """Finds the router."""

    def __init__(self, paths: Paths, environ: Mapping[str, str], endpoint: str | None) -> None:
        self.paths = paths
        self.environ = environ
        self._endpoint = endpoint

    @property
    def running(self) -> bool:
        """A router runs here, or one was named."""
        return self._endpoint is not None or read_holder(self.paths.state_dir) is not None

    def client(self) -> Client:
        """The router to ask.

        Raises:
            ConfigError: the settings that say where the router is are wrong.
            NotRunning: they do not say it, and none runs.
        """
        if self._endpoint is not None:
            # A key of this machine's is not for wherever that may be.
            return Client(self._endpoint, self._given_key())
        holder = self._ready_holder()
        if holder is not None and holder.endpoint:
            return Client(holder.endpoint, self._given_key(), self._own_key)
        store = self.store()
        if not store.settings.port:  # any free one: only the one that runs could tell which
            raise NotRunning("Lemon Tray is not running.", hint="start it with: lemon-tray serve")
        host = _EVERYWHERE.get(store.settings.host, store.settings.host)
        url = f"http://{f'[{host}]' if ':' in host else host}:{store.settings.port}"
        return Client(url, self._given_key(), self._own_key)

    def _ready_holder(self) -> Holder | None:
        """The instance that runs; one that is just starting is given a while to tell where it answers."""
        end = time.monotonic() + STARTS_WITHIN_S
        while (holder := read_holder(self.paths.state_dir)) is not None and not holder.endpoint:
            if time.monotonic() > end:
                break
            time.sleep(PAUSE_S)  # noqa: TID251  # there is no loop in a command
        return holder

    def _given_key(self) -> str:
        return self.environ.get(VARIABLE, "").strip()

    def _own_key(self) -> str:
        """A key that the router of this machine takes; "" if there is none that can be read."""
        try:
            file = key_file(self.paths)
            for entry in file.read():
                return file.show(entry.name)
        except RouterError as error:
            note(error.message)
        return ""

    def store(self) -> SettingsStore:
        """The settings as they are in the file; what is wrong there is said aside."""
        # It also goes to the log, of which there is none here: it is said once.
        logging.getLogger("router").addHandler(logging.NullHandler())
        store = SettingsStore(self.paths.config_file, self.environ)
        store.load(set_aside_corrupt=False)
        for problem in store.problems:
            note(problem)
        return store


def key_file(paths: Paths) -> KeyFile:
    """The user's API keys."""
    return KeyFile(paths.config_file.with_name(FILE_NAME), system_keyring())


def note(text: str) -> None:
    """Say something that is not the answer."""
    print(f"lemon-tray: {plain(text)}", file=sys.stderr)
