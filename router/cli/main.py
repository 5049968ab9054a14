"""The commands and their arguments."""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from router.cli.client import TIMEOUT_S, NotRunning
from router.cli.context import Context, note
from router.cli.options import add_model_options, given_options
from router.cli.plan import render_plan
from router.cli.status import plain, render, snapshots
from router.devices.simulated import parse_sizes
from router.errors import BadRequest, RouterError
from router.loading import uncollected
from router.paths import Paths
from router.settings import schema
from router.settings.store import SettingsStore
from router.version import __version__

EXIT_OK: Final = 0
EXIT_ERROR: Final = 1
EXIT_USAGE: Final = 2
EXIT_NOT_RUNNING: Final = 3

CLEAR: Final = "\x1b[H\x1b[J"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status: 0 done, 1 error, 2 wrong usage, 3 the router does not run."""
    try:
        given = sys.argv[1:] if argv is None else argv
        arguments = parser(only_serve=given[:1] == ["serve"]).parse_args(given)
    except SystemExit as end:  # argparse has said what it is
        return int(end.code or 0)
    command: Callable[[Context, argparse.Namespace], int] | None = getattr(arguments, "command", None)
    if command is None:
        parser().print_help(sys.stderr)
        return EXIT_USAGE
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name may hold what the terminal's encoding lacks
            stream.reconfigure(errors="replace")
    try:
        status = command(
            Context(Paths.default(), os.environ, getattr(arguments, "endpoint", None)), arguments
        )
        if sys.stdout is not None:  # closed by who started it
            sys.stdout.flush()  # here, where a fault of it can still be told
        return status
    except NotRunning as error:
        _complain(error)
        return EXIT_NOT_RUNNING
    except RouterError as error:
        _complain(error)
        return EXIT_ERROR
    except BrokenPipeError:
        # Whoever read the output has gone.
        _give_up_output()
        return EXIT_ERROR
    except OSError as error:
        if error.filename is None:  # a full disk under the output
            _give_up_output()
        _complain(RouterError(f"{error.filename or 'The output'}: {error.strerror or error}."))
        return EXIT_ERROR
    except KeyboardInterrupt:
        return 130


def _give_up_output() -> None:
    """Python must not complain at its end of what could not be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(error: RouterError) -> None:
    hint = f" ({error.hint.rstrip('.')})" if error.hint else ""
    print(f"lemon-tray: {plain(error.message)}{plain(hint)}", file=sys.stderr)


def parser(*, only_serve: bool = False) -> argparse.ArgumentParser:
    """The parser of every command, or of `serve` alone, which is to start quickly."""
    top = argparse.ArgumentParser(
        prog="lemon-tray", description="Run language models for all your apps on one endpoint."
    )
    top.add_argument("--version", action="version", version=f"Lemon Tray {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND")

    serve = commands.add_parser("serve", help="run the router without a tray icon, until a signal")
    serve.add_argument("--host", type=_setting("host"), help="address to listen on")
    serve.add_argument("--port", type=_setting("port"), help="port to listen on; 0: any free one")
    serve.add_argument(
        "--models-dir",
        dest="models_dirs",
        metavar="DIR",
        type=_folder,
        action="append",
        default=[],
        help="a further folder with GGUF files (repeatable)",
    )
    serve.add_argument(
        "--simulate",
        metavar="SIZES",
        type=_sizes,
        help="pretend to have GPUs with this much memory, such as 24GiB,24GiB; models run on the processor",
    )
    serve.add_argument("--demo", action="store_true", help="fetch a small demo model first, if there is none")
    serve.add_argument("--log-json", action="store_true", help="write the log as one JSON object a line")
    serve.set_defaults(command=_serve)
    if not only_serve:
        _add_others(commands)
    return top


def _add_others(commands: Any) -> None:
    from router.cli import engine, importing, keys, models, policy, provider, pull, stop

    status = commands.add_parser("status", help="show what is loaded, and where")
    how = status.add_mutually_exclusive_group()
    how.add_argument("--watch", action="store_true", help="go on showing it, until interrupted")
    how.add_argument("--json", action="store_true", help="as JSON")
    status.set_defaults(command=_status)

    config = commands.add_parser("config", help="read or change settings")
    actions = config.add_subparsers(title="actions", metavar="ACTION", required=True)
    get = actions.add_parser("get", help="show one setting, or all")
    get.add_argument("key", metavar="KEY", nargs="?")
    get.set_defaults(command=_config_get)
    change = actions.add_parser("set", help="change settings, all or none")
    change.add_argument("pairs", metavar="KEY=VALUE", nargs="+", type=_pair)
    change.set_defaults(command=_config_set)

    load = commands.add_parser("load", help="load a model and wait until it is ready")
    load.add_argument("model", metavar="MODEL")
    add_model_options(load)
    load.add_argument("--pin", action="store_true", help="keep it loaded when others need room")
    load.add_argument("--save", action="store_true", help="load it like this from now on")
    load.set_defaults(command=_load)

    unload = commands.add_parser("unload", help="unload a model, or all")
    unload.add_argument("model", metavar="MODEL", nargs="?")
    unload.add_argument("--force", action="store_true", help="cut answers that are under way")
    unload.add_argument("--no-wait", action="store_true", help="do not wait until it is gone")
    unload.set_defaults(command=_unload)

    planned = commands.add_parser(
        "plan", help="show what loading a model would take, and whether it would be admitted"
    )
    planned.add_argument("model", metavar="MODEL")
    add_model_options(planned)
    planned.add_argument("--json", action="store_true", help="as JSON")
    planned.set_defaults(command=_plan)

    stop.add_commands(commands)
    keys.add_commands(commands)
    importing.add_commands(commands)
    asking = (
        models.add_commands(commands),
        *pull.add_commands(commands),
        *engine.add_commands(commands),
        *policy.add_commands(commands),
    )
    asking = (*asking, *provider.add_commands(commands))
    for sub in (status, get, change, load, unload, planned, *asking):
        sub.add_argument("--endpoint", metavar="URL", help="the router to ask; by default the one that runs")


