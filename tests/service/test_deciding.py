"""How decisions are told, and what is known of contexts."""

from __future__ import annotations

from pathlib import Path

from router.policy.fit import GaveWay
from router.residency.feed import Feed
from router.service.deciding import GROUP_S, Teller
from tests.service.live import live


def test_decisions_of_one_kind_are_told_together() -> None:
    feed, now = Feed(), [0.0]
    teller = Teller(lambda: feed, lambda: now[0])
    for second in (0.0, 1.0, 2.0, GROUP_S, GROUP_S + 1, 3 * GROUP_S):
        now[0] = second
        teller.tell("p", "code", "big", ())
    teller.tell("p", "", "small", ())
    teller.tell("p", "", "big", (GaveWay("small", "context_too_small"), GaveWay("mid", "cannot_be_loaded")))
    assert [(e.code, e.model, e.reason, e.message) for e in feed.latest(9)] == [
        ("route", "big", "code", "p sent a request to big by the rule code."),
        ("route", "big", "code", "p sent 3 requests to big by the rule code."),
        ("route", "big", "code", "p sent 2 requests to big by the rule code."),
        ("route", "small", "default", "p sent a request to small as its default."),
        (
            "fallback",
            "big",
            "default",
            "p sent a request to big as its default; small gave way (its context is too small); mid gave way "
            "(it cannot be loaded).",
        ),
    ]


def test_what_is_remembered_of_decisions_is_bounded() -> None:
    feed, now = Feed(), [0.0]
    teller = Teller(lambda: feed, lambda: now[0])
    for number in range(3_000):
        now[0] += 1.0
        teller.tell(f"p{number}", "", "m", ())
    assert len(teller._groups) <= 1_001


async def test_the_context_of_a_request_is_that_of_a_slot(tmp_path: Path, tiny_models: Path) -> None:
    async with live(tmp_path, tiny_models, settings={"ctx_size": 2048}) as router:
        assert router.router.window("alpha") == 2048
        await router.set(ctx_size=4096, parallel=2)
        assert router.router.window("alpha") == 2048
        await router.post("/v1/load", {"model_name": "alpha", "ctx_size": 1024, "parallel": 1})
        assert router.router.window("alpha") == 1024
        assert router.router.window("nothing") == 0
