"""What the rest of the router knows of an engine: how to start a worker, and how to stop it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from msgspec import Struct

from router.engines.causes import find_last_words

OUT_OF_MEMORY: Final = "out_of_memory"
"""The code of a `LoadFailed` whose worker died for want of memory."""


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
        devices: ids of the GPUs that the worker may use, in its order; none for the processor alone.
        split_mode: `none` for all on `devices[main_gpu]`, `layer` for whole blocks on all of them.
        tensor_split: shares of the devices, in their order; empty with fewer than two devices.
        n_gpu_layers: blocks on GPUs, the output being one more; -1 for all, 0 for none.
        n_cpu_moe: the experts of so many of the first blocks stay on the host.
        cache_type_k, cache_type_v: element types of the cache.
        mmproj: the projector's file; "" for none.
        args: further arguments of the engine, already checked against the list of safe ones.
        key: names model, options and layout in what is remembered of loads.
    """

    model: str
    path: str
    type: str
    ctx_size: int
    parallel: int
    booking: Mapping[str, int]
    load_stall_s: float
    devices: tuple[str, ...] = ()
    split_mode: str = "layer"
    main_gpu: int = 0
    tensor_split: tuple[float, ...] = ()
    n_gpu_layers: int = 0
    n_cpu_moe: int = 0
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    mmproj: str = ""
    args: tuple[str, ...] = ()
    key: str = ""


class EngineDevice(Struct, frozen=True):
    """A device as an engine lists it.

    Attributes:
        name: the engine's own name for it, such as `CUDA0`.
        backend: `cuda`, `rocm`, `vulkan` or `metal`.
        description: what the driver calls it.
        total: bytes, as the engine tells them; 0 if it does not.
        pin: its name in the back end's variable of visible devices, such as a GPU's UUID; "" for its number.
    """

    name: str
    backend: str
    description: str
    total: int
    pin: str = ""


class Capabilities(Struct, frozen=True):
    """What an engine is and what it can reach, as a child process found out.

    Attributes:
        id: how users name it: `embedded`, the name of a build, or the path of a program.
        version: the engine's own; "" if it does not tell.
        path: its program; "" for the embedded one.
        devices: GPUs that it can reach.
        problem: why it cannot be used; "" if it can.
        note: what it said about GPUs that it cannot reach; "" if nothing.
        options: the names of its arguments, such as `--no-ui`; empty for the embedded one.
    """

    id: str
    title: str
    version: str
    path: str = ""
    devices: tuple[EngineDevice, ...] = ()
    problem: str = ""
    note: str = ""
    options: tuple[str, ...] = ()

    @property
    def backends(self) -> frozenset[str]:
        """The back ends of its devices."""
        return frozenset(device.backend for device in self.devices)


class Exit(Struct, frozen=True):
    """How a worker ended. `code` is negative for a signal; `log_tail` its last lines of output."""

    code: int
    log_tail: tuple[str, ...]

    @property
    def words(self) -> str:
        """`signal 9`, or `exit code 1`."""
        return f"signal {-self.code}" if self.code < 0 else f"exit code {self.code}"

    @property
    def last_words(self) -> str:
        """What it said of its end, without full stop; "" for nothing but its daily chatter."""
        return find_last_words(self.log_tail)


class Worker(Protocol):
    """A running worker. It answers HTTP on `host`:`port` to whoever sends `api_key` as a bearer token."""

    host: str
    port: int
    api_key: str
    pid: int
    launch_command: tuple[str, ...]

    @property
    def measured(self) -> Mapping[str, int]:
        """Bytes that the engine said it took, by device id; empty if it said nothing."""

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

    async def start(
        self,
        spec: WorkerSpec,
        progress: Callable[[float], None],
        launched: Callable[[int], None] = lambda pid: None,
    ) -> Worker:
        """Start a worker and wait until it can answer.

        `progress` is called on the loop with 0..1 as the load goes on, and `launched` with the process id as
        soon as there is a process. If the call is cancelled, the process is killed and reaped before the
        cancellation goes on.

        Raises:
            LoadFailed: with the cause; its code is `OUT_OF_MEMORY` if that is what the engine said.
        """

    def capabilities(self) -> Mapping[str, Any]:
        """What the engine is and which devices it can reach, for people."""
