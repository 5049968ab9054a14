"""`stop`: ends the Lemon Tray that runs, as quitting it does, and waits until it has ended."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any, Final

from router.cli.client import Client, NotRunning
from router.cli.context import Context
from router.errors import RouterError
from router.instance import Holder, read_holder

#: A signal of Windows' would end it at once, its workers and answers with it.
HAS_SIGNALS: Final = os.name != "nt"
#: Answers get some seconds, and ending is bounded: after this something is wrong.
LONGEST_S: Final = 30.0
PAUSE_S: Final = 0.05


def add_commands(commands: Any) -> None:
    """Add `stop` to the commands."""
    stop = commands.add_parser(
        "stop", help="end the Lemon Tray that runs, as quitting it does, and wait until it has ended"
    )
    stop.set_defaults(command=_stop)


def _stop(context: Context, arguments: argparse.Namespace) -> int:
    holder = read_holder(context.paths.state_dir)
    if holder is None:
        raise NotRunning("Lemon Tray is not running.")
    ask_to_end(holder, context.client() if holder.endpoint else None)
    wait_until_ended(context.paths.state_dir, holder)
    print("Lemon Tray has ended")
    return 0


def ask_to_end(holder: Holder, client: Client | None) -> None:
    """Ask by its endpoint; by a signal where it does not answer, on systems that have them.

    Raises:
        RouterError: it cannot be asked.
    """
    try:
        if client is None:
            raise NotRunning("Lemon Tray is just starting.", hint="try again in a moment")
        client.post("/internal/shutdown", {})
    except RouterError:
        if not HAS_SIGNALS:
            raise
        with contextlib.suppress(ProcessLookupError):
            os.kill(holder.pid, signal.SIGTERM)


def wait_until_ended(state_dir: Path, holder: Holder, longest_s: float = LONGEST_S) -> None:
    """Return when the instance has given its lock back.

    Raises:
        RouterError: it has not, after that many seconds.
    """
    end = time.monotonic() + longest_s
    while (now := read_holder(state_dir)) is not None and now.pid == holder.pid:
        if time.monotonic() > end:
            raise RouterError(f"Lemon Tray (process {holder.pid}) does not end.", hint="the log may say why")
        time.sleep(PAUSE_S)  # noqa: TID251  # there is no loop in this command
