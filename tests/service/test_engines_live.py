"""Engines in a whole router: one of the user's own, and one that is fetched, chosen and deleted over HTTP."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestServer

from router.service import engines
from router.units import GIB, MIB
from tests.router.engines import fake_server
from tests.router.engines.release_server import GitHub, entry, tar
from tests.service.live import Live, live

PROGRAM = f"#!{sys.executable} -IS\n{Path(fake_server.__file__).read_text()}"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A llama-server of the user's that reaches two cards which nothing else here knows."""
    folder = tmp_path / "my engine"
    folder.mkdir()
    (folder / "mode").write_text("good")
    path = folder / "llama-server"
    path.write_text(PROGRAM)
    path.chmod(0o755)
    return path


@pytest.fixture
async def releases(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[GitHub]:
    github = GitHub()
    packed = tar(
        entry("llama-b7/mode", b"good"),
        entry("llama-b7/llama-server", PROGRAM.encode(), mode=0o755),
    )
    github.publish("b7", {"llama-b7-bin-ubuntu-vulkan-x64.tar.gz": packed})
    async with TestServer(github.application()) as server:
        monkeypatch.setattr(engines, "GITHUB", str(server.make_url("/api")))
        yield github


async def listed(router: Live) -> dict[str, Any]:
    return {engine["id"]: engine for engine in (await router.get("/internal/engines"))["engines"]}


async def test_a_llama_server_of_the_users_is_used_on_what_it_reaches(
    tmp_path: Path, tiny_models: Path, program: Path
) -> None:
    async with live(tmp_path, tiny_models, settings={"engine": str(program)}) as router:
        view = (await listed(router))[str(program)]
        assert (view["in_use"], view["kind"], view["backends"]) == (True, "found", ["cuda"])
        cards = {d.label: d for d in router.router.snapshot.devices if d.kind == "gpu"}
        assert {label: card.total for label, card in cards.items()} == {
            "CUDA0": 12_288 * MIB,
            "CUDA1": 24_564 * MIB,
        }
        assert all(card.usable and card.free is None and card.reason for card in cards.values())
        # The roomier one, until a device is named.
        await router.post("/v1/load", {"model_name": "alpha"})
        (resident,) = router.router.snapshot.residents
        assert list(resident.devices) == [cards["CUDA1"].id, "host"]
        await router.post("/v1/load", {"model_name": "alpha", "device": "CUDA0"})
        (resident,) = router.router.snapshot.residents
        assert list(resident.devices) == [cards["CUDA0"].id, "host"]
        assert resident.launch_command[0] == str(program)
        shown = next(d for d in router.router.snapshot.devices if d.label == "CUDA0")
        assert shown.ours == resident.devices[shown.id]
        # Nothing tells what is free there, but what is ours, and what there is at all, still counts.
        await router.set(vram_cap="1GiB")
        refused = await router.post(
            "/v1/load", {"model_name": "beta", "device": "CUDA0", "ctx_size": 9_000_000}, status=507
        )
        (row,) = [row for row in refused["error"]["devices"] if row["label"] == "CUDA0"]
        assert row["needed"] > GIB
        assert (row["total"], row["free"]) == (12 * GIB, None)


async def test_a_build_is_fetched_used_and_deleted(
    tmp_path: Path, tiny_models: Path, releases: GitHub
) -> None:
    async with live(tmp_path, tiny_models) as router:
        await router.post("/v1/load", {"model_name": "alpha"})
        (embedded,) = (await router.pids()).values()
        await router.post("/internal/engines/get", {"id": "vulkan"}, status=202)
        snapshot = await router.until(lambda s: [e for e in s.engines if e.kind == "build" and e.in_use])
        (build,) = [engine for engine in snapshot.engines if engine.kind == "build"]
        assert {d.label for d in snapshot.devices if d.usable} >= {"CPU"}
        # What runs goes on; what is loaded from now on is the new engine's.
        assert (await router.pids())["alpha"] == embedded
        await router.until(lambda s: len([d for d in s.devices if d.kind == "gpu" and d.usable]) == 2)
        await router.post("/v1/load", {"model_name": "beta"})
        (resident,) = router.router.snapshot.residents
        assert build.path == resident.launch_command[0]
        refused = await router.post("/internal/engines/remove", {"id": build.id}, status=409)
        assert refused["error"]["code"] == "engine_in_use"
        await router.post("/internal/engines/use", {"id": "embedded"})
        assert (await listed(router))["embedded"]["in_use"]
        await router.post("/v1/unload", {"model_name": "beta"})
        await router.post("/internal/engines/remove", {"id": build.id})
        assert build.id not in await listed(router)
        assert not Path(build.path).exists()
        await router.chat("alpha")


async def test_an_engine_that_cannot_be_used_is_told_and_another_takes_its_place(
    tmp_path: Path, tiny_models: Path, program: Path
) -> None:
    program.with_name("mode").write_text("no library")
    async with live(tmp_path, tiny_models, settings={"engine": str(program)}) as router:
        views = await listed(router)
        assert "libcudart.so.12" in views[str(program)]["problem"]
        assert views["embedded"]["in_use"]
        assert any("libcudart" in problem for problem in router.router.snapshot.problems)
        await router.chat("alpha")
