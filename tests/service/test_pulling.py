"""Models that are pulled, used and deleted: the whole router, a hub on this machine, real workers."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from router.catalog.hub_api import TOKEN_NAME
from router.catalog.hub_cache import INCOMPLETE
from router.cli.main import main
from router.errors import BadRequest, Conflict, Forbidden, NotFound, RouterError
from router.paths import Paths
from router.service import Router
from router.settings import keyring as keyrings
from router.snapshot import Snapshot, SuggestionView
from tests.service.live import PATIENCE_S, Live
from tests.support import gguf
from tests.support.hub import COMMIT, LocalHub, local_hub, sha256

REPO = "acme/Tiny-GGUF"
NAME = f"{REPO}:F16"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    gguf.write_model(path, seed=7, context=4096)
    return path.read_bytes()


@pytest.fixture
async def hub(tiny: bytes) -> AsyncIterator[LocalHub]:
    async with local_hub({REPO: {"Tiny-F16.gguf": tiny}}) as hub:
        yield hub


@asynccontextmanager
async def pulling(tmp_path: Path, hub: LocalHub, **settings: Any) -> AsyncIterator[Live]:
    """A router that knows this hub. At its end no download is left; the hub's own tasks may be."""
    paths = Paths.under(tmp_path / "home")
    paths.ensure()
    paths.config_file.write_text(json.dumps(settings))
    environ = {**hub.environ, "HF_HUB_CACHE": str(tmp_path / "hub")}
    router = Router(paths, overrides={"port": 0}, models_dirs=(tmp_path / "models",), environ=environ)
    (tmp_path / "models").mkdir(exist_ok=True)
    session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE_S))
    try:
        await router.start()
        yield Live(session, router)
    finally:
        await router.stop()
        await session.close()
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("download")]


async def in_time(awaited: Any) -> Any:
    async with asyncio.timeout(PATIENCE_S):
        return await awaited


@pytest.mark.engine
async def test_a_model_is_pulled_used_and_deleted_and_never_while_it_is_in_use(
    tmp_path: Path, hub: LocalHub, tiny: bytes
) -> None:
    async with pulling(tmp_path, hub) as router:
        answer = await router.post("/v1/pull", {"model_name": f"hf.co/{REPO}:f16"})
        assert answer["model_name"] == NAME
        assert [m["id"] for m in (await router.get("/v1/models"))["data"]] == [NAME]
        assert (await router.chat(NAME))["model"] == NAME
        # Clients ask for it by the name that they had it pulled by.
        assert (await router.chat(f"hf.co/{REPO}:f16"))["model"] == NAME
        asked = len(hub.asked)
        await router.post("/api/pull", {"model": f"hf.co/{REPO}:f16", "stream": False})
        assert len(hub.asked) == asked
        # Which one is meant without its quantization, the hub has to say.
        await router.post("/api/pull", {"model": f"hf.co/{REPO}", "stream": False})
        assert len(hub.asked) == asked + 1
        shown = await router.post("/api/show", {"model": f"hf.co/{REPO}:latest"})
        assert "completion" in shown["capabilities"]
        refused = await router.post("/v1/delete", {"model_name": NAME}, status=409)
        assert refused["error"]["code"] == "model_in_use"
        # What is there already may be asked for again, also while it is loaded.
        await router.post("/v1/pull", {"model_name": REPO})
        assert len(hub.files_asked) == 1
        await router.post("/v1/unload", {"model_name": f"hf.co/{REPO}"})
        router.router.pin(NAME, True)
        assert (await router.post("/v1/delete", {"model_name": NAME}, status=409))["error"]["hint"]
        router.router.pin(NAME, False)
        plan = await router.router.plan_deletion(NAME)
        assert (plan.model, plan.freed) == (NAME, len(tiny))
        assert [Path(file).name for file in plan.files] == ["Tiny-F16.gguf"]
        assert [m.foreign for m in router.router.snapshot.models] == [""]
        assert (await router.post("/v1/delete", {"model_name": NAME}))["bytes_freed"] == len(tiny)
        assert (await router.get("/v1/models"))["data"] == []
        assert not list((tmp_path / "hub").rglob("*F16*"))
        await router.post("/v1/delete", {"model_name": NAME}, status=404)


