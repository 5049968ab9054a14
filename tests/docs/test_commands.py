"""Every command of the documentation is run here, or it stands there or here why it is not."""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

import dev
from lemon_tray.options import parse as parse_tray
from router.cli.main import main as command_line
from router.cli.main import parser as command_parser
from router.policy.parse import parse_policy
from tests.docs.blocks import ROOT, SHELL, Command, blocks, commands, pages
from tests.service.live import policy
from tests.support import gguf

MODEL: Final = "SmolLM2-135M-Instruct.Q4_1"
ENDPOINT: Final = "http://127.0.0.1:13305"

#: Commands that cannot be run in a test, by how they begin, and why.
NOT_RUN: Final = {
    "sudo ": "changes the system",
    "systemctl ": "changes the user's services",
    "lemon-tray engine get": "fetches from GitHub; tests/router/engines/test_builds.py does, from its own",
    "lemon-tray engine list --offers": "asks GitHub; tests/router/engines/test_releases.py does, its own",
    "lemon-tray engine remove": "needs a build that was fetched; tests/service/test_engines.py has one",
    "lemon-tray pull": "fetches from the network; tests/router/cli has a server of its own",
    "lemon-tray provider add": "asks a provider in the network; tests/router/cli has one of its own",
    "lemon-tray provider test": "asks a provider in the network; tests/router/cli has one of its own",
    "lemon-tray provider remove": "needs one that was added",
    "lemon-tray key show": "prints a key that this page has removed or not made",
    "lemon-tray": "starts the tray app; tests/e2e does",
}
#: Those that begin so, but are run.
RUN_ALL_THE_SAME: Final = re.compile(
    r"lemon-tray (?!engine get|engine list --offers|engine remove|pull|key show|provider (?!list))"
)
#: What stands in the documentation for something of the user's.
STANDS_FOR: Final = {
    "MODEL": MODEL,
    "FILE": "desk.json",
    "DIR": "models",
    "PATH": "lemonade",
    "KEY": "ctx_size",
    "KEY=VALUE": "ctx_size=4096",
    "ID": "embedded",
}
#: Options whose values stand for something.
VALUES: Final = {"N": "2048", "NAME": "cpu"}


def all_commands() -> list[Command]:
    return [
        command
        for page in pages()
        for block in blocks(page)
        if block.info in SHELL
        for command in commands(block)
    ]


