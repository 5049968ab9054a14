"""A short soak, and that its checks find what they are there for."""

from __future__ import annotations

import asyncio
import itertools
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from router.service.status import status_of
from router.settings import schema
from router.snapshot import (
    DeviceState,
    DeviceView,
    ModelView,
    PolicyView,
    PoolView,
    QueueView,
    ResidentState,
    ResidentView,
    SegmentView,
    Snapshot,
    Status,
)
from router.units import GIB
from tests.soak import choices, soak
from tests.soak.checks import GONE_S, SOON_S, Checks, JudgedDevices
from tests.soak.tally import Kill, Tally, slope, table


def resident(name: str, **rest: Any) -> ResidentView:
    made = ResidentView(
        model=name,
        type="llm",
        state=ResidentState.READY,
        bytes=GIB,
        devices={"sim0": GIB},
        memberships=("standard",),
        pinned=False,
        in_use=0,
        waiting=0,
        slots=1,
        last_use=0.0,
    )
    return structs.replace(made, **rest)


def picture(*residents: ResidentView, generation: int = 1, limit: int = 1, **rest: Any) -> Snapshot:
    """A snapshot that is right."""
    segments = tuple(SegmentView(r.model, r.devices["sim0"]) for r in residents)
    held = sum(s.bytes for s in segments)
    device = DeviceView(
        "sim0",
        "GPU",
        "SIM0",
        "gpu",
        8 * GIB,
        8 * GIB - held,
        held,
        0,
        0,
        0,
        DeviceState.OK,
        segments=segments,
    )
    loading = sum(r.state is ResidentState.LOADING for r in residents)
    ready = sum(r.state in (ResidentState.READY, ResidentState.DRAINING) for r in residents)
    made = Snapshot(
        generation=generation,
        version="1",
        status=Status.READY,
        endpoint="",
        uptime_s=1.0,
        settings={**schema.defaults(), "max_loaded_models": limit},
        pool=PoolView(True, limit, limit, 0, ready, loading, False),
        residents=residents,
        devices=(device,),
        models=tuple(ModelView(r.model, "llm", GIB, 1) for r in residents),
    )
    made = structs.replace(made, **rest)
    return structs.replace(made, status=rest.get("status", status_of(made)))


def found(*snapshots: Snapshot, step_s: float = 1.0) -> str:
    checks = Checks()
    for number, snapshot in enumerate(snapshots):
        checks.look(snapshot, number * step_s)
    return "; ".join(checks.faults)


LOADING, DRAINING = ResidentState.LOADING, ResidentState.DRAINING


def test_what_is_right_is_no_fault() -> None:
    policy = PolicyView("p", True, ("a", "b"), 2, "a")
    pool = PoolView(True, 1, 2, 2, 2, 0, False)
    both = picture(resident("a"), resident("b"), policies=(policy,), pool=pool)
    assert found(picture(), picture(resident("a"), generation=2), structs.replace(both, generation=3)) == ""
    over = (resident("a"), resident("b", state=DRAINING))
    assert found(picture(*over), picture(*over, generation=2), step_s=2 * SOON_S) == ""


def test_a_model_that_goes_and_goes_is_a_fault() -> None:
    going = resident("a", state=ResidentState.EVICTING)
    assert found(picture(going), picture(going, generation=2), step_s=GONE_S / 2) == ""
    assert "has been going" in found(picture(going), picture(going, generation=2), step_s=2 * GONE_S)
    assert found(picture(going), picture(generation=2), picture(going, generation=3), step_s=GONE_S) == ""


@pytest.mark.parametrize(
    ("snapshots", "told"),
    [
        ((picture(generation=2), picture(generation=2)), "came after"),
        ((picture(status=Status.ERROR),), "status"),
        ((picture(degraded="a pass failed", status=Status.ERROR),), "degraded"),
        ((picture(resident("a"), resident("a"), limit=2),), "2 times"),
        ((picture(resident("a", in_use=3)),), "serves 3"),
        ((picture(resident("a", stuck=True)),), "cannot be stopped"),
        ((picture(*(resident(n, state=LOADING) for n in "abc"), limit=-1),), "load at once"),
        ((picture(pool=PoolView(True, 2, 2, 0, 0, 0, False)),), "two moments"),
        ((picture(resident("a"), pool=PoolView(True, 1, 1, 0, 2, 0, False)),), "the pool counts"),
        ((picture(policies=(PolicyView("p", True, ("a",), 1, "a"),), models=(ModelView("a", "llm", 1, 1),)),),
         "the floor"),
        ((picture(pool=PoolView(True, 1, 7, 0, 0, 0, False)),), "the limit is 7"),
        ((picture(resident("a"), resident("b")), picture(resident("a"), resident("b"), generation=2)),
         "where 1 may be"),
        ((picture(queue=QueueView(2, 0, {"a": 1})),), "2 wait"),
        ((picture(resident("a"), queue=QueueView(1, 0, {"a": 1})),), "wait for a"),
        ((picture(resident("a", devices={"sim0": GIB, "sim1": GIB}), devices=()),), ""),
        ((structs.replace(picture(resident("a")), residents=(resident("a", devices={"sim0": 2}),)),),
         "models hold"),
    ],
)  # fmt: skip
def test_each_kind_of_fault_is_found(snapshots: tuple[Snapshot, ...], told: str) -> None:
    assert told in found(*snapshots, step_s=2 * SOON_S)


