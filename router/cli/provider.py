"""The commands about remote providers: adding one, listing them, testing one, removing one."""

from __future__ import annotations

import argparse
import asyncio
import getpass
import json
import logging
import os
import sys
import urllib.parse
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import msgspec

from router.catalog.kinds import TYPES
from router.cli.client import Client
from router.cli.context import Context, note
from router.cli.status import plain
from router.errors import RouterError
from router.providers.store import FILE_NAME, IN_FILE, IN_KEYRING, ProviderFile, make_provider
from router.settings.schema import PROVIDER_KEY_VARIABLE as KEY_VARIABLE
from router.snapshot import ProviderView

T = TypeVar("T")

#: A provider that does not answer is found so within less, and a locked keyring asks its user.
_ASK_S: Final = 90.0
#: A model that a provider has to load first takes a while.
_ANSWER_S: Final = 600.0
_LOCAL: Final = frozenset({"127.0.0.1", "::1", "localhost"})


def add_commands(commands: Any) -> list[argparse.ArgumentParser]:
    """Add `provider` with its actions to the commands; returns the actions' parsers."""
    provider = commands.add_parser("provider", help="add, list, test or remove remote providers")
    actions = provider.add_subparsers(title="actions", metavar="ACTION", required=True)

    add = actions.add_parser(
        "add",
        help="use the models of an OpenAI-compatible endpoint, or change how",
        description="Use the models of an OpenAI-compatible endpoint as NAME/MODEL. The key is asked for, or "
        f"read from the variable {KEY_VARIABLE}, or from standard input; it is never an argument, as those "
        "can be seen by others.",
    )
    add.add_argument("name", metavar="NAME", help="what its models' names begin with, such as cloud")
    add.add_argument("url", metavar="URL", help="its base URL, such as https://api.example.com/v1")
    key = add.add_mutually_exclusive_group()
    key.add_argument("--key-stdin", action="store_true", help="read the key from standard input")
    key.add_argument(
        "--key-variable", metavar="VARIABLE", help="let the router read the key from this variable"
    )
    key.add_argument("--no-key", action="store_true", help="it wants no key")
    add.add_argument(
        "--model", metavar="MODEL", action="append", default=[], help="only this model of it (repeatable)"
    )
    add.add_argument(
        "--type",
        metavar="MODEL=TYPE",
        action="append",
        type=_typed,
        default=[],
        help=f"what a model is, if that is guessed wrongly: {', '.join(TYPES)} (repeatable)",
    )
    add.add_argument(
        "--allow-http",
        action="store_true",
        help="send key and prompts unencrypted to a host that is not private",
    )
    add.add_argument("--proxy", action="store_true", help="use the proxy that the environment names")
    add.add_argument("--ca-file", metavar="FILE", help="certificates to trust, in place of the system's")
    add.add_argument(
        "--idle-timeout",
        metavar="SECONDS",
        type=float,
        help="give an answer up after so long without a byte of it (600)",
    )
    add.add_argument("--json", action="store_true", help="the provider as JSON")
    add.set_defaults(command=_add)

    listed = actions.add_parser("list", help="show the providers, and whether they answer")
    listed.add_argument("--models", action="store_true", help="with the names of their models")
    listed.add_argument("--json", action="store_true", help="as JSON")
    listed.set_defaults(command=_list)

    test = actions.add_parser("test", help="look whether a provider answers and takes its key")
    test.add_argument("name", metavar="NAME")
    test.add_argument("--model", metavar="MODEL", help="also have this model of it answer with one token")
    test.add_argument("--json", action="store_true", help="as JSON")
    test.set_defaults(command=_test)

    remove = actions.add_parser("remove", help="forget a provider and its key")
    remove.add_argument("name", metavar="NAME")
    remove.set_defaults(command=_remove)
    return [add, listed, test, remove]


def _typed(text: str) -> tuple[str, str]:
    model, equals, kind = text.rpartition("=")
    if not equals or not model or kind not in TYPES:
        raise argparse.ArgumentTypeError(f"expected MODEL=TYPE, the type one of {', '.join(TYPES)}")
    return model, kind


def _add(context: Context, arguments: argparse.Namespace) -> int:
    given: dict[str, Any] = {"name": arguments.name, "url": arguments.url}
    if arguments.key_variable:
        given["variable"] = arguments.key_variable
    if arguments.model:
        given["models"] = arguments.model
    if arguments.type:
        given["types"] = dict(arguments.type)
    if arguments.allow_http:
        given["allow_http"] = True
    if arguments.proxy:
        given["proxy"] = True
    if arguments.ca_file:
        given["ca_file"] = os.path.abspath(os.path.expanduser(arguments.ca_file))
    if arguments.idle_timeout is not None:
        given["idle_s"] = arguments.idle_timeout
    make_provider(given)  # What is wrong is told before a key is asked for.
    key = _key(context, arguments)
    if context.running:
        client = context.client()
        body = given if key is None else {**given, "key": key}
        if key:
            _check_way(client)
        answer = client.post("/internal/providers/add", body, timeout_s=_ASK_S)
        view = _view(client, answer["provider"])
    else:
        view = _alone(context, lambda providers: providers.add(given, key))
    if arguments.json:
        _print_json(view)
        return 0
    places = {IN_KEYRING: "the system's keyring", IN_FILE: f"{_path(context)}, which only you can read"}
    if view.key in places:
        note(f"Its key is kept in {places[view.key]}.")
    _print(view)
    if view.state == "ready" and view.models:
        note(f"Its models are named {view.name}/MODEL; lemon-tray provider list --models shows them.")
    return 0


