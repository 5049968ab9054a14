"""The commands about engines: which there are, fetching a GPU build, choosing one, deleting a build."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeVar

import msgspec

from router.cli.client import Client, NotRunning
from router.cli.context import Context, note
from router.cli.progress import Bar, shown_size
from router.cli.status import plain
from router.errors import RouterError
from router.snapshot import EngineView

T = TypeVar("T")

#: GitHub may take a while to answer.
_ASK_S: Final = 120.0


def add_commands(commands: Any) -> list[argparse.ArgumentParser]:
    """Add `engine` with its actions to the commands; returns the actions' parsers."""
    engine = commands.add_parser("engine", help="list, fetch, choose or delete engines")
    actions = engine.add_subparsers(title="actions", metavar="ACTION", required=True)

    show = actions.add_parser("list", help="show the engines that are here, and builds to fetch")
    show.add_argument("--offers", action="store_true", help="ask GitHub first which builds there are")
    show.add_argument("--json", action="store_true", help="as JSON")
    show.set_defaults(command=_list)

    get = actions.add_parser("get", help="fetch a GPU build of llama.cpp, check it and try it")
    get.add_argument(
        "id", metavar="ID", nargs="?", help="a build, or a kind such as vulkan; by default what suits best"
    )
    get.add_argument("--json", action="store_true", help="the engines afterwards, as JSON")
    get.set_defaults(command=_get)

    use = actions.add_parser("use", help="load models with an engine from now on")
    use.add_argument("id", metavar="ID", help="auto, embedded, a build, or the path of a llama-server")
    use.set_defaults(command=_use)

    remove = actions.add_parser("remove", help="delete a build that was fetched")
    remove.add_argument("id", metavar="ID")
    remove.set_defaults(command=_remove)
    return [show, get, use, remove]


def _list(context: Context, arguments: argparse.Namespace) -> int:
    if context.running:
        client = context.client()
        views = _views(client, refresh=arguments.offers)
    else:
        _tell_alone(context)

        async def look(engines: Any) -> tuple[EngineView, ...]:
            if arguments.offers:
                await engines.refresh()
            return tuple(engines.views)

        views = _alone(context, look)
    _print(views, as_json=arguments.json)
    return 0


def _get(context: Context, arguments: argparse.Namespace) -> int:
    bar = Bar("Fetched; unpacking and trying it")
    if context.running:
        client = context.client()
        try:
            _follow(client, arguments.id, bar)
        finally:
            bar.end()
        views = _views(client)
    else:
        _tell_alone(context)

        async def fetch(engines: Any) -> tuple[EngineView, ...]:
            end = await engines.get(arguments.id)
            await end
            return tuple(engines.views)

        try:
            views = _alone(context, fetch, bar.show)
        finally:
            bar.end()
    if arguments.json:
        _print(views, as_json=True)
        return 0
    print("The GPU build is here")
    used = next((view for view in views if view.in_use), None)
    if used is not None:
        print(f"Models are loaded with {plain(used.id)}")
        if used.kind != "build":
            builds = ", ".join(view.id for view in views if view.kind == "build")
            note(
                f"the setting engine names another; to change that: lemon-tray engine use auto (or {builds})"
            )
    return 0


def _use(context: Context, arguments: argparse.Namespace) -> int:
    if context.running:
        context.client().post("/internal/engines/use", {"id": arguments.id}, timeout_s=_ASK_S)
    else:
        _tell_alone(context)
        _alone(context, lambda engines: engines.use(arguments.id))
    print(f"Models are loaded with {plain(arguments.id)} from now on")
    return 0


def _remove(context: Context, arguments: argparse.Namespace) -> int:
    if context.running:
        context.client().post("/internal/engines/remove", {"id": arguments.id}, timeout_s=_ASK_S)
    else:
        _tell_alone(context)
        _alone(context, lambda engines: engines.remove(arguments.id))
    print(f"The build {plain(arguments.id)} is deleted")
    return 0


def _views(client: Client, *, refresh: bool = False) -> tuple[EngineView, ...]:
    if refresh:
        answer = client.post("/internal/engines/refresh", {}, timeout_s=_ASK_S)
    else:
        answer = client.get("/internal/engines")
    try:
        return msgspec.convert(answer["engines"], tuple[EngineView, ...])
    except (msgspec.MsgspecError, KeyError, TypeError) as error:
        raise RouterError(f"{client.url} speaks another version: {error}.") from error


def _follow(client: Client, id: str | None, bar: Bar) -> None:
    """Have the router fetch it, and wait for the end."""
    body: dict[str, Any] = {"stream": True}
    if id is not None:
        body["id"] = id
    for name, data in client.events("/internal/engines/get", body):
        told = msgspec.json.decode(data)
        if name == "progress":
            bar.show(told["bytes_downloaded"], told["bytes_total"])
        elif name == "complete":
            return
        elif "error" in told:
            fault = told["error"]
            raise RouterError(fault["message"], code=fault.get("code"), hint=fault.get("hint"))
    raise NotRunning(f"The connection to {client.url} ended.")


def _alone(
    context: Context,
    work: Callable[[Any], Awaitable[T]],
    progress: Callable[[int, int | None], None] | None = None,
) -> T:
    """Do it without a router, on the folder and the settings' file."""
    # Only here: most commands need none of what this brings in.
    from router.service.engines import standalone

    # What the router would log, the command says itself.
    logging.getLogger("router").addHandler(logging.NullHandler())

    async def run() -> T:
        async with standalone(context.paths, context.store(), progress) as engines:
            return await work(engines)

    return asyncio.run(run())


def _tell_alone(context: Context) -> None:
    note(f"Lemon Tray is not running; working on {context.paths.engines_dir}")


def _print(views: Iterable[EngineView], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"engines": msgspec.to_builtins(tuple(views))}, indent=2))
        return
    views = tuple(views)
    width = max((len(view.id) for view in views), default=0)
    for view in views:
        if view.kind != "offer":
            print(plain(f"{'*' if view.in_use else ' '} {view.id:<{width}}  {_about(view)}"))
    offers = [view for view in views if view.kind == "offer"]
    if offers:
        print("To fetch with lemon-tray engine get ID:")
    for view in offers:
        size = f", {shown_size(view.size)}" if view.size else ""
        problem = f"; {view.problem}" if view.problem else ""
        print(plain(f"  {view.id:<{width}}  {view.title}{size}{problem}"))


def _about(view: EngineView) -> str:
    words = view.title
    if view.version and view.version not in view.title:
        words += f" {view.version}"
    if view.problem:
        return f"{words}: cannot be used: {view.problem}"
    return f"{words}: {', '.join(view.devices) or 'the processor only'}"
