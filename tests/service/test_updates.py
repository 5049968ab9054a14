"""Looking for a newer version: only when it is wanted, once a day, told once, and never more than that."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import itertools
import json
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from packaging.version import Version

from router.errors import RouterError
from router.service import updates
from router.service.updates import DAY_S, JITTER_S, SOON_S, Release, Updates, newest, order, read_feed
from router.settings.schema import Settings
from router.settings.state import StateFile
from tests.service.live import live
from tests.support.virtual_loop import virtual

FEED = "https://releases.example/feed.json"

ASCENDING = (
    "0.1.dev1",
    "0.1a1.dev2",
    "0.1a1",
    "0.1a2",
    "0.1b1",
    "0.1rc1",
    "0.1rc2",
    "0.1",
    "0.1.post1.dev1",
    "0.1.post1",
    "0.1.1",
    "0.2.0.dev0",
    "0.2",
    "0.10",
    "1.0a1",
    "1.0",
    "1.0.0.1",
)


def test_versions_are_ordered_as_packages_are() -> None:
    for earlier, later in itertools.pairwise(ASCENDING):
        assert Version(earlier) < Version(later)
        assert (order(earlier) or ()) < (order(later) or ()), (earlier, later)
    for same in (
        ("1.0", "1"),
        ("v1.0", "1.0.0"),
        ("1.0-rc.1", "1.0rc1"),
        ("1.0-1", "1.0.post1"),
        ("1+a", "1"),
    ):
        assert order(same[0]) == order(same[1]), same
    for wrong in ("", "latest", "1..2", "1.0-", "x1", "1.0 2", "1" * 40):
        assert order(wrong) is None


def feed(*versions: str, **more: Any) -> bytes:
    return json.dumps([{"version": v, "url": f"https://x/{v}", **more} for v in versions]).encode()


def test_the_newest_that_is_newer_is_found() -> None:
    assert newest(feed("0.2", "0.10", "0.9"), "0.2") == Release("0.10", "https://x/0.10")
    assert newest(feed("0.1", "0.2"), "0.2") is None
    assert newest(b"[]", "0.2") is None
    assert newest(feed("0.3rc1"), "0.2") is None
    assert newest(feed("0.3rc1"), "0.3b2") == Release("0.3rc1", "https://x/0.3rc1")
    assert newest(feed("0.3", prerelease=True), "0.2") is None
    assert newest(feed("0.3", draft=True), "0.2") is None
    assert newest(feed("0.3", "odd"), "0.2") == Release("0.3", "https://x/0.3")
    github = json.dumps({"tag_name": "v0.3.0", "html_url": "https://h/3", "url": "https://api/3"}).encode()
    assert newest(github, "0.2") == Release("0.3.0", "https://h/3")
    assert newest(json.dumps({"releases": json.loads(feed("0.3"))}).encode(), "0.2") is not None
    for page in ("http://x/", "file:///etc", "javascript:1", 3, "https://x/\n", "https://[x"):
        assert newest(json.dumps({"version": "9", "url": page}).encode(), "0.2") == Release("9")


@pytest.mark.parametrize(
    "data", [b"", b"<html>", b'{"error": "no"}', b"[1, 2]", b'{"version": 3}', b"[" * 100_000]
)
def test_what_is_no_feed_is_said(data: bytes) -> None:
    with pytest.raises(ValueError, match="it "):
        newest(data, "0.2")


class Desk:
    """Updates on a virtual clock, with a feed that counts."""

    def __init__(self, folder: Path) -> None:
        self.state = StateFile(folder)
        self.state.load()
        self.reads: list[float] = []
        self.told: list[str] = []
        self.answer: bytes | Exception = feed("0.1")
        self.jitter = 0.5
        self.offset = 1_000_000.0
        self.task: asyncio.Task[None] | None = None

    def start(self, **settings: Any) -> Updates:
        self.updates = Updates(
            self.state,
            lambda _code, message: self.told.append(message),
            lambda: None,
            read=self.read,
            clock=self.clock,
            jitter=lambda: self.jitter,
            running="0.2",
        )
        self.configure(**settings)
        self.task = asyncio.ensure_future(self.updates.run())
        return self.updates

    def configure(self, **settings: Any) -> None:
        self.updates.configure(Settings(**{"update_check": True, "update_feed": FEED, **settings}))

    def clock(self) -> float:
        return asyncio.get_running_loop().time() + self.offset

    async def read(self, address: str) -> bytes:
        assert address == FEED
        self.reads.append(self.clock())
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def end(self) -> None:
        assert self.task is not None
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@pytest.fixture
def no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A virtual loop has no threads: what is remembered stays in memory."""

    async def update(self: StateFile, **changes: Any) -> Any:
        import msgspec

        self.state = msgspec.structs.replace(self.state, **changes)
        return self.state

    monkeypatch.setattr(StateFile, "update", update)


