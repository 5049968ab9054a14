"""The rules of waiting, pins, helpers and edits (R9 to R13).

One test a rule, through the real reconciler with simulated workers on a virtual clock.
"""

from __future__ import annotations

import asyncio
import logging

import pytest

from router.catalog.model import EMBEDDING
from router.errors import SlotsPinned, Unavailable
from router.residency.view import pool_view
from router.residency.world import Wants
from router.settings.schema import Settings
from router.snapshot import ResidentState
from tests.support.simulation import House, SimEngine, model, policy
from tests.support.virtual_loop import now, settle, virtual

A, B, C = model("A"), model("B"), model("C")
READY, DRAINING = ResidentState.READY, ResidentState.DRAINING


# R9: fairness


@pytest.mark.fault("F29")
@virtual
async def test_r9_alternating_requests_are_served_in_few_swaps():
    house = House(A, B, engine=SimEngine(load_s=2.0))
    await asyncio.gather(*(house.use("AB"[i % 2], 0.5) for i in range(20)))
    assert house.engine.starts == ["A", "B"]


@pytest.mark.fault("F29")
@virtual
async def test_r9_a_steady_flow_for_one_model_does_not_starve_another():
    house = House(A, B, engine=SimEngine(load_s=2.0))
    flow: list[asyncio.Task[int]] = []

    async def pour() -> None:
        while True:
            flow.append(house.ask("A", 0.9))
            await asyncio.sleep(0.5)

    pouring = asyncio.ensure_future(pour())
    await asyncio.sleep(10)
    await asyncio.wait_for(house.use("B", 0.1), 12)
    pouring.cancel()
    await asyncio.gather(*flow)


@pytest.mark.fault("F03")
@virtual
async def test_r9_a_busy_victim_is_drained_and_never_cut():
    house = House(A, B)
    streams = [house.ask("A", 5.0), house.ask("A", 3.0)]
    await asyncio.sleep(2)
    second = house.ask("B", 0.1)
    third = house.ask("A", 0.1)
    await asyncio.gather(*streams, second, third)
    assert house.engine.starts == ["A", "B", "A"]


@pytest.mark.fault("F12")
@virtual
async def test_r9_a_loading_model_that_is_waited_for_is_never_a_victim():
    house = House(A, B, engine=SimEngine(load_s=5.0), settings=Settings(evict_idle_timeout_s=2))
    first = house.ask("A", 0.5)
    await asyncio.sleep(1)
    second = house.ask("B", 0.5)
    await asyncio.gather(first, second)
    assert house.engine.starts == ["A", "B"]
    assert "load_cancelled" not in house.codes()


@virtual
async def test_r9_a_later_load_passes_only_where_it_takes_nothing_from_one_ahead():
    embedder = model("E", type=EMBEDDING)
    house = House(A, B, C, embedder)
    busy = house.ask("A", 20.0)
    await asyncio.sleep(2)
    waiting = house.ask("B")
    later = house.ask("C")
    await house.use("E")
    assert not waiting.done()
    assert house.engine.starts == ["A", "E"]
    await asyncio.gather(busy, waiting, later)
    assert house.engine.starts == ["A", "E", "B", "C"]


@virtual
async def test_r9_waiting_is_bounded_in_time_and_number():
    house = House(A, B, settings=Settings(load_queue_timeout_s=30, max_queue=2))
    busy = house.ask("A", 100.0)
    await asyncio.sleep(2)
    waiting = [house.ask("B"), house.ask("B")]
    await settle()
    with pytest.raises(Unavailable) as full:
        await house.use("B")
    assert full.value.code == "queue_full"
    assert full.value.retry_after_s
    since = now()
    with pytest.raises(Unavailable) as late:
        await waiting[0]
    assert late.value.code == "queue_timeout"
    assert now() == pytest.approx(since + 30)
    await asyncio.gather(waiting[1], return_exceptions=True)
    await busy


@virtual
async def test_r9_the_bytes_that_wait_are_bounded():
    house = House(A, settings=Settings(max_queue_bytes=1 << 20))
    house.ask("A", body_bytes=900_000).add_done_callback(lambda t: t.exception())
    await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="max_queue_bytes"):
        await house.use("A", body_bytes=900_000)
    await asyncio.sleep(5)


# R10: pins


