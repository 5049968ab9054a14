"""A real llama-server on a real GPU back end on any machine: on Mesa's software device, listed twice."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import dev
from router.engines.base import Capabilities, WorkerSpec
from router.engines.external import ExternalEngine
from router.engines.factory import make_engine
from router.engines.probing import Prober
from router.engines.reach import match_devices
from router.errors import LoadFailed
from tests.conftest import CACHE
from tests.support import gguf

#: Vulkan hides software devices unless they are named; named twice they are two.
VISIBLE = "0,0"
HOW = "python3 dev.py test --vulkan fetches it"


def set_up(patch: pytest.MonkeyPatch) -> None:
    patch.setenv("GGML_VK_VISIBLE_DEVICES", VISIBLE)
    # The driver takes seconds to compile a kernel, and has it at once the next time.
    patch.setenv("MESA_SHADER_CACHE_DIR", str(CACHE / "shaders"))


@functools.cache
def unusable(folder: str) -> str:
    """Why the program cannot be used here; "" if it can. It is loaded once with a tiny model to see that."""
    program = dev.vulkan_program(CACHE)
    if sys.platform != "linux" or not program.exists():
        return f"there is no llama-server with Vulkan in {program.parent}; {HOW}"

    async def look() -> str:
        found = await Prober()(program)
        if found.problem or len(found.devices) != 2:
            return found.problem or f"it reaches {len(found.devices)} devices in place of 2; {HOW}"
        engine = make_engine(found)
        path = gguf.write_model(Path(folder) / "look.gguf")
        try:
            await engine.start(WorkerSpec("look", str(path), "llm", 512, 1, {}, 60.0), lambda share: None)
        except LoadFailed as error:
            return error.message
        finally:
            await engine.aclose()
        return ""

    with asyncio.Runner() as runner:
        return runner.run(look())


@pytest.fixture(autouse=True, scope="session")
def software_devices(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Name the devices for this session; skip where they are not there."""
    with pytest.MonkeyPatch.context() as patch:
        set_up(patch)
        reason = unusable(str(tmp_path_factory.mktemp("look")))
    if reason:
        pytest.skip(f"no Vulkan here: {reason}")


@pytest.fixture(autouse=True)
def two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    set_up(monkeypatch)


@pytest.fixture
async def found(two_devices: None) -> Capabilities:
    return await Prober()(dev.vulkan_program(CACHE))


@pytest.fixture
async def engine(found: Capabilities, tmp_path: Path) -> AsyncIterator[ExternalEngine]:
    """The engine, with both devices in reach."""
    made = make_engine(found, logs_dir=tmp_path / "logs", state_dir=tmp_path / "state")
    assert isinstance(made, ExternalEngine)
    made.use(match_devices((), found.devices).all)
    yield made
    await made.aclose()
    assert list((tmp_path / "state").iterdir()) == []
