"""The rules of how workers end and what ends them (R15 to R22).

One test a rule, through the real reconciler with simulated workers on a virtual clock.
"""

from __future__ import annotations

import asyncio
import itertools

import pytest

from router.catalog.model import by_every_name
from router.catalog.options import LoadOptions
from router.devices.base import DeviceInfo, DeviceReading
from router.errors import LoadFailed, ModelNotFound, RouterError, Unavailable
from router.residency.reconciler import Reconciler
from router.settings.schema import Settings
from router.snapshot import ResidentState
from router.units import GIB
from tests.support.simulation import House, SimEngine, model, policy
from tests.support.virtual_loop import now, settle, virtual

A, B, C = model("A"), model("B"), model("C")
LOADING, DRAINING = ResidentState.LOADING, ResidentState.DRAINING


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
async def test_r19_a_load_that_is_cancelled_in_the_step_in_which_it_began_leaves_nothing():
    """Its task never runs, so it cannot book its own end."""
    house = House(A, B)
    house.set(max_loaded_models=1)
    load = asyncio.ensure_future(house.reconciler.load("A"))
    began: list[bool] = []

    def unload() -> None:
        began.append(house.state("A") is LOADING)
        with pytest.raises(StopIteration):  # it waits for nothing
            house.reconciler.unload("A", wait=False).send(None)

    await asyncio.sleep(0)
    assert house.reconciler.table.waiters
    # The pass that begins the load is due before this; the first step of the load's task after it.
    asyncio.get_running_loop().call_soon(unload)
    with pytest.raises(Unavailable):
        await load
    await settle()
    assert began == [True]
    assert house.engine.starts == []
    assert house.reconciler.table.residents == {}
    await asyncio.wait_for(house.use("B"), 5)
    await asyncio.wait_for(house.use("A"), 5)
    await house.reconciler.shutdown()


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
