"""A Hugging Face hub on this machine: it tells what repositories hold; another host has the files."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.support.sending import Sending

COMMIT = "c" * 40
NEWER = "d" * 40
TOKEN = "hf_secret_of_a_user"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class LocalHub(Sending):
    """Repositories by name, each a mapping of paths to contents.

    Attributes:
        told: what is told of a file in place of the truth, by path: `size`, `sha256`, or `lfs`: None.
        gated: repositories that want a token; `closed` of them refuse that, too.
        private: repositories that are there only for those with a token.
        answers: statuses and headers of the next answers about repositories, in place of them.
        file_answers: the same for the next answers of files.
        asked: what was asked of the hub, path and token; `files_asked` the same of the files' host.
        linked: tells the SHA-256 when leading to the other host, as the real one does.
    """

    def __init__(self) -> None:
        super().__init__()
        self.repos: dict[str, dict[str, bytes]] = {}
        self.commits: dict[str, str] = {"main": COMMIT}
        self.told: dict[str, dict[str, Any]] = {}
        self.gated: set[str] = set()
        self.closed: set[str] = set()
        self.private: set[str] = set()
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.file_answers: list[tuple[int, dict[str, str]]] = []
        self.asked: list[tuple[str, str]] = []
        self.files_asked: list[tuple[str, str]] = []
        self.linked = True
        self.endpoint = ""
        self._files_url = ""

    @property
    def environ(self) -> dict[str, str]:
        """What leads a program here."""
        return {"HF_ENDPOINT": self.endpoint, "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}

    async def info(self, request: web.Request) -> web.Response:
        """`/api/models/...`"""
        token = request.headers.get("Authorization", "")
        self.asked.append((request.path, token))
        if self.answers:
            status, headers = self.answers.pop(0)
            return web.Response(status=status, headers=headers)
        repo = f"{request.match_info['owner']}/{request.match_info['name']}"
        if token and token != f"Bearer {TOKEN}":
            headers = {"X-Error-Message": "Invalid credentials in Authorization header"}
            return web.Response(status=401, headers=headers)
        if repo not in self.repos or (repo in self.private and not token):
            return web.Response(status=404 if token else 401, headers={"X-Error-Code": "RepoNotFound"})
        commit = self.commits.get(request.match_info.get("revision", "main"))
        if commit is None:
            return web.Response(status=404, headers={"X-Error-Code": "RevisionNotFound"})
        siblings = [self._sibling(path, data) for path, data in self.repos[repo].items()]
        gated = "manual" if repo in self.gated else False
        return web.json_response({"id": repo, "sha": commit, "gated": gated, "siblings": siblings})

    def _sibling(self, path: str, data: bytes) -> dict[str, Any]:
        found: dict[str, Any] = {"size": len(data), "sha256": sha256(data), "pointerSize": 134}
        told = self.told.get(path, {})
        found.update({key: value for key, value in told.items() if key in found})
        entry: dict[str, Any] = {"rfilename": path, "size": found["size"], "blobId": "0" * 40}
        if told.get("lfs", True) is not None:
            entry["lfs"] = found
        return entry

    async def resolve(self, request: web.Request) -> web.StreamResponse:
        """`/{owner}/{name}/resolve/...`: leads to the other host."""
        token = request.headers.get("Authorization", "")
        self.asked.append((request.path, token))
        if self.file_answers:
            status, headers = self.file_answers.pop(0)
            return web.Response(status=status, headers=headers)
        repo = f"{request.match_info['owner']}/{request.match_info['name']}"
        if repo in self.closed or (repo in self.gated and not token):
            return web.Response(status=403 if token else 401, headers={"X-Error-Code": "GatedRepo"})
        path = request.match_info["path"]
        data = self.repos[repo].get(path)
        if data is None:
            return web.Response(status=404, headers={"X-Error-Code": "EntryNotFound"})
        headers = {"X-Linked-Etag": f'"{sha256(data)}"', "X-Linked-Size": str(len(data))}
        location = f"{self._files_url}{repo}/{path}?signature=secret"
        return web.Response(status=302, headers={"Location": location, **(headers if self.linked else {})})

    async def file(self, request: web.Request) -> web.StreamResponse:
        """The other host's files."""
        self.files_asked.append((request.path, request.headers.get("Authorization", "")))
        repo = f"{request.match_info['owner']}/{request.match_info['name']}"
        return await self.send(request, self.repos[repo][request.match_info["path"]])

    def fetched(self) -> list[str]:
        """The names of the files that were asked for, in order."""
        return [path.rpartition("/")[2] for path, _ in self.files_asked]


@asynccontextmanager
async def local_hub(repos: Mapping[str, Mapping[str, bytes]] | None = None) -> AsyncIterator[LocalHub]:
    """A hub, and another server that has the files."""
    hub = LocalHub()
    for repo, files in (repos or {}).items():
        hub.repos[repo] = dict(files)
    front, files_app = web.Application(), web.Application()
    front.router.add_get("/api/models/{owner}/{name}", hub.info)
    front.router.add_get("/api/models/{owner}/{name}/revision/{revision:.+}", hub.info)
    front.router.add_get("/{owner}/{name}/resolve/{commit}/{path:.+}", hub.resolve)
    files_app.router.add_get("/{owner}/{name}/{path:.+}", hub.file)
    async with (
        TestServer(front, shutdown_timeout=0.1) as server,
        TestServer(files_app, shutdown_timeout=0.1) as files_server,
    ):
        hub.endpoint = str(server.make_url("")).rstrip("/")
        hub._files_url = str(files_server.make_url("/"))
        yield hub