async def test_who_asks_again_joins_and_both_are_told(tmp_path: Path, hub: LocalHub, tiny: bytes) -> None:
    hub.stall_at = 10
    async with pulling(tmp_path, hub) as router:
        first = await router.router.pull(REPO)
        second = await router.router.pull(f"https://huggingface.co/{REPO}".upper().replace("HTTPS", "https"))
        assert second is first
        told = asyncio.ensure_future(_collect(first))
        await in_time(hub.stalled.wait())
        views = router.router.snapshot.downloads
        hub.go_on.set()
        assert await in_time(asyncio.gather(first.wait(), second.wait())) == [NAME, NAME]
        progress = await told
        assert progress[0].stage == "resolving"
        assert (progress[-1].stage, progress[-1].done, progress[-1].total) == (
            "placing",
            len(tiny),
            len(tiny),
        )
        assert progress[-2].sha256 == sha256(tiny)
        assert len(hub.files_asked) == 1
        assert [view.kind for view in views] == ["model"]
        snapshot = await router.until(lambda s: s.downloads and s.downloads[0].state == "done")
        assert [m.name for m in snapshot.models] == [NAME]


async def _collect(pull: Any) -> list[Any]:
    return [progress async for progress in pull]


async def test_a_pull_is_cancelled_and_taken_up_again(tmp_path: Path, hub: LocalHub) -> None:
    hub.stall_at = 10
    async with pulling(tmp_path, hub) as router:
        pull = await router.router.pull(REPO)
        await in_time(hub.stalled.wait())
        with pytest.raises(NotFound):
            await router.router.cancel_pull("acme/Other")
        await router.post("/v1/pull/cancel", {"model_name": f"hf.co/{REPO}"})
        with pytest.raises(RouterError) as caught:
            await in_time(pull.wait())
        assert caught.value.code == "cancelled"
        await router.until(lambda s: s.downloads[0].state == "cancelled")
        assert (await router.get("/v1/models"))["data"] == []
        hub.go_on.set()
        assert await in_time((await router.router.pull(REPO)).wait()) == NAME


async def test_a_pull_that_is_cancelled_before_it_began_has_ended(tmp_path: Path, hub: LocalHub) -> None:
    async with pulling(tmp_path, hub) as router:
        pull = await router.router.pull(REPO)
        await router.router.cancel_pull(REPO)
        with pytest.raises(RouterError) as caught:
            await in_time(pull.wait())
        assert caught.value.code == "cancelled"
        assert await in_time((await router.router.pull(REPO)).wait()) == NAME


async def test_stopping_the_router_ends_a_pull(tmp_path: Path, hub: LocalHub) -> None:
    hub.stall_at = 10
    async with pulling(tmp_path, hub) as router:
        pull = await router.router.pull(REPO)
        await in_time(hub.stalled.wait())
    with pytest.raises(RouterError):
        await in_time(pull.wait())


async def test_a_stream_tells_progress_and_the_name(tmp_path: Path, hub: LocalHub) -> None:
    async with pulling(tmp_path, hub) as router:
        body = {"model_name": REPO, "stream": True}
        async with router.session.post(f"{router.url}/v1/pull", json=body) as answer:
            text = (await answer.read()).decode()
        events = [block.split("\n") for block in text.strip().split("\n\n")]
        assert {event[0] for event in events[:-1]} == {"event: progress"}
        assert events[-1][0] == "event: complete"
        assert json.loads(events[-1][1].removeprefix("data: ")) == {"model_name": NAME}
        body["model_name"] = "acme/Nothing"
        async with router.session.post(f"{router.url}/v1/pull", json=body) as answer:
            assert b"no_such_repository" in await answer.read()
        assert any(d.state == "failed" for d in router.router.snapshot.downloads)


async def test_what_is_no_model_is_said_and_not_taken_for_one(tmp_path: Path, hub: LocalHub) -> None:
    hub.repos[REPO] = {"Tiny-F16.gguf": b"<html>log in</html>" * 10}
    async with pulling(tmp_path, hub) as router:
        with pytest.raises(RouterError, match="cannot be used") as caught:
            await in_time((await router.router.pull(REPO)).wait())
        assert caught.value.code == "unusable"
        assert (await router.get("/v1/models"))["data"] == []
        # It can be deleted by its name all the same.
        await router.post("/v1/delete", {"model_name": NAME})


