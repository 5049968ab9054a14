"""The state of the whole in one word."""

from __future__ import annotations

import pytest
from msgspec import structs

from router.service.status import status_of
from router.snapshot import (
    FeedEntry,
    PolicyView,
    PoolView,
    ResidentState,
    ResidentView,
    Severity,
    Snapshot,
    Status,
)

CALM = Snapshot(
    generation=1,
    version="1",
    status=Status.READY,
    endpoint="",
    uptime_s=1.0,
    settings={},
    pool=PoolView(True, 1, 1, 0, 0, 0, False),
)
AT_RISK = PoolView(True, 1, 3, 3, 0, 0, False)


def resident(state: ResidentState, *, stuck: bool = False) -> ResidentView:
    return ResidentView("m", "llm", state, 1, {}, ("standard",), False, 0, 0, 1, 0.0, stuck=stuck)


def entry(id: int, code: str, severity: Severity = Severity.INFO, model: str = "m") -> FeedEntry:
    return FeedEntry(id, 0.0, code, "", severity, model)


FAILED = entry(1, "load_failed", Severity.ERROR)


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, Status.READY),
        ({"residents": (resident(ResidentState.LOADING),)}, Status.LOADING),
        ({"residents": (resident(ResidentState.READY),)}, Status.READY),
        ({"pool": AT_RISK}, Status.WARNING),
        ({"pool": AT_RISK, "residents": (resident(ResidentState.LOADING),)}, Status.WARNING),
        ({"problems": ("config.json: no",)}, Status.WARNING),
        ({"policies": (PolicyView("p", True, (), 0, "a", ("a",)),)}, Status.WARNING),
        ({"policies": (PolicyView("p", False, (), 0, "a", ("a",)),)}, Status.READY),
        ({"feed": (FAILED,)}, Status.WARNING),
        ({"feed": (FAILED, entry(2, "ready"))}, Status.READY),
        ({"feed": (FAILED, entry(2, "ready", model="other"))}, Status.WARNING),
        ({"degraded": "KeyError"}, Status.ERROR),
        ({"residents": (resident(ResidentState.EVICTING, stuck=True),), "pool": AT_RISK}, Status.ERROR),
    ],
)
def test_the_worst_decides(changes: dict[str, object], status: Status):
    assert status_of(structs.replace(CALM, **changes)) is status
