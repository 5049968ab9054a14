"""Calls about the router itself: models, load, unload, pull, delete, settings, pins, policies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, Protocol, TypeVar

import msgspec
from aiohttp import hdrs, web
from msgspec import UNSET, Struct, UnsetType

from router.errors import BadRequest
from router.policy import parse
from router.policy.request import RequestView
from router.providers.link import INSTANCE, VIA
from router.units import gib
from router.web import health, requests
from router.web.api import RouterApi
from router.web.options import WebOptions
from router.web.progress import Fetches, raise_failure, stream_progress
from router.web.security import require_json
from router.web.tally import Tally
from router.web.upload import Bodies, Body

T = TypeVar("T")


class _Unload(Struct, frozen=True, forbid_unknown_fields=True):
    model_name: str | None = None
    model: str | None = None
    wait: bool = True
    force: bool = False


class _Delete(Struct, frozen=True, forbid_unknown_fields=True):
    model_name: str | UnsetType = UNSET
    model: str | UnsetType = UNSET


class _Pin(Struct, frozen=True, forbid_unknown_fields=True):
    model_name: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    pinned: bool = True


class _Pause(Struct, frozen=True, forbid_unknown_fields=True):
    paused: bool


class Nothing(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a call that takes none."""


class _Told(Struct, frozen=True, forbid_unknown_fields=True):
    id: str


class _Try(Struct, frozen=True, forbid_unknown_fields=True):
    policy: dict[str, Any]
    prompt: str | None = None
    has_images: bool | None = None
    has_tools: bool | None = None
    metadata: dict[str, str] | None = None


class _Enable(Struct, frozen=True, forbid_unknown_fields=True):
    enabled: bool


def json_response(value: Any, *, status: int = 200) -> web.Response:
    """A JSON response."""
    return web.Response(status=status, body=msgspec.json.encode(value), content_type="application/json")


class Read(Protocol):
    """Reads the body of a request as a struct, as `Admin.read` does."""

    def __call__(
        self, request: web.Request, kind: type[T], *, empty_is_object: bool = False
    ) -> Awaitable[T]: ...


