"""`lemon-tray import lemonade`: what it takes, what it leaves and says, and that nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from router.cli.importing import CONFIG, MODELS, OPTIONS, given_folders, survey
from router.cli.main import main
from router.paths import Paths
from router.settings.state import StateFile
from router.settings.store import SettingsStore

HOME = Path("/home/me")

ROUTING = {
    "candidates": ["user.Small", "builtin.Big-GGUF"],
    "default_model": "user.Small",
    "rules": [{"id": "code", "match": {"keywords_any": ["python"]}, "route_to": "builtin.Big-GGUF"}],
}
POLICY = {
    "recipe": "collection.router",
    "version": "1",
    "components": ["user.Small", "builtin.Big-GGUF"],
    "routing": ROUTING,
    "labels": [],
    "suggested": True,
}
SMALL = {"checkpoint": "org/Small-GGUF:small-q4.gguf", "recipe": "llamacpp", "size": 1.0}


@pytest.mark.parametrize(
    ("config", "settings", "left"),
    [
        ({}, {}, []),
        ({"config_version": 2, "_generated": "x", "log_level": "info"}, {}, ["log_level"]),
        ({"max_loaded_models": 3, "port": 9000}, {"max_loaded_models": 3, "port": 9000}, []),
        ({"max_loaded_models": -1}, {"max_loaded_models": -1}, []),
        ({"max_loaded_models": "many"}, {}, ["max_loaded_models"]),
        ({"port": 99999}, {}, ["port"]),
        ({"llm_pool_autosize": False}, {"llm_pool_autosize": False}, []),
        ({"auto_evict": True}, {"auto_evict": True}, []),
        ({"auto_evict_threshold_pct": 0.8}, {"auto_evict_threshold_pct": 0.8}, []),
        ({"host": "localhost"}, {"host": "127.0.0.1"}, []),
        ({"host": "0.0.0.0"}, {}, ["key add"]),
        ({"ctx_size": 8192}, {"ctx_size": 8192}, []),
        ({"ctx_size": -1}, {}, ["ctx_size -1"]),
        ({"extra_models_dir": "", "models_dir": "auto"}, {}, []),
        ({"extra_models_dir": "/a", "models_dir": "~/hub"}, {"models_dirs": ("/a", "/home/me/hub")}, []),
        ({"max_gpu_memory_occupancy_gb": 24}, {}, ["vram_cap=24576MiB"]),
        ({"max_gpu_memory_occupancy_gb": -1.0}, {}, []),
        ({"max_gpu_memory_occupancy_gb": 1e300}, {}, ["expected a number of GiB"]),
        ({"max_gpu_memory_occupancy_gb": float("nan")}, {}, ["expected a number of GiB"]),
        ({"max_gpu_memory_occupancy_gb": "24"}, {}, ["expected a number of GiB"]),
        ({"extra_models_dir": "~", "models_dir": "hub"}, {"models_dirs": ("/home/me", "/home/me/hub")}, []),
        ({"extra_models_dir": "~you/hub", "models_dir": ["/a"]}, {}, ["~you/hub", "one folder"]),
        ({"host": ["0.0.0.0"], "port": "13305"}, {}, ["expected an address", "port"]),
        ({"llamacpp": {"args": "", "backend": "auto", "prefer_system": True, "cpu_bin": "builtin"}}, {}, []),
        ({"llamacpp": {"args": "-fa on", "backend": "vulkan"}}, {}, ["llamacpp_args", "lemon-tray engine"]),
        ({"sdcpp": {"args": "", "steps": 20}, "telemetry": {"enabled": False}}, {}, []),
        ({"vllm": {"args": "-x"}}, {}, ["vllm"]),
        ({"pinned_models": ["a"], "cloud_providers": []}, {}, ["pinned_models"]),
    ],
)  # fmt: skip
def test_settings(config: dict[str, Any], settings: dict[str, Any], left: list[str]) -> None:
    found = survey({CONFIG: config}, HOME)
    assert found.settings == settings
    assert len(found.left) == len(left), found.left
    for line, part in zip(found.left, left, strict=True):
        assert part in line


def test_a_policy_keeps_its_name_and_gets_the_names_that_models_have_here() -> None:
    found = survey({MODELS: {"Small": SMALL, "Route": POLICY}}, HOME)
    (document,) = found.policies.values()
    assert document["model_name"] == "user.Route"
    assert document["components"] == ["small-q4", "Big-GGUF"]
    assert document["routing"]["default_model"] == "small-q4"
    assert document["routing"]["rules"][0]["route_to"] == "Big-GGUF"
    assert document["routing"]["rules"][0]["match"] == ROUTING["rules"][0]["match"]  # type: ignore[index]  # a table
    assert set(document) == {"version", "recipe", "components", "routing", "model_name"}
    assert found.left == [
        "1 registered model: files of the Hugging Face cache are listed by themselves (model_sources)"
    ]


@pytest.mark.parametrize(
    ("models", "part"),
    [
        ({"Bad": {**POLICY, "routing": {"candidates": []}}}, "policy Bad"),
        ({"Kit": {"recipe": "collection.omni", "components": []}}, "collection.omni"),
        ({"Ear": {"recipe": "whispercpp"}}, "whispercpp"),
        ({"Odd": "text"}, "Odd: expected an object"),
    ],
)
def test_what_is_no_policy_is_left(models: dict[str, Any], part: str) -> None:
    found = survey({MODELS: models}, HOME)
    assert found.empty
    assert part in found.left[0]


@pytest.mark.parametrize(
    ("name", "entry", "options", "left"),
    [
        ("user.Small", {"ctx_size": 4096}, {"small-q4": {"ctx_size": 4096}}, []),
        ("builtin.Big-GGUF", {"ctx_size": -1}, {"Big-GGUF": {"ctx_size": "auto"}}, []),
        ("extra.Own", {"llamacpp_args": "--top-k 4"}, {"Own": {"llamacpp_args": ["--top-k", "4"]}}, []),
        ("a", {"llamacpp_args": "'"}, {}, ["No closing quotation"]),
        ("a", {"llamacpp_args": "--model /etc/passwd"}, {}, ["--model"]),
        ("a", {"llamacpp_args": "", "llamacpp_backend": "auto"}, {}, []),
        ("a", {"llamacpp_backend": "vulkan", "pinned": True}, {}, ["llamacpp_backend", "pinned"]),
        ("a", "no object", {}, ["expected an object"]),
        ("", {"ctx_size": 4096}, {}, ["no model has such a name"]),
        ("user.", {"ctx_size": 4096}, {}, ["no model has such a name"]),
        ("a\0b", {"ctx_size": 4096}, {}, ["no model has such a name"]),
    ],
)  # fmt: skip
def test_options_of_models(name: str, entry: Any, options: dict[str, Any], left: list[str]) -> None:
    found = survey({MODELS: {"Small": SMALL}, OPTIONS: {name: entry}}, HOME)
    assert found.options == options
    told = [line for line in found.left if "registered model" not in line]
    assert len(told) == len(left), told
    for line, part in zip(told, left, strict=True):
        assert part in line


def test_a_checkpoint_by_quantization_is_named_as_the_cache_is_listed() -> None:
    models = {"Phi": {"checkpoints": {"main": "unsloth/Phi-GGUF:Q4_K_M"}, "recipe": "llamacpp"}}
    assert set(survey({MODELS: models, OPTIONS: {"user.Phi": {"ctx_size": 4096}}}, HOME).options) == {
        "unsloth/Phi-GGUF:Q4_K_M"
    }


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Paths]:
    """A folder of Lemonade Server's, and this app's own places."""
    paths = Paths.under(tmp_path / "own")
    monkeypatch.setattr(Paths, "default", classmethod(lambda cls: paths))
    folder = tmp_path / "there" / ".cache" / "lemonade"
    folder.mkdir(parents=True)
    (folder / CONFIG).write_text(json.dumps({"max_loaded_models": 2, "extra_models_dir": "/data"}))
    newer = tmp_path / "there" / ".config" / "lemonade"
    newer.mkdir(parents=True)
    (newer / MODELS).write_text(json.dumps({"Small": SMALL, "Route": POLICY}))
    (newer / OPTIONS).write_text(json.dumps({"user.Small": {"ctx_size": 4096}}))
    return folder, paths


def test_the_whole_import(places: tuple[Path, Paths], capsys: pytest.CaptureFixture[str]) -> None:
    folder, paths = places
    there = {path: path.read_bytes() for path in folder.parents[1].rglob("*.json")}
    paths.ensure()
    paths.config_file.write_text('{"port": 5, "models_dirs": ["/mine"], "theirs": 1}')
    paths.options_file.write_text('{"small-q4": {"ctx_size": 1024, "parallel": 2}}')

    assert main(["import", "lemonade", str(folder), "--dry-run"]) == 0
    assert "Would take: 4" in capsys.readouterr().out
    assert json.loads(paths.config_file.read_text()) == {"port": 5, "models_dirs": ["/mine"], "theirs": 1}

    assert main(["import", "lemonade", str(folder / CONFIG)]) == 0
    out = capsys.readouterr().out
    assert "Taken: 4" in out
    assert "Left: 1" in out
    assert json.loads(paths.config_file.read_text()) == {
        "config_version": 1,
        "port": 5,
        "theirs": 1,
        "models_dirs": ["/mine", "/data"],
        "max_loaded_models": 2,
    }
    assert paths.config_file.with_name("config.json.v0.bak").exists()
    # An option that the user has set here stands.
    assert json.loads(paths.options_file.read_text()) == {"small-q4": {"ctx_size": 1024, "parallel": 2}}
    assert len(list(paths.policies_dir.iterdir())) == 1
    assert StateFile(paths.state_dir).imported()
    assert {path: path.read_bytes() for path in there} == there
    store = SettingsStore(paths.config_file, {})
    assert store.load().max_loaded_models == 2


def test_nothing_there(
    places: tuple[Path, Paths], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["import", "lemonade", str(tmp_path / "empty")]) == 1
    assert "No settings of Lemonade Server were found" in capsys.readouterr().err
    assert not places[1].config_file.exists()


def test_a_file_that_is_no_json_is_named(
    places: tuple[Path, Paths], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, paths = places
    (folder / CONFIG).write_text("{oops")
    assert main(["import", "lemonade", str(folder)]) == 1
    assert str(folder / CONFIG) in capsys.readouterr().err
    assert not paths.config_file.exists()


def test_an_own_file_that_is_broken_is_not_overwritten(
    places: tuple[Path, Paths], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, paths = places
    paths.ensure()
    paths.config_file.write_text("{mine")
    assert main(["import", "lemonade", str(folder)]) == 1
    assert "mend that file first" in capsys.readouterr().err
    assert paths.config_file.read_text() == "{mine"


def test_folders_beside_a_given_one(tmp_path: Path) -> None:
    folder = tmp_path / ".cache" / "lemonade"
    assert given_folders(folder)[0] == folder
    assert tmp_path / ".config" / "lemonade" in given_folders(folder)
