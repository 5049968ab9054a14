"""Faults of admission that programs of this kind have had, one by one, on devices that lag and fail."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from router.catalog.options import LoadOptions
from router.errors import InsufficientMemory, RouterError, Unavailable
from router.residency.view import devices_view
from router.residency.world import Wants
from router.snapshot import ResidentState
from router.units import GIB, MIB
from tests.support.home import Home, home, sized
from tests.support.sim_memory import NEVER, gpu, host
from tests.support.simulation import policy
from tests.support.virtual_loop import now, virtual

LOADING, READY = ResidentState.LOADING, ResidentState.READY


async def refused(asked: Any) -> RouterError:
    with pytest.raises(RouterError) as caught:
        await asked
    return caught.value


# --- F01: loads in flight ------------------------------------------------------------------------------


def founding(**rest: Any) -> Any:
    """24 GiB, of which 12 are free; two models of 8 GiB that take three seconds to load."""
    card = gpu(0, 24 * GIB, others=12 * GIB, pid_lag_s=NEVER, lag_s=2.0)
    return home(sized("A", 8), sized("B", 8), devices=(card,), load_s=3.0, max_loaded_models=2, **rest)


@pytest.mark.fault("F01")
@virtual
async def test_of_two_loads_at_once_one_waits():
    async with founding() as house:
        first = house.ask("A", 5.0)
        await asyncio.sleep(0.01)
        second = house.ask("B", 0.0)
        await asyncio.sleep(0.1)
        assert house.resident() == ["A"]
        assert house.reserved() == {"gpu0": 8 * GIB}
        assert house.reconciler.claims == {"gpu0": 8 * GIB}
        await first
        await second
        assert house.resident() == ["B"]


@pytest.mark.fault("F01")
@virtual
async def test_two_that_are_asked_for_in_one_instant_do_not_both_start():
    async with founding() as house:
        both = [house.ask("A", 1.0), house.ask("B", 1.0)]
        await asyncio.sleep(0.1)
        assert house.engine.starts == ["A"]
        await asyncio.gather(*both)
        assert house.engine.starts == ["A", "B"]


@pytest.mark.fault("F01")
@pytest.mark.parametrize("end", ["fails", "is cancelled", "dies"])
@virtual
async def test_a_load_that_ends_otherwise_gives_its_reserve_back(end: str):
    async with founding() as house:
        if end == "fails":
            house.engine.broken.add("A")
        first = house.ask("A", 5.0)
        await asyncio.sleep(0.01)
        second = house.ask("B", 0.0)
        await asyncio.sleep(1.0)
        if end == "is cancelled":
            first.cancel()
        elif end == "dies":
            await asyncio.sleep(2.5)
            house.engine.workers_of("A")[0].end(-9)
        await second
        await asyncio.gather(first, return_exceptions=True)
        assert house.resident() == ["B"]


@pytest.mark.fault("F01")
@virtual
async def test_what_a_sample_shows_of_a_load_is_not_charged_twice():
    card = gpu(0, 24 * GIB, others=12 * GIB)
    async with home(sized("A", 8), sized("C", 3), devices=(card,), load_s=3.0) as house:
        first = house.ask("A", 5.0)
        await asyncio.sleep(1.6)
        assert house.reserved()["gpu0"] < 8 * GIB
        await house.use("C")
        assert house.resident() == ["A", "C"]
        await first


@pytest.mark.fault("F01")
@virtual
async def test_three_loads_share_two_gpus():
    cards = tuple(gpu(n, 24 * GIB, others=12 * GIB, lag_s=2.0, pid_lag_s=NEVER) for n in range(2))
    async with home(*(sized(n, 8) for n in "ABC"), devices=cards, load_s=3.0) as house:
        asked = [house.ask(name, 1.0) for name in "ABC"]
        await asyncio.sleep(0.5)
        assert house.reserved() == {"gpu0": 8 * GIB, "gpu1": 8 * GIB}
        assert house.engine.starts == ["A", "B"]
        await asyncio.gather(*asked)
        assert len(house.resident()) == 2


@pytest.mark.fault("F01")
@virtual
async def test_a_split_model_reserves_on_both_gpus():
    cards = tuple(gpu(n, 24 * GIB, others=12 * GIB, lag_s=2.0, pid_lag_s=NEVER) for n in range(2))
    async with home(sized("E", 18), sized("D", 6), devices=cards, load_s=3.0) as house:
        split = house.ask("E", 1.0)
        await asyncio.sleep(0.5)
        assert house.reserved() == {"gpu0": 9 * GIB, "gpu1": 9 * GIB}
        other = house.ask("D", 0.0)
        await asyncio.sleep(0.5)
        assert house.engine.starts == ["E"]
        await asyncio.gather(split, other)


# --- F09: memory that is late to come back -------------------------------------------------------------


def swap(**rest: Any) -> Any:
    """12 GiB, and two models of 10."""
    return home(sized("A", 10), sized("B", 10), devices=(gpu(0, 12 * GIB, lag_s=2.0),), **rest)


@pytest.mark.fault("F09")
@virtual
async def test_the_next_load_waits_until_the_memory_is_back():
    async with swap() as house:
        await house.use("A")
        await asyncio.sleep(5)
        begun = now()
        await house.use("B")
        assert now() - begun < 5.5
        assert "Unloaded A from CUDA0 (10.0 GiB) to make room for B." in house.told()


@pytest.mark.fault("F09")
@virtual
async def test_memory_that_is_back_already_is_not_waited_for():
    async with home(sized("A", 10), sized("B", 10), devices=(gpu(0, 12 * GIB),)) as house:
        await house.use("A")
        await asyncio.sleep(5)
        house.engine.workers_of("A")[0].end(-9)
        await asyncio.sleep(5)
        begun = now()
        await house.use("B")
        assert now() - begun < 1.4


@pytest.mark.fault("F09")
@pytest.mark.parametrize(("stays", "loads"), [(200 * MIB, True), (10 * GIB, False)])
@virtual
async def test_memory_that_comes_back_in_part_or_never(stays: int, loads: bool):
    async with swap() as house:
        await house.use("A")
        await asyncio.sleep(5)
        card = house.memory.devices["gpu0"]
        # What does not come back is nobody's any more.
        house.memory.end = lambda pid: (card.held.clear(), house.memory.others_hold("gpu0", stays))
        asked = house.ask("B")
        if loads:
            await asked
            return
        begun = now()
        error = await refused(asked)
        assert isinstance(error, InsufficientMemory)
        assert 5 <= now() - begun < 6
        assert house.engine.starts == ["A"]


@pytest.mark.fault("F09")
@virtual
async def test_a_worker_that_takes_long_to_stop_counts_until_it_has():
    async with swap() as house:
        house.engine.stop_s = 10.0
        await house.use("A")
        await asyncio.sleep(5)
        asked = house.ask("B")
        await asyncio.sleep(9)
        assert house.engine.starts == ["A"]
        await asked
        house.engine.stop_s = 0.1


# --- F10: the device that is short ---------------------------------------------------------------------


@pytest.mark.fault("F10")
@virtual
async def test_room_is_made_on_the_device_that_is_short():
    models = (
        sized("X", 4, "gpu1"),
        sized("Y", 10, "gpu0"),
        sized("B", 8, "gpu0"),
        sized("C", 8),
        sized("D", 30),
        sized("huge", 40, "gpu0"),
    )
    cards = (gpu(0, 24 * GIB, others=12 * GIB), gpu(1, 24 * GIB))
    async with home(*models, devices=cards) as house:
        await house.use("X")
        await house.use("Y")
        await asyncio.sleep(3)
        await house.use("B")
        assert house.resident() == ["X", "B"]
        await house.use("C")
        assert house.where("C") == {"gpu1": 8.0}
        assert house.resident() == ["X", "B", "C"]
        await asyncio.sleep(3)
        error = await refused(house.use("huge"))
        assert isinstance(error, InsufficientMemory)
        assert house.resident() == ["X", "B", "C"]
        await house.use("D")
        assert set(house.where("D")) == {"gpu0", "gpu1"}
        # 30 GiB need what all of them held but nothing else is left: 12 + 24 in all.
        assert house.resident() == ["D"]


@pytest.mark.fault("F10")
@virtual
async def test_only_those_go_that_are_needed():
    models = (sized("two", 2), sized("eight", 8), sized("seventeen", 17), sized("B", 15))
    async with home(*models, devices=(gpu(0, 28 * GIB),)) as house:
        for name in ("two", "eight", "seventeen"):
            await house.use(name)
        await asyncio.sleep(3)
        await house.use("B")
        assert house.resident() == ["two", "eight", "B"]


@pytest.mark.fault("F10")
@virtual
async def test_a_split_model_makes_room_only_where_it_needs_it():
    models = (sized("X", 4, "gpu1"), sized("Y", 20, "gpu0"), sized("D", 30))
    async with home(*models, devices=(gpu(0, 24 * GIB), gpu(1, 24 * GIB))) as house:
        await house.use("X")
        await house.use("Y")
        await asyncio.sleep(3)
        await house.use("D")
        assert house.resident() == ["X", "D"]


# --- F19: devices that cannot be read ------------------------------------------------------------------


@pytest.mark.fault("F19")
@virtual
async def test_a_device_that_was_never_read_takes_what_the_count_allows():
    card = gpu(0, 12 * GIB, is_lost=True)
    async with home(sized("A", 8), sized("B", 8), devices=(card,), max_loaded_models=1) as house:
        await house.use("A")
        await house.use("B")
        assert house.resident() == ["B"]


@pytest.mark.fault("F19")
@virtual
async def test_a_device_that_fails_keeps_its_size_and_its_charges():
    async with home(sized("A", 8), sized("B", 8), devices=(gpu(0, 12 * GIB),)) as house:
        first = house.ask("A", 5.0)
        await asyncio.sleep(2)
        house.memory.devices["gpu0"].is_lost = True
        await asyncio.sleep(1)
        second = house.ask("B")
        await asyncio.sleep(1)
        assert house.engine.starts == ["A"]
        await asyncio.gather(first, second)
        assert house.resident() == ["B"]
        house.memory.devices["gpu0"].is_lost = False


@pytest.mark.fault("F19")
@virtual
async def test_nothing_is_loaded_on_an_unknown_device_if_the_user_says_so():
    cards = (gpu(0, 12 * GIB, is_lost=True), gpu(1, 12 * GIB))
    models = (sized("A", 8, "gpu0"), sized("B", 8), sized("C", 8, "gpu1"))
    async with home(*models, devices=cards, unknown_device="refuse") as house:
        await house.use("C")
        error = await refused(house.use("A"))
        assert error.code == "insufficient_memory"
        await asyncio.sleep(3)
        await house.use("B")
        assert house.where("B") == {"gpu1": 8.0}


@pytest.mark.fault("F19")
@virtual
async def test_pressure_is_not_felt_where_nothing_is_known():
    async with home(sized("A", 8), devices=(gpu(0, 12 * GIB),), auto_evict=True) as house:
        await house.use("A")
        house.memory.devices["gpu0"].is_lost = True
        await asyncio.sleep(5)
        assert house.resident() == ["A"]
        house.memory.devices["gpu0"].is_lost = False


# --- F30: workers that need more than was planned ------------------------------------------------------


@pytest.mark.fault("F30")
@virtual
async def test_a_worker_that_outgrows_its_plan_is_charged_for_it():
    models = (sized("A", 8), sized("B", 3))
    async with home(*models, devices=(gpu(0, 12 * GIB),), takes={"A": 1.25}) as house:
        await house.use("A")
        await asyncio.sleep(1)
        resident = next(iter(house.reconciler.table.of_model("A")))
        assert resident.charged == {"gpu0": 10 * GIB}
        assert "outgrown" in house.codes()
        await house.use("B")
        assert house.resident() == ["B"]


@pytest.mark.fault("F30")
@virtual
async def test_a_load_that_runs_out_of_memory_is_tried_once_more_with_more_room():
    models = (sized("A", 3), sized("B", 8))
    async with home(*models, devices=(gpu(0, 24 * GIB),)) as house:
        await house.use("A")
        await asyncio.sleep(3)
        house.engine.runs_short.add("B")
        await house.use("B")
        assert house.engine.starts == ["A", "B", "B"]
        assert house.resident() == ["B"]
        assert house.where("B") == {"gpu0": 9.0}
        assert "out_of_memory" in house.codes()


@pytest.mark.fault("F30")
@virtual
async def test_a_load_that_runs_out_of_memory_twice_fails_and_says_so():
    async with home(sized("B", 8), devices=(gpu(0, 24 * GIB),)) as house:
        house.engine.runs_short.add("B")
        house.engine.load_s = 3.0
        asked = house.ask("B")
        await asyncio.sleep(4)
        assert house.engine.starts == ["B", "B"]
        house.engine.runs_short.add("B")
        error = await refused(asked)
        assert error.code == "out_of_memory"
        assert house.placer.shortages == ["B", "B"]


@pytest.mark.fault("F30")
@virtual
async def test_a_second_try_that_no_longer_fits_is_not_made():
    async with home(sized("B", 11), devices=(gpu(0, 12 * GIB),)) as house:
        house.engine.runs_short.add("B")
        error = await refused(house.use("B"))
        assert error.code == "insufficient_memory"
        assert house.engine.starts == ["B"]


# --- F36: other programs -------------------------------------------------------------------------------


@pytest.mark.fault("F36")
@pytest.mark.parametrize("order", [(0.5, 1.5), (1.5, 0.5)])
@virtual
async def test_the_margin_means_the_same_whatever_others_held_before(order: tuple[float, float]):
    card = gpu(0, 16 * GIB)
    async with home(sized("A", 14), sized("B", 13), devices=(card,), vram_margin=1536 * MIB) as house:
        for size in order:
            house.memory.others_hold("gpu0", int(size * GIB))
            await asyncio.sleep(3)
            if size == 0.5:
                await house.use("A")
                await house.reconciler.unload("A")
                await asyncio.sleep(5)
            else:
                assert (await refused(house.use("A"))).code == "insufficient_memory"
            await house.use("B")
            await house.reconciler.unload("B")
            await asyncio.sleep(5)


@pytest.mark.fault("F36")
@pytest.mark.parametrize("others", [0.5, 1.5])
@virtual
async def test_the_cap_is_about_our_models_alone(others: float):
    card = gpu(0, 16 * GIB, others=int(others * GIB))
    models = (sized("A", 6), sized("B", 5), sized("C", 2))
    async with home(*models, devices=(card,), vram_cap=12 * GIB) as house:
        await house.use("A")
        await house.use("B")
        assert house.resident() == ["A", "B"]
        await asyncio.sleep(3)
        await house.use("C")
        assert house.resident() == ["B", "C"]


@pytest.mark.fault("F36")
@virtual
async def test_a_load_is_judged_by_a_reading_of_that_moment():
    card = gpu(0, 16 * GIB)
    async with home(sized("A", 4), sized("B", 8), devices=(card,)) as house:
        await house.use("A")
        await asyncio.sleep(5.5)
        house.memory.others_hold("gpu0", 9 * GIB)
        # What others took after the last reading is seen before anything is decided; nobody goes for it.
        error = await refused(house.use("B"))
        assert house.resident() == ["A"]
        row = error.details["devices"][0]
        assert (row["needed"], row["others"], row["charged"]) == (8 * GIB, 9 * GIB, 4 * GIB)
        assert "Close other programs" in error.hint


@pytest.mark.fault("F36")
@virtual
async def test_a_margin_larger_than_the_device_refuses_and_says_what_it_is():
    async with home(sized("A", 1), devices=(gpu(0, 16 * GIB),), vram_margin=20 * GIB) as house:
        error = await refused(house.use("A"))
        assert error.details["devices"][0]["margin"] == 20 * GIB


# --- beyond the faults ---------------------------------------------------------------------------------


@virtual
async def test_mapped_weights_do_not_make_the_host_seem_empty():
    async with home(*(sized(n, 6) for n in "ABC"), devices=(host(16 * GIB),)) as house:
        for name in "ABC":
            await house.use(name)
            await asyncio.sleep(3)
        assert house.resident() == ["B", "C"]


@virtual
async def test_a_gpu_that_shares_the_hosts_memory_does_not_double_it():
    """Bookings of a unified device are bookings of the host as well."""
    async with home(*(sized(n, 6, "host") for n in "ABC"), devices=(host(16 * GIB),)) as house:
        asked = [house.ask(name, 1.0) for name in "ABC"]
        await asyncio.gather(*asked)
        assert len(house.resident()) == 2


@virtual
async def test_reject_lets_nobody_wait():
    card = gpu(0, 12 * GIB)
    async with home(sized("A", 8), sized("B", 8), devices=(card,), admission="reject") as house:
        first = house.ask("A", 5.0)
        await asyncio.sleep(0.5)
        for _ in range(2):
            error = await refused(house.use("B"))
            assert isinstance(error, Unavailable)
            assert (error.code, error.status, error.retry_after_s) == ("admission_rejected", 503, 5)
            await asyncio.sleep(1)
        await first
        await asyncio.sleep(5)
        await house.use("B")
        assert house.resident() == ["B"]


@pytest.mark.parametrize("first", ["the load", "the request"])
@virtual
async def test_a_load_that_is_impossible_as_asked_takes_no_request_with_it(first: str):
    """It names a card that is full; the other one has room for the same model."""
    cards = (gpu(0, 24 * GIB, others=20 * GIB), gpu(1, 24 * GIB))
    async with home(sized("A", 8), devices=cards) as house:
        if first == "the request":
            served = house.ask("A", 1.0)
        load = asyncio.ensure_future(house.reconciler.load("A", LoadOptions(device=("gpu0",))))
        if first == "the load":
            served = house.ask("A", 1.0)
        error = await refused(load)
        assert isinstance(error, InsufficientMemory)
        assert "gpu0" in str(error.details)
        await served
        assert list(house.where("A")) == ["gpu1"]


@virtual
async def test_a_load_that_has_to_wait_as_asked_takes_no_request_with_it():
    cards = (gpu(0, 24 * GIB), gpu(1, 24 * GIB))
    async with home(sized("A", 8), sized("B", 20, "gpu0"), devices=cards, admission="reject") as house:
        busy = house.ask("B", 5.0)
        await asyncio.sleep(0.5)
        load = asyncio.ensure_future(house.reconciler.load("A", LoadOptions(device=("gpu0",))))
        served = house.ask("A", 0.0)
        assert (await refused(load)).code == "admission_rejected"
        await served
        assert list(house.where("A")) == ["gpu1"]
        await busy


@pytest.mark.parametrize("moment", ["loading", "ready"])
@virtual
async def test_a_load_that_is_impossible_as_asked_ends_no_load_and_no_model(moment: str):
    cards = (gpu(0, 24 * GIB, others=20 * GIB), gpu(1, 24 * GIB))
    async with home(sized("A", 8), devices=cards, load_s=3.0) as house:
        first = asyncio.ensure_future(house.reconciler.load("A"))
        await asyncio.sleep(1.0)
        if moment == "loading":
            first.cancel()  # Nobody waits for it any more, and still it goes on.
        else:
            await first
        assert (await refused(house.reconciler.load("A", LoadOptions(device=("gpu0",))))).status == 507
        await house.use("A")
        assert house.engine.starts == ["A"]
        await asyncio.gather(first, return_exceptions=True)


@virtual
async def test_an_impossible_load_while_paused_lets_no_request_in():
    cards = (gpu(0, 24 * GIB, others=20 * GIB), gpu(1, 24 * GIB))
    async with home(sized("A", 8), devices=cards) as house:
        house.reconciler.pause(True)
        served = house.ask("A", 1.0)
        load = asyncio.ensure_future(house.reconciler.load("A", LoadOptions(device=("gpu0",))))
        errors = await asyncio.gather(served, load, return_exceptions=True)
        assert [getattr(e, "code", None) for e in errors] == ["paused", "insufficient_memory"]
        assert house.resident() == []


@virtual
async def test_proceed_loads_and_says_what_is_missing():
    card = gpu(0, 12 * GIB)
    async with home(
        sized("A", 8), sized("B", 8), devices=(card,), admission="proceed", takes={"A": 0.5, "B": 0.4}
    ) as house:
        await house.use("A")
        await house.use("B")
        assert house.resident() == ["A", "B"]
        assert "proceeds_short" in house.codes()


@virtual
async def test_a_refusal_tells_where_the_memory_is():
    card = gpu(0, 12 * GIB, others=2 * GIB)
    async with home(sized("A", 4), sized("B", 11), devices=(card,)) as house:
        await house.use("A")
        await asyncio.sleep(3)
        error = await refused(house.use("B"))
        assert (error.status, error.code) == (507, "insufficient_memory")
        (row,) = error.details["devices"]
        assert row == {
            "id": "gpu0",
            "label": "CUDA0",
            "needed": 11 * GIB,
            "available": 12 * GIB - 2 * GIB - 4 * GIB - 512 * MIB,
            "possible": 12 * GIB - 2 * GIB - 512 * MIB,
            "total": 12 * GIB,
            "free": 6 * GIB,
            "charged": 4 * GIB,
            "reserved": 0,
            "claimed": 0,
            "others": 2 * GIB,
            "margin": 512 * MIB,
        }


@virtual
async def test_auto_evict_does_not_fight_admission():
    card = gpu(0, 20 * GIB)
    models = (sized("A", 8), sized("B", 9), sized("C", 2), sized("huge", 19))
    async with home(*models, devices=(card,), auto_evict=True, auto_evict_threshold_pct=0.9) as house:
        await house.use("A")
        await house.use("B")
        await asyncio.sleep(3)
        # 17 of 18 GiB below the ceiling: the next one has to make room, so that no pressure arises.
        await house.use("C")
        await asyncio.sleep(10)
        assert house.resident() == ["B", "C"]
        await house.use("huge")
        await asyncio.sleep(10)
        assert house.resident() == ["huge"]


@virtual
async def test_a_helper_makes_no_candidate_of_its_policy_go():
    card = gpu(0, 12 * GIB)
    models = (sized("A", 8), sized("helper", 6))
    asked = (policy("p", "A", helpers=("helper",)),)
    async with home(*models, devices=(card,), policies=asked) as house:
        await house.use("A")
        await asyncio.sleep(3)
        error = await refused(house.use("helper", wants=Wants.HELPER, policy="p"))
        assert error.code == "insufficient_memory"
        assert house.resident() == ["A"]


@virtual
async def test_a_load_that_waits_is_not_robbed_of_what_is_freed_for_it():
    card = gpu(0, 12 * GIB, lag_s=1.0)
    async with home(sized("A", 10), sized("B", 10), sized("C", 3), devices=(card,)) as house:
        await house.use("A")
        await asyncio.sleep(3)
        second = house.ask("B", 1.0)
        await asyncio.sleep(0.3)
        third = house.ask("C")
        await asyncio.gather(second, third)
        assert house.engine.starts == ["A", "B", "C"]


@virtual
async def test_what_is_kept_for_a_load_is_shown():
    card = gpu(0, 12 * GIB)
    async with home(sized("A", 8), sized("B", 8), devices=(card,), load_s=2.0) as house:
        first, second = house.ask("A", 1.0), house.ask("B")
        await asyncio.sleep(0.5)
        (view,) = _views(house)
        assert (view.claimed, view.available) == (8 * GIB, 0)
        assert view.reserved > 0
        await asyncio.gather(first, second)


def _views(house: Home) -> Any:
    reconciler = house.reconciler
    world = reconciler.table.world(reconciler.readings, house.placer)
    return devices_view(world, house.settings, reconciler.claims)
