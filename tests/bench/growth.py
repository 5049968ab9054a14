"""How costs grow: with models, waiting requests, streams and devices; and the power that fits.

0 is no growth, 1 is growth in proportion. One event of a stream should cost no more where there are many.
"""

from __future__ import annotations

import asyncio
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import catalog
import reconcile
from _common import PYTHON, QUICK, child, clean_environment, exponent, often, report, wait_for_url
from idle import free_port
from relay import HERE, Relay, asked, wait_until_it_answers

from router.memory.store import HeaderStore
from router.settings.schema import Settings
from tests.support import gguf

MODELS = (1, 10, 100, 1000) if not QUICK else (1, 10)
WAITING = (1, 10, 100, 500) if not QUICK else (1, 10)
STREAMS = (1, 10, 30, 100) if not QUICK else (1, 3)
DEVICES = (1, 2, 4, 8) if not QUICK else (1, 2)
ROUNDS = often(100, 3)
TOKENS = often(100, 10)

Points = list[tuple[float, float]]


def median_ms(work: Callable[[], object], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000


def with_models() -> dict[str, Points]:
    """The list of models, and a look whether their files have changed."""
    listing: Points = []
    scan: Points = []
    for count in MODELS:
        with tempfile.TemporaryDirectory(prefix="lemon-tray-bench-") as name:
            folder = Path(name)
            for number in range(count):
                path = folder / "models" / f"family-{number // 50}" / f"model-{number:04d}-Q4_K_M.gguf"
                path.parent.mkdir(parents=True, exist_ok=True)
                gguf.write_header_only(path, layers=16, weights_bytes=1 << 30, vocab=256)
            found = catalog.Catalog([folder / "models"], read=HeaderStore(folder / "headers").get)
            asyncio.run(found.scan())
            known = catalog.sizes(found, Settings())
            rounds = max(3, ROUNDS // 10)
            scan.append((count, median_ms(lambda made=found: asyncio.run(made.scan()), rounds)))
            listing.append(
                (count, median_ms(lambda made=found, needs=known: catalog.listing(made, needs), rounds))
            )
    return {"listing, by models": listing, "look at files, by models": scan}


async def plan_ms(waiting: int) -> float:
    house = await reconcile.crowd(8, waiting)
    took = median_ms(lambda: reconcile.plan_once(house), ROUNDS)
    await reconcile.end(house)
    return took


async def decision_ms(devices: int) -> float:
    """Who goes, where eight models fill each device."""
    found = await reconcile.decisions(busy=False, devices=devices, residents=8 * devices, wanted=1)
    return found["median_ms"]


def with_streams() -> Points:
    """Processor time for one event of a stream, in microseconds."""
    points: Points = []
    with clean_environment() as environment, tempfile.TemporaryDirectory() as name:
        gguf.write_header_only(Path(name) / "alpha.gguf", layers=2, weights_bytes=1 << 20, vocab=256)
        port, own = free_port(), free_port()
        engine = [PYTHON, str(HERE / "_load.py"), "engine", str(port)]
        serve = [PYTHON, str(HERE / "_relayed.py"), str(port), "serve", "--port", str(own)]
        with (
            child(engine, environment) as fake,
            child([*serve, "--models-dir", name], environment) as process,
        ):
            wait_for_url(fake)
            wait_until_it_answers(own, process)
            relay = Relay("ours", own, process)
            asked(0, "closed", own, 8, 0.5)
            for count in STREAMS:
                before = relay.cpu_s()
                told = asked(0, "stream", own, count, TOKENS)
                points.append((count, (relay.cpu_s() - before) / max(1, told["events"]) * 1e6))
    return points


def main() -> int:
    logging.disable(logging.CRITICAL)
    rows = with_models()
    rows["a plan, by waiting requests"] = [(count, asyncio.run(plan_ms(count))) for count in WAITING]
    rows["a decision, by full devices"] = [(count, asyncio.run(decision_ms(count))) for count in DEVICES]
    rows["CPU us of an event, by streams"] = with_streams()
    fitted = {name: round(exponent(points), 2) for name, points in rows.items()}
    # Where costs are fixed at first, the last step tells more.
    last = {name: round(exponent(points[-2:]), 2) for name, points in rows.items()}
    shown = {name: [[count, round(value, 4)] for count, value in points] for name, points in rows.items()}
    report(
        {"bench": "growth", "exponents": fitted, "last_step": last, "points": shown},
        "; ".join(
            f"{name}: {rows[name][0][1]:.3g} to {rows[name][-1][1]:.3g} ms "
            f"({rows[name][0][0]} to {rows[name][-1][0]}), power {power}"
            for name, power in fitted.items()
        ).replace(" ms (1 to 100), power", " us (1 to 100), power"),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
