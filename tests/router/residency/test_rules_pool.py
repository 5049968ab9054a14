"""The rules of the pool (R1 to R8).

One test a rule, through the real reconciler with simulated workers on a virtual clock.
"""

from __future__ import annotations

import asyncio

import pytest

from router.catalog.model import EMBEDDING, by_every_name
from router.catalog.options import LoadOptions
from router.errors import LoadFailed
from router.residency.desire import desire
from router.settings.schema import Settings
from router.snapshot import ResidentState
from tests.support.simulation import House, SimEngine, model, policy
from tests.support.virtual_loop import settle, virtual

A, B, C = model("A"), model("B"), model("C")
LOADING, READY, DRAINING = ResidentState.LOADING, ResidentState.READY, ResidentState.DRAINING


# R1, R2: what is desired


def floor(*policies, models=(A, B, C), resident=(), **settings) -> int:
    lookup = by_every_name(models)
    return desire(Settings(**settings), policies, lookup, dict.fromkeys(resident, "llm")).floor


def test_r1_the_floor_is_a_union_of_distinct_local_language_models():
    aliased = model("A", aliases=("small",))
    embedder = model("E", type=EMBEDDING)
    remote = model("R", remote=True)
    everything = (aliased, B, C, embedder, remote)
    assert floor(policy("p", "A", "B"), policy("q", "B", "C"), models=everything) == 3
    assert floor(policy("p", "A", "A", "small"), models=everything) == 1
    assert floor(policy("p", "A", "E", "R"), models=everything) == 1
    assert floor(policy("p", "A", "B", enabled=False), models=everything) == 0
    desired = desire(Settings(), [policy("p", "A", "small", "E")], by_every_name(everything), {})
    assert desired.policies[0].count == 1
    assert desired.policies[0].candidates == ("A", "E")


def test_r1_a_candidate_counts_however_its_accents_are_typed():
    composed, apart = "Qwen-caf\u00e9", "Qwen-cafe\u0301"
    desired = desire(Settings(), [policy("p", composed, apart)], by_every_name([model(composed)]), {})
    assert desired.floor == 1
    assert desired.policies[0].candidates == (composed,)
    assert desired.unresolved == ()


def test_r1_the_effective_limit_is_for_language_models_alone_and_unlimited_stays_unlimited():
    lookup = by_every_name([A, B, C])
    asked = [policy("p", "A", "B", "C")]
    limits = {
        (configured, autosize): dict(
            desire(
                Settings(max_loaded_models=configured, llm_pool_autosize=autosize), asked, lookup, {}
            ).limits
        )
        for configured in (-1, 1, 5)
        for autosize in (True, False)
    }
    assert limits[1, True] == {"llm": 3, "embedding": 1, "reranking": 1}
    assert limits[1, False]["llm"] == 1
    assert limits[5, True]["llm"] == 5
    assert limits[-1, True]["llm"] == limits[-1, False]["llm"] == -1


def test_r2_a_candidate_that_vanished_is_named_and_counts_only_while_resident():
    missing = policy("p", "A", "gone")
    assert floor(missing) == 1
    assert floor(missing, resident=("gone",)) == 2
    desired = desire(Settings(), [missing], by_every_name([A]), {"gone": "llm"})
    assert desired.unresolved == (("p", "gone"),)


@virtual
async def test_r2_an_unresolved_candidate_is_told_once_a_change():
    house = House(A, policies=(policy("p", "A", "gone"),))
    house.reconciler.configure(policies=house.policies)
    house.set(max_loaded_models=2)
    assert house.codes().count("unresolved") == 1
    house.reconciler.configure(lookup=by_every_name([A, model("gone")]))
    house.reconciler.configure(lookup=by_every_name([A]))
    assert house.codes().count("unresolved") == 2


# R3 to R7: the limit


@pytest.mark.fault("F05")
@virtual
async def test_r3_switching_autosize_off_holds_for_models_already_resident():
    house = House(A, B, policies=(policy("p", "A", "B"),))
    for name in "ABABAB":
        await house.use(name)
    assert house.engine.starts == ["A", "B"]
    house.set(llm_pool_autosize=False)
    await settle()
    await house.use("B")
    assert house.resident() == ["B"]
    for name in "ABAB":
        await house.use(name)
    assert house.engine.starts == ["A", "B", "A", "B", "A", "B"]


@virtual
async def test_r4_shrinking_goes_all_the_way_least_recently_used_first_in_one_pass():
    house = House(A, B, C, settings=Settings(max_loaded_models=3))
    for name in "ABC":
        await house.use(name)
    await house.use("A")
    before = house.reconciler.passes
    house.set(max_loaded_models=1)
    await settle(1)
    assert house.reconciler.passes == before + 1
    assert house.resident() == ["A"]


@virtual
async def test_r5_busy_surplus_drains_without_a_timer_and_no_answer_is_cut():
    house = House(A, B, C, settings=Settings(max_loaded_models=3, evict_idle_timeout_s=-1))
    answers = [house.ask(name, seconds) for name, seconds in (("A", 30.0), ("B", 20.0), ("C", 10.0))]
    await asyncio.sleep(5)
    house.set(max_loaded_models=1)
    await settle()
    assert [house.state(n) for n in "ABC"] == [DRAINING, DRAINING, READY]
    assert not house.reconciler._pace.is_armed
    later = house.ask("A")
    await settle()
    assert not later.done()
    assert all(isinstance(pid, int) for pid in await asyncio.gather(*answers))
    assert await later


