"""The commands that ask or steer a router, against a small one."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from router.catalog.options import CTX_AUTO, LoadOptions, check_options
from router.cli import main
from router.cli.main import _sizes
from router.cli.models import render_models
from router.cli.status import render
from router.instance import InstanceLock
from router.paths import Paths
from router.snapshot import (
    DeviceState,
    DeviceView,
    DownloadView,
    FeedEntry,
    ModelView,
    PolicyView,
    PoolView,
    ProviderView,
    QueueView,
    ResidentState,
    ResidentView,
    Severity,
    Snapshot,
    Status,
)
from router.units import GIB
from router.version import __version__
from tests.router.cli.answering import Noting, answering

pytestmark = pytest.mark.usefixtures("paths")

SNAPSHOT = Snapshot(
    generation=7,
    version="9.9.9",
    status=Status.WARNING,
    endpoint="http://127.0.0.1:13305/v1",
    uptime_s=1.0,
    settings={},
    pool=PoolView(True, 1, 3, 3, 2, 1, False),
    residents=(
        ResidentView(
            "m\x1b[2J", "llm", ResidentState.LOADING, 9 * GIB, {}, (), True, 1, 2, 1, 0.0, progress=0.43
        ),
    ),
    devices=(
        DeviceView("g", "GPU 0", "CUDA0", "gpu", 24 * GIB, 12 * GIB, 9 * GIB, 0, 0, 0, DeviceState.OK),
        DeviceView("h", "GPU 1", "CUDA1", "gpu", None, None, 0, 0, 0, 0, DeviceState.UNKNOWN, "driver hangs"),
    ),
    policies=(
        PolicyView("triage", True, ("a", "b"), 2, "a", ("b",)),
        PolicyView("old", False, ("a",), 1, "a"),
    ),
    queue=QueueView(2, 10, {"m": 2}),
    downloads=(DownloadView("demo", "running", GIB, 2 * GIB),),
)


class FakeRouter(Noting):
    def __init__(self) -> None:
        super().__init__()
        self.answer: web.Response | None = None

    async def reply(self, request: web.Request) -> web.StreamResponse:
        if self.answer is not None:
            return self.answer
        if request.path == "/v1/events":
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            await response.write(b"retry: 1000\n\n: hello\n\nevent: feed\ndata: {}\n\n")
            for generation in (7, 8):
                shown = msgspec.structs.replace(SNAPSHOT, generation=generation, version=f"9.9.{generation}")
                await response.write(b"event: snapshot\ndata: " + msgspec.json.encode(shown) + b"\n\n")
            return response
        if request.path == "/internal/config":
            return web.json_response({"port": 1, "host": "x", "models_dirs": ["/ü"]})
        return web.json_response({"status": "ok"})


@pytest.fixture
async def router() -> FakeRouter:
    return FakeRouter()


@pytest.fixture
async def endpoint(router: FakeRouter) -> AsyncIterator[str]:
    async with answering(router.handle, "/v1") as url:
        yield url


async def run(*argv: str) -> int:
    return await asyncio.to_thread(main, argv)


async def test_version_and_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert await run("--version") == 0
    assert capsys.readouterr().out == f"Lemon Tray {__version__}\n"
    for wrong in (
        [],
        ["nonsense"],
        ["config"],
        ["config", "set", "port"],
        ["serve", "--port", "x"],
        ["load"],
    ):
        assert await run(*wrong) == 2
    assert "expected a whole number from 1 to 65535" in capsys.readouterr().err


async def test_status_shows_the_snapshot(endpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert await run("status", "--endpoint", endpoint) == 0
    out = capsys.readouterr().out
    assert "Lemon Tray 9.9.7: warning, http://127.0.0.1:13305/v1" in out
    assert out.count("Lemon Tray") == 1


async def test_status_goes_on_until_the_router_ends(
    endpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await run("status", "--watch", "--endpoint", endpoint) == 3
    out, err = capsys.readouterr()
    assert out.index("Lemon Tray 9.9.7") < out.index("Lemon Tray 9.9.8")
    assert err.startswith("lemon-tray: The connection to http://127.0.0.1:")


async def test_status_as_json(endpoint: str, router: FakeRouter, capsys: pytest.CaptureFixture[str]) -> None:
    assert await run("status", "--json", "--endpoint", endpoint) == 0
    assert json.loads(capsys.readouterr().out) == {"status": "ok"}
    assert router.calls == [("GET /v1/health", None)]


async def test_models_are_listed(
    endpoint: str, router: FakeRouter, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await run("models", "--endpoint", endpoint) == 0
    assert capsys.readouterr().out.splitlines() == [
        "name    type    file  context  takes",
        "triage  policy                        one of a, b (not found)",
        "old     policy                        off; one of a",
    ]
    assert await run("models", "--json", "--endpoint", endpoint) == 0
    assert json.loads(capsys.readouterr().out) == {"status": "ok"}
    assert router.calls[-1] == ("GET /v1/models", None)


def test_models_are_shown_with_what_they_take_and_why_they_do_not_work() -> None:
    models = (
        ModelView("m\x1b[2J", "llm", 9 * GIB, 8192, needs=10 * GIB, fits=True),
        ModelView("half", "llm", 6, 0, broken="it ends inside its header"),
        ModelView("e", "embedding", 94 << 20, 512, needs=429 << 20, fits=False),
    )
    providers = (ProviderView("far", "https://far/v1", "ready"),)
    shown = render_models(msgspec.structs.replace(SNAPSHOT, models=models, providers=providers))
    assert shown.splitlines() == [
        "name    type          file  context     takes",
        "m\ufffd[2J   llm        9.0 GiB     8192  10.0 GiB  loading, pinned",
        "half    llm          0 MiB                     cannot be loaded: it ends inside its header",
        "e       embedding   94 MiB      512   429 MiB  does not fit",
        "triage  policy                                 one of a, b (not found)",
        "old     policy                                 off; one of a",
        "Those of providers: lemon-tray provider list --models",
    ]
    assert "lemon-tray pull demo" in render_models(msgspec.structs.replace(SNAPSHOT, policies=()))


def test_the_text_names_everything_and_steers_no_terminal() -> None:
    text = render(SNAPSHOT)
    assert "2 loaded and 1 loading, room for 3 (max_loaded_models 1, policies name 3, autosize on)" in text
    assert "lemon-tray config set llm_pool_autosize=false" in text
    assert "GPU 1: unknown (driver hangs)" in text
    assert "m\ufffd[2J: loading 43%, 9.0 GiB, 1 in use, 2 waiting, pinned" in text
    assert "triage: a, b; not found: b" in text
    assert "old (off): a" in text
    assert "demo: running 1.0 GiB of 2.0 GiB" in text
    assert "Waiting requests: 2 (m 2)" in text
    assert "\x1b" not in text


def test_the_text_says_what_is_wrong() -> None:
    failed = FeedEntry(1, 0.0, "load_failed", "m was killed.", Severity.ERROR, "m")
    text = render(
        msgspec.structs.replace(
            SNAPSHOT,
            pool=msgspec.structs.replace(SNAPSHOT.pool, room_for=2),
            devices=(msgspec.structs.replace(SNAPSHOT.devices[0], claimed=GIB),),
            problems=("config.json: port is wrong.",),
            feed=(failed,),
            downloads=(DownloadView("demo", "failed", 0, None, "There is no network."),),
        )
    )
    assert "Problems:\n  config.json: port is wrong.\n  m was killed.\n" in text
    assert "policies name 3, memory for 2 of these" in text
    assert "kept for waiting loads 1.0 GiB" in text
    assert "demo: failed: There is no network." in text


async def test_load_and_unload(endpoint: str, router: FakeRouter, capsys: pytest.CaptureFixture[str]) -> None:
    at = ("--endpoint", endpoint)
    assert await run("load", "m", "--ctx-size", "2048", "--pin", *at) == 0
    assert await run("load", "m", "--parallel", "2", *at) == 0
    assert await run("unload", "m", "--force", *at) == 0
    assert await run("unload", "--no-wait", *at) == 0
    assert router.calls == [
        ("POST /v1/load", {"model_name": "m", "ctx_size": 2048, "pinned": True}),
        ("POST /v1/load", {"model_name": "m", "parallel": 2}),
        ("POST /v1/unload", {"model_name": "m", "wait": True, "force": True}),
        ("POST /v1/unload", {"wait": False, "force": False}),
    ]
    assert capsys.readouterr().out.splitlines() == [
        "m is loaded",
        "m is loaded",
        "m is unloaded",
        "everything is being unloaded",
    ]


PLAN = {
    "model": "m",
    "verdict": "evicts",
    "reason": "other would be unloaded first.",
    "victims": ["other"],
    "needed": 6 * GIB,
    "devices": [
        {
            "id": "g",
            "label": "CUDA0",
            "needed": 5 * GIB,
            "available": 2 * GIB,
            "possible": 20 * GIB,
            "total": 24 * GIB,
            "free": 3 * GIB,
            "charged": 18 * GIB,
            "reserved": 0,
            "claimed": 0,
            "others": 3 * GIB,
            "margin": GIB // 2,
            "parts": {"weights": 4 * GIB, "kv_cache": GIB // 2, "compute": GIB // 2, "projector": 0},
        },
        {"id": "host", "label": "CPU", "needed": GIB, "available": None, "parts": {}},
    ],
    "estimate": True,
    "layers": {"on_gpus": 33, "of": 33},
    "options": {"ctx_size": 8192},
}


async def test_a_plan_is_a_table(
    endpoint: str, router: FakeRouter, capsys: pytest.CaptureFixture[str]
) -> None:
    router.answer = web.json_response(PLAN)
    assert await run("plan", "m", "--device", "CUDA0", "--ctx-size", "8192", "--endpoint", endpoint) == 0
    assert router.calls == [("POST /v1/plan", {"model": "m", "device": "CUDA0", "ctx_size": 8192})]
    told = [line.replace("\N{NO-BREAK SPACE}", " ") for line in capsys.readouterr().out.splitlines()]
    assert told == [
        "m fits when others have gone. (context 8192, 33 of 33 layers on GPUs)",
        "other would be unloaded first.",
        "",
        "        needed  available     total    models  loading     kept   others   margin",
        "CUDA0  5.0 GiB    2.0 GiB  24.0 GiB  18.0 GiB  0.0 GiB  0.0 GiB  3.0 GiB  0.5 GiB",
        "  weights 4.0 GiB, KV cache 0.5 GiB, compute 0.5 GiB",
        "CPU    1.0 GiB          ?         ?         ?        ?        ?        ?        ?",
        "",
        "Weights and cache are an upper bound here.",
    ]


async def test_a_plan_that_is_refused_has_a_status_of_its_own(
    endpoint: str, router: FakeRouter, capsys: pytest.CaptureFixture[str]
) -> None:
    router.answer = web.json_response({**PLAN, "verdict": "refused", "reason": "m does not fit."})
    assert await run("plan", "m", "--json", "--endpoint", endpoint) == 1
    assert json.loads(capsys.readouterr().out)["verdict"] == "refused"


async def test_an_error_is_printed_with_its_hint(
    endpoint: str, router: FakeRouter, capsys: pytest.CaptureFixture[str]
) -> None:
    error = {"message": "No room.", "code": "slots_pinned_error", "hint": "Unpin one.", "type": "x"}
    router.answer = web.json_response({"error": error}, status=409)
    assert await run("load", "m", "--endpoint", endpoint) == 1
    assert capsys.readouterr().err == "lemon-tray: No room. (Unpin one)\n"


async def test_another_program_at_the_port_is_suspected(
    endpoint: str, router: FakeRouter, capsys: pytest.CaptureFixture[str]
) -> None:
    router.answer = web.Response(status=404, text="<html>")
    assert await run("status", "--json", "--endpoint", endpoint) == 1
    assert "another program may hold that port" in capsys.readouterr().err


async def test_no_port_is_named_where_any_free_one_is_set(
    paths: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await run("config", "set", "port=0") == 0
    capsys.readouterr()
    assert await run("status") == 3
    assert capsys.readouterr().err == (
        "lemon-tray: Lemon Tray is not running. (start it with: lemon-tray serve)\n"
    )


async def test_one_that_is_starting_is_waited_for(
    endpoint: str, paths: Paths, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = InstanceLock(paths.state_dir)
    assert lock.acquire()
    monkeypatch.setattr("router.cli.context.time.sleep", lambda _s: lock.set_endpoint(endpoint))
    assert await run("status") == 0
    assert "Lemon Tray 9.9.7" in capsys.readouterr().out
    lock.release()


async def test_nothing_running_is_exit_status_three(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["status"], ["load", "m"], ["unload"]):
        assert await run(*command, "--endpoint", "127.0.0.1:1") == 3
    err = capsys.readouterr().err
    assert "Lemon Tray does not answer at http://127.0.0.1:1" in err
    assert "(start it with: lemon-tray serve)" in err


async def test_the_endpoint_comes_from_the_running_instance(
    endpoint: str, router: FakeRouter, paths: Paths
) -> None:
    lock = InstanceLock(paths.state_dir)
    assert lock.acquire()
    lock.set_endpoint(endpoint)
    try:
        assert await run("load", "m") == 0
    finally:
        lock.release()
    assert router.calls == [("POST /v1/load", {"model_name": "m"})]


async def test_the_endpoint_comes_from_the_settings_else(
    endpoint: str, router: FakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEMON_TRAY_HOST", "0.0.0.0")
    monkeypatch.setenv("LEMON_TRAY_PORT", endpoint.removesuffix("/v1").rpartition(":")[2])
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert await run("unload") == 0
    assert len(router.calls) == 1


async def test_config_of_a_running_router(
    endpoint: str, router: FakeRouter, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ("--endpoint", endpoint)
    assert await run("config", "get", *at) == 0
    assert capsys.readouterr().out == 'port = 1\nhost = x\nmodels_dirs = ["/ü"]\n'
    assert await run("config", "get", "port", *at) == 0
    assert capsys.readouterr().out == "1\n"
    assert await run("config", "set", "max_loaded_models=-1", "auto_evict=on", *at) == 0
    assert capsys.readouterr().out == "max_loaded_models = -1\nauto_evict = true\n"
    assert router.calls[-1] == ("POST /internal/set", {"max_loaded_models": -1, "auto_evict": True})


async def test_load_takes_every_option_of_a_model(
    endpoint: str, router: FakeRouter, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (
        "--type=llm --device=CUDA0,CUDA1 --split-mode=layer --tensor-split=3,1 --n-gpu-layers=all"
        " --n-cpu-moe=2 --ctx-size=auto --parallel=2 --cache-type-k=q8_0 --cache-type-v=f16"
        " --mmproj=none --keep-alive=-1 --evict-weight=2 --save"
    )
    arguments = (*words.split(), "--llamacpp-args=--threads 8")
    assert await run("load", "m", *arguments, "--endpoint", endpoint) == 0
    body = router.calls[-1][1]
    assert body.pop("model_name") == "m"
    assert body.pop("save_options") is True
    assert check_options(body) == LoadOptions(
        type="llm",
        device=("CUDA0", "CUDA1"),
        split_mode="layer",
        tensor_split=(3.0, 1.0),
        n_gpu_layers=-1,
        n_cpu_moe=2,
        ctx_size=CTX_AUTO,
        parallel=2,
        cache_type_k="q8_0",
        cache_type_v="f16",
        mmproj="",
        keep_alive=-1.0,
        evict_weight=2.0,
        llamacpp_args=("--threads", "8"),
    )
    assert capsys.readouterr().out == "m is loaded, and its options are saved\n"
    assert await run("load", "m", "--main-gpu=1", "--mmproj=p.gguf", "--endpoint", endpoint) == 0
    assert router.calls[-1][1] == {"model_name": "m", "main_gpu": 1, "mmproj": str(Path("p.gguf").absolute())}


@pytest.mark.parametrize(
    ("switch", "words"),
    [
        ("--parallel=0", "parallel: expected a whole number from 1 to 64"),
        ("--split-mode=row", "row is not offered"),
        ("--tensor-split=1,0", "name the others in device"),
        ("--keep-alive=soon", "24h"),
        ("--ctx-size=8k", "or auto"),
    ],
)
async def test_a_wrong_option_of_a_model_is_refused_with_the_expected_form(
    switch: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await run("load", "m", switch) == 2
    assert words in capsys.readouterr().err


@pytest.mark.fault("F36")
async def test_sizes_are_written_and_read_with_binary_units(
    paths: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await run("config", "get", "vram_margin") == 0
    assert capsys.readouterr().out == "512 MiB\n"
    assert await run("config", "set", "vram_margin=1GiB", "vram_cap=1.5 GiB", "worker_overhead=0") == 0
    assert capsys.readouterr().out == "vram_margin = 1 GiB\nvram_cap = 1536 MiB\nworker_overhead = 0\n"
    # Larger than any card: a wish that admission answers, not a mistake of form.
    assert await run("config", "set", "vram_margin=2TiB") == 0
    capsys.readouterr()
    for wrong, words in (
        ("2GB", "use 2GiB"),
        ("1.5G", "use 1.5GiB"),
        ("-1GiB", "a size such as 512MiB or 2GiB"),
        ("-5", "a size such as 512MiB or 2GiB"),
        ("much", "a size such as"),
    ):
        assert await run("config", "set", f"vram_margin={wrong}") == 1
        error = capsys.readouterr().err
        assert "vram_margin: expected a size" in error
        assert words in error
    assert json.loads(paths.config_file.read_text())["vram_margin"] == 2 << 40


async def test_config_without_a_router_is_the_file_and_says_so(
    paths: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await run("config", "set", "max_loaded_models=3", "models_dirs=/a:/b") == 0
    out, err = capsys.readouterr()
    assert out == 'max_loaded_models = 3\nmodels_dirs = ["/a", "/b"]\n'
    assert err == f"lemon-tray: Lemon Tray is not running; written to {paths.config_file}\n"
    assert json.loads(paths.config_file.read_text()) == {
        "config_version": 1,
        "max_loaded_models": 3,
        "models_dirs": ["/a", "/b"],
    }
    assert await run("config", "get", "max_loaded_models") == 0
    out, err = capsys.readouterr()
    assert out == "3\n"
    assert err == f"lemon-tray: Lemon Tray is not running; read from {paths.config_file}\n"


async def test_wrong_settings_are_refused_before_anything_is_written(
    paths: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await run("config", "set", "port=1", "max_loaded_models=0") == 1
    assert await run("config", "set", "prot=1") == 1
    assert await run("config", "get", "prot") == 1
    err = capsys.readouterr().err
    assert "max_loaded_models: expected a whole number from 1 to 1024, or -1 for no limit; got 0" in err
    assert err.count("did you mean port?") == 2
    assert not paths.config_file.exists()


async def test_a_corrupt_file_is_told_and_not_moved_by_who_only_looks(
    paths: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    paths.config_file.parent.mkdir(parents=True)
    paths.config_file.write_text("{oops")
    assert await run("config", "get", "port") == 0
    assert "defaults are used" in capsys.readouterr().err
    assert paths.config_file.read_text() == "{oops"
    assert await run("config", "set", "port=5") == 0
    assert "was set aside as config.json.corrupt-" in capsys.readouterr().err
    assert json.loads(paths.config_file.read_text()) == {"config_version": 1, "port": 5}


def test_sizes_of_simulated_devices() -> None:
    assert _sizes("24GiB, 512MiB") == (24 << 30, 512 << 20)
    assert _sizes("1.5gib,1000") == (3 << 29, 1000)
    for wrong in ("", "0", "24 apples", "24GiB,", "-1GiB", "24G"):
        with pytest.raises(argparse.ArgumentTypeError, match=r"iB|0 bytes"):
            _sizes(wrong)
