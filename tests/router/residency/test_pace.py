"""When passes happen."""

from __future__ import annotations

import asyncio

from router.residency.pace import Pace
from tests.support.virtual_loop import until_quiet, virtual


@virtual
async def test_a_pass_a_hair_before_its_deadline_does_not_ask_again_and_again():
    loop = asyncio.get_running_loop()
    times: list[float] = []
    # As rounding makes of a moment and a span added to it.
    deadline = loop.time() + 5 + 2e-10

    def run() -> None:
        times.append(loop.time())
        pace.ran(deadline if loop.time() < deadline else None)

    pace = Pace(loop, run, lambda: None, lambda seconds: None)
    pace.kick()
    await asyncio.sleep(5)
    await until_quiet()
    await asyncio.sleep(1)
    assert len(times) <= 3
    assert times[-1] >= deadline
    pace.stop()
