"""The engine that comes with the program: llama.cpp, by xllamacpp, in a worker process for each model.

This process never loads the engine itself: a mere list of its devices would hold memory on every card.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import os
import re
import secrets
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from router.engines import worker as worker_program
from router.engines.base import WorkerSpec
from router.engines.leftovers import Leftovers
from router.engines.output import LogFiles
from router.engines.process import StopLimits, Usage, WorkerProcess, launch, usage
from router.errors import LoadFailed, ShuttingDown

log = logging.getLogger(__name__)

HOST: Final = "127.0.0.1"
#: Seconds for one request to a worker's health check.
_HEALTH_S: Final = 2.0
#: Seconds between health checks, from the first to the last.
_RETRY_S: Final = (0.02, 0.5)
#: Seconds between looks at what a loading process has used.
_LOOK_S: Final = 1.0
#: Environment that would change how the worker or the engine behaves, or that is none of their business.
_UNWANTED: Final = re.compile(
    r"LLAMA_ARG_|LLAMA_API_KEY$|LLAMA_SERVER_|LEMON_TRAY_"
    r"|PYTHON(INSPECT|WARNINGS|DEVMODE|TRACEMALLOC|STARTUP|ASYNCIODEBUG|MALLOCSTATS|PROFILEIMPORTTIME)$"
)
_ERROR_LINE: Final = re.compile(
    r"[\d.]+ E (?:\w+ +(?=\S+: ))?(?:[^\s:]+: )?(?:error loading model: )?(?P<text>.+)"
)
_OUT_OF_MEMORY: Final = re.compile(
    r"out of memory|bad_alloc|cannot allocate memory|(failed|unable) to allocate|cudaMalloc failed",
    re.IGNORECASE,
)


def worker_command() -> tuple[str, ...]:
    """The command that runs a worker. The worker's own folder is kept off its import path."""
    if getattr(sys, "frozen", False):
        return (sys.executable, "--engine-worker")
    return (sys.executable, "-P", "-X", "utf8", os.fspath(Path(worker_program.__file__).resolve()))


