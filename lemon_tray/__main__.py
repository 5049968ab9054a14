"""The program `lemon-tray`: the tray app, the command line, or an engine's worker."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Final

from lemon_tray.commands import CLI_COMMANDS
from router.loading import uncollected

WORKER: Final = "--engine-worker"


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the arguments ask for; returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == [WORKER]:
        # A packaged app has no Python to start workers with but itself.
        worker = importlib.import_module("router.engines.worker")
        return int(worker.main() or 0)
    if arguments and arguments[0] in CLI_COMMANDS:
        with uncollected():
            from router.cli.main import main as command_line

        return command_line(arguments)
    return _tray(arguments)


def _tray(arguments: list[str]) -> int:
    from lemon_tray.options import parse

    try:
        options = parse(arguments)
    except SystemExit as end:
        return int(end.code or 0)
    from lemon_tray.start import start

    return start(options)


if __name__ == "__main__":
    sys.exit(main())
