"""`lemon-tray provider`, with a router and without one."""

from __future__ import annotations

import asyncio
import getpass
import io
import json
import sys
from typing import Any

import pytest
from aiohttp import web

from router.cli import main
from router.paths import Paths
from router.settings.keyring import SecretStore
from tests.router.cli.answering import Noting, answering
from tests.router.providers.fakes import KEY, failing, server

VIEW = {"name": "cloud", "url": "https://api.example.com/v1", "state": "ready", "models": 2, "key": "keyring"}
URL = "https://api.example.com/v1"


@pytest.fixture(autouse=True)
def without_keyring(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> SecretStore | None:
        return None

    monkeypatch.setattr("router.settings.keyring.system_keyring", none)
    monkeypatch.delenv("LEMON_TRAY_PROVIDER_KEY", raising=False)
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))


async def run(*argv: str) -> int:
    return await asyncio.to_thread(main, argv)


class Router(Noting):
    """A router with a provider."""

    def __init__(self) -> None:
        super().__init__()
        self.view: dict[str, Any] = dict(VIEW)

    async def reply(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/v1/models":
            entries = [{"id": "alpha"}, {"id": "cloud/big", "provider": "cloud"}]
            return web.json_response({"data": entries})
        if request.method == "GET":
            return web.json_response({"providers": [self.view]})
        return web.json_response({"status": "success", "message": "", "provider": self.view})


async def test_what_is_asked_of_a_router(capsys: pytest.CaptureFixture[str]) -> None:
    router = Router()
    async with answering(router.handle, "/v1") as url:
        more = ("--model", "big", "--model", "x/y", "--type", "big=llm", "--allow-http", "--proxy")
        assert await run("provider", "add", "cloud", URL, *more, "--no-key", "--endpoint", url) == 0
        assert await run("provider", "list", "--models", "--endpoint", url) == 0
        assert await run("provider", "test", "cloud", "--model", "big", "--endpoint", url) == 0
        assert await run("provider", "remove", "cloud", "--endpoint", url) == 0
        router.view |= {"state": "refused", "problem": "wrong key"}
        assert await run("provider", "test", "cloud", "--endpoint", url) == 1
        assert await run("provider", "list", "--json", "--endpoint", url) == 0
    given = {"name": "cloud", "url": URL, "models": ["big", "x/y"], "types": {"big": "llm"}, "key": ""}
    assert router.calls[0] == ("POST /internal/providers/add", {**given, "allow_http": True, "proxy": True})
    assert [path for path, _ in router.calls[1:]] == [
        "GET /internal/providers",
        "GET /v1/models",
        "POST /internal/providers/test",
        "POST /v1/chat/completions",
        "POST /internal/providers/remove",
        "POST /internal/providers/test",
        "GET /internal/providers",
    ]
    assert router.calls[4][1]["model"] == "cloud/big"
    out = capsys.readouterr().out
    assert "cloud: ready, 2 models, https://api.example.com/v1, key in the keyring\n  cloud/big\n" in out
    assert "cloud: refused" in out
    assert "\n  wrong key\n" in out
    assert json.loads(out[out.index("{") :])["providers"][0]["state"] == "refused"


@pytest.mark.parametrize("way", ["stdin", "variable", "prompt"])
async def test_a_key_is_never_an_argument(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    router = Router()
    extra: tuple[str, ...] = ()
    if way == "stdin":
        monkeypatch.setattr(sys, "stdin", io.StringIO(f"{KEY}\n"))
        extra = ("--key-stdin",)
    elif way == "variable":
        monkeypatch.setenv("LEMON_TRAY_PROVIDER_KEY", KEY)
    else:
        terminal = io.StringIO()
        terminal.isatty = lambda: True  # type: ignore[method-assign]  # as a terminal says
        monkeypatch.setattr(sys, "stdin", terminal)
        monkeypatch.setattr(getpass, "getpass", lambda prompt: KEY)
    async with answering(router.handle, "/v1") as url:
        assert await run("provider", "add", "cloud", URL, *extra, "--endpoint", url) == 0
    assert router.calls == [("POST /internal/providers/add", {"name": "cloud", "url": URL, "key": KEY})]


async def test_a_key_goes_over_no_network_unencrypted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LEMON_TRAY_PROVIDER_KEY", KEY)
    assert await run("provider", "add", "cloud", URL, "--endpoint", "http://gpu-box:13305") == 1
    assert "unencrypted" in capsys.readouterr().err


async def test_what_is_wrong_is_told_before_a_key_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(getpass, "getpass", lambda prompt: pytest.fail("asked"))
    assert await run("provider", "add", "Cloud", URL) == 1
    assert await run("provider", "add", "cloud", "http://api.example.com/v1") == 1
    assert await run("provider", "add", "cloud", "https://me:pw@api.example.com/v1") == 1
    err = capsys.readouterr().err
    assert "--allow-http" in err
    assert "pw" not in err


async def test_without_a_router_the_file_is_worked_on(
    paths: Paths, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LEMON_TRAY_PROVIDER_KEY", KEY)
    file = paths.config_file.with_name("providers.json")
    async with server() as cloud:
        assert await run("provider", "add", "cloud", cloud.url) == 0
        assert "which only you can read" in capsys.readouterr().err
        assert file.stat().st_mode & 0o777 == 0o600
        assert await run("provider", "list", "--models") == 0
        assert "\n  cloud/big\n" in capsys.readouterr().out
        assert await run("provider", "test", "cloud") == 0
        cloud.models = failing(401, b'{"error":{"message":"no"}}')
        assert await run("provider", "test", "cloud") == 1
        assert await run("provider", "remove", "cloud") == 0
        assert await run("provider", "remove", "cloud") == 1
        captured = capsys.readouterr()
        assert "There is no provider cloud" in captured.err
        assert KEY not in captured.out + captured.err + file.read_text()


async def test_the_variable_with_the_key_is_taken_for_no_setting(
    paths: Paths, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LEMON_TRAY_PROVIDER_KEY", KEY)
    assert await run("config", "get", "port") == 0
    assert "LEMON_TRAY_PROVIDER_KEY" not in capsys.readouterr().err