async def test_a_suggestion_is_sized_by_what_the_hub_tells_before_anything_is_fetched(
    tmp_path: Path, hub: LocalHub, tiny: bytes
) -> None:
    name = "Qwen/Qwen3-0.6B-GGUF:Q8_0"
    hub.repos["Qwen/Qwen3-0.6B-GGUF"] = {"Qwen3-0.6B-Q8_0.gguf": tiny}
    hub.told["Qwen3-0.6B-Q8_0.gguf"] = {"size": 1 << 50}

    def suggested(snapshot: Snapshot) -> SuggestionView | None:
        found = next((each for each in snapshot.suggestions if each.name == name), None)
        return found if found is not None and found.needs else None

    async with pulling(tmp_path, hub) as router:
        first = suggested(await router.until(suggested))
        assert first is not None
        assert first.fits
        refused = await router.post("/v1/pull", {"model_name": name.replace("Q8", "q8")}, status=507)
        assert refused["error"]["code"] == "disk_full"
        assert hub.files_asked == []

        def is_learned(snapshot: Snapshot) -> bool:
            view = suggested(snapshot)
            told = [event for event in snapshot.feed if event.code == "model_too_large"]
            return view is not None and view.fits is False and view.size_bytes == 1 << 50 and bool(told)

        await router.until(is_learned)
        # One that is smaller than its own tables could be is no trouble either.
        hub.told["Qwen3-0.6B-Q8_0.gguf"] = {"size": len(tiny)}
        answer = await router.post("/v1/pull", {"model_name": name})
        assert answer["model_name"] == name
        await router.until(lambda s: (view := suggested(s)) and view.size_bytes == len(tiny) and view.fits)


async def test_names_and_settings_that_do_not_allow_it(tmp_path: Path, hub: LocalHub) -> None:
    (tmp_path / "models").mkdir()
    gguf.write_model(tmp_path / "models" / "mine.gguf", seed=1)
    async with pulling(tmp_path, hub, model_sources=["ollama"]) as router:
        with pytest.raises(BadRequest):
            await router.router.pull("llama3.2")
        with pytest.raises(Conflict, match="model_sources"):
            await router.router.pull(REPO)
        for ask in (router.router.delete, router.router.plan_deletion):
            with pytest.raises(Forbidden, match="is not a file that Lemon Tray keeps"):
                await ask("mine")
        (mine,) = router.router.snapshot.models
        assert "is not a file that Lemon Tray keeps" in mine.foreign
        assert not hub.asked


async def test_a_model_is_not_deleted_while_another_of_its_repository_comes(
    tmp_path: Path, hub: LocalHub, tiny: bytes
) -> None:
    async with pulling(tmp_path, hub) as router:
        await in_time((await router.router.pull(REPO)).wait())
        hub.repos[REPO]["Tiny-Q8_0.gguf"] = tiny + b"\0"
        hub.stall_at = 10
        await router.router.pull(f"{REPO}:q8_0")
        await in_time(hub.stalled.wait())
        with pytest.raises(Conflict, match="is being pulled"):
            await router.router.delete(NAME)
        hub.go_on.set()


Command = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def command(tmp_path: Path, hub: LocalHub) -> Command:
    """Starts a command of its own home, where no router runs."""
    environ = {
        **os.environ,
        **hub.environ,
        "HF_HUB_CACHE": str(tmp_path / "hub"),
        "PYTHON_KEYRING_BACKEND": "keyring.backends.null.Keyring",
        **{f"XDG_{kind}_HOME": str(tmp_path / kind) for kind in ("CONFIG", "DATA", "STATE", "CACHE")},
    }

    def start(*arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "router.cli", *arguments],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


async def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = await in_time(asyncio.to_thread(process.communicate))
    return process.returncode, out, err


@pytest.mark.fault("F26")
async def test_a_command_that_is_killed_in_the_middle_goes_on_at_the_next_call(
    tmp_path: Path, hub: LocalHub, command: Command
) -> None:
    big = os.urandom(4_000_000)
    hub.repos[REPO] = {"Tiny-F16.gguf": big}
    hub.stall_at = 3_000_000
    process = command("pull", "--json", REPO)
    assert process.stdout is not None
    part = tmp_path / "hub" / "models--acme--Tiny-GGUF" / "blobs" / f"{sha256(big)}{INCOMPLETE}"
    told = {"bytes_downloaded": 0}
    while told["bytes_downloaded"] < 1_000_000:
        told = json.loads(await in_time(asyncio.to_thread(process.stdout.readline)))
    process.send_signal(signal.SIGKILL)
    assert (await ended(process))[0] == -signal.SIGKILL
    kept = part.stat().st_size
    assert 0 < kept <= 3_000_000
    hub.stall_at = None
    hub.go_on.set()
    async with pulling(tmp_path, hub) as router:
        # Random bytes are no model: that is told, and the file is whole.
        with pytest.raises(RouterError, match="cannot be used"):
            await in_time((await router.router.pull(REPO)).wait())
    assert hub.ranges[-1] == f"bytes={kept}-"
    pointer = part.parents[1] / "snapshots" / COMMIT / "Tiny-F16.gguf"
    assert pointer.read_bytes() == big
    assert not part.exists()


