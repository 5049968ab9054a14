"""What every test stands on: private user folders, no screen, one real model."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from pathlib import Path

import hypothesis
import pytest

import dev
from router.errors import RouterError
from tests.support.demo_model import cache_folder, fetch

# The user's own settings and cache, as they were before the folders are hidden below.
ENVIRON = dict(os.environ)
CACHE = cache_folder()

# On CI nothing may be skipped for want of a tool: there the set-up has failed.
ON_CI = bool(os.environ.get("CI"))

hypothesis.settings.register_profile(
    "default", deadline=None, derandomize=True, print_blob=True, database=None
)
hypothesis.settings.register_profile("long", deadline=None, max_examples=2_000, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_configure(config: pytest.Config) -> None:
    """Hide the user's own files and settings from all tests and from what they start."""
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        # Under nohup. Programs that tests start would ignore it as well; what is caught, they do not inherit.
        signal.signal(signal.SIGHUP, lambda *_: None)
    home = Path(tempfile.mkdtemp(prefix="lemon-tray-tests-"))
    config.add_cleanup(lambda: shutil.rmtree(home, ignore_errors=True))
    for name in [name for name in os.environ if name.startswith("LEMON_TRAY_")]:
        del os.environ[name]
    for kind in ("CONFIG", "DATA", "STATE", "CACHE"):
        os.environ[f"XDG_{kind}_HOME"] = str(home / kind.lower())
    # Models that other programs keep here are no part of any test.
    for variable in ("HF_HUB_CACHE", "OLLAMA_MODELS"):
        os.environ[variable] = str(home / "none")
    runtime = home / "runtime"
    runtime.mkdir(mode=0o700)
    os.environ["XDG_RUNTIME_DIR"] = str(runtime)
    os.environ["QT_QPA_PLATFORM"] = "offscreen"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = dev.missing_tools()
    if not missing or ON_CI:
        return
    reason = f"the packages {', '.join(missing)} are not installed"
    for item in items:
        if item.get_closest_marker("e2e"):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The demo model's GGUF file: small, real, fetched once for all runs."""
    try:
        return fetch(CACHE, ENVIRON)
    except RouterError as error:
        if ON_CI:
            raise
        pytest.skip(f"the demo model is not here: {error}")


@pytest.fixture
def models_dir(demo_model: Path, tmp_path: Path) -> Path:
    """A folder that holds the demo model and nothing else."""
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / demo_model.name).symlink_to(demo_model)
    return folder