class EmbeddedEngine:
    """Starts and stops llama.cpp workers. Make it, use it and close it on one loop."""

    name = "llama.cpp"

    def __init__(
        self,
        *,
        logs_dir: Path | None = None,
        state_dir: Path | None = None,
        command: Sequence[str] = (),
        limits: StopLimits | None = None,
    ) -> None:
        """`logs_dir` keeps what workers print, `state_dir` the record of those that run; each may be absent.

        `command` is started for a worker in place of the program's own; `limits` bound the steps of stopping.
        """
        self._logs = LogFiles(logs_dir) if logs_dir is not None else None
        self._leftovers = Leftovers(state_dir) if state_dir is not None else None
        self._command = tuple(command) or worker_command()
        self._limits = limits or StopLimits()
        self._workers: set[WorkerProcess] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        try:
            self._version = importlib.metadata.version("xllamacpp")
        except importlib.metadata.PackageNotFoundError:
            self._version = "unknown"

    def capabilities(self) -> Mapping[str, Any]:
        """Name, version and reachable devices."""
        return {"name": self.name, "package": "xllamacpp", "version": self._version, "devices": ["host"]}

    async def reap_leftovers(self) -> tuple[int, ...]:
        """End workers that an earlier, dead router left behind. Returns their process ids."""
        if self._leftovers is None:
            return ()
        return await asyncio.to_thread(self._leftovers.reap)

    async def start(
        self,
        spec: WorkerSpec,
        progress: Callable[[float], None],
        launched: Callable[[int], None] = lambda pid: None,
    ) -> WorkerProcess:
        """Start a worker and wait until it answers its health check.

        There is no limit on the time a load takes: it is given up after `spec.load_stall_s` seconds without
        output, processor time or memory growth.

        Raises:
            LoadFailed: with the cause in plain words.
            ShuttingDown: the engine has been closed.
        """
        if self._is_closed:
            raise ShuttingDown("The router is shutting down.")
        worker = self._worker(spec, progress)
        self._workers.add(worker)
        worker.exited.add_done_callback(lambda _: self._ended(worker))
        try:
            await launch(worker, self._environment(spec))
            launched(worker.pid)
            if self._is_closed:
                raise ShuttingDown("The router is shutting down.")
            worker.configure(_configuration(spec, worker.api_key))
            if self._leftovers is not None:
                await asyncio.to_thread(self._leftovers.add, worker.pid)
            await self._until_announced(worker, spec)
            await self._until_healthy(worker, spec)
        except BaseException as error:
            worker.silence()
            await worker.kill()
            if worker.pid == 0:
                self._workers.discard(worker)
                if isinstance(error, OSError):
                    raise self._failed(spec, f"the engine cannot be started: {error}") from error
            raise
        worker.report(1.0)
        return worker

    async def aclose(self) -> None:
        """Stop all workers; returns when nothing of the engine is left in the loop. No load starts after."""
        self._is_closed = True
        await asyncio.gather(*(worker.aclose() for worker in list(self._workers)))
        while self._tasks:
            await asyncio.wait(list(self._tasks))
        if self._logs is not None:
            await self._logs.aclose()

    def _worker(self, spec: WorkerSpec, progress: Callable[[float], None]) -> WorkerProcess:
        logs = self._logs
        title = f"== {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC: {spec.model}, context {spec.ctx_size}\n"
        if logs is not None:
            logs.write(spec.model, title.encode("utf-8", "replace"))

        def keep(data: bytes) -> None:
            if logs is not None:
                logs.write(spec.model, data)

        return WorkerProcess(self._command, secrets.token_urlsafe(32), self._limits, progress, keep)

    def _environment(self, spec: WorkerSpec) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not _UNWANTED.match(name)}
        # Messages in one language; no debugger called up by the engine when it aborts.
        fixed = {"LANG": "C", "LC_ALL": "C", "GGML_NO_BACKTRACE": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        return kept | fixed

    def _ended(self, worker: WorkerProcess) -> None:
        task = asyncio.get_running_loop().create_task(self._forget(worker))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forget(self, worker: WorkerProcess) -> None:
        if self._leftovers is not None:
            await asyncio.to_thread(self._leftovers.remove, worker.pid)
        await worker.aclose()
        self._workers.discard(worker)

    async def _until_announced(self, worker: WorkerProcess, spec: WorkerSpec) -> None:
        """Wait until the worker tells its port; output, processor time and memory growth are progress."""
        loop = asyncio.get_running_loop()
        look_s = min(_LOOK_S, spec.load_stall_s / 4)
        last_growth = loop.time()
        seen: Usage | None = None
        either: list[asyncio.Future[Any]] = [worker.announced, worker.exited]
        while True:
            await asyncio.wait(either, timeout=look_s, return_when=asyncio.FIRST_COMPLETED)
            self._check_alive(worker, spec)
            if worker.announced.done():
                return
            now = await asyncio.to_thread(usage, worker.pid)
            if now is not None and now.is_beyond(seen):
                seen, last_growth = now, loop.time()
            if loop.time() - max(last_growth, worker.last_output) >= spec.load_stall_s:
                raise self._failed(
                    spec, f"the load made no progress for {spec.load_stall_s:g} s and was given up", worker
                )

    async def _until_healthy(self, worker: WorkerProcess, spec: WorkerSpec) -> None:
        """Wait until the worker answers. What it does meanwhile is no progress: it says that it is ready."""
        if worker.host != HOST or not 0 < worker.port < 65_536:
            raise self._failed(
                spec, f"the worker tells a useless address, {worker.host}:{worker.port}", worker
            )
        loop = asyncio.get_running_loop()
        deadline = loop.time() + spec.load_stall_s
        pause, longest = _RETRY_S
        while True:
            answer = await _health(worker)
            self._check_alive(worker, spec)
            if answer == "200":
                return
            if loop.time() >= deadline:
                raise self._failed(
                    spec,
                    f"the worker said that it is ready, but its health check gave {answer} "
                    f"for {spec.load_stall_s:g} s",
                    worker,
                )
            await asyncio.wait([worker.exited], timeout=pause)
            pause = min(pause * 1.5, longest)

    def _check_alive(self, worker: WorkerProcess, spec: WorkerSpec) -> None:
        if worker.exited.done():
            ended = worker.exited.result()
            raise self._failed(spec, cause(ended.log_tail, ended.code), worker)

    def _failed(self, spec: WorkerSpec, why: str, worker: WorkerProcess | None = None) -> LoadFailed:
        tail = worker.log_tail[-20:] if worker is not None else ()
        log.warning("%s could not be loaded: %s\n%s", spec.model, why, "\n".join(tail))
        hint = (
            f"What the engine printed is in {self._logs.path(spec.model)}."
            if self._logs is not None
            else None
        )
        return LoadFailed(f"{spec.model} could not be loaded: {why}.", hint=hint)


def _configuration(spec: WorkerSpec, api_key: str) -> dict[str, Any]:
    return {
        "parent": os.getpid(),
        "host": HOST,
        "api_key": api_key,
        "model": spec.model,
        "path": spec.path,
        "type": spec.type,
        "ctx_size": spec.ctx_size,
        "parallel": spec.parallel,
        "n_gpu_layers": spec.n_gpu_layers,
    }


def cause(lines: Sequence[str], code: int) -> str:
    """Why a process ended before it was ready, in plain words, from its last lines and exit code."""
    errors = [match["text"].strip() for line in lines if (match := _ERROR_LINE.match(line))]
    # The first error is the cause; the others follow from it.
    said = errors[0] if errors else next((line.strip() for line in reversed(lines) if line.strip()), "")
    if shortage := next((line for line in lines if _OUT_OF_MEMORY.search(line)), None):
        match = _ERROR_LINE.match(shortage)
        return f"out of memory ({match['text'].strip() if match else shortage.strip()})"
    if code == -signal.SIGKILL and not errors:
        return "its process was killed, most likely by the system for want of memory"
    if errors or (said and code > 0):
        return said.rstrip(".")
    if code < 0:
        return f"its process was ended by signal {-code}" + (f" ({said})" if said else "")
    return f"its process ended by itself with status {code}" + (f" ({said})" if said else "")


async def _health(worker: WorkerProcess) -> str:
    """The status of one health check, or what went wrong with it."""
    request = (
        f"GET /health HTTP/1.1\r\nHost: {worker.host}:{worker.port}\r\n"
        f"Authorization: Bearer {worker.api_key}\r\nConnection: close\r\n\r\n"
    )
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(_HEALTH_S):
            reader, writer = await asyncio.open_connection(worker.host, worker.port)
            writer.write(request.encode())
            status = await reader.readline()
    except TimeoutError:
        return "no answer"
    except (OSError, ValueError) as error:
        return f"an error ({error})"
    finally:
        if writer is not None:
            writer.transport.abort()
    parts = status.split()
    return (
        parts[1].decode("ascii", "replace") if len(parts) > 1 and parts[0].startswith(b"HTTP/") else "no HTTP"
    )
