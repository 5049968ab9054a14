"""Writes the pages that are made from the code: `python3 dev.py docs --write`.

What the endpoint takes is asked of the endpoint, as `/openapi.json`; commands are read from their parsers;
settings from their declaration. A test compares the pages with what would be written.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from lemon_tray.options import parser as tray_parser
from router.cli.main import parser as command_parser
from router.settings import docs as settings_docs
from tests.router.web.fakes import reply, site

DOCS: Final = Path(__file__).parents[1]
WRITTEN: Final = "<!-- Written by `python3 dev.py docs --write`. -->"


def pages() -> Mapping[str, str]:
    """Every page that is made from the code, by its file's name."""
    return {"settings.md": settings_docs.text(), "calls.md": calls_page(), "commands.md": commands_page()}


def write() -> list[str]:
    """Write the pages that differ; their names."""
    changed = []
    for name, text in pages().items():
        path = DOCS / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            changed.append(name)
    return changed


def check() -> None:
    """Compare only.

    Raises:
        SystemExit: pages are not as they would be written.
    """
    stale = [
        name
        for name, text in pages().items()
        if not (DOCS / name).exists() or (DOCS / name).read_text(encoding="utf-8") != text
    ]
    if stale:
        raise SystemExit(f"stale: {', '.join(stale)}; write them with: python3 dev.py docs --write")


# The endpoint


async def _description() -> Any:
    async with site(reply) as running:
        return (await running.ask("GET", "/openapi.json")).json()


def calls_page() -> str:
    """Every call, its body, answer and errors."""
    described = asyncio.run(_description())
    groups: dict[str, list[str]] = {}
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            part = "\n".join(_call(method.upper(), path, operation))
            groups.setdefault(operation["tags"][0], []).append(part)
    meanings = {
        name.removeprefix("Error"): found["description"]
        for name, found in described["components"]["responses"].items()
        if name.startswith("Error")  # Those of the other protocols mean the same.
    }
    parts = [
        "# Calls",
        WRITTEN,
        "Every call of the endpoint. `/openapi.json` of a running router says the same for programs, and "
        "[the endpoint](endpoint.md) explains how answers, waiting and errors work. Everything below `/v1` "
        "is also below `/api/v1`, `/v0` and `/api/v0`.",
    ]
    for group, found in groups.items():
        parts += [f"## {group}", *found]
    rows = [f"| {status} | {meaning} |" for status, meaning in sorted(meanings.items())]
    parts += ["## Errors", "\n".join(["| status | meaning |", "| --- | --- |", *rows])]
    return "\n\n".join(parts) + "\n"


