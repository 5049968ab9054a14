"""Going back to this version from a newer one: it starts, says what it does not know, and loses nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from router.paths import Paths

#: What a newer version might have left, by file: numbers of newer forms, unknown keys, values of other types.
CONFIG = {
    "config_version": 99,
    "max_loaded_models": 4,
    "auto_evict": {"when": "never"},
    "of a newer version": {"deep": [1, None]},
}
STATE = {"last_run_version": "99.0.0", "owed": ["a notice of then"], "told": [], "seen_tours": [7]}
MEASURED = {"format": 99, "seen": [["another", "shape"]], "per_engine": {}}
MODELS = {
    "alpha": {"ctx_size": 4096, "of a newer version": True, "device": {"any": ["CUDA0"]}},
    "$defaults": {"parallel": 2},
}
KEYS = {"format": 9, "keys": []}
PROVIDERS = {"format": 9, "providers": []}
POLICY = {"version": "9", "recipe": "collection.router", "model_name": "later", "routing": {"graph": {}}}


def write(path: Path, document: Any) -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    return path.read_bytes()


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    monkeypatch.setenv("HOME", str(tmp_path))
    for kind in ("CONFIG", "DATA", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind))
    return Paths.default()


def test_a_newer_versions_files_neither_stop_it_nor_are_lost(paths: Paths) -> None:
    config = paths.config_file.parent
    written = write(paths.config_file, CONFIG)
    write(paths.state_dir / "state.json", STATE)
    write(paths.state_dir / "measured.json", MEASURED)
    models = write(paths.options_file, MODELS)
    write(config / "keys.json", KEYS)
    write(config / "providers.json", PROVIDERS)
    policy = write(config / "policies" / "later.json", POLICY)
    for name in ("engine-0123456789abcdef0123456789abcdef.json", "headers/0.header.json"):
        write(paths.cache_dir / name, {"format": 99})
    # Of writes that a power cut broke off, long ago.
    broken = [config / ".config.json.a1b2c3d4.tmp", paths.state_dir / ".state.json.a1b2c3_4.tmp"]
    for file in broken:
        file.touch()
        os.utime(file, (1, 1))

    with subprocess.Popen(
        [sys.executable, "-m", "lemon_tray", "serve", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "NO_PROXY": "*"},
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "answers at " in line, process.communicate()[1]
        base = line.split("answers at ")[1].strip().removesuffix("/v1")

        def ask(path: str, body: Any = None) -> Any:
            data = None if body is None else json.dumps(body).encode()
            request = urllib.request.Request(base + path, data, {"Content-Type": "application/json"})  # noqa: S310  # our own
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310  # our own
                return json.loads(answer.read())

        assert ask("/internal/config")["max_loaded_models"] == 4
        assert ask("/internal/config")["auto_evict"] is False
        assert ask("/internal/set", {"max_loaded_models": 2})["settings"] == {"max_loaded_models": 2}
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "")
    told = err + (paths.log_dir / "lemon-tray.log").read_text()
    assert "Traceback" not in told
    assert "newer version" in told
    assert [file for file in broken if file.exists()] == []

    # The number and what is unknown stay, so that going forward again finds them; and there is a copy.
    assert json.loads(paths.config_file.read_text()) == {**CONFIG, "max_loaded_models": 2}
    assert paths.config_file.with_name("config.json.v99.bak").read_bytes() == written
    assert paths.options_file.read_bytes() == models
    assert (config / "policies" / "later.json").read_bytes() == policy
    state = json.loads((paths.state_dir / "state.json").read_text())
    assert state["seen_tours"] == [7]
    assert state["owed"] == ["a notice of then"]