class Here:
    """A running router in folders of its own, and the ways in which commands are run."""

    def __init__(self, home: Path, url: str) -> None:
        self.home = home
        self.url = url

    def run(self, command: Command) -> str:
        """Run it; how it was, in a word.

        Raises:
            AssertionError: it did not do what the documentation says.
        """
        text = command.text
        if command.reason:
            return "not run"
        ways: list[tuple[str, Callable[[str], str]]] = [
            (r"python3 dev\.py ", self._dev),
            (r"lemon-tray serve", self._serve),
            (r"curl ", self._curl),
            (r"(export )?[A-Z_]+=\S+$", self._variable),
        ]
        for pattern, way in ways:
            if re.match(pattern, text):
                return way(text)
        if RUN_ALL_THE_SAME.match(text):
            return self._command(text)
        reasons = [reason for start, reason in NOT_RUN.items() if f"{text} ".startswith(f"{start.rstrip()} ")]
        assert reasons, (
            f"{command.place}: {text!r} is no command that is known here. Say why it is not run with a "
            "comment before its block, <!-- not run: REASON -->, or run it in tests/docs/test_commands.py."
        )
        if text.startswith("lemon-tray "):
            command_parser().parse_args(filled(text)[1:])
        return "not run"

    def _dev(self, text: str) -> str:
        """dev.py sets up a checkout, which tests/test_dev.py tries: here its arguments only."""
        name, *rest = filled(text)[2:]
        assert name in dev.COMMANDS, f"dev.py has no command {name}"
        if name != "run":
            for word in rest:
                assert not word.startswith("--") or word in dev.USAGE or word == "--dry-run", word
        elif rest[:1] == ["serve"]:
            command_parser().parse_args(rest)
        else:
            parse_tray(rest)
        return "arguments"

    def _serve(self, text: str) -> str:
        command_parser().parse_args(filled(text)[1:])
        return "arguments"

    def _curl(self, text: str) -> str:
        shown = text.replace(ENDPOINT, self.url)
        assert shown != text, f"it asks somebody else: {text}"
        if shutil.which("curl") is None:  # where dev.py may not install it
            return "not run"
        done = subprocess.run(
            ["/bin/sh", "-c", f"exec {shown} --silent --show-error --fail-with-body --max-time 60"],
            cwd=self.home,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return "asked"

    def _variable(self, text: str) -> str:
        """An address that is put into the environment answers."""
        value = text.partition("=")[2]
        if value.startswith(ENDPOINT):
            url = value.replace(ENDPOINT, self.url)
            url += "/models" if url.endswith("/v1") else "/v1/models"
            with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310  # the router's own address
                assert answer.status == 200
        return "environment"

    def _command(self, text: str) -> str:
        words = filled(text)[1:]
        target = None
        if ">" in words:
            words, target = words[: words.index(">")], words[-1]
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            if words[:2] == ["key", "add"]:  # another page may have made it
                command_line(["key", "remove", words[2]])
                err.seek(err.truncate(0))
            status = command_line(words)
        assert status == 0, f"{text}: {err.getvalue() or out.getvalue()}"
        for option in re.findall(r"--[a-z-]+", text):
            check_option(words, option)
        if target is not None:
            (self.home / target).write_text(out.getvalue())
        return "run"

    def reset(self) -> None:
        """Settings as at the start, so that no page depends on another."""
        with urllib.request.urlopen(f"{self.url}/internal/config/defaults", timeout=30) as answer:  # noqa: S310  # as above
            defaults: dict[str, Any] = json.load(answer)
        for fixed in ("port", "host", "model_sources"):
            defaults.pop(fixed)
        asked = urllib.request.Request(  # noqa: S310  # as above
            f"{self.url}/internal/set", json.dumps(defaults).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(asked, timeout=30) as answer:  # noqa: S310  # as above
            assert answer.status == 200


def filled(text: str) -> list[str]:
    """The words of a command with something in place of what stands for it; what is in brackets left out."""
    words = shlex.split(re.sub(r" \[[^\]\"=]*\]", "", text))
    made: list[str] = []
    for word in words:
        stands = VALUES if made and made[-1].startswith("--") and word in VALUES else STANDS_FOR
        if word != "...":
            made.append(stands.get(word, word))
    return made


def choices_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The commands below a parser, by name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


COMMANDS: Final = choices_of(command_parser())


def is_group(words: Sequence[str]) -> bool:
    """Whether these words name a group of actions, such as `policy`, and no action of it."""
    return len(words) == 1 and bool(choices_of(COMMANDS[words[0]]))


def check_option(words: Sequence[str], option: str) -> None:
    """The command knows that option, whether it was used or stands in brackets."""
    found = command_parser()
    for word in words:
        if word not in choices_of(found):
            break
        found = choices_of(found)[word]
    assert option in found._option_string_actions, f"{' '.join(words)} has no {option}"


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Here]:
    home = tmp_path_factory.mktemp("docs")
    (home / "models").mkdir()
    gguf.write_model(home / "models" / f"{MODEL}.gguf", says=["Lime", ", lemon", ", citron."], context=8192)
    (home / "desk.json").write_text(json.dumps(policy("user.Desk", MODEL)))
    policies = home / "config" / "lemon-tray" / "policies"
    policies.mkdir(parents=True)
    (policies.parent / "config.json").write_text(json.dumps({"port": 0}))
    (policies / "assistant.json").write_text(json.dumps(policy("assistant", MODEL)))
    for place in (home / "lemonade", home / ".cache" / "lemonade"):
        place.mkdir(parents=True)
        (place / "config.json").write_text(json.dumps({"ctx_size": 4096}))
    (home / "run").mkdir(mode=0o700)
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("LEMON_TRAY_", "LEMONADE_"))]:
            patch.delenv(name)
        for kind in ("config", "data", "state", "cache"):
            patch.setenv(f"XDG_{kind.upper()}_HOME", str(home / kind))
        patch.setenv("HOME", str(home))
        patch.setenv("XDG_RUNTIME_DIR", str(home / "run"))
        patch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")
        patch.chdir(home)
        command = [sys.executable, "-P", "-m", "lemon_tray", "serve", "--models-dir", "models"]
        with (home / "log").open("w") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert process.stdout is not None
            found = re.search(r"http://\S+", process.stdout.readline())
            assert found, (home / "log").read_text()
            yield Here(home, found[0].removesuffix("/v1"))
        finally:
            process.terminate()
            process.communicate(timeout=30)


