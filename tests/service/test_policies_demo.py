"""Policies that ask a real model, which understands a little: the demo model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.service.live import live, write_models
from tests.service.test_policies import ask, document

pytestmark = [pytest.mark.engine, pytest.mark.long]


@pytest.fixture
def models(tmp_path: Path, demo_model: Path) -> Path:
    """The demo model, once to talk and once to embed, beside two tiny candidates."""
    folder = write_models(tmp_path / "models", ("alpha", "beta"))
    (folder / "judge.gguf").symlink_to(demo_model)
    # A copy: another name for one file would be an alias, with one set of options.
    shutil.copyfile(demo_model, folder / "embedder.gguf")
    with (folder / "embedder.gguf").open("ab") as file:
        file.write(b"\0" * 32)
    config = tmp_path / "root" / "config"
    config.mkdir(parents=True)
    (config / "models.json").write_text(json.dumps({"embedder": {"type": "embedding", "ctx_size": 512}}))
    return folder


PHRASES = {
    "cooking": ["How long do I boil potatoes?", "A recipe for tomato soup, please."],
    "programming": ["Fix this Python function.", "Why does my C++ program crash?"],
}


async def test_it_tells_cooking_from_programming_and_nothing_reloads(tmp_path: Path, models: Path) -> None:
    routing = {
        "classifiers": [
            {"id": "topic", "type": "semantic_similarity", "model": "embedder", "reference_phrases": PHRASES},
            {
                "id": "judged",
                "type": "llm",
                "model": "judge",
                "prompt": "Say whether the request is a question.",
                "labels": ["question", "statement"],
            },
        ],
        "rules": [
            {
                "id": "programming",
                "match": {"classifier": "topic", "label": "programming", "min_score": 0.98},
                "route_to": "beta",
            },
            {"id": "question", "match": {"classifier": "judged", "label": "question"}, "route_to": "alpha"},
        ],
    }
    async with live(tmp_path / "root", models) as router:
        await router.post("/v1/pull", document("auto", routing, "embedder", "judge"))
        similar = document("similar", {"rules": [], "classifiers": routing["classifiers"][:1]}, "embedder")
        similar["routing"]["rules"] = [
            {
                "id": label,
                "match": {"classifier": "topic", "label": label, "min_score": 1.0},
                "route_to": "beta",
            }
            for label in PHRASES
        ]
        scores = {}
        for text in ("A recipe for potato soup, please.", "Fix this Python class."):
            told = await router.post("/v1/routing/validate", {"policy": similar, "prompt": text})
            scores[text] = [step["score"] for step in told["decision"]["trace"]]
        (soup_cooking, soup_code), (class_cooking, class_code) = scores.values()
        assert soup_cooking > soup_code
        assert class_code > class_cooking
        for text in ("Fix this Python function.", "Is it raining?") * 2:
            rule, model, route = await ask(router, "auto", text)
            assert (rule, model) in {("programming", "beta"), ("question", "alpha"), ("default", "alpha")}
            if text.startswith("Fix"):
                assert rule == "programming"
            else:
                # Held to the labels, it always chooses one of them.
                assert route["trace"][-1]["score"] in (0.0, 1.0)
                assert "error" not in route["trace"][-1]
        admitted = [str(name) for name in router.told("admit")]
        assert sorted(admitted) == sorted(set(admitted))
        pools = {r.model: r.memberships for r in router.router.snapshot.residents}
        assert pools["judge"] == pools["embedder"] == ("helper",)
