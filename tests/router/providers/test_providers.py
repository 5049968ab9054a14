"""Providers at work: found, looked at, kept, changed, removed."""

from __future__ import annotations

import asyncio
import logging
import re
import shutil
import ssl
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from router.errors import BadRequest, NotFound
from router.providers.faults import ProviderError, ProviderLoop
from router.providers.health import State
from router.providers.link import INSTANCE, VIA
from tests.router.providers.fakes import KEY, LIST, completion, failing, providers, server
from tests.router.web.fakes import SAFETY_S, Peer


class Watched:
    """Waits for changes."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self.events: list[tuple[str, str, bool]] = []

    def changed(self, models: bool) -> None:
        self._changed.set()

    def told(self, code: str, message: str, bad: bool) -> None:
        self.events.append((code, message, bad))

    async def until(self, holds: Callable[[], Any]) -> None:
        async with asyncio.timeout(SAFETY_S):
            while not holds():
                self._changed.clear()
                await self._changed.wait()


async def test_a_provider_is_kept_with_its_models_and_its_key(tmp_path: Path) -> None:
    async with server() as cloud, providers(tmp_path) as made:
        view = await made.add({"name": "cloud", "url": cloud.url.removesuffix("/v1")}, KEY)
        assert (view.state, view.models, view.url, view.key) == ("ready", 3, cloud.url, "file")
        assert sorted(made.models) == ["cloud/big", "cloud/org/tiny", "cloud/text-embed-3"]
        assert cloud.looks[0].headers["authorization"] == f"Bearer {KEY}"
        assert KEY not in repr(made.views)
    # The next run knows the models before anybody has been asked.
    async with providers(tmp_path) as made:
        assert sorted(made.models) == ["cloud/big", "cloud/org/tiny", "cloud/text-embed-3"]
        assert made.views[0].state == State.CHECKING


async def test_one_that_does_not_answer_is_kept_and_looked_at_again(tmp_path: Path) -> None:
    watched = Watched()
    async with server() as cloud:
        await cloud.stop()
        async with providers(tmp_path, on_change=watched.changed, on_event=watched.told) as made:
            view = await made.add({"name": "cloud", "url": cloud.url}, None)
            assert view.state == State.DOWN
            assert "connection refused" in view.problem
            watch = asyncio.create_task(made.watch())
            await cloud.restart()
            await watched.until(lambda: made.views[0].state == State.READY)
            assert len(made.models) == 3
            watch.cancel()
            await asyncio.wait([watch])
        assert [(code, bad) for code, _, bad in watched.events] == [
            ("provider_down", True),
            ("provider_ready", False),
        ]


async def test_a_list_that_changes_is_taken_over(tmp_path: Path) -> None:
    async with server() as cloud, providers(tmp_path) as made:
        await made.add({"name": "cloud", "url": cloud.url}, None)
        cloud.models = failing(200, b'{"data":[{"id":"new"}]}')
        await made.test("cloud")
        assert list(made.models) == ["cloud/new"]
        # One that fails keeps what was known.
        cloud.models = failing(500, b"")
        assert (await made.test("cloud")).state == State.DOWN
        assert list(made.models) == ["cloud/new"]


@pytest.mark.parametrize(
    ("script", "state", "words"),
    [
        (failing(401, b"{}"), State.REFUSED, "takes no request without a key"),
        (failing(403, b"no", "text/plain"), State.REFUSED, "status 403"),
        (failing(404, b"<html>nginx</html>", "text/html"), State.DOWN, "lists no models"),
        (failing(200, b"<html>welcome</html>", "text/html"), State.DOWN, "no JSON"),
        (failing(200, b'{"data":5}'), State.DOWN, "no list of models"),
        (
            failing(301, b"", Location="https://user:pw@other.example/v1/models?k=1"),
            State.DOWN,
            "other.example",
        ),
        (failing(500, b'{"error":"boom"}'), State.DOWN, "boom"),
        (failing(200, LIST, Content_Encoding="gzip"), State.DOWN, "cannot be reached"),
        (failing(200, b" " * (9 << 20)), State.DOWN, "larger than 8 MiB"),
    ],
)
async def test_odd_answers_are_told(tmp_path: Path, script: Any, state: State, words: str) -> None:
    async with server() as cloud, providers(tmp_path) as made:
        cloud.models = script
        view = await made.add({"name": "cloud", "url": cloud.url}, None)
        assert view.state == state
        assert words in view.problem
        assert "pw" not in view.problem
        assert made.models == {}


async def test_one_without_a_list_has_the_models_that_were_named(tmp_path: Path) -> None:
    async with server() as cloud, providers(tmp_path) as made:
        cloud.models = failing(404, b"")
        view = await made.add({"name": "cloud", "url": cloud.url, "models": ["a", "b/c"]}, None)
        assert (view.state, view.models) == ("ready", 2)
        assert list(made.models) == ["cloud/a", "cloud/b/c"]


async def test_a_key_is_found_again_when_the_user_has_it_tested(tmp_path: Path) -> None:
    environ = {"CLOUD_KEY": ""}
    async with server() as cloud, providers(tmp_path, environ=environ) as made:
        view = await made.add({"name": "cloud", "url": cloud.url, "variable": "CLOUD_KEY"}, None)
        assert view.state == State.REFUSED
        assert "the variable CLOUD_KEY" in view.problem
        assert cloud.looks == []
        environ["CLOUD_KEY"] = KEY
        assert (await made.test("cloud")).state == State.READY
        assert cloud.looks[0].headers["authorization"] == f"Bearer {KEY}"


async def test_a_key_never_goes_to_another_host(tmp_path: Path) -> None:
    async with server() as cloud, server() as other, providers(tmp_path) as made:
        await made.add({"name": "cloud", "url": cloud.url}, KEY)
        with pytest.raises(BadRequest) as refused:
            await made.add({"name": "cloud", "url": other.url}, None)
        assert refused.value.param == "key"
        assert all("authorization" not in peer.headers for peer in other.looks)
        # What was there before still is.
        assert made.views[0].url == cloud.url
        # A change on the same host keeps it.
        await made.add({"name": "cloud", "url": cloud.url, "idle_s": 5}, None)
        assert cloud.looks[-1].headers["authorization"] == f"Bearer {KEY}"


async def test_the_key_is_in_no_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with server() as cloud, providers(tmp_path) as made:
        cloud.models = failing(401, b'{"error":{"message":"Incorrect key %b"}}' % KEY.encode())
        view = await made.add({"name": "cloud", "url": cloud.url}, KEY)
        assert "Incorrect key ***" in view.problem
    assert KEY not in caplog.text


async def test_the_router_itself_is_refused(tmp_path: Path) -> None:
    async with server() as cloud, providers(tmp_path) as made:

        async def itself(peer: Peer) -> None:
            assert peer.headers[VIA] == made.instance
            await failing(200, LIST, **{INSTANCE: made.instance})(peer)

        for script in (itself, failing(508, b"{}")):
            cloud.models = script
            with pytest.raises(ProviderLoop):
                await made.add({"name": "cloud", "url": cloud.url}, None)
            assert made.views == ()
            assert not (tmp_path / "providers.json").exists()


async def test_models_behind_who_asks_are_known_as_such(tmp_path: Path) -> None:
    async with server() as cloud, providers(tmp_path) as made:
        cloud.models = failing(200, LIST, **{INSTANCE: "that-router"})
        await made.add({"name": "cloud", "url": cloud.url}, None)
        model = made.models["cloud/big"]
        assert made.is_behind(model, "a, that-router")
        assert not made.is_behind(model, "a")
        with pytest.raises(ProviderLoop):
            made.refuse_loop(f"a, {made.instance}")
        made.refuse_loop("a")


async def test_removing_forgets_everything(tmp_path: Path) -> None:
    async with server() as cloud, providers(tmp_path) as made:
        await made.add({"name": "cloud", "url": cloud.url}, KEY)
        model = made.models["cloud/big"]
        await made.remove("cloud")
        assert (made.views, dict(made.models)) == ((), {})
        assert KEY not in (tmp_path / "providers.json").read_text()
        assert list((tmp_path / "cache").iterdir()) == []
        with pytest.raises(ProviderError):
            await made.acquire(model, patient=True)
        for work in (made.remove, made.test):
            with pytest.raises(NotFound):
                await work("cloud")


async def test_an_edit_of_the_file_is_taken_over(tmp_path: Path) -> None:
    watched = Watched()
    async with server() as cloud, providers(tmp_path, on_change=watched.changed) as made:
        made._waker.interval_s = 0.01
        watch = asyncio.create_task(made.watch())
        file = tmp_path / "providers.json"
        file.write_bytes(msgspec.json.encode({"providers": [{"name": "mine", "url": cloud.url}]}))
        await watched.until(lambda: "mine/big" in made.models)
        file.write_text("{")
        await watched.until(lambda: made.problems)
        assert "mine/big" in made.models
        file.write_text('{"providers": []}')
        # Its models go a moment after it.
        await watched.until(lambda: not made.views and not made.models)
        assert made.problems == ()
        watch.cancel()
        await asyncio.wait([watch])


async def test_a_model_is_asked_in_full(tmp_path: Path) -> None:
    async with server() as cloud, providers(tmp_path) as made:
        await made.add({"name": "cloud", "url": cloud.url}, None)
        model = made.models["cloud/big"]
        body = b'{"model":"big"}'
        status, answer = await made.ask(model, "/v1/chat/completions", body, 5.0)
        assert (status, msgspec.json.decode(answer)["model"]) == (200, "big")
        cloud.chat = failing(500)
        with pytest.raises(ProviderError):
            await made.ask(model, "/v1/chat/completions", body, 5.0)
        assert made.views[0].in_use == 0


async def test_a_keyring_that_hangs_holds_up_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.providers.link.KEYRING_S", 0.05)
    never = threading.Event()
    async with server() as cloud, providers(tmp_path) as made:
        await made.add({"name": "cloud", "url": cloud.url}, KEY)
        made._file.secret = lambda _: "late" if never.wait() else None  # type: ignore[method-assign]  # a lock
        view = await made.test("cloud")
        assert (view.state, "cannot be had" in view.problem) == (State.REFUSED, True)
        never.set()


async def test_many_requests_at_once_pass(tmp_path: Path) -> None:
    async with server() as cloud, providers(tmp_path) as made:
        cloud.chat = completion
        await made.add({"name": "cloud", "url": cloud.url}, None)
        model = made.models["cloud/big"]

        async def ask() -> int:
            return (await made.ask(model, "/v1/chat/completions", b'{"model":"big"}', SAFETY_S))[0]

        assert await asyncio.gather(*(ask() for _ in range(150))) == [200] * 150


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that nobody vouches for, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl to make a certificate with")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-subj", "/CN=provider", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    subprocess.run([*command, "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key


async def test_a_certificate_must_be_trusted(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.headers.get("Authorization", ""))
        return web.Response(body=LIST, content_type="application/json")

    app = web.Application()
    app.router.add_get("/v1/models", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    try:
        url = f"https://127.0.0.1:{runner.addresses[0][1]}/v1"
        async with providers(tmp_path) as known:
            view = await known.add({"name": "cloud", "url": url}, KEY)
            assert (view.state, asked) == (State.DOWN, [])
            # With the reason: an expired one, and one for another host, are mended otherwise.
            assert re.search(r"certificate is not trusted \(.*self.signed", view.problem), view.problem
            view = await known.add({"name": "cloud", "url": url, "ca_file": str(certificate[0])}, None)
            assert (view.state, asked) == (State.READY, [f"Bearer {KEY}"])
            view = await known.add({"name": "cloud", "url": url, "ca_file": str(tmp_path / "no.pem")}, None)
            assert (view.state, "cannot be used" in view.problem) == (State.DOWN, True)
    finally:
        await runner.cleanup()


async def test_encryption_that_the_other_side_does_not_have_is_said(tmp_path: Path) -> None:
    async with providers(tmp_path) as known:

        async def plain(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
            writer.close()

        async with await asyncio.start_server(plain, "127.0.0.1", 0) as listening:
            port = listening.sockets[0].getsockname()[1]
            view = await known.add({"name": "cloud", "url": f"https://127.0.0.1:{port}"}, None)
    assert "no encryption could be agreed on" in view.problem
    assert "()" not in view.problem


@pytest.mark.parametrize("wanted", [False, True])
async def test_the_proxy_of_the_environment_is_used_if_that_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: bool
) -> None:
    async with server() as cloud, server() as proxy, providers(tmp_path) as made:
        monkeypatch.setenv("http_proxy", proxy.url.removesuffix("/v1"))
        monkeypatch.delenv("no_proxy", raising=False)
        await made.add({"name": "cloud", "url": cloud.url, "proxy": wanted}, None)
        assert (len(cloud.looks), len(proxy.looks)) == ((0, 1) if wanted else (1, 0))


@pytest.mark.parametrize("patient", [False, True])
async def test_a_host_that_takes_no_connection_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patient: bool
) -> None:
    """Nobody refuses: nothing comes at all."""
    monkeypatch.setattr(
        "router.providers.link.CONNECT_S" if patient else "router.providers.link.HASTY_CONNECT_S", 0.05
    )
    async with server() as cloud, providers(tmp_path) as made:
        await made.add({"name": "cloud", "url": cloud.url}, None)

    async def never(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("aiohappyeyeballs.start_connection", never)
    async with providers(tmp_path) as made:
        lease = await made.acquire(made.models["cloud/big"], patient=patient)
        with pytest.raises(ProviderError) as refused:
            await lease.remote.post("/v1/chat/completions", (), b"{}")
        lease.release()
        assert "did not answer in time" in refused.value.message
        assert made.views[0].state == State.DOWN