def _setting(key: str) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            return schema.parse(key, text)
        except BadRequest as fault:
            raise argparse.ArgumentTypeError(fault.message) from fault

    return parse


def _folder(text: str) -> Path:
    return Path(os.path.expanduser(text)).absolute()


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE; got {text!r}")
    return key.strip(), value


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return parse_sizes(text)
    except BadRequest as error:
        raise argparse.ArgumentTypeError(error.message.removeprefix("--simulate: ")) from None


def _serve(context: Context, arguments: argparse.Namespace) -> int:
    # The other commands need none of what this brings in.
    with uncollected():
        from router.cli.serve import serve

    given = {"host": arguments.host, "port": arguments.port, "log_json": arguments.log_json or None}
    return serve(
        context.paths,
        context.environ,
        overrides={key: value for key, value in given.items() if value is not None},
        models_dirs=tuple(arguments.models_dirs),
        simulate=arguments.simulate,
        demo=arguments.demo,
    )


def _status(context: Context, arguments: argparse.Namespace) -> int:
    client = context.client()
    if arguments.json:
        print(json.dumps(client.get("/v1/health"), indent=2))
        return EXIT_OK
    clear = CLEAR if arguments.watch and sys.stdout.isatty() else ""
    for snapshot in snapshots(client, timeout_s=None if arguments.watch else TIMEOUT_S):
        print(f"{clear}{render(snapshot)}", flush=True)
        if not arguments.watch:
            return EXIT_OK
    raise NotRunning(f"The connection to {client.url} ended.")


def _config_get(context: Context, arguments: argparse.Namespace) -> int:
    if arguments.key is not None:
        schema.info_of(arguments.key)
    if context.running:
        values = context.client().get("/internal/config")
    else:
        store = context.store()
        note(f"Lemon Tray is not running; read from {context.paths.config_file}")
        values = schema.as_dict(store.settings)
    if arguments.key is not None:
        print(schema.written(arguments.key, values[arguments.key]))
    else:
        for key, value in values.items():
            print(f"{key} = {_written(key, value)}")
    return EXIT_OK


def _config_set(context: Context, arguments: argparse.Namespace) -> int:
    changes = {key: schema.parse(key, text) for key, text in arguments.pairs}
    if context.running:
        context.client().post("/internal/set", changes)
    else:
        store = context.store()
        told = store.problems
        asyncio.run(_write(store, changes))
        for problem in store.problems:
            if problem not in told:
                note(problem)
        note(f"Lemon Tray is not running; written to {context.paths.config_file}")
    for key, value in changes.items():
        print(f"{key} = {schema.written(key, value)}")
    return EXIT_OK


async def _write(store: SettingsStore, changes: Mapping[str, Any]) -> None:
    await store.change(changes).written
    await store.close()


def _load(context: Context, arguments: argparse.Namespace) -> int:
    body = {"model_name": arguments.model, **given_options(arguments)}
    if arguments.pin:
        body["pinned"] = True
    if arguments.save:
        body["save_options"] = True
    context.client().post("/v1/load", body, timeout_s=None)
    print(f"{plain(arguments.model)} is loaded{', and its options are saved' if arguments.save else ''}")
    return EXIT_OK


def _plan(context: Context, arguments: argparse.Namespace) -> int:
    body = {"model": arguments.model, **given_options(arguments)}
    table = context.client().post("/v1/plan", body)
    print(json.dumps(table, indent=2) if arguments.json else render_plan(table))
    return EXIT_OK if table["verdict"] != "refused" else EXIT_ERROR


def _unload(context: Context, arguments: argparse.Namespace) -> int:
    body: dict[str, Any] = {"wait": not arguments.no_wait, "force": arguments.force}
    if arguments.model is not None:
        body["model_name"] = arguments.model
    context.client().post("/v1/unload", body, timeout_s=None)
    what = plain(arguments.model) if arguments.model is not None else "everything"
    print(f"{what} is being unloaded" if arguments.no_wait else f"{what} is unloaded")
    return EXIT_OK


def _written(key: str, value: Any) -> str:
    try:
        return schema.written(key, value)
    except BadRequest:  # a router of another version has other settings
        return json.dumps(value, ensure_ascii=False)
