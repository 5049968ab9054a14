"""Health and the list of models, by table."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from router.snapshot import (
    DeviceState,
    DeviceView,
    ModelView,
    PolicyView,
    PoolView,
    QueueView,
    ResidentState,
    ResidentView,
    Status,
)
from router.web.health import autosize, health, models
from tests.router.web.fakes import model, policy, snapshot


def resident(name: str, **more: Any) -> ResidentView:
    given: dict[str, Any] = {
        "type": "llm",
        "state": ResidentState.READY,
        "bytes": 300,
        "devices": {"gpu-0": 200, "host": 100},
        "memberships": ("standard",),
        "pinned": False,
        "in_use": 0,
        "waiting": 0,
        "slots": 1,
        "last_use": 1.0,
    }
    return ResidentView(model=name, **{**given, **more})


def pool(configured: int = 1, effective: int = 3, **more: Any) -> PoolView:
    given = {"autosize": True, "candidate_floor": 3, "loaded": 2, "loading": 1, "auto_evict": False}
    return PoolView(configured_limit=configured, effective_limit=effective, **{**given, **more})


def test_health_of_a_busy_router() -> None:
    told = health(
        snapshot(
            7,
            status=Status.LOADING,
            pool=pool(),
            residents=(
                resident("alpha", pinned=True, in_use=1, pid=77, backend_url="http://127.0.0.1:9/v1"),
                resident("beta", last_use=5.0, options={"ctx_size": 4096}),
                resident("embed", type="embedding", last_use=9.0),
                resident("guard", memberships=("helper",), pinned=True),
                resident("gamma", state=ResidentState.LOADING, progress=0.5, last_use=99.0),
                resident("old", state=ResidentState.EVICTING, last_use=99.0),
            ),
            devices=(
                DeviceView("gpu-0", "GPU", "CUDA0", "gpu", 1000, 400, 300, 50, 200, 10, DeviceState.OK),
                DeviceView(
                    "host", "RAM", "CPU", "host", None, None, 0, 0, 0, 0, DeviceState.UNKNOWN, "no answer"
                ),
            ),
            policies=(
                PolicyView("auto", True, ("alpha", "beta", "gone"), 2, "alpha", ("gone",)),
                PolicyView("off", False, ("x", "y"), 2, "x", ("y",)),
            ),
            queue=QueueView(3, 99, {"gamma": 3}),
            effective_limits={"llm": 3, "embedding": 1, "reranking": 1},
        )
    )
    assert told["status"] == "ok"
    assert told["state"] == "loading"
    assert told["generation"] == 7
    assert told["model_loaded"] == "beta"
    assert [m["model_name"] for m in told["all_models_loaded"]] == [
        "alpha",
        "beta",
        "embed",
        "guard",
        "gamma",
    ]
    assert told["max_models"] == {"llm": 3, "embedding": 1, "reranking": 1}
    assert told["pinned_models"] == ["alpha"]
    assert told["pinned_helper_models"] == ["guard"]
    assert told["queue"] == {"waiting": 3, "waiting_bytes": 99, "by_model": {"gamma": 3}}
    alpha, beta, _, guard, gamma = told["all_models_loaded"]
    assert (alpha["is_busy"], alpha["pid"], alpha["backend_url"]) == (True, 77, "http://127.0.0.1:9/v1")
    assert alpha["devices"] == {"gpu-0": 200, "host": 100}
    assert alpha["device"] == "gpu-0 host"
    assert beta["recipe_options"] == {"ctx_size": 4096}
    assert (alpha["slot_pool"], guard["slot_pool"]) == ("llm", "helper:llm")
    assert guard["residency"] == ["helper"]
    assert (gamma["state"], gamma["progress"]) == ("loading", 0.5)
    assert told["devices"][0]["free"] == 400
    assert told["devices"][0]["reserved"] == 50
    assert told["devices"][1]["total"] is None
    assert told["devices"][1]["reason"] == "no answer"
    size = told["llm_pool_autosize"]
    assert size["policies"] == {"auto": 2}
    assert size["unresolved"] == [{"policy": "auto", "candidate": "gone"}]
    assert size["exceeds_max_loaded_models"] is True
    assert size["vram_backstop"] is False
    assert "llm_pool_autosize=false" in size["advisory"]
    msgspec.json.encode(told)


def test_health_of_an_empty_router() -> None:
    told = health(snapshot())
    assert told["model_loaded"] is None
    assert told["all_models_loaded"] == []
    assert told["max_models"] == {"llm": 1, "embedding": 1, "reranking": 1}


@pytest.mark.parametrize(
    ("configured", "effective", "auto_evict", "exceeds", "advised"),
    [
        (1, 1, False, False, False),
        (1, 3, False, True, True),
        (1, 3, True, True, False),
        (2, 4, False, True, True),
        (-1, -1, False, False, False),
        (4, 4, False, False, False),
    ],
)
def test_the_advisory_comes_when_the_pool_may_outgrow_the_limit_unwatched(
    configured: int, effective: int, auto_evict: bool, exceeds: bool, advised: bool
) -> None:
    told = autosize(
        snapshot(pool=pool(configured, effective, candidate_floor=effective, auto_evict=auto_evict))
    )
    assert told["exceeds_max_loaded_models"] is exceeds
    assert told["vram_backstop"] is auto_evict
    assert bool(told["advisory"]) is advised
    if advised:
        assert f"Up to {effective} " in told["advisory"]
        assert f"max_loaded_models says {configured}." in told["advisory"]


def test_the_list_of_models() -> None:
    view = ModelView("beta", "llm", 1, 1, ("b",))
    told = models(
        snapshot(residents=(resident("alpha"), resident("beta")), models=(view,)),
        (
            model("alpha"),
            model("gamma"),
            model("embed", "embedding"),
            policy("auto", candidates=("alpha", "b")),
        ),
    )["data"]
    assert [m["id"] for m in told] == ["alpha", "gamma", "embed", "auto"]
    assert [m["loaded"] for m in told] == [True, False, False, True]
    assert [m["recipe"] for m in told] == ["llamacpp", "llamacpp", "llamacpp", "collection.router"]
    assert [m["labels"] for m in told] == [[], [], ["embeddings"], ["router"]]
    assert told[0]["size_bytes"] == 1 << 30
    assert told[0]["created"] == 5
    for entry in told:
        assert {"id", "object", "created", "owned_by", "type", "context_length"} <= set(entry)


def test_a_policy_is_not_loaded_while_a_candidate_is_not() -> None:
    told = models(snapshot(residents=(resident("alpha"),)), (policy(),))["data"]
    assert told[0]["loaded"] is False
