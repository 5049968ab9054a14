"""Ollama's calls that fetch and delete models."""

from __future__ import annotations

import asyncio
from typing import Any, Final, TypeVar

import msgspec
from aiohttp import hdrs, web
from msgspec import Struct

from router.catalog.hub import parse_reference
from router.catalog.model import Model, spelled
from router.catalog.pull import PullProgress
from router.errors import BadRequest, ModelNotFound, RouterError
from router.web import requests, security
from router.web.api import Pull, RouterApi
from router.web.lines import NDJSON
from router.web.ollama_models import spellings
from router.web.ollama_requests import LATEST
from router.web.options import WebOptions
from router.web.progress import Fetches
from router.web.shapes import OLLAMA, body_of
from router.web.upload import Bodies

T = TypeVar("T", bound=Struct)

_HEADERS: Final = {"Content-Type": NDJSON, "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_SUCCESS: Final = {"status": "success"}
_STAGES: Final = {
    "resolving": "pulling manifest",
    "waiting": "waiting for another pull of the same file",
    "checking": "verifying sha256 digest",
    "placing": "writing manifest",
}
_SHOWN_HEX: Final = 12


class _Pull(Struct, frozen=True):
    """`name` is the older spelling."""

    model: str = ""
    name: str = ""
    stream: bool | None = None
    insecure: bool | None = None


class _Delete(Struct, frozen=True):
    model: str = ""
    name: str = ""


class OllamaPulls:
    """The handlers."""

    def __init__(self, api: RouterApi, bodies: Bodies, options: WebOptions) -> None:
        self._api = api
        self._bodies = bodies
        self._options = options
        self._running = Fetches()

    async def pull(self, request: web.Request) -> web.StreamResponse:
        """`POST /api/pull {model}`: a model of the Hugging Face hub, with its progress as lines.

        One that is here already is not fetched again. A client that leaves does not end the pull.
        """
        wanted = await self._read(request, _Pull)
        name = _named(wanted.model or wanted.name)
        pull = None if self._is_here(name) else await self._api.pull(name.removesuffix(LATEST))
        if pull is not None:
            # It goes on without its client, and then nobody looks at how it ended.
            self._running.hold(pull.wait())
        if wanted.stream is False:
            if pull is not None:
                await pull.wait()
            return _json(_SUCCESS)
        response = web.StreamResponse(headers=_HEADERS)
        await response.prepare(request)
        if pull is not None:
            try:
                await self._tell(pull, response)
            except RouterError as error:
                await response.write(_line(body_of(error, OLLAMA)))
                await response.write_eof()
                return response
        await response.write(_line(_SUCCESS))
        await response.write_eof()
        return response

    async def delete(self, request: web.Request) -> web.Response:
        """`DELETE /api/delete {model}`: a policy, or the files of a model."""
        wanted = await self._read(request, _Delete)
        missing: ModelNotFound | None = None
        for name in spellings(_named(wanted.model or wanted.name)):
            try:
                await self._api.delete(name)
            except ModelNotFound as exc:
                missing = missing or exc
                continue
            return _json(_SUCCESS)
        assert missing is not None
        raise missing

    async def _tell(self, pull: Pull, response: web.StreamResponse) -> None:
        stage = ""
        async for progress in pull:
            await response.write(_line(progress_line(progress)))
            if progress.stage == stage:
                await asyncio.sleep(self._options.snapshots_s)
            stage = progress.stage

    def _is_here(self, name: str) -> bool:
        """Whether it is here under just that name. One that could mean several is for the hub to say."""
        for spelling in spellings(name):
            try:
                found = self._api.resolve(spelling)
            except ModelNotFound:
                continue
            names = (found.name, *(found.aliases if isinstance(found, Model) else ()))
            if spelled(spelling) in names or _plainly(spelling) in (each.casefold() for each in names):
                return True
        return False

    async def _read(self, request: web.Request, kind: type[T]) -> T:
        security.require_json(request)
        requests.check_content_type(request.headers.get(hdrs.CONTENT_TYPE, ""))
        body = await self._bodies.read(request, self._options.max_admin_body)
        return await requests.decode_as(kind, body, self._options)


def progress_line(progress: PullProgress) -> dict[str, Any]:
    """One line of a pull's progress."""
    if progress.stage in _STAGES:
        return {"status": _STAGES[progress.stage]}
    if not progress.sha256:
        return {"status": progress.stage, "completed": progress.done, "total": progress.total or 0}
    return {
        "status": f"pulling {progress.sha256[:_SHOWN_HEX]}",
        "digest": f"sha256:{progress.sha256}",
        "total": progress.file_size,
        "completed": progress.file_done,
    }


def _plainly(name: str) -> str:
    """A name of the hub's as the catalog writes it, in small letters; "" if it is none."""
    try:
        return str(parse_reference(name)).casefold()
    except BadRequest:
        return ""


def _named(name: str) -> str:
    if not name.strip():
        raise BadRequest("`model` is missing.", param="model")
    return name.strip()


def _line(value: Any) -> bytes:
    return msgspec.json.encode(value) + b"\n"


def _json(value: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