@virtual
async def test_r5_a_drain_ends_when_its_reason_is_gone_and_the_queue_is_served_in_that_pass():
    house = House(A, B, settings=Settings(max_loaded_models=2))
    answers = [house.ask("A", 30.0), house.ask("B", 30.0)]
    await asyncio.sleep(5)
    house.set(max_loaded_models=1)
    await settle()
    assert house.state("A") is DRAINING
    waiting = house.ask("A", 1.0)
    await settle()
    house.set(max_loaded_models=2)
    await asyncio.sleep(0.03)
    assert house.state("A") is READY
    await asyncio.wait_for(waiting, 2)
    assert house.engine.starts == ["A", "B"]
    await asyncio.gather(*answers)


@virtual
async def test_r6_a_load_that_ends_in_a_smaller_world_is_judged_in_the_step_that_commits_it():
    house = House(A, B, settings=Settings(max_loaded_models=2))
    await house.use("A")
    first = house.ask("B", 1.0)
    await asyncio.sleep(0.5)
    house.set(max_loaded_models=1)
    await settle()
    assert house.resident() == ["B"]
    await first
    assert house.resident() == ["B"]


@virtual
async def test_r6_a_newcomer_that_is_surplus_serves_those_who_waited_and_then_goes():
    house = House(A, B, settings=Settings(max_loaded_models=2))
    house.reconciler.pin("A", True)
    await house.use("A")
    waiting = [house.ask("B", 1.0) for _ in range(5)]
    await asyncio.sleep(0.5)
    house.set(max_loaded_models=1)
    await asyncio.gather(*waiting)
    assert house.engine.starts == ["A", "B"]
    await asyncio.sleep(1)
    assert house.resident() == ["A"]


@virtual
async def test_r6_a_newcomer_without_waiters_is_the_first_victim():
    house = House(A, B, settings=Settings(max_loaded_models=2))
    answer = house.ask("A", 20.0)
    await asyncio.sleep(2)
    load = asyncio.ensure_future(house.reconciler.load("B"))
    await asyncio.sleep(0.5)
    load.cancel()
    await settle()
    assert house.state("B") is LOADING
    house.set(max_loaded_models=1)
    await asyncio.sleep(0.03)
    assert house.resident() == ["A"]
    await answer


@virtual
async def test_r6_no_new_load_while_the_pool_is_over_its_limit():
    house = House(A, B, C, settings=Settings(max_loaded_models=2))
    answers = [house.ask("A", 10.0), house.ask("B", 10.0)]
    await asyncio.sleep(2)
    house.set(max_loaded_models=1)
    third = house.ask("C")
    await asyncio.sleep(5)
    assert house.engine.starts == ["A", "B"]
    await asyncio.gather(*answers, third)
    await settle()
    assert house.resident() == ["C"]


@pytest.mark.fault("F16")
@virtual
async def test_r7_a_load_that_nobody_waits_for_goes_on():
    house = House(A, engine=SimEngine(load_s=20.0))
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(house.use("A"), 8.0)
    await asyncio.wait_for(house.use("A"), 8.0)
    assert house.engine.starts == ["A"]


@virtual
async def test_r7_but_it_gives_way_to_one_that_is_waited_for():
    house = House(A, B, engine=SimEngine(load_s=20.0))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(house.use("A"), 5.0)
    await asyncio.wait_for(house.use("B"), 22.0)
    assert house.resident() == ["B"]
    assert "load_cancelled" in house.codes()


@virtual
async def test_r7_one_waiter_leaving_does_not_cancel_the_load_for_the_others():
    house = House(A, engine=SimEngine(load_s=10.0))
    stays, leaves = house.ask("A"), house.ask("A")
    await asyncio.sleep(1)
    leaves.cancel()
    await stays
    assert house.engine.starts == ["A"]


# R8: single flight and options


@virtual
async def test_r8_many_first_requests_cause_one_load_and_share_its_outcome():
    house = House(A, B)
    pids = await asyncio.gather(*(house.use("A", 0.1) for _ in range(20)))
    assert len(set(pids)) == 1
    house.engine.broken.add("B")
    errors = await asyncio.gather(*(house.use("B") for _ in range(20)), return_exceptions=True)
    assert all(isinstance(e, LoadFailed) for e in errors)
    assert house.engine.starts == ["A", "B"]


@pytest.mark.fault("F38")
@virtual
async def test_r8_other_options_reload_an_idle_model_and_drain_a_busy_one():
    house = House(A)
    await house.use("A")
    await house.reconciler.load("A", LoadOptions(ctx_size=8192))
    assert [w.spec.ctx_size for w in house.engine.alive.values()] == [8192]
    answer = house.ask("A", 10.0)
    await settle()
    reload = asyncio.ensure_future(house.reconciler.load("A", LoadOptions(ctx_size=2048)))
    await settle()
    assert house.state("A") is DRAINING
    await asyncio.gather(answer, reload)
    assert [w.spec.ctx_size for w in house.engine.alive.values()] == [2048]
    await house.reconciler.load("A", LoadOptions(ctx_size=2048))
    await house.reconciler.load("A")
    await house.use("A")
    assert house.engine.starts == ["A"] * 3
