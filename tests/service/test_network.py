"""The endpoint and the network: closed without a key, and true to its description in the whole router."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from router.errors import BadRequest, ConfigError
from router.web.keyfile import KeyFile
from tests.service.live import live
from tests.support.hammer import hammer

KEY = "LEMON_TRAY_API_KEY"
#: Not asked for: what never ends, and what asks other machines.
SKIPPED = (
    "/v1/events",
    "/v1/pull",
    "/internal/engines/refresh",
    "/internal/engines/get",
    "/internal/providers/add",
)


@pytest.mark.fault("F18")
@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
@pytest.mark.parametrize("key", [None, "", "  "])
async def test_a_wide_address_without_a_key_is_not_opened(tmp_path: Path, host: str, key: str | None) -> None:
    environ = {} if key is None else {KEY: key}
    with pytest.raises(ConfigError) as refused:
        async with live(tmp_path, tmp_path, settings={"host": host}, environ=environ):
            pass
    assert refused.value.code == "unauthenticated_lan"
    assert "lemon-tray key add" in (refused.value.hint or "")


@pytest.mark.fault("F18")
@pytest.mark.parametrize("of", ["environment", "file", "setting"])
async def test_a_wide_address_is_opened_with_a_key_or_if_that_is_set(tmp_path: Path, of: str) -> None:
    settings: dict[str, object] = {"host": "0.0.0.0"}
    environ = {KEY: "a-key-of-the-users-own"} if of == "environment" else {}
    if of == "file":
        KeyFile(tmp_path / "config" / "api-keys.json").add("laptop")
    elif of == "setting":
        settings["allow_unauthenticated_lan"] = True
    async with live(tmp_path, tmp_path, settings=settings, environ=environ) as app:
        assert (await app.health())["status"] == "ok"


@pytest.mark.fault("F18")
async def test_a_wide_address_is_not_set_without_a_key(tmp_path: Path) -> None:
    async with live(tmp_path, tmp_path) as app:
        for host in ("0.0.0.0", "::"):
            with pytest.raises(BadRequest) as refused:
                await app.router.set_settings({"host": host, "port": 1})
            assert refused.value.code == "unauthenticated_lan"
            assert "lemon-tray key add" in (refused.value.hint or "")
        assert (app.router.settings.host, app.router.settings.port) != ("0.0.0.0", 1)
        await app.router.set_settings({"host": "0.0.0.0", "allow_unauthenticated_lan": True})
        assert app.router.settings.host == "0.0.0.0"


@pytest.mark.fault("F18")
async def test_a_wide_address_is_set_with_a_key_that_was_just_made(tmp_path: Path) -> None:
    async with live(tmp_path, tmp_path) as app:
        KeyFile(tmp_path / "config" / "api-keys.json").add("laptop")
        await app.router.set_settings({"host": "0.0.0.0"})
        assert app.router.settings.host == "0.0.0.0"


@pytest.mark.timeout(600)  # Making requests up takes long where other tests take the processor.
@pytest.mark.parametrize("examples", [1, pytest.param(20, marks=pytest.mark.long)])
async def test_the_whole_router_answers_as_described(tmp_path: Path, examples: int) -> None:
    async with live(tmp_path, tmp_path / "none", simulate=(24 << 30, 24 << 30)) as app:
        document = await app.get("/openapi.json")
        statuses = await asyncio.to_thread(hammer, document, app.url, examples, SKIPPED)
        assert {200, 400, 404} <= set(statuses)


@pytest.mark.fault("F20")
async def test_a_path_of_a_user_who_does_not_exist_is_no_fault_of_ours(tmp_path: Path) -> None:
    unknown = "~no-such-user/models"
    async with live(tmp_path, tmp_path) as app:
        assert (await app.set(models_dirs=[unknown]))["settings"] == {"models_dirs": [unknown]}
        await app.until(lambda s: any(unknown in problem for problem in s.problems))
        refused = await app.post("/internal/engines/use", {"id": unknown}, 404)
        assert refused["error"]["message"]
