"""Sources that answer, fail, or hang, read off the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from router.devices.base import DeviceInfo, DeviceReading
from router.devices.host import HOST, HostMemory
from router.devices.sampler import Sampler

GPU = DeviceInfo("gpu-1", "GPU", "CUDA0", "gpu")


class Driver:
    """Answers when `gate` is open; raises `fault` if there is one."""

    def __init__(self, device: DeviceInfo) -> None:
        self.devices = (device,)
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)
        self.fault: Exception | None = None
        self.threads: set[int] = set()
        self.count = 0

    def sample(self, started: float) -> tuple[DeviceReading, ...]:
        self.count += 1
        self.threads.add(threading.get_ident())
        self.entered.release()
        self.gate.wait()
        if self.fault:
            raise self.fault
        return (DeviceReading(self.devices[0], 10, self.count, started),)


@pytest.fixture
def gpu() -> Iterator[Driver]:
    driver = Driver(GPU)
    yield driver
    driver.gate.set()


async def test_all_devices_host_last_off_the_loop_and_stamped(gpu: Driver) -> None:
    sampler = Sampler([Driver(HOST), gpu])
    before = asyncio.get_running_loop().time()
    readings = await sampler.read()
    assert [reading.device.id for reading in readings] == ["gpu-1", "host"]
    assert readings[0].started >= before
    later = await sampler.read()
    assert later[0].started >= readings[0].started
    assert later[0].free == 2
    assert len(gpu.threads) == 1
    assert threading.get_ident() not in gpu.threads
    await sampler.close()


async def test_calls_at_the_same_time_share_one_sample(gpu: Driver) -> None:
    sampler = Sampler([gpu])
    gpu.gate.clear()
    calls = [asyncio.create_task(sampler.read()) for _ in range(5)]
    await asyncio.to_thread(gpu.entered.acquire)
    gpu.gate.set()
    answers = await asyncio.gather(*calls)
    assert all(answer == answers[0] for answer in answers)
    assert gpu.count == 1
    await sampler.close()


async def test_a_source_that_fails_is_unknown_with_its_reason_and_the_others_go_on(gpu: Driver) -> None:
    gpu.fault = RuntimeError("GPU is lost")
    sampler = Sampler([gpu, Driver(HOST)])
    lost, host = await sampler.read()
    assert (lost.device, lost.total, lost.free) == (GPU, None, None)
    assert "GPU is lost" in lost.reason
    assert host.free == 1
    gpu.fault = None
    assert (await sampler.read())[0].free == 2
    await sampler.close()


async def test_a_driver_that_hangs_is_unknown_and_not_asked_again_until_it_answers(gpu: Driver) -> None:
    sampler = Sampler([gpu, Driver(HOST)], timeout_s=0.05)
    gpu.gate.clear()
    for _ in range(3):
        hung, host = await sampler.read()
        assert hung.total is None
        assert "does not answer" in hung.reason
        assert host.total == 10
    assert gpu.count == 1
    gpu.gate.set()
    while (await sampler.read())[0].total is None:
        pass
    assert gpu.count == 2
    await sampler.close()


async def test_closing_does_not_wait_for_a_driver_that_hangs(gpu: Driver) -> None:
    sampler = Sampler([gpu], timeout_s=0.05)
    gpu.gate.clear()
    await sampler.read()
    await sampler.close()
    assert "no more" in (await sampler.read())[0].reason


async def test_threads_end_when_closed(gpu: Driver) -> None:
    sampler = Sampler([gpu])
    await sampler.read()
    (thread,) = [thread for thread in threading.enumerate() if thread.ident in gpu.threads]
    assert thread.daemon
    await sampler.close()
    await asyncio.to_thread(thread.join, 10)
    assert not thread.is_alive()


def test_an_answer_after_the_loop_is_gone_harms_nobody(gpu: Driver) -> None:
    sampler = Sampler([gpu], timeout_s=0.05)
    gpu.gate.clear()
    asyncio.run(sampler.read())
    (thread,) = [thread for thread in threading.enumerate() if thread.ident in gpu.threads]
    gpu.gate.set()
    thread.join(10)
    assert not thread.is_alive()


async def test_the_real_host() -> None:
    sampler = Sampler([HostMemory()])
    (reading,) = await sampler.read()
    assert reading.total is not None
    assert not reading.reason
    await sampler.close()
