"""The loops that the router must run on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

LOOPS = ("asyncio", "uvloop", "qasync", "qt")


def loop_factory(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes the loop that a fixture with `params=LOOPS` asks for; None for asyncio's own."""
    if request.param == "uvloop":
        factory: Callable[[], asyncio.AbstractEventLoop] = pytest.importorskip("uvloop").new_event_loop
        return factory
    if request.param == "qasync":
        qasync, app = pytest.importorskip("qasync"), request.getfixturevalue("qapp")
        return lambda: qasync.QEventLoop(app)
    if request.param == "qt":
        loops, app = pytest.importorskip("lemon_tray.loop"), request.getfixturevalue("qapp")
        return lambda: loops.make_loop(app)
    return None
