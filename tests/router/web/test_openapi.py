"""The description of the endpoint is true: made-up requests are answered as it says, and never with a 500."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from router.web.app import Endpoint
from router.web.calls import PREFIXES
from tests.router.web.fakes import CHAT, FakeApi, reply, site
from tests.support.hammer import hammer

#: Made-up names would hardly ever be those of models.
NAMES = ["alpha", "beta", "embed", "rank", "auto", "nope"]
#: It never ends.
ENDLESS = ("/v1/events",)


@pytest.mark.timeout(600)  # Making requests up takes long where other tests take the processor.
@pytest.mark.parametrize("examples", [2, pytest.param(20, marks=pytest.mark.long)])
async def test_everything_answers_as_described(examples: int) -> None:
    """`examples` right requests for each call, and as many wrong ones."""
    async with site(reply) as s:
        s.api.pulled.set_result(None)  # What is fetched is there at once.
        document = (await s.ask("GET", "/openapi.json")).json()
        for operations in document["paths"].values():
            for operation in operations.values():
                _narrow(operation.get("requestBody"))
        statuses = await asyncio.to_thread(hammer, document, s.endpoint.url, examples, ENDLESS)
        assert {200, 400, 404} <= set(statuses)
        assert s.worker.requests


def _narrow(part: Any) -> None:
    """Let each name of a model be one of a few."""
    if isinstance(part, dict):
        for key, value in part.items():
            if key in ("model", "model_name") and isinstance(value, dict) and value.get("type") == "string":
                part[key] = {"enum": NAMES}
            else:
                _narrow(value)
    elif isinstance(part, list):
        for value in part:
            _narrow(value)


async def test_every_route_is_described_under_its_first_path() -> None:
    endpoint = Endpoint(FakeApi())
    routed = {
        (route.method, str(route.resource.canonical))
        for route in endpoint._app.router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
    async with site(reply) as s:
        document = (await s.ask("GET", "/openapi.json")).json()
    described = {
        (method.upper(), prefix + path.removeprefix("/v1"))
        for path, operations in document["paths"].items()
        for method in operations
        for prefix in (PREFIXES if path.startswith("/v1/") else ("",))
    }
    assert routed == described
    assert len(described) > 80


async def test_options_and_settings_are_described_in_words() -> None:
    async with site(reply) as s:
        paths = (await s.ask("GET", "/openapi.json")).json()["paths"]
    for path in ("/v1/load", "/v1/plan", "/internal/set"):
        members = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
        named = {name for name, member in members.items() if member.get("description", "").endswith(".")}
        assert set(members) - named <= {"model", "model_name"}, path


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/a", "/v1/health", "/v1/stats", "/v0/system-info"])
async def test_head_is_get_without_its_body(path: str) -> None:
    async with site(reply) as s, s.client() as client:
        whole = await s.ask("GET", path)
        answer = await client.ask("HEAD", path)
        assert answer.status == whole.status == 200
        assert answer.headers["content-length"] == str(len(whole.body))
        assert (await client.ask("GET", "/live")).status == 200  # No body came that would be in the way.


@pytest.mark.parametrize(
    ("path", "allowed"),
    [(CHAT, "OPTIONS, POST"), ("/v1/models", "GET, HEAD, OPTIONS"), ("/internal/set", "OPTIONS, POST")],
)
async def test_options_tell_what_a_path_takes(path: str, allowed: str) -> None:
    async with site(reply) as s:
        answer = await s.ask("OPTIONS", path)
        assert (answer.status, answer.headers["allow"]) == (204, allowed)
        refused = await s.ask("DELETE", path)
        assert (refused.status, refused.error["code"]) == (405, "method_not_allowed")
        assert set(refused.headers["allow"].split(",")) <= set(allowed.split(", "))
