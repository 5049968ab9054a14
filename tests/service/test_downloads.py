"""Downloads under way, as the snapshot shows them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from router.errors import RouterError
from router.service.downloads import Downloads, Progress


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Step:
    """A download that a test moves on."""

    def __init__(self) -> None:
        self.progress: Progress = lambda _done, _total, _stage="", /: None
        self.begun = asyncio.Event()
        self.end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def __call__(self, progress: Progress) -> None:
        self.progress = progress
        self.begun.set()
        await self.end


async def begin(downloads: Downloads, name: str = "m") -> tuple[Step, Any]:
    step = Step()
    end = asyncio.ensure_future(downloads.begin(name, step, kind="model"))
    await step.begun.wait()
    return step, end


async def test_what_was_here_before_counts_in_no_rate() -> None:
    clock, changes = Clock(), []
    downloads = Downloads(lambda: changes.append(downloads.views[0]), clock)
    step, end = await begin(downloads)
    total = 100 << 30
    step.progress(0, None, "resolving")
    clock.now += 1
    step.progress(50 << 30, total, "checking")
    clock.now += 1
    step.progress(50 << 30, total, "downloading")
    clock.now += 1
    step.progress((50 << 30) + 10_000_000, total, "downloading")
    assert changes[-1].per_s == pytest.approx(10_000_000, rel=0.01)
    step.end.set_result(None)
    await end


async def test_a_large_one_is_shown_often_enough_and_with_its_rate() -> None:
    clock, changes = Clock(), []
    downloads = Downloads(lambda: changes.append(downloads.views[0]), clock)
    step, end = await begin(downloads)
    total = 100 << 30
    step.progress(0, total, "downloading")
    before = len(changes)
    for number in range(1, 9):
        clock.now += 0.125
        step.progress(number * 10_000_000, total, "downloading")
    # Far less than a hundredth has come, but a second has passed.
    assert len(changes) - before == 2
    assert changes[-1].per_s == pytest.approx(80_000_000, rel=0.01)
    assert (changes[-1].kind, changes[-1].stage) == ("model", "downloading")
    clock.now += 60
    step.progress(100_000_000, total, "downloading")
    clock.now += 6
    step.progress(100_000_001, total, "downloading")
    assert changes[-1].per_s < 1
    step.progress(100_000_001, total, "placing")
    assert changes[-1].stage == "placing"
    step.end.set_result(None)
    await end
    assert (downloads.views[0].state, downloads.views[0].per_s, downloads.views[0].stage) == ("done", 0, "")


async def test_a_failure_tells_the_way_out_too() -> None:
    downloads = Downloads(lambda: None)
    step, end = await begin(downloads)
    step.end.set_exception(RouterError("It is gated.", hint="Accept its conditions."))
    with pytest.raises(RouterError):
        await end
    assert downloads.views[0].error == "It is gated. Accept its conditions."


async def test_one_that_is_cancelled_before_it_began_is_not_under_way_for_ever() -> None:
    downloads = Downloads(lambda: None)
    end = asyncio.ensure_future(downloads.begin("m", Step()))
    downloads.cancel("m")
    await asyncio.gather(end, return_exceptions=True)
    assert downloads.views[0].state == "cancelled"
    assert not downloads.is_running("m")
    step, again = await begin(downloads)
    step.end.set_result(None)
    await again


async def test_those_that_ended_long_ago_are_forgotten() -> None:
    downloads = Downloads(lambda: None)
    running, _ = await begin(downloads, "first")
    for number in range(60):
        step, end = await begin(downloads, f"m{number}")
        step.end.set_result(None)
        await end
    names = [view.name for view in downloads.views]
    assert len(names) == 21
    assert names[0] == "first"
    assert names[-1] == "m59"
    downloads.forget("m59")
    downloads.forget("first")
    assert [view.name for view in downloads.views][-1] == "m58"
    assert downloads.is_running("first")
    running.end.set_result(None)
    await downloads.close()
