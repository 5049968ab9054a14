"""The commands about API keys: making one, listing them, showing one again, taking one back."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from router.cli.context import Context, key_file, note
from router.cli.status import plain
from router.web.keyfile import IN_KEYRING, VARIABLE


def add_commands(commands: Any) -> None:
    """Add `key` with its actions to the commands. They work whether the router runs or not."""
    key = commands.add_parser("key", help="make, list, show or remove API keys")
    actions = key.add_subparsers(title="actions", metavar="ACTION", required=True)

    add = actions.add_parser("add", help="make a key, and print it")
    add.add_argument("name", metavar="NAME", help="for whom it is, such as laptop")
    add.set_defaults(command=_add)

    show = actions.add_parser("list", help="list the keys' names")
    show.add_argument("--json", action="store_true", help="as JSON")
    show.set_defaults(command=_list)

    again = actions.add_parser("show", help="print a key again")
    again.add_argument("name", metavar="NAME")
    again.set_defaults(command=_show)

    remove = actions.add_parser("remove", help="take a key back; it is refused within a second or two")
    remove.add_argument("name", metavar="NAME")
    remove.set_defaults(command=_remove)


def _add(context: Context, arguments: argparse.Namespace) -> int:
    file = key_file(context.paths)
    entry, secret = file.add(arguments.name)
    where = "the system's keyring" if entry.kept_in == IN_KEYRING else f"{file.path}, which only you can read"
    if sys.stderr.isatty():
        note(f"It is kept in {where}. Send it as the header Authorization: Bearer KEY.")
    print(secret)
    return 0


def _list(context: Context, arguments: argparse.Namespace) -> int:
    entries = key_file(context.paths).read()
    if arguments.json:
        shown = [{"name": e.name, "created": e.created, "kept_in": e.kept_in} for e in entries]
        print(json.dumps(shown, indent=2))
        return 0
    for entry in entries:
        print(f"{plain(entry.name)}  made {plain(entry.created)}  kept in the {plain(entry.kept_in)}")
    if context.environ.get(VARIABLE, "").strip():
        note(f"A router that is started from here also takes the key in {VARIABLE}.")
    if not entries:
        note("There is no key. Make one with: lemon-tray key add NAME")
    return 0


def _show(context: Context, arguments: argparse.Namespace) -> int:
    print(key_file(context.paths).show(arguments.name))
    return 0


def _remove(context: Context, arguments: argparse.Namespace) -> int:
    key_file(context.paths).remove(arguments.name)
    print(f"{plain(arguments.name)} is removed")
    return 0
