"""A user whom an upgrade brings the pool that sizes itself."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.gguf import write_model
from tests.support.policies import document


def after_an_upgrade(root: Path) -> tuple[str, ...]:
    """Let the user of the desktop at `root` come from an older version.

    The limit is 1, and a policy names 3 models.

    Returns: the arguments to start the program with.
    """
    config, state = root / "config" / "lemon-tray", root / "state" / "lemon-tray"
    for folder in (config / "policies", state, root / "gguf"):
        folder.mkdir(parents=True)
    (config / "config.json").write_text(json.dumps({"max_loaded_models": 1, "auto_evict": False}))
    (state / "state.json").write_text(json.dumps({"last_run_version": "0.0.5"}))
    names = ("one", "two", "three")
    for name in names:
        path = write_model(root / "gguf" / f"{name}.gguf")
        with path.open("ab") as file:
            file.write(name.encode())  # else all would be one model
    rules = [{"id": "hard", "match": {"keywords_any": ["prove"]}, "route_to": "two"}]
    policy = document("auto", names, rules=rules)
    (config / "policies" / "auto.json").write_text(json.dumps(policy))
    return ("--models-dir", str(root / "gguf"))
