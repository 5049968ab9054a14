"""Every way in which the program ends: as a process of its own, with real workers, from outside."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from router.instance import read_holder
from tests.service.live import ENDLESS, PATIENCE_S, Client, policy, request, write_models
from tests.service.program import PIPE

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
]

ROOT = Path(__file__).parents[2]
POLITE = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
ENDS_WITHIN_S = 10.0
WORKERS_GONE_WITHIN_S = 5.0

# What a clean end does not say.
FAULTS = re.compile(
    "Traceback|Error:|Warning:| (ERROR|CRITICAL) |pending|never awaited|is closed|loop stopped",
    re.IGNORECASE,
)


@pytest.fixture(scope="session")
def endings_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_models(tmp_path_factory.mktemp("endings"), ("alpha", "beta", "slow"))


class Program(Client):
    """The program, running."""

    def __init__(self, session: aiohttp.ClientSession, process: subprocess.Popen[bytes], home: Path) -> None:
        super().__init__(session, "")
        self.process = process
        self.home = home
        self.state_dir = home / "state" / "lemon-tray"

    @property
    def errors(self) -> str:
        return (self.home / "stderr").read_text()

    async def ready(self) -> None:
        """Wait until it answers."""
        while not self.url:
            assert self.process.poll() is None, self.errors
            holder = await asyncio.to_thread(read_holder, self.state_dir)
            if holder is not None and holder.pid == self.process.pid:
                self.url = holder.endpoint.removesuffix("/v1")
            await asyncio.sleep(0.02)

    def workers(self) -> list[int]:
        """File descriptors that tell of the end of each worker that runs now."""
        found = []
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            for pid in map(int, (task / "children").read_text().split()):
                with contextlib.suppress(ProcessLookupError):
                    found.append(os.pidfd_open(pid))
        return found

    async def blocked(self) -> None:
        """Wait until the engine is inside the load that never ends."""
        log = self.state_dir / "log" / "slow.log"
        while not (log.exists() and b"loading model" in log.read_bytes()):  # noqa: ASYNC110  # not our process
            await asyncio.sleep(0.02)

    async def busy(self) -> None:
        """Wait until a model answers."""
        while True:
            if any(model["in_use"] for model in (await self.health())["all_models_loaded"]):
                return
            await asyncio.sleep(0.02)

    async def ended(self) -> int:
        """Wait for the end; the exit status."""
        try:
            return await asyncio.to_thread(self.process.wait, ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end in {ENDS_WITHIN_S} s:\n{self.errors}") from None


def launch(environ: dict[str, str], home: Path, *arguments: str) -> subprocess.Popen[bytes]:
    with (home / "stderr").open("wb") as errors:
        return subprocess.Popen(
            [sys.executable, "-X", "dev", "-m", "tests.service.program", *arguments],
            env=environ,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )


@asynccontextmanager
async def program(home: Path, models: Path, *command: str, **settings: Any) -> AsyncIterator[Program]:
    """Start it with user folders of its own below `home`."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("LEMON_TRAY_")}
    for kind in ("config", "data", "state", "cache"):
        environ[f"XDG_{kind.upper()}_HOME"] = str(home / kind)
    (home / "run").mkdir(mode=0o700, exist_ok=True)
    environ |= {"HOME": str(home), "XDG_RUNTIME_DIR": str(home / "run"), "QT_QPA_PLATFORM": "offscreen"}
    environ[PIPE] = str(home / "pipe")
    if not (home / "pipe").exists():
        os.mkfifo(home / "pipe")
    config = home / "config" / "lemon-tray" / "config.json"
    config.parent.mkdir(parents=True, exist_ok=True)
    if settings:
        config.write_text(json.dumps(settings))
    process = launch(environ, home, *command, f"--models-dir={models}")
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE_S)) as session:
            yield Program(session, process, home)
    finally:
        process.kill()
        await asyncio.to_thread(process.wait)


async def gone(workers: list[int]) -> bool:
    """Whether all these processes end in time."""

    def wait() -> bool:
        return all(select.select([fd], [], [], WORKERS_GONE_WITHIN_S)[0] for fd in workers)

    try:
        return await asyncio.to_thread(wait)
    finally:
        for fd in workers:
            os.close(fd)


SERVE = ("serve", "--port=0")
TRAY = ("--hidden", "--port=0")
BOTH = [pytest.param(SERVE, id="serve"), pytest.param(TRAY, id="tray")]
# The tray's way out is the same for all signals, which its own tests show; here it has workers.
SIGNALS = [
    *(pytest.param(SERVE, number, id=f"serve-{number.name}") for number in POLITE),
    *(pytest.param(TRAY, number, id=f"tray-{number.name}") for number in (signal.SIGTERM, signal.SIGHUP)),
]


def complaints(running: Program) -> list[str]:
    # asyncio's debug mode tells of a busy machine.
    lines = (line for line in running.errors.splitlines() if "Executing <" not in line)
    return [line for line in lines if FAULTS.search(line)]


