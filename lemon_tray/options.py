"""What the app was started with. No Qt here."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from lemon_tray.commands import CLI_COMMANDS
from router.cli.main import parser as cli_parser
from router.errors import near_matches
from router.version import __version__

_COMMANDS = sorted(name for name in CLI_COMMANDS if not name.startswith("-"))


class Options(Struct, frozen=True):
    """The app's arguments. `serve` are those that the headless router understands too.

    `overrides` are settings by key; `simulate` are bytes for each simulated device.
    """

    overrides: dict[str, Any]
    models_dirs: tuple[Path, ...]
    simulate: tuple[int, ...] | None
    demo: bool
    hidden: bool
    serve: tuple[str, ...]


def parser() -> argparse.ArgumentParser:
    """The parser of `lemon-tray [run]`."""
    made = argparse.ArgumentParser(
        prog="lemon-tray",
        description="Run language models for all your apps on one endpoint, from the tray.",
        epilog=f"Other commands: {', '.join(_COMMANDS)}; each has its own --help.",
    )
    made.add_argument("run", nargs="?", choices=("run",), help="start the tray app (the default)")
    made.add_argument("--demo", action="store_true", help="fetch a small demo model if there is no model")
    made.add_argument("--hidden", action="store_true", help="do not open the panel at the start")
    made.add_argument("--host", help="address to listen on")
    made.add_argument("--port", help="port to listen on; 0: any free one")
    made.add_argument(
        "--models-dir",
        dest="models_dirs",
        metavar="DIR",
        action="append",
        default=[],
        help="a further folder with GGUF files (repeatable)",
    )
    made.add_argument(
        "--simulate",
        metavar="SIZES",
        help="pretend to have GPUs with this much memory, such as 24GiB,24GiB; models run on the processor",
    )
    made.add_argument("--version", action="version", version=f"Lemon Tray {__version__}")
    return made


def parse(argv: Sequence[str]) -> Options:
    """Read the arguments of `lemon-tray [run]`.

    Raises:
        SystemExit: help was asked for, or the arguments are wrong; it has been said.
    """
    made = parser()
    if argv and not argv[0].startswith("-") and argv[0] != "run":
        near = near_matches(argv[0], _COMMANDS)
        advice = f" (did you mean {near[0]}?)" if near else ""
        made.error(f"there is no command {argv[0]}{advice}; there are run, {', '.join(_COMMANDS)}")
    given = made.parse_args(argv)
    serve: list[str] = []
    for name in ("host", "port", "simulate"):
        if getattr(given, name) is not None:
            serve += [f"--{name}={getattr(given, name)}"]
    for folder in given.models_dirs:
        serve += [f"--models-dir={folder}"]
    if given.demo:
        serve.append("--demo")
    # The command line's own parser checks the values, so that both accept the same.
    checked = cli_parser(only_serve=True).parse_args(["serve", *serve])
    overrides = {key: getattr(checked, key) for key in ("host", "port")}
    return Options(
        overrides={key: value for key, value in overrides.items() if value is not None},
        models_dirs=tuple(checked.models_dirs),
        simulate=checked.simulate,
        demo=given.demo,
        hidden=given.hidden,
        serve=tuple(serve),
    )
