"""When devices are read."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from router.devices.base import DeviceInfo, DeviceReading
from router.service.sampling import BUSY_S, IDLE_S, SOONEST_S, Wanted, differs, keep_reading
from router.units import GIB, MIB
from tests.support.virtual_loop import virtual

GPU = DeviceInfo("g", "GPU", "CUDA0", "gpu", "cuda")


def reading(free: int | None = 10 * GIB, reason: str = "") -> DeviceReading:
    return DeviceReading(GPU, None if free is None else 24 * GIB, free, 0.0, reason=reason)


class Provider:
    def __init__(self) -> None:
        self.times: list[float] = []

    async def read(self) -> tuple[DeviceReading, ...]:
        self.times.append(asyncio.get_running_loop().time())
        return (reading(),)

    async def close(self) -> None:
        pass


class Bench:
    """A loop of readings; `wants` asks for one after each, as a decision that waits for memory does."""

    def __init__(self) -> None:
        self.provider, self.wanted = Provider(), Wanted()
        self.busy = self.wants = False
        first = (reading(),)
        self.begun = asyncio.get_running_loop().time()
        self.task = asyncio.ensure_future(
            keep_reading(self.provider, first, self.take, lambda: self.busy, self.wanted.wait)
        )

    def take(self, readings: tuple[DeviceReading, ...], changed: bool) -> None:
        if self.wants:
            self.wanted.set()

    def pauses(self) -> list[float]:
        times = [self.begun, *self.provider.times]
        return [round(late - early, 3) for early, late in itertools.pairwise(times)]

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


@virtual
async def test_seldom_at_rest_and_more_often_while_memory_moves():
    bench = Bench()
    await asyncio.sleep(2.5)
    assert bench.pauses() == [IDLE_S, IDLE_S]
    bench.busy = True
    await asyncio.sleep(1.5)
    await bench.end()
    assert bench.pauses()[3:] == [BUSY_S] * len(bench.pauses()[3:])
    assert len(bench.pauses()) > 5


@virtual
async def test_at_once_when_a_decision_waits_then_with_growing_pauses():
    bench = Bench()
    await asyncio.sleep(0.3)
    bench.wants = True
    bench.wanted.set()
    await asyncio.sleep(3)
    await bench.end()
    pauses = bench.pauses()
    assert pauses[:3] == pytest.approx([0.3, SOONEST_S, SOONEST_S * 1.5])
    assert pauses == [pauses[0], *sorted(pauses[1:])]
    assert pauses[-1] == BUSY_S


@virtual
async def test_one_that_was_wanted_once_is_not_the_first_of_many():
    bench = Bench()
    bench.wanted.set()
    await asyncio.sleep(2.5)
    await bench.end()
    assert bench.pauses()[0] == 0.0
    assert len(bench.pauses()) <= 4


def test_what_is_worth_a_new_picture():
    assert not differs((reading(),), (reading(10 * GIB + MIB),))
    assert differs((reading(),), (reading(11 * GIB),))
    assert differs((reading(),), (reading(None, "lost"),))
    assert differs((reading(None, "a"),), (reading(None, "b"),))
    assert differs((reading(),), ())
