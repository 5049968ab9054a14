"""What decisions ask of the readings they use."""

from __future__ import annotations

import asyncio

from router.devices.base import DeviceInfo, DeviceReading
from router.snapshot import ResidentState
from router.units import GIB
from tests.support.simulation import House, model
from tests.support.virtual_loop import settle, virtual

A = model("A")
GPU = DeviceInfo("gpu", "GPU", "CUDA0", "gpu", backend="cuda")


def reading(started: float, free: int | None = 20 * GIB) -> DeviceReading:
    total = None if free is None else 24 * GIB
    return DeviceReading(GPU, total, free, started, reason="" if total else "it is lost")


def now() -> float:
    return asyncio.get_running_loop().time()


@virtual
async def test_an_old_reading_is_not_used_and_a_newer_one_is_asked_for():
    house = House(A)
    house.reconciler.observe((reading(now()),))
    await asyncio.sleep(1)
    waiting = house.ask("A")
    await settle()
    assert house.state("A") is None
    assert house.samples_wanted == 1
    house.reconciler.observe((reading(now()),))
    await settle()
    assert house.state("A") is ResidentState.LOADING
    await waiting


@virtual
async def test_a_sample_that_takes_longer_than_it_may_be_old_is_used_if_it_was_begun_since():
    house = House(A)
    house.reconciler.observe((reading(now()),))
    await asyncio.sleep(5)
    begun_before = now()
    waiting = house.ask("A")
    await asyncio.sleep(0.4)
    house.reconciler.observe((reading(begun_before - 0.1),))
    await settle()
    assert house.state("A") is None
    begun_since = now()
    await asyncio.sleep(0.4)
    house.reconciler.observe((reading(begun_since),))
    await settle()
    assert house.state("A") is ResidentState.LOADING
    await waiting


@virtual
async def test_a_device_that_cannot_be_read_blocks_nobody():
    house = House(A)
    house.reconciler.observe((reading(now(), None),))
    await asyncio.sleep(60)
    await house.use("A")
