"""A worker that speaks scripted HTTP, a router that grants on command, and a client that hides nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import httptools
import msgspec

from router.catalog.demo import DEMO
from router.catalog.hub import parse_reference
from router.catalog.model import EMBEDDING, LLM, RERANKING, Identity, Model
from router.catalog.options import check_options
from router.catalog.pull import DOWNLOADING, RESOLVING, PullProgress
from router.catalog.removal import Deleted
from router.engines.base import Exit, Worker
from router.errors import BadRequest, Conflict, ModelNotFound, NotFound, Unavailable
from router.policy.document import Keywords, Policy, Rule
from router.policy.evaluate import Decision, decide
from router.policy.fit import GaveWay
from router.policy.parse import normalized, parse_policy
from router.policy.request import RequestView
from router.providers.store import make_provider
from router.settings import schema
from router.settings.schema import Settings
from router.snapshot import FeedEntry, PoolView, ProviderView, Snapshot, Status
from router.web.app import Endpoint
from router.web.keys import Keys
from router.web.options import WebOptions

SAFETY_S = 20.0

OPTIONS = WebOptions(silence_s=30.0, death_s=0.05, stalled_client_s=0.2, snapshots_s=0.01)


def model(name: str, kind: str = LLM, **more: Any) -> Model:
    return Model(name, f"/models/{name}.gguf", kind, 1 << 30, Identity("/m", 1, 5_000_000_000), **more)


def policy(name: str = "auto", **more: Any) -> Policy:
    given: dict[str, Any] = {
        "components": ("alpha", "beta"),
        "candidates": ("alpha", "beta"),
        "default_model": "alpha",
        "rules": (Rule("code", Keywords(("python",)), "beta"),),
    }
    return Policy(name, **{**given, **more})


def snapshot(generation: int = 1, **more: Any) -> Snapshot:
    given: dict[str, Any] = {
        "version": "0.1.0",
        "status": Status.READY,
        "endpoint": "http://127.0.0.1:13305",
        "uptime_s": 1.0,
        "settings": {},
        "pool": PoolView(True, 1, 1, 0, 0, 0, False),
    }
    return Snapshot(generation=generation, **{**given, **more})


class Peer:
    """A worker's end of one connection, for a script to answer on."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.path = ""
        self.headers: dict[str, str] = {}
        self.body = b""

    async def request(self) -> bool:
        """Read one request; False when the connection ended instead."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        self.path = lines[0].split()[1]
        pairs = (line.split(": ", 1) for line in lines[1:] if line)
        self.headers = {name.lower(): value for name, value in pairs}
        self.body = await self.reader.readexactly(int(self.headers.get("content-length", "0")))
        return True

    async def send(self, *parts: bytes) -> None:
        """Send parts, each by a write of its own."""
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()

    async def answer(self, body: bytes, status: int = 200, kind: str = "application/json") -> None:
        await self.send(
            b"HTTP/1.1 %d X\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n"
            % (status, kind.encode(), len(body))
            + body
        )

    async def begin_stream(self) -> None:
        await self.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )

    async def chunk(self, data: bytes) -> None:
        await self.send(b"%x\r\n%s\r\n" % (len(data), data))

    async def end_stream(self) -> None:
        await self.send(b"0\r\n\r\n")

    def hang_up(self) -> None:
        self.writer.transport.abort()

    async def left(self) -> None:
        """Wait until the other side has closed."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65536):
                pass


Script = Callable[[Peer], Awaitable[None]]