@virtual
async def test_nothing_is_asked_before_it_is_wanted(tmp_path: Path, no_disk: None) -> None:
    desk = Desk(tmp_path)
    view = desk.start(update_check=False).view
    await asyncio.sleep(3 * DAY_S)
    assert desk.reads == []
    assert (view.is_on, view.problem, view.version) == (False, "", "")
    desk.configure()
    await asyncio.sleep(SOON_S)
    assert len(desk.reads) == 1
    desk.configure(update_check=False)
    await asyncio.sleep(5 * DAY_S)
    assert len(desk.reads) == 1
    await desk.end()


@virtual
async def test_it_is_asked_once_a_day_not_always_at_the_same_time(tmp_path: Path, no_disk: None) -> None:
    desk = Desk(tmp_path)
    desk.start()
    for number in range(5):
        desk.jitter = number / 5
        await asyncio.sleep(DAY_S + JITTER_S)
    gaps = [later - earlier for earlier, later in itertools.pairwise(desk.reads)]
    assert len(gaps) >= 3
    assert all(DAY_S <= gap <= DAY_S + JITTER_S for gap in gaps)
    assert len(set(gaps)) > 1
    await desk.end()


@virtual
async def test_a_restart_does_not_ask_again_the_same_day(tmp_path: Path, no_disk: None) -> None:
    desk = Desk(tmp_path)
    for _ in range(10):
        desk.start()
        await asyncio.sleep(600)
        await desk.end()
    assert len(desk.reads) == 1
    # Nor does turning it off and on, nor a clock that was set back, keep it for long or make it often.
    desk.offset -= 400 * DAY_S
    desk.start()
    await asyncio.sleep(DAY_S + 2 * JITTER_S)
    assert len(desk.reads) == 2
    await desk.end()


@virtual
async def test_a_version_is_told_once(tmp_path: Path, no_disk: None) -> None:
    desk = Desk(tmp_path)
    desk.answer = feed("0.3")
    made = desk.start()
    await asyncio.sleep(4 * DAY_S)
    assert len(desk.reads) > 2
    assert desk.told == ["Lemon Tray 0.3 has been released; 0.2 runs. See https://x/0.3"]
    assert (made.view.version, made.view.url) == ("0.3", "https://x/0.3")
    await desk.end()
    desk.start()
    await asyncio.sleep(2 * DAY_S)
    assert len(desk.told) == 1
    desk.answer = feed("0.3", "0.4")
    await asyncio.sleep(2 * DAY_S)
    assert len(desk.told) == 2
    desk.answer = feed("0.2")
    await asyncio.sleep(2 * DAY_S)
    assert desk.updates.view.version == ""
    await desk.end()


