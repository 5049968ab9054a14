"""The commands about routing policies: adding, showing, trying out, switching, removing."""

from __future__ import annotations

import argparse
import json
import sys
import urllib.parse
from pathlib import Path
from typing import Any, Final

from router.cli.context import Context, note
from router.cli.status import plain
from router.errors import ConfigError, RouterError
from router.policy.evaluate import decide
from router.policy.parse import MAX_SIZE, decode, parse_policy
from router.policy.request import RequestView

#: A model that a policy asks may have to be loaded first.
_ASK_S: Final = 300.0


def add_commands(commands: Any) -> list[argparse.ArgumentParser]:
    """Add `policy` with its actions to the commands; returns the actions' parsers."""
    policy = commands.add_parser("policy", help="add, list, try out, switch or remove routing policies")
    actions = policy.add_subparsers(title="actions", metavar="ACTION", required=True)

    add = actions.add_parser("add", help="register a policy, or replace the one of its name")
    add.add_argument("file", metavar="FILE", help="a policy document; - reads standard input")
    add.set_defaults(command=_add)

    listed = actions.add_parser("list", help="show the registered policies")
    listed.add_argument("--json", action="store_true", help="as JSON")
    listed.set_defaults(command=_list)

    show = actions.add_parser("show", help="print a policy's document")
    show.add_argument("name", metavar="NAME")
    show.set_defaults(command=_show)

    test = actions.add_parser("test", help="tell what a policy decides; nothing is registered or answered")
    test.add_argument("file", metavar="FILE", help="a policy document, or the name of a registered policy")
    test.add_argument("--prompt", metavar="TEXT", default="", help="the prompt; - reads standard input")
    test.add_argument("--tools", action="store_true", help="the request brings tools")
    test.add_argument("--images", action="store_true", help="the request brings images")
    test.add_argument(
        "--metadata",
        metavar="KEY=VALUE",
        type=_pair,
        action="append",
        default=[],
        help="metadata of the request (repeatable)",
    )
    test.add_argument("--json", action="store_true", help="the decision as JSON")
    test.set_defaults(command=_test)

    made = [add, listed, show, test]
    for name, help_text, enabled in (
        ("enable", "let a policy answer to its name again", True),
        ("disable", "switch a policy off without removing it", False),
    ):
        switch = actions.add_parser(name, help=help_text)
        switch.add_argument("name", metavar="NAME")
        switch.set_defaults(command=_switch, enabled=enabled)
        made.append(switch)
    remove = actions.add_parser("remove", help="remove a policy and its file")
    remove.add_argument("name", metavar="NAME")
    remove.set_defaults(command=_remove)
    return [*made, remove]


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE; got {text!r}")
    return key, value


def _add(context: Context, arguments: argparse.Namespace) -> int:
    document = _document(arguments.file)
    name = parse_policy(document).name
    context.client().post("/v1/pull", document)
    print(f"{plain(name)} is registered")
    return 0


def _list(context: Context, arguments: argparse.Namespace) -> int:
    policies = context.client().get("/internal/policies")["policies"]
    if arguments.json:
        print(_json(policies))
        return 0
    if not policies:
        note("there are no policies; lemon-tray policy add FILE registers one")
    for each in policies:
        missing = f"; missing: {', '.join(each['unresolved'])}" if each["unresolved"] else ""
        state = "" if each["enabled"] else " (off)"
        problem = f"; {each['problem']}" if each["problem"] else ""
        print(plain(f"{each['name']}{state}: {', '.join(each['candidates'])}{missing}{problem}"))
    return 0


def _show(context: Context, arguments: argparse.Namespace) -> int:
    document = context.client().get(_path(arguments.name))
    print(_json(document))
    return 0


def _test(context: Context, arguments: argparse.Namespace) -> int:
    file = Path(arguments.file)
    if file.is_file() or arguments.file == "-":
        document = _document(arguments.file)
    else:
        document = context.client().get(_path(arguments.file))
        document.pop("enabled", None)
    policy = parse_policy(document, named=False)
    prompt = sys.stdin.read() if arguments.prompt == "-" else arguments.prompt
    metadata = dict(arguments.metadata)
    if policy.classifiers:
        # Models decide here: the router has them.
        asked = {
            "policy": document,
            "prompt": prompt,
            "has_tools": arguments.tools,
            "has_images": arguments.images,
            "metadata": metadata,
        }
        decision = context.client().post("/v1/routing/validate", asked, timeout_s=_ASK_S)["decision"]
    else:
        view = RequestView(prompt, arguments.tools, arguments.images, metadata)
        decision = decide(policy, view).document(trace=True)
    print(_json(decision) if arguments.json else _told(decision))
    return 0


def _told(decision: dict[str, Any]) -> str:
    """A decision for people: who, why, and each condition that was looked at."""
    why = "the default, as no rule matched"
    if not decision["default_used"]:
        why = f"rule {decision['matched_rule']}"
    lines = [f"{decision['route_to']} ({why})"]
    for step in decision["trace"]:
        parts = [f"  {'yes' if step['result'] else 'no ':3} {step['condition']}"]
        if "label" in step:
            parts.append(f"label {step['label']}")
        if "score" in step:
            parts.append(f"score {step['score']:.3f}")
        if "rationale" in step:
            parts.append(step["rationale"])
        if "error" in step:
            parts.append(f"failed: {step['error']}")
        lines.append(", ".join(parts))
    if decision["outputs"]:
        lines.append(f"outputs: {json.dumps(decision['outputs'], ensure_ascii=False)}")
    return "\n".join(map(plain, lines))


def _json(value: Any) -> str:
    """JSON that can be read, and that cannot steer a terminal either."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def _switch(context: Context, arguments: argparse.Namespace) -> int:
    context.client().post(_path(arguments.name), {"enabled": arguments.enabled})
    print(f"{plain(arguments.name)} is {'on' if arguments.enabled else 'off'}")
    return 0


def _remove(context: Context, arguments: argparse.Namespace) -> int:
    context.client().post("/v1/delete", {"model_name": arguments.name})
    print(f"{plain(arguments.name)} is removed")
    return 0


def _path(name: str) -> str:
    return f"/internal/policies/{urllib.parse.quote(name, safe='')}"


def _document(source: str) -> dict[str, Any]:
    """The document in a file.

    Raises:
        RouterError: it cannot be read, or is none.
    """
    try:
        if source == "-":
            data = sys.stdin.buffer.read(MAX_SIZE + 1)
        else:
            with open(source, "rb") as file:
                data = file.read(MAX_SIZE + 1)
    except OSError as error:
        raise ConfigError(f"{source} cannot be read: {error.strerror or error}.") from error
    value = decode(data)
    if not isinstance(value, dict):
        raise RouterError(f"{source} is no policy: $: expected an object.")
    return value
