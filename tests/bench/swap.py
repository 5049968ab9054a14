"""What a swap costs beyond the engine's own load: one model makes room for another, and answers one token.

From the request to its answer, less the time that the engine took to bring the model up, and less what the
same request takes of a loaded model. A real router with the demo model and a tiny one.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _common import demo_model, often, report

from router.engines.base import WorkerSpec
from tests.service.live import live, write_models

ROUNDS = often(7, 1)


async def measure(root: Path) -> dict[str, list[float]]:
    models = write_models(root / "models", ("tiny",))
    (models / "demo.gguf").symlink_to(demo_model())
    found: dict[str, list[float]] = {"swap": [], "load": [], "warm": []}
    settings = {"max_loaded_models": 1, "llm_pool_autosize": False, "ctx_size": 4096}
    async with live(root, models, settings=settings) as router:
        engine = router.router._engine
        assert engine is not None
        start, loads = engine.start, list[float]()

        async def timed(
            spec: WorkerSpec, progress: Callable[[float], None], launched: Callable[[int], None]
        ) -> Any:
            began = time.perf_counter()
            try:
                return await start(spec, progress, launched)
            finally:
                loads.append(time.perf_counter() - began)

        engine.start = timed  # type: ignore[method-assign]  # only to see how long it takes
        await router.chat("demo", tokens=1)
        for _ in range(ROUNDS):
            await router.chat("tiny", tokens=1)
            began = time.perf_counter()
            await router.chat("demo", tokens=1)
            found["swap"].append(time.perf_counter() - began)
            found["load"].append(loads[-1])
            began = time.perf_counter()
            await router.chat("demo", "something else", tokens=1)
            found["warm"].append(time.perf_counter() - began)
    return found


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="lemon-tray-bench-") as folder:
        found = asyncio.run(measure(Path(folder)))
    rows = list(zip(found["swap"], found["load"], found["warm"], strict=True))
    beyond = statistics.median(swap - load - warm for swap, load, warm in rows) * 1000
    ratio = statistics.median((swap - warm) / load for swap, load, warm in rows)
    swap, load, warm = (statistics.median(found[key]) * 1000 for key in ("swap", "load", "warm"))
    report(
        {
            "bench": "swap",
            "swap_ms": round(swap, 1),
            "load_ms": round(load, 1),
            "warm_ms": round(warm, 1),
            "beyond_ms": round(beyond, 1),
            "swap_to_load": round(ratio, 3),
        },
        f"a swap takes {swap:.0f} ms, of which the engine loads for {load:.0f} and answers for {warm:.0f}: "
        f"{beyond:+.0f} ms beyond ({ratio:.2f} of the load)",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
