"""The page of errors has every code that the router gives, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]


def constants(node: ast.expr) -> Iterator[str]:
    """The texts that an expression can be."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from constants(node.body)
        yield from constants(node.orelse)


def codes_of(source: str) -> Iterator[str]:
    """What is given as `code`, to a call or by a class."""
    for node in ast.walk(ast.parse(source)):
        by_call = isinstance(node, ast.keyword) and node.arg == "code"
        by_class = isinstance(node, ast.Assign) and "code" in map(ast.unparse, node.targets)
        if by_call or by_class:
            yield from constants(node.value)  # type: ignore[attr-defined]  # both kinds have one


def test_codes_are_found_where_they_are_given() -> None:
    source = "class A:\n    code = 'a'\nraise A('', code='b' if x else 'c')\nother(kind='d')"
    assert set(codes_of(source)) == {"a", "b", "c"}


def test_every_code_is_on_the_page_once() -> None:
    given = {
        code
        for path in (ROOT / "router").rglob("*.py")
        for code in codes_of(path.read_text(encoding="utf-8"))
    }
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    told = [code for row in rows for code in re.findall(r"`(\w+)`", row)]
    assert sorted(told) == sorted(given)
