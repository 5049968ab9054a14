"""Calls about engines: listed from the snapshot, fetched with progress, chosen, deleted."""

from __future__ import annotations

from typing import Any

import pytest

from router.errors import RouterError
from router.snapshot import DownloadView, EngineView
from router.web.options import WebOptions
from tests.router.web.fakes import events_of, reply, site, snapshot

ENGINES = (
    EngineView("embedded", "Embedded engine", "embedded", in_use=True),
    EngineView("vulkan", "llama.cpp (Vulkan)", "offer", backends=("vulkan",)),
)


async def test_they_are_listed_from_the_snapshot() -> None:
    async with site(reply) as s:
        s.api.publish(snapshot(2, engines=ENGINES))
        for answer in (
            await s.ask("GET", "/internal/engines"),
            await s.post("/internal/engines/refresh", {}),
            await s.ask("POST", "/internal/engines/refresh", b""),
        ):
            listed = answer.json()["engines"]
            assert [engine["id"] for engine in listed] == ["embedded", "vulkan"]
            assert listed[0]["in_use"] is True
        assert s.api.calls == [("refresh_engines",), ("refresh_engines",)]


async def test_a_fetch_is_begun_and_answered_at_once() -> None:
    async with site(reply) as s:
        for body, id in (({}, None), ({"id": "vulkan"}, "vulkan"), ({"id": None, "stream": False}, None)):
            answer = await s.post("/internal/engines/get", body)
            assert (answer.status, answer.json()["status"]) == (202, "success")
            assert s.api.calls[-1] == ("get_engine", id)
        assert (await s.ask("POST", "/internal/engines/get", b"")).status == 202
        # Nobody waits for it any more: its failure is nobody's fault.
        s.api.pulled.set_exception(RouterError("No network."))
        assert (await s.ask("GET", "/live")).status == 200


async def test_a_fetch_tells_its_progress() -> None:
    async with site(reply, WebOptions(snapshots_s=0.0)) as s, s.client() as client:
        other = DownloadView("demo", "running", 99, 100)
        s.api.publish(snapshot(2, downloads=(DownloadView("GPU build vulkan", "running", 25, 100), other)))
        await client.send("POST", "/internal/engines/get", b'{"id":"vulkan","stream":true}')
        answer = await client.answer(lambda a: b"25.0" in a.body)
        s.api.publish(snapshot(3, downloads=(DownloadView("GPU build vulkan", "running", 50, 100), other)))
        await client.more(answer, lambda a: b"50.0" in a.body)
        s.api.pulled.set_result(None)
        await client.more(answer)
        assert b"99" not in answer.body
        assert events_of(answer.body)[-1].startswith(b"event: complete\n")
        assert s.api.subscriptions == 0


async def test_a_fetch_that_fails_is_told_in_the_stream() -> None:
    async with site(reply) as s:
        s.api.pulled.set_exception(RouterError("Too many.", code="rate_limited", status=503))
        answer = await s.post("/internal/engines/get", {"stream": True})
        assert answer.status == 200
        assert b"rate_limited" in answer.body


async def test_a_client_that_leaves_does_not_stop_the_fetch() -> None:
    async with site(reply) as s:
        s.api.publish(snapshot(2, downloads=(DownloadView("GPU build", "running", 25, 100),)))
        async with s.client() as client:
            await client.send("POST", "/internal/engines/get", b'{"stream":true}')
            await client.answer(lambda a: b"progress" in a.body)
        assert (await s.ask("GET", "/live")).status == 200
        assert not s.api.pulled.cancelled()


async def test_choosing_and_deleting(monkeypatch: pytest.MonkeyPatch) -> None:
    async with site(reply) as s:
        calls: list[tuple[str, str]] = []

        async def use(id: str) -> None:
            calls.append(("use", id))

        async def remove(id: str) -> None:
            calls.append(("remove", id))

        monkeypatch.setattr(s.api, "use_engine", use)
        monkeypatch.setattr(s.api, "remove_engine", remove)
        assert (await s.post("/internal/engines/use", {"id": "b1-vulkan"})).json()["id"] == "b1-vulkan"
        assert (await s.post("/internal/engines/remove", {"id": "b1-vulkan"})).json()["status"] == "success"
        assert calls == [("use", "b1-vulkan"), ("remove", "b1-vulkan")]


@pytest.mark.parametrize("action", ["get", "use", "remove"])
@pytest.mark.parametrize(
    "body", [{"id": 7}, {"id": ""}, {"id": " "}, {"id": "a\0b"}, {"name": "x"}, [], {"id": "x", "y": 1}]
)
async def test_a_wrong_body_is_refused(action: str, body: Any) -> None:
    async with site(reply) as s:
        answer = await s.post(f"/internal/engines/{action}", body)
        assert answer.status == 400
        assert s.api.calls == []


async def test_an_engine_that_is_not_there_is_told() -> None:
    async with site(reply) as s:
        answer = await s.post("/internal/engines/use", {"id": "b7-vulkan"})
        assert (answer.status, answer.error["param"]) == (404, "id")
        assert (await s.post("/internal/engines/use", {})).status == 400
