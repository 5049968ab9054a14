"""Edits of settings and policies while everything else goes on."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from router.errors import RouterError
from router.paths import Paths
from router.residency.pace import EDIT_INTERVAL_S
from router.settings.schema import Settings
from router.settings.store import DiskIO
from router.snapshot import ResidentState, Snapshot
from tests.service.live import live, policy

pytestmark = pytest.mark.engine

EDITS = 1_000


def config(root: Path) -> Any:
    """What the settings file says, but for the version that every write records."""
    found = json.loads(Paths.under(root).config_file.read_text())
    found.pop("config_version", None)
    return found


def edit(step: int) -> dict[str, Any]:
    return {"max_loaded_models": 1 + step % 7, "llm_pool_autosize": step % 2 == 0, "parallel": 1 + step % 3}


@pytest.mark.fault("F23")
@pytest.mark.fault("F27")
async def test_of_a_thousand_edits_the_last_wins_and_few_passes_are_made(
    tmp_path: Path, tiny_models: Path
) -> None:
    async with live(tmp_path, tiny_models, settings={"max_loaded_models": 3}) as router:
        for name in ("alpha", "beta", "gamma"):
            await router.chat(name)
        reconciler = router.router._reconciler
        assert reconciler is not None
        generations: list[int] = []
        end = router.router.subscribe(lambda s: generations.append(s.generation))
        before = reconciler.passes
        loop = asyncio.get_running_loop()
        begun = loop.time()
        edits = []
        for step in range(EDITS):
            edits.append(asyncio.create_task(router.router.set_settings(edit(step))))
            await asyncio.sleep(0)
        final = {"max_loaded_models": 1, "llm_pool_autosize": False, "parallel": 2}
        answers = await asyncio.gather(*edits, router.router.set_settings(final))
        await router.until_loaded("gamma")
        # However long the edits take, there is no pass for each. Three workers end besides, which cost a few.
        allowed = (loop.time() - begun) / EDIT_INTERVAL_S + 20
        assert reconciler.passes - before <= allowed
        assert answers == sorted(answers)
        assert generations == sorted(set(generations))
        end()
        shown = router.router.snapshot.settings
        assert {key: shown[key] for key in final} == final
        assert config(tmp_path) == final


@pytest.mark.fault("F27")
async def test_edits_while_requests_run_and_a_stop_right_after(tmp_path: Path, tiny_models: Path) -> None:
    async with live(tmp_path, tiny_models, settings={"max_loaded_models": 2}) as router:

        async def ask(worker: int) -> None:
            for turn in range(8):
                name = ("alpha", "beta", "gamma")[(worker + turn) % 3]
                assert (await router.chat(name))["model"] == name

        asking = [asyncio.create_task(ask(worker)) for worker in range(3)]
        edits = []
        step = 0
        while not all(task.done() for task in asking) or step < 300:
            edits.append(asyncio.create_task(router.set(**edit(step), max_parallel_loads=1 + step % 3)))
            step += 1
            await asyncio.wait(edits[-1:])
        await asyncio.gather(*asking, *edits)
        last = [asyncio.create_task(router.router.set_settings({"max_loaded_models": n})) for n in (5, 4, 6)]
        await asyncio.sleep(0)
        await router.router.stop()
        await asyncio.gather(*last)
    assert config(tmp_path)["max_loaded_models"] == 6
    assert config(tmp_path)["parallel"] == edit(step - 1)["parallel"]


class Disk(DiskIO):
    """A disk that can be full."""

    full = False

    def write(self, path: Path, data: bytes) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        super().write(path, data)


async def test_a_disk_that_fails_takes_the_edit_back(tmp_path: Path, tiny_models: Path) -> None:
    async with live(tmp_path, tiny_models, settings={"max_loaded_models": 2}) as router:
        for name in ("alpha", "beta"):
            await router.chat(name)
        pids = await router.pids()
        disk = Disk()
        router.router._store._io = disk
        await router.set(max_loaded_models=3)
        disk.full = True
        seen: list[int] = []
        reconciler = router.router._reconciler
        assert reconciler is not None
        configure = reconciler.configure

        def look(*, settings: Settings | None = None, **rest: Any) -> None:
            configure(settings=settings, **rest)
            # Whoever looks at this moment sees it.
            seen.append(router.router.snapshot.pool.configured_limit)

        reconciler.configure = look  # type: ignore[method-assign]  # for as long as this router lives
        answer = await router.post("/internal/set", {"max_loaded_models": 4, "parallel": 2}, status=500)
        assert answer["error"]["code"] == "settings_not_written"
        assert "No space left" in answer["error"]["message"]
        # In force at once, and taken back.
        assert seen == [4, 3]
        in_force = await router.get("/internal/config")
        assert (in_force["max_loaded_models"], in_force["parallel"]) == (3, 1)
        assert config(tmp_path) == {"max_loaded_models": 3}
        with pytest.raises(RouterError, match="No space left"):
            await router.router.set_settings({"auto_evict": True})
        assert await router.pids() == pids
        disk.full = False
        await router.set(max_loaded_models=4)
        assert config(tmp_path) == {"max_loaded_models": 4}


async def test_all_or_nothing(tmp_path: Path, tiny_models: Path) -> None:
    async with live(tmp_path, tiny_models) as router:
        for wrong in ({"max_loaded_models": 0}, {"max_modles": 1}, {"port": 1}):
            answer = await router.post("/internal/set", {"parallel": 4, **wrong}, status=400)
            assert next(iter(wrong)) in answer["error"]["message"]
        assert (await router.get("/internal/config"))["parallel"] == 1
        assert not Paths.under(tmp_path).config_file.exists()


def agrees_with_itself(snapshot: Snapshot) -> None:
    pool, active = snapshot.pool, [p for p in snapshot.policies if p.enabled]
    assert pool.candidate_floor == len({c for p in active for c in p.candidates})
    assert pool.effective_limit == max(pool.configured_limit, pool.candidate_floor)
    assert snapshot.effective_limits["llm"] == pool.effective_limit
    states = [r.state for r in snapshot.residents]
    assert pool.loaded == states.count(ResidentState.READY) + states.count(ResidentState.DRAINING)
    assert pool.loading == states.count(ResidentState.LOADING)


@pytest.mark.fault("F23")
async def test_no_reader_ever_sees_two_moments_in_one(tmp_path: Path, tiny_models: Path) -> None:
    names = ("alpha", "beta", "gamma")
    chance = random.Random(5)
    async with live(tmp_path, tiny_models) as router:
        faults: list[AssertionError] = []

        def look(snapshot: Snapshot) -> None:
            try:
                agrees_with_itself(snapshot)
            except AssertionError as fault:
                faults.append(fault)

        end = router.router.subscribe(look)
        over = asyncio.Event()

        async def read() -> int:
            generation = reads = 0
            while not over.is_set():
                health = await router.health()
                assert health["generation"] >= generation
                generation = health["generation"]
                pool = health["llm_pool_autosize"]
                floor = pool["candidate_floor"]
                assert pool["effective_limit"] == max(1, floor) == health["max_models"]["llm"]
                counts = pool["policies"].values()
                assert max(counts, default=0) <= floor <= sum(counts)
                reads += 1
            return reads

        readers = [asyncio.create_task(read()) for _ in range(4)]
        asking = [asyncio.create_task(router.chat(name)) for name in names]
        for step in range(200):
            name = f"p{step % 3}"
            chosen = chance.sample(names, chance.randint(1, 3))
            match chance.randrange(4):
                case 0 if name in {p.name for p in router.router.snapshot.policies}:
                    await router.router.delete_policy(name)
                case 1 if name in {p.name for p in router.router.snapshot.policies}:
                    await router.router.enable_policy(name, chance.random() < 0.5)
                case _:
                    await router.router.register_policy(policy(name, *chosen))
        await asyncio.gather(*asking)
        over.set()
        assert all(await asyncio.gather(*readers))
        end()
        assert faults == []
