"""Calls about the router itself, and the one shape of errors."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from router.catalog.demo import DEMO
from router.errors import RouterError
from router.snapshot import DeviceState, DeviceView, DownloadView, EngineView, ModelView, NoticeView
from router.web.options import WebOptions
from tests.router.web.fakes import CHAT, SAFETY_S, Peer, chat, events_of, reply, site, snapshot


async def test_models_under_every_prefix() -> None:
    async with site(reply) as s:
        answers = [await s.ask("GET", f"{p}/models") for p in ("/v1", "/api/v1", "/v0", "/api/v0")]
        assert {a.status for a in answers} == {200}
        assert len({bytes(a.body) for a in answers}) == 1
        assert answers[0].json()["object"] == "list"
        one = (await s.ask("GET", "/v1/models/a")).json()
        assert one == answers[0].json()["data"][0]
        assert (await s.ask("GET", "/v1/models/no/such")).error["code"] == "model_not_found"


async def test_load_and_unload() -> None:
    async with site(reply) as s:
        answer = await s.post("/v1/load", {"model_name": "alpha", "ctx_size": 4096, "pinned": True})
        assert answer.json()["status"] == "success"
        assert (await s.post("/api/v1/load", {"model": "beta"})).status == 200
        assert (await s.post("/v1/unload", {"model_name": "alpha"})).status == 200
        assert (await s.post("/v1/unload", {"model": "beta", "wait": False, "force": True})).status == 202
        assert (await s.post("/v1/unload", {})).status == 200
        assert (await s.ask("POST", "/v1/unload", b"")).status == 200
        assert s.api.calls == [
            ("load", "alpha", {"ctx_size": 4096, "pinned": True}),
            ("load", "beta", {}),
            ("unload", "alpha", True, False),
            ("unload", "beta", False, True),
            ("unload", None, True, False),
            ("unload", None, True, False),
        ]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/load", {}, "model_name"),
        ("/v1/load", {"model_name": 7}, "model_name"),
        ("/v1/load", {"model_name": " "}, "model_name"),
        ("/v1/load", [], None),
        ("/v1/unload", {"model_name": ""}, "model_name"),
        ("/v1/unload", {"wait": "yes"}, "wait"),
        ("/v1/unload", {"all": True}, None),
        ("/v1/pull", {"model_name": "owner"}, "model_name"),
        ("/v1/pull", {"model_name": "owner/repo:../x.gguf"}, "model_name"),
        ("/v1/pull", {"model_name": "demo", "quant": "Q4"}, "quant"),
        ("/v1/pull", {"model_name": "demo", "stream": "yes"}, "stream"),
        ("/v1/delete", {}, "model_name"),
        ("/v1/pull/cancel", {}, "model_name"),
        ("/internal/set", [], None),
        ("/internal/set", {"max_modles": 2}, "max_modles"),
        ("/internal/pin", {"pinned": True}, "model"),
        ("/internal/pin", {"model": "alpha", "pinned": "yes"}, "pinned"),
        ("/internal/policies/auto", {}, "enabled"),
        ("/internal/policies/auto", {"enabled": 1}, "enabled"),
        ("/internal/simulate", [], None),
    ],
)
async def test_wrong_bodies(path: str, body: Any, param: str | None) -> None:
    async with site(reply) as s:
        answer = await s.post(path, body)
        assert answer.status == 400
        assert answer.error["param"] == param
        assert not s.api.calls


async def test_settings() -> None:
    async with site(reply) as s:
        answer = await s.post("/internal/set", {"max_loaded_models": 3, "models_dirs": ["/a"]})
        assert answer.json() == {"generation": 2, "settings": {"max_loaded_models": 3, "models_dirs": ["/a"]}}
        assert (await s.ask("GET", "/internal/config")).json()["max_loaded_models"] == 3
        assert (await s.ask("GET", "/internal/config/defaults")).json()["max_loaded_models"] == 1


async def test_pins_policies_and_simulation() -> None:
    async with site(reply) as s:
        assert (await s.post("/internal/pin", {"model": "alpha"})).status == 200
        assert (await s.post("/internal/pin", {"model_name": "alpha", "pinned": False})).status == 200
        assert (await s.post("/internal/pin", {"model": "nope"})).status == 404
        assert (await s.post("/internal/policies/auto", {"enabled": False})).status == 200
        assert (await s.post("/internal/simulate", {"device": "sim0"})).json() == {
            "changed": {"device": "sim0"}
        }
        s.api.simulates = False
        assert (await s.post("/internal/simulate", {})).status == 404
        assert s.api.calls == [("pin", "alpha", True), ("pin", "alpha", False), ("enable", "auto", False)]


async def test_a_policy_is_pulled_and_deleted() -> None:
    document = {"version": "1", "recipe": "collection.router", "model_name": "mine", "routing": {}}
    async with site(reply) as s:
        assert (await s.post("/v1/pull", document)).json()["model_name"] == "mine"
        assert s.api.calls == [("register", document)]
        assert (await s.post("/v1/delete", {"model_name": "auto"})).status == 200
        assert (await s.post("/v1/delete", {"model_name": "auto"})).status == 404


async def test_a_model_is_deleted_and_what_is_in_use_is_not() -> None:
    async with site(reply) as s:
        answer = await s.post("/v1/delete", {"model_name": "alpha"})
        assert answer.json() == {
            "status": "success",
            "message": "The model alpha is deleted; 1.0\N{NO-BREAK SPACE}GiB is free again.",
            "model_name": "alpha",
            "bytes_freed": 1 << 30,
        }
        s.api.in_use.add("beta")
        refused = await s.post("/v1/delete", {"model_name": "beta"})
        assert (refused.status, refused.error["code"]) == (409, "model_in_use")
        assert (await s.post("/v1/delete", {"model_name": "nobody"})).status == 404


async def test_a_pull_is_cancelled() -> None:
    async with site(reply) as s, s.client() as client:
        await client.send("POST", "/v1/pull", b'{"model_name":"demo","stream":true}')
        async with asyncio.timeout(SAFETY_S):
            await s.api.pulling.wait()
        assert (await s.post("/v1/pull/cancel", {"model_name": "demo"})).status == 200
        assert b'"code":"cancelled"' in (await client.answer()).body
        assert (await s.post("/v1/pull/cancel", {"model_name": "demo"})).status == 404


async def test_the_demo_model_is_pulled() -> None:
    async with site(reply) as s, s.client() as client:
        await client.send("POST", "/v1/pull", b'{"model_name":"demo"}')
        async with asyncio.timeout(SAFETY_S):
            await s.api.pulling.wait()
        s.api.pulled.set_result(None)
        assert (await client.answer()).json()["status"] == "success"


async def test_a_pull_that_fails_is_told() -> None:
    async with site(reply) as s:
        s.api.pulled.set_exception(RouterError("No network.", code="download_failed", status=502))
        assert (await s.post("/v1/pull", {"model_name": "demo"})).error["code"] == "download_failed"
        answer = await s.post("/v1/pull", {"model_name": "demo", "stream": True})
        assert answer.status == 200
        assert b"download_failed" in answer.body


async def test_a_pull_tells_its_progress() -> None:
    async with site(reply, WebOptions(snapshots_s=0.0)) as s, s.client() as client:
        s.api.publish(snapshot(2, downloads=(DownloadView(DEMO.name, "running", 25, 100),)))
        await client.send("POST", "/v1/pull", b'{"model_name":"demo","stream":true}')
        answer = await client.answer(lambda a: b"25.0" in a.body)
        s.api.publish(snapshot(3, downloads=(DownloadView(DEMO.name, "running", 50, None),)))
        await client.more(answer, lambda a: b'"percent":null' in a.body)
        s.api.pulled.set_result(None)
        await client.more(answer)
        assert events_of(answer.body)[-1].startswith(b"event: complete\n")
        assert s.api.subscriptions == 0


async def test_a_client_that_leaves_a_pull_does_not_stop_it() -> None:
    async with site(reply) as s:
        for body in (b'{"model_name":"demo"}', b'{"model_name":"demo","stream":true}'):
            s.api.pulling.clear()
            async with s.client() as client:
                await client.send("POST", "/v1/pull", body)
                async with asyncio.timeout(SAFETY_S):
                    await s.api.pulling.wait()
        assert (await s.ask("GET", "/live")).status == 200
        assert not s.api.pulled.cancelled()
        s.api.pulled.set_exception(RouterError("too late for anyone"))


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/none", 404, "unknown_path"),
        ("GET", "/v1/nope", 404, "unknown_path"),
        ("GET", "/v1/../internal/nope", 404, "unknown_path"),
        ("POST", "/v2/chat/completions", 404, "unknown_path"),
        ("GET", CHAT, 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("PUT", "/internal/set", 405, "method_not_allowed"),
    ],
)
async def test_paths_and_methods_that_are_none(method: str, path: str, status: int, code: str) -> None:
    async with site(reply) as s:
        answer = await s.ask(method, path)
        assert answer.status == status
        assert answer.error["code"] == code
        assert ("allow" in answer.headers) == (status == 405)


async def test_head_and_options() -> None:
    async with site(reply) as s:
        for path in ("/v1/models", "/v1/health", "/live", "/metrics", "/v1/events"):
            answer = await s.ask("HEAD", path)
            assert answer.status == 200, path
        answer = await s.ask("OPTIONS", CHAT)
        assert answer.status == 204
        assert answer.headers["allow"] == "OPTIONS, POST"
        assert (await s.ask("OPTIONS", "/nope")).status == 404


@pytest.mark.parametrize(
    "raw",
    [
        b"NONSENSE\r\n\r\n",
        b"GET /v1/models HTTP/9.9\r\nHost: localhost\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nBad Name: x\r\n\r\n",
        b"POST /v1/load HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
async def test_what_is_no_http_is_a_400_in_the_same_shape(
    raw: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with site(reply) as s, s.client() as client:
        answer = await client.raw(raw)
        assert answer.status == 400
        assert answer.error["code"] == "invalid_request"
    assert not [r for r in caplog.records if r.exc_info]


async def test_one_line_a_request_and_no_secrets(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="router.web")
    async with site(reply) as s:
        headers = {"Authorization": "Bearer sk-secret"}
        await s.ask("POST", f"{CHAT}?key=sk-secret", chat(text="sk-secret"), headers)
        await s.ask("GET", "/v1/nope%0aFAKE LINE".replace(" ", "%20"))
        await s.ask("GET", "/v1/health")
    lines = [r.getMessage() for r in caplog.records if r.name == "router.web"]
    assert len(lines) == 2
    assert lines[0].startswith(f"POST {CHAT} 200 alpha ")
    assert "sk-secret" not in caplog.text
    assert "\n" not in lines[1]


async def test_health_does_not_wait_for_anything() -> None:
    async with site(reply) as s, s.client() as client:
        s.api.gate.clear()
        await client.send("POST", CHAT, chat())
        await s.api.waiting.wait()
        assert (await s.ask("GET", "/v1/health")).json()["status"] == "ok"


async def test_notices_are_listed_and_told_once() -> None:
    async with site(reply) as s:
        s.api.publish(snapshot(notices=(NoticeView("n", "Title", "Text"),)))
        listed = await s.ask("GET", "/v1/notices")
        assert listed.json() == {"notices": [{"id": "n", "title": "Title", "text": "Text"}]}
        assert (await s.post("/v1/notices", {"id": "n"})).status == 200
        assert ("told", "n") in s.api.calls
        assert (await s.post("/v1/notices", {"id": "other"})).status == 404
        assert (await s.post("/v1/notices", {"told": True})).status == 400


async def test_loading_can_be_paused() -> None:
    async with site(reply) as s:
        assert (await s.post("/internal/pause", {"paused": True})).status == 200
        assert ("pause", True) in s.api.calls
        assert (await s.post("/internal/pause", {"paused": "yes"})).status == 400


async def test_the_program_can_be_asked_to_end() -> None:
    async with site(reply) as s:
        assert (await s.post("/internal/shutdown", {"now": True})).status == 400
        assert s.api.calls == []
        assert (await s.post("/internal/shutdown", {})).status == 202
        assert s.api.calls == [("shut down",)]


async def test_a_plan_takes_the_options_of_a_load() -> None:
    async with site(reply) as s:
        answer = await s.post("/v1/plan", {"model": "alpha", "ctx_size": 4096})
        assert answer.json()["admitted"] is True
        assert s.api.calls == [("plan", "alpha", {"ctx_size": 4096})]
        assert (await s.post("/v1/plan", {"ctx_size": 4096})).error["param"] == "model_name"


@pytest.mark.parametrize("status", [409, 507])
async def test_a_refusal_for_want_of_room_has_its_table_and_is_final(status: int) -> None:
    table = [{"id": "gpu-0", "needs": 9, "available": 7}]
    refusal = RouterError(
        "alpha needs 9.0 GiB.", status=status, code="no_room", details={"devices": table, "code": "no such"}
    )
    async with site(reply) as s:
        s.api.refusal = refusal
        answer = await s.ask("POST", CHAT, chat())
        assert answer.status == status
        assert answer.headers["x-should-retry"] == "false"
        assert answer.error["devices"] == table
        assert answer.error["code"] == "no_room"  # Details take no other member's place.


async def test_stats_are_those_of_the_newest_answer() -> None:
    timings = {"prompt_n": 10, "prompt_ms": 100, "cache_n": 5, "predicted_n": 7, "predicted_ms": 500}
    body = msgspec.json.encode({"choices": [], "timings": timings})

    async def script(peer: Peer) -> None:
        if peer.path == "/v1/embeddings":
            await peer.answer(b'{"error":{"message":"no"}}', 400)
        else:
            await peer.answer(body)

    async with site(script) as s:
        assert (await s.ask("GET", "/v1/stats")).json() == {}
        await s.ask("POST", CHAT, chat())
        await s.post("/v1/embeddings", {"model": "embed", "input": "x"})  # A failure is no newer answer.
        told = (await s.ask("GET", "/v0/stats")).json()
        assert told["model"] == "alpha"
        assert told["path"] == CHAT
        assert (told["input_tokens"], told["output_tokens"]) == (15, 7)
        assert (told["tokens_per_second"], told["prompt_tokens_per_second"]) == (14.0, 100.0)
        assert 0 < told["time_to_first_token"] <= told["total_s"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "timings", [{"predicted_n": 1, "predicted_ms": 0.001, "prompt_n": 9, "prompt_ms": 90}, None]
)
async def test_one_token_has_no_speed(stream: bool, timings: dict[str, float] | None) -> None:
    """The engine says that it took a microsecond."""
    body = msgspec.json.encode({"choices": [], "usage": {"completion_tokens": 1}, "timings": timings})

    async def script(peer: Peer) -> None:
        if stream:
            await peer.begin_stream()
            await peer.chunk(b"data: " + body + b"\n\ndata: [DONE]\n\n")
            await peer.end_stream()
        else:
            await peer.answer(body)

    async with site(script) as s:
        assert (await s.ask("POST", CHAT, chat(stream))).status == 200
        told = (await s.ask("GET", "/v1/stats")).json()
        assert (told["output_tokens"], told["tokens_per_second"]) == (1, None)
        lease = s.api.leases[0]
        assert lease.tokens == 1
        assert not lease.seconds > 0  # The speed that is shown for the model stays what it was.


async def test_system_info_lists_devices_and_engines() -> None:
    device = DeviceView("gpu-0", "RTX", "CUDA0", "gpu", 10, 5, 0, 0, 5, 0, DeviceState.OK, available=4)
    engine = EngineView("embedded", "llama.cpp", "embedded", version="1.2", backends=("cpu",), in_use=True)
    async with site(reply) as s:
        s.api.publish(snapshot(2, devices=(device,), engines=(engine,), version="9.9"))
        told = (await s.ask("GET", "/api/v1/system-info")).json()
        assert told["version"] == "9.9"
        assert [(d["id"], d["free"], d["available"]) for d in told["devices"]] == [("gpu-0", 5, 4)]
        assert [(e["id"], e["in_use"], e["problem"]) for e in told["engines"]] == [("embedded", True, None)]
        assert told["processors"] >= 1


async def test_models_tell_what_they_need_and_whether_they_fit() -> None:
    async with site(reply) as s:
        shown = (ModelView("alpha", "llm", 1, 1, needs=9, fits=False), ModelView("beta", "llm", 1, 1))
        s.api.publish(snapshot(2, models=shown))
        data = {entry["id"]: entry for entry in (await s.ask("GET", "/v1/models")).json()["data"]}
        assert (data["alpha"]["needs_bytes"], data["alpha"]["fits"]) == (9, False)
        assert (data["beta"]["needs_bytes"], data["beta"]["fits"]) == (None, None)
        assert data["auto"]["fits"] is None
        assert (await s.ask("GET", "/v1/models/alpha")).json() == data["alpha"]