@pytest.mark.fault("F22")
@virtual
async def test_r10_pinned_slots_refuse_at_once_and_those_who_wait_already():
    house = House(A, B, C, settings=Settings(max_loaded_models=2))
    await house.use("A")
    busy = house.ask("B", 50.0)
    await asyncio.sleep(2)
    house.reconciler.pin("A", True)
    waiting = house.ask("C")
    await settle()
    assert not waiting.done()
    house.reconciler.pin("B", True)
    await settle()
    with pytest.raises(SlotsPinned, match="A, B"):
        await waiting
    with pytest.raises(SlotsPinned):
        await house.use("C")
    await busy
    assert house.engine.starts == ["A", "B"]


@virtual
async def test_r10_pinning_a_draining_model_undrains_it():
    house = House(A, B)
    busy = house.ask("A", 50.0)
    await asyncio.sleep(2)
    waiting = house.ask("B")
    await settle()
    assert house.state("A") is DRAINING
    house.reconciler.pin("A", True)
    await settle()
    assert house.state("A") is READY
    with pytest.raises(SlotsPinned):
        await waiting
    await busy


# R11: helpers


@virtual
async def test_r11_a_helper_and_a_candidate_stay_loaded_together_under_limit_one():
    helper = model("H")
    house = House(A, B, helper, policies=(policy("p", "A", helpers=("H",)),))
    for _ in range(3):
        await house.use("H", wants=Wants.HELPER)
        await house.use("A")
    assert house.engine.starts == ["H", "A"]


@virtual
async def test_r11_one_process_serves_as_helper_and_candidate():
    house = House(A, B, policies=(policy("p", "A", helpers=("A",)),))
    pids = {await house.use("A", wants=Wants.HELPER), await house.use("A")}
    assert len(pids) == 1
    # The count limit takes its standard membership, not its process.
    await house.use("B")
    assert sorted(house.resident()) == ["A", "B"]
    assert pool_view(house.reconciler.desired, house.reconciler.table).loaded == 1
    house.reconciler.configure(policies=())
    await asyncio.sleep(1)
    assert house.resident() == ["B"]


@virtual
async def test_r11_a_helper_does_not_wait_longer_than_its_bound():
    house = House(A, engine=SimEngine(load_s=60.0), settings=Settings(helper_wait_s=20))
    since = now()
    with pytest.raises(Unavailable):
        await house.use("A", wants=Wants.HELPER)
    assert now() == pytest.approx(since + 20)


# R12: live edits


@virtual
async def test_r12_edits_show_at_once_and_a_thousand_of_them_cost_few_passes():
    house = House(A, B, C, policies=(policy("p", "A", "B", "C"),))
    for name in "ABC":
        await house.use(name)
    await asyncio.sleep(1)
    before = house.reconciler.passes
    for step in range(1000):
        house.set(max_loaded_models=1 + step % 7, llm_pool_autosize=step % 2 == 0)
        assert house.reconciler.desired.settings.max_loaded_models == 1 + step % 7
        await asyncio.sleep(0.001)
    assert house.reconciler.passes - before <= 50
    house.set(max_loaded_models=1, llm_pool_autosize=False)
    await asyncio.sleep(1)
    assert len(house.resident()) == 1


# R13: warnings


@virtual
async def test_r13_the_risk_is_told_on_transitions_only(caplog):
    caplog.set_level(logging.WARNING, "router.residency")
    house = House(A, B, C)

    def warnings() -> int:
        return house.codes().count("exceeds_limit")

    house.reconciler.configure(policies=(policy("p", "A", "B"),))
    assert warnings() == 1
    house.reconciler.configure(policies=(policy("p", "A", "B"), policy("q", "A")))
    house.set(parallel=2)
    await house.use("A")
    assert warnings() == 1
    house.reconciler.configure(policies=(policy("p", "A", "B", "C"),))
    assert warnings() == 2
    house.set(llm_pool_autosize=False)
    house.set(llm_pool_autosize=True)
    assert warnings() == 3
    house.set(auto_evict=True)
    house.set(auto_evict=False)
    assert warnings() == 4
    house.set(max_loaded_models=3)
    house.set(max_loaded_models=2)
    assert warnings() == 5
    assert "llm_pool_autosize=false" in caplog.text
