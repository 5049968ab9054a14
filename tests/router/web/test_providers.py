"""The calls about remote providers."""

from __future__ import annotations

from typing import Any

import pytest

from router.providers.link import INSTANCE, VIA
from router.snapshot import ProviderView
from tests.router.web.fakes import reply, site, snapshot

URL = "https://api.example.com/v1"
BOTH = {"name": "cloud", "url": URL}


@pytest.mark.parametrize(
    ("more", "key"), [({}, None), ({"key": None}, ""), ({"key": ""}, ""), ({"key": "sk-1"}, "sk-1")]
)
async def test_a_key_that_is_not_named_stays(more: dict[str, Any], key: str | None) -> None:
    async with site(reply) as s:
        answer = await s.post("/internal/providers/add", {**BOTH, **more, "models": ["a"], "idle_s": 5})
        assert answer.status == 200
        assert answer.json()["provider"]["state"] == "ready"
        assert b"sk-1" not in answer.body
        ((_, provider, given),) = s.api.calls
        assert (provider.url, provider.models, provider.idle_s, given) == (URL, ("a",), 5, key)


@pytest.mark.parametrize(
    "body",
    [
        {"name": "cloud"},
        {"url": URL},
        {**BOTH, "secret": "x"},
        {**BOTH, "types": {"a": "image"}},
        {**BOTH, "idle_s": "long"},
        {**BOTH, "name": "Cloud"},
        {**BOTH, "url": "https://me:pw@example.com/v1"},
    ],
)
async def test_what_is_wrong_is_refused_and_changes_nothing(body: dict[str, Any]) -> None:
    async with site(reply) as s:
        answer = await s.post("/internal/providers/add", body)
        assert answer.status == 400
        assert "pw" not in answer.error["message"]
        assert s.api.calls == []


@pytest.mark.parametrize("call", ["test", "remove"])
async def test_one_that_is_not_there(call: str) -> None:
    async with site(reply) as s:
        assert (await s.post(f"/internal/providers/{call}", {"name": "nope"})).status == 404
        assert (await s.post(f"/internal/providers/{call}", {"name": " "})).status == 400


async def test_the_providers_are_told() -> None:
    down = ProviderView("cloud", URL, "down", "it is gone", models=3, more=7, in_use=1, key="keyring")
    async with site(reply) as s:
        s.api.publish(snapshot(2, providers=(down, ProviderView("b", URL, "ready"))))
        (first, _) = (await s.ask("GET", "/internal/providers")).json()["providers"]
        assert (first["name"], first["state"], first["problem"]) == ("cloud", "down", "it is gone")
        (first, second) = (await s.ask("GET", "/v1/health")).json()["providers"]
        assert (first["models"], first["models_left_out"], first["looked_at"]) == (3, 7, None)
        assert second["problem"] is None
        metrics = bytes((await s.ask("GET", "/metrics")).body).decode()
        assert 'lemonade_provider_ready{provider="cloud"} 0.0' in metrics
        assert 'lemonade_provider_ready{provider="b"} 1.0' in metrics
        assert 'lemonade_provider_requests{provider="cloud"} 1.0' in metrics


async def test_a_router_that_asks_learns_which_run_answers() -> None:
    async with site(reply) as s:
        assert INSTANCE not in (await s.ask("GET", "/v1/models")).headers
        answer = await s.ask("GET", "/v1/models", headers={VIA: "another"})
        assert answer.headers[INSTANCE] == s.api.instance
