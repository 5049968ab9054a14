"""Workers that misbehave: what becomes of their load, their output and their process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from router.engines.base import OUT_OF_MEMORY, EngineDevice
from router.engines.causes import find_cause
from router.engines.embedded import EmbeddedEngine
from router.engines.process import StopLimits
from router.errors import LoadFailed
from tests.router.engines.conftest import (
    Fake,
    Run,
    children,
    ended,
    fake_command,
    ignore,
    spec_of,
)
from tests.support.processes import is_running


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    before = children(os.getpid())
    yield
    assert children(os.getpid()) <= before


async def failure(engine: EmbeddedEngine, code: str = "load_failed", **rest: Any) -> str:
    with pytest.raises(LoadFailed) as caught:
        await engine.start(spec_of(**rest), ignore)
    assert caught.value.code == code
    return caught.value.message


async def test_a_good_worker(fake: Fake) -> None:
    worker = await fake("good").start(spec_of(), ignore)
    assert is_running(worker.pid)
    assert not worker.exited.done()
    assert await worker.stop()
    assert worker.exited.result().code == 0


async def test_what_a_worker_is_told_and_how_it_lives(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LLAMA_ARG_CTX_SIZE", "LLAMA_API_KEY", "LEMON_TRAY_SECRET", "PYTHONINSPECT"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("HF_HOME", "/somewhere")
    spec = spec_of(
        "/m/ü 模型.gguf",
        ctx_size=77,
        parallel=3,
        devices=("a", "b"),
        split_mode="layer",
        tensor_split=(3.0, 1.0),
        n_gpu_layers=9,
        n_cpu_moe=2,
        cache_type_k="q8_0",
        mmproj="/m/ü proj.gguf",
        args=("--threads", "2", "--no-warmup", "--reasoning-format", "none"),
    )
    engine = fake("tells")
    engine.use(
        {
            "a": EngineDevice("CUDA1", "cuda", "Big", 0, pin="GPU-1"),
            "b": EngineDevice("CUDA0", "cuda", "Small", 0, pin="GPU-0"),
        }
    )
    worker = await engine.start(spec, ignore)
    line = next(line for line in worker.log_tail if line.startswith("REPORT "))
    told = json.loads(line.removeprefix("REPORT "))
    assert told["config"] == {
        "parent": os.getpid(),
        "host": "127.0.0.1",
        "api_key": worker.api_key,
        "model": "tiny",
        "path": "/m/ü 模型.gguf",
        "type": "llm",
        "ctx_size": 77,
        "parallel": 3,
        "n_gpu_layers": 9,
        "split_mode": "layer",
        "tensor_split": [3.0, 1.0],
        "cache_type_k": "q8_0",
        "cache_type_v": "f16",
        "overrides": r"blk\.0\.ffn_(up|down|gate|gate_up)_(ch|)exps=CPU,"
        r"blk\.1\.ffn_(up|down|gate|gate_up)_(ch|)exps=CPU",
        "mmproj": "/m/ü proj.gguf",
        "mmproj_on_gpu": True,
        "batch": 0,
        "verbosity": 4,
        "settings": [
            {"attribute": "cpuparams.n_threads", "value": 2, "enum": ""},
            {"attribute": "warmup", "value": False, "enum": ""},
            {
                "attribute": "reasoning_format",
                "value": "COMMON_REASONING_FORMAT_NONE",
                "enum": "common_reasoning_format",
            },
        ],
    }
    assert worker.api_key not in json.dumps([told["argv"], told["environ"]])
    environ = told["environ"]
    assert environ["CUDA_VISIBLE_DEVICES"] == "GPU-1,GPU-0"
    assert environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert environ["HIP_VISIBLE_DEVICES"] == "-1"
    assert environ["GGML_VK_VISIBLE_DEVICES"] == ""
    assert environ["GGML_NO_BACKTRACE"] == "1"
    assert environ["LANG"] == environ["LC_ALL"] == "C"
    assert environ["HF_HOME"] == "/somewhere"
    assert not {"LLAMA_ARG_CTX_SIZE", "LLAMA_API_KEY", "LEMON_TRAY_SECRET", "PYTHONINSPECT"} & environ.keys()
    assert told["session"] == worker.pid


@pytest.mark.fault("F14")
@pytest.mark.parametrize("code", [0, 1, 3])
async def test_an_exit_ends_the_wait_at_once(fake: Fake, code: int) -> None:
    async with asyncio.timeout(30):
        assert "I have no reason" in await failure(fake("exits", code), load_stall_s=3600)


@pytest.mark.fault("F14")
async def test_death_by_a_signal_is_told(fake: Fake) -> None:
    assert "killed, most likely by the system for want of memory" in await failure(fake("killed"))


async def test_out_of_memory_is_told_in_plain_words(fake: Fake) -> None:
    line = b"0.00.01 E ggml_backend_cuda: cudaMalloc failed: out of memory\n"
    assert "out of memory" in await failure(fake("says", 1, line.hex()), code=OUT_OF_MEMORY)


async def test_a_command_that_cannot_be_started() -> None:
    engine = EmbeddedEngine(command=["/nowhere/at/all"])
    assert "cannot be started" in await failure(engine)
    await engine.aclose()


@pytest.mark.fault("F14")
async def test_a_worker_that_never_listens_is_given_up_and_killed(fake: Fake) -> None:
    engine = fake("silent")
    assert "no progress for 0.4 s" in await failure(engine, load_stall_s=0.4)


@pytest.mark.fault("F14")
async def test_ready_on_the_wrong_port(fake: Fake) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        message = await failure(fake("wrong port", port), load_stall_s=0.4)
    assert "said that it is ready" in message


@pytest.mark.fault("F14")
async def test_ready_on_another_machine(fake: Fake) -> None:
    assert "useless address" in await failure(fake("wrong host"))


@pytest.mark.fault("F14")
async def test_ready_where_something_else_listens(fake: Fake) -> None:
    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH\r\n")
        writer.close()

    async with await asyncio.start_server(other, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert "no HTTP" in await failure(fake("no http", port), load_stall_s=0.4)


@pytest.mark.fault("F14")
async def test_unready_for_ever(fake: Fake) -> None:
    assert "health check gave 503" in await failure(fake("unready"), load_stall_s=0.4)


@pytest.mark.fault("F14")
async def test_a_slow_load_that_goes_on_is_left_alone(fake: Fake) -> None:
    told: list[float] = []
    # Twice the limit in all, an eighth of it between two steps.
    worker = await fake("steps", 16, 0.25).start(spec_of(load_stall_s=2.0), told.append)
    assert len(told) == 16
    assert told == sorted(told)
    assert told[-1] == 1.0
    assert await worker.stop()


@pytest.mark.fault("F14")
async def test_work_without_a_word_is_progress(fake: Fake) -> None:
    worker = await fake("busy", 1.5).start(spec_of(load_stall_s=0.75), ignore)
    assert await worker.stop()


@pytest.mark.fault("F14")
def test_a_flood_of_output_before_ready_is_drained_on_every_loop(on_loop: Run, tmp_path: Path) -> None:
    async def main() -> None:
        engine = EmbeddedEngine(command=fake_command("flood", 100), logs_dir=tmp_path)
        worker = await engine.start(spec_of(), ignore)
        assert sum(map(len, worker.log_tail)) <= 1 << 16
        assert await worker.stop()
        assert (
            worker.exited.result()
            .log_tail[-1]
            .endswith("\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER} the end")
        )
        await engine.aclose()
        kept = [path.stat().st_size for path in tmp_path.iterdir()]
        assert 1 <= len(kept) <= 2
        assert sum(kept) < 4 << 20

    on_loop(main)


async def test_nonsense_in_the_protocol_is_passed_over(fake: Fake) -> None:
    worker = await fake("nonsense").start(spec_of(), ignore)
    assert await worker.stop()


@pytest.mark.fault("F35")
async def test_a_worker_that_does_not_heed_its_input_is_terminated(fake: Fake) -> None:
    worker = await fake("polite", limits=StopLimits(0.1, 10.0, 10.0)).start(spec_of(), ignore)
    assert await worker.stop()
    assert worker.exited.result().code == -signal.SIGTERM


@pytest.mark.fault("F35")
def test_a_worker_that_ignores_everything_is_killed_on_every_loop(on_loop: Run) -> None:
    async def main() -> None:
        limits = StopLimits(0.1, 0.1, 10.0)
        engine = EmbeddedEngine(command=fake_command("stubborn"), limits=limits)
        worker = await engine.start(spec_of(), ignore)
        assert await worker.stop()
        assert worker.exited.result().code == -signal.SIGKILL
        assert not is_running(worker.pid)
        await engine.aclose()

    on_loop(main)


@pytest.mark.fault("F35")
async def test_stops_at_the_same_time_share_one_attempt(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = await fake("stubborn", limits=StopLimits(0.1, 0.1, 10.0)).start(spec_of(), ignore)
    sent: list[int] = []
    killpg = os.killpg

    def spy(group: int, number: int) -> None:
        sent.append(number)
        killpg(group, number)

    monkeypatch.setattr(os, "killpg", spy)
    assert await asyncio.gather(*(worker.stop() for _ in range(5))) == [True] * 5
    assert sent == [signal.SIGTERM, signal.SIGKILL]


@pytest.mark.fault("F35")
async def test_a_worker_that_cannot_be_killed_is_told_so_and_can_be_tried_again(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await fake("stubborn", limits=StopLimits(0.05, 0.05, 0.05)).start(spec_of(), ignore)
    with monkeypatch.context() as patched:
        patched.setattr(os, "killpg", lambda *_: None)
        assert await worker.stop() is False
        assert not worker.exited.done()
        assert is_running(worker.pid)
    worker._limits = StopLimits(0.05, 0.05, 20.0)
    assert await worker.stop() is True
    assert not is_running(worker.pid)


async def test_a_cancelled_stop_kills_at_once(fake: Fake) -> None:
    worker = await fake("stubborn", limits=StopLimits(3600.0, 10.0, 10.0)).start(spec_of(), ignore)
    stopping = asyncio.create_task(worker.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    await asyncio.wait([worker.exited], timeout=30)
    assert worker.exited.result().code == -signal.SIGKILL


@pytest.mark.parametrize("turns", range(8))
async def test_a_start_cancelled_at_any_moment_leaves_nothing(fake: Fake, turns: int) -> None:
    engine = fake("silent")
    load = asyncio.create_task(engine.start(spec_of(), ignore))
    for _ in range(turns):
        await asyncio.sleep(0)
    load.cancel()
    with pytest.raises(asyncio.CancelledError):
        await load
    await engine.aclose()
    assert not engine._workers


@pytest.mark.parametrize("turns", range(1, 6))
async def test_a_start_cancelled_twice_leaves_nothing(fake: Fake, turns: int) -> None:
    engine = fake("silent")
    load = asyncio.create_task(engine.start(spec_of(), ignore))
    for _ in range(turns):
        await asyncio.sleep(0)
    workers = list(engine._workers)
    for _ in range(2):
        load.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await load
    assert workers
    _, waiting = await asyncio.wait([worker.exited for worker in workers], timeout=20)
    assert not waiting


async def test_a_grandchild_that_holds_the_pipes_delays_nothing(fake: Fake) -> None:
    message = await failure(fake("leaves a child"), load_stall_s=3600)
    pid = int(message.rpartition(": ")[2].rstrip("."))
    assert is_running(pid)
    os.kill(pid, signal.SIGKILL)
    assert await ended(pid)


async def test_no_progress_is_told_after_the_end_of_a_load(fake: Fake) -> None:
    told: list[float] = []
    engine = fake("silent")
    load = asyncio.create_task(engine.start(spec_of(), told.append))
    while not (workers := list(engine._workers)):  # noqa: ASYNC110  # the task comes to it in a turn
        await asyncio.sleep(0)
    line = (
        b'cmd_child_to_router:state:{"state":"loading","payload":{"stages":["a"],"current":"a","value":%f}}\n'
    )
    workers[0].pipe_data_received(1, line % 0.4)
    assert told == [0.95 * 0.4]
    load.cancel()
    with pytest.raises(asyncio.CancelledError):
        await load
    workers[0].pipe_data_received(1, line % 0.8)
    assert told == [0.95 * 0.4]


@pytest.mark.parametrize(
    ("lines", "code", "told"),
    [
        (
            ["0.00.007.372 E gguf_init_from_file: failed to open GGUF file 'x' (No such file)"],
            1,
            "failed to open GGUF",
        ),
        (["0.00.1 E srv    load_model: failed to load model, 'x'"], 1, "failed to load model, 'x'"),
        (["0.00.1 E a_b: first", "0.00.2 E c_d: second", "RuntimeError: no"], 1, "first"),
        (["0.00.1 E f: error loading model: tensor 'x' is short."], 1, "tensor 'x' is short"),
        (["0.00.1 I fine", "ModuleNotFoundError: No module named 'xllamacpp'"], 1, "ModuleNotFoundError"),
        (
            ["0.59 E llama_init: failed to initialize the context: std::bad_alloc"],
            1,
            "out of memory (failed to init",
        ),
        (["OSError: [Errno 12] Cannot allocate memory"], 1, "out of memory (OSError"),
        ([], 0, "its process ended by itself with status 0"),
        (["bye", ""], 0, "its process ended by itself with status 0 (bye)"),
        ([], 7, "its process ended by itself with status 7"),
        ([], -9, "killed, most likely by the system"),
        ([], -11, "its process was ended by signal 11"),
        (["GGML_ASSERT(x) failed"], -6, "its process was ended by signal 6 (GGML_ASSERT(x) failed)"),
    ],
)
def test_causes_in_plain_words(lines: list[str], code: int, told: str) -> None:
    found = find_cause(lines, code)
    assert told in found.text
    assert not found.text.endswith(".")
    assert found.is_memory == found.text.startswith("out of memory")
