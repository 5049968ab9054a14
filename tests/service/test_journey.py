"""What users and their programs do with a running router, over HTTP, with real workers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import openai
import pytest

from router.snapshot import ResidentState
from tests.service.live import Live, live, policy, request

pytestmark = pytest.mark.engine

LIMIT_3 = {"max_loaded_models": 3}


async def test_a_model_is_listed_asked_streamed_and_unloaded(tmp_path: Path, tiny_models: Path) -> None:
    async with live(tmp_path, tiny_models) as router:
        listed = (await router.get("/v1/models"))["data"]
        assert [(m["id"], m["loaded"]) for m in listed] == [(n, False) for n in ("alpha", "beta", "gamma")]
        answer = await router.chat("alpha", tokens=5)
        assert answer["model"] == "alpha"
        assert answer["usage"]["completion_tokens"] == 5
        async with router.stream("alpha", tokens=5) as stream:
            events = await stream.rest()
        assert events[-1] == "[DONE]"
        chunks = [json.loads(event) for event in events[:-1]]
        assert {c["model"] for c in chunks} == {"alpha"}
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"
        health = await router.health()
        (resident,) = health["all_models_loaded"]
        assert (resident["state"], resident["in_use"], health["model_loaded"]) == ("ready", 0, "alpha")
        await router.post("/v1/unload", {"model_name": "alpha"})
        assert await router.pids() == {}
        assert router.told("admit") == router.told("evict") == ["alpha"]


async def test_the_official_client(tmp_path: Path, tiny_models: Path) -> None:
    async with live(tmp_path, tiny_models) as router:
        base = f"{router.url}/v1"
        async with openai.AsyncOpenAI(base_url=base, api_key="unused", max_retries=0) as client:
            assert [m.id async for m in client.models.list()] == ["alpha", "beta", "gamma"]
            messages: Any = [{"role": "user", "content": "hello"}]
            answer = await client.chat.completions.create(model="alpha", messages=messages, max_tokens=3)
            assert answer.choices[0].finish_reason in ("length", "stop")
            assert answer.usage is not None
            stream = await client.chat.completions.create(
                model="alpha",
                messages=messages,
                max_tokens=3,
                stream=True,
                stream_options={"include_usage": True},
                extra_body={"ignore_eos": True},
            )
            chunks = [chunk async for chunk in stream]
            assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
            assert chunks[-1].choices == []
            assert chunks[-1].usage is not None
            assert chunks[-1].usage.completion_tokens == 3
            with pytest.raises(openai.NotFoundError, match="There is no model nobody"):
                await client.chat.completions.create(model="nobody", messages=messages)
        assert router.told("admit") == ["alpha"]


@pytest.mark.fault("F05")
@pytest.mark.fault("F29")
async def test_candidates_of_a_policy_stay_loaded_until_autosize_is_off(
    tmp_path: Path, tiny_models: Path
) -> None:
    async with live(tmp_path, tiny_models) as router:
        await router.post("/v1/pull", policy("both", "alpha", "beta"))
        answers = [await router.chat("both", text=f"for {name}") for name in ("ALPHA", "BETA")]
        assert [a["model"] for a in answers] == ["alpha", "beta"]
        before = await router.pids()
        assert before.keys() == {"alpha", "beta"}
        texts = ["for ALPHA", "for BETA"] * 25
        models = [(await router.chat("both", text=text))["model"] for text in texts]
        assert models == ["alpha", "beta"] * 25
        assert await router.pids() == before
        assert router.told("admit") == ["alpha", "beta"]
        assert router.told("evict") == []
        pool = (await router.health())["llm_pool_autosize"]
        assert (pool["configured_limit"], pool["effective_limit"], pool["candidate_floor"]) == (1, 2, 2)

        await router.set(llm_pool_autosize=False)
        await router.until_loaded("beta")
        assert (await router.pids())["beta"] == before["beta"]
        for text in ("for ALPHA", "for BETA", "for ALPHA"):
            await router.chat("both", text=text)
        assert router.told("admit") == ["alpha", "beta", "alpha", "beta", "alpha"]
        await router.until_loaded("alpha")


async def load_all(router: Live) -> None:
    for name in ("alpha", "beta", "gamma"):
        await router.chat(name)


@pytest.mark.fault("F05")
async def test_the_limit_is_lowered_with_all_resident(tmp_path: Path, tiny_models: Path) -> None:
    async with live(tmp_path, tiny_models, settings=LIMIT_3) as router:
        await load_all(router)
        await router.set(max_loaded_models=1)
        await router.until_loaded("gamma")
        assert sorted(router.told("evict"), key=str) == ["alpha", "beta"]


async def test_health_tells_of_a_load_and_of_an_answer_under_way(tmp_path: Path, tiny_models: Path) -> None:
    async with (
        live(tmp_path, tiny_models, settings={"max_loaded_models": 2}) as router,
        router.stream("alpha") as stream,
    ):
        assert await stream.event()
        go = router.hold_loads(at=0.25)
        waiting = asyncio.create_task(router.chat("beta"))
        await router.until(lambda s: s.queue.waiting == 1 and any(r.progress == 0.25 for r in s.residents))
        health = await router.health()
        shown = {model["model_name"]: model for model in health["all_models_loaded"]}
        assert (shown["beta"]["state"], shown["beta"]["progress"]) == ("loading", 0.25)
        assert (shown["alpha"]["state"], shown["alpha"]["is_busy"]) == ("ready", True)
        assert (health["status"], health["state"], health["model_loaded"]) == ("ok", "loading", "alpha")
        assert health["queue"]["by_model"] == {"beta": 1}
        assert await router.get("/live") == {"status": "ok"}
        go.set()
        assert (await waiting)["model"] == "beta"


@pytest.mark.fault("F05")
async def test_the_limit_is_lowered_during_a_load(tmp_path: Path, tiny_models: Path) -> None:
    async with live(tmp_path, tiny_models, settings=LIMIT_3) as router:
        await router.chat("alpha")
        await router.chat("beta")
        go = router.hold_loads()
        answer = asyncio.create_task(router.chat("gamma"))
        await router.until(lambda s: any(r.state is ResidentState.LOADING for r in s.residents))
        await router.set(max_loaded_models=1)
        # The load is waited for, so the idle ones go.
        await router.until_loaded("gamma")
        go.set()
        assert (await answer)["model"] == "gamma"
        assert set(await router.pids()) == {"gamma"}
        assert router.told("load_cancelled") == []


@pytest.mark.fault("F03")
@pytest.mark.fault("F05")
async def test_the_limit_is_lowered_while_all_answer(tmp_path: Path, tiny_models: Path) -> None:
    names = ("alpha", "beta", "gamma")
    async with live(tmp_path, tiny_models, settings=LIMIT_3) as router:
        await load_all(router)
        release = await router.hold(*names)
        async with contextlib.AsyncExitStack() as stack:
            streams = [await stack.enter_async_context(router.stream(name, 60)) for name in names]
            for stream in streams:
                assert await stream.event()
            await router.set(max_loaded_models=1)
            await router.until(lambda s: [r.state for r in s.residents].count(ResidentState.DRAINING) == 2)
            release()
            answers = await asyncio.gather(*(stream.rest() for stream in streams))
        for events in answers:
            assert events[-1] == "[DONE]"
            assert json.loads(events[-2])["choices"][0]["finish_reason"] == "length"
        await router.until(lambda s: len(s.residents) == 1)
        assert len(router.told("evict")) == 2
        assert router.told("worker_died") == []


@pytest.mark.fault("F03")
async def test_a_request_for_another_model_does_not_cut_an_answer(tmp_path: Path, tiny_models: Path) -> None:
    async with live(tmp_path, tiny_models) as router:
        release = await router.hold("alpha")
        async with router.stream("alpha", 60) as stream:
            assert await stream.event()
            other = asyncio.create_task(router.chat("beta"))
            await router.until(lambda s: s.queue.waiting == 1)
            # One that comes later for the victim waits behind.
            third = asyncio.create_task(router.chat("alpha"))
            await router.until(lambda s: s.queue.waiting == 2)
            release()
            assert (await stream.rest())[-1] == "[DONE]"
        assert (await other)["model"] == "beta"
        assert (await third)["model"] == "alpha"
        assert router.told("admit") == ["alpha", "beta", "alpha"]


@pytest.mark.fault("F15")
async def test_keep_alive_of_a_chat_holds(tmp_path: Path, tiny_models: Path) -> None:
    async with live(tmp_path, tiny_models, settings={"evict_idle_timeout_s": 0}) as router:
        await router.chat("alpha", keep_alive="24h")
        for _ in range(3):
            assert set(await router.pids()) == {"alpha"}
        await router.chat("alpha", keep_alive=0)
        await router.until_loaded()
        answer = await router.post("/v1/chat/completions", request("alpha", keep_alive="abc"), status=400)
        assert answer["error"]["param"] == "keep_alive"
        assert router.told("admit") == ["alpha"]


@pytest.mark.fault("F11")
async def test_a_worker_that_dies_in_the_middle_of_an_answer(tmp_path: Path, tiny_models: Path) -> None:
    async with live(tmp_path, tiny_models) as router:
        await router.chat("alpha")
        pid = (await router.pids())["alpha"]
        async with router.stream("alpha") as stream:
            assert await stream.event()
            kill(pid)
            await stream.rest()
        assert stream.error["code"] == "worker_died"
        assert await router.pids() == {}
        assert (await router.chat("alpha"))["model"] == "alpha"
        assert (await router.pids())["alpha"] != pid
        assert router.told("admit") == ["alpha", "alpha"]


@pytest.mark.fault("F11")
async def test_a_worker_that_dies_idle_is_loaded_again(tmp_path: Path, tiny_models: Path) -> None:
    async with live(tmp_path, tiny_models) as router:
        await router.post("/v1/load", {"model_name": "alpha"})
        pid = (await router.pids())["alpha"]
        kill(pid)
        await router.until_loaded()
        assert (await router.health())["state"] == "warning"
        assert (await router.chat("alpha"))["model"] == "alpha"
        assert (await router.health())["state"] == "ready"


@pytest.mark.fault("F11")
async def test_a_worker_that_closes_its_port_is_replaced(tmp_path: Path, tiny_models: Path) -> None:
    async with live(tmp_path, tiny_models) as router:
        await router.chat("alpha")
        pid = (await router.pids())["alpha"]
        reconciler = router.router._reconciler
        assert reconciler is not None
        (resident,) = reconciler.table.residents.values()
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            assert resident.worker is not None
            resident.worker.port = nobody.getsockname()[1]
            assert (await router.chat("alpha"))["model"] == "alpha"
        assert (await router.pids())["alpha"] != pid
        assert router.told("worker_unreachable") == ["alpha"]


@pytest.mark.fault("F38")
async def test_options_of_a_load(tmp_path: Path, tiny_models: Path) -> None:
    async with live(tmp_path, tiny_models) as router:
        await router.post("/v1/load", {"model_name": "alpha", "ctx_size": 2048})
        first = await router.pids()
        for ctx_size in (None, 2048):
            body = {"model_name": "alpha"} | ({"ctx_size": ctx_size} if ctx_size else {})
            await router.post("/v1/load", body)
        await router.chat("alpha")
        assert await router.pids() == first
        answer = await router.post("/v1/load", {"model_name": "alpha", "context": 5}, status=400)
        assert "context" in answer["error"]["message"]
        release = await router.hold("alpha")
        async with router.stream("alpha", 60) as stream:
            assert await stream.event()
            reload = asyncio.create_task(router.post("/v1/load", {"model_name": "alpha", "ctx_size": 1024}))
            await router.until(lambda s: s.residents[0].state is ResidentState.DRAINING)
            release()
            assert (await stream.rest())[-1] == "[DONE]"
        await reload
        (resident,) = (await router.health())["all_models_loaded"]
        assert resident["recipe_options"]["ctx_size"] == 1024
        assert resident["pid"] != first["alpha"]


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
