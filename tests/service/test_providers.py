"""Providers in the whole router: another real router in a process of its own, and a scripted server."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from router.web.keyfile import KeyFile
from tests.router.providers.fakes import KEY, Server, failing, server
from tests.router.web.fakes import Peer
from tests.service.live import Live, live, write_models
from tests.service.test_endings import Program, program
from tests.support.policies import document


@pytest.fixture(autouse=True)
def without_keyring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.settings.keyring.system_keyring", lambda: None)


def escalation(*candidates: str, **routing: Any) -> dict[str, Any]:
    """A policy that sends what is hard to the last candidate."""
    rules = [{"id": "hard", "match": {"keywords_any": ["HARD"]}, "route_to": candidates[-1]}]
    made = document("desk", candidates, rules=rules)
    made["routing"] |= {"fallback": True, **routing}
    return made


@asynccontextmanager
async def served(home: Path, models: Path, **settings: Any) -> AsyncIterator[Program]:
    """Another router, in a process of its own."""
    home.mkdir(exist_ok=True)
    async with program(home, models, "serve", "--port=0", **settings) as app:
        await app.ready()
        yield app


@pytest.mark.engine
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
async def test_another_router_is_escalated_to_and_missed_when_it_is_killed(tmp_path: Path) -> None:
    big = write_models(tmp_path / "there", ("big",))
    small = write_models(tmp_path / "here", ("small",))
    home = tmp_path / "provider"
    key = KeyFile(home / "config" / "lemon-tray" / "api-keys.json").add("laptop")[1]
    async with live(tmp_path / "consumer", small) as here:
        async with served(home, big, host="0.0.0.0", require_api_key=True) as there:
            port = there.url.rpartition(":")[2]
            url = f"http://127.0.0.1:{port}/v1"
            await here.post("/internal/providers/add", {"name": "big", "url": url})
            assert (await providers_of(here))["big"]["state"] == "refused"
            await here.post("/internal/providers/add", {"name": "big", "url": url, "key": key})
            assert (await providers_of(here))["big"]["state"] == "ready"
            await here.post("/v1/pull", escalation("small", "big/big"))

            assert (await here.chat("desk"))["model"] == "small"
            answer = await here.chat("desk", "HARD", route_trace=True)
            assert answer["model"] == "big/big"
            assert answer["x_lemonade_route"]["matched_rule"] == "hard"
            # It takes no place here, and counts in no number.
            health = await here.health()
            assert [m["model_name"] for m in health["all_models_loaded"]] == ["small"]
            assert health["llm_pool_autosize"]["candidate_floor"] == 1
            assert health["llm_pool_autosize"]["unresolved"] == []

            async with here.stream("desk", text="HARD") as stream:
                for _ in range(3):
                    assert '"model":"big/big"' in await stream.event()
                there.process.kill()
                await stream.rest()
            assert stream.error["code"] == "provider_cut"
            assert [event for event in stream.seen if "error" in event] == stream.seen[-1:]
        await here.until(lambda s: s.providers[0].state == "down")
        answer = await here.chat("desk", "HARD", route_trace=True)
        assert answer["model"] == "small"
        fallback = [{"candidate": "big/big", "reason": "cannot_be_loaded"}]
        assert answer["x_lemonade_route"]["fallback"] == fallback
        refused = await here.post("/v1/chat/completions", chat("big/big"), 502)
        assert "big" in refused["error"]["message"]
    log = (home / "stderr").read_text() + json.dumps(health)
    assert key not in log


def chat(model: str) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "hello"}]}


async def providers_of(app: Live) -> dict[str, Any]:
    """The providers as the endpoint tells them, by name."""
    return {each["name"]: each for each in (await app.health())["providers"]}


async def test_two_routers_that_are_each_others_providers_list_no_model_twice(tmp_path: Path) -> None:
    none = tmp_path / "none"
    first = write_models(tmp_path / "a", ("alpha",))
    second = write_models(tmp_path / "b", ("beta",))
    async with (
        live(tmp_path / "one", first, alone=False) as one,
        live(tmp_path / "two", second, alone=False) as two,
    ):
        await one.post("/internal/providers/add", {"name": "two", "url": two.url})
        await two.post("/internal/providers/add", {"name": "one", "url": one.url})
        for _ in range(3):
            await one.post("/internal/providers/test", {"name": "two"})
            await two.post("/internal/providers/test", {"name": "one"})
        assert await names(one) == ["alpha", "two/beta"]
        assert await names(two) == ["beta", "one/alpha"]
        refused = await one.post("/internal/providers/add", {"name": "self", "url": one.url}, 400)
        assert refused["error"]["code"] == "provider_loop"
        # A third one sees both, and what is behind them.
        async with live(tmp_path / "three", none, alone=False) as three:
            await three.post("/internal/providers/add", {"name": "one", "url": one.url})
            assert await names(three) == ["one/alpha", "one/two/beta"]


async def test_a_ring_of_policies_ends(tmp_path: Path) -> None:
    none = tmp_path / "none"
    async with (
        live(tmp_path / "one", none, alone=False) as one,
        live(tmp_path / "two", none, alone=False) as two,
    ):
        named = {"models": ["ring"]}
        await one.post("/internal/providers/add", {"name": "two", "url": two.url, **named})
        await two.post("/internal/providers/add", {"name": "one", "url": one.url, **named})
        for app, to in ((one, "two/ring"), (two, "one/ring")):
            ring = document("ring", [to], rules=[])
            await app.post("/v1/pull", ring)
        refused = await one.post("/v1/chat/completions", chat("ring"), 508)
        assert refused["error"]["code"] == "provider_loop"


async def names(app: Live) -> list[str]:
    return [entry["id"] for entry in (await app.get("/v1/models"))["data"]]


@asynccontextmanager
async def with_cloud(root: Path, models: Path, **settings: Any) -> AsyncIterator[tuple[Live, Server]]:
    async with server() as cloud, live(root, models, settings=settings) as app:
        await app.post("/internal/providers/add", {"name": "cloud", "url": cloud.url, "key": KEY})
        yield app, cloud


async def test_a_provider_of_a_provider_answers(tmp_path: Path) -> None:
    none = tmp_path / "none"
    async with (
        server() as cloud,
        live(tmp_path / "near", none, alone=False) as near,
        live(tmp_path / "far", none, alone=False) as far,
    ):
        await far.post("/internal/providers/add", {"name": "cloud", "url": cloud.url, "key": KEY})
        await near.post("/internal/providers/add", {"name": "far", "url": far.url})
        assert (await near.chat("far/cloud/org/tiny"))["model"] == "far/cloud/org/tiny"
        (peer,) = cloud.asked
        assert json.loads(peer.body)["model"] == "org/tiny"
        via = [near.router.instance, far.router.instance]
        assert peer.headers["x-lemon-tray-via"].split(", ") == via
        # What goes wrong there is told here, with the way that it came.
        cloud.chat = failing(500, b'{"error":{"message":"boom"}}')
        refused = await near.post("/v1/chat/completions", chat("far/cloud/big"), 502)
        assert "far" in refused["error"]["message"]
        assert "boom" in refused["error"]["message"]


async def test_models_of_providers_are_known_at_once_after_a_start(tmp_path: Path) -> None:
    none = tmp_path / "none"
    async with with_cloud(tmp_path, none) as (app, cloud):
        await app.post("/v1/pull", escalation("cloud/org/tiny", "cloud/big"))
        assert (await app.health())["llm_pool_autosize"]["candidate_floor"] == 0
        entry = await app.get("/v1/models/cloud/big")
        assert (entry["owned_by"], entry["recipe"], entry["context_length"]) == ("cloud", "remote", 4096)
        assert entry["loaded"] is True
        await cloud.stop()
    async with live(tmp_path, none) as app:
        assert await names(app) == ["cloud/big", "cloud/org/tiny", "cloud/text-embed-3", "desk"]
        assert app.router.snapshot.policies[0].unresolved == ()
        assert app.router.window("cloud/big") == 4096


async def test_a_model_of_this_machine_goes_before_one_of_a_provider(tmp_path: Path) -> None:
    hub = tmp_path / "hub"
    write_models(hub / "models--cloud--big" / "snapshots" / "main", ("big",))
    environ = {"HF_HUB_CACHE": str(hub)}
    async with server() as cloud, live(tmp_path, tmp_path / "none", environ=environ) as app:
        (local,) = await names(app)
        assert local.startswith("cloud/")
        taken = {"name": "cloud", "url": cloud.url, "models": [local.removeprefix("cloud/"), "other"]}
        await app.post("/internal/providers/add", taken)
        assert await names(app) == sorted([local, "cloud/other"])
        assert (await app.get(f"/v1/models/{local}"))["owned_by"] == "lemon-tray"
        assert any(local in problem for problem in app.router.snapshot.problems)
        await app.chat(local)
        assert cloud.asked == []
        await app.chat("cloud/other")
        assert len(cloud.asked) == 1


@pytest.mark.parametrize("path", ["/v1/load", "/v1/plan", "/v1/unload", "/internal/pin"])
async def test_what_only_models_of_this_machine_can_be_asked_for(tmp_path: Path, path: str) -> None:
    async with with_cloud(tmp_path, tmp_path / "none") as (app, _):
        refused = await app.post(path, {"model": "cloud/big"}, 400)
        assert refused["error"]["code"] == "remote_model"


async def test_a_policy_may_ask_a_model_of_a_provider(tmp_path: Path, tiny_models: Path) -> None:
    async def judge(peer: Peer) -> None:
        choice = {"message": {"content": '{"label": "beta"}'}}
        await peer.answer(json.dumps({"choices": [choice]}).encode())

    async with with_cloud(tmp_path, tiny_models) as (app, cloud):
        cloud.chat = judge
        judged = document("judged", ["alpha", "beta"], rules=[])
        judged["components"].append("cloud/big")
        del judged["routing"]["rules"]
        judged["routing"]["router"] = {"type": "llm", "model": "cloud/big", "prompt": "Choose."}
        await app.post("/v1/pull", judged)
        asked = {"policy": judged, "prompt": "x"}
        assert (await app.post("/v1/routing/validate", asked))["decision"]["route_to"] == "beta"
        assert json.loads(cloud.asked[0].body)["model"] == "big"
        for useless in (failing(500), failing(200, b"[" * 100_000), failing(200, b'{"choices": 5}')):
            cloud.chat = useless
            assert (await app.post("/v1/routing/validate", asked))["decision"]["default_used"] is True


async def test_a_policy_of_what_is_not_there_is_refused(tmp_path: Path) -> None:
    async with with_cloud(tmp_path, tmp_path / "none") as (app, _):
        refused = await app.post("/v1/pull", document("desk", ["cloud/bigg"], rules=[]), 400)
        assert refused["error"]["code"] == "unregistered_component"
        assert "cloud/big" in refused["error"]["hint"]
        near = await app.post("/v1/chat/completions", chat("cloud/bigg"), 404)
        assert "cloud/big" in near["error"]["hint"]


async def test_the_key_is_told_nowhere(tmp_path: Path) -> None:
    async with with_cloud(tmp_path, tmp_path / "none") as (app, cloud):
        cloud.chat = failing(401, json.dumps({"error": {"message": f"bad key {KEY}"}}).encode())
        told = await app.post("/v1/chat/completions", chat("cloud/big"), 502)
        await app.until(lambda s: s.providers[0].state == "refused")
        seen = [told, await app.health(), await app.get("/internal/providers"), await app.get("/v1/models")]
        seen.append([entry.message for entry in app.router.feed_since(0)])
        assert KEY not in json.dumps(seen)
        assert "bad key ***" in json.dumps(seen)


async def endless(peer: Peer) -> None:
    """A script: a stream that goes on until nobody reads it."""
    await peer.begin_stream()
    await peer.chunk(b'data: {"model":"big"}\n\n')
    await peer.left()


async def test_answers_of_a_provider_that_is_removed_end_with_an_error(tmp_path: Path) -> None:
    async with with_cloud(tmp_path, tmp_path / "none") as (app, cloud):
        cloud.chat = endless
        async with app.stream("cloud/big") as stream:
            await stream.event()
            await app.post("/internal/providers/remove", {"name": "cloud"})
            await stream.rest()
        assert stream.error["code"] == "provider_removed"
        assert await names(app) == []


async def test_answers_of_a_provider_that_is_changed_go_on(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def slow(peer: Peer) -> None:
        await peer.begin_stream()
        await peer.chunk(b'data: {"model":"big"}\n\n')
        await go.wait()
        await peer.chunk(b"data: [DONE]\n\n")
        await peer.end_stream()

    async with with_cloud(tmp_path, tmp_path / "none") as (app, cloud):
        cloud.chat = slow
        async with app.stream("cloud/big") as stream:
            await stream.event()
            await app.post("/internal/providers/add", {"name": "cloud", "url": cloud.url, "idle_s": 5})
            go.set()
            assert (await stream.rest())[-1] == "[DONE]"
        await app.until(lambda s: s.providers[0].in_use == 0)
