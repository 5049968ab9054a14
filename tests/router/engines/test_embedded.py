"""The real engine with a real small model: started, asked, stopped, killed, orphaned."""

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

from router.engines.base import EngineDevice, Worker
from router.engines.embedded import EmbeddedEngine
from router.errors import LoadFailed, ShuttingDown
from tests.oracle.models import Shape, write
from tests.router.engines.conftest import Run, children, ended, ignore, spec_of
from tests.support import gguf
from tests.support.processes import is_running

pytestmark = [pytest.mark.engine, pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")]


async def ask(worker: Worker, path: str, body: Any = None, key: str | None = None) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {worker.api_key if key is None else key}"}
    method = "GET" if body is None else "POST"
    url = f"http://{worker.host}:{worker.port}{path}"
    async with aiohttp.request(method, url, json=body, headers=headers) as answer:
        return answer.status, await answer.json(content_type=None)


CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "temperature": 0}


@pytest.mark.fault("F34")
def test_a_model_is_loaded_asked_and_stopped_on_every_loop(on_loop: Run, tiny: Path) -> None:
    async def main() -> None:
        engine = EmbeddedEngine()
        progress: list[float] = []
        worker = await engine.start(spec_of(tiny), progress.append)
        assert progress == sorted(set(progress))
        assert progress[-1] == 1.0
        status, answer = await ask(worker, "/v1/chat/completions", CHAT)
        assert status == 200
        assert answer["usage"]["completion_tokens"] == 4
        assert answer["model"] == "tiny"
        assert await worker.stop()
        assert worker.exited.result().code == 0
        assert not is_running(worker.pid)
        assert await worker.stop()
        await engine.aclose()

    on_loop(main)


async def test_only_the_key_opens_and_only_the_worker_knows_it(engine: EmbeddedEngine, tiny: Path) -> None:
    worker, other = await asyncio.gather(*(engine.start(spec_of(tiny), ignore) for _ in range(2)))
    assert worker.api_key != other.api_key
    assert len(worker.api_key) >= 32
    assert (await ask(worker, "/v1/chat/completions", CHAT, other.api_key))[0] == 401
    assert (await ask(worker, "/slots", key=""))[0] == 401
    for secret in ("cmdline", "environ"):
        assert worker.api_key.encode() not in Path(f"/proc/{worker.pid}/{secret}").read_bytes()
    assert worker.api_key not in " ".join(worker.launch_command)


async def test_the_server_is_set_up_as_planned(engine: EmbeddedEngine, tiny: Path) -> None:
    worker = await engine.start(spec_of(tiny, ctx_size=1024, parallel=3), ignore)
    status, slots = await ask(worker, "/slots")
    assert status == 200
    assert [slot["n_ctx"] for slot in slots] == [1024] * 3
    async with aiohttp.request(
        "GET",
        f"http://127.0.0.1:{worker.port}/metrics",
        headers={"Authorization": f"Bearer {worker.api_key}"},
    ) as answer:
        assert answer.status == 200
        assert "llamacpp:" in await answer.text()
    async with aiohttp.request(
        "GET", f"http://127.0.0.1:{worker.port}/health", headers={"Origin": "http://evil.example"}
    ) as answer:
        assert answer.headers.get("Access-Control-Allow-Origin", "") == ""


async def test_placement_options_and_arguments_are_heeded(engine: EmbeddedEngine, tmp_path: Path) -> None:
    """On the processor, with a card that is not there: what is left of it is what the engine was told."""
    shape = Shape(layers=2, embd=64, heads=2, kv_heads=2, head_dim=32, ff=64, experts=4)
    moe = write(tmp_path / "moe.gguf", shape)
    engine.use({"card": EngineDevice("CUDA0", "cuda", "Card", 0, pin="GPU-1")})
    plain = await engine.start(spec_of(moe), ignore)
    spec = spec_of(
        moe,
        devices=("card",),
        n_gpu_layers=-1,
        n_cpu_moe=2,
        tensor_split=(1.0,),
        cache_type_k="q8_0",
        cache_type_v="q4_0",
        args=(
            "--temp",
            "0.25",
            "--top-k",
            "7",
            "--threads",
            "1",
            "--no-warmup",
            "--reasoning-format",
            "none",
        ),
    )
    placed = await engine.start(spec, ignore)
    keys = plain.buffers["CPU", "KV"]
    assert placed.buffers["CPU", "KV"] == pytest.approx(keys * (34 + 18) / 128, rel=0.1)
    status, props = await ask(placed, "/props")
    assert status == 200
    params = props["default_generation_settings"]["params"]
    assert params["temperature"] == pytest.approx(0.25)
    assert params["top_k"] == 7
    assert (await ask(placed, "/v1/chat/completions", CHAT))[0] == 200
    assert set(plain.measured) == set(placed.measured) == {"host"}


