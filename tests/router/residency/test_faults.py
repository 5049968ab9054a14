"""Known kinds of faults of such programs, in their variants, on the virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from router.catalog.model import by_every_name
from router.catalog.options import LoadOptions
from router.errors import LoadFailed, RouterError, SlotsPinned, Unavailable
from router.residency.view import policies_view, pool_view, residents_view
from router.residency.world import Wants
from router.settings.schema import Settings
from router.snapshot import ResidentState
from tests.support.simulation import House, SimEngine, model, policy
from tests.support.virtual_loop import now, settle, virtual

A, B, C = model("A"), model("B"), model("C")
LOADING, READY, DRAINING = ResidentState.LOADING, ResidentState.READY, ResidentState.DRAINING


def told(house: House, code: str) -> list[str | None]:
    return [entry.model for entry in house.reconciler.feed.latest(500) if entry.code == code]


# F03: a model is evicted while it is answering


@pytest.mark.fault("F03")
@virtual
async def test_f03_the_end_of_one_of_two_answers_frees_nothing() -> None:
    house = House(A, B)
    await house.use("A")
    short, long = house.ask("A", 2.0), house.ask("A", 10.0)
    await settle()
    other = house.ask("B")
    await short
    await asyncio.sleep(7)
    assert house.state("A") is DRAINING
    assert not other.done()
    pid = await long
    await other
    assert house.engine.starts == ["A", "B"]
    assert isinstance(pid, int)


@pytest.mark.fault("F03")
@pytest.mark.parametrize("turns", range(8))
def test_f03_a_request_between_loaded_and_first_use(turns: int) -> None:
    """The rival comes within a few turns of the loop around the moment in which A is ready."""

    @virtual
    async def at_that_moment() -> None:
        house = House(A, B, engine=SimEngine(load_s=4.0))
        first = house.ask("A", 3.0)
        await asyncio.sleep(4.0)
        for _ in range(turns):
            await asyncio.sleep(0)
        rival = house.ask("B", 1.0)
        await first
        assert not told(house, "load_cancelled")
        await rival
        assert house.engine.starts == ["A", "B"]

    at_that_moment()


@pytest.mark.fault("F03")
@virtual
async def test_f03_busy_past_the_bound_is_a_503_with_retry_after_and_cuts_nothing() -> None:
    house = House(A, B, settings=Settings(load_queue_timeout_s=10))
    answer = house.ask("A", 60.0)
    await asyncio.sleep(2)
    with pytest.raises(Unavailable) as late:
        await house.use("B")
    assert late.value.status == 503
    assert late.value.retry_after_s
    await settle()
    # Nothing asks for its room any more, so it takes requests again.
    assert house.state("A") is READY
    await answer
    assert house.engine.starts == ["A"]


# F05: lowering the limit does not shrink the pool


@pytest.mark.fault("F05")
@pytest.mark.parametrize(
    "lower",
    [
        lambda house: house.set(llm_pool_autosize=False),
        lambda house: house.reconciler.configure(policies=()),
        lambda house: house.reconciler.configure(policies=(policy("p", "A", "B", "C", enabled=False),)),
    ],
    ids=["autosize off", "policy deleted", "policy switched off"],
)
def test_f05_the_pool_shrinks_without_traffic(lower: Callable[[House], None]) -> None:
    @virtual
    async def shrinks() -> None:
        house = House(A, B, C, policies=(policy("p", "A", "B", "C"),))
        for name in "ABC":
            await house.use(name)
        lower(house)
        await settle()
        assert house.resident() == ["C"]
        for name in "ABAB":
            await house.use(name)
        assert house.engine.starts == ["A", "B", "C", "A", "B", "A", "B"]
        assert max(len(house.engine.workers_of(n)) for n in "ABC") <= 1

    shrinks()


@pytest.mark.fault("F05")
@pytest.mark.fault("F06")
@virtual
async def test_f05_twenty_changes_and_quit_at_once() -> None:
    house = House(A, B, C, policies=(policy("p", "A", "B", "C"),))
    for name in "ABC":
        await house.use(name)
    for step in range(20):
        house.set(max_loaded_models=3 - step % 3, llm_pool_autosize=step % 2 == 0)
    since = now()
    await house.reconciler.shutdown()
    assert now() - since < 1
    assert not house.engine.alive
    assert asyncio.all_tasks() == {asyncio.current_task()}


# F11: a dead worker stays listed as loaded


@pytest.mark.fault("F11")
@virtual
async def test_f11_an_idle_death_reloads_even_if_the_model_never_answered() -> None:
    house = House(A)
    await house.reconciler.load("A")
    house.engine.workers_of("A")[0].end(-9)
    await settle()
    assert house.resident() == []
    assert not house.reconciler.table.residents
    await house.use("A")
    assert house.engine.starts == ["A", "A"]
    assert told(house, "load_failed") == []


@pytest.mark.fault("F11")
@virtual
async def test_f11_a_death_before_the_first_answer_backs_off_and_says_why() -> None:
    house = House(A)
    lease = await house.reconciler.acquire("A")
    house.engine.workers_of("A")[0].end(-11)
    await settle()
    assert lease.cut.result() == "worker_died"
    lease.release()
    with pytest.raises(LoadFailed, match="signal 11") as refused:
        await house.use("A")
    assert (refused.value.code, refused.value.status) == ("load_backoff", 503)
    # It was loaded: that is not what failed.
    assert told(house, "load_failed") == []
    await asyncio.sleep(11)
    await house.use("A")


@pytest.mark.fault("F11")
@virtual
async def test_f11_the_states_are_told_apart() -> None:
    house = House(A, B, C, settings=Settings(max_loaded_models=3))
    house.engine.broken.add("C")
    await house.use("A")
    await house.use("B")
    with pytest.raises(LoadFailed):
        await house.use("C")
    house.engine.workers_of("A")[0].end(3)
    await house.reconciler.unload("B")
    entries = {
        e.model: (e.code, e.message) for e in house.reconciler.feed.latest(9) if e.code not in ("refuse",)
    }
    assert entries["A"] == ("worker_died", "The worker of A ended with exit code 3.")
    assert entries["B"][0] == "evict"
    assert entries["C"][0] == "load_failed"


@pytest.mark.fault("F11")
@pytest.mark.parametrize("turns", range(2, 8))
def test_f11_a_death_right_after_ready(turns: int) -> None:
    @virtual
    async def dies() -> None:
        house = House(A)
        waiting = house.ask("A", 5.0)
        await asyncio.sleep(1.0)
        for _ in range(turns):
            await asyncio.sleep(0)
        (worker,) = house.engine.workers_of("A")
        worker.end(1)
        await settle()
        assert house.resident() == []
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert not house.reconciler.table.waiters
        await asyncio.sleep(11)
        await house.use("A")
        await house.reconciler.shutdown()

    dies()


@pytest.mark.fault("F11")
@virtual
async def test_f11_a_worker_that_refuses_connections_is_replaced_once_its_answers_have_ended() -> None:
    house = House(A)
    house.reconciler.pin("A", True)
    answering = house.ask("A", 20.0)
    await asyncio.sleep(2)
    lease = await house.reconciler.acquire("A")
    for _ in range(2):
        lease.condemn()
    lease.release()
    await settle()
    assert house.state("A") is DRAINING
    pid = await house.use("A")
    assert pid != await answering
    assert house.engine.starts == ["A", "A"]
    assert told(house, "worker_unreachable") == ["A"]
    (evicted,) = (e for e in house.reconciler.feed.latest(50) if e.code == "evict")
    assert evicted.reason == "unreachable"
    lease.condemn()
    await settle()
    assert house.state("A") is READY


@pytest.mark.fault("F11")
@virtual
async def test_f11_workers_that_refuse_connections_again_and_again_back_off() -> None:
    house = House(A)
    for _ in range(3):
        lease = await house.reconciler.acquire("A")
        lease.condemn()
        lease.release()
    with pytest.raises(LoadFailed, match="refused connections, 3 times in a row") as refused:
        await house.use("A")
    assert refused.value.code == "load_backoff"
    assert house.engine.starts == ["A"] * 3
    await asyncio.sleep(11)
    await house.use("A")


# F12: a loading model as the victim


@pytest.mark.fault("F12")
@virtual
async def test_f12_the_idle_one_goes_and_not_the_one_that_loads() -> None:
    house = House(A, B, C, settings=Settings(max_loaded_models=2))
    await house.use("B")
    house.engine.load_s_of["A"] = 5.0
    first = house.ask("A", 0.5)
    await asyncio.sleep(1)
    assert house.state("A") is LOADING
    await house.use("C")
    assert house.state("A") is LOADING
    assert not house.engine.workers_of("B")
    await first


@pytest.mark.fault("F12")
@virtual
async def test_f12_idle_time_begins_after_the_load_and_the_last_use_is_never_zero() -> None:
    house = House(A, engine=SimEngine(load_s=5.0), settings=Settings(evict_idle_timeout_s=2))
    load = asyncio.ensure_future(house.reconciler.load("A"))
    await asyncio.sleep(1)
    (shown,) = residents_view(house.reconciler.desired, house.reconciler.table)
    assert shown.last_use > 0
    await load
    await asyncio.sleep(1.9)
    assert house.state("A") is READY
    await asyncio.sleep(0.2)
    assert house.resident() == []


# F14: a load that never ends


@pytest.mark.fault("F14")
@virtual
async def test_f14_a_load_that_never_ends_leaves_the_others_alone_and_can_be_unloaded() -> None:
    house = House(A, B, settings=Settings(max_loaded_models=2))
    house.engine.load_s_of["A"] = 1e9
    waiting = house.ask("A")
    await house.use("B")
    await house.reconciler.unload("B")
    await house.use("B")
    await house.reconciler.unload("A")
    with pytest.raises(Unavailable, match="unloaded"):
        await waiting
    assert not house.engine.starting
    house.engine.load_s_of.clear()
    await house.use("A")


# F15: idle time


@pytest.mark.fault("F15")
@virtual
async def test_f15_looking_is_no_use() -> None:
    house = House(A, settings=Settings(evict_idle_timeout_s=5))
    await house.use("A")
    for _ in range(12):
        residents_view(house.reconciler.desired, house.reconciler.table)
        house.reconciler.observe(())
        house.reconciler.configure()
        await asyncio.sleep(0.5)
    assert house.resident() == []


@pytest.mark.fault("F15")
@virtual
async def test_f15_the_wall_clock_decides_nothing() -> None:
    house = House(A, settings=Settings(evict_idle_timeout_s=60))
    wall = [1e9]
    house.reconciler._wall = lambda: wall[0]
    await house.use("A")
    await asyncio.sleep(30)
    for moment in (1e9 + 7200, 1e9 - 3600):
        wall[0] = moment
        house.reconciler.kick()
        await settle()
        assert house.resident() == ["A"]
    await asyncio.sleep(31)
    assert house.resident() == []


@pytest.mark.fault("F15")
@pytest.mark.parametrize("keep_alive_s", [1e9, 1e99])
def test_f15_a_keep_alive_beyond_all_clocks_arms_a_timer_that_every_loop_takes(keep_alive_s: float) -> None:
    @virtual
    async def stays() -> None:
        house = House(A)
        loop = asyncio.get_running_loop()
        armed: list[float] = []
        call_at = loop.call_at

        def watch(when: float, *rest: Any, **more: Any) -> asyncio.TimerHandle:
            armed.append(when - loop.time())
            return call_at(when, *rest, **more)

        loop.call_at = watch  # type: ignore[method-assign]  # to see what is armed
        await house.use("A", keep_alive_s=keep_alive_s)
        # Qt's timers count milliseconds in 31 bits: less than 25 days.
        assert max(armed) <= 86_400
        for _ in range(5):
            await asyncio.sleep(0.5 * 86_400)
        assert house.resident() == ["A"]
        assert max(armed) <= 86_400

    stays()


# F17: a model that cannot load starves the others


@pytest.mark.fault("F17")
@virtual
async def test_f17_a_bad_model_evicts_a_good_one_once_and_is_repaired_by_its_file() -> None:
    house = House(A, B, engine=SimEngine(load_s=2.0))
    house.engine.broken.add("B")
    await house.use("A")
    answers: list[RouterError] = []
    for second in range(60):
        error = (await asyncio.gather(house.use("B"), return_exceptions=True))[0]
        assert isinstance(error, RouterError)
        answers.append(error)
        if second % 3 == 0:
            await house.use("A")
        await asyncio.sleep(1)
    assert house.engine.starts.count("A") == 2
    assert house.engine.starts.count("B") == 1
    assert {e.code for e in answers[1:]} == {"load_backoff"}
    assert all(e.retry_after_s and "B is broken" in e.message for e in answers[1:])
    # Good leaves by itself: then there is room to try.
    await house.reconciler.unload("A")
    with pytest.raises(LoadFailed) as tried:
        await house.use("B")
    assert tried.value.code == "load_failed"
    await house.use("A")
    house.engine.broken.clear()
    changed = structs.replace(B, identity=structs.replace(B.identity, mtime_ns=2))
    house.reconciler.configure(lookup=by_every_name([A, changed]))
    await house.use("B")
    assert house.resident() == ["B"]


@pytest.mark.fault("F17")
@virtual
async def test_f17_an_explicit_load_tries_at_once_and_may_evict() -> None:
    house = House(A, B)
    house.engine.broken.add("B")
    with pytest.raises(LoadFailed):
        await house.use("B")
    await house.use("A")
    house.engine.broken.clear()
    await house.reconciler.load("B")
    assert house.resident() == ["B"]
    await house.use("B")


# F22: loaded by hand, and pinned


@pytest.mark.fault("F22")
@virtual
async def test_f22_loaded_by_hand_is_an_ordinary_resident() -> None:
    house = House(A, B, C, settings=Settings(max_loaded_models=2))
    await house.reconciler.load("A")
    await house.reconciler.load("B")
    await house.use("C")
    assert house.resident() == ["B", "C"]


@pytest.mark.fault("F22")
@virtual
async def test_f22_a_pin_holds_against_every_kind_of_eviction_and_counts() -> None:
    house = House(A, B, C, settings=Settings(max_loaded_models=2, evict_idle_timeout_s=5))
    house.reconciler.pin("A", True)
    await house.use("A")
    await house.use("B")
    await house.use("C")
    assert house.resident() == ["A", "C"]
    house.set(max_loaded_models=1)
    await settle()
    assert house.resident() == ["A"]
    with pytest.raises(SlotsPinned, match="A"):
        await house.use("B")
    await asyncio.sleep(3600)
    assert house.resident() == ["A"]
    assert [r.pinned for r in residents_view(house.reconciler.desired, house.reconciler.table)] == [True]
    await house.reconciler.unload("A")
    assert house.resident() == []
    # The pin is the model's and outlives the process.
    await house.use("A")
    with pytest.raises(SlotsPinned):
        await house.use("B")


@pytest.mark.fault("F22")
@virtual
async def test_f22_a_pinned_model_that_is_not_loaded_takes_no_room() -> None:
    house = House(A, B)
    house.reconciler.pin("A", True)
    await house.use("B")
    assert house.resident() == ["B"]
    await house.use("A")
    assert house.resident() == ["A"]


@pytest.mark.fault("F22")
@virtual
async def test_f22_a_pinned_model_whose_file_goes_leaves() -> None:
    house = House(A, B)
    house.reconciler.pin("A", True)
    await house.use("A")
    house.reconciler.configure(lookup=by_every_name([B]))
    await house.use("B")
    assert house.resident() == ["B"]


# F23: status stitched from different moments


@pytest.mark.fault("F23")
@virtual
async def test_f23_every_picture_is_of_one_moment() -> None:
    names = ("A", "B", "C", "D")
    house = House(*(model(n) for n in names))
    reconciler = house.reconciler
    seen = 0

    def look() -> None:
        nonlocal seen
        seen += 1
        pool = pool_view(reconciler.desired, reconciler.table)
        shown = policies_view(reconciler.desired)
        named = {c for p in shown if p.enabled for c in p.candidates}
        assert pool.candidate_floor == len(named)
        assert pool.effective_limit == max(pool.configured_limit, len(named))
        assert [p.count for p in shown] == [len(p.candidates) for p in shown]

    reconciler._publish = look
    asks = []
    for _ in range(200):
        chosen = [house.random.sample(names, house.random.randint(1, 4)) for _ in range(2)]
        reconciler.configure(
            policies=tuple(
                policy(f"p{i}", *c, enabled=house.random.random() < 0.8) for i, c in enumerate(chosen)
            )
        )
        asks.append(house.ask(house.random.choice(names), 0.5))
        await asyncio.sleep(house.random.choice([0, 0.01, 0.3]))
    await asyncio.gather(*asks)
    assert seen > 400
    last = {p.name: p.candidates for p in policies_view(reconciler.desired)}
    assert last == {f"p{i}": tuple(c) for i, c in enumerate(chosen)}


# F29: thrashing and starving


@pytest.mark.fault("F29")
@virtual
async def test_f29_ties_end_in_the_same_order_each_time() -> None:
    orders = set()
    for _ in range(3):
        house = House(A, B, C, settings=Settings(max_loaded_models=1))
        await asyncio.gather(*(house.use("CABBACCAB"[i], 0.5) for i in range(9)))
        orders.add(tuple(house.engine.starts))
        await house.reconciler.shutdown()
    assert orders == {("C", "A", "B")}


@pytest.mark.fault("F29")
@virtual
async def test_f29_ten_thousand_at_once_are_bounded_and_those_who_leave_are_gone() -> None:
    house = House(A, B, settings=Settings(max_queue=512))
    busy = house.ask("A", 30.0)
    await asyncio.sleep(2)
    crowd = [house.ask("B") for _ in range(10_000)]
    await settle()
    refused = [t for t in crowd if t.done()]
    assert len(refused) == 10_000 - 512
    assert {t.exception().code for t in refused} == {"queue_full"}  # type: ignore[union-attr]  # all RouterErrors
    assert len(house.reconciler.table.waiters) == 512
    waiting = [t for t in crowd if not t.done()]
    for task in waiting[1:]:
        task.cancel()
    await settle()
    assert len(house.reconciler.table.waiters) == 1
    await asyncio.gather(busy, waiting[0])
    await asyncio.gather(*crowd, return_exceptions=True)


# F35: a worker that does not end


@pytest.mark.fault("F35")
@virtual
async def test_f35_a_stuck_worker_blocks_nobody_and_no_unload_waits_for_it_for_ever() -> None:
    house = House(A, B, settings=Settings(max_loaded_models=2))
    await house.use("A")
    await house.use("B")
    house.engine.unkillable = True
    with pytest.raises(RouterError) as stuck:
        await asyncio.wait_for(house.reconciler.unload("A"), 60)
    assert stuck.value.code == "worker_stuck"
    assert [r.stuck for r in residents_view(house.reconciler.desired, house.reconciler.table)] == [
        True,
        False,
    ]
    residents = house.reconciler.table.residents.values()
    assert sum(r.charged["host"] for r in residents) == 2 * A.size_bytes
    house.engine.unkillable = False
    await house.use("B")
    await house.use("A")
    house.engine.unkillable = True
    with pytest.raises(RouterError, match="worker of A, B cannot be killed"):
        await asyncio.wait_for(house.reconciler.unload(), 60)
    since = now()
    await house.reconciler.shutdown()
    assert now() - since < 10


@pytest.mark.fault("F35")
@virtual
async def test_f35_others_go_on_while_one_takes_long_to_stop() -> None:
    house = House(A, B, C, settings=Settings(max_loaded_models=2), engine=SimEngine(stop_s=30.0))
    await house.use("A")
    unloading = asyncio.ensure_future(house.reconciler.unload("A"))
    await asyncio.sleep(1)
    since = now()
    await house.use("B")
    await house.use("B", wants=Wants.HELPER)
    assert now() - since < 2
    assert not unloading.done()
    await unloading


# F38: options


@pytest.mark.fault("F38")
@virtual
async def test_f38_requests_never_change_options_and_loads_remember_them() -> None:
    house = House(A)
    await house.reconciler.load("A", LoadOptions(ctx_size=32_768))
    for _ in range(20):
        await house.use("A")
        await house.reconciler.load("A")
        await house.reconciler.load("A", LoadOptions(ctx_size=32_768))
    assert house.engine.starts == ["A"]
    await house.reconciler.unload("A")
    await house.use("A")
    assert [w.spec.ctx_size for w in house.engine.alive.values()] == [32_768]


@pytest.mark.fault("F38")
@virtual
async def test_f38_two_who_want_different_options_both_get_them_in_turn() -> None:
    house = House(A)
    sizes = (2048, 8192, 4096)
    await asyncio.wait_for(
        asyncio.gather(*(house.reconciler.load("A", LoadOptions(ctx_size=s)) for s in sizes)), 60
    )
    assert house.engine.starts == ["A"] * 3


@pytest.mark.fault("F17")
@virtual
async def test_a_failure_long_ago_is_forgiven():
    house = House(A, B)
    house.engine.broken.add("B")
    with pytest.raises(LoadFailed):
        await house.use("B")
    house.engine.broken.clear()
    await house.use("A")
    await asyncio.sleep(20)
    with pytest.raises(LoadFailed, match="another would have to unload"):
        await house.use("B")
    await asyncio.sleep(300)
    await house.use("B")
    assert house.resident() == ["B"]
