"""Calls about remote providers: which there are, adding one, looking at one, removing one."""

from __future__ import annotations

from aiohttp import web
from msgspec import UNSET, Struct, UnsetType, structs

from router.errors import BadRequest
from router.web.admin import Read, json_response, success
from router.web.api import RouterApi


class _Added(Struct, frozen=True, forbid_unknown_fields=True):
    """As `router.providers.store.Provider`; `key` is the key itself, null or "" for none."""

    name: str
    url: str
    key: str | UnsetType | None = UNSET
    variable: str | UnsetType = UNSET
    models: list[str] | UnsetType = UNSET
    types: dict[str, str] | UnsetType = UNSET
    allow_http: bool | UnsetType = UNSET
    proxy: bool | UnsetType = UNSET
    ca_file: str | UnsetType = UNSET
    idle_s: float | UnsetType = UNSET


class _Named(Struct, frozen=True, forbid_unknown_fields=True):
    name: str


class ProviderCalls:
    """The handlers of these calls. `read` reads a request's body as one of the structs above."""

    def __init__(self, api: RouterApi, read: Read) -> None:
        self._api = api
        self._read = read

    async def list(self, request: web.Request) -> web.Response:
        """`GET /internal/providers`"""
        return json_response({"providers": self._api.snapshot.providers})

    async def add(self, request: web.Request) -> web.Response:
        """`POST /internal/providers/add {name, url, key?, ...}`: keep a provider, and look at it."""
        wanted = await self._read(request, _Added)
        given = {name: value for name, value in structs.asdict(wanted).items() if value is not UNSET}
        key = given.pop("key", UNSET)
        view = await self._api.add_provider(given, None if key is UNSET else key or "")
        return success(f"The provider {view.name} is added.", provider=view)

    async def remove(self, request: web.Request) -> web.Response:
        """`POST /internal/providers/remove {name}`"""
        name = await self._name(request)
        await self._api.remove_provider(name)
        return success(f"The provider {name} is removed.", name=name)

    async def test(self, request: web.Request) -> web.Response:
        """`POST /internal/providers/test {name}`: look at it now; `provider` tells what was found."""
        view = await self._api.test_provider(await self._name(request))
        return success(f"The provider {view.name} is {view.state}.", provider=view)

    async def _name(self, request: web.Request) -> str:
        name = (await self._read(request, _Named)).name
        if not name.strip():
            raise BadRequest("`name` is empty.", param="name")
        return name
