"""The program hands each command to the command line, and everything else to the tray app."""

from __future__ import annotations

import argparse

from lemon_tray.commands import CLI_COMMANDS
from router.cli.main import parser


def test_every_command_of_the_command_line_is_one_of_the_program() -> None:
    [commands] = [a for a in parser()._actions if isinstance(a, argparse._SubParsersAction)]
    assert set(commands.choices) | {"--version"} == CLI_COMMANDS
