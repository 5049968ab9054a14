"""The real program, `serve`, that looks at itself: for soaks only.

Whoever connects to the Unix socket named by the environment is told, as one line of JSON, what was found
until now. Nothing of the router is changed but that its actions and snapshots are looked at.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from lemon_tray.__main__ import main
from router.service import Router
from router.settings.schema import Settings
from tests.router.residency.machine import WatchedReconciler
from tests.soak.checks import Checks, JudgedDevices

SOCKET: Final = "SOAK_SOCKET"


class SoakedReconciler(WatchedReconciler):
    """Looks at each action before it is applied."""

    def _nobody_older_is_passed(self, name: str, kind: str) -> None:
        """Where memory is short too, a small model may pass a large one: that is judged elsewhere."""

    def configure(self, *given: Any, **named: Any) -> None:
        super().configure(*given, **named)
        settings = named.get("settings")
        if isinstance(settings, Settings):
            for devices in JudgedDevices.judged:
                # What was admitted at a risk may take its memory later.
                devices.takes_risks = settings.admission == "proceed"


def tell(router: Router, checks: Checks) -> dict[str, Any]:
    """What is known now."""
    reconciler = router._reconciler
    assert isinstance(reconciler, SoakedReconciler)
    for violation in reconciler.violations:
        checks.faults.append(str(violation))
    reconciler.violations.clear()
    for devices in JudgedDevices.judged:
        checks.faults += devices.faults
        devices.faults.clear()
    twice = [number for number, times in reconciler.gone.items() if times != 1]
    if twice:
        checks.faults.append(f"processes {twice} were booked as gone more than once")
    tasks = Counter(task.get_name() for task in asyncio.all_tasks())
    return {
        "faults": checks.faults[:50],
        "snapshots": checks.seen,
        "generation": router.snapshot.generation,
        "tasks": sum(tasks.values()),
        "names": sorted(tasks.elements()),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "lag_s": router.snapshot.loop_lag_s,
        "counts": [list(each) for each in router.snapshot.event_counts],
        "moving": any(r.state != "ready" or r.in_use for r in router.snapshot.residents),
        "waiting": router.snapshot.queue.waiting,
        "pids": [r.pid for r in router.snapshot.residents if r.pid],
    }


def watch() -> None:
    """From now on each router that starts in this process is looked at."""
    import router.service.wiring as service

    service.Reconciler = SoakedReconciler  # type: ignore[attr-defined]  # only to look on
    service.SimulatedDevices = JudgedDevices  # type: ignore[attr-defined]  # only to look on
    start, stop = Router.start, Router.stop
    servers: list[asyncio.Server] = []

    async def start_and_look(self: Router) -> None:
        await start(self)
        checks = Checks()
        self.subscribe(lambda snapshot: checks.look(snapshot, time.monotonic()))

        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(json.dumps(tell(self, checks)).encode() + b"\n")
            await writer.drain()
            writer.close()

        servers.append(await asyncio.start_unix_server(answer, os.environ[SOCKET]))

    async def stop_looking(self: Router) -> None:
        for server in servers:
            server.close()
        Path(os.environ[SOCKET]).unlink(missing_ok=True)
        await stop(self)

    Router.start = start_and_look  # type: ignore[method-assign,assignment]  # in this process only
    Router.stop = stop_looking  # type: ignore[method-assign,assignment]  # in this process only


if __name__ == "__main__":
    watch()
    sys.exit(main(sys.argv[1:]))