async def test_memory_that_is_overrun_is_found_and_excused() -> None:
    devices = JudgedDevices([2 * GIB], asyncio.get_running_loop().time)
    JudgedDevices.judged.remove(devices)
    first, second = object(), object()
    devices.allocate(first, {"sim0": GIB})
    devices.allocate(second, {"sim0": GIB})
    assert devices.faults == []
    devices.allocate(second, {"sim0": GIB + 1})
    assert len(devices.faults) == 1
    devices.faults.clear()
    # Others took it after the loads had begun.
    devices.allocate(second, {"sim0": GIB // 2})
    devices.change({"others_bytes": GIB})
    devices.allocate(second, {"sim0": GIB})
    assert devices.faults == []
    # A load that was admitted while nothing was known of its device.
    devices.free(second)
    devices.change({"others_bytes": 0, "lost": True})
    devices.allocate(second, {"sim0": 2 * GIB})
    assert devices.faults == []


def test_a_seed_decides_everything() -> None:
    def rows(seed: int) -> list[Any]:
        made = (choices.asks(seed, 0), choices.asks(seed, 1), choices.edits(seed), choices.harms(seed))
        return [list(itertools.islice(row, 300)) for row in made]

    assert rows(5) == rows(5)
    assert all(row != other for row, other in itertools.combinations(rows(5), 2))
    assert rows(5) != rows(6)
    edits = {deed.name for deed in rows(5)[2]}
    assert edits == {"set", "register", "switch", "delete", "pin", "load", "unload", "plan", "pause"}
    assert {deed.name for deed in rows(5)[3]} == {"kill", "kill_starting", "halt", "simulate"}
    assert {ask.kind for ask in rows(5)[0]} == {"stream", "chat", "embed", "count"}


def test_requests_are_counted_under_one_heading() -> None:
    tally = Tally()
    tally.refuse("queue_full", "ash", "", 0.0, 1.0)
    tally.refuse("worker_died", "ash", "", 2.0, 3.0)
    tally.refuse("worker_died", "demo", "", 9.0, 9.5)
    tally.kills.append(Kill("ash", 2.5, 2.6))
    assert [cut.model for cut in tally.unexplained(choices.POLICIES)] == ["demo"]
    assert tally.faults == []
    tally.refuse("server_error", "ash", "", 0.0, 1.0)
    assert tally.faults == ["ash was refused with server_error"]
    assert dict(tally.refused) == {"queue_full": 1, "server_error": 1}
    tally.refuse("worker_died", "elm", "die", 4.0, 5.0)
    assert tally.misdone["die"] == 1
    # One that let its worker die, was tried again, and refused then.
    tally.refuse("unloaded", "demo", "die", 9.0, 9.4)
    assert tally.unexplained(choices.POLICIES) == []


def test_growth_is_a_slope() -> None:
    assert slope([(0, 5), (10, 25), (20, 45)]) == pytest.approx(2.0)
    assert slope([(1, 1)]) == slope([]) == 0.0
    assert table([("a", 1), ("long", 2)]).splitlines()[2:] == ["| a    | 1 |", "| long | 2 |"]


def test_the_page_tells_what_was_found() -> None:
    clean = soak.page(soak.Outcome((("lost", 0),), ()), "a machine", "2026-11-29")
    assert "Run 2026-11-29 on a machine. Nothing was found amiss." in clean
    assert "| lost | 0 |" in clean
    assert "2 faults" in soak.page(soak.Outcome((("lost", 2),), ("one", "two")), "", "")


@pytest.mark.engine
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
async def test_a_short_soak_is_clean(tmp_path: Path) -> None:
    short = soak.Soak(seconds=5.0, seed=3, clients=6, haste=3.0, demo=False, queue_s=6)
    outcome = await soak.run(short, tmp_path)
    rows = dict(outcome.rows)
    assert outcome.faults == ()
    assert rows["lost"] == 0
    assert rows["answered"] > 0
    assert rows["loads"] > 1
    assert rows["snapshots looked at"] > 10
