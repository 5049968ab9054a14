"""The fenced blocks of the documentation, and the commands in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

ROOT: Final = Path(__file__).parents[2]

#: What a fence may say of a block of commands. One that says nothing holds commands, too.
SHELL: Final = frozenset({"", "sh", "bash", "console"})

_BLOCK: Final = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+?) -->\n\s*?)?"
    r"^(?P<fence>```+)(?P<info>[^\n`]*)\n(?P<text>.*?)^(?P=fence)\s*$",
    re.MULTILINE | re.DOTALL,
)


class Block(Struct, frozen=True):
    """A fenced block. `reason` is why it is not run, from a comment before it: `<!-- not run: ... -->`."""

    page: str
    line: int
    info: str
    text: str
    reason: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


class Command(Struct, frozen=True):
    """One command of a block, its continuation lines with it, without a comment at its end."""

    place: str
    text: str
    reason: str


def pages() -> list[Path]:
    """README, CONTRIBUTING, and all pages of docs/."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(path: Path, text: str | None = None) -> Iterator[Block]:
    """All fenced blocks of a page."""
    name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
    text = path.read_text(encoding="utf-8") if text is None else text
    for found in _BLOCK.finditer(text):
        line = text[: found.start("fence")].count("\n") + 1
        yield Block(name, line, found["info"].strip(), found["text"], found["reason"] or "")


def commands(block: Block) -> Iterator[Command]:
    """The commands of a block, in order."""
    whole: list[str] = []
    start = 0
    for number, line in enumerate(block.text.splitlines(), block.line + 1):
        if not whole and (not line.strip() or line.lstrip().startswith("#")):
            continue
        start = number if not whole else start
        whole.append(line)
        text = "\n".join(whole)
        if text.endswith("\\") or _without_comment(text).count("'") % 2:
            continue
        whole = []
        yield Command(f"{block.page}:{start}", _without_comment(text).removeprefix("$ "), block.reason)
    if whole:
        raise AssertionError(f"{block.place}: a quote is open at the end of the block")


def _without_comment(line: str) -> str:
    return re.sub(r"\s+# .*$", "", line).strip()
