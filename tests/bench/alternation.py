"""What autosize is for: a policy's models asked in turn, with room for all of them and without.

A real router with real workers and tiny models, so that a load costs its process and little else: with larger
models the gap is larger. Rounds with autosize on and off take turns.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

from _common import often, report

from tests.service.live import Live, live, policy, write_models

NAMES = ("alpha", "beta", "gamma")
ROUNDS = often(5, 1)
TURNS = often(4, 1)


async def alternate(router: Live, turns: int) -> float:
    """Seconds for one request, when each goes to another model than the one before."""
    began = time.perf_counter()
    for _ in range(turns):
        for name in NAMES:
            await router.chat("auto", f"please {name.upper()}")
    return (time.perf_counter() - began) / (turns * len(NAMES))


async def measure(root: Path) -> dict[str, list[float]]:
    models = write_models(root / "models", NAMES)
    times: dict[str, list[float]] = {"on": [], "off": []}
    async with live(root, models, settings={"max_loaded_models": 1}) as router:
        await router.post("/v1/pull", policy("auto", *NAMES))
        for _ in range(ROUNDS):
            await router.set(llm_pool_autosize=True)
            await alternate(router, 1)
            times["on"].append(await alternate(router, TURNS))
            await router.set(llm_pool_autosize=False)
            times["off"].append(await alternate(router, TURNS))
    return times


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="lemon-tray-bench-") as folder:
        times = asyncio.run(measure(Path(folder)))
    ratio = statistics.median(off / on for on, off in zip(times["on"], times["off"], strict=True))
    on, off = (statistics.median(times[key]) * 1000 for key in ("on", "off"))
    report(
        {
            "bench": "alternation",
            "on_ms": round(on, 2),
            "off_ms": round(off, 2),
            "off_to_on": round(ratio, 2),
        },
        f"three models in turn: {on:.1f} ms a request with autosize, {off:.0f} ms without it "
        f"({ratio:.0f} times)",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