async def test_the_sizes_of_its_buffers_are_told_and_prompts_are_not(
    engine: EmbeddedEngine, tiny: Path, tmp_path: Path
) -> None:
    worker = await engine.start(spec_of(tiny), ignore)
    assert {kind for _, kind in worker.buffers} == {"model", "KV", "compute", "output"}
    assert worker.measured["host"] > tiny.stat().st_size / 2
    body = CHAT | {"messages": [{"role": "user", "content": "a-very-private-word"}]}
    assert (await ask(worker, "/v1/chat/completions", body))[0] == 200
    await engine.aclose()
    log = (tmp_path / "logs" / "tiny.log").read_text(errors="replace")
    assert "KV buffer size" in log
    assert "a-very-private-word" not in log
    assert len(log) < 40_000


async def test_an_argument_that_it_does_not_take(engine: EmbeddedEngine, tiny: Path) -> None:
    with pytest.raises(LoadFailed, match="does not take --grammar") as caught:
        await engine.start(spec_of(tiny, args=("--grammar", "root ::= x")), ignore)
    assert "llama-server" in (caught.value.hint or "")


async def test_embedding_and_reranking_models(engine: EmbeddedEngine, tmp_path: Path) -> None:
    embed = gguf.write_encoder(tmp_path / "embed.gguf")
    rank = gguf.write_encoder(tmp_path / "rank.gguf", pooling=4)
    first = await engine.start(spec_of(embed, "embedding"), ignore)
    status, answer = await ask(first, "/v1/embeddings", {"input": ["a b c", "d"]})
    assert status == 200
    assert [len(row["embedding"]) for row in answer["data"]] == [64, 64]
    second = await engine.start(spec_of(rank, "reranking"), ignore)
    status, answer = await ask(second, "/v1/rerank", {"query": "a", "documents": ["a", "b", "c"]})
    assert status == 200
    assert len(answer["results"]) == 3


@pytest.mark.fault("F14")
@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (None, "No such file or directory"),
        (gguf.header_bytes({"general.architecture": "llama"}, version=99), "version 99"),
        (b"", "could not be loaded"),
        (gguf.header_bytes({"general.architecture": "unheard-of"}), "unheard-of"),
    ],
)
async def test_a_bad_file_fails_with_its_cause(
    engine: EmbeddedEngine, tmp_path: Path, raw: bytes | None, told: str
) -> None:
    path = tmp_path / "bad.gguf"
    if raw is not None:
        path.write_bytes(raw)
    with pytest.raises(LoadFailed) as caught:
        await engine.start(spec_of(path), ignore)
    assert caught.value.code == "load_failed"
    assert told in caught.value.message
    assert "Traceback" not in caught.value.message
    assert str(tmp_path / "logs" / "tiny.log") in (caught.value.hint or "")


async def test_a_truncated_file_fails_with_its_cause(
    engine: EmbeddedEngine, tiny: Path, tmp_path: Path
) -> None:
    path = tmp_path / "short.gguf"
    path.write_bytes(tiny.read_bytes()[:-4096])
    with pytest.raises(LoadFailed, match="corrupted or incomplete"):
        await engine.start(spec_of(path), ignore)


@pytest.mark.fault("F11")
async def test_a_killed_worker_is_noticed_by_its_exit(engine: EmbeddedEngine, tiny: Path) -> None:
    worker = await engine.start(spec_of(tiny), ignore)
    os.kill(worker.pid, signal.SIGKILL)
    await asyncio.wait([worker.exited], timeout=20)
    assert worker.exited.result().code == -signal.SIGKILL
    assert any("init" in line for line in worker.exited.result().log_tail)
    again = await engine.start(spec_of(tiny), ignore)
    assert (await ask(again, "/health"))[0] == 200


async def test_a_worker_stops_at_once_in_the_middle_of_an_answer(engine: EmbeddedEngine, tiny: Path) -> None:
    worker = await engine.start(spec_of(tiny), ignore)
    body = CHAT | {"max_tokens": 1_000_000, "ignore_eos": True, "stream": True}
    headers = {"Authorization": f"Bearer {worker.api_key}"}
    async with aiohttp.request(
        "POST", f"http://127.0.0.1:{worker.port}/v1/chat/completions", json=body, headers=headers
    ) as answer:
        await answer.content.readany()
        assert await worker.stop()
    assert worker.exited.result().code == 0


def blocked_load(tmp_path: Path) -> Path:
    """A pipe that nobody writes to: opening it blocks the engine inside its load, with Python's lock held."""
    path = tmp_path / "blocked.gguf"
    os.mkfifo(path)
    return path


