"""The commands that fetch models and delete them, and keep a token for the Hugging Face hub."""

from __future__ import annotations

import argparse
import asyncio
import getpass
import json
import logging
import os
import sys
import time
from typing import Any, Final

import msgspec

from router.cli.client import Client, NotRunning
from router.cli.context import Context, note
from router.cli.progress import Bar, shown_size
from router.cli.status import plain
from router.errors import ConfigError, NotFound, RouterError
from router.settings import keyring as keyrings

_WORDS: Final = {
    "resolving": "Asking the hub",
    "waiting": "Waiting for another pull of the same file",
    "checking": "Checking what is here already",
    "placing": "Checked; putting it in its place",
}
#: Deleting many large files takes a while on some file systems.
_DELETE_S: Final = 300.0


def add_commands(commands: Any) -> list[argparse.ArgumentParser]:
    """Add `pull`, `delete` and `hub` to the commands; returns the parsers of those that ask a router."""
    pull = commands.add_parser("pull", help="fetch a model from the Hugging Face hub")
    pull.add_argument(
        "model",
        metavar="MODEL",
        help="owner/repo, owner/repo:Q4_K_M or owner/repo:file.gguf, with @REVISION after the repository for "
        "another than main; or demo",
    )
    pull.add_argument("--json", action="store_true", help="progress and result as JSON, a line each")
    pull.add_argument("--cancel", action="store_true", help="stop a pull that a running Lemon Tray is at")
    pull.set_defaults(command=_pull)

    delete = commands.add_parser("delete", help="delete a model's files, or a policy")
    delete.add_argument("model", metavar="MODEL")
    delete.set_defaults(command=_delete)

    hub = commands.add_parser(
        "hub", help="keep a token for gated models of the Hugging Face hub, and tidy its cache"
    )
    actions = hub.add_subparsers(title="actions", metavar="ACTION", required=True)
    login = actions.add_parser("login", help="keep a token, which is asked for, in the keyring")
    login.set_defaults(command=_login)
    logout = actions.add_parser("logout", help="forget that token")
    logout.set_defaults(command=_logout)
    left = actions.add_parser(
        "leftovers",
        help="show what pulls that did not end take in the cache",
        description="Show what pulls that did not end take in the Hugging Face cache. Pulling the same model "
        "again goes on with it.",
    )
    left.add_argument("--delete", action="store_true", help="delete what nobody is fetching now")
    left.add_argument("--json", action="store_true", help="as JSON")
    left.set_defaults(command=_leftovers)
    return [pull, delete]


def _pull(context: Context, arguments: argparse.Namespace) -> int:
    if arguments.cancel:
        context.client().post("/v1/pull/cancel", {"model_name": arguments.model})
        print(f"{plain(arguments.model)} is no longer being pulled; what has arrived is kept")
        return 0
    bar = Bar("Fetched; checking it")
    show = _Lines() if arguments.json else bar
    try:
        if context.running:
            model = _follow(context.client(), arguments.model, show)
        else:
            note("Lemon Tray is not running; the model is fetched by this command itself")
            model = _alone(context, arguments.model, show)
    except KeyboardInterrupt:
        bar.end()
        if context.running:
            note("the pull goes on; to stop it: lemon-tray pull --cancel " + arguments.model)
        else:
            note("what has arrived is kept: the same command goes on from there")
        raise
    finally:
        bar.end()
    if arguments.json:
        print(json.dumps({"model_name": model, "state": "done"}))
    else:
        print(f"{plain(model)} is here")
    return 0


def _follow(client: Client, name: str, bar: Bar | _Lines) -> str:
    for event, data in client.events("/v1/pull", {"model_name": name, "stream": True}):
        told = msgspec.json.decode(data)
        if event == "progress":
            _show(bar, told["bytes_downloaded"], told["bytes_total"], told.get("stage", ""))
        elif event == "complete":
            return str(told["model_name"])
        elif "error" in told:
            error = told["error"]
            raise RouterError(str(error["message"]), code=error.get("code"), hint=error.get("hint"))
    raise NotRunning(f"The connection to {client.url} ended.")


