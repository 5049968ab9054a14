"""Calls about engines: which there are, fetching a GPU build, choosing one, deleting a build."""

from __future__ import annotations

from typing import Any

from aiohttp import web
from msgspec import Struct

from router.engines.builds import download_name
from router.errors import BadRequest
from router.web.admin import Nothing, Read, json_response, success
from router.web.api import RouterApi
from router.web.options import WebOptions
from router.web.progress import Fetches, stream_progress


class _Get(Struct, frozen=True, forbid_unknown_fields=True):
    id: str | None = None
    stream: bool = False


class _Named(Struct, frozen=True, forbid_unknown_fields=True):
    id: str


class EngineCalls:
    """The handlers of these calls. `read` reads a request's body as one of the structs above."""

    def __init__(self, api: RouterApi, options: WebOptions, read: Read) -> None:
        self._api = api
        self._options = options
        self._read = read
        self._fetches = Fetches()

    async def list(self, request: web.Request) -> web.Response:
        """`GET /internal/engines`: those that are here, and those that can be fetched."""
        return json_response({"engines": self._api.snapshot.engines})

    async def refresh(self, request: web.Request) -> web.Response:
        """`POST /internal/engines/refresh`: ask which builds there are, and list all."""
        await self._read(request, Nothing, empty_is_object=True)
        await self._api.refresh_engines()
        return await self.list(request)

    async def get(self, request: web.Request) -> web.StreamResponse:
        """`POST /internal/engines/get {id?, stream?}`: fetch a build; with `stream`, progress as events."""
        wanted = await self._read(request, _Get, empty_is_object=True)
        if wanted.id is not None:
            _check(wanted.id)
        end = self._fetches.hold(await self._api.get_engine(wanted.id))
        name = download_name(wanted.id)
        if wanted.stream:
            done: dict[str, Any] = {"model_name": name, "id": wanted.id}
            return await stream_progress(request, self._api, self._options, end, name, lambda _: done)
        return success(f"{name}: being fetched.", status=202, id=wanted.id)

    async def use(self, request: web.Request) -> web.Response:
        """`POST /internal/engines/use {id}`: load models with that engine from now on."""
        id = _check((await self._read(request, _Named)).id)
        await self._api.use_engine(id)
        return success(f"Models are loaded with {id} from now on.", id=id)

    async def remove(self, request: web.Request) -> web.Response:
        """`POST /internal/engines/remove {id}`: delete a build that was fetched."""
        id = _check((await self._read(request, _Named)).id)
        await self._api.remove_engine(id)
        return success(f"The build {id} is deleted.", id=id)


def _check(id: str) -> str:
    if not id.strip() or "\0" in id:
        raise BadRequest("`id` is empty.", param="id")
    return id