async def until_blocked(logs: Path) -> None:
    """Wait until the engine is about to open the file."""

    def said() -> bool:
        log = logs / "tiny.log"
        return log.exists() and b"loading model" in log.read_bytes()

    async with asyncio.timeout(60):
        while not said():  # noqa: ASYNC110  # another process writes the file
            await asyncio.sleep(0.01)


@pytest.mark.fault("F14")
async def test_a_cancelled_load_leaves_no_process(engine: EmbeddedEngine, tmp_path: Path) -> None:
    path = blocked_load(tmp_path)
    load = asyncio.create_task(engine.start(spec_of(path), ignore))
    await until_blocked(tmp_path / "logs")
    (pid,) = (worker.pid for worker in engine._workers)
    load.cancel()
    with pytest.raises(asyncio.CancelledError):
        await load
    assert not is_running(pid)


@pytest.mark.fault("F14")
async def test_a_load_without_progress_is_given_up(engine: EmbeddedEngine, tmp_path: Path) -> None:
    path = blocked_load(tmp_path)
    load = asyncio.create_task(engine.start(spec_of(path, load_stall_s=0.5), ignore))
    await until_blocked(tmp_path / "logs")
    (pid,) = (worker.pid for worker in engine._workers)
    with pytest.raises(LoadFailed, match=r"no progress for 0\.5 s"):
        await load
    assert not is_running(pid)


async def test_closing_the_engine_ends_loads_under_way(engine: EmbeddedEngine, tmp_path: Path) -> None:
    path = blocked_load(tmp_path)
    load = asyncio.create_task(engine.start(spec_of(path), ignore))
    await until_blocked(tmp_path / "logs")
    (pid,) = (worker.pid for worker in engine._workers)
    await engine.aclose()
    with pytest.raises(LoadFailed):
        await load
    assert not is_running(pid)
    with pytest.raises(ShuttingDown):
        await engine.start(spec_of(path), ignore)


ROUTER = textwrap.dedent(
    """
    import asyncio, signal, sys
    from pathlib import Path
    from router.engines.base import WorkerSpec
    from router.engines.embedded import EmbeddedEngine

    # Whoever started the tests may have had it ignored, as nohup does.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

    async def main():
        engine = EmbeddedEngine(logs_dir=Path(sys.argv[2], "logs"), state_dir=Path(sys.argv[2], "state"))
        spec = WorkerSpec("tiny", sys.argv[1], "llm", 512, 1, {}, 60.0)
        workers = [await engine.start(spec, lambda share: None) for _ in range(2)]
        print("ready", flush=True)
        await asyncio.Event().wait()

    asyncio.run(main())
    """
)


def program(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True)


@pytest.mark.fault("F08")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
async def test_no_worker_outlives_a_router_that_dies(tiny: Path, tmp_path: Path, number: int) -> None:
    state = tmp_path / "state"
    with program(ROUTER, str(tiny), str(tmp_path)) as router:
        assert router.stdout is not None
        assert await asyncio.to_thread(router.stdout.readline) == "ready\n"
        workers = children(router.pid)
        assert len(workers) == 2
        router.send_signal(number)
        for pid in workers:
            assert await ended(pid)
    # Their records are left; the next start clears them and ends nobody.
    assert len(list(state.iterdir())) == 2
    engine = EmbeddedEngine(state_dir=state)
    assert await engine.reap_leftovers() == ()
    assert list(state.iterdir()) == []


@pytest.mark.fault("F08")
async def test_no_load_under_way_outlives_a_router_that_dies(tmp_path: Path) -> None:
    path = blocked_load(tmp_path)
    with program(ROUTER, str(path), str(tmp_path)) as router:
        await until_blocked(tmp_path / "logs")
        (pid,) = children(router.pid)
        router.kill()
        assert await ended(pid)


@pytest.mark.fault("F08")
async def test_a_worker_started_by_a_router_that_is_gone_leaves(tiny: Path) -> None:
    """The router may die before the worker can ask the kernel to be told of it."""
    from router.engines import worker as program

    config = '{"parent": 1, "model": "m"}\n'
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-P", program.__file__],
        input=config.encode(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == b""


async def test_what_it_is(engine: EmbeddedEngine) -> None:
    told = engine.capabilities()
    assert told["package"] == "xllamacpp"
    assert told["version"] != "unknown"
    assert told["devices"] == ["host"]


def test_this_process_never_loads_the_engine() -> None:
    """A ggml device that is merely listed holds memory on the card for as long as its process lives."""
    code = (
        "import sys, router.engines.embedded, router.engines.simulating; sys.exit('xllamacpp' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