@pytest.mark.fault("F06")
@pytest.mark.fault("F08")
@pytest.mark.parametrize(("command", "number"), SIGNALS)
async def test_a_signal_ends_streams_loads_and_workers_in_order(
    command: tuple[str, ...], number: signal.Signals, endings_models: Path, tmp_path: Path
) -> None:
    async with program(tmp_path, endings_models, *command, max_loaded_models=3) as running:
        await running.ready()
        await running.chat("beta")
        loading = asyncio.create_task(running.post("/v1/load", {"model_name": "slow"}, status=503))
        await running.blocked()
        async with running.stream("alpha") as stream:
            assert await stream.event()
            workers = running.workers()
            assert len(workers) == 3
            running.process.send_signal(number)
            await stream.rest()
            assert stream.error["code"] == "shutting_down"
        assert (await loading)["error"]["code"] == "shutting_down"
        assert await running.ended() == 0
        assert await gone(workers)
        assert complaints(running) == []
        assert read_holder(running.state_dir) is None


@pytest.mark.fault("F06")
@pytest.mark.fault("F08")
@pytest.mark.parametrize("command", BOTH)
async def test_a_signal_with_nothing_to_do(
    command: tuple[str, ...], endings_models: Path, tmp_path: Path
) -> None:
    async with program(tmp_path, endings_models, *command) as running:
        await running.ready()
        await running.chat("alpha")
        workers = running.workers()
        running.process.send_signal(signal.SIGTERM)
        assert await running.ended() == 0
        assert await gone(workers)
        assert complaints(running) == []


@pytest.mark.fault("F08")
@pytest.mark.fault("F25")
@pytest.mark.parametrize("command", BOTH)
async def test_no_worker_outlives_a_killed_program_and_it_starts_again(
    command: tuple[str, ...], endings_models: Path, tmp_path: Path
) -> None:
    async with program(tmp_path, endings_models, *command, max_loaded_models=3) as running:
        await running.ready()
        await running.chat("beta")
        loading = asyncio.create_task(running.post("/v1/load", {"model_name": "slow"}))
        await running.blocked()
        async with running.stream("alpha") as stream:
            assert await stream.event()
            workers = running.workers()
            assert len(workers) == 3
            running.process.send_signal(signal.SIGKILL)
            with pytest.raises(aiohttp.ClientError):
                await stream.rest()
        with pytest.raises(aiohttp.ClientError):
            await loading
        assert await running.ended() == -signal.SIGKILL
        assert await gone(workers)
    async with program(tmp_path, endings_models, *command) as again:
        await again.ready()
        await again.chat("alpha")
        again.process.send_signal(signal.SIGTERM)
        assert await again.ended() == 0


@pytest.mark.fault("F06")
async def test_settings_and_policies_are_edited_during_a_load_and_it_quits(
    endings_models: Path, tmp_path: Path
) -> None:
    async with program(tmp_path, endings_models, *SERVE) as running:
        await running.ready()
        await running.post("/v1/pull", policy("both", "alpha", "slow"))
        loading = asyncio.create_task(running.post("/v1/load", {"model_name": "slow"}, status=503))
        await running.blocked()
        workers = running.workers()
        for limit in range(1, 21):
            await running.set(max_loaded_models=limit, llm_pool_autosize=limit % 2 == 0)
        edits = [
            asyncio.create_task(running.set(max_loaded_models=2)),
            asyncio.create_task(running.post("/v1/delete", {"model_name": "both"})),
        ]
        await asyncio.gather(*edits)
        running.process.send_signal(signal.SIGTERM)
        assert (await loading)["error"]["code"] == "shutting_down"
        assert await running.ended() == 0
        assert await gone(workers)
        assert complaints(running) == []
        kept = json.loads((tmp_path / "config" / "lemon-tray" / "config.json").read_text())
        assert (kept["max_loaded_models"], kept["llm_pool_autosize"]) == (2, True)


@pytest.mark.fault("F06")
@pytest.mark.parametrize("command", BOTH)
async def test_a_client_that_reads_nothing_does_not_hold_it_up(
    command: tuple[str, ...], endings_models: Path, tmp_path: Path
) -> None:
    async with program(tmp_path, endings_models, *command) as running:
        await running.ready()
        await running.chat("alpha")
        host, port = running.url.removeprefix("http://").split(":")
        body = json.dumps(request("alpha", tokens=ENDLESS, stream=True)).encode()
        with socket.create_connection((host, int(port))) as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}"
            deaf.sendall(head.encode() + b"\r\n\r\n" + body)
            await running.busy()
            workers = running.workers()
            running.process.send_signal(signal.SIGTERM)
            assert await running.ended() == 0
            assert await gone(workers)
            assert complaints(running) == []


@pytest.mark.fault("F25")
async def test_a_second_start_says_in_one_line_who_runs(endings_models: Path, tmp_path: Path) -> None:
    async with program(tmp_path, endings_models, *SERVE) as first:
        await first.ready()
        async with program(tmp_path, endings_models, *SERVE) as second:
            assert await second.ended() == 1
            assert second.errors.splitlines() == [
                f"lemon-tray: Lemon Tray runs already at {first.url}/v1 (process {first.process.pid}). "
                "(ask it with: lemon-tray status)"
            ]
        assert (await first.health())["status"] == "ok"


@pytest.mark.fault("F25")
async def test_a_port_in_use_is_named(endings_models: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with program(tmp_path, endings_models, "serve", f"--port={port}") as running:
            assert await running.ended() == 1
            told = [line for line in running.errors.splitlines() if line.startswith("lemon-tray: ")]
            assert len(told) == 1
            assert str(port) in told[0]
            assert complaints(running) == []
