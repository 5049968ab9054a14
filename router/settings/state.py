"""What the app remembers of itself between runs, apart from the settings."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from router.settings.files import write_atomically

log = logging.getLogger(__name__)

STATE_NAME: Final = "state.json"


class State(Struct, frozen=True):
    """Attributes:
    last_run_version: the version that ran last, "" before the first run.
    owed: ids of the notices that an upgrade made necessary.
    told: ids of the notices that the user has seen.
    """

    last_run_version: str = ""
    owed: tuple[str, ...] = ()
    told: tuple[str, ...] = ()


class StateFile:
    """The state in force, and its file."""

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / STATE_NAME
        self.state = State()
        self._order = asyncio.Lock()

    def load(self) -> State:
        """Read the file. One that is missing or damaged gives the state of a first run. Blocks briefly."""
        try:
            self.state = msgspec.json.decode(self.path.read_bytes(), type=State)
        except FileNotFoundError:
            self.state = State()
        except (OSError, msgspec.MsgspecError, UnicodeError) as error:
            log.warning("%s cannot be used and is begun anew: %s", self.path, error)
            self.state = State()
        return self.state

    async def update(self, **changes: Any) -> State:
        """Change fields at once, then write the file off the loop.

        Raises:
            OSError: the change is in force but could not be written.
        """
        self.state = msgspec.structs.replace(self.state, **changes)
        async with self._order:
            await asyncio.to_thread(write_atomically, self.path, msgspec.json.encode(self.state))
        return self.state

    async def tell(self, notice: str) -> State:
        """Record that a notice has been told."""
        if notice in self.state.told:
            return self.state
        return await self.update(told=(*self.state.told, notice))
