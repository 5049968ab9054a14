"""The commands about engines, with a router that runs and without one."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from router.cli import main
from router.paths import Paths
from router.service import engines as engines_module
from router.snapshot import EngineView
from tests.router.cli.answering import Noting, answering
from tests.router.engines.release_server import GitHub, good_tar

pytestmark = pytest.mark.usefixtures("paths")

ENGINES = (
    EngineView("embedded", "Embedded engine", "embedded", version="2026.10"),
    EngineView(
        "b100-vulkan",
        "llama.cpp b100 (Vulkan)",
        "build",
        version="100",
        devices=("A \x1b[2JCard",),
        in_use=True,
        size=1 << 28,
    ),
    EngineView("/opt/llama-server", "llama-server", "found", problem="it exits with 1"),
    EngineView("b101-vulkan", "llama.cpp b101 (Vulkan)", "offer", size=60 << 20),
    EngineView("rocm", "llama.cpp (ROCm)", "offer"),
)


class FakeRouter(Noting):
    def __init__(self) -> None:
        super().__init__()
        self.engines = ENGINES
        self.events: list[tuple[str, Any]] = [
            ("progress", {"bytes_downloaded": 0, "bytes_total": None, "percent": None}),
            ("progress", {"bytes_downloaded": 30 << 20, "bytes_total": 60 << 20, "percent": 50.0}),
            ("complete", {"id": None}),
        ]
        self.refusal: tuple[int, dict[str, Any]] | None = None

    async def reply(self, request: web.Request) -> web.StreamResponse:
        if self.refusal is not None:
            return web.json_response(self.refusal[1], status=self.refusal[0])
        if request.path == "/internal/engines/get":
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            for name, data in self.events:
                line = b"" if name == "error" else b"event: %s\n" % name.encode()
                await response.write(line + b"data: %s\n\n" % json.dumps(data).encode())
            return response
        if request.path in ("/internal/engines", "/internal/engines/refresh"):
            return web.json_response({"engines": msgspec.to_builtins(self.engines)})
        return web.json_response({"status": "success"})


@pytest.fixture
async def router() -> FakeRouter:
    return FakeRouter()


@pytest.fixture
async def endpoint(router: FakeRouter) -> AsyncIterator[str]:
    async with answering(router.handle, "/") as url:
        yield url


async def run(*argv: str) -> int:
    return await asyncio.to_thread(main, ("engine", *argv))


async def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in ([], ["nonsense"], ["use"], ["remove"], ["get", "a", "b"]):
        assert await run(*wrong) == 2
    assert "list, fetch, choose or delete engines" not in capsys.readouterr().out


async def test_list(endpoint: str, router: FakeRouter, capsys: pytest.CaptureFixture[str]) -> None:
    assert await run("list", "--endpoint", endpoint) == 0
    out = capsys.readouterr().out
    assert out.splitlines() == [
        "  embedded           Embedded engine 2026.10: the processor only",
        "* b100-vulkan        llama.cpp b100 (Vulkan): A \N{REPLACEMENT CHARACTER}[2JCard",
        "  /opt/llama-server  llama-server: cannot be used: it exits with 1",
        "To fetch with lemon-tray engine get ID:",
        "  b101-vulkan        llama.cpp b101 (Vulkan), 60 MiB",
        "  rocm               llama.cpp (ROCm)",
    ]
    assert router.calls == [("GET /internal/engines", None)]


async def test_list_as_json_after_asking(
    endpoint: str, router: FakeRouter, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await run("list", "--offers", "--json", "--endpoint", endpoint) == 0
    listed = json.loads(capsys.readouterr().out)["engines"]
    assert [engine["id"] for engine in listed] == [engine.id for engine in ENGINES]
    assert router.calls == [("POST /internal/engines/refresh", {})]


async def test_get(
    endpoint: str,
    router: FakeRouter,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert await run("get", "--endpoint", endpoint) == 0
    out, err = capsys.readouterr()
    assert out == "The GPU build is here\nModels are loaded with b100-vulkan\n"
    assert err == ""
    assert router.calls[0] == ("POST /internal/engines/get", {"stream": True})
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert await run("get", "vulkan", "--endpoint", endpoint) == 0
    assert router.calls[2] == ("POST /internal/engines/get", {"stream": True, "id": "vulkan"})
    err = capsys.readouterr().err
    assert "Fetching: 0\N{NO-BREAK SPACE}MiB" in err
    assert "50% of 60\N{NO-BREAK SPACE}MiB" in err
    assert err.endswith("\r\x1b[K")
    assert await run("get", "--json", "--endpoint", endpoint) == 0
    assert len(json.loads(capsys.readouterr().out)["engines"]) == len(ENGINES)


async def test_get_says_if_another_engine_is_used(
    endpoint: str, router: FakeRouter, capsys: pytest.CaptureFixture[str]
) -> None:
    router.engines = (
        msgspec.structs.replace(ENGINES[0], in_use=True),
        msgspec.structs.replace(ENGINES[1], in_use=False),
    )
    assert await run("get", "--endpoint", endpoint) == 0
    out, err = capsys.readouterr()
    assert out.endswith("Models are loaded with embedded\n")
    assert "lemon-tray engine use auto (or b100-vulkan)" in err


async def test_a_get_that_fails(
    endpoint: str, router: FakeRouter, capsys: pytest.CaptureFixture[str]
) -> None:
    error = {"error": {"message": "GitHub is full.", "code": "rate_limited", "hint": "Wait."}}
    router.events = [router.events[0], ("error", error)]
    assert await run("get", "--endpoint", endpoint) == 1
    assert capsys.readouterr().err == "lemon-tray: GitHub is full. (Wait)\n"
    router.events = router.events[:1]
    assert await run("get", "--endpoint", endpoint) == 3
    assert "ended" in capsys.readouterr().err


async def test_use_and_remove(endpoint: str, router: FakeRouter, capsys: pytest.CaptureFixture[str]) -> None:
    assert await run("use", "/opt/my server", "--endpoint", endpoint) == 0
    assert await run("remove", "b100-vulkan", "--endpoint", endpoint) == 0
    assert router.calls == [
        ("POST /internal/engines/use", {"id": "/opt/my server"}),
        ("POST /internal/engines/remove", {"id": "b100-vulkan"}),
    ]
    out = capsys.readouterr().out
    assert out == "Models are loaded with /opt/my server from now on\nThe build b100-vulkan is deleted\n"


async def test_errors_of_the_router_are_told(
    endpoint: str, router: FakeRouter, capsys: pytest.CaptureFixture[str]
) -> None:
    router.refusal = (409, {"error": {"message": "The build is in use.", "code": "engine_in_use"}})
    assert await run("remove", "b100-vulkan", "--endpoint", endpoint) == 1
    assert capsys.readouterr().err == "lemon-tray: The build is in use.\n"
    router.refusal = (200, {"unexpected": 1})
    assert await run("list", "--endpoint", endpoint) == 1
    assert "speaks another version" in capsys.readouterr().err


async def test_an_endpoint_where_nothing_answers(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["list"], ["get"], ["use", "auto"], ["remove", "b1-vulkan"]):
        assert await run(*argv, "--endpoint", "http://127.0.0.1:1") == 3
    assert capsys.readouterr().err.count("does not answer") == 4


# Without a router


@pytest.fixture
async def github(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[GitHub]:
    server = GitHub()
    server.publish(
        "b100", {f"llama-b100-bin-ubuntu-vulkan-{kind}.tar.gz": good_tar() for kind in ("x64", "arm64")}
    )
    async with TestServer(server.application(), shutdown_timeout=0.1) as running:
        monkeypatch.setattr(engines_module, "GITHUB", str(running.make_url("/api")))
        # What the machine itself has is no part of the test.
        monkeypatch.setattr(engines_module, "find_programs", lambda: ())
        yield server


@pytest.mark.fault("F39")
@pytest.mark.fault("F34")
@pytest.mark.skipif(sys.platform != "linux", reason="the program in the archive is a script")
async def test_a_build_without_a_router(
    paths: Paths, github: GitHub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(paths.cache_dir.parent / "山 月 ü 'q' $HOME ;x"))
    paths = Paths.default()
    assert await run("get", "vulkan") == 0
    out, err = capsys.readouterr()
    assert out == "The GPU build is here\nModels are loaded with b100-vulkan\n"
    assert err == f"lemon-tray: Lemon Tray is not running; working on {paths.engines_dir}\n"
    assert [path.name for path in paths.engines_dir.iterdir() if path.name[0] != "."] == ["b100-vulkan"]
    assert await run("list") == 0
    assert "* b100-vulkan  llama.cpp b100 (Vulkan) 100 (abcdef): a card\n" in capsys.readouterr().out
    assert await run("use", "b100-vulkan") == 0
    assert json.loads(paths.config_file.read_text()) == {
        "config_version": 1,
        "engine": "b100-vulkan",
    }
    assert await run("remove", "b100-vulkan") == 1
    assert "The setting engine names b100-vulkan. (Choose another first:" in capsys.readouterr().err
    assert await run("use", "auto") == 0
    assert await run("remove", "b100-vulkan") == 0
    assert await run("list", "--json") == 0
    listed = json.loads(capsys.readouterr().out.partition("deleted\n")[2])["engines"]
    assert [engine["id"] for engine in listed if engine["kind"] == "build"] == []


async def test_without_a_router_errors_are_told_once(
    github: GitHub, capsys: pytest.CaptureFixture[str]
) -> None:
    github.api_status = 429
    assert await run("get", "vulkan") == 1
    assert capsys.readouterr().err.count("GitHub answers no more questions") == 1
    assert await run("use", "/no/such/llama-server") == 1
    assert "/no/such/llama-server cannot be used: there is no such file" in capsys.readouterr().err
