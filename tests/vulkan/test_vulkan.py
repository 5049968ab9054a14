"""Pins, splits and sizes on a real GPU back end: what the plan says against what the engine does."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec import Struct

import dev
from router.engines.base import OUT_OF_MEMORY, Capabilities, WorkerSpec
from router.engines.external import ExternalEngine
from router.engines.llama import common_environ
from router.engines.pinning import pin
from router.engines.process import WorkerProcess
from router.errors import LoadFailed
from router.memory.header import read_header
from router.memory.placement import EXACT, HOST, PlacementOptions, device_demand
from router.units import MIB
from tests.conftest import CACHE
from tests.oracle.models import Shape, write
from tests.router.engines.conftest import children, ended, ignore
from tests.support import gguf
from tests.support.processes import is_running

pytestmark = [pytest.mark.vulkan, pytest.mark.timeout(300)]

ONE, TWO = "vulkan:0:llvmpipe", "vulkan:1:llvmpipe"
NAMES = {"Vulkan0": ONE, "Vulkan1": TWO}
#: The engine tells hundredths of a MiB, for each of several buffers.
ROUNDING = 0.02 * MIB


class Case(Struct, frozen=True):
    """A model, and where it goes."""

    name: str
    shape: Shape
    options: PlacementOptions


def small(architecture: str = "llama", **rest: Any) -> Shape:
    """Small, and of one element type: each further one costs this driver seconds."""
    plain: dict[str, Any] = {"layers": 4, "embd": 256, "heads": 8, "head_dim": 32, "ff": 512, "vocab": 1024}
    return Shape(architecture, **(plain | rest))


MODELS = {
    "dense": small(),
    "q8_0": small(kind=gguf.Q8_0, output_kind=gguf.Q8_0),
    "q4_0": small(kind=gguf.Q4_0, output_kind=gguf.Q8_0),
    "tied": small(tied=True, layers=5),
    "rotary": small(rotary=True),
    "odd": small(layers=7, embd=192, heads=6, kv_heads=3, ff=320, vocab=999),
    "deci": small("deci", kv_heads=[8, 2, 4, 1]),
    "experts": small(experts=4),
    "qwen2": small("qwen2", tied=True),
    "qwen2moe": small("qwen2moe", experts=8, shared_ff=256, kv_heads=8),
    "qwen3": small("qwen3"),
    "qwen3moe": small("qwen3moe", experts=8),
    "gemma": small("gemma", kv_heads=1, tied=True),
    "gemma2": small("gemma2", window=512, tied=True),
    "gemma3": small("gemma3", layers=7, window=512, tied=True),
    "gpt-oss": small("gpt-oss", window=128, experts=4),
    "cohere2": small("cohere2", window=512, tied=True, extra={"cohere2.logit_scale": 0.25}),
    "phi": small("phi3", window=2047, kv_heads=8),
    "granite": small("granite", extra={"granite.logit_scale": 8.0}),
    "smollm3": small("smollm3"),
}


def on(*devices: str, **rest: Any) -> PlacementOptions:
    plain: dict[str, Any] = {"ctx_size": 2048}
    if len(devices) > 1 and "split_mode" not in rest:
        plain["tensor_split"] = (1.0,) * len(devices)
    return PlacementOptions(devices=devices, **(plain | rest))


CASES = [
    *(Case(name, shape, on(ONE, TWO)) for name, shape in MODELS.items()),
    Case("dense", MODELS["dense"], on(ONE)),
    Case("dense", MODELS["dense"], on(TWO)),
    Case("dense", MODELS["dense"], on(TWO, ONE, tensor_split=(3.0, 1.0))),
    Case("dense", MODELS["dense"], on(ONE, TWO, split_mode="none", main_gpu=1)),
    Case("dense", MODELS["dense"], on(TWO, n_gpu_layers=2)),
    Case("dense", MODELS["dense"], on(ONE, TWO, n_gpu_layers=3)),
    Case("dense", MODELS["dense"], on()),
    Case("dense", MODELS["dense"], on(ONE, ctx_size=4096, parallel=4)),
    Case("dense", MODELS["dense"], on(ONE, cache_type_k="q8_0", cache_type_v="q8_0")),
    Case("tied", MODELS["tied"], on(TWO, n_gpu_layers=1)),
    Case("gemma3", MODELS["gemma3"], on(TWO, ctx_size=4096, parallel=2)),
    Case("experts", MODELS["experts"], on(ONE, n_cpu_moe=2)),
]  # fmt: skip


def shown(case: Case) -> str:
    options = case.options
    gpus = "+".join(device[7] for device in options.devices) or "none"
    rest = [
        f"{name}={getattr(options, name)}"
        for name in ("split_mode", "n_gpu_layers", "n_cpu_moe", "ctx_size", "parallel", "cache_type_k")
        if getattr(options, name) != getattr(on(), name)
    ]
    return " ".join([case.name, gpus, *rest])


def spec(path: Path, options: PlacementOptions, *args: str) -> WorkerSpec:
    same = {
        name: getattr(options, name)
        for name in PlacementOptions.__struct_fields__
        if name in WorkerSpec.__struct_fields__
    }
    return WorkerSpec(
        model=path.stem, path=str(path), type="llm", booking={}, load_stall_s=200.0, args=args, **same
    )


def sizes(worker: WorkerProcess) -> dict[str, dict[str, int]]:
    """By device and part, as the plan has them."""
    told: dict[str, dict[str, int]] = {}
    for (buffer, kind), size in worker.buffers.items():
        part = {"model": "weights", "KV": "kv_cache"}.get(kind, "compute")
        parts = told.setdefault(NAMES.get(buffer, HOST), {})
        parts[part] = parts.get(part, 0) + size
    return told


def check(worker: WorkerProcess, path: Path, options: PlacementOptions) -> None:
    told = sizes(worker)
    planned = device_demand(read_header(path), options).per_device
    assert set(told) <= set(planned)
    whole = options.n_gpu_layers < 0 and not options.n_cpu_moe
    for device, parts in planned.items():
        has = {"weights": 0, "kv_cache": 0, "compute": 0} | told.get(device, {})
        assert parts.kv_cache == pytest.approx(has["kv_cache"], abs=ROUNDING), device
        if device == HOST:
            # Mapped files count from the first to the last tensor, others between them included.
            assert parts.weights <= has["weights"] + ROUNDING
        else:
            # Each back end has an alignment of its own.
            assert parts.weights == pytest.approx(has["weights"], rel=0.001, abs=ROUNDING), device
        assert parts.compute >= has["compute"], device
        if whole or device != HOST:
            assert parts.compute - has["compute"] <= max(has["compute"] // 4, 64 * MIB), device
    assert dict(worker.measured) == {device: sum(parts.values()) for device, parts in told.items()}


@pytest.mark.fault("F10")
@pytest.mark.fault("F30")
@pytest.mark.parametrize("case", CASES, ids=shown)
async def test_bytes_land_where_the_plan_says(case: Case, engine: ExternalEngine, tmp_path: Path) -> None:
    path = write(tmp_path / f"{case.name}.gguf", case.shape)
    worker = await engine.start(spec(path, case.options, "--no-warmup"), ignore)
    check(worker, path, case.options)
    assert await worker.stop()


async def test_two_devices_are_found(found: Capabilities) -> None:
    assert [device.name for device in found.devices] == ["Vulkan0", "Vulkan1"]
    assert all(device.backend == "vulkan" and device.total > 0 for device in found.devices)
    assert found.backends == {"vulkan"}


async def test_a_pinned_worker_by_environment_sees_one_device(found: Capabilities) -> None:
    """How workers are pinned that take no names of devices: the number is that of the variable's own list."""
    reach = {"b": found.devices[1]}
    wanted = WorkerSpec("m", "/m", "llm", 512, 1, {}, 60.0, devices=("b",))
    chosen = pin(wanted, reach, common_environ(), takes_names=False)
    environ = {**common_environ(), **chosen.environ}
    done = await asyncio.to_thread(
        subprocess.run,
        [str(dev.vulkan_program(CACHE)), "--list-devices"],
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.count("llvmpipe (") == 1
    assert chosen.names == {"Vulkan0": "b"}


async def test_a_real_model_is_loaded_on_the_planned_device(engine: ExternalEngine, demo_model: Path) -> None:
    options = on(TWO, ctx_size=1024)
    worker = await engine.start(spec(demo_model, options, "--no-warmup"), ignore)
    check(worker, demo_model, options)
    assert worker.measured[TWO] > 100 * MIB
    assert ONE not in worker.measured


async def test_a_chat_on_two_devices(engine: ExternalEngine, tmp_path: Path) -> None:
    path = gguf.write_model(tmp_path / "tiny.gguf")
    worker = await engine.start(spec(path, on(ONE, TWO, ctx_size=512), "--no-warmup"), ignore)
    url = f"http://{worker.host}:{worker.port}/v1/chat/completions"
    body = {"messages": [{"role": "user", "content": "a-private-word"}], "max_tokens": 3, "temperature": 0}
    headers = {"Authorization": f"Bearer {worker.api_key}"}
    async with aiohttp.request("POST", url, json=body, headers=headers) as answer:
        reply = await answer.json()
        assert answer.status == 200, reply
    assert reply["usage"]["completion_tokens"] > 0
    assert reply["model"] == "tiny"
    async with aiohttp.request("POST", url, json=body) as answer:
        assert answer.status == 401
    assert await worker.stop()
    log = (tmp_path / "logs" / "tiny.log").read_text(errors="replace")
    assert "KV buffer size" in log
    assert "a-private-word" not in log
    assert worker.api_key not in log


@pytest.mark.fault("F11")
async def test_a_killed_worker_is_noticed(engine: ExternalEngine, tmp_path: Path) -> None:
    path = gguf.write_model(tmp_path / "tiny.gguf")
    worker = await engine.start(spec(path, on(ONE, ctx_size=512), "--no-warmup"), ignore)
    os.kill(worker.pid, signal.SIGKILL)
    await asyncio.wait([worker.exited], timeout=20)
    assert worker.exited.result().code == -signal.SIGKILL
    assert not is_running(worker.pid)


@pytest.mark.fault("F30")
async def test_too_little_memory_is_told_as_such(found: Capabilities, tmp_path: Path) -> None:
    """This device takes its memory from the host's, so the process is given too little of that."""
    program = tmp_path / "llama-server"
    program.write_text(f'#!/bin/sh\nulimit -v 2500000\nexec "{found.path}" "$@"\n')
    program.chmod(0o755)
    engine = ExternalEngine(program, found=found)
    engine.use({ONE: found.devices[0]})
    path = write(tmp_path / "long.gguf", small(kv_heads=8, layers=8, context=1_000_000))
    with pytest.raises(LoadFailed, match="out of memory") as caught:
        await engine.start(spec(path, on(ONE, ctx_size=300_000), "--no-warmup"), ignore)
    assert caught.value.code == OUT_OF_MEMORY
    await engine.aclose()


ROUTER = textwrap.dedent(
    """
    import asyncio, sys
    from pathlib import Path
    from router.engines.base import EngineDevice, WorkerSpec
    from router.engines.external import ExternalEngine

    async def main():
        engine = ExternalEngine(Path(sys.argv[1]))
        engine.use({"one": EngineDevice("Vulkan0", "vulkan", "", 0)})
        spec = WorkerSpec("tiny", sys.argv[2], "llm", 512, 1, {}, 200.0, devices=("one",), n_gpu_layers=-1)
        await engine.start(spec, lambda share: None)
        print("ready", flush=True)
        await asyncio.Event().wait()

    asyncio.run(main())
    """
)


@pytest.mark.fault("F08")
async def test_no_llama_server_outlives_a_router_that_is_killed(tmp_path: Path) -> None:
    path = gguf.write_model(tmp_path / "tiny.gguf")
    command = [sys.executable, "-c", ROUTER, str(dev.vulkan_program(CACHE)), str(path)]
    with start(command) as router:
        assert router.stdout is not None
        assert await asyncio.to_thread(router.stdout.readline) == "ready\n"
        (worker,) = children(router.pid)
        router.kill()
        assert await ended(worker)


def start(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_every_exact_architecture_of_language_models_is_loaded() -> None:
    assert {shape.architecture for shape in MODELS.values()} == EXACT - {"bert"}
