"""What the feed says of waits and drains, and how often."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs

from router.devices.base import DeviceInfo, DeviceReading
from router.errors import InsufficientMemory, LoadFailed
from router.residency.board import listed
from router.settings.schema import Settings
from router.units import GIB
from tests.support.simulation import House, model
from tests.support.virtual_loop import settle, virtual

GPU = DeviceInfo("gpu", "GPU", "CUDA0", "gpu", backend="cuda")
LARGE = [structs.replace(model(name), size_bytes=14 * GIB) for name in "AB"]


def told(house: House, code: str) -> list[str]:
    return [entry.message for entry in house.reconciler.feed.latest(500) if entry.code == code]


@virtual
async def test_a_wait_is_told_once_however_often_it_is_looked_at():
    house = House(*LARGE, settings=Settings(max_loaded_models=2))

    def observe(free: int) -> None:
        started = asyncio.get_running_loop().time()
        house.reconciler.observe((DeviceReading(GPU, 24 * GIB, free, started),))

    observe(24 * GIB)
    running = [house.ask("A", seconds=10 + n) for n in range(2)]
    await asyncio.sleep(5)
    observe(10 * GIB)
    other = house.ask("B")
    await settle()
    for _ in range(20):
        # In turn a pass on a reading that is too old, which decides nothing, and one on a new one.
        await asyncio.sleep(1)
        house.reconciler.kick()
        await settle()
        observe(10 * GIB)
        await settle()
        if all(task.done() for task in running):
            break
    assert told(house, "defer") == ["B waits for A: 2 requests are still running."]
    observe(24 * GIB)
    await other


async def three_that_fit_while_one_may_load(admission: str) -> tuple[House, list[asyncio.Task[int]]]:
    small = [model(name) for name in "ABC"]
    house = House(*small, settings=Settings(max_loaded_models=3, max_parallel_loads=1, admission=admission))

    def observe(age: float) -> None:
        started = asyncio.get_running_loop().time() - age
        house.reconciler.observe((DeviceReading(GPU, 24 * GIB, 24 * GIB, started),))

    observe(1.0)
    asked = [house.ask(name) for name in "ABC"]
    await settle()
    # Nothing was decided on the old reading, but memory is kept for all three.
    observe(0.0)
    await settle()
    return house, asked


@virtual
async def test_who_waits_for_the_loads_of_others_does_not_wait_for_a_slot():
    house, asked = await three_that_fit_while_one_may_load("wait")
    assert house.reconciler.blocked["B"].sentence == "B waits while other models load"
    assert told(house, "defer") == []
    for task in asked:
        task.cancel()


@virtual
async def test_nobody_waits_for_the_loads_of_others_where_none_shall_wait():
    _, asked = await three_that_fit_while_one_may_load("reject")
    assert [task.done() for task in asked] == [False, True, True]
    await asyncio.gather(*asked, return_exceptions=True)


def test_names_are_listed_in_one_order_whoever_goes_first():
    assert [listed(names) for names in ("C", "BA", "CAB")] == ["C", "A and B", "A, B and C"]


@virtual
async def test_a_cap_that_is_too_small_is_named_as_what_helps():
    house = House(LARGE[0], settings=Settings(vram_cap=2 * GIB))
    started = asyncio.get_running_loop().time()
    # Others hold enough to be blamed, and are not to blame.
    house.reconciler.observe((DeviceReading(GPU, 40 * GIB, 20 * GIB, started),))
    with pytest.raises(InsufficientMemory) as refused:
        await house.use("A")
    assert refused.value.hint == "Raise vram_cap: it is 2 GiB, and loads leave a margin of that free."


@virtual
async def test_a_failed_load_names_its_model_once():
    house = House(LARGE[0])
    house.engine.broken.add("A")
    with pytest.raises(LoadFailed):
        await house.use("A")
    assert told(house, "load_failed") == ["A is broken"]


@virtual
async def test_a_drain_counts_those_who_are_served_in_the_same_step():
    a, b = (structs.replace(m, size_bytes=GIB) for m in LARGE)
    house = House(a, b)
    first, rival = house.ask("A", seconds=5), house.ask("B")
    await asyncio.gather(first, rival)
    assert told(house, "drain") == ["A takes no new request to make room for B: 1 request is still running."]
