"""A door to no router: it shows canned snapshots, records what it was asked, and answers as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from router.errors import RouterError
from router.snapshot import DeletionView, DownloadView, PoolView, Snapshot


class FakePull:
    """A fetch that ends at once, well or as the door refuses it."""

    def __init__(self, door: FakeDoor, name: str) -> None:
        self._door = door
        self._name = name

    async def wait(self) -> str:
        await self._door._answer("wait", self._name)
        return self._name


class FakeDoor:
    """Settings that it accepts show in the next snapshot. `refuse` makes the next command fail."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._callbacks: list[Callable[[Snapshot], None]] = []
        self.asked: list[tuple[Any, ...]] = []
        self.refuse: RouterError | None = None
        self.gate: asyncio.Event | None = None

    @property
    def snapshot(self) -> Snapshot:
        return self._snapshot

    @property
    def endpoint(self) -> str:
        return self._snapshot.endpoint

    def subscribe(self, callback: Callable[[Snapshot], None]) -> Callable[[], None]:
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback) if callback in self._callbacks else None

    def publish(self, **changes: Any) -> Snapshot:
        """A next snapshot with these fields changed."""
        changes.setdefault("generation", self._snapshot.generation + 1)
        self._snapshot = msgspec.structs.replace(self._snapshot, **changes)
        for callback in list(self._callbacks):
            callback(self._snapshot)
        return self._snapshot

    def publish_pool(self, **changes: Any) -> Snapshot:
        return self.publish(pool=msgspec.structs.replace(self._snapshot.pool, **changes))

    async def _answer(self, *asked: Any) -> None:
        self.asked.append(asked)
        if self.gate is not None:
            await self.gate.wait()
        if self.refuse is not None:
            error, self.refuse = self.refuse, None
            raise error

    async def set_settings(self, changes: Mapping[str, Any]) -> int:
        await self._answer("set", dict(changes))
        pool: dict[str, Any] = {}
        for key, value in changes.items():
            match key:
                case "llm_pool_autosize":
                    pool["autosize"] = value
                case "auto_evict":
                    pool["auto_evict"] = value
                case "max_loaded_models":
                    pool["configured_limit"] = value
        new = msgspec.structs.replace(self._snapshot.pool, **pool)
        settings = {**self._snapshot.settings, **changes}
        return self.publish(pool=with_effect(new), settings=settings).generation

    async def load(self, model: str, options: Mapping[str, Any]) -> None:
        await self._answer("load", model, dict(options))

    async def unload(self, model: str | None, *, wait: bool = True, force: bool = False) -> None:
        await self._answer("unload", model)

    async def free_all(self) -> None:
        await self._answer("free_all")

    async def plan_deletion(self, name: str) -> DeletionView:
        await self._answer("plan_deletion", name)
        return DeletionView(name, (f"/models/{name}.gguf",), 3 << 30)

    async def delete_model(self, name: str) -> None:
        await self._answer("delete", name)
        self.publish(models=tuple(m for m in self._snapshot.models if m.name != name))

    async def tell_notice(self, notice: str) -> None:
        await self._answer("told", notice)
        self.publish(notices=tuple(n for n in self._snapshot.notices if n.id != notice))

    def pin(self, model: str, pinned: bool) -> None:
        self.asked.append(("pin", model, pinned))
        residents = tuple(
            msgspec.structs.replace(r, pinned=pinned) if r.model == model else r
            for r in self._snapshot.residents
        )
        self.publish(residents=residents)

    def pause(self, paused: bool) -> None:
        self.asked.append(("pause", paused))
        self.publish(paused=paused)

    async def pull(self, name: str) -> FakePull:
        await self._answer("pull", name)
        return FakePull(self, name)

    async def pull_demo(self) -> Awaitable[None]:
        await self._answer("pull_demo")
        self.publish(downloads=(DownloadView("SmolLM2-135M-Instruct.Q4_1", "running", 0, None),))
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        end.set_result(None)
        return end

    async def cancel_download(self, name: str) -> None:
        await self._answer("cancel_download", name)
        self.publish(downloads=())

    async def plan(self, model: str, options: Mapping[str, Any]) -> dict[str, Any]:
        await self._answer("plan", model, dict(options))
        return {"verdict": "fits", "reason": "", "devices": []}

    async def test_policy(self, name: str, prompt: str) -> dict[str, Any]:
        await self._answer("test_policy", name, prompt)
        trace = [{"condition": "keywords_any", "result": True}]
        return {"route_to": "Qwen3-8B", "matched_rule": "code", "default_used": False, "trace": trace}

    async def enable_policy(self, name: str, enabled: bool) -> None:
        await self._answer("enable_policy", name, enabled)
        policies = tuple(
            msgspec.structs.replace(p, enabled=enabled) if p.name == name else p
            for p in self._snapshot.policies
        )
        self.publish(policies=policies)

    async def refresh_engines(self) -> None:
        await self._answer("refresh_engines")

    async def get_engine(self, id: str | None) -> Awaitable[None]:
        await self._answer("get_engine", id)
        name = f"GPU build {id}" if id else "GPU build"
        self.publish(downloads=(DownloadView(name, "running", 0, None),))
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        end.set_result(None)
        return end

    async def use_engine(self, id: str) -> None:
        await self._answer("use_engine", id)
        engines = tuple(msgspec.structs.replace(e, in_use=e.id == id) for e in self._snapshot.engines)
        self.publish(engines=engines)

    async def remove_engine(self, id: str) -> None:
        await self._answer("remove_engine", id)
        self.publish(engines=tuple(e for e in self._snapshot.engines if e.id != id))


def with_effect(pool: PoolView) -> PoolView:
    """The pool with the limit that its settings lead to."""
    limit = pool.configured_limit
    if pool.autosize and limit > 0:
        limit = max(limit, pool.candidate_floor)
    return msgspec.structs.replace(pool, effective_limit=limit)
