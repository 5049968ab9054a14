"""A whole router in this process with real workers, and a client that speaks HTTP to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from router.engines.base import WorkerSpec
from router.paths import Paths
from router.service import Router
from router.snapshot import Snapshot
from tests.support import gguf
from tests.support.policies import document
from tests.support.processes import is_running

PATIENCE_S = 60.0
"""No wait in these tests comes near it on a machine that works."""

ENDLESS = 200_000
"""More tokens than any test waits for; the context ends an answer before."""

NAMES = ("alpha", "beta", "gamma")


def write_models(folder: Path, names: Sequence[str] = NAMES) -> Path:
    """A folder with a tiny language model for each name. They differ, so that none is another's alias."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, name in enumerate(names):
        gguf.write_model(folder / f"{name}.gguf", seed=seed, context=131_072)
    return folder


def policy(name: str, *candidates: str) -> dict[str, Any]:
    """A policy that sends a prompt with the name of a candidate in capitals to that candidate."""
    rules = [{"id": each, "match": {"keywords_any": [each.upper()]}, "route_to": each} for each in candidates]
    return document(name, candidates, rules=rules)


def request(model: str, text: str = "hello", tokens: int = 2, **more: Any) -> dict[str, Any]:
    """The body of a chat that ends after `tokens` tokens and not before."""
    messages = [{"role": "user", "content": text}]
    return {"model": model, "messages": messages, "max_tokens": tokens, "ignore_eos": True, **more}


class Stream:
    """One streamed answer, event by event. Comments are left out."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.answer = answer
        self.seen: list[str] = []

    async def event(self) -> str:
        """The data of the next event; "" at the end."""
        while line := await self.answer.content.readline():
            if line.startswith(b"data: "):
                self.seen.append(line.removeprefix(b"data: ").decode().strip())
                return self.seen[-1]
        return ""

    async def rest(self) -> list[str]:
        """Read to the end; all events of the stream."""
        while await self.event():
            pass
        return self.seen

    @property
    def error(self) -> dict[str, Any]:
        """The error that the last event tells."""
        found: dict[str, Any] = json.loads(self.seen[-1])["error"]
        return found


class Client:
    """Asks one endpoint."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = url

    async def get(self, path: str) -> Any:
        async with self.session.get(self.url + path) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.json()

    async def post(self, path: str, body: Mapping[str, Any], status: int = 200) -> Any:
        async with self.session.post(self.url + path, json=body) as answer:
            text = await answer.text()
            assert answer.status == status, text
            return json.loads(text)

    async def chat(self, model: str, text: str = "hello", tokens: int = 2, **more: Any) -> Any:
        """One answer, as JSON."""
        return await self.post("/v1/chat/completions", request(model, text, tokens, **more))

    @asynccontextmanager
    async def stream(self, model: str, tokens: int = ENDLESS, **more: Any) -> AsyncIterator[Stream]:
        """A streamed answer. Leaving the block closes the connection."""
        body = request(model, tokens=tokens, stream=True, **more)
        async with self.session.post(self.url + "/v1/chat/completions", json=body) as answer:
            assert answer.status == 200, await answer.text()
            yield Stream(answer)

    async def set(self, **changes: Any) -> Any:
        return await self.post("/internal/set", changes)

    async def health(self) -> Any:
        return await self.get("/v1/health")

    async def pids(self) -> dict[str, int]:
        """Process ids of the workers, by model, as the endpoint tells them."""
        return {m["model_name"]: m["pid"] for m in (await self.health())["all_models_loaded"]}


class Live(Client):
    """A router that runs here."""

    def __init__(self, session: aiohttp.ClientSession, router: Router) -> None:
        super().__init__(session, router.endpoint)
        self.router = router

    async def until(self, holds: Callable[[Snapshot], Any]) -> Snapshot:
        """Wait for a snapshot of which this holds."""
        changed = asyncio.Event()
        end = self.router.subscribe(lambda _: changed.set())
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not holds(self.router.snapshot):
                    changed.clear()
                    await changed.wait()
            return self.router.snapshot
        finally:
            end()

    async def until_loaded(self, *names: str) -> Snapshot:
        """Wait until these models, and no others, have a process or are to get one."""
        return await self.until(lambda s: sorted(r.model for r in s.residents) == sorted(names))

    def told(self, code: str) -> list[str | None]:
        """The models of all feed entries with this code, in order."""
        return [e.model for e in self.router.feed_since(0) if e.code == code]

    async def hold(self, *names: str) -> Callable[[], None]:
        """Keep models busy, besides what is asked of them, until the returned function is called."""
        leases = [await self.router.acquire(name) for name in names]

        def release() -> None:
            for lease in leases:
                lease.release()

        return release

    def hold_loads(self, *, at: float = 0.0) -> asyncio.Event:
        """Let no load go on until the event is set; those held tell that they are done up to `at`."""
        engine = self.router._engine
        assert engine is not None
        go, start = asyncio.Event(), engine.start

        async def held(
            spec: WorkerSpec, progress: Callable[[float], None], launched: Callable[[int], None]
        ) -> Any:
            if at:
                progress(at)
            await go.wait()
            return await start(spec, progress, launched)

        engine.start = held  # type: ignore[method-assign]  # for as long as this router lives
        return go


@asynccontextmanager
async def live(
    root: Path,
    models: Path,
    *,
    settings: Mapping[str, Any] | None = None,
    simulate: tuple[int, ...] | None = None,
    environ: Mapping[str, str] | None = None,
    alone: bool = True,
) -> AsyncIterator[Live]:
    """Run a router with its files below `root`; at the end it must leave nothing behind.

    `alone`: nothing else runs on this loop, so that no task may be left.
    """
    paths = Paths.under(root)
    paths.ensure()
    if settings:
        paths.config_file.write_text(json.dumps(settings))
    router = Router(
        paths, overrides={"port": 0}, models_dirs=(models,), simulate=simulate, environ=environ or {}
    )
    session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE_S))
    pids: set[int] = set()
    end = router.subscribe(lambda s: pids.update(r.pid for r in s.residents if r.pid))
    try:
        await router.start()
        yield Live(session, router)
    finally:
        await router.stop()
        await session.close()
        end()
    assert [pid for pid in pids if is_running(pid)] == []
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not alone or left == set()
