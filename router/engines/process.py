"""One worker process: started, listened to, stopped and reaped.

Works under asyncio, uvloop and qasync. The event loop must run in a thread that lives as long as the router,
best the main one: on Linux a worker is killed when the *thread* that started it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from msgspec import Struct

from router.engines.base import Exit
from router.engines.buffers import BufferSizes
from router.engines.output import Lines, Tail
from router.engines.worker import READY

_ENGINE_STATE: Final = "cmd_child_to_router:state:"
#: In the log of llama-server: where it listens.
_LISTENING: Final = re.compile(
    r"(?:[\d.]+ \w )?(?:srv +)?\w+: (?:server is )?listening on https?://(?P<host>[\w.-]+):(?P<port>\d{1,5})\b"
)
#: Seconds that output may still come after the process has ended, if another process holds its pipes.
_LINGER_S: Final = 0.5
#: The share of a load that is done when the engine has read the model; warming up is the rest.
_READ_SHARE: Final = 0.95


class StopLimits(Struct, frozen=True):
    """Seconds that each step of stopping may take before the next."""

    ask_s: float = 2.0
    terminate_s: float = 1.0
    kill_s: float = 3.0


class WorkerProcess(asyncio.SubprocessProtocol):
    """A worker, from its start to its end. Made by `launch`.

    Attributes:
        announced: done when the worker has told host and port.
        logged: done when its log, which may come later, has got as far.
        last_output: when it last printed anything, on the loop's clock.
    """

    def __init__(
        self,
        command: Sequence[str],
        api_key: str,
        limits: StopLimits,
        progress: Callable[[float], None],
        keep: Callable[[bytes], None],
        *,
        shown: Sequence[str] = (),
        names: Mapping[str, str] | None = None,
        is_server: bool = False,
        max_tail: int = 1 << 16,
    ) -> None:
        """A process to be started.

        `shown` is the command for people, if that differs; `names` gives the ids of the engine's devices.
        What `is_server`, a llama-server, tells its address in its log; the worker program tells it on
        standard output.
        """
        self._loop = asyncio.get_running_loop()
        self._limits = limits
        self._progress = progress
        self._keep = keep
        self._command = tuple(command)
        self._names = names or {}
        self._buffers = BufferSizes()
        self.launch_command = tuple(shown) or self._command
        self.api_key = api_key
        self.host, self.port, self.pid = "", 0, 0
        self.announced: asyncio.Future[None] = self._loop.create_future()
        self.logged = asyncio.Event()
        self.last_output = self._loop.time()
        self._exited: asyncio.Future[Exit] = self._loop.create_future()
        self._closed = asyncio.Event()
        self._transport: asyncio.SubprocessTransport | None = None
        self._open_pipes = {1, 2}
        self._has_ended = False
        self._linger: asyncio.TimerHandle | None = None
        self._lines = {1: Lines(), 2: Lines()}
        self._tail = Tail(max_tail)
        self._share = 0.0
        self._stopping: asyncio.Task[bool] | None = None
        self._address: tuple[str, int] | None = None
        self._is_server = is_server
        self._has_states = self._is_ready = False

    # What the router knows of a worker.

    @property
    def exited(self) -> asyncio.Future[Exit]:
        """Done when the process has been reaped. Wait with `asyncio.wait` or a shield: do not cancel it."""
        return self._exited

    @property
    def measured(self) -> Mapping[str, int]:
        """Bytes by device id, the host included, as the engine printed them; empty if it did not."""
        return self._buffers.by_device(self._names)

    @property
    def buffers(self) -> Mapping[tuple[str, str], int]:
        """The same by the engine's name of the buffer and kind: `model`, `KV`, `RS`, `compute`, `output`."""
        return self._buffers.parts()

    async def stop(self) -> bool:
        """Ask it to leave, then terminate, then kill its group, each bounded by `StopLimits`.

        Returns False if it could not be killed; calling again tries again. Concurrent calls share one
        attempt. If a call is cancelled, the process is killed at once.
        """
        if self._exited.done():
            return True
        if self._stopping is None or self._stopping.done():
            self._stopping = self._loop.create_task(self._stop())
        try:
            return await asyncio.shield(self._stopping)
        except asyncio.CancelledError:
            self._signal(signal.SIGKILL)
            raise

    # What the engine needs besides.

    @property
    def command(self) -> tuple[str, ...]:
        """What is started: not for people to see."""
        return self._command

    @property
    def log_tail(self) -> tuple[str, ...]:
        """The last lines that it printed."""
        return self._tail.lines

    def configure(self, config: Mapping[str, Any]) -> None:
        """Send the one line of configuration."""
        pipe = self._stdin()
        if pipe is not None:
            pipe.write(json.dumps(config).encode() + b"\n")

    def end_input(self) -> None:
        """Nothing comes on its standard input."""
        pipe = self._stdin()
        if pipe is not None:
            pipe.close()

    def silence(self) -> None:
        """Tell no more progress: its load is over."""
        self._share = 1.0

    def report(self, share: float) -> None:
        """Tell progress, which never goes back."""
        if share > self._share:
            self._share = min(share, 1.0)
            self._progress(self._share)

    async def kill(self) -> bool:
        """Kill it and wait until it is reaped, within the limit."""
        if self._transport is None:
            return True
        self._signal(signal.SIGKILL)
        await asyncio.wait([self._exited], timeout=self._limits.kill_s)
        return self._exited.done()

    def abandon(self, starting: asyncio.Task[None]) -> None:
        """Its start was not wanted any more: kill what came of it."""
        if not starting.cancelled():
            starting.exception()
        self._signal(signal.SIGKILL)

    async def aclose(self) -> None:
        """Stop it, and return when nothing of it is left in the loop."""
        if await self.stop():
            await self._closed.wait()
        if self._stopping is not None:
            await asyncio.wait([self._stopping])

    async def _stop(self) -> bool:
        limits = self._limits
        pipe = self._stdin()
        if pipe is not None:
            pipe.close()
        if self.announced.done():
            # Before, it loads and hears nothing.
            await asyncio.wait([self._exited], timeout=limits.ask_s)
        for number, limit in ((signal.SIGTERM, limits.terminate_s), (signal.SIGKILL, limits.kill_s)):
            if self._exited.done():
                break
            self._signal(number)
            await asyncio.wait([self._exited], timeout=limit)
        return self._exited.done()

    def _stdin(self) -> asyncio.WriteTransport | None:
        if self._transport is None:
            return None
        return cast("asyncio.WriteTransport | None", self._transport.get_pipe_transport(0))

    def _signal(self, number: signal.Signals) -> None:
        """To its whole group, as long as its id is surely its own: until it has been reaped."""
        if self._has_ended or self._transport is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if sys.platform == "win32":
                self._transport.kill()
            else:
                os.killpg(self.pid, number)

    # Called by the loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)
        self.pid = self._transport.get_pid()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self.last_output = self._loop.time()
        self._take(fd, self._lines[fd].feed(data))
        if fd == 2:
            self._keep(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd in self._open_pipes:
            self._take(fd, self._lines[fd].end())
            self._open_pipes.discard(fd)
        self._finish_if_quiet()

    def process_exited(self) -> None:
        self._has_ended = True
        self._linger = self._loop.call_later(_LINGER_S, self._finish)
        self._finish_if_quiet()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed.set()

    def _finish_if_quiet(self) -> None:
        if self._has_ended and not self._open_pipes:
            self._finish()

    def _finish(self) -> None:
        if self._exited.done() or self._transport is None:
            return
        if self._linger is not None:
            self._linger.cancel()
        code = self._transport.get_returncode()
        self._transport.close()
        self._exited.set_result(Exit(0 if code is None else code, self.log_tail))

    def _take(self, fd: int, lines: list[str]) -> None:
        if fd == 2:
            self._tail.add(lines)
            for line in lines:
                self._buffers.feed(line)
                if not self.logged.is_set() and (match := _LISTENING.match(line)):
                    self.logged.set()
                    if self._is_server:
                        self._listens(match["host"], int(match["port"]))
            return
        for line in lines:
            if line.startswith(_ENGINE_STATE):
                self._engine_state(line.removeprefix(_ENGINE_STATE))
            elif line.startswith(READY):
                self._announce(line.removeprefix(READY))
            else:
                self._tail.add([line])

    def _engine_state(self, text: str) -> None:
        """Such as `{"state": "loading", "payload": {"stages": [...], "current": ..., "value": 0.5}}`."""
        self._has_states = True
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
            state = json.loads(text)
            if state["state"] == "ready" and self._is_server:
                self._is_ready = True
                self._settle()
            elif state["state"] == "loading":
                payload = state["payload"]
                stages = payload["stages"]
                done = (stages.index(payload["current"]) + float(payload["value"])) / len(stages)
                self.report(_READ_SHARE * done)

    def _announce(self, text: str) -> None:
        """The worker program's own line."""
        try:
            address = json.loads(text)
            host, port = str(address["host"]), int(address["port"])
            if not address.get("logs"):
                self.logged.set()
        except (ValueError, TypeError, KeyError, AttributeError):
            self._tail.add([f"{READY}{text}"])
            return
        self._is_ready = True
        self._listens(host, port)

    def _listens(self, host: str, port: int) -> None:
        self._address = self._address or (host, port)
        self._settle()

    def _settle(self) -> None:
        """It has announced itself when it told its address and, if it tells states at all, that it is ready.

        Some versions of the engine listen before they load.
        """
        if self._address is None or self.announced.done() or (self._has_states and not self._is_ready):
            return
        self.host, self.port = self._address
        self.announced.set_result(None)


async def launch(worker: WorkerProcess, env: Mapping[str, str], cwd: Path | None = None) -> None:
    """Start the process, in a session and group of its own, with all three pipes.

    If the call is cancelled, the process is not left running.

    Raises:
        OSError: it cannot be started.
    """
    loop = asyncio.get_running_loop()
    starting = loop.create_task(_exec(loop, worker, env, cwd))
    try:
        await asyncio.shield(starting)
    except asyncio.CancelledError:
        starting.add_done_callback(worker.abandon)
        await asyncio.wait([starting])
        await worker.kill()
        raise


async def _exec(
    loop: asyncio.AbstractEventLoop, worker: WorkerProcess, env: Mapping[str, str], cwd: Path | None
) -> None:
    await loop.subprocess_exec(
        lambda: worker,
        *worker.command,
        env=dict(env),
        cwd=cwd,
        start_new_session=sys.platform != "win32",
    )


class Usage(Struct, frozen=True):
    """What a process has used so far: processor ticks, and pages of memory now."""

    ticks: int
    pages: int

    def is_beyond(self, before: Usage | None) -> bool:
        """It has done something since."""
        return before is None or self.ticks > before.ticks or self.pages > before.pages


def usage(pid: int) -> Usage | None:
    """Read a process's usage; None where that is not offered or the process is gone. Blocks for a moment."""
    if sys.platform != "linux":
        return None
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return Usage(int(fields[11]) + int(fields[12]), int(fields[21]))
    except (OSError, ValueError, IndexError):
        return None
