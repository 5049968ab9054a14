"""A llama-server as an engine: a pretended one here; a real one on a real GPU back end in tests/vulkan."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from router.engines.base import OUT_OF_MEMORY, EngineDevice
from router.engines.external import ExternalEngine
from router.engines.factory import make_engine
from router.engines.probing import Prober
from router.errors import LoadFailed
from tests.router.engines.conftest import Run, Server, children, ended, ignore, spec_of
from tests.support.processes import is_running

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

Make = Callable[..., ExternalEngine]


@pytest.fixture
async def external(tmp_path: Path, server: Server) -> AsyncIterator[Make]:
    """Makes engines of the pretended program in a mode."""
    engines: list[ExternalEngine] = []

    def make(mode: str = "good", **rest: Any) -> ExternalEngine:
        engine = ExternalEngine(
            server(mode), logs_dir=tmp_path / "logs", state_dir=tmp_path / "state", **rest
        )
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        await engine.aclose()
    assert list((tmp_path / "state").glob("*")) == []
    assert asyncio.all_tasks() == {asyncio.current_task()}
    gc.collect()


PATH = "/m/山 月 ü 'q' \"d\" $HOME ;x/模型.gguf"
REACH = {
    "card": EngineDevice("Vulkan0", "vulkan", "Card", 0),
    "other": EngineDevice("Vulkan1", "vulkan", "Other", 0),
}


def test_its_whole_life_on_every_loop(on_loop: Run, server: Server) -> None:
    async def main() -> None:
        engine = ExternalEngine(server("good"))
        engine.use(REACH)
        progress: list[float] = []
        worker = await engine.start(spec_of(devices=("card",), n_gpu_layers=-1), progress.append)
        # It tells of progress by another way than of its address.
        assert progress in ([0.95 * 0.5, 1.0], [1.0])
        assert dict(worker.measured) == {"card": round(92.10 * 2**20), "host": 3 << 19}
        assert is_running(worker.pid)
        assert await worker.stop()
        # The end of its standard input ends it at once, with the status that the program has for that.
        assert worker.exited.result().code == 1
        await engine.aclose()

    on_loop(main)


async def told(engine: ExternalEngine, **rest: Any) -> dict[str, Any]:
    worker = await engine.start(spec_of(**rest), ignore)
    line = next(line for line in worker.log_tail if line.startswith("REPORT "))
    report: dict[str, Any] = json.loads(line.removeprefix("REPORT "))
    report["worker"] = worker
    return report


@pytest.mark.fault("F34")
async def test_what_it_is_told(external: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "9")
    monkeypatch.setenv("LLAMA_API_KEY", "the user's")
    engine = external("tells")
    engine.use(REACH)
    report = await told(
        engine,
        path=PATH,
        devices=("other", "card"),
        tensor_split=(3.0, 1.0),
        n_gpu_layers=7,
        n_cpu_moe=2,
        cache_type_k="q8_0",
        mmproj="/m/p.gguf",
        ctx_size=777,
        parallel=3,
        args=("--temp", "0.5"),
    )
    worker, argv = report["worker"], report["argv"][1:]
    for pair in (
        ("--model", PATH),
        ("--alias", "tiny"),
        ("--host", "127.0.0.1"),
        ("--port", "0"),
        ("--device", "Vulkan1,Vulkan0"),
        ("--tensor-split", "3,1"),
        ("--split-mode", "layer"),
        ("--n-gpu-layers", "7"),
        ("--n-cpu-moe", "2"),
        ("--cache-type-k", "q8_0"),
        ("--cache-type-v", "f16"),
        ("--mmproj", "/m/p.gguf"),
        ("--ctx-size", "777"),
        ("--parallel", "3"),
        ("--fit", "off"),
        ("--cache-ram", "0"),
        ("--temp", "0.5"),
    ):
        assert argv[argv.index(pair[0]) + 1] == pair[1]
    assert {"--kv-unified", "--no-ui", "--metrics", "--slots"} <= set(argv)
    environ = report["environ"]
    assert environ["LLAMA_API_KEY"] == worker.api_key
    assert environ["MTMD_BACKEND_DEVICE"] == "Vulkan1"
    assert environ["CUDA_VISIBLE_DEVICES"] == "-1"
    assert environ["GGML_NO_BACKTRACE"] == "1"
    assert "LLAMA_ARG_CTX_SIZE" not in environ
    assert report["session"] == worker.pid
    # Nothing secret in what people and other users see, and the program's own command, not the guard's.
    assert worker.api_key not in Path(f"/proc/{worker.pid}/cmdline").read_text()
    assert worker.launch_command[0] == str(engine.program)
    assert list(worker.launch_command[1:]) == argv


async def test_without_devices_it_gets_none(external: Make) -> None:
    report = await told(external("tells"), n_gpu_layers=5, n_cpu_moe=3, mmproj="/m/p.gguf")
    argv = report["argv"]
    assert argv[argv.index("--device") + 1] == "none"
    assert argv[argv.index("--n-gpu-layers") + 1] == "0"
    assert "--no-mmproj-offload" in argv
    assert "--n-cpu-moe" not in argv
    assert report["environ"]["GGML_VK_VISIBLE_DEVICES"] == ""
    assert "MTMD_BACKEND_DEVICE" not in report["environ"]


async def test_an_option_that_the_program_lacks_is_left_out(external: Make) -> None:
    engine = external("tells")
    await engine.probe()
    argv = (await told(engine))["argv"]
    assert {"--no-ui", "--metrics", "--kv-unified"} <= set(argv)
    assert not {"--offline", "--cors-origins", "--no-cache-idle-slots", "--log-colors"} & set(argv)
    with pytest.raises(LoadFailed, match="does not know --jinja"):
        await engine.start(spec_of(args=("--jinja",)), ignore)


async def test_a_version_that_tells_no_states(external: Make) -> None:
    worker = await external("old").start(spec_of(), ignore)
    assert worker.measured == {}
    assert await worker.stop()


async def test_embedding_models(external: Make) -> None:
    argv = (await told(external("tells"), type="embedding", ctx_size=4096))["argv"]
    assert "--embedding" in argv
    assert argv[argv.index("--ubatch-size") + 1] == "2048"
    argv = (await told(external("tells"), type="reranking"))["argv"]
    assert "--reranking" in argv


async def test_a_device_out_of_reach_starts_nothing(external: Make) -> None:
    before = children(os.getpid())
    with pytest.raises(LoadFailed, match="does not reach the device card"):
        await external("good").start(spec_of(devices=("card",)), ignore)
    assert children(os.getpid()) == before


@pytest.mark.fault("F30")
async def test_too_little_memory_has_a_code_of_its_own(external: Make) -> None:
    with pytest.raises(LoadFailed, match="out of memory") as caught:
        await external("out of memory").start(spec_of(), ignore)
    assert caught.value.code == OUT_OF_MEMORY


@pytest.mark.fault("F14")
async def test_a_program_that_says_nothing_is_given_up(external: Make) -> None:
    with pytest.raises(LoadFailed, match="no progress"):
        await external("hangs").start(spec_of(load_stall_s=0.5), ignore)


async def test_a_program_that_is_gone(tmp_path: Path) -> None:
    engine = ExternalEngine(tmp_path / "gone")
    with pytest.raises(LoadFailed, match=r"cannot be started: No such file"):
        await engine.start(spec_of(), ignore)
    await engine.aclose()


ROUTER = textwrap.dedent(
    """
    import asyncio, sys
    from pathlib import Path
    from router.engines.base import WorkerSpec
    from router.engines.external import ExternalEngine

    async def main():
        engine = ExternalEngine(Path(sys.argv[1]), state_dir=Path(sys.argv[2]))
        spec = WorkerSpec("tiny", "/nowhere", "llm", 512, 1, {}, 60.0)
        if sys.argv[3] == "loading":
            asyncio.create_task(engine.start(spec, lambda share: None, lambda pid: print(pid, flush=True)))
        else:
            print((await engine.start(spec, lambda share: None)).pid, flush=True)
        await asyncio.Event().wait()

    asyncio.run(main())
    """
)


def program_of(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.fault("F08")
@pytest.mark.parametrize("moment", ["loading", "ready"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_no_program_outlives_a_router_that_dies(
    server: Server, tmp_path: Path, moment: str, number: int
) -> None:
    program = server("hangs" if moment == "loading" else "good")
    command = [sys.executable, "-c", ROUTER, str(program), str(tmp_path / "state"), moment]
    with program_of(command) as router:
        assert router.stdout is not None
        pid = int(await asyncio.to_thread(router.stdout.readline))
        assert is_running(pid)
        router.send_signal(number)
        assert await ended(pid)
    assert not is_running(pid)


async def test_the_guard_starts_nothing_for_a_parent_that_is_gone(server: Server) -> None:
    from router.engines import guard

    program = server("good")
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, guard.__file__, "1", str(program), "--version"],
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert not program.with_name("asked").exists()


async def test_the_factory_makes_what_was_found(server: Server, tmp_path: Path) -> None:
    prober = Prober(tmp_path / "cache")
    program = server("good")
    engine = make_engine(await prober(program))
    assert isinstance(engine, ExternalEngine)
    assert engine.program == program
    assert (await engine.probe()).version == "9999 (abcdef0)"
    assert engine.capabilities()["devices"] == ["host", "CUDA0", "CUDA1"]
    await engine.aclose()
    embedded = make_engine(await prober())
    assert (await embedded.probe()).id == "embedded"
    assert embedded.capabilities()["devices"] == ["host"]
    await embedded.aclose()
