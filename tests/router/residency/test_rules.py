"""One test a rule of residency, through the real reconciler with simulated workers on a virtual clock."""

from __future__ import annotations

import asyncio
import itertools
import logging

import pytest

from router.catalog.model import EMBEDDING, by_every_name
from router.catalog.options import LoadOptions
from router.devices.base import DeviceInfo, DeviceReading
from router.errors import LoadFailed, ModelNotFound, RouterError, SlotsPinned, Unavailable
from router.residency.desire import desire
from router.residency.reconciler import Reconciler
from router.residency.view import pool_view
from router.residency.world import Wants
from router.settings.schema import Settings
from router.snapshot import ResidentState
from router.units import GIB
from tests.support.simulation import House, SimEngine, model, policy
from tests.support.virtual_loop import settle, virtual

A, B, C = model("A"), model("B"), model("C")
LOADING, READY, DRAINING = ResidentState.LOADING, ResidentState.READY, ResidentState.DRAINING


def now() -> float:
    return asyncio.get_running_loop().time()


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


# R15: shutdown


@pytest.mark.fault("F06")
@virtual
async def test_r15_shutdown_answers_waiters_ends_streams_and_leaves_nothing():
    house = House(A, B, C, settings=Settings(max_loaded_models=2), engine=SimEngine(load_s=10.0))
    house.engine.load_s_of["A"] = 1.0
    lease = await house.reconciler.acquire("A")
    loading = house.ask("B")
    queued = house.ask("C")
    await asyncio.sleep(1)
    since = now()
    ending = asyncio.ensure_future(house.reconciler.shutdown())
    for task in (loading, queued):
        with pytest.raises(RouterError) as refused:
            await task
        assert refused.value.code == "shutting_down"
    assert await lease.cut == "shutting_down"
    assert now() == pytest.approx(since + 5.0, abs=0.5)
    lease.release()
    await ending
    assert now() < since + 8
    assert not house.engine.alive
    assert not house.engine.starting
    assert not house.reconciler.table.residents
    with pytest.raises(RouterError):
        await house.use("A")


@virtual
async def test_r15_quit_during_a_load_and_an_edit_takes_no_longer_than_stopping():
    house = House(A, B, policies=(policy("p", "A", "B"),), engine=SimEngine(load_s=10.0))
    waiting = house.ask("A")
    await asyncio.sleep(5)
    house.reconciler.configure(policies=())
    since = now()
    await house.reconciler.shutdown()
    assert now() - since < 1
    assert isinstance((await asyncio.gather(waiting, return_exceptions=True))[0], Unavailable)


# R16: a fault in one action


@virtual
async def test_r16_a_fault_in_one_load_harms_no_other(caplog):
    house = House(A, B, settings=Settings(max_loaded_models=2))
    good = house.placer.spec

    def faulty(model, *rest):
        if model.name == "A":
            raise ZeroDivisionError("no")
        return good(model, *rest)

    house.placer.spec = faulty
    first, second = house.ask("A"), house.ask("B")
    assert await second
    with pytest.raises(LoadFailed, match="ZeroDivisionError"):
        await first
    assert "ZeroDivisionError" in caplog.text


@virtual
async def test_a_plan_that_raises_degrades_the_router_and_is_tried_again(caplog):
    from router.residency.plan import plan

    faults = [True]

    def planner(*args):
        if faults and house.reconciler.table.waiters:
            raise KeyError("surprise")
        return plan(*args)

    house = House(A, planner=planner)
    with pytest.raises(Unavailable) as refused:
        await house.use("A")
    assert refused.value.code == "degraded"
    assert house.reconciler.degraded
    assert "surprise" in caplog.text
    faults.clear()
    await asyncio.sleep(1)
    assert not house.reconciler.degraded
    await house.use("A")


# R17: workers die


@pytest.mark.fault("F11")
@virtual
async def test_r17_a_dead_worker_leaves_in_the_same_tick_and_the_next_request_loads_again():
    house = House(A)
    first = await house.use("A")
    house.engine.workers_of("A")[0].end(-9)
    await asyncio.sleep(0)
    assert house.resident() == []
    assert await house.use("A") != first
    assert "worker_died" in house.codes()


@pytest.mark.fault("F11")
@virtual
async def test_r17_deaths_in_a_row_back_off():
    house = House(A)
    for _ in range(3):
        await house.use("A")
        house.engine.workers_of("A")[0].end(-9)
        await settle()
    with pytest.raises(LoadFailed) as refused:
        await house.use("A")
    assert refused.value.status == 503
    assert refused.value.retry_after_s == pytest.approx(10)
    await asyncio.sleep(11)
    await house.use("A")


@virtual
async def test_r17_a_request_on_a_worker_that_dies_is_told():
    house = House(A)
    lease = await house.reconciler.acquire("A")
    house.engine.workers_of("A")[0].end(139)
    assert await asyncio.wait_for(lease.cut, 1) == "worker_died"
    lease.release()


