"""What 1,000 models cost: found for the first time, after a restart, again, and listed with what each needs.

The files are small and real: a header, and a hole where the tensors would be. Sizes are worked out for two
pretend GPUs.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
from _common import often, report

from router.catalog.catalog import Catalog
from router.devices.base import HOST_ID, DeviceInfo, DeviceReading
from router.memory.measured import Measured
from router.memory.store import HeaderStore
from router.service.placing import Placing
from router.service.sizing import Size, capacity, size_of
from router.settings.schema import Settings
from router.snapshot import ModelView, PoolView, Snapshot, Status
from router.units import GIB
from router.web import health
from tests.support import gguf

MODELS = often(1000, 20)
COLD_ROUNDS = often(3)
ROUNDS = often(9)
READINGS = tuple(
    DeviceReading(DeviceInfo(id, id, id, kind, backend), size * GIB, size * GIB, 0.0)
    for id, kind, backend, size in (
        ("gpu-a", "gpu", "simulated", 24),
        ("gpu-b", "gpu", "simulated", 12),
        (HOST_ID, "host", "", 64),
    )
)


def write(folder: Path) -> None:
    """The models' files, fifty to a folder, of ten shapes."""
    for number in range(MODELS):
        path = folder / f"family-{number // 50}" / f"model-{number:04d}-Q4_K_M.gguf"
        path.parent.mkdir(parents=True, exist_ok=True)
        layers = 16 + 8 * (number % 10)
        gguf.write_header_only(path, layers=layers, weights_bytes=layers << 28, vocab=256)


async def median_ms(work: Callable[[], Awaitable[object]], rounds: int = ROUNDS) -> float:
    """Milliseconds of one call, the median of some."""
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        await work()
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1000


def sizes(catalog: Catalog, settings: Settings) -> dict[str, Size]:
    """What each model needs and whether it fits, with nothing remembered of an earlier call."""
    placing = Placing(Measured(Path("none")))
    placing.observe(READINGS)
    room = capacity(READINGS, placing, settings)
    return {name: size_of(model, placing, settings, room) for name, model in catalog.models.items()}


def listing(catalog: Catalog, known: dict[str, Size]) -> bytes:
    """The answer of `GET /v1/models`."""
    views = tuple(
        ModelView(m.name, m.type, m.size_bytes, m.context_length, m.aliases, m.broken, size.needs, size.fits)
        for m in catalog.models.values()
        for size in (known[m.name],)
    )
    pool = PoolView(True, 1, 1, 0, 0, 0, False)
    snapshot = Snapshot(1, "", Status.READY, "", 0.0, {}, pool, models=views)
    return msgspec.json.encode(health.models(snapshot, catalog.models.values()))


async def measure(folder: Path) -> dict[str, float]:
    """Every number, in ms but for the counts."""
    write(folder / "models")
    kept = 0

    def catalog(store: Path) -> Catalog:
        return Catalog([folder / "models"], read=HeaderStore(store).get)

    async def cold() -> None:
        nonlocal kept
        kept += 1
        await catalog(folder / f"headers-{kept}").scan()

    async def restart() -> None:
        await catalog(folder / "headers-1").scan()

    cold_ms = await median_ms(cold, COLD_ROUNDS)
    restart_ms = await median_ms(restart)
    running = catalog(folder / "headers-1")
    await running.scan()
    settings = Settings()
    known = sizes(running, settings)

    async def size() -> None:
        await asyncio.to_thread(sizes, running, settings)

    async def list_all() -> None:
        listing(running, known)

    async def all_of_it() -> None:
        listing(running, await asyncio.to_thread(sizes, running, settings))

    return {
        "models": float(len(running.models)),
        "fit": float(sum(size.fits is True for size in known.values())),
        "cold_scan_ms": cold_ms,
        "restart_scan_ms": restart_ms,
        "warm_scan_ms": await median_ms(running.scan),
        "sizes_ms": await median_ms(size),
        "listing_ms": await median_ms(list_all),
        "sizes_and_listing_ms": await median_ms(all_of_it),
        "restart_to_cold": restart_ms / cold_ms,
    }


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(prefix="lemon-tray-bench-") as folder:
        numbers = asyncio.run(measure(Path(folder)))
    report(
        {name: round(value, 3) for name, value in numbers.items()},
        f"{numbers['models']:.0f} models: found in {numbers['cold_scan_ms']:.0f} ms, after a restart in"
        f" {numbers['restart_scan_ms']:.0f} ms ({numbers['restart_to_cold']:.2f} of that), again in"
        f" {numbers['warm_scan_ms']:.0f} ms; sizes in {numbers['sizes_ms']:.0f} ms, the list in"
        f" {numbers['listing_ms']:.0f} ms, both in {numbers['sizes_and_listing_ms']:.0f} ms",
    )


if __name__ == "__main__":
    main()
