"""What the rest of the router knows of an engine: how to start a worker, and how to stop it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from msgspec import Struct


class WorkerSpec(Struct, frozen=True):
    """What to load, where, and how.

    Attributes:
        model: the model's name, for logs.
        path: the GGUF file.
        type: `llm`, `embedding` or `reranking`.
        ctx_size: context size in tokens, all slots together.
        parallel: number of slots.
        booking: planned bytes for each device id.
        load_stall_s: seconds without any progress after which a load is given up.
        n_gpu_layers: layers to offload; 0 for none.
        env: environment variables that pin the worker to its devices.
    """

    model: str
    path: str
    type: str
    ctx_size: int
    parallel: int
    booking: Mapping[str, int]
    load_stall_s: float
    n_gpu_layers: int = 0
    env: Mapping[str, str] = {}


class Exit(Struct, frozen=True):
    """How a worker ended. `code` is negative for a signal; `log_tail` its last lines of output."""

    code: int
    log_tail: tuple[str, ...]

    @property
    def words(self) -> str:
        """`signal 9`, or `exit code 1`."""
        return f"signal {-self.code}" if self.code < 0 else f"exit code {self.code}"


class Worker(Protocol):
    """A running worker. It answers HTTP on `host`:`port` to whoever sends `api_key` as a bearer token."""

    host: str
    port: int
    api_key: str
    pid: int
    launch_command: tuple[str, ...]

    @property
    def exited(self) -> asyncio.Future[Exit]:
        """Done when the process has been reaped. Never cancelled, never an exception."""

    async def stop(self) -> bool:
        """Ask, then terminate, then kill, each bounded. False if it could not be killed.

        Idempotent. Safe to cancel: the process is killed then.
        """


class Engine(Protocol):
    """Starts workers."""

    name: str

    async def start(self, spec: WorkerSpec, progress: Callable[[float], None]) -> Worker:
        """Start a worker and wait until it can answer.

        `progress` is called on the loop with 0..1 as the load goes on. If the call is cancelled, the
        process is killed and reaped before the cancellation goes on.

        Raises:
            LoadFailed: with the cause and the last lines of the worker's output.
        """

    def capabilities(self) -> Mapping[str, Any]:
        """What the engine is and which devices it can reach, for people."""
