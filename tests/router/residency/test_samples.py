"""What decisions ask of the readings they use."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs

from router.devices.base import DeviceInfo, DeviceReading
from router.errors import InsufficientMemory
from router.settings.schema import Settings
from router.snapshot import ResidentState
from router.units import GIB
from tests.support.simulation import House, model
from tests.support.virtual_loop import now, settle, virtual

A = model("A")
GPU = DeviceInfo("gpu", "GPU", "CUDA0", "gpu", backend="cuda")


def reading(started: float, free: int | None = 20 * GIB) -> DeviceReading:
    total = None if free is None else 24 * GIB
    return DeviceReading(GPU, total, free, started, reason="" if total else "it is lost")


def small_card(started: float) -> DeviceReading:
    return DeviceReading(structs.replace(GPU, id="small"), 4 * GIB, 4 * GIB, started)


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


LARGE = [structs.replace(model(name), size_bytes=14 * GIB) for name in "BCD"]


@virtual
async def test_what_was_decided_holds_while_a_newer_reading_is_awaited():
    house = House(*LARGE, settings=Settings(max_loaded_models=3))
    house.reconciler.observe((reading(now(), 24 * GIB),))
    long = house.ask("B", seconds=30)
    await asyncio.sleep(5)
    assert house.state("B") is ResidentState.READY
    house.reconciler.observe((reading(now(), 10 * GIB),))
    other = house.ask("C")
    await settle()
    assert house.state("B") is ResidentState.DRAINING
    for _ in range(5):
        # Passes on readings that have become old: B goes on draining, and C's memory is kept.
        await asyncio.sleep(1)
        house.reconciler.kick()
        await settle()
        assert house.state("B") is ResidentState.DRAINING
        assert house.reconciler.claims == {"gpu": 14 * GIB}
    later = house.ask("B")
    await settle()
    assert not later.done()
    assert house.codes().count("drain") == 1
    for task in (long, other, later):
        task.cancel()


@virtual
async def test_a_load_that_others_go_for_keeps_its_place_while_others_load():
    house = House(*LARGE, A, settings=Settings(max_loaded_models=4, max_parallel_loads=1))
    house.engine.load_s_of["A"] = 60
    house.reconciler.observe((reading(now(), 24 * GIB), small_card(now())))
    long = house.ask("B", seconds=300)
    await asyncio.sleep(5)
    house.reconciler.observe((reading(now(), 10 * GIB), small_card(now())))
    other = house.ask("C")
    await settle()
    assert house.state("B") is ResidentState.DRAINING
    house.reconciler.observe((reading(now(), 10 * GIB), small_card(now())))
    small = house.ask("A")
    await settle()
    # It needs nobody to go and fits beside what is kept, so it may pass; B's reason to drain is still there.
    assert house.state("A") is ResidentState.LOADING
    house.reconciler.observe((reading(now(), 10 * GIB), small_card(now())))
    await settle()
    assert house.state("B") is ResidentState.DRAINING
    for task in (long, other, small):
        task.cancel()


@virtual
async def test_a_refusal_counts_what_is_kept_for_others_as_possible():
    house = House(*LARGE, structs.replace(model("E"), size_bytes=30 * GIB), settings=Settings(vram_margin=0))
    house.reconciler.observe((reading(now(), 24 * GIB),))
    long = house.ask("B", seconds=300)
    await asyncio.sleep(5)
    house.reconciler.observe((reading(now(), 10 * GIB),))
    other = house.ask("C")
    await settle()
    assert house.reconciler.claims == {"gpu": 14 * GIB}
    house.reconciler.observe((reading(now(), 10 * GIB),))
    with pytest.raises(InsufficientMemory) as refused:
        await house.use("E")
    (row,) = refused.value.details["devices"]
    assert (row["needed"], row["possible"], row["claimed"]) == (30 * GIB, 24 * GIB, 14 * GIB)
    for task in (long, other):
        task.cancel()


@virtual
async def test_a_model_that_ran_short_and_can_never_fit_costs_nobody_its_place():
    huge = structs.replace(model("E"), size_bytes=30 * GIB)
    house = House(*LARGE, huge, settings=Settings(max_loaded_models=3))
    house.reconciler.observe((reading(now(), 24 * GIB),))
    await house.use("B")
    house.reconciler.table.short.add("E")
    house.reconciler.observe((reading(now(), 10 * GIB),))
    with pytest.raises(InsufficientMemory):
        await house.use("E")
    assert house.state("B") is ResidentState.READY
