"""An OpenAI-compatible server whose answers are a script's, and providers that point to it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from router.providers.listing import ListingCache
from router.providers.providers import Providers
from router.providers.store import ProviderFile
from tests.router.web.fakes import FakeWorker, Peer

KEY = "sk-provider-key-0123456789"
LIST = msgspec.json.encode(
    {
        "object": "list",
        "data": [
            {"id": "big", "object": "model", "created": 5, "max_model_len": 4096},
            {"id": "org/tiny", "object": "model"},
            {"id": "text-embed-3", "object": "model"},
        ],
    }
)

Script = Callable[[Peer], Awaitable[None]]


class Server:
    """A provider's end. `models` answers `/v1/models`, `chat` everything else."""

    def __init__(self, worker: FakeWorker) -> None:
        self._worker = worker
        self.models: Script = listing
        self.chat: Script = completion
        self.looks: list[Peer] = []
        self.asked: list[Peer] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._worker.port}/v1"

    async def serve(self, peer: Peer) -> None:
        if peer.path.endswith("/models"):
            self.looks.append(peer)
            await self.models(peer)
        else:
            self.asked.append(peer)
            await self.chat(peer)

    async def stop(self) -> None:
        """Refuse connections from now on, and cut those that there are."""
        await self._worker.stop()

    async def restart(self) -> None:
        """Listen again, on the same port."""
        await self._worker.listen()


async def listing(peer: Peer) -> None:
    await peer.answer(LIST)


async def completion(peer: Peer) -> None:
    """The ordinary answer: who was asked, streamed if that is asked for."""
    asked = msgspec.json.decode(peer.body)
    name = msgspec.json.encode(asked["model"])
    if asked.get("stream"):
        await peer.begin_stream()
        await peer.chunk(b'data: {"id":"c1","model":%b,"choices":[{"delta":{"content":"hi"}}]}\n\n' % name)
        await peer.chunk(
            b'data: {"id":"c1","model":%b,"choices":[],"usage":{"completion_tokens":7}}\n\n' % name
        )
        await peer.chunk(b"data: [DONE]\n\n")
        await peer.end_stream()
        return
    await peer.answer(b'{"id":"c1","model":%b,"choices":[],"usage":{"completion_tokens":7}}' % name)


def failing(status: int, body: bytes = b"", kind: str = "application/json", **headers: str) -> Script:
    """A script: an error."""

    async def script(peer: Peer) -> None:
        lines = [f"HTTP/1.1 {status} X", f"Content-Type: {kind}", f"Content-Length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        await peer.send("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    return script


@contextlib.asynccontextmanager
async def server() -> AsyncIterator[Server]:
    made: list[Server] = []

    async def serve(peer: Peer) -> None:
        await made[0].serve(peer)

    async with FakeWorker(serve) as worker:
        made.append(Server(worker))
        yield made[0]


@contextlib.asynccontextmanager
async def providers(folder: Path, **more: Any) -> AsyncIterator[Providers]:
    """Providers with files in `folder`, and no keyring."""
    file = ProviderFile(folder / "providers.json", keyring=lambda: None, environ=more.pop("environ", {}))
    made = Providers(file, ListingCache(folder / "cache"), **more)
    await made.start()
    try:
        yield made
    finally:
        await made.close()
