"""What decisions cost: a pass and a snapshot of a full house; and how soon edits and drains act.

Workers are simulated, so that only the router's own time is measured. The edits are HTTP calls to a whole
router, which answers when they are on disk.
"""

from __future__ import annotations

import asyncio
import logging
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from _common import often, report
from msgspec import structs

from router.catalog.options import LoadOptions
from router.devices.base import DeviceInfo, DeviceReading
from router.paths import Paths
from router.residency.world import WaiterRow, Wants
from router.service import Router
from router.settings.schema import Settings
from router.units import GIB
from tests.service.live import live
from tests.support.simulation import House, SimEngine, SimWorker, model, policy

RESIDENTS = (8, 32, 64)
WAITERS = 100
ROUNDS = often(300, 5)
EDITS = often(300, 50)
DEVICES, CARD = 8, 24 * GIB


def spread(times_s: Sequence[float]) -> dict[str, float]:
    """Median and 99th percentile, in milliseconds."""
    ordered = sorted(times_s)
    place = min(len(ordered) - 1, round(0.99 * (len(ordered) - 1)))
    return {
        "median_ms": round(ordered[len(ordered) // 2] * 1000, 4),
        "p99_ms": round(ordered[place] * 1000, 4),
    }


def measure(work: Callable[[], object], rounds: int = ROUNDS) -> dict[str, float]:
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return spread(times)


async def crowd(residents: int, waiters: int = WAITERS) -> House:
    """A full pool whose every model answers, and requests that wait: for a busy model, and for one that is
    not loaded, in turn."""
    names = [f"model-{number}" for number in range(residents)]
    others = [f"other-{number}" for number in range(10)]
    house = House(
        *(model(name) for name in (*names, *others)),
        settings=Settings(max_loaded_models=residents, max_parallel_loads=16),
        policies=(policy("all", *names),),
        engine=SimEngine(load_s=0.0, stop_s=0.0),
    )
    for name in names:
        # As many as a model with one slot is given at once.
        for _ in range(2):
            await house.reconciler.acquire(name)
    for number in range(waiters):
        name = others[number % len(others)] if number % 2 else names[number % residents]
        house.ask(name)
    await asyncio.sleep(0.1)
    assert len(house.reconciler.table.waiters) == waiters
    assert len(house.resident()) == residents
    return house


async def end(house: House) -> None:
    asked = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
    await house.reconciler.shutdown(grace_s=0.0)
    await asyncio.gather(*asked, return_exceptions=True)


async def passes(residents: int) -> dict[str, dict[str, float]]:
    """A plan alone, a whole pass, and a snapshot, made and encoded."""
    house = await crowd(residents)
    reconciler = house.reconciler
    with tempfile.TemporaryDirectory(prefix="lemon-tray-bench-") as folder:
        router = Router(Paths.under(Path(folder)), environ={})
        router._reconciler = reconciler
        found = {
            "plan": measure(lambda: plan_once(house)),
            "pass": measure(reconciler._pass),
            "snapshot": measure(lambda: router._picture(1)),
            "snapshot_as_json": measure(lambda: msgspec.json.encode(router.snapshot)),
        }
    await end(house)
    return found


def plan_once(house: House) -> None:
    reconciler = house.reconciler
    world = reconciler.table.world(reconciler.readings, house.placer)
    reconciler._planner(reconciler.desired, world, asyncio.get_running_loop().time())


def cards(taken: int, devices: int = DEVICES) -> tuple[DeviceReading, ...]:
    """A reading of each GPU, taken now, where models hold so many bytes."""
    now = asyncio.get_running_loop().time()
    return tuple(
        DeviceReading(
            DeviceInfo(f"gpu{number}", f"GPU {number}", f"CUDA{number}", "gpu", backend="cuda"),
            CARD,
            CARD - taken,
            now,
        )
        for number in range(devices)
    )


async def decisions(
    *, busy: bool, devices: int = DEVICES, residents: int = RESIDENTS[-1], wanted: int = 10
) -> dict[str, float]:
    """Plans in which memory is short: every GPU is full, and some models wait for others to go or to end."""
    each = CARD * devices // residents - GIB // 8
    names = [f"model-{number}" for number in range(residents)]
    others = [f"other-{number}" for number in range(wanted)]
    pinned = [LoadOptions(device=(f"gpu{number % devices}",)) for number in range(residents)]
    loaded = [
        structs.replace(model(name), size_bytes=each, options=where)
        for name, where in zip(names, pinned, strict=True)
    ]
    asked = [structs.replace(model(name), size_bytes=2 * each) for name in others]
    house = House(
        *loaded,
        *asked,
        settings=Settings(max_loaded_models=-1, max_parallel_loads=64, vram_margin=0),
        policies=(policy("all", *names),),
        engine=SimEngine(load_s=0.0, stop_s=0.0),
    )
    reconciler = house.reconciler
    reconciler.observe(cards(0, devices))
    for name in names:
        for _ in range(2 if busy else 1):
            lease = await reconciler.acquire(name)
            if not busy:
                lease.release()
        reconciler.observe(cards(0, devices))
    for resident in reconciler.table.residents.values():
        resident.reserves = {}
    rows = tuple(
        WaiterRow(1000 + number, others[number % len(others)], Wants.REQUEST, math.inf)
        for number in range(WAITERS)
    )
    taken = each * residents // devices
    times = []
    for _ in range(ROUNDS):
        world = structs.replace(reconciler.table.world(cards(taken, devices), house.placer), waiters=rows)
        now = asyncio.get_running_loop().time()
        begin = time.perf_counter()
        made = reconciler._planner(reconciler.desired, world, now)
        times.append(time.perf_counter() - begin)
    assert len(made.intents) == len(others), made
    await end(house)
    return spread(times)


async def drains() -> dict[str, float]:
    """From the end of a draining model's last answer to the order to its worker to stop."""
    ordered = asyncio.Event()
    at = [0.0]

    async def stop(worker: SimWorker) -> bool:
        at[0] = time.perf_counter()
        ordered.set()
        worker.end(0)
        return True

    SimWorker.stop = stop  # type: ignore[method-assign]  # only to see when
    house = House(model("A"), model("B"), engine=SimEngine(load_s=0.0))
    times = []
    for _ in range(ROUNDS):
        house.set(max_loaded_models=2)
        leases = [await house.reconciler.acquire(name) for name in "AB"]
        house.set(max_loaded_models=1)
        house.reconciler.kick()
        await asyncio.sleep(0)
        assert leases[0].resident.drain
        ordered.clear()
        begin = time.perf_counter()
        leases[0].release()
        await ordered.wait()
        times.append(at[0] - begin)
        leases[1].release()
        await house.reconciler.unload()
    await end(house)
    return spread(times)


async def edits() -> dict[str, dict[str, float]]:
    """An edit over HTTP until it is answered, one after the other and fifty at once."""
    with tempfile.TemporaryDirectory(prefix="lemon-tray-bench-") as folder:
        root = Path(folder)
        (root / "models").mkdir()
        async with live(root, root / "models") as router:

            async def one(step: int) -> float:
                begin = time.perf_counter()
                await router.set(max_loaded_models=1 + step % 7)
                return time.perf_counter() - begin

            alone = [await one(step) for step in range(EDITS)]
            together: list[float] = []
            for first in range(0, EDITS, 50):
                together += await asyncio.gather(*(one(first + step) for step in range(50)))
    return {"one_by_one": spread(alone), "fifty_at_once": spread(together)}


def main() -> None:
    """Measure and print."""
    logging.disable(logging.CRITICAL)
    by_size = {str(count): asyncio.run(passes(count)) for count in RESIDENTS}
    decided = {name: asyncio.run(decisions(busy=busy)) for name, busy in (("idle", False), ("busy", True))}
    edited = asyncio.run(edits())
    drained = asyncio.run(drains())
    report(
        {
            "bench": "reconcile",
            "waiters": WAITERS,
            "residents": by_size,
            f"decision_with_{DEVICES}_full_devices": decided,
            "internal_set": edited,
            "drain_to_evict": drained,
        },
        f"with {WAITERS} waiters, a pass takes "
        + ", ".join(f"{found['pass']['median_ms']:.2f} ms ({count})" for count, found in by_size.items())
        + f"; a decision with {DEVICES} full devices: "
        + ", ".join(f"{found['median_ms']:.2f} ms ({name})" for name, found in decided.items())
        + f"; a snapshot of {RESIDENTS[-1]}: {by_size[str(RESIDENTS[-1])]['snapshot']['median_ms']:.2f} ms; "
        f"an edit is answered in {edited['one_by_one']['median_ms']:.1f} ms; "
        f"a drained model is told to stop after {drained['median_ms']:.2f} ms",
    )


if __name__ == "__main__":
    main()
