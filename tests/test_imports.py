"""Who may import whom, and which calls must never stand in the product."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("router", "lemon_tray")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

# All that the tray may know of the router; a trailing dot allows what is inside.
TRAY_MAY_IMPORT = (
    "router.cli.",
    "router.errors",
    "router.instance",
    "router.loading",
    "router.logs",
    "router.paths",
    "router.service.",
    "router.settings.schema",
    "router.snapshot",
    "router.units",
    "router.version",
)

BLOCKED_IMPORT = """
import importlib, importlib.abc, pkgutil, sys

BLOCKED = {"PySide6", "shiboken6", "qasync", "lemon_tray"}

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ImportError(f"{name} is blocked")
        return None

sys.meta_path.insert(0, Blocker())
import router
count = 0
for module in pkgutil.walk_packages(router.__path__, "router."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
        count += 1
print(count, "xllamacpp" in sys.modules)
"""


def test_the_router_runs_without_qt() -> None:
    done = subprocess.run([sys.executable, "-c", BLOCKED_IMPORT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    count, has_engine = done.stdout.split()
    assert int(count) > 20
    # The engine's library opens devices: only worker processes may load it.
    assert has_engine == "False"


def test_import_contracts_hold() -> None:
    done = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and full name of all that is imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def beyond_the_door(tree: ast.AST) -> list[str]:
    """Imports from the router that the tray may not have."""
    return [
        f"line {line}: {name}"
        for line, name in imported(tree)
        if name.partition(".")[0] == "router"
        and not any(f"{name}.".startswith(f"{allowed.rstrip('.')}.") for allowed in TRAY_MAY_IMPORT)
    ]


@pytest.mark.parametrize("path", sorted((ROOT / "lemon_tray").rglob("*.py")), ids=lambda path: path.name)
def test_the_tray_uses_only_the_door(path: Path) -> None:
    assert beyond_the_door(ast.parse(path.read_text(encoding="utf-8"))) == []


def test_the_door_is_checked() -> None:
    bad = (
        "import router.web\nfrom router import catalog\nfrom router.settings import x\nimport router.servicex"
    )
    assert len(beyond_the_door(ast.parse(bad))) == 4
    good = "from router.service import Router\nfrom router.settings import schema\nimport router.snapshot"
    assert beyond_the_door(ast.parse(good)) == []


# Dialogs' static functions, which wait in a loop of their own.
WAITING_DIALOGS = {
    "QColorDialog": ("getColor",),
    "QFileDialog": ("getExistingDirectory", "getOpenFileName", "getOpenFileNames", "getSaveFileName"),
    "QFontDialog": ("getFont",),
    "QInputDialog": ("getDouble", "getInt", "getItem", "getMultiLineText", "getText"),
    "QMessageBox": ("about", "aboutQt", "critical", "information", "question", "warning"),
}


def forbidden_calls(tree: ast.AST) -> list[str]:
    """Uses that run a second event loop inside the first, or stop the loop with tasks still on it; and
    `asyncio.wait_for`, which before Python 3.12 loses a cancellation that comes as its wait ends."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        owner = ast.unparse(node.value)
        last = owner.removesuffix("()").rpartition(".")[2].lower()
        nested = node.attr in ("exec", "exec_", "processEvents")
        waiting = node.attr in WAITING_DIALOGS.get(owner.rpartition(".")[2], ())
        stops = node.attr in ("quit", "exit") and (
            last.endswith(("app", "application")) or last == "instance"
        )
        loses = (owner, node.attr) == ("asyncio", "wait_for")
        if nested or waiting or stops or loses:
            found.append(f"line {node.lineno}: {owner}.{node.attr}")
    return found


# Qt's loop and asyncio's as one: it alone starts and ends Qt's, once each.
THE_LOOP = ROOT / "lemon_tray" / "loop.py"


@pytest.mark.parametrize(
    "path", [path for path in SOURCES if path != THE_LOOP], ids=lambda path: str(path.relative_to(ROOT))
)
def test_no_second_loop_no_quit_and_no_lost_cancellation(path: Path) -> None:
    assert forbidden_calls(ast.parse(path.read_text(encoding="utf-8"))) == []


def test_only_the_loop_starts_and_ends_qts() -> None:
    found = forbidden_calls(ast.parse(THE_LOOP.read_text(encoding="utf-8")))
    names = sorted(line.partition(": ")[2] for line in found)
    assert names == ["self._app.exec", "self._app.exit", "self._app.exit"]


@pytest.mark.parametrize(
    "line",
    [
        "dialog.exec()",
        "menu.exec_(point)",
        "QCoreApplication.processEvents()",
        "self._app.quit()",
        "action.triggered.connect(app.quit)",
        "QApplication.instance().quit()",
        "QtWidgets.QApplication.exit(0)",
        "QMessageBox.question(self, 'a', 'b')",
        "QtWidgets.QFileDialog.getOpenFileName(self)",
        "await asyncio.wait_for(event.wait(), 1)",
    ],
)
def test_forbidden_calls_are_found(line: str) -> None:
    assert forbidden_calls(ast.parse(line))


@pytest.mark.parametrize(
    "line", ["self.quit()", "log.warning('a')", "box.open()", "sys.exit(1)", "app.exec_time"]
)
def test_other_calls_are_let_pass(line: str) -> None:
    assert forbidden_calls(ast.parse(line)) == []
