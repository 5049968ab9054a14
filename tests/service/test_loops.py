"""One contract for every kind of event loop: the same router under asyncio, uvloop and Qt."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from router.errors import InstanceError
from router.paths import Paths
from router.service import Router
from router.service import wiring as service
from router.snapshot import ResidentState
from tests.service.live import live, policy
from tests.support.loops import LOOPS, loop_factory

pytestmark = pytest.mark.engine

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=LOOPS)
def on_loop(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine to its end. A warning, or something said to the loop's exception handler, fails."""
    factory = loop_factory(request)
    said: list[str] = []

    async def whole(work: Coroutine[Any, Any, None]) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: said.append(str(context)))
        await work
        assert asyncio.all_tasks() == {asyncio.current_task()}

    def run(work: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(whole(work))
        gc.collect()
        assert said == []

    return run


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "GRACE_S", 0.2)


def test_load_ask_stream_switch_die_and_stop(on_loop: Run, tmp_path: Path, tiny_models: Path) -> None:
    async def work() -> None:
        async with live(tmp_path, tiny_models) as router:
            await router.post("/v1/load", {"model_name": "alpha"})
            assert (await router.chat("alpha", tokens=3))["usage"]["completion_tokens"] == 3
            # Longer than the timers of some loops can count.
            await router.chat("alpha", keep_alive="1000h")
            async with router.stream("alpha", 20) as stream:
                assert (await stream.rest())[-1] == "[DONE]"
            await router.post("/v1/pull", policy("both", "alpha", "beta"))
            assert (await router.chat("both", text="BETA"))["model"] == "beta"
            pids = await router.pids()
            os.kill(pids["alpha"], signal.SIGKILL)
            await router.until_loaded("beta")
            await router.chat("alpha")
            await router.set(llm_pool_autosize=False)
            await router.until_loaded("alpha")
            await router.post("/v1/unload", {})
            await router.chat("beta")

    on_loop(work())


@pytest.mark.fault("F06")
def test_stopped_during_a_load(on_loop: Run, tmp_path: Path, tiny_models: Path) -> None:
    async def work() -> None:
        async with live(tmp_path, tiny_models) as router:
            loading = asyncio.create_task(router.post("/v1/load", {"model_name": "alpha"}, status=503))
            await router.until(lambda s: any(r.state is ResidentState.LOADING for r in s.residents))
            await router.router.stop()
            assert (await loading)["error"]["code"] == "shutting_down"

    on_loop(work())


@pytest.mark.fault("F06")
def test_stopped_during_an_answer(on_loop: Run, tmp_path: Path, tiny_models: Path, short_grace: None) -> None:
    async def work() -> None:
        async with live(tmp_path, tiny_models) as router, router.stream("alpha") as stream:
            assert await stream.event()
            stopping = asyncio.create_task(router.router.stop())
            await stream.rest()
            assert stream.error["code"] == "shutting_down"
            await stopping
            await router.router.stop()

    on_loop(work())


@pytest.mark.fault("F06")
def test_an_answer_that_ends_within_the_grace_is_whole(
    on_loop: Run, tmp_path: Path, tiny_models: Path
) -> None:
    async def work() -> None:
        async with live(tmp_path, tiny_models) as router:
            await router.chat("alpha")
            async with router.stream("alpha", 20) as stream:
                await router.router.stop()
                assert (await stream.rest())[-1] == "[DONE]"

    on_loop(work())


@pytest.mark.fault("F06")
def test_stopped_at_any_moment_of_its_start(on_loop: Run, tmp_path: Path, tiny_models: Path) -> None:
    async def work() -> None:
        for turns in (0, 1, 2, 4, 8, 16, 32, 64, 256, 1024):
            paths = Paths.under(tmp_path / str(turns))
            paths.ensure()
            router = Router(paths, overrides={"port": 0}, models_dirs=(tiny_models,), environ={})
            starting = asyncio.create_task(router.start())
            for _ in range(turns):
                await asyncio.sleep(0)
            starting.cancel()
            await asyncio.wait([starting])
            await asyncio.gather(router.stop(), router.stop())
            assert asyncio.all_tasks() == {asyncio.current_task()}

    on_loop(work())


@pytest.mark.fault("F06")
@pytest.mark.fault("F25")
def test_stopped_after_a_failed_start(on_loop: Run, tmp_path: Path, tiny_models: Path) -> None:
    async def work() -> None:
        paths = Paths.under(tmp_path)
        paths.ensure()
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            router = Router(paths, overrides={"port": port}, models_dirs=(tiny_models,), environ={})
            with pytest.raises(InstanceError, match=str(port)):
                await router.start()
        await router.stop()

    on_loop(work())
