"""What routing by policy costs: a decision alone, and a request through a policy against one without.

The policy has 20 rules of all deterministic kinds, and none of them matches, so that all are looked at.
Requests go over HTTP to an endpoint whose worker answers at once, in pairs, so that a change of the machine's
mood hits both.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from _common import often, report

from router.policy.classify import Decider, HelperModel
from router.policy.document import Policy
from router.policy.evaluate import Decision, decide
from router.policy.parse import parse_policy
from router.policy.request import RequestView, request_view
from router.policy.vectors import Vectors
from tests.router.web.fakes import CHAT, Client, reply, site
from tests.support.policies import document

RULES = 20
PAIRS = often(400, 20)
WORDS = "the quick brown fox jumps over the lazy dog and runs far away from here "


def matches() -> list[dict[str, Any]]:
    """One match of each kind, none of which holds."""
    return [
        {"keywords_any": ["invoice", "refund", "straße", "payment order", "def "]},
        {"keywords_all": ["quick", "slow"]},
        {"regex": r"\b[A-Z]{2}\d{2}(?: ?\w{4}){3,7}\b"},
        {"regex": r"[\w.+-]+@[\w-]+\.\w{2,}"},
        {"min_chars": 1 << 30},
        {"metadata": {"key": "consent", "any": ["denied", "unknown"]}},
        {"has_images": True},
        {"all": [{"has_tools": False}, {"not": {"any": [{"keywords_any": ["fox"]}, {"min_chars": 1}]}}]},
        {"any": [{"regex": r"^(?:sudo|rm) "}, {"keywords_any": ["kernel", "segfault"]}]},
        {"keywords_any": ["lawyer"], "min_chars": 10, "has_tools": True},
    ]


def policy() -> Policy:
    found = matches()
    rules = [{"id": f"rule-{n}", "match": found[n % len(found)], "route_to": "beta"} for n in range(RULES)]
    return parse_policy(document("auto", ("alpha", "beta"), rules=rules))


def body(size: int, model: str) -> bytes:
    text = (WORDS * (size // len(WORDS) + 1))[:size]
    return msgspec.json.encode({"model": model, "messages": [{"role": "user", "content": text}]})


def decision_ms(size: int, rounds: int) -> dict[str, float]:
    """A decision from a decoded body, and its share that looks at the body."""
    decoded = msgspec.json.decode(body(size, "auto"))
    asked, times, views = policy(), [], []
    gc.collect()
    for _ in range(rounds):
        begin = time.perf_counter()
        view = request_view(decoded)
        between = time.perf_counter()
        found = decide(asked, view)
        end = time.perf_counter()
        assert found.default_used
        times.append(end - begin)
        views.append(between - begin)
    return {
        "median_ms": round(statistics.median(times) * 1000, 4),
        "p99_ms": round(statistics.quantiles(times, n=100)[98] * 1000, 4),
        "view_median_ms": round(statistics.median(views) * 1000, 4),
    }


class NoHelpers:
    """This policy asks no model."""

    def model(self, name: str) -> HelperModel | None:
        return None

    async def ask(self, policy: str, model: str, path: str, body: Mapping[str, Any]) -> Any:
        raise AssertionError("no model is asked")


async def pairs_ms(size: int) -> dict[str, float]:
    """The same request directly and through the policy, in turn, on one connection."""
    with tempfile.TemporaryDirectory() as folder:
        decider = Decider(NoHelpers(), Vectors(Path(folder)))

        async def through(asked: Policy, view: RequestView) -> Decision:
            return await decider.decide(asked, view)

        async with site(reply) as here:
            here.api.policies["auto"] = policy()
            here.api.decide = through  # type: ignore[method-assign]  # the real one, without models
            times: dict[str, list[float]] = {"alpha": [], "auto": []}
            async with Client(here.endpoint.port) as client:
                bodies = {name: body(size, name) for name in times}
                for turn in range(PAIRS + 20):
                    for name, taken in times.items():
                        begin = time.perf_counter()
                        answer = await client.ask("POST", CHAT, bodies[name])
                        if turn >= 20:
                            taken.append(time.perf_counter() - begin)
                        assert answer.status == 200
                    here.api.leases.clear()
                    here.worker.requests.clear()
        decider.close()
    extra = [routed - direct for direct, routed in zip(times["alpha"], times["auto"], strict=True)]
    return {
        "direct_median_ms": round(statistics.median(times["alpha"]) * 1000, 3),
        "routed_median_ms": round(statistics.median(times["auto"]) * 1000, 3),
        "difference_median_ms": round(statistics.median(extra) * 1000, 3),
    }


def main() -> int:
    small, large = decision_ms(2_000, often(2_000, 20)), decision_ms(1 << 20, often(30, 3))
    routed = asyncio.run(pairs_ms(2_000))
    report(
        {
            "bench": "policy",
            "rules": RULES,
            "decision_2kB": small,
            "decision_1MiB": large,
            "routed_2kB": routed,
        },
        f"a decision over {RULES} rules: {small['median_ms']:.3f} ms on 2 kB (goal 0.2), "
        f"{large['median_ms']:.1f} ms on 1 MiB; routed over direct: {routed['difference_median_ms']:+.2f} ms "
        f"(goal 1; median of {PAIRS} pairs)",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
