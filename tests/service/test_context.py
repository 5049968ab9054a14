"""A request that asks for a context: larger ones load the model again once, smaller ones never do."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec import structs

from router.catalog.model import LLM, Identity, Model
from router.catalog.options import NO_OPTIONS, LoadOptions
from router.memory.header import ModelHeader
from router.service.context import wider
from tests.service.live import Live, live
from tests.support import gguf

MODEL = Model("m", "/m.gguf", LLM, 1, Identity("/m.gguf", 1, 1))


def trained_for(tokens: int) -> Model:
    shape = dict.fromkeys(
        (
            "block_count",
            "embedding_length",
            "feed_forward_length",
            "head_count",
            "key_length",
            "value_length",
        ),
        1,
    )
    sizes = dict.fromkeys(("vocab_size", "weights_bytes", "token_embd_bytes"), 1)
    header = ModelHeader(
        architecture="llama", name="m", context_length=tokens, head_count_kv=(1,), **shape, **sizes
    )
    return structs.replace(MODEL, header=header)


def one_model(folder: Path) -> Path:
    models = folder / "models"
    models.mkdir()
    gguf.write_model(models / "alpha.gguf", context=4096)
    return models


async def ask(app: Live, context: int) -> None:
    (await app.router.acquire("alpha", context=context)).release()


@pytest.mark.parametrize(
    ("tokens", "window", "parallel", "expected"),
    [
        (8192, 4096, 1, LoadOptions(ctx_size=8192)),
        (8192, 4096, 4, LoadOptions(ctx_size=32768)),
        (4096, 4096, 1, NO_OPTIONS),
        (100, 4096, 1, NO_OPTIONS),
        (1 << 40, 4096, 1, LoadOptions(ctx_size=16384)),
        (1 << 40, 16384, 1, NO_OPTIONS),
        (8192, 0, 1, NO_OPTIONS),
    ],
)
def test_a_context_only_grows(tokens: int, window: int, parallel: int, expected: LoadOptions) -> None:
    assert wider(trained_for(16384), tokens, window, parallel) == expected


def test_what_a_model_was_trained_for_may_be_unknown() -> None:
    assert wider(MODEL, 8192, 4096, 1) == LoadOptions(ctx_size=8192)


@pytest.mark.engine
@pytest.mark.fault("F38")
async def test_asking_in_turn_for_different_contexts_loads_again_once(tmp_path: Path) -> None:
    async with live(tmp_path, one_model(tmp_path), settings={"ctx_size": 512}) as app:
        seen: list[int] = []
        for context in (0, 256, 2048, 0, 512, 2048, 1024, 256, 0):
            await ask(app, context)
            seen.append(app.router.window("alpha"))
        assert seen == [512, 512, *[2048] * 7]
        assert app.told("ready") == ["alpha", "alpha"]

        await app.post("/v1/unload", {"model": "alpha"})
        # It is loaded as it was asked for before, and for two that want more at once it is loaded once.
        await asyncio.gather(ask(app, 3000), ask(app, 3000))
        assert app.router.window("alpha") == 3000
        assert len(app.told("ready")) == 3


@pytest.mark.engine
@pytest.mark.fault("F03")
async def test_an_answer_under_way_is_not_cut_for_a_larger_context(tmp_path: Path) -> None:
    async with live(tmp_path, one_model(tmp_path), settings={"ctx_size": 512}) as app:
        busy = await app.router.acquire("alpha")
        wants_more = asyncio.ensure_future(app.router.acquire("alpha", context=2048))
        await app.until(lambda s: s.queue.waiting == 1)
        assert not busy.cut.done()
        busy.release()
        (await wants_more).release()
        assert app.router.window("alpha") == 2048