def _call(method: str, path: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f"### `{method} {path}`\n"
    yield f"{operation['summary']}.\n"
    body = operation.get("requestBody")
    if body is not None:
        schema = next(iter(body["content"].values()))["schema"]
        needed = set(schema.get("required", ()))
        members = schema.get("properties", {})
        if members:
            yield "| member | value | |"
            yield "| --- | --- | --- |"
            for name, member in sorted(members.items(), key=lambda pair: pair[0] not in needed):
                note = member.get("description", "") if isinstance(member, dict) else ""
                words = " ".join(filter(None, ("Needed." if name in needed else "", note)))
                yield f"| `{name}` | {_cell(_kind(member))} | {_cell(words)} |"
            yield ""
        if schema.get("anyOf"):
            some = [f"`{'`, `'.join(one.get('required', ()))}`" for one in schema["anyOf"]]
            yield f"One of {' or '.join(some)} is needed.\n"
        if not body["required"]:
            yield "The body may be left out.\n"
    good = [status for status in operation["responses"] if status < "400"]
    bad = [status for status in operation["responses"] if status >= "400"]
    kinds = sorted({kind for status in good for kind in operation["responses"][status].get("content", {})})
    answers = f"Answers {', '.join(good)} as `{'`, `'.join(kinds)}`" if good else "Always refused"
    yield f"{answers}; errors {', '.join(bad)}."


def _kind(member: Any) -> str:
    """What a member takes, in a few words."""
    if not isinstance(member, dict) or not member:
        return "any"
    if "const" in member:
        return f"`{json.dumps(member['const'])}`"
    if "enum" in member:
        return " or ".join(f"`{json.dumps(value)}`" for value in member["enum"])
    for alternatives in ("oneOf", "anyOf"):
        if alternatives in member:
            return " or ".join(_kind(one) for one in member[alternatives])
    kind = member.get("type", "any")
    kinds = [kind] if isinstance(kind, str) else kind
    return " or ".join("a list" if one == "array" else str(one) for one in kinds)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


# Commands


def commands_page() -> str:
    """Every command and its options."""
    parts = [
        "# Commands",
        WRITTEN,
        "`lemon-tray` without a command starts the tray app, and `serve` is the router without it. The "
        "others ask the router that runs. `config`, `delete`, `engine`, `hub`, `import`, `key`, `provider` "
        "and `pull` work without one, too: then they say that they do it themselves. Answers go to standard "
        "output, all else to standard error. Exit status: 0 done, 1 an error, 2 wrong usage, 3 the router "
        "does not run.",
        *_command("lemon-tray", tray_parser(), "the tray app"),
    ]
    for name, parser, summary in _commands(command_parser(), "lemon-tray"):
        parts += _command(name, parser, summary)
    return "\n\n".join(parts) + "\n"


def _commands(
    parser: argparse.ArgumentParser, prefix: str
) -> Iterator[tuple[str, argparse.ArgumentParser, str]]:
    """All commands below a parser that do something, with their summaries."""
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            continue
        summaries = {choice.dest: choice.help or "" for choice in action._choices_actions}
        for name, found in action.choices.items():
            inner = list(_commands(found, f"{prefix} {name}"))
            if inner:
                yield from inner
            else:
                yield f"{prefix} {name}", found, summaries.get(name, "")


def _command(name: str, parser: argparse.ArgumentParser, summary: str) -> Iterator[str]:
    """A section. argparse's own usage line differs between versions of Python."""
    actions = [a for a in parser._actions if not isinstance(a, argparse._HelpAction)]
    words = [name, *filter(None, (_usage(action) for action in actions))]
    yield f"## `{name}`"
    yield f"{summary[:1].upper()}{summary[1:]}."
    yield "```text\n" + _folded(words) + "\n```"
    rows = [
        f"| `{_title(action)}` | {_cell(_help(action))} |"
        for action in actions
        if action.help and action.help != argparse.SUPPRESS
    ]
    if rows:
        yield "\n".join(["| argument | meaning |", "| --- | --- |", *rows])
    if parser.epilog and name != "lemon-tray":
        yield re.sub(r"\s+", " ", parser.epilog).strip()


def _folded(words: list[str], width: int = 100) -> str:
    lines = [words[0]]
    for word in words[1:]:
        if len(lines[-1]) + 1 + len(word) > width:
            lines.append("    " + word)
        else:
            lines[-1] += f" {word}"
    return "\n".join(lines)


def _value(action: argparse.Action) -> str:
    if isinstance(action.metavar, tuple):
        return " ".join(action.metavar)
    if action.metavar:
        return str(action.metavar)
    if action.choices is not None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return action.dest.upper()


def _usage(action: argparse.Action) -> str:
    """The argument as it stands in a command line."""
    value = _value(action)
    if action.option_strings:
        told = action.option_strings[0] if action.nargs == 0 else f"{action.option_strings[0]} {value}"
        return told if action.required else f"[{told}]"
    match action.nargs:
        case "?":
            return f"[{value}]"
        case "*":
            return f"[{value} ...]"
        case "+":
            return f"{value} [{value} ...]"
    return value


def _title(action: argparse.Action) -> str:
    if not action.option_strings:
        return _value(action)
    names = ", ".join(action.option_strings)
    return names if action.nargs == 0 else f"{names} {_value(action)}"


def _help(action: argparse.Action) -> str:
    text = (action.help or "").replace("%%", "%")
    return re.sub(r"\s+", " ", text).strip()
