"""Pretend memory follows real workers: it grows with the load and is gone with the process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from router.devices.simulated import SimulatedDevices
from router.engines.base import Exit, WorkerSpec
from router.engines.simulating import SimulatingEngine
from router.errors import LoadFailed
from router.units import GIB
from tests.router.engines.conftest import Fake, ignore, spec_of

BOOKING = {"sim0": 4 * GIB, "sim1": GIB, "host": 9 * GIB}


class Steps:
    """An engine whose load goes on, ends or fails when told."""

    name = "steps"

    def __init__(self) -> None:
        self.progress: Callable[[float], None] = ignore
        self.outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.started = asyncio.Event()

    def capabilities(self) -> Mapping[str, Any]:
        return {"name": self.name}

    async def start(
        self, spec: WorkerSpec, progress: Callable[[float], None], launched: Callable[[int], None]
    ) -> Any:
        self.progress = progress
        self.started.set()
        return await self.outcome


class Process:
    host, port, api_key, pid = "127.0.0.1", 1, "k", 4242
    launch_command = ()

    def __init__(self) -> None:
        self.exited: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()

    async def stop(self) -> bool:
        return True


@pytest.fixture
def devices() -> SimulatedDevices:
    return SimulatedDevices([24 * GIB, 24 * GIB])


async def used(devices: SimulatedDevices) -> list[float]:
    return [24 - (reading.free or 0) / GIB for reading in await devices.read()]


async def test_memory_grows_with_the_load_and_goes_with_the_process(devices: SimulatedDevices) -> None:
    inner = Steps()
    told: list[float] = []
    engine = SimulatingEngine(inner, devices)
    load = asyncio.create_task(engine.start(spec_of(booking=BOOKING), told.append))
    await inner.started.wait()
    assert await used(devices) == [0, 0]
    inner.progress(0.25)
    assert await used(devices) == [1, 0.25]
    inner.progress(0.5)
    assert await used(devices) == [2, 0.5]
    assert told == [0.25, 0.5]
    process = Process()
    inner.outcome.set_result(process)
    assert (await load).pid == process.pid
    assert await used(devices) == [4, 1]
    assert (await devices.read())[0].by_pid == {4242: 4 * GIB}
    process.exited.set_result(Exit(0, ()))
    await asyncio.sleep(0)
    assert await used(devices) == [0, 0]


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_load_that_fails_or_is_cancelled_gives_all_back(
    devices: SimulatedDevices, is_cancelled: bool
) -> None:
    inner = Steps()
    load = asyncio.create_task(SimulatingEngine(inner, devices).start(spec_of(booking=BOOKING), ignore))
    await inner.started.wait()
    inner.progress(0.5)
    if is_cancelled:
        load.cancel()
        with pytest.raises(asyncio.CancelledError):
            await load
    else:
        inner.outcome.set_exception(LoadFailed("no"))
        with pytest.raises(LoadFailed):
            await load
    assert await used(devices) == [0, 0]


async def test_loads_of_the_same_model_are_told_apart(devices: SimulatedDevices) -> None:
    first, second = Steps(), Steps()
    processes = [Process(), Process()]
    for inner, process in zip((first, second), processes, strict=True):
        inner.outcome.set_result(process)
        await SimulatingEngine(inner, devices).start(spec_of(booking=BOOKING), ignore)
    assert await used(devices) == [8, 2]
    processes[0].exited.set_result(Exit(-9, ()))
    await asyncio.sleep(0)
    assert await used(devices) == [4, 1]


async def test_with_a_real_process(fake: Fake, devices: SimulatedDevices) -> None:
    engine = SimulatingEngine(fake("good"), devices)
    assert engine.capabilities()["simulated"] is True
    worker = await engine.start(spec_of(booking=BOOKING), ignore)
    assert await used(devices) == [4, 1]
    assert await worker.stop()
    assert await used(devices) == [0, 0]
