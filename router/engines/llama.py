"""What all engines of llama.cpp's kind share: a worker's whole life, whatever program it runs."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import logging
import os
import re
import secrets
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from router.engines.base import OUT_OF_MEMORY, Capabilities, EngineDevice, WorkerSpec
from router.engines.causes import find_cause
from router.engines.configuration import HOST
from router.engines.leftovers import Leftovers
from router.engines.output import LogFiles
from router.engines.pinning import CUDA_ORDER, Pin, Unreachable, pin
from router.engines.process import StopLimits, Usage, WorkerProcess, launch, usage
from router.errors import LoadFailed, RouterError, ShuttingDown
from router.tasks import Tasks

log = logging.getLogger(__name__)

#: Seconds for one request to a worker's health check.
_HEALTH_S: Final = 2.0
#: Seconds between health checks, from the first to the last.
_RETRY_S: Final = (0.02, 0.5)
#: Seconds that the log of a load may come after its end.
_LOG_S: Final = 2.0
#: Seconds between looks at what a loading process has used.
_LOOK_S: Final = 1.0
#: Environment that would change how the worker or the engine behaves, or that is none of their business.
_UNWANTED: Final = re.compile(
    r"LLAMA_ARG_|LLAMA_API_KEY$|LLAMA_SERVER_|MTMD_BACKEND_DEVICE$|LEMON_TRAY_"
    r"|PYTHON(INSPECT|WARNINGS|DEVMODE|TRACEMALLOC|STARTUP|ASYNCIODEBUG|MALLOCSTATS|PROFILEIMPORTTIME)$"
)


class Launch(Struct, frozen=True):
    """How one worker is started.

    Attributes:
        command: the program and its arguments.
        shown: the same for people; empty if that is no different.
        environ: what is set beside the common environment.
        config: what it is told on standard input; None for a program that reads nothing there.
        is_server: it is a llama-server itself, not the worker program.
    """

    command: tuple[str, ...]
    shown: tuple[str, ...] = ()
    environ: Mapping[str, str] = {}
    config: Mapping[str, Any] | None = None
    is_server: bool = False


def common_environ(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of every process of an engine, made from this process's."""
    kept = {name: value for name, value in (environ or os.environ).items() if not _UNWANTED.match(name)}
    # Messages in one language; no debugger called up by the engine when it aborts.
    return kept | {"LANG": "C", "LC_ALL": "C", "GGML_NO_BACKTRACE": "1"} | CUDA_ORDER


class LlamaEngine(abc.ABC):
    """Starts and stops workers. Make it, use it and close it on one loop."""

    name = "llama.cpp"
    #: Whether workers can be given names of devices.
    takes_names = False

    def __init__(
        self, *, logs_dir: Path | None = None, state_dir: Path | None = None, limits: StopLimits | None = None
    ) -> None:
        """`logs_dir` keeps what workers print, `state_dir` the record of those that run; each may be absent.

        `limits` bound the steps of stopping.
        """
        self._logs = LogFiles(logs_dir) if logs_dir is not None else None
        self._leftovers = Leftovers(state_dir) if state_dir is not None else None
        self._limits = limits or StopLimits()
        self._workers: set[WorkerProcess] = set()
        self._tasks = Tasks()
        self._is_closed = False
        self._reach: Mapping[str, EngineDevice] = {}

    @abc.abstractmethod
    async def probe(self) -> Capabilities:
        """What the engine is and reaches, found out in a child, once. Never raises for an engine's fault."""

    @abc.abstractmethod
    def capabilities(self) -> Mapping[str, Any]:
        """Name, version and reachable devices, as far as they are known."""

    @abc.abstractmethod
    def _launch(self, spec: WorkerSpec, pin: Pin, api_key: str) -> Launch:
        """How to start a worker.

        Raises:
            RouterError: the engine cannot do what the spec asks for.
        """

    def use(self, reach: Mapping[str, EngineDevice]) -> None:
        """From now on workers may be put on these devices: the engine's own device by the machine's id."""
        self._reach = dict(reach)

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
        environ = common_environ()
        api_key = secrets.token_urlsafe(32)
        try:
            chosen = pin(spec, self._reach, environ, takes_names=self.takes_names)
            plan = self._launch(spec, chosen, api_key)
        except Unreachable as error:
            raise self._failed(spec, f"the engine in use does not reach the device {error}") from error
        except RouterError as error:
            raise self._failed(spec, error.message.rstrip("."), hint=error.hint) from error
        worker = self._worker(spec, plan, chosen, api_key, progress)
        self._workers.add(worker)
        worker.exited.add_done_callback(
            lambda _: self._tasks.spawn(self._forget(worker), f"forgetting worker {worker.pid}")
        )
        try:
            await launch(worker, {**environ, **chosen.environ, **plan.environ})
            launched(worker.pid)
            if self._is_closed:
                raise ShuttingDown("The router is shutting down.")
            if plan.config is not None:
                worker.configure(plan.config)
            if self._leftovers is not None:
                await asyncio.to_thread(self._leftovers.add, worker.pid)
            await self._until_announced(worker, spec)
            await self._until_healthy(worker, spec)
            await _until_logged(worker)
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
        while self._tasks.running:
            await asyncio.wait(list(self._tasks.running))
        if self._logs is not None:
            await self._logs.aclose()

    def _worker(
        self,
        spec: WorkerSpec,
        plan: Launch,
        chosen: Pin,
        api_key: str,
        progress: Callable[[float], None],
    ) -> WorkerProcess:
        logs = self._logs
        title = f"== {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC: {spec.model}, context {spec.ctx_size}\n"
        if logs is not None:
            logs.write(spec.model, title.encode("utf-8", "replace"))

        def keep(data: bytes) -> None:
            if logs is not None:
                logs.write(spec.model, data)

        return WorkerProcess(
            plan.command,
            api_key,
            self._limits,
            progress,
            keep,
            shown=plan.shown,
            names=chosen.names,
            is_server=plan.is_server,
        )

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
            found = find_cause(ended.log_tail, ended.code)
            raise self._failed(
                spec, found.text, worker, code=OUT_OF_MEMORY if found.is_memory else LoadFailed.code
            )

    def _failed(
        self,
        spec: WorkerSpec,
        why: str,
        worker: WorkerProcess | None = None,
        *,
        code: str = LoadFailed.code,
        hint: str | None = None,
    ) -> LoadFailed:
        tail = worker.log_tail[-20:] if worker is not None else ()
        log.warning("%s could not be loaded: %s\n%s", spec.model, why, "\n".join(tail))
        if hint is None and self._logs is not None:
            hint = f"What the engine printed is in {self._logs.path(spec.model)}."
        return LoadFailed(f"{spec.model} could not be loaded: {why}.", code=code, hint=hint)


async def _until_logged(worker: WorkerProcess) -> None:
    """Wait for what the worker has said of its load, which may be on its way; not for ever."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LOG_S):
            await worker.logged.wait()


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