class Admin:
    """The handlers of the calls that no model answers. `description` is what `/openapi.json` tells."""

    def __init__(self, api: RouterApi, tally: Tally, bodies: Bodies, options: WebOptions) -> None:
        self._api = api
        self._tally = tally
        self._bodies = bodies
        self._options = options
        self.description: dict[str, Any] = {}
        self._encoded = b""
        self._pulls = Fetches()

    async def models(self, request: web.Request) -> web.Response:
        """`GET /v1/models`"""
        via = request.headers.get(VIA, "")
        answer = json_response(health.models(self._api.snapshot, self._api.listing(via)))
        if via:
            answer.headers[INSTANCE] = self._api.instance
        return answer

    async def model(self, request: web.Request) -> web.Response:
        """`GET /v1/models/{id}`"""
        return json_response(
            health.model_entry(self._api.resolve(request.match_info["id"]), self._api.snapshot)
        )

    async def health(self, request: web.Request) -> web.Response:
        """`GET /v1/health`: from the snapshot, whatever else goes on."""
        return json_response(health.health(self._api.snapshot))

    async def stats(self, request: web.Request) -> web.Response:
        """`GET /v1/stats`: how the newest answer of a model went; empty before the first."""
        return json_response(health.stats(self._tally.last))

    async def system_info(self, request: web.Request) -> web.Response:
        """`GET /v1/system-info`: the machine, its devices and the engines, from the snapshot."""
        return json_response(health.system_info(self._api.snapshot))

    async def openapi(self, request: web.Request) -> web.Response:
        """`GET /openapi.json`"""
        if not self._encoded:
            self._encoded = msgspec.json.encode(self.description)
        return web.Response(body=self._encoded, content_type="application/json")

    async def live(self, request: web.Request) -> web.Response:
        """`GET /live`"""
        return json_response({"status": "ok"})

    async def load(self, request: web.Request) -> web.Response:
        """`POST /v1/load {model_name, ...options}`: answers when the model is ready."""
        options = await self._object(request)
        name = _take_name(options)
        await self._api.load(name, options)
        return success(f"{name} is loaded.", model_name=name)

    async def plan(self, request: web.Request) -> web.Response:
        """`POST /v1/plan {model, ...options}`: what a load would take and whether it fits; loads nothing."""
        options = await self._object(request)
        return json_response(await self._api.plan(_take_name(options), options))

    async def unload(self, request: web.Request) -> web.Response:
        """`POST /v1/unload {model_name?, wait?, force?}`: all models without a name."""
        wanted = await self.read(request, _Unload, empty_is_object=True)
        names = [given for given in (wanted.model_name, wanted.model) if given is not None]
        if not all(given.strip() for given in names):
            raise BadRequest("`model_name` is empty. Leave it out to unload all models.", param="model_name")
        name = _one(names) if names else None
        await self._api.unload(name, wait=wanted.wait, force=wanted.force)
        what = name or "All models"
        if not wanted.wait:
            return success(f"{what}: unloading.", status=202, model_name=name)
        return success(f"{what}: unloaded.", model_name=name)

    async def pull(self, request: web.Request) -> web.StreamResponse:
        """`POST /v1/pull`: a policy document, or a model of the hub; with `stream`, progress as events."""
        document = await self._object(request)
        if document.get("recipe") == parse.RECIPE:
            policy = await self._api.register_policy(document)
            return success(f"The policy {policy.name} is registered.", model_name=policy.name)
        stream = document.pop("stream", False)
        name = _take_name(document)
        if document:
            key = next(iter(document))
            raise BadRequest(
                f"`{key[:80]}` is not known here. A model is named by model_name alone, such as "
                f"owner/repo:Q4_K_M; a policy has the recipe {parse.RECIPE}.",
                param=key,
            )
        if not isinstance(stream, bool):
            raise BadRequest("`stream` must be true or false.", param="stream")
        pull = await self._api.pull(name)
        end = self._pulls.hold(pull.wait())
        if stream:
            return await stream_progress(
                request, self._api, self._options, end, pull.name, lambda model: {"model_name": model}
            )
        await asyncio.wait([end])
        model = raise_failure(end)
        return success(f"{model} is here.", model_name=model)

    async def cancel_pull(self, request: web.Request) -> web.Response:
        """`POST /v1/pull/cancel {model_name}`: stop a pull; what has arrived is kept."""
        wanted = await self.read(request, _Delete)
        name = _named(wanted.model_name, wanted.model)
        await self._api.cancel_pull(name)
        return success(f"{name} is no longer being pulled. What has arrived is kept.", model_name=name)

    async def delete(self, request: web.Request) -> web.Response:
        """`POST /v1/delete {model_name}`: a policy, or the files of a model."""
        wanted = await self.read(request, _Delete)
        deleted = await self._api.delete(_named(wanted.model_name, wanted.model))
        what = f"The {deleted.kind} {deleted.name} is deleted"
        freed = f"; {gib(deleted.freed)} is free again" if deleted.freed else ""
        return success(f"{what}{freed}.", model_name=deleted.name, bytes_freed=deleted.freed)

    async def set(self, request: web.Request) -> web.Response:
        """`POST /internal/set {key: value, ...}`: all or none; answers with the values in force."""
        changes = await self._object(request)
        generation = await self._api.set_settings(changes)
        in_force = msgspec.to_builtins(self._api.settings)
        return json_response({"generation": generation, "settings": {key: in_force[key] for key in changes}})

    async def config(self, request: web.Request) -> web.Response:
        """`GET /internal/config`: the values in force."""
        return json_response(self._api.settings)

    async def defaults(self, request: web.Request) -> web.Response:
        """`GET /internal/config/defaults`"""
        return json_response(self._api.settings_defaults())

    async def pin(self, request: web.Request) -> web.Response:
        """`POST /internal/pin {model, pinned}`"""
        wanted = await self.read(request, _Pin)
        name = _named(wanted.model, wanted.model_name, param="model")
        self._api.pin(name, wanted.pinned)
        return success(f"{name} is {'pinned' if wanted.pinned else 'no longer pinned'}.", model_name=name)

    async def pause(self, request: web.Request) -> web.Response:
        """`POST /internal/pause {paused}`: load nothing that is not asked for explicitly, or go on."""
        wanted = await self.read(request, _Pause)
        self._api.pause(wanted.paused)
        return success("Loading is paused." if wanted.paused else "Loading goes on.")

    async def shut_down(self, request: web.Request) -> web.Response:
        """`POST /internal/shutdown`: end the program; answers under way get the usual grace."""
        await self.read(request, Nothing, empty_is_object=True)
        self._api.shut_down()
        return success("Lemon Tray ends.", status=202)

    async def notices(self, request: web.Request) -> web.Response:
        """`GET /v1/notices`: those that are due and have not been told."""
        return json_response({"notices": self._api.snapshot.notices})

    async def tell_notice(self, request: web.Request) -> web.Response:
        """`POST /v1/notices {id}`: the user has seen it; it is not shown again."""
        wanted = await self.read(request, _Told)
        await self._api.tell_notice(wanted.id)
        return success(f"The notice {wanted.id} is not shown again.")

    async def policy(self, request: web.Request) -> web.Response:
        """`POST /internal/policies/{name} {enabled}`"""
        name = request.match_info["name"]
        wanted = await self.read(request, _Enable)
        await self._api.enable_policy(name, wanted.enabled)
        return success(f"The policy {name} is {'on' if wanted.enabled else 'off'}.", model_name=name)

    async def policies(self, request: web.Request) -> web.Response:
        """`GET /internal/policies`: all of them, also those that are off."""
        return json_response({"policies": self._api.snapshot.policies})

    async def policy_document(self, request: web.Request) -> web.Response:
        """`GET /internal/policies/{name}`: the document, to keep or to register elsewhere."""
        return json_response(self._api.policy_document(request.match_info["name"]))

    async def try_policy(self, request: web.Request) -> web.Response:
        """`POST /v1/routing/validate`: what a policy decides; nothing is registered or answered."""
        wanted = await self.read(request, _Try)
        metadata = wanted.metadata or {}
        view = RequestView(wanted.prompt or "", bool(wanted.has_tools), bool(wanted.has_images), metadata)
        decision, normalized = await self._api.try_policy(wanted.policy, view)
        return json_response({"decision": decision.document(trace=True), "normalized_policy": normalized})

    async def simulate(self, request: web.Request) -> web.Response:
        """`POST /internal/simulate`: changes a simulated device."""
        return json_response(self._api.simulate(await self._object(request)))

    async def _body(self, request: web.Request) -> Body:
        require_json(request)
        requests.check_content_type(request.headers.get(hdrs.CONTENT_TYPE, ""))
        return await self._bodies.read(request, self._options.max_admin_body)

    async def _object(self, request: web.Request) -> dict[str, Any]:
        return await requests.decode_object(await self._body(request), self._options)

    async def read(self, request: web.Request, kind: type[T], *, empty_is_object: bool = False) -> T:
        """The body as that struct.

        Raises:
            BadRequest: naming the field; another error if it is too large or no JSON.
        """
        body = await self._body(request)
        if empty_is_object and not body.strip():  # Such bodies are small.
            body = b"{}"
        return await requests.decode_as(kind, body, self._options)


def success(message: str, *, status: int = 200, **more: Any) -> web.Response:
    """The answer to a call that did what it was asked to."""
    return json_response({"status": "success", "message": message, **more}, status=status)


def _named(*given: str | UnsetType, param: str = "model_name") -> str:
    names = [name for name in given if name is not UNSET]
    if not names or not all(name.strip() for name in names):
        raise BadRequest(f"`{param}` is missing.", param=param)
    return _one(names)


def _one(names: Sequence[str]) -> str:
    """The name that all of them are: a call may give it as `model`, as `model_name`, or as both."""
    if any(name != names[0] for name in names):
        raise BadRequest(
            "`model` and `model_name` are two names of one thing, and here they differ. Send one of them.",
            param="model",
        )
    return names[0]


def _take_name(document: dict[str, Any]) -> str:
    """Take `model_name` (or `model`) out of a document."""
    given = [document.pop(key) for key in ("model_name", "model") if key in document]
    if not all(isinstance(name, str) for name in given):
        raise BadRequest("`model_name` must be a string.", param="model_name")
    return _named(*given)
