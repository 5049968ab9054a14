"""Settings in the whole router: shown as they are, kept over a restart, and their file edited by others."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from router.paths import Paths
from router.settings import schema
from router.settings.schema import SettingInfo
from tests.service.live import Live, live

KEY = "a-key-of-the-users-own"
ENVIRON = {"LEMON_TRAY_API_KEY": KEY}
#: Set to what they are: another value would ask other machines, or name what is not there.
KEPT = ("engine", "update_check", "update_feed")


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _another(info: SettingInfo, folder: Path) -> Any:
    """A right value that is not the default."""
    if info.key in KEPT:
        return info.default
    match info.type:
        case "bool":
            return not info.default
        case "choice":
            return next(choice for choice in info.choices if choice != info.default)
        case "float":
            return 0.75
        case "list":
            return {"folder": [str(folder)], "source": ["ollama"], "host": ["desk.local"]}.get(
                info.items, ["http://localhost:3000"]
            )
        case "str":
            return "localhost"
    if info.key == "ollama_port":
        return _free_port()
    return (info.least or int(info.minimum or 0)) + 1


def _wrong(info: SettingInfo) -> list[Any]:
    if info.type in ("int", "size"):
        return [int(info.maximum) + 1 if info.maximum is not None else -2, "2 of them", 1.5, True, None]
    if info.type == "float":
        return [float(info.maximum or 1) + 1, "0.9", True, None]
    return {"bool": [1, "true", None], "choice": ["nonsense", 1], "list": ["x", [1], {}]}.get(
        info.type, [7, None, "a\nb"]
    )


@pytest.mark.fault("F27")
async def test_every_setting_is_shown_as_it_is_and_kept(tmp_path: Path) -> None:
    folder = tmp_path / "more"
    folder.mkdir()
    # The port is the command line's here, which goes before the file.
    infos = [info for info in schema.describe() if info.key != "port"]
    wanted = {info.key: _another(info, folder) for info in infos}
    paths = Paths.under(tmp_path)

    async def shown(app: Live) -> list[dict[str, Any]]:
        config = await app.get("/internal/config")
        return [
            {key: each[key] for key in wanted}
            for each in (config, json.loads(json.dumps(app.router.snapshot.settings)))
        ]

    async with live(tmp_path, tmp_path, environ=ENVIRON) as app:
        app.session.headers["Authorization"] = f"Bearer {KEY}"
        defaults = await app.get("/internal/config/defaults")
        for info in infos:
            before = await app.get("/internal/config")
            for wrong in _wrong(info):
                refused = await app.post("/internal/set", {info.key: wrong}, 400)
                assert refused["error"]["param"] == info.key
                assert info.key in refused["error"]["message"]
            assert await app.get("/internal/config") == before
            assert defaults[info.key] == before[info.key]
            told = await app.set(**{info.key: wanted[info.key]})
            assert told["settings"] == {info.key: wanted[info.key]}
        refused = await app.post("/internal/set", {"port": 1}, 400)
        assert refused["error"]["code"] == "setting_overridden"
        assert await shown(app) == [wanted, wanted]
    kept = json.loads(paths.config_file.read_text())
    assert {key: value for key, value in kept.items() if key in wanted} == {
        key: value for key, value in wanted.items() if key in kept
    }
    assert set(wanted) - set(kept) <= set(KEPT)
    async with live(tmp_path, tmp_path, environ=ENVIRON) as app:
        app.session.headers["Authorization"] = f"Bearer {KEY}"
        assert await shown(app) == [wanted, wanted]


def _replace(file: Path, text: str) -> None:
    """As editors save: a new file takes the old one's place."""
    new = file.with_name("config.json.new")
    new.write_text(text)
    new.replace(file)


def _write(file: Path, text: str) -> None:
    file.write_text(text)


def _twice(file: Path, text: str) -> None:
    """Saved twice within a moment, and only the second time whole."""
    file.write_text(text[:5])
    file.write_text(text)


@pytest.mark.engine
@pytest.mark.fault("F20")
async def test_the_file_is_broken_and_mended_while_a_model_answers(tmp_path: Path, tiny_models: Path) -> None:
    """Through a link, as it is where settings are kept in a repository of their own."""
    file = Paths.under(tmp_path).config_file
    file.parent.mkdir(parents=True)
    real = tmp_path / "dotfiles.json"
    real.write_text('{"max_loaded_models": 3}')
    file.symlink_to(real)
    async with live(tmp_path, tiny_models) as app:
        store = app.router._store
        store._waker.interval_s = 0.02
        store._waker.wake()
        async with app.stream("alpha", tokens=50_000) as stream:
            await stream.event()
            pids = await app.pids()

            async def holds(limit: int, problem: str = "") -> None:
                await app.until(
                    lambda s: (
                        s.pool.configured_limit == limit
                        and (any(problem in p for p in s.problems) if problem else not s.problems)
                    )
                )

            saves: list[tuple[Callable[[Path, str], None], str, int, str]] = [
                (_write, '{"max_loaded_models": 2, ', 3, "config.json"),
                (_write, '{"max_loaded_models": 2}', 2, ""),
                (_replace, "// mine\n{}", 2, "config.json"),
                (_replace, '{"max_loaded_models": 4}', 4, ""),
                (_write, '{"max_loaded_models": true, "max_modles": 1}', 4, "max_loaded_models"),
                (_write, '{"max_loaded_models": 5, "max_modles": 1}', 5, "max_modles"),
                (_twice, '{"max_loaded_models": 6}', 6, ""),
                (_write, "", 6, "config.json"),
                (_write, "{}", 1, ""),
            ]
            for save, text, limit, problem in saves:
                save(real, text)
                await holds(limit, problem)
                # What is right stays in force, and nobody is loaded anew for it.
                assert await app.pids() == pids
            assert file.is_symlink()
            assert (await app.health())["status"] == "ok"
            # It is still the same answer.
            assert await asyncio.wait_for(stream.event(), 30)
        assert app.told("admit") == ["alpha"]
