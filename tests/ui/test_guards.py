"""What must never come back: lost references, blocked loops, nested loops."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest
from PySide6.QtCore import QEventLoop, QObject, QTimer, Signal
from pytestqt.qtbot import QtBot

import lemon_tray
from lemon_tray.bars import DeviceBlock
from lemon_tray.theme import Look
from tests.ui import canned
from tests.ui.conftest import view_of

TIMES = 1_000
SOURCES = sorted(Path(lemon_tray.__file__).parent.glob("*.py"))
PRESENTING = [path for path in SOURCES if path.name.startswith("present") or path.name == "names.py"]


def counts() -> tuple[int, int, int]:
    return sys.getrefcount(None), sys.getrefcount(True), sys.getrefcount(False)


@pytest.mark.fault("F39")
@pytest.mark.parametrize("what", ["repaint", "singleShot", "emit"])
def test_qt_calls_lose_no_reference_to_the_singletons(what: str, look: Look, qtbot: QtBot) -> None:
    """Before Python 3.12 a binding that loses one at each call ends the process after some thousand calls."""
    block = DeviceBlock(look)
    qtbot.addWidget(block)
    block.show_bar(view_of(canned.loading()).bars[0])
    block.show()

    class Sender(QObject):
        sent = Signal(object)

    sender, received, loop = Sender(), [0], QEventLoop()
    sender.sent.connect(lambda _value: None)

    def tick() -> None:
        received[0] += 1
        if received[0] == TIMES:
            loop.quit()

    def act() -> None:
        if what == "repaint":
            for _ in range(TIMES):
                block.bar.repaint()
        elif what == "emit":
            for _ in range(TIMES):
                sender.sent.emit(None)
        else:
            received[0] = 0
            for _ in range(TIMES):
                QTimer.singleShot(0, tick)
            loop.exec()

    act()  # caches fill
    before = counts()
    act()
    moved = [after - b for after, b in zip(counts(), before, strict=True)]
    assert all(abs(m) < 100 for m in moved), moved


@pytest.mark.fault("F06")
@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.name)
def test_no_nested_loop_no_quit_no_wait(path: Path) -> None:
    """Nested loops kill tasks, `quit` skips the cleanup, a wait stalls every client's stream."""
    banned = {"exec", "exec_", "processEvents", "quit", "exit", "sleep", "run_until_complete", "run_forever"}
    before_the_loop = {("single_instance.py", "sleep"), ("__main__.py", "exit")}
    the_loop_itself = {("loop.py", "exec"), ("loop.py", "exit")}
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            is_asyncio = isinstance(owner, ast.Name) and owner.id == "asyncio"
            if (
                node.func.attr in banned
                and not is_asyncio
                and (path.name, node.func.attr) not in before_the_loop | the_loop_itself
            ):
                found.append(f"{path.name}:{node.lineno} {node.func.attr}")
    assert found == []


@pytest.mark.parametrize("path", PRESENTING, ids=lambda p: p.name)
def test_every_text_of_the_presenter_is_translated(path: Path) -> None:
    """`format` on a bare literal with words in it is a text that nobody can translate."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
            assert not isinstance(node.func.value, ast.Constant), node.lineno


def test_a_translator_reaches_every_text() -> None:
    from lemon_tray.words import use_translator

    use_translator(lambda context, text, count: f"<{text}>")
    try:
        view = view_of(canned.warning())
        assert view.head.title == "<<Ready> · 1 warnings>"
        assert view.banner is not None
        assert view.banner.title.startswith("<")
        assert view.pool.loaded == "<2 loaded>"
    finally:
        use_translator(None)


def test_building_a_view_of_a_busy_machine_is_quick_enough_to_never_be_felt() -> None:
    """Not a time but a count: presenting must not walk the models once for each resident."""
    import msgspec

    from router.snapshot import ModelView

    models = tuple(ModelView(f"m{i}", "llm", 1, 1) for i in range(500))
    of = msgspec.structs.replace(canned.loading(), models=models)
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        view_of(of)
    finally:
        sys.setprofile(None)
    assert calls < 20_000
