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
IMPORTED_NAME: Final = "imported"


class State(Struct, frozen=True):
    """Attributes:
    last_run_version: the version that ran last, "" before the first run.
    owed: ids of the notices that an upgrade made necessary.
    told: ids of the notices that the user has seen.
    update_checked: when a newer version was last looked for, in Unix seconds; 0: never.
    update_version, update_url: the newest one that was found then, and its page; "" for none.
    update_told: the version that the user has been told of.
    """

    last_run_version: str = ""
    owed: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    update_checked: float = 0.0
    update_version: str = ""
    update_url: str = ""
    update_told: str = ""


def mark_imported(state_dir: Path) -> None:
    """Note that settings came from another program, for the next start to see. Blocks.

    A file of its own: a router that runs meanwhile writes the state from memory.

    Raises:
        OSError: it could not be written.
    """
    write_atomically(state_dir / IMPORTED_NAME, b"")


class StateFile:
    """The state in force, and its file. Fields of a newer version are kept."""

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / STATE_NAME
        self.state = State()
        self._unknown: dict[str, Any] = {}
        self._order = asyncio.Lock()

    def load(self) -> State:
        """Read the file. One that is missing or damaged gives the state of a first run. Blocks briefly."""
        self._unknown = {}
        try:
            data = self.path.read_bytes()
            self.state = msgspec.json.decode(data, type=State)
            fields = msgspec.json.decode(data, type=dict[str, Any])
            self._unknown = {
                key: value for key, value in fields.items() if key not in State.__struct_fields__
            }
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
            fields = {**self._unknown, **msgspec.structs.asdict(self.state)}
            await asyncio.to_thread(write_atomically, self.path, msgspec.json.encode(fields))
        return self.state

    def imported(self) -> bool:
        """Whether settings were imported since that was last forgotten. Blocks briefly."""
        return self.path.with_name(IMPORTED_NAME).exists()

    def forget_imported(self) -> None:
        """The import has been looked at. Blocks briefly."""
        self.path.with_name(IMPORTED_NAME).unlink(missing_ok=True)

    async def tell(self, notice: str) -> State:
        """Record that a notice has been told."""
        if notice in self.state.told:
            return self.state
        return await self.update(told=(*self.state.told, notice))