class FakeWorker:
    """A worker process's stand-in: a server whose answers are a script's."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.host = "127.0.0.1"
        self.port = 0
        self.api_key = "worker-key"
        self.pid = 4242
        self.launch_command: tuple[str, ...] = ("worker", "--port", "0")
        self.exited: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self.connections = 0
        self.requests: list[Peer] = []
        self.asked = asyncio.Event()
        self.faults: list[BaseException] = []
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> FakeWorker:
        await self.listen()
        return self

    async def listen(self) -> None:
        """Take connections; again on the same port after `stop`."""
        self._server = await asyncio.start_server(self._serve, self.host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        assert not self.faults, self.faults

    async def stop(self) -> bool:
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        return True

    def die(self, code: int = -9, *log_tail: str) -> None:
        if not self.exited.done():
            self.exited.set_result(Exit(code, log_tail))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while True:
                peer = Peer(reader, writer)
                await peer.request()
                self.requests.append(peer)
                self.asked.set()
                await self.script(peer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            return  # The other side left, or the test ends.
        except BaseException as exc:
            self.faults.append(exc)
        finally:
            self._tasks.discard(task)
            writer.transport.abort()


class FakeLease:
    def __init__(self, model: Model, worker: FakeWorker) -> None:
        self.model = model
        self.worker: Worker = worker
        self._cut: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.released = asyncio.Event()
        self.condemned = False
        self.tokens = 0
        self.seconds = 0.0

    @property
    def cut(self) -> asyncio.Future[str]:
        return self._cut

    def condemn(self) -> None:
        self.condemned = True

    def release(self, *, tokens: int = 0, seconds: float = 0.0) -> None:
        if not self.released.is_set():
            self.tokens, self.seconds = tokens, seconds
            self.released.set()


class FakePull:
    """A pull that ends as a future does, and tells two steps before that."""

    def __init__(self, end: asyncio.Future[None], name: str) -> None:
        self.name = name
        self._end = end

    async def wait(self) -> str:
        await asyncio.shield(self._end)
        return self.name

    async def __aiter__(self) -> AsyncIterator[PullProgress]:
        yield PullProgress(RESOLVING)
        yield PullProgress(DOWNLOADING, 25, 100, "m.gguf", "a" * 64, 25, 100)
        await asyncio.shield(self._end)


class FakeApi:
    """A router without models: what it grants, and when, is the test's to say."""

    def __init__(self, worker: FakeWorker | None = None) -> None:
        self.worker = worker
        self.models = {
            "alpha": model("alpha", aliases=("a",)),
            "beta": model("beta"),
            "embed": model("embed", EMBEDDING),
            "rank": model("rank", RERANKING),
        }
        self.policies: dict[str, Policy] = {"auto": policy()}
        self.windows: dict[str, int] = {}
        self.settings = Settings()
        self._snapshot = snapshot()
        self.bound_hosts: tuple[str, ...] = ("127.0.0.1", "localhost")
        self.feed: list[FeedEntry] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.refusal: Exception | None = None
        self.is_never_free = False
        self.leases: list[FakeLease] = []
        self.asked: list[dict[str, Any]] = []
        self.waiting = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.calls: list[tuple[Any, ...]] = []
        self.pulled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.pulling = asyncio.Event()
        self.in_use: set[str] = set()
        self.unsubscribed = asyncio.Event()
        self.simulates = True
        self._callbacks: set[Callable[[Snapshot], None]] = set()

    @property
    def snapshot(self) -> Snapshot:
        return self._snapshot

    def publish(self, new: Snapshot) -> None:
        self._snapshot = new
        for callback in tuple(self._callbacks):
            callback(new)

    def subscribe(self, callback: Callable[[Snapshot], None]) -> Callable[[], None]:
        self._callbacks.add(callback)

        def end() -> None:
            self._callbacks.discard(callback)
            self.unsubscribed.set()

        return end

    @property
    def subscriptions(self) -> int:
        return len(self._callbacks)

    def feed_since(self, last_id: int) -> tuple[FeedEntry, ...]:
        return tuple(entry for entry in self.feed if entry.id > last_id)

    def resolve(self, name: str) -> Model | Policy:
        for item in self.models.values():
            if name == item.name or name in item.aliases:
                return item
        if name in self.policies:
            return self.policies[name]
        raise ModelNotFound(f"There is no model {name}.", param="model")

    def listing(self, via: str = "") -> tuple[Model | Policy, ...]:
        return (*self.models.values(), *self.policies.values())

    async def acquire(
        self,
        model: str,
        *,
        policy: str | None = None,
        body_bytes: int = 0,
        keep_alive_s: float | None = None,
        context: int = 0,
    ) -> FakeLease:
        asked = {"model": model, "policy": policy, "body_bytes": body_bytes, "keep_alive_s": keep_alive_s}
        self.asked.append({**asked, **({"context": context} if context else {})})
        self.waiting.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        if self.refusal is not None:
            raise self.refusal
        assert self.worker is not None
        lease = FakeLease(self.models[model], self.worker)
        self.leases.append(lease)
        return lease

    def lease_at_once(self, model: str) -> FakeLease | None:
        """A lease if nothing stands in the way; where a test has an `acquire` of its own, all come there."""
        is_free = self.gate.is_set() and self.refusal is None and self.worker is not None
        if not is_free or self.is_never_free or "acquire" in vars(self):
            return None
        assert self.worker is not None
        self.asked.append({"model": model, "policy": None, "keep_alive_s": None})
        lease = FakeLease(self.models[model], self.worker)
        self.leases.append(lease)
        return lease

    async def decide(self, policy: Policy, view: RequestView) -> Decision:
        return decide(policy, view)

    async def try_policy(self, document: Any, view: RequestView) -> tuple[Decision, dict[str, Any]]:
        return decide(parse_policy(document, named=False), view), normalized(document)

    def window(self, model: str) -> int:
        return self.windows.get(model, 0)

    def routed(self, policy: str, decision: Decision, model: str, gave_way: tuple[GaveWay, ...]) -> None:
        self.calls.append(("routed", policy, decision.matched_rule, model, gave_way))

    def policy_document(self, name: str) -> dict[str, Any]:
        if name not in self.policies:
            raise ModelNotFound(f"There is no policy {name}.")
        return {"model_name": name}

    async def set_settings(self, changes: Mapping[str, Any]) -> int:
        self.settings = schema.apply(self.settings, changes)
        self.publish(msgspec.structs.replace(self._snapshot, generation=self._snapshot.generation + 1))
        return self._snapshot.generation

    def settings_defaults(self) -> dict[str, Any]:
        return dict(msgspec.to_builtins(Settings()))

    async def load(self, model: str, options: Mapping[str, Any]) -> None:
        self.resolve(model)
        _check(options)
        self.calls.append(("load", model, dict(options)))

    async def plan(self, model: str, options: Mapping[str, Any]) -> dict[str, Any]:
        self.resolve(model)
        _check(options)
        self.calls.append(("plan", model, dict(options)))
        return {"model": model, "admitted": True, "devices": []}

    async def unload(self, model: str | None, *, wait: bool = True, force: bool = False) -> None:
        self.calls.append(("unload", model, wait, force))

    def pin(self, model: str, pinned: bool) -> None:
        self.resolve(model)
        self.calls.append(("pin", model, pinned))

    def pause(self, paused: bool) -> None:
        self.calls.append(("pause", paused))

    def shut_down(self) -> None:
        self.calls.append(("shut down",))

    async def tell_notice(self, notice: str) -> None:
        if notice not in {n.id for n in self.snapshot.notices}:
            raise NotFound(f"There is no notice {notice} to be told.", param="id")
        self.calls.append(("told", notice))

    async def register_policy(self, document: Any) -> Policy:
        self.calls.append(("register", document))
        return policy(document["model_name"])

    async def delete_policy(self, name: str) -> None:
        if name not in self.policies:
            raise ModelNotFound(f"There is no policy {name}.")
        del self.policies[name]

    async def enable_policy(self, name: str, enabled: bool) -> None:
        self.calls.append(("enable", name, enabled))

    async def pull(self, name: str) -> FakePull:
        if name != "demo":
            parse_reference(name)
        self.calls.append(("pull", name))
        self.pulling.set()
        return FakePull(self.pulled, DEMO.name if name == "demo" else name)

    async def cancel_pull(self, name: str) -> None:
        self.calls.append(("cancel_pull", name))
        if name != "demo" or self.pulled.done():
            raise NotFound(f"{name} is not being downloaded.", param="name")
        self.pulled.set_exception(Unavailable("The pull was cancelled.", code="cancelled"))

    async def delete(self, name: str) -> Deleted:
        if name in self.policies:
            await self.delete_policy(name)
            return Deleted(name, "policy")
        self.calls.append(("delete", name))
        found = self.resolve(name)
        if found.name in self.in_use:
            raise Conflict(f"{name} is not deleted: it is loaded.", code="model_in_use", param="model_name")
        return Deleted(found.name, "model", 1 << 30)

    @property
    def instance(self) -> str:
        return "fake-instance"

    async def add_provider(self, provider: Mapping[str, Any], key: str | None) -> ProviderView:
        made = make_provider(provider)
        self.calls.append(("add_provider", made, key))
        return ProviderView(made.name, made.url, "ready")

    async def remove_provider(self, name: str) -> None:
        raise NotFound(f"There is no provider {name}.", param="name")

    async def test_provider(self, name: str) -> ProviderView:
        raise NotFound(f"There is no provider {name}.", param="name")

    async def refresh_engines(self) -> None:
        self.calls.append(("refresh_engines",))

    async def get_engine(self, id: str | None) -> Awaitable[None]:
        self.calls.append(("get_engine", id))
        return self.pulled

    async def use_engine(self, id: str) -> None:
        raise NotFound(f"There is no engine {id}.", param="id")

    async def remove_engine(self, id: str) -> None:
        raise NotFound(f"There is no build {id}.", param="id")

    def simulate(self, change: Mapping[str, Any]) -> dict[str, Any]:
        if not self.simulates:
            raise NotFound("The router does not simulate.")
        return {"changed": dict(change)}


