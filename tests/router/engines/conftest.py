"""Engines with the real program or a fake one, on every kind of loop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import select
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from router.engines.base import WorkerSpec
from router.engines.embedded import EmbeddedEngine
from router.engines.process import StopLimits
from tests.support import gguf
from tests.support.loops import LOOPS, loop_factory

FAKE = Path(__file__).with_name("fake_worker.py")
FAKE_SERVER = Path(__file__).with_name("fake_server.py")

Run = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]
Fake = Callable[..., EmbeddedEngine]
Server = Callable[..., Path]


@pytest.fixture(params=LOOPS)
def on_loop(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine function to its end, and sees that no task outlives it."""
    factory = loop_factory(request)

    async def whole(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        await main()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(whole(main))
        gc.collect()

    return run


@pytest.fixture
async def fake() -> AsyncIterator[Fake]:
    """Makes engines whose worker is the fake program in a mode."""
    engines: list[EmbeddedEngine] = []

    def make(*mode: object, **rest: Any) -> EmbeddedEngine:
        rest.setdefault("limits", StopLimits(5.0, 5.0, 5.0))
        engine = EmbeddedEngine(command=fake_command(*mode), **rest)
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        await engine.aclose()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    gc.collect()


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[EmbeddedEngine]:
    """The real one."""
    engine = EmbeddedEngine(logs_dir=tmp_path / "logs", state_dir=tmp_path / "state")
    yield engine
    await engine.aclose()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert list((tmp_path / "state").glob("*")) == []
    gc.collect()


@pytest.fixture
def server(tmp_path: Path) -> Server:
    """Makes programs that pretend to be a llama-server, each in a mode."""

    def make(mode: str, name: str = "llama-server") -> Path:
        folder = tmp_path / "山 'q' \"d\" $HOME ;x" / mode
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "mode").write_text(mode)
        program = folder / name
        program.write_text(f"#!{sys.executable} -IS\n{FAKE_SERVER.read_text()}")
        program.chmod(0o755)
        return program

    return make


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of a few hundred KiB, at a path that is not plain."""
    folder = tmp_path_factory.mktemp("models") / "mein Ordner 模型"
    folder.mkdir()
    return gguf.write_model(folder / "tiny 🙂 model.gguf")


def fake_command(*mode: object) -> list[str]:
    """The command of the fake program in a mode."""
    return [sys.executable, str(FAKE), *map(str, mode)]


def spec_of(path: Path | str = "/nowhere.gguf", type: str = "llm", **rest: Any) -> WorkerSpec:
    defaults: dict[str, Any] = {"ctx_size": 512, "parallel": 1, "booking": {}, "load_stall_s": 60.0}
    return WorkerSpec(model="tiny", path=str(path), type=type, **(defaults | rest))


def ignore(share: float) -> None:
    """No interest in progress."""


def children(pid: int) -> set[int]:
    """Child processes of a process, by any of its threads, dead ones that nobody reaped included."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        # A thread may end meanwhile; the kernel then hands its children to another.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found.update(int(child) for child in (task / "children").read_text().split())
    return found


async def ended(pid: int, within_s: float = 20) -> bool:
    """Wait until a process that need not be a child has ended."""

    def wait() -> bool:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            return True
        try:
            return bool(select.select([fd], [], [], within_s)[0])
        finally:
            os.close(fd)

    return await asyncio.to_thread(wait)
