"""Admission as users meet it: over HTTP, with real workers on pretend devices."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from router.units import GIB, MIB
from tests.service.live import Live, live

pytestmark = pytest.mark.engine

LIMIT_3 = {"max_loaded_models": 3}
#: Room for one tiny model with its 512 MiB of overhead beside a margin of 512 MiB, not for two.
SMALL = (1600 * MIB,)


def embed(model: str) -> dict[str, Any]:
    return {"model": model, "input": "hello"}


async def plan(router: Live, model: str, **options: Any) -> Any:
    return await router.post("/v1/plan", {"model": model, **options})


async def devices_of(router: Live) -> dict[str, list[str]]:
    return {r.model: list(r.devices) for r in router.router.snapshot.residents}


async def test_a_second_model_has_the_first_unloaded_only_where_there_is_no_other_room(
    tmp_path: Path, tiny_models: Path
) -> None:
    async with live(tmp_path, tiny_models, simulate=SMALL * 2, settings=LIMIT_3) as router:
        await router.chat("alpha")
        planned = await plan(router, "beta")
        assert (planned["verdict"], planned["victims"]) == ("fits", [])
        await router.chat("beta")
        assert await devices_of(router) == {"alpha": ["sim0", "host"], "beta": ["sim1", "host"]}
        planned = await plan(router, "gamma")
        assert (planned["verdict"], planned["victims"]) == ("evicts", ["alpha"])
        assert set(await router.pids()) == {"alpha", "beta"}
        await router.chat("gamma")
        assert await devices_of(router) == {"beta": ["sim1", "host"], "gamma": ["sim0", "host"]}
        assert router.told("evict") == ["alpha"]


async def test_the_victim_is_on_the_device_that_is_short(tmp_path: Path, tiny_models: Path) -> None:
    async with live(tmp_path, tiny_models, simulate=SMALL * 2, settings=LIMIT_3) as router:
        await router.post("/v1/load", {"model_name": "alpha", "device": "SIM1"})
        await router.post("/v1/load", {"model_name": "beta", "device": "SIM0"})
        # The older one is on the other device: unloading it would help nobody.
        await router.post("/v1/load", {"model_name": "gamma", "device": "sim0"})
        assert router.told("evict") == ["beta"]
        assert await devices_of(router) == {"alpha": ["sim1", "host"], "gamma": ["sim0", "host"]}


async def test_what_can_never_fit_costs_nobody_its_place(tmp_path: Path, tiny_models: Path) -> None:
    settings = {**LIMIT_3, "allow_partial_offload": False}
    async with live(tmp_path, tiny_models, simulate=SMALL, settings=settings) as router:
        await router.chat("alpha")
        refused = await router.post(
            "/v1/load", {"model_name": "beta", "ctx_size": 4_000_000, "device": "SIM0"}, status=507
        )
        error = refused["error"]
        assert error["code"] == "insufficient_memory"
        assert "SIM0 needs" in error["message"]
        (table,) = [row for row in error["devices"] if row["label"] == "SIM0"]
        assert table["needed"] > table["possible"] > 0
        assert table["total"] == 1600 * MIB
        assert set(await router.pids()) == {"alpha"}
        planned = await plan(router, "beta", ctx_size=4_000_000, device="SIM0")
        assert planned["verdict"] == "refused"
        assert router.told("evict") == []


async def test_a_reload_that_does_not_fit_leaves_the_model_as_it_is(
    tmp_path: Path, tiny_models: Path
) -> None:
    async with live(tmp_path, tiny_models, simulate=SMALL) as router:
        await router.post("/v1/load", {"model_name": "alpha", "device": "SIM0"})
        (pid,) = (await router.pids()).values()
        await router.post(
            "/v1/load", {"model_name": "alpha", "ctx_size": 4_000_000, "device": "SIM0"}, status=507
        )
        assert await router.pids() == {"alpha": pid}
        await router.chat("alpha")
        # And the options that were refused are not those of the next load.
        await router.post("/v1/unload", {"model_name": "alpha"})
        await router.chat("alpha")
        assert router.router.snapshot.residents[0].options["ctx_size"] < 4_000_000


@pytest.mark.fault("F36")
async def test_a_cap_is_for_models_and_a_margin_for_everybody(tmp_path: Path, tiny_models: Path) -> None:
    settings = {**LIMIT_3, "vram_cap": "1GiB", "allow_partial_offload": False}
    async with live(tmp_path, tiny_models, simulate=(8 * GIB,), settings=settings) as router:
        await router.post("/v1/load", {"model_name": "alpha", "device": "SIM0"}, status=507)
        await router.set(vram_margin="128MiB")
        await router.post("/v1/load", {"model_name": "alpha", "device": "SIM0"})
        # Other programs' memory does not count towards the cap, but towards the margin.
        await router.post("/internal/simulate", {"others_bytes": "3GiB"})
        await router.set(vram_cap="2GiB")
        await router.post("/v1/load", {"model_name": "beta", "device": "SIM0"})
        assert set(await router.pids()) == {"alpha", "beta"}
        await router.set(vram_cap=0, vram_margin="5GiB")
        refused = await router.post("/v1/load", {"model_name": "gamma", "device": "SIM0"}, status=507)
        (table,) = [row for row in refused["error"]["devices"] if row["label"] == "SIM0"]
        assert table["others"] == 3 * GIB
        assert table["margin"] == 5 * GIB


async def test_with_reject_nobody_waits_for_an_answer_to_end(tmp_path: Path, tiny_models: Path) -> None:
    settings = {**LIMIT_3, "admission": "reject", "allow_partial_offload": False}
    async with live(tmp_path, tiny_models, simulate=SMALL, settings=settings) as router:
        await router.chat("alpha")
        release = await router.hold("alpha")
        async with router.stream("alpha", 60) as stream:
            assert await stream.event()
            refused = await router.post("/v1/load", {"model_name": "beta"}, status=503)
            assert refused["error"]["code"] == "admission_rejected"
            await router.set(admission="wait")
            waiting = asyncio.create_task(router.post("/v1/load", {"model_name": "beta"}))
            await router.until(lambda s: s.queue.waiting == 1)
            release()
            assert (await stream.rest())[-1] == "[DONE]"
        await waiting
        assert set(await router.pids()) == {"beta"}


async def test_a_model_is_loaded_as_one_of_another_type(tmp_path: Path, tiny_models: Path) -> None:
    async with live(tmp_path, tiny_models) as router:
        await router.post("/v1/load", {"model_name": "alpha", "type": "embedding"})
        answer = await router.post("/v1/embeddings", embed("alpha"))
        assert len(answer["data"][0]["embedding"]) > 1
        # It is no language model now: it takes no slot from them.
        await router.chat("beta")
        assert set(await router.pids()) == {"alpha", "beta"}
        await router.post("/v1/load", {"model_name": "alpha", "type": "llm"})
        await router.chat("alpha")
        assert set(await router.pids()) == {"alpha"}


async def test_asking_for_the_same_in_other_words_reloads_nothing(tmp_path: Path, tiny_models: Path) -> None:
    async with live(tmp_path, tiny_models, simulate=SMALL * 2) as router:
        await router.post("/v1/load", {"model_name": "alpha", "device": "SIM1", "ctx_size": "auto"})
        (first,) = (await router.pids()).values()
        loaded = router.router.snapshot.residents[0].options["ctx_size"]
        for words in ("sim1", ["Sim1"]):
            await router.post("/v1/load", {"model_name": "alpha", "device": words, "ctx_size": "auto"})
        await router.post("/v1/load", {"model_name": "alpha", "ctx_size": loaded})
        await router.chat("alpha")
        assert await router.pids() == {"alpha": first}
        await router.post("/v1/load", {"model_name": "alpha", "device": "SIM0"})
        assert (await router.pids())["alpha"] != first


async def test_options_hold_for_later_loads_but_not_those_of_the_file(
    tmp_path: Path, tiny_models: Path
) -> None:
    async with live(tmp_path, tiny_models, simulate=SMALL * 2) as router:
        await router.post("/v1/load", {"model_name": "alpha", "parallel": 2, "save_options": True})
        await router.post("/v1/load", {"model_name": "alpha", "ctx_size": 512})
        await router.post("/v1/unload", {"model_name": "alpha"})
        await router.chat("alpha")
        (resident,) = router.router.snapshot.residents
        assert (resident.options["ctx_size"], resident.options["parallel"]) == (512, 2)
        # A change of the file is not held back by what was once asked for.
        await router.post("/v1/load", {"model_name": "alpha", "parallel": 3, "save_options": True})
        assert router.router.snapshot.residents[0].options["parallel"] == 3


async def test_a_plan_tells_what_pins_and_answers_stand_in_the_way(tmp_path: Path, tiny_models: Path) -> None:
    async with live(tmp_path, tiny_models, simulate=SMALL) as router:
        await router.post("/v1/load", {"model_name": "alpha", "pinned": True})
        planned = await plan(router, "beta")
        assert planned["verdict"] == "refused"
        assert "alpha" in planned["reason"]
        assert (await plan(router, "alpha"))["verdict"] == "loaded"
        await router.post("/internal/pin", {"model_name": "alpha", "pinned": False})
        assert (await plan(router, "beta"))["victims"] == ["alpha"]