@pytest.mark.fault("F17")
@virtual
async def test_r17_a_model_that_fails_is_refused_for_longer_each_time():
    house = House(A, B, settings=Settings(max_loaded_models=2))
    house.engine.broken.add("B")
    starts = []
    for second in range(120):
        with pytest.raises(LoadFailed) as refused:
            await house.use("B")
        if refused.value.status == 502:
            starts.append(second)
        if second % 3 == 0:
            await house.use("A")
        await asyncio.sleep(1)
    assert house.engine.starts.count("B") == len(starts) == 4
    gaps = [b - a for a, b in itertools.pairwise(starts)]
    assert gaps == sorted(set(gaps))
    house.engine.broken.clear()
    await house.reconciler.load("B")


@virtual
async def test_r17_a_changed_file_clears_what_is_held_against_the_model():
    house = House(A)
    house.engine.broken.add("A")
    with pytest.raises(LoadFailed):
        await house.use("A")
    house.engine.broken.clear()
    with pytest.raises(LoadFailed, match="not tried again"):
        await house.use("A")
    from msgspec import structs

    changed = structs.replace(A, identity=structs.replace(A.identity, mtime_ns=2))
    house.reconciler.configure(lookup=by_every_name([changed]))
    await house.use("A")


# R19: unload and pause


@virtual
async def test_r19_unload_drains_and_returns_when_the_process_is_gone():
    house = House(A)
    house.reconciler.pin("A", True)
    answer = house.ask("A", 10.0)
    await asyncio.sleep(2)
    queued = house.ask("A", 10.0)
    queued2 = house.ask("A")
    await settle()
    unloading = asyncio.ensure_future(house.reconciler.unload("A"))
    await settle()
    assert house.state("A") is DRAINING
    with pytest.raises(Unavailable, match="unloaded"):
        await queued2
    await unloading
    assert answer.done()
    assert not house.engine.alive
    await queued


@virtual
async def test_r19_force_cuts_and_a_loading_model_is_cancelled():
    house = House(A, B, settings=Settings(max_loaded_models=2))
    lease = await house.reconciler.acquire("A")
    loading = house.ask("B")
    await asyncio.sleep(0.5)
    await house.reconciler.unload(force=True)
    assert lease.cut.result() == "unloaded"
    lease.release()
    with pytest.raises(Unavailable) as refused:
        await loading
    assert refused.value.code == "unloaded"
    assert house.resident() == []
    assert not house.engine.alive
    assert not house.engine.starting


@virtual
async def test_r19_while_paused_nothing_loads_unless_asked_for_explicitly():
    house = House(A, B, settings=Settings(max_loaded_models=2))
    await house.use("A")
    house.reconciler.pause(True)
    await house.use("A")
    with pytest.raises(Unavailable) as refused:
        await house.use("B")
    assert refused.value.code == "paused"
    await house.reconciler.load("B")
    house.reconciler.pause(False)
    await house.use("B")


@virtual
async def test_r19_freeing_all_lasts_until_the_next_request():
    house = House(A, B, settings=Settings(max_loaded_models=2))
    house.reconciler.pin("B", True)
    answer = house.ask("A", 10.0)
    await house.use("B")
    await asyncio.sleep(1)
    freeing = asyncio.ensure_future(house.reconciler.free_all())
    await settle()
    assert house.reconciler.table.paused
    assert house.state("A") is DRAINING
    await freeing
    assert answer.done()
    assert not house.engine.alive
    await house.use("A")
    assert not house.reconciler.table.paused
    house.reconciler.pause(True)
    with pytest.raises(Unavailable, match="paused"):
        await house.use("B")


# R20: keep-alive


@pytest.mark.fault("F15")
@virtual
async def test_r20_idle_counts_from_the_last_byte_of_the_last_request():
    house = House(A, settings=Settings(evict_idle_timeout_s=5))
    await house.use("A", 8.0)
    await asyncio.sleep(2)
    await house.use("A", 8.0)
    await asyncio.sleep(4.9)
    assert house.resident() == ["A"]
    await asyncio.sleep(0.2)
    assert house.resident() == []
    assert house.engine.starts == ["A"]


@virtual
async def test_r20_zero_is_when_idle_and_minus_one_is_never():
    house = House(A, settings=Settings(evict_idle_timeout_s=5))
    await house.use("A", keep_alive_s=-1)
    await asyncio.sleep(100_000)
    assert house.resident() == ["A"]
    await house.use("A", 1.0, keep_alive_s=0)
    await settle()
    assert house.resident() == []


@virtual
async def test_r20_zero_among_a_models_options_is_when_idle_too():
    house = House(A, settings=Settings(evict_idle_timeout_s=600))
    await house.reconciler.load("A", LoadOptions(keep_alive=0.0))
    await house.use("A", 1.0)
    await settle()
    assert house.resident() == []


