"""`lemon-tray key`, and how other commands come by a key."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from router.cli import main
from router.paths import Paths
from router.web.keyfile import KeyFile, SecretStore, system_keyring
from tests.router.cli.answering import answering

GIVEN = "a-key-from-the-environment"


@pytest.fixture(autouse=True)
def without_keys(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEMON_TRAY_API_KEY", raising=False)
    monkeypatch.setattr("router.cli.context.system_keyring", _none)


def _none() -> SecretStore | None:
    return None


async def run(*argv: str) -> int:
    return await asyncio.to_thread(main, argv)


async def test_a_key_is_made_listed_shown_and_removed(
    paths: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await run("key", "list") == 0
    assert "There is no key" in capsys.readouterr().err
    assert await run("key", "add", "laptop") == 0
    secret = capsys.readouterr().out.strip()
    assert secret.startswith("lt-")
    assert await run("key", "add", "laptop") == 1
    assert "already" in capsys.readouterr().err
    assert await run("key", "list", "--json") == 0
    out = capsys.readouterr().out
    assert [entry["name"] for entry in json.loads(out)] == ["laptop"]
    assert secret not in out
    assert await run("key", "list") == 0
    assert secret not in capsys.readouterr().out
    assert await run("key", "show", "laptop") == 0
    assert capsys.readouterr().out.strip() == secret
    assert await run("key", "remove", "laptop") == 0
    assert await run("key", "show", "laptop") == 1
    file = paths.config_file.with_name("api-keys.json")
    assert secret not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600


class Guarded:
    """A router that takes one key."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.given: list[str | None] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        given = request.headers.get("Authorization")
        self.given.append(given)
        if given != f"Bearer {self.key}":
            error = {"message": "This endpoint wants an API key.", "code": "missing_api_key", "hint": None}
            return web.json_response({"error": error}, status=401)
        return web.json_response({"port": 1})


@pytest.fixture
async def guarded() -> AsyncIterator[tuple[Guarded, str]]:
    router = Guarded(GIVEN)
    async with answering(router.handle, "/v1") as url:
        yield router, url


async def test_a_key_from_the_environment_is_sent_anywhere(
    guarded: tuple[Guarded, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    router, url = guarded
    monkeypatch.setenv("LEMON_TRAY_API_KEY", GIVEN)
    assert await run("config", "get", "port", "--endpoint", url) == 0
    assert router.given == [f"Bearer {GIVEN}"]


async def test_a_key_of_this_machine_is_sent_only_to_its_own_router(
    guarded: tuple[Guarded, str], paths: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    router, url = guarded
    router.key = KeyFile(paths.config_file.with_name("api-keys.json")).add("laptop")[1]
    assert await run("config", "get", "port", "--endpoint", url) == 1
    assert router.given == [None]
    assert "wants an API key" in capsys.readouterr().err
    port = url.rpartition(":")[2].partition("/")[0]
    paths.config_file.write_text(json.dumps({"port": int(port)}))
    assert await run("unload") == 0
    assert router.given == [None, None, f"Bearer {router.key}"]


def test_a_keyring_is_found_or_not_without_a_fault() -> None:
    found = system_keyring()
    assert found is None or callable(found.set_password)
