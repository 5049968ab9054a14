"""When pictures are made, and who is told."""

from __future__ import annotations

import asyncio
from typing import Any

from router.service.publishing import INTERVAL_S, Publisher
from router.snapshot import PoolView, Snapshot, Status
from tests.support.virtual_loop import virtual


def snapshot(generation: int) -> Snapshot:
    return Snapshot(generation, "1", Status.READY, "", 0.0, {}, PoolView(True, 1, 1, 0, 0, 0, False))


class Bench:
    def __init__(self) -> None:
        self.made: list[int] = []
        self.publisher = Publisher(snapshot(0), self.make)

    def make(self, generation: int) -> Snapshot:
        self.made.append(generation)
        return snapshot(generation)


@virtual
async def test_a_picture_is_made_once_a_change_and_only_for_who_looks():
    bench = Bench()
    for _ in range(5):
        bench.publisher.changed()
    await asyncio.sleep(1)
    assert bench.made == []
    first = bench.publisher.snapshot
    assert first.generation == bench.publisher.generation == 5
    assert bench.publisher.snapshot is first
    bench.publisher.changed()
    assert bench.publisher.snapshot.generation == 6
    assert bench.made == [5, 6]


@virtual
async def test_the_last_of_many_changes_is_always_told_and_the_first_at_once():
    bench, told = Bench(), []
    loop = asyncio.get_running_loop()
    bench.publisher.subscribe(lambda s: told.append((s.generation, round(loop.time() - begun, 3))))
    begun = loop.time()
    for _ in range(100):
        bench.publisher.changed()
        await asyncio.sleep(0.001)
    await asyncio.sleep(1)
    assert told[0] == (1, 0.0)
    assert told[-1][0] == 100
    assert len(told) <= 0.1 / INTERVAL_S + 2
    assert [generation for generation, _ in told] == bench.made


@virtual
async def test_a_viewer_that_fails_or_leaves_keeps_nobody_from_being_told(caplog: Any):
    bench, told = Bench(), []

    def fail(_: Snapshot) -> None:
        raise ZeroDivisionError

    bench.publisher.subscribe(fail)
    end = bench.publisher.subscribe(lambda s: told.append(("a", s.generation)))
    bench.publisher.subscribe(lambda s: told.append(("b", s.generation)))
    bench.publisher.changed()
    await asyncio.sleep(1)
    end()
    bench.publisher.changed()
    await asyncio.sleep(1)
    assert told == [("a", 1), ("b", 1), ("b", 2)]
    assert "A subscriber failed" in caplog.text


@virtual
async def test_the_last_state_is_told_at_the_end_and_nothing_after():
    bench, told = Bench(), []
    bench.publisher.subscribe(lambda s: told.append(s.generation))
    bench.publisher.changed()
    await asyncio.sleep(0.001)
    bench.publisher.changed()
    bench.publisher.close()
    bench.publisher.changed()
    await asyncio.sleep(1)
    assert told == [1, 2]
