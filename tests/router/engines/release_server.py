"""A place of releases on this machine that behaves as tests tell it to, and archives to put there."""

from __future__ import annotations

import functools
import hashlib
import io
import random
import stat
import tarfile
import zipfile
from typing import Any

from aiohttp import web

from router.engines.releases import Machine
from tests.support.sending import Sending

LINUX = Machine("linux", "x86_64", frozenset({"vulkan"}))
TAG = "b100"

#: A llama-server that only says who it is, whatever it is asked. What it reads beside itself shows that it
#: was unpacked whole.
PROGRAM = """#!/bin/sh
beside="$(dirname "$0")/libllama.so"
echo "version: 100 (abcdef) $(cat "$beside" 2>/dev/null || echo alone)"
echo "Available devices:"
echo "  Vulkan0: a card (8192 MiB, 8000 MiB free)"
echo "  --parallel N  --port PORT  --metrics"
"""
# Does not get smaller when packed.
PADDING = random.Random(1).randbytes(2_500_000)


def tar(*entries: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """A .tar.gz of exactly these entries."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
        for info, content in entries:
            info.size = len(content) if info.isreg() else info.size
            archive.addfile(info, io.BytesIO(content) if info.isreg() else None)
    return packed.getvalue()


def entry(
    name: str, content: bytes = b"", *, mode: int = 0o644, kind: bytes = tarfile.REGTYPE, to: str = ""
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.mode, info.type, info.linkname = mode, kind, to
    return info, content


@functools.cache
def good_tar(program: str = PROGRAM, tag: str = TAG) -> bytes:
    """As the project packs them: one folder, libraries behind links, the program."""
    top = f"llama-{tag}"
    return tar(
        entry(f"{top}/", kind=tarfile.DIRTYPE, mode=0o755),
        entry(f"{top}/libllama.so", kind=tarfile.SYMTYPE, to="libllama.so.0"),
        entry(f"{top}/libllama.so.0", kind=tarfile.SYMTYPE, to="libllama.so.0.0.100"),
        entry(f"{top}/libllama.so.0.0.100", b"whole"),
        entry(f"{top}/LICENSE", b"MIT"),
        entry(f"{top}/llama-server", program.encode(), mode=0o755),
        entry(f"{top}/padding.bin", PADDING),
    )


def zipped(files: dict[str, bytes], *, modes: dict[str, int] | None = None) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in files.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = (modes or {}).get(name, 0) << 16
            archive.writestr(info, content)
    return packed.getvalue()


def good_zip(program: str = PROGRAM) -> bytes:
    """As for another system: no folder, no modes but one, a link."""
    return zipped(
        {
            "libllama.so": b"libllama.so.0",
            "libllama.so.0": b"whole",
            "llama-server": program.encode(),
        },
        modes={"libllama.so": stat.S_IFLNK | 0o777},
    )


class GitHub(Sending):
    """Answers for the API and for the files; `releases` has the newest first."""

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, bytes] = {}
        self.digests: dict[str, str | None] = {}
        self.releases: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self.api_status = 200
        self.api_headers: dict[str, str] = {}
        self.api_body: bytes | None = None

    def publish(self, tag: str, files: dict[str, bytes], *, digests: bool = True, **more: Any) -> None:
        """A release that is newer than those before."""
        assets = []
        for name, data in files.items():
            self.files[name] = data
            digest = f"sha256:{hashlib.sha256(data).hexdigest()}" if digests else None
            assets.append(
                {
                    "name": name,
                    "browser_download_url": f"/files/{name}",
                    "size": len(data),
                    "digest": self.digests.get(name, digest),
                    "state": "uploaded",
                    "uploader": {"login": "someone"},
                }
            )
        self.releases.insert(0, {"tag_name": tag, "assets": assets, "draft": False, **more})

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/api/releases/latest", self._latest)
        app.router.add_get("/api/releases", self._recent)
        app.router.add_get("/api/releases/tags/{tag}", self._tagged)
        app.router.add_get("/files/{name}", self._file)
        return app

    async def _latest(self, request: web.Request) -> web.Response:
        return self._answer(request, self.releases[0] if self.releases else None)

    async def _recent(self, request: web.Request) -> web.Response:
        return self._answer(request, self.releases)

    async def _tagged(self, request: web.Request) -> web.Response:
        tag = request.match_info["tag"]
        return self._answer(request, next((r for r in self.releases if r["tag_name"] == tag), None))

    def _answer(self, request: web.Request, value: Any) -> web.Response:
        self.asked.append(request.path_qs.removeprefix("/api/"))
        assert request.headers["User-Agent"].startswith("lemon-tray/")
        if self.api_status != 200 or value is None:
            return web.Response(
                status=self.api_status if self.api_status != 200 else 404, headers=self.api_headers
            )
        if self.api_body is not None:
            return web.Response(body=self.api_body, content_type="application/json")
        return web.json_response(_with_host(value, f"http://{request.host}"))

    async def _file(self, request: web.Request) -> web.StreamResponse:
        return await self.send(request, self.files[request.match_info["name"]])


def _with_host(value: Any, host: str) -> Any:
    if isinstance(value, list):
        return [_with_host(item, host) for item in value]
    assets = [
        {**asset, "browser_download_url": host + asset["browser_download_url"]} for asset in value["assets"]
    ]
    return {**value, "assets": assets}