@virtual
async def test_a_failure_is_shown_and_not_tried_again_and_again(tmp_path: Path, no_disk: None) -> None:
    desk = Desk(tmp_path)
    desk.answer = RouterError("It did not answer.")
    made = desk.start()
    await asyncio.sleep(DAY_S / 2)
    assert len(desk.reads) == 1
    assert (
        made.view.problem
        == "Updates could not be looked for at https://releases.example/feed.json: It did not answer."
    )
    desk.answer = b"<html>"
    await asyncio.sleep(DAY_S)
    assert "it is no JSON" in made.view.problem
    desk.answer = feed("0.3")
    await asyncio.sleep(DAY_S + JITTER_S)
    assert (made.view.problem, made.view.version) == ("", "0.3")
    await desk.end()


@virtual
@pytest.mark.parametrize(
    ("address", "words"), [("", "no public one yet"), ("http://far.example/", "https"), ("nonsense", "https")]
)
async def test_an_address_that_will_not_do_is_said_and_not_asked(
    tmp_path: Path, no_disk: None, address: str, words: str
) -> None:
    desk = Desk(tmp_path)
    made = desk.start(update_feed=address)
    await asyncio.sleep(3 * DAY_S)
    assert desk.reads == []
    assert words in made.view.problem
    await desk.end()


# Over the network


Served = Callable[..., Any]


@pytest.fixture
async def serve() -> AsyncIterator[Served]:
    servers: list[TestServer] = []

    async def start(answer: Any, context: ssl.SSLContext | None = None) -> str:
        app = web.Application()
        app.router.add_get("/feed", answer)
        server = TestServer(app, scheme="https" if context else "http")
        await server.start_server(ssl=context)
        servers.append(server)
        return str(server.make_url("/feed"))

    yield start
    for server in servers:
        await server.close()


async def test_a_feed_is_read(serve: Served) -> None:
    async def answer(request: web.Request) -> web.Response:
        assert request.headers["User-Agent"].startswith("lemon-tray/")
        return web.Response(body=feed("9.0"))

    assert newest(await read_feed(await serve(answer)), "0.2") == Release("9.0", "https://x/9.0")


async def test_a_feed_that_is_not_there_too_long_or_elsewhere(serve: Served) -> None:
    async def missing(_request: web.Request) -> web.Response:
        return web.Response(status=404)

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(64):
            await response.write(b" " * (1 << 16))
        return response

    async def elsewhere(_request: web.Request) -> web.Response:
        raise web.HTTPFound("http://127.0.0.2:1/feed")

    for answer, words in ((missing, "404"), (endless, "too long"), (elsewhere, "connection|encryption")):
        with pytest.raises(RouterError, match=words):
            await read_feed(await serve(answer))


async def test_a_certificate_that_nobody_vouches_for_is_refused(serve: Served, tmp_path: Path) -> None:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(body=feed("9.0"))

    with pytest.raises(RouterError, match="certificate is not trusted"):
        await read_feed(await serve(answer, self_signed(tmp_path)))


def self_signed(folder: Path) -> ssl.SSLContext:
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
    )
    path = folder / "both.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(path)
    return context


async def test_a_router_tells_of_a_newer_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def read(address: str) -> bytes:
        asked.append(address)
        return feed("99.0")

    monkeypatch.setattr(
        updates.Updates.__init__, "__kwdefaults__", {**updates.Updates.__init__.__kwdefaults__, "read": read}
    )
    (tmp_path / "models").mkdir()
    async with live(tmp_path / "home", tmp_path / "models") as router:
        assert not router.router.snapshot.update.is_on
        await router.set(update_check=True)
        snapshot = await router.until(lambda s: s.update.problem)
        assert "no public one yet" in snapshot.update.problem
        assert not asked
        monkeypatch.setattr(updates, "SOON_S", 0.0)
        await router.set(update_feed=FEED)
        snapshot = await router.until(lambda s: s.update.version and router.told("update_available"))
        assert (snapshot.update.version, snapshot.update.problem) == ("99.0", "")
        assert router.told("update_available") == [None]
        assert asked == [FEED]