async def test_commands_pull_and_delete_where_no_router_runs(
    tmp_path: Path,
    hub: LocalHub,
    tiny: bytes,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in {**hub.environ, "HF_HUB_CACHE": str(tmp_path / "hub")}.items():
        monkeypatch.setenv(name, value)
    for kind in ("CONFIG", "DATA", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind))

    async def run(*arguments: str) -> tuple[int, str, str]:
        code = await in_time(asyncio.to_thread(main, arguments))
        return (code, *capsys.readouterr())

    code, out, err = await run("pull", REPO)
    assert (code, out) == (0, f"{NAME} is here\n"), err
    assert "not running" in err
    code, out, err = await run("pull", "--json", REPO)
    assert json.loads(out.splitlines()[-1]) == {"model_name": NAME, "state": "done"}
    code, out, err = await run("delete", NAME)
    assert (code, out) == (0, f"{NAME} is deleted; 0\N{NO-BREAK SPACE}MiB is free again\n"), err
    code, out, err = await run("delete", NAME)
    assert (code, f"There is no model {NAME}" in err) == (1, True)
    assert (await run("hub", "leftovers"))[:2] == (0, "")
    blobs = tmp_path / "hub" / "models--acme--Left-GGUF" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{'0' * 64}{INCOMPLETE}").write_bytes(bytes(3 << 20))
    code, out, err = await run("hub", "leftovers")
    assert (code, "acme/Left-GGUF" in out, "--delete" in err) == (0, True, True)
    assert json.loads((await run("hub", "leftovers", "--json"))[1])["leftovers"][0]["bytes"] == 3 << 20
    code, out, err = await run("hub", "leftovers", "--delete")
    assert (code, out, "is free again" in err, blobs.exists()) == (0, "", True, False)
    code, out, err = await run("pull", "acme/Nothing")
    assert (code, out) == (1, "")
    assert "The hub has no repository acme/Nothing" in err


async def test_a_command_asks_the_router_that_runs(
    tmp_path: Path, hub: LocalHub, capsys: pytest.CaptureFixture[str]
) -> None:
    async with pulling(tmp_path, hub) as router:

        async def run(*arguments: str) -> tuple[int, str, str]:
            code = await in_time(asyncio.to_thread(main, (*arguments, "--endpoint", router.url)))
            return (code, *capsys.readouterr())

        assert await run("pull", REPO) == (0, f"{NAME} is here\n", "")
        code, _, err = await run("pull", "acme/Nothing")
        assert (code, "The hub has no repository acme/Nothing" in err) == (1, True)
        code, _, err = await run("pull", "--cancel", REPO)
        assert (code, "not being downloaded" in err) == (1, True)
        code, out, _ = await run("delete", NAME)
        assert (code, out.startswith(f"{NAME} is deleted")) == (0, True)


class Keyring:
    """A keyring in memory."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}

    def set_password(self, service: str, username: str, password: str) -> None:
        self.kept[username] = password

    def get_password(self, service: str, username: str) -> str | None:
        return self.kept.get(username)

    def delete_password(self, service: str, username: str) -> None:
        del self.kept[username]


def test_a_token_is_kept_in_the_keyring_and_forgotten(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keyring = Keyring()
    monkeypatch.setattr(keyrings, "system_keyring", lambda: keyring)
    monkeypatch.setattr("sys.stdin", io.StringIO("hf_secret\n"))
    assert main(["hub", "login"]) == 0
    assert keyring.kept == {TOKEN_NAME: "hf_secret"}
    assert main(["hub", "logout"]) == 0
    assert keyring.kept == {}
    assert main(["hub", "logout"]) == 1
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    assert main(["hub", "login"]) == 1
    monkeypatch.setattr(keyrings, "system_keyring", lambda: None)
    monkeypatch.setattr("sys.stdin", io.StringIO("hf_secret\n"))
    assert main(["hub", "login"]) == 1
    told = capsys.readouterr()
    assert "HF_TOKEN" in told.err
    assert "hf_secret" not in told.err + told.out