def _check(options: Mapping[str, Any]) -> None:
    """Raises BadRequest, as the router does."""
    flags = {key: value for key, value in options.items() if key in ("pinned", "save_options")}
    for key, value in flags.items():
        if not isinstance(value, bool | None):
            raise BadRequest(f"{key}: expected true or false", param=key)
    check_options({key: value for key, value in options.items() if key not in flags})


class Answer:
    """An answer as it came. `whole`: HTTP says that it is complete."""

    def __init__(self) -> None:
        self.status = 0
        self.reason = b""
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.whole = False
        self.interim: list[int] = []
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode().lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            self.interim.append(status)
            self.headers.clear()
        else:
            self.status = status

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        if self.status:
            self.whole = True

    def json(self) -> Any:
        return msgspec.json.decode(bytes(self.body))

    @property
    def error(self) -> dict[str, Any]:
        assert self.headers["content-type"].startswith("application/json"), self.headers
        error = self.json()["error"]
        assert set(error) >= {"message", "type", "code", "param", "hint"}
        assert isinstance(error["message"], str)
        assert error["message"]
        return dict(error)


class Client:
    """One connection to the endpoint, byte by byte if need be."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self._host = host
        self._port = port
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    async def __aenter__(self) -> Client:
        self.reader, self.writer = await asyncio.open_connection(self._host, self._port, limit=1 << 20)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        self.writer.transport.abort()

    async def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        host: str | None = "127.0.0.1",
    ) -> None:
        lines = [f"{method} {path} HTTP/1.1"]
        if host is not None:
            lines.append(f"Host: {host}:{self._port}")
        given = dict(headers or {})
        if body is not None:
            given.setdefault("Content-Type", "application/json")
            given.setdefault("Content-Length", str(len(body)))
        lines += [f"{name}: {value}" for name, value in given.items()]
        self.writer.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + (body or b""))
        await self.writer.drain()

    async def answer(self, until: Callable[[Answer], bool] | None = None, *, head: bool = False) -> Answer:
        """Read an answer to its end, to the connection's end, or until the test is content."""
        answer = Answer()
        async with asyncio.timeout(SAFETY_S):
            while not answer.whole and not (head and answer.status) and not (until and until(answer)):
                data = await self.reader.read(65536)
                if not data:
                    break
                answer.feed(data)
        return answer

    async def more(self, answer: Answer, until: Callable[[Answer], bool] | None = None) -> Answer:
        """Go on reading."""
        async with asyncio.timeout(SAFETY_S):
            while not answer.whole and not (until and until(answer)):
                data = await self.reader.read(65536)
                if not data:
                    break
                answer.feed(data)
        return answer

    async def raw(self, data: bytes) -> Answer:
        self.writer.write(data)
        await self.writer.drain()
        return await self.answer()

    async def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        await self.send(method, path, body, headers)
        return await self.answer(head=method == "HEAD")