def _key(context: Context, arguments: argparse.Namespace) -> str | None:
    """The key that was given; "" for none, None if nothing was said of it."""
    if arguments.no_key:
        return ""
    if arguments.key_variable:
        return None
    if arguments.key_stdin:
        text = sys.stdin.readline().strip()
        if not text:
            raise RouterError("Standard input has no key.")
        return text
    if found := context.environ.get(KEY_VARIABLE, "").strip():
        return found
    if sys.stdin is not None and sys.stdin.isatty():
        # Empty: a new provider then has none, a known one keeps its.
        return getpass.getpass(f"API key of {plain(arguments.name)} (empty for none): ").strip() or None
    return None


def _check_way(client: Client) -> None:
    """Raises RouterError: the key would go over a network unencrypted."""
    parts = urllib.parse.urlsplit(client.url)
    if parts.scheme != "https" and parts.hostname not in _LOCAL:
        raise RouterError(
            f"The key would go to {client.url} unencrypted.",
            hint="Add the provider on that machine, or let the router there read a variable (--key-variable)",
        )


def _list(context: Context, arguments: argparse.Namespace) -> int:
    models: dict[str, list[str]] = {}
    if context.running:
        client = context.client()
        answer = client.get("/internal/providers")
        views = tuple(_view(client, each) for each in answer["providers"])
        if arguments.models:
            for entry in client.get("/v1/models")["data"]:
                if "provider" in entry:
                    models.setdefault(entry["provider"], []).append(entry["id"])
    else:

        async def look(providers: Any) -> tuple[ProviderView, ...]:
            for model in providers.models.values():
                models.setdefault(model.provider, []).append(model.name)
            return tuple(providers.views)

        views = _alone(context, look)
    if arguments.json:
        shown = [msgspec.to_builtins(view) for view in views]
        if arguments.models:
            shown = [{**each, "names": models.get(each["name"], [])} for each in shown]
        print(json.dumps({"providers": shown}, indent=2))
        return 0
    if not views:
        note("there are no providers; lemon-tray provider add NAME URL adds one")
    for view in views:
        _print(view)
        if arguments.models:
            for name in models.get(view.name, []):
                print(plain(f"  {name}"))
    return 0


def _test(context: Context, arguments: argparse.Namespace) -> int:
    if context.running:
        client = context.client()
        answer = client.post("/internal/providers/test", {"name": arguments.name}, timeout_s=_ASK_S)
        view = _view(client, answer["provider"])
    else:
        view = _alone(context, lambda providers: providers.test(arguments.name))
    if arguments.json:
        _print_json(view)
    else:
        _print(view)
    if view.state != "ready":
        return 1
    if arguments.model is not None:
        model = arguments.model.removeprefix(f"{arguments.name}/")
        body = {
            "model": f"{arguments.name}/{model}",
            "messages": [{"role": "user", "content": "Hello"}],
            "max_tokens": 1,
        }
        context.client().post("/v1/chat/completions", body, timeout_s=_ANSWER_S)
        if not arguments.json:
            print(plain(f"{body['model']} answers"))
    return 0


def _remove(context: Context, arguments: argparse.Namespace) -> int:
    if context.running:
        context.client().post("/internal/providers/remove", {"name": arguments.name}, timeout_s=_ASK_S)
    else:
        _alone(context, lambda providers: providers.remove(arguments.name))
    print(f"The provider {plain(arguments.name)} and its key are forgotten")
    return 0


def _print(view: ProviderView) -> None:
    count = f"{view.models} model{'' if view.models == 1 else 's'}"
    if view.more:
        count += f" ({view.more} left out)"
    key = {IN_KEYRING: "key in the keyring", IN_FILE: "key in a file", "variable": "key in a variable"}
    print(plain(f"{view.name}: {view.state}, {count}, {view.url}, {key.get(view.key, 'no key')}"))
    if view.problem:
        print(plain(f"  {view.problem}"))


def _print_json(view: ProviderView) -> None:
    print(json.dumps(msgspec.to_builtins(view), indent=2))


def _view(client: Client, value: Any) -> ProviderView:
    try:
        return msgspec.convert(value, ProviderView)
    except msgspec.ValidationError as error:
        raise RouterError(f"{client.url} speaks another version: {error}.") from error


def _path(context: Context) -> str:
    return os.fspath(context.paths.config_file.with_name(FILE_NAME))


def _alone(context: Context, work: Callable[[Any], Awaitable[T]]) -> T:
    """Do it without a router, on the file."""
    # Only here: most commands need none of what this brings in.
    from router.providers.listing import ListingCache
    from router.providers.providers import Providers

    note(f"Lemon Tray is not running; working on {_path(context)}")
    # What the router would log, the command says itself.
    logging.getLogger("router").addHandler(logging.NullHandler())

    async def run() -> T:
        file = ProviderFile(context.paths.config_file.with_name(FILE_NAME), environ=context.environ)
        providers = Providers(file, ListingCache(context.paths.cache_dir / "providers"))
        await providers.start()
        try:
            return await work(providers)
        finally:
            await providers.close()

    return asyncio.run(run())
