"""What the panel costs: opening it, and following a hundred snapshots a second, without a screen.

The lag is that of a timer of 5 ms on the loop that the panel is drawn on: what a stream would wait.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

from _common import report
from msgspec import structs
from PySide6.QtWidgets import QApplication
from qasync import QEventLoop

from lemon_tray.bridge import Bridge
from lemon_tray.edits import Edits
from lemon_tray.panel import Panel
from lemon_tray.presenter import model_numbers, present
from lemon_tray.theme import LIGHT, Look
from router.snapshot import Snapshot
from tests.ui import canned
from tests.ui.fake_door import FakeDoor

OPENINGS = 30
RATE = 100
SECONDS = 10
PROBE_S = 0.005


def busy(number: int) -> Snapshot:
    """The next of a row of snapshots in which a model loads and memory moves."""
    of = canned.loading()
    reserved = 5.0 * (1 - (number % 200) / 200)
    card = canned.device(0, "RTX 4090", {"Qwen3-8B": (9.1, 0), "Gemma-3-4B": (5.2, reserved)}, 3.0)
    gemma = structs.replace(canned.GEMMA, progress=1 - reserved / 5.2)
    return structs.replace(
        of, generation=number, devices=(card, *of.devices[1:]), residents=(*of.residents[:2], gemma)
    )


async def follow(panel: Panel, door: FakeDoor) -> tuple[float, float]:
    """The share of a processor that following takes, and the worst lag in seconds."""
    loop = asyncio.get_running_loop()
    worst, numbers = 0.0, model_numbers({}, door.snapshot)

    def show(snapshot: Snapshot) -> None:
        panel.show_view(present(snapshot, numbers=numbers))

    bridge = Bridge(door)
    bridge.changed.connect(show)
    cpu, began = time.process_time(), loop.time()
    sent = 0
    while (passed := loop.time() - began) < SECONDS:
        if sent < passed * RATE:
            sent += 1
            of = busy(sent)
            door.publish(generation=sent, devices=of.devices, residents=of.residents)
        before = loop.time()
        await asyncio.sleep(PROBE_S)
        worst = max(worst, loop.time() - before - PROBE_S)
    bridge.close()
    return (time.process_time() - cpu) / (loop.time() - began), worst


def main() -> int:
    app = QApplication([])
    app.setQuitOnLastWindowClosed(False)
    panel = Panel(Look(LIGHT), Edits())
    times = []
    for number in range(OPENINGS):
        panel.show_view(present(busy(number), numbers=model_numbers({}, canned.loading())))
        began = time.perf_counter()
        panel.open()
        panel.repaint()
        times.append(time.perf_counter() - began)
        panel.hide()
    panel.open()
    with asyncio.Runner(loop_factory=lambda: QEventLoop(app)) as runner:
        share, worst = runner.run(follow(panel, FakeDoor(busy(0))))
    first, median = times[0] * 1000, statistics.median(times) * 1000
    report(
        {
            "open_first_ms": round(first, 1),
            "open_median_ms": round(median, 1),
            "snapshots_per_s": RATE,
            "cpu_share": round(share, 3),
            "worst_lag_ms": round(worst * 1000, 1),
        },
        f"panel: opens in {median:.0f} ms (first {first:.0f}); {RATE} snapshots a second take {share:.0%} of "
        f"a core; the loop lags {worst * 1000:.0f} ms at worst",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