@pytest.mark.fault("F15")
@virtual
async def test_r20_time_that_the_machine_slept_is_nobodys_idle_time():
    house = House(A, B, settings=Settings(max_loaded_models=2, evict_idle_timeout_s=60))
    await house.use("A")
    busy = house.ask("B", 90.0)
    await asyncio.sleep(30)
    asyncio.get_running_loop().sleep_machine(7200)
    await asyncio.sleep(20)
    assert house.resident() == ["A", "B"]
    await asyncio.sleep(20)
    assert house.resident() == ["B"]
    await busy


# R18: memory pressure


def reading(free_gib: float, total_gib: float = 24) -> DeviceReading:
    host = DeviceInfo("host", "Host memory", "CPU", "host")
    return DeviceReading(host, int(total_gib * GIB), int(free_gib * GIB), now())


@virtual
async def test_r18_pressure_unloads_as_few_idle_models_as_relieve_it():
    house = House(A, B, C, settings=Settings(max_loaded_models=3, auto_evict=True))
    house.engine.load_s_of.update(A=1.0, B=10.0, C=1.0)
    for name in "ABC":
        await house.use(name)
    busy = house.ask("C", 100.0)
    await asyncio.sleep(10)
    # 2.4 GiB shall be free: A and B hold 1 GiB each, C is busy. A is the cheaper one to load again.
    house.reconciler.observe((reading(1.5),))
    await asyncio.sleep(1)
    assert house.resident() == ["B", "C"]
    await asyncio.sleep(1)
    house.reconciler.observe((reading(2.5),))
    await settle()
    assert house.resident() == ["B", "C"]
    await asyncio.sleep(1)
    house.reconciler.observe((reading(0.1),))
    await asyncio.sleep(1)
    assert house.resident() == ["C"]
    busy.cancel()


@virtual
async def test_r18_memory_that_is_coming_back_is_not_freed_twice():
    house = House(A, B, settings=Settings(max_loaded_models=2, auto_evict=True), engine=SimEngine(stop_s=5.0))
    await house.use("A")
    await house.use("B")
    await asyncio.sleep(10)
    stale = reading(1.5)
    house.reconciler.observe((stale,))
    await settle()
    for _ in range(8):
        # The process is being stopped, then has gone; the reading lags behind both.
        house.reconciler.observe((stale,))
        await asyncio.sleep(1)
    assert house.resident() == ["B"]


@virtual
async def test_r18_no_pressure_unloads_pinned_models_or_one_that_alone_fills_the_device():
    house = House(A, B, settings=Settings(max_loaded_models=2, auto_evict=True))
    house.reconciler.pin("A", True)
    await house.use("A")
    await asyncio.sleep(5)
    house.reconciler.observe((reading(0.0),))
    await settle()
    assert house.resident() == ["A"]
    house.reconciler.pin("A", False)
    house.reconciler.observe((reading(0.0, total_gib=1.05),))
    await settle()
    assert house.resident() == ["A"]
    house.reconciler.observe((reading(0.0),))
    await settle()
    assert house.resident() == []


@virtual
async def test_r18_an_unknown_reading_unloads_nothing():
    house = House(A, settings=Settings(auto_evict=True))
    await house.use("A")
    lost = DeviceReading(DeviceInfo("host", "Host memory", "CPU", "host"), None, None, now(), reason="lost")
    house.reconciler.observe((lost,))
    await settle()
    assert house.resident() == ["A"]


# R21, R22


@virtual
async def test_r21_a_worker_that_cannot_be_killed_frees_its_slot_and_is_shown():
    house = House(A, B)
    await house.use("A")
    house.engine.unkillable = True
    await house.use("B")
    table = house.reconciler.table
    assert [(r.model.name, r.stuck) for r in table.residents.values()] == [("A", True), ("B", False)]
    assert sum(r.charged["host"] for r in table.residents.values()) == 2 * A.size_bytes
    house.engine.unkillable = False
    house.engine.workers_of("A")[0].end(-9)
    await settle()
    assert [r.model.name for r in table.residents.values()] == ["B"]


@virtual
async def test_r22_a_lease_granted_to_a_cancelled_caller_goes_back():
    house = House(A)
    await house.use("A")
    for turns in range(6):
        task = asyncio.ensure_future(house.reconciler.acquire("A"))
        for _ in range(turns):
            await asyncio.sleep(0)
        was_done = task.done()
        task.cancel()
        done = (await asyncio.gather(task, return_exceptions=True))[0]
        if was_done:
            done.release()
        await settle()
        assert all(not r.leases for r in house.reconciler.table.residents.values()), turns
        assert not house.reconciler.table.waiters


@virtual
async def test_asking_for_a_model_that_is_not_there_is_not_found():
    house = House(A)
    with pytest.raises(ModelNotFound):
        await house.use("nobody")
    assert isinstance(house.reconciler, Reconciler)