class Site:
    """A running endpoint with its fake router and its fake worker."""

    def __init__(self, api: FakeApi, endpoint: Endpoint, worker: FakeWorker) -> None:
        self.api = api
        self.endpoint = endpoint
        self.worker = worker

    def client(self) -> Client:
        return Client(self.endpoint.port)

    async def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        async with self.client() as client:
            return await client.ask(method, path, body, headers)

    async def post(self, path: str, value: Any, headers: Mapping[str, str] | None = None) -> Answer:
        return await self.ask("POST", path, msgspec.json.encode(value), headers)


@contextlib.asynccontextmanager
async def site(
    script: Script, options: WebOptions = OPTIONS, *, host: str = "127.0.0.1", keys: Keys | None = None
) -> AsyncIterator[Site]:
    async with FakeWorker(script) as worker:
        api = FakeApi(worker)
        endpoint = Endpoint(api, options, keys)
        await endpoint.start(host, 0)
        try:
            yield Site(api, endpoint, worker)
        finally:
            await endpoint.stop(0.5)


def chat(stream: bool = False, model: str = "alpha", text: str = "hello", **more: Any) -> bytes:
    return msgspec.json.encode(
        {"model": model, "stream": stream, "messages": [{"role": "user", "content": text}], **more}
    )


CHAT = "/v1/chat/completions"
REPLY = (
    b'{"id":"c1","object":"chat.completion","model":"alpha","choices":[],'
    b'"usage":{"completion_tokens":7,"prompt_tokens":3}}'
)


async def reply(peer: Peer) -> None:
    """A script: one ordinary answer."""
    await peer.answer(REPLY)


def events_of(body: bytes | bytearray) -> list[bytes]:
    """The events of a stream, comments left out."""
    return [part for part in bytes(body).split(b"\n\n") if part and not part.startswith(b":")]


def data_of(event: bytes) -> Any:
    return msgspec.json.decode(event.removeprefix(b"data: "))
