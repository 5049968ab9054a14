"""What an explicit load asks for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from router.catalog.options import NO_OPTIONS, LoadOptions
from router.errors import BadRequest
from router.service.options import Asked, load_options
from tests.service.live import live


def test_nothing_is_asked_for() -> None:
    assert load_options({}) == Asked()
    assert load_options({}).options is NO_OPTIONS
    assert load_options({"pinned": None, "save_options": False}).options is NO_OPTIONS


def test_options_pin_and_what_to_save() -> None:
    base = LoadOptions(device=("A", "B"), parallel=2)
    asked = load_options({"ctx_size": 8192, "pinned": True, "save_options": True}, base)
    assert asked.options == LoadOptions(ctx_size=8192)
    assert asked.pinned is True
    assert asked.save == LoadOptions(device=("A", "B"), parallel=2, ctx_size=8192)
    assert load_options({"ctx_size": 8192}, base).save is None


def test_what_contradicts_the_options_that_the_model_has_is_refused() -> None:
    with pytest.raises(BadRequest, match="one share for each device"):
        load_options({"tensor_split": "1,1,1"}, LoadOptions(device=("A", "B")))


@pytest.mark.parametrize(
    ("given", "param"),
    [({"pinned": 1}, "pinned"), ({"save_options": "yes"}, "save_options"), ({"context": 5}, "context")],
)
def test_what_is_wrong_is_named(given: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        load_options(given)
    assert caught.value.param == param


@pytest.mark.fault("F38")
async def test_saved_options_hold_after_a_restart_and_reload_nothing(
    tmp_path: Path, tiny_models: Path
) -> None:
    async with live(tmp_path, tiny_models) as router:
        body = {"model_name": "alpha", "ctx_size": 1024, "parallel": 2, "save_options": True}
        await router.post("/v1/load", body)
        pids = await router.pids()
        shown = await router.until(lambda s: any(m.options for m in s.models))
        assert next(m.options for m in shown.models if m.name == "alpha") == {"ctx_size": 1024, "parallel": 2}
        for more in ({}, {"ctx_size": 1024}, {"parallel": 2}):
            await router.post("/v1/load", {"model_name": "alpha", **more})
            await router.chat("alpha")
        assert await router.pids() == pids
        refused = await router.post(
            "/v1/load", {"model_name": "alpha", "paralel": 2, "tensor_split": "1,0"}, status=400
        )
        assert "did you mean parallel?" in refused["error"]["message"]
        assert "name the others in device" in refused["error"]["message"]
    async with live(tmp_path, tiny_models) as router:
        await router.chat("alpha")
        (resident,) = (await router.health())["all_models_loaded"]
        assert (resident["recipe_options"]["ctx_size"], resident["recipe_options"]["parallel"]) == (1024, 2)


@pytest.mark.fault("F32")
async def test_models_of_other_programs_are_listed_and_answer(tmp_path: Path, tiny_models: Path) -> None:
    digest = "a" * 64
    store = tmp_path / "ollama"
    manifest = store / "manifests" / "registry.ollama.ai" / "library" / "tiny" / "latest"
    manifest.parent.mkdir(parents=True)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}"}
    manifest.write_text(json.dumps({"layers": [layer]}))
    (store / "blobs").mkdir()
    shutil.copy(next(tiny_models.glob("alpha*.gguf")), store / "blobs" / f"sha256-{digest}")
    async with live(tmp_path / "root", tiny_models, environ={"OLLAMA_MODELS": str(store)}) as router:
        (model,) = [m for m in router.router.snapshot.models if m.name == "tiny:latest"]
        assert (model.source, model.aliases) == ("Ollama", ("tiny",))
        assert (await router.chat("tiny"))["choices"]
        await router.set(model_sources=[])
        await router.until(lambda s: all(m.source != "Ollama" for m in s.models))
