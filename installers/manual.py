"""The manual page, whose list of commands is the program's own."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import project
from payload import ROOT

SOURCE: Final = Path(__file__).resolve().parent / "linux" / "lemon-tray.1"
#: Described in the page itself.
OWN_WORDS: Final = ("serve",)


def escaped(text: str) -> str:
    """Text as troff reads it: no escape, no request at a line's beginning, hyphens that can be copied."""
    plain = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{plain}" if plain.startswith((".", "'")) else plain


def commands(parser: argparse.ArgumentParser, help_text: str = "") -> Iterator[tuple[str, str]]:
    """Each command with its arguments, and what it does: those that are actions, not groups of them."""
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not groups:
        usage = " ".join(parser.format_usage().split()).removeprefix("usage: ").replace("[-h] ", "")
        yield usage.replace(" [-h]", ""), help_text
    for group in groups:
        for choice in group._choices_actions:
            yield from commands(group.choices[choice.dest], choice.help or help_text)


def page() -> str:
    """The page in troff's form."""
    sys.path.insert(0, str(ROOT))
    try:
        from router.cli.main import parser
    finally:
        sys.path.remove(str(ROOT))
    entries = []
    for usage, text in commands(parser()):
        words = usage.split(" ")[1:]
        if words[0] not in OWN_WORDS:
            entries.append(f".TP\n.B {escaped(' '.join(words))}\n{escaped(text)}\n")
    template = SOURCE.read_text(encoding="utf-8")
    return project.filled(template.replace("@COMMANDS@\n", "".join(entries)))
