"""Engines that change while their workers run, and devices that only an engine knows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from router.devices.base import DeviceInfo, DeviceReading
from router.engines.base import Capabilities, EngineDevice, Exit, WorkerSpec
from router.errors import BadRequest
from router.service import fleet as fleets
from router.service.fleet import Fleet, WithEngineDevices
from router.units import GIB

CARD = DeviceInfo("GPU-1", "NVIDIA GeForce RTX 4090", "CUDA0", "gpu", "cuda", "GPU-1", "0000:01:00.0")
HOST = DeviceInfo("host", "Host memory", "CPU", "host")
CUDA = EngineDevice("CUDA0", "cuda", "NVIDIA GeForce RTX 4090", 24 * GIB)
SOFT = EngineDevice("Vulkan0", "vulkan", "llvmpipe (LLVM 15)", 2 * GIB)


class FakeWorker:
    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.exited: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()


class FakeEngine:
    def __init__(self, found: Capabilities) -> None:
        self.found = found
        self.reach: dict[str, EngineDevice] = {}
        self.fails = self.is_closed = False

    def use(self, reach: dict[str, EngineDevice]) -> None:
        self.reach = reach

    async def start(self, spec: Any, progress: Any, launched: Callable[[int], None]) -> FakeWorker:
        if self.fails:
            raise OSError("no")
        return FakeWorker(self)

    async def aclose(self) -> None:
        self.is_closed = True


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[FakeEngine]:
    engines: list[FakeEngine] = []

    def make(found: Capabilities, **_: Any) -> FakeEngine:
        engines.append(FakeEngine(found))
        return engines[-1]

    monkeypatch.setattr(fleets, "make_engine", make)
    return engines


def program(id: str, *devices: EngineDevice, version: str = "1") -> Capabilities:
    return Capabilities(id, id, version, f"/{id}/llama-server", devices)


def spec() -> WorkerSpec:
    return WorkerSpec("m", "/m.gguf", "llm", 512, 1, {}, 60.0)


async def test_new_workers_are_the_new_engines_and_old_ones_stay(
    tmp_path: Path, made: list[FakeEngine]
) -> None:
    fleet = Fleet(logs_dir=tmp_path, state_dir=tmp_path)
    assert fleet.choose(program("one", CUDA)) is True
    first: Any = await fleet.start(spec(), print)
    fleet.choose(program("two"))
    second: Any = await fleet.start(spec(), print)
    assert (first.engine, second.engine) == (made[0], made[1])
    assert (fleet.is_used("one"), fleet.is_used("two")) == (True, True)
    first.exited.set_result(Exit(0, ()))
    await asyncio.sleep(0)
    assert (fleet.is_used("one"), fleet.is_used("two")) == (False, True)
    # Back to the one before: it is the same engine, with what it knows of its workers.
    fleet.choose(program("one", CUDA))
    assert len(made) == 2
    # Another version at the same place is another program.
    fleet.choose(program("one", CUDA, version="2"))
    assert len(made) == 3
    await fleet.aclose()
    assert [engine.is_closed for engine in made] == [True] * 3


def test_arguments_are_those_that_the_engine_in_use_takes(tmp_path: Path, made: list[FakeEngine]) -> None:
    fleet = Fleet(logs_dir=tmp_path, state_dir=tmp_path)
    with pytest.raises(BadRequest, match="does not take --grammar"):
        fleet.check_arguments(["--grammar", "x"])
    fleet.choose(program("other", CUDA))
    assert fleet.check_arguments(["--grammar", "x"]) == ("--grammar", "x")


async def test_a_load_that_fails_uses_nothing(tmp_path: Path, made: list[FakeEngine]) -> None:
    fleet = Fleet(logs_dir=tmp_path, state_dir=tmp_path)
    fleet.choose(program("one"))
    made[0].fails = True
    with pytest.raises(OSError, match="no"):
        await fleet.start(spec(), print)
    assert not fleet.is_used("one")
    await fleet.aclose()


async def test_what_is_reached_follows_engine_and_machine(tmp_path: Path, made: list[FakeEngine]) -> None:
    fleet = Fleet(logs_dir=tmp_path, state_dir=tmp_path)
    assert fleet.observe([HOST]) is False
    assert fleet.choose(program("one", CUDA)) is True
    # The card is seen a little later: until then it is a device that only the engine knows.
    assert list(fleet.unknown_devices()) == ["cuda:0:nvidia"]
    assert fleet.observe([CARD, HOST]) is True
    assert fleet.observe([CARD, HOST]) is False
    assert list(fleet.reach.all) == ["GPU-1"]
    assert made[0].reach["GPU-1"].pin == "GPU-1"
    assert fleet.choose(program("plain")) is True
    assert fleet.reach.all == {}
    await fleet.aclose()


class Provider:
    async def read(self) -> tuple[DeviceReading, ...]:
        return (DeviceReading(CARD, 24 * GIB, 20 * GIB, 7.0), DeviceReading(HOST, 8 * GIB, 4 * GIB, 7.5))

    async def close(self) -> None:
        pass


async def test_a_device_that_only_the_engine_knows_is_shown_with_its_size() -> None:
    known: dict[str, EngineDevice] = {}
    provider = WithEngineDevices(Provider(), lambda: known)
    assert [r.device.id for r in await provider.read()] == ["GPU-1", "host"]
    known["vulkan:0:llvmpipe"] = SOFT
    card, soft, host = await provider.read()
    assert (card.device, host.device) == (CARD, HOST)
    assert (soft.device.kind, soft.device.label, soft.device.backend) == ("gpu", "Vulkan0", "vulkan")
    assert (soft.total, soft.free, soft.started) == (2 * GIB, None, 7.0)
    assert "how much of it is free" in soft.reason
