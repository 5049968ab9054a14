"""Grants without a pass: only where the next pass could do nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from router.catalog.options import LoadOptions
from router.residency.world import Drain, Wants, Why
from router.settings.schema import Settings
from router.snapshot import ResidentState
from tests.support.simulation import House, model
from tests.support.virtual_loop import until_quiet, virtual

A, B = model("A"), model("B")
SOON = 0.1


async def ready(*, parallel: int = 2) -> House:
    """A house in which A is loaded and nothing is left to be done."""
    house = House(A, B, settings=Settings(parallel=parallel, evict_idle_timeout_s=60))
    await house.use("A")
    await asyncio.sleep(SOON)
    await until_quiet()
    return house


@virtual
async def test_a_free_slot_is_granted_without_a_pass() -> None:
    house = await ready()
    passes, published = house.reconciler.passes, house.published
    leases = [await house.reconciler.acquire("A", keep_alive_s=5.0) for _ in range(3)]
    assert house.reconciler.passes == passes
    assert house.published == published + 3
    [resident] = house.reconciler.table.of_model("A")
    assert len(resident.leases) == 3  # as many as a pass grants: one above the slots
    assert resident.keep_alive_s == 5.0
    fourth = house.ask("A")
    await until_quiet()
    assert not fourth.done()
    leases[0].release()
    await fourth
    for lease in leases[1:]:
        lease.release()


@virtual
async def test_many_releases_are_followed_by_one_pass_and_the_idle_time_is_kept() -> None:
    house = await ready()
    passes = house.reconciler.passes
    for _ in range(50):
        (await house.reconciler.acquire("A")).release()
    await until_quiet()
    assert house.reconciler.passes == passes
    await asyncio.sleep(SOON)
    assert house.reconciler.passes == passes + 1
    await asyncio.sleep(59)
    assert house.resident() == ["A"]
    await asyncio.sleep(2)
    assert house.resident() == []


def _unload(house: House) -> None:
    next(house.reconciler.table.of_model("A")).unload = True
    house.reconciler.kick()


@pytest.mark.parametrize(
    "change",
    [
        _unload,
        lambda house: house.reconciler.configure(lookup={}),
        lambda house: house.set(max_loaded_models=1),
        lambda house: house.reconciler.kick(),
        lambda house: house.reconciler.pause(True, until_request=True),
        lambda house: house.ask("B"),
    ],
    ids=["unload", "the model goes", "settings", "a kick", "a pause that a request ends", "somebody waits"],
)
def test_after_any_change_a_pass_decides(change: Callable[[House], object]) -> None:
    @virtual
    async def decides() -> None:
        house = await ready()
        assert house.reconciler._free_at_once("A") is not None
        task = change(house)
        if isinstance(task, asyncio.Task):
            await asyncio.sleep(0)  # It is its first step that asks.
        assert house.reconciler._free_at_once("A") is None
        await asyncio.sleep(SOON)
        if isinstance(task, asyncio.Task):
            task.cancel()

    decides()


@virtual
async def test_what_drains_is_leased_to_nobody() -> None:
    house = await ready()
    lease = await house.reconciler.acquire("A")
    unloading = asyncio.ensure_future(house.reconciler.unload("A"))
    await until_quiet()
    assert house.state("A") is ResidentState.DRAINING
    assert house.reconciler._free_at_once("A") is None
    lease.release()
    await unloading


@virtual
async def test_helpers_and_loads_with_options_go_through_a_pass() -> None:
    house = await ready()
    passes = house.reconciler.passes
    lease = await house.reconciler.acquire("A", wants=Wants.HELPER)
    assert house.reconciler.passes == passes + 1
    lease.release()
    await asyncio.sleep(SOON)
    passes = house.reconciler.passes
    lease = await house.reconciler.acquire("A", options=LoadOptions(ctx_size=512))
    assert house.reconciler.passes == passes + 1
    lease.release()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("drain", Drain(Why.COUNT_LIMIT)),
        ("unload", True),
        ("unreachable", True),
        ("stuck", True),
        ("newcomer", True),
        ("standard", False),
        ("state", ResidentState.EVICTING),
    ],
)
def test_nothing_may_stand_against_it(name: str, value: object) -> None:
    @virtual
    async def stands() -> None:
        house = await ready()
        [resident] = house.reconciler.table.of_model("A")
        assert house.reconciler._free_at_once("A") is resident
        before = getattr(resident, name)
        setattr(resident, name, value)
        assert house.reconciler._free_at_once("A") is None
        setattr(resident, name, before)

    stands()