def _alone(context: Context, name: str, bar: Bar | _Lines) -> str:
    # The other commands need none of what this brings in.
    from router.service.pulling import standalone

    # What goes wrong is told once, as the error; without a handler the log would tell it, too.
    logging.getLogger("router").addHandler(logging.NullHandler())

    async def run() -> str:
        async with standalone(context.paths, context.store().settings, context.environ) as pulling:
            pull = pulling.pull(name)
            async for progress in pull:
                _show(bar, progress.done, progress.total, progress.stage)
            return pull.model

    return asyncio.run(run())


def _show(bar: Bar | _Lines, done: int, total: int | None, stage: str) -> None:
    bar.show(done, total, _WORDS.get(stage, "") if isinstance(bar, Bar) else stage)


class _Lines:
    """Progress as JSON, a line each."""

    def show(self, done: int, total: int | None, stage: str = "") -> None:
        print(json.dumps({"stage": stage, "bytes_downloaded": done, "bytes_total": total}), flush=True)


def _delete(context: Context, arguments: argparse.Namespace) -> int:
    if context.running:
        answer = context.client().post("/v1/delete", {"model_name": arguments.model}, timeout_s=_DELETE_S)
        name, freed = answer["model_name"], int(answer.get("bytes_freed", 0))
    else:
        from router.service.pulling import standalone

        note("Lemon Tray is not running; the files are deleted by this command itself")

        async def run() -> tuple[str, int]:
            async with standalone(context.paths, context.store().settings, context.environ) as pulling:
                deleted = await pulling.delete(await pulling.find(arguments.model))
                return deleted.name, deleted.freed

        name, freed = asyncio.run(run())
    print(f"{plain(name)} is deleted{f'; {shown_size(freed)} is free again' if freed else ''}")
    return 0


def _leftovers(context: Context, arguments: argparse.Namespace) -> int:
    # The other commands need none of what this brings in.
    from router.catalog.leftovers import discard, find_leftovers
    from router.service.pulling import hub_root

    root = hub_root(context.store().settings.model_sources, context.environ)
    deleted = discard(root) if root is not None and arguments.delete else ()
    left = find_leftovers(root) if root is not None else ()
    if arguments.json:
        listed = [
            {"path": os.fsdecode(each.path), "repo": each.repo, "bytes": each.size, "written": each.written}
            for each in left
        ]
        print(json.dumps({"leftovers": listed, "bytes_freed": sum(each.size for each in deleted)}, indent=2))
        return 0
    for each in left:
        day = time.strftime("%Y-%m-%d %H:%M", time.localtime(each.written))
        print(plain(f"{shown_size(each.size):>10}  {day}  {each.repo}  {each.path.name[:12]}"))
    if arguments.delete:
        freed = sum(each.size for each in deleted)
        note(f"{shown_size(freed)} is free again" if deleted else "nothing was deleted")
        if left:
            note("what is left is being fetched now")
    elif left:
        note(
            f"{shown_size(sum(each.size for each in left))} in all; to delete what nobody is fetching: "
            "lemon-tray hub leftovers --delete"
        )
    else:
        note("no pull has left anything")
    return 0


def _login(context: Context, arguments: argparse.Namespace) -> int:
    from router.catalog.hub_api import TOKEN_NAME

    token = (getpass.getpass("Token: ") if sys.stdin.isatty() else sys.stdin.readline()).strip()
    if not token or not token.isprintable() or " " in token:
        raise ConfigError("That is no token. Make one at https://huggingface.co/settings/tokens.")
    if not keyrings.put(keyrings.system_keyring(), TOKEN_NAME, token):
        raise ConfigError(
            "There is no keyring here that keeps it.", hint="Set HF_TOKEN instead, or use: hf auth login"
        )
    print("The token is kept in the keyring")
    return 0


def _logout(context: Context, arguments: argparse.Namespace) -> int:
    from router.catalog.hub_api import TOKEN_NAME

    store = keyrings.system_keyring()
    if keyrings.get(store, TOKEN_NAME) is None:
        raise NotFound("The keyring has no token of the hub.")
    keyrings.remove(store, TOKEN_NAME)
    print("The token is forgotten")
    return 0
