"""What the panel costs: opening it, and following a hundred snapshots a second, without a screen.

The lag is that of a timer of 5 ms on the loop that the panel is drawn on: what a stream would wait. The same
loop runs without the panel in between, as often and as long: what the measuring itself takes, and how much
the machine lags by itself, are told apart.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

from _common import often, report
from msgspec import structs
from PySide6.QtWidgets import QApplication

from lemon_tray.bridge import Bridge
from lemon_tray.edits import Edits
from lemon_tray.loop import make_loop
from lemon_tray.panel import Panel
from lemon_tray.presenter import model_numbers, present
from lemon_tray.theme import LIGHT, Look
from router.snapshot import Snapshot
from tests.ui import canned
from tests.ui.fake_door import FakeDoor

OPENINGS = often(30, 3)
RATE = 100
SECONDS = often(10, 1)
TURNS = 4
PROBE_S = 0.005
CYCLE = 200


class Cost(NamedTuple):
    """The share of a processor that was used, and by how much each turn of the loop was late, in seconds."""

    share: float
    lags: list[float]

    @classmethod
    def of(cls, turns: Sequence[Cost]) -> Cost:
        return cls(statistics.mean(t.share for t in turns), [lag for t in turns for lag in t.lags])

    def at(self, share: float) -> float:
        """The lag in ms that this share of the turns did not exceed."""
        ordered = sorted(self.lags)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1000


def busy(number: int) -> Snapshot:
    """The next of a row of snapshots in which a model loads and memory moves."""
    of = canned.loading()
    reserved = 5.0 * (1 - (number % CYCLE) / CYCLE)
    card = canned.device(0, "RTX 4090", {"Qwen3-8B": (9.1, 0), "Gemma-3-4B": (5.2, reserved)}, 3.0)
    gemma = structs.replace(canned.GEMMA, progress=1 - reserved / 5.2)
    return structs.replace(
        of, generation=number, devices=(card, *of.devices[1:]), residents=(*of.residents[:2], gemma)
    )


async def follow(door: FakeDoor, show: Callable[[Snapshot], None] | None, seconds: float) -> Cost:
    """What it costs to hand on snapshots, and to `show` them, for so long."""
    loop = asyncio.get_running_loop()
    lags: list[float] = []
    bridge = Bridge(door)
    if show is not None:
        bridge.changed.connect(show)
    made = [busy(number) for number in range(CYCLE)]
    cpu, began = time.process_time(), loop.time()
    sent = 0
    while (passed := loop.time() - began) < seconds:
        if sent < passed * RATE:
            sent += 1
            of = made[sent % CYCLE]
            door.publish(generation=sent, devices=of.devices, residents=of.residents)
        before = loop.time()
        await asyncio.sleep(PROBE_S)
        lags.append(loop.time() - before - PROBE_S)
    bridge.close()
    return Cost((time.process_time() - cpu) / (loop.time() - began), lags)


async def compare(panel: Panel, door: FakeDoor) -> tuple[Cost, Cost]:
    """Following with the panel, and the same without, in turns."""
    numbers = model_numbers({}, door.snapshot)

    def show(snapshot: Snapshot) -> None:
        panel.show_view(present(snapshot, numbers=numbers))

    shown, bare = [], []
    for _ in range(TURNS):
        bare.append(await follow(door, None, SECONDS / TURNS))
        shown.append(await follow(door, show, SECONDS / TURNS))
    return Cost.of(shown), Cost.of(bare)


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
    with asyncio.Runner(loop_factory=lambda: make_loop(app)) as runner:
        shown, bare = runner.run(compare(panel, FakeDoor(busy(0))))
    first, median = times[0] * 1000, statistics.median(times) * 1000
    own = shown.share - bare.share
    report(
        {
            "open_first_ms": round(first, 1),
            "open_median_ms": round(median, 1),
            "snapshots_per_s": RATE,
            "cpu_share": round(own, 3),
            "cpu_share_of_measuring": round(bare.share, 3),
            "lag_p99_ms": round(shown.at(0.99), 1),
            "worst_lag_ms": round(shown.at(1.0), 1),
            "worst_lag_without_ms": round(bare.at(1.0), 1),
        },
        f"panel: opens in {median:.0f} ms (first {first:.0f}); {RATE} snapshots a second take {own:.0%} of "
        f"a core, and measuring {bare.share:.0%}; the loop lags {shown.at(0.99):.0f} ms at p99, "
        f"{shown.at(1.0):.0f} ms at worst ({bare.at(1.0):.0f} without the panel)",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