def test_every_command_is_run_or_it_is_known_why_not(here: Here) -> None:
    done: dict[tuple[str, str], str] = {}
    faults: list[str] = []
    page = ""
    for command in all_commands():
        if command.place.partition(":")[0] != page:
            page = command.place.partition(":")[0]
            here.reset()
        try:
            done[command.place, command.text] = here.run(command)
        except (AssertionError, SystemExit) as fault:
            faults.append(f"{command.place}: {command.text}\n{fault}")
    assert not faults, "\n\n".join(faults)
    ways = set(done.values())
    asked = {"asked"} if shutil.which("curl") else set()
    assert ways == {"run", "not run", "arguments", "environment"} | asked
    assert sum(way == "run" for way in done.values()) > 20


def test_commands_within_sentences_are_commands() -> None:
    """Those are not run, but read: command, actions, options and their values."""
    faults, seen = [], 0
    for page in pages():
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for found in re.findall(r"`(lemon-tray [^`]+)`", text):
            seen += 1
            words = filled(" ".join(found.split()))[1:]
            if words[0] not in COMMANDS or is_group(words):
                faults += [] if words[0] in (*COMMANDS, "run") else [f"{page.name}: {found}"]
                continue
            try:
                with contextlib.redirect_stderr(io.StringIO()) as told:
                    command_parser().parse_args(words)
            except SystemExit:
                last = told.getvalue().strip().splitlines()[-1]
                # A command may be named without what it needs.
                if "the following arguments are required" not in last:
                    faults.append(f"{page.name}: {found}: {last}")
    assert not faults, "\n".join(faults)
    assert seen > 10


def test_python_snippets_run(here: Here, capsys: pytest.CaptureFixture[str]) -> None:
    count = 0
    for block in (b for page in pages() for b in blocks(page) if b.info == "python"):
        modules = {
            name.name if isinstance(node, ast.Import) else str(node.module)
            for node in ast.walk(ast.parse(block.text))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in node.names
        }
        if block.reason:
            continue
        assert modules == {"openai"}, f"{block.place} needs {modules}: say <!-- not run: ... --> before it"
        text = block.text.replace(ENDPOINT, here.url)
        exec(compile(text, block.place, "exec"), {})  # noqa: S102  # our own documentation
        count += 1
    assert count >= 2
    assert MODEL in capsys.readouterr().out


def test_policies_in_the_documentation_are_policies() -> None:
    found = 0
    for block in (b for page in pages() for b in blocks(page) if b.info == "json"):
        with contextlib.suppress(json.JSONDecodeError):
            value = json.loads(block.text)
            if isinstance(value, dict) and value.get("recipe") == "collection.router":
                parse_policy(value)
                found += 1
    assert found >= 5


needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("```\nlemon-tray status --no-such-option\n```\n", "no-such-option"),
        ("```\nlemon-tray no-such-command\n```\n", "no-such-command"),
        ("```\nrm -rf build\n```\n", "no command that is known"),
        ("```\npython3 dev.py fly\n```\n", "no command fly"),
        pytest.param("```\ncurl http://127.0.0.1:13305/v1/nothing\n```\n", "", marks=needs_curl),
        ("```\ncurl https://example.org\n```\n", "somebody else"),
        ("```\nlemon-tray load no-such-model\n```\n", "no-such-model"),
    ],
)
def test_what_does_not_work_is_told(text: str, told: str, here: Here, tmp_path: Path) -> None:
    (block,) = blocks(tmp_path / "page.md", text)
    (command,) = commands(block)
    err = io.StringIO()
    with pytest.raises((AssertionError, SystemExit)) as fault, contextlib.redirect_stderr(err):
        here.run(command)
    assert told in str(fault.value) + err.getvalue()


def test_blocks_and_commands_are_found(tmp_path: Path) -> None:
    text = (
        "<!-- not run: there is none -->\n```sh\na\n# a comment\nb 'c\nd' # why\n```\n\n```json\n{}\n```\n"
        "```\nlemon-tray status   # shows it\n```\n"
    )
    first, second, third = blocks(tmp_path / "page.md", text)
    assert (first.reason, first.info, second.info, third.reason) == ("there is none", "sh", "json", "")
    assert [c.text for c in commands(first)] == ["a", "b 'c\nd'"]
    assert [(c.place, c.text) for c in commands(third)] == [("page.md:13", "lemon-tray status")]
    assert (ROOT / "README.md") in pages()
