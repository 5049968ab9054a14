"""Some hundred bodies that are wrong: each gets a 4xx in the one shape, and none holds the loop up."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import itertools
import json
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tests.router.web.fakes import CHAT, Client, chat, reply, site

pytestmark = pytest.mark.fault("F04")

Case = tuple[str, bytes, dict[str, str]]

GOOD: dict[str, dict[str, Any]] = {
    CHAT: {"model": "alpha", "messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"model": "alpha", "prompt": "hi"},
    "/v1/responses": {"model": "alpha", "input": "hi"},
    "/v1/messages": {"model": "alpha", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5},
    "/v1/messages/count_tokens": {"model": "alpha", "messages": [{"role": "user", "content": "hi"}]},
    "/v1/embeddings": {"model": "embed", "input": "hi"},
    "/v1/rerank": {"model": "rank", "query": "q", "documents": ["d"]},
    "/v1/load": {"model_name": "alpha"},
    "/v1/plan": {"model_name": "alpha"},
    "/v1/delete": {"model_name": "auto"},
    "/v1/notices": {"id": "pool"},
    "/internal/pin": {"model": "alpha"},
    "/internal/pause": {"paused": True},
    "/internal/policies/auto": {"enabled": True},
}
WRONG_NAMES: list[Any] = [None, 7, 1.5, True, [], {}, "", "  ", "\t\n", "nope", ["alpha"], {"name": "alpha"}]


def _no_json() -> Iterator[bytes]:
    yield from (
        b"",
        b" ",
        b"\n\n",
        b"\0",
        b"{",
        b"{x",
        b"}",
        b"[]",
        b"[1,2]",
        b'"hi"',
        b"null",
        b"true",
        b"7",
    )
    yield from (
        b"NaN",
        b"{'model':'alpha'}",
        b"model=alpha",
        b"<xml/>",
        b"// c\n{}",
        b"undefined",
        b"\xff\xfe",
    )
    body = json.dumps(GOOD[CHAT]).encode()
    yield from (body[:-1], body + b"}", body + b",", body + body, b"\xef\xbb\xbf" + body, body[1:])
    yield from (
        body.replace(b'"hi"', bad) for bad in (b'"\xe9"', b'"\\ud800"', b'"\\udc00\\ud800"', b'"\\x"')
    )
    yield from (
        body.replace(b'"hi"', bad) for bad in (b'"\n"', b"NaN", b"-Infinity", b"01", b"1.", b"+1", b".5")
    )
    yield from (body.replace(b"[", b"[" * 200_000), b"[" * 200_000, b'{"a":' * 200_000)
    yield from (body.decode().encode(code) for code in ("utf-16", "utf-16-le", "utf-32"))


def _cases() -> Iterator[Case]:
    for body in _no_json():
        yield CHAT, body, {}
    for path, body in itertools.product(
        ("/v1/embeddings", "/v1/load", "/internal/set"), (b"{x", b"[]", b"7")
    ):
        yield path, body, {}
    for path, good in GOOD.items():
        for key in good:
            if key == "max_tokens":
                continue
            without = {name: value for name, value in good.items() if name != key}
            yield path, msgspec.json.encode(without), {}
        if "model" in good or "model_name" in good:
            key = "model" if "model" in good else "model_name"
            for wrong in WRONG_NAMES:
                yield path, msgspec.json.encode({**good, key: wrong}), {}
    for field, values in {
        "messages": [None, "hi", {}, [], [1], [None], ["hi"], [[]], [{"role": 1}], [{"role": []}]],
        "stream": ["yes", 1, 0, [], {}, "true"],
        "keep_alive": ["soon", [], {}, True, "5 parsecs", "nan", 1e999, "1_000", "\u0661\u0660s"],
        "route_trace": ["yes", 1, []],
    }.items():
        for value in values:
            yield CHAT, json.dumps({**GOOD[CHAT], field: value}).encode(), {}
    for value in ("hex", 7, [], {}, True):
        yield "/v1/embeddings", msgspec.json.encode({**GOOD["/v1/embeddings"], "encoding_format": value}), {}
    yield from _odd_numbers()
    yield from _odd_names()
    for more in ({"ctx_size": "big"}, {"parallel": 0}, {"pinned": 1}, {"ctx": 1}, {"device": {}}):
        yield "/v1/load", msgspec.json.encode({**GOOD["/v1/load"], **more}), {}
    for change in (
        {"port": "8080"},
        {"port": 8080.5},
        {"port": True},
        {"port": 70_000},
        {"port": None},
        {"max_loaded_models": "2"},
        {"max_loaded_models": -2},
        {"max_modles": 1},
        {"models_dirs": "x"},
        {"cors_origins": ["*"]},
        {"vram_margin": "2GB of it"},
    ):
        yield "/internal/set", msgspec.json.encode(change), {}
    for declared in (
        "application/json; charset=nope",
        "application/json; charset=utf-16",
        "multipart/form-data",
    ):
        yield CHAT, chat(), {"Content-Type": declared}
    for declared in ("text/plain", "", "application/jsonx", "multipart/form-data"):
        yield "/internal/set", b"{}", {"Content-Type": declared}
    for encoding in ("br", "gzip", "deflate", "identity, gzip"):
        yield CHAT, chat(), {"Content-Encoding": encoding}
    yield CHAT, gzip.compress(b"{x"), {"Content-Encoding": "gzip"}


def _odd_numbers() -> Iterator[Case]:
    """Numbers that no computer holds, in fields that are read and, where a policy looks, in any."""
    for number in (b"1e400", b"-1e400", b"NaN", b"Infinity", b"9" * 5000, b"0x10", b"1_000"):
        yield CHAT, b'{"model":"alpha","messages":[{}],"keep_alive":%b}' % number, {}
        yield "/v1/rerank", b'{"model":"rank","query":"q","documents":["d"],"top_n":%b}' % number, {}
        for key in (b"temperature", b"metadata", b"tools"):
            yield CHAT, b'{"model":"auto","messages":[{"role":"user"}],"%b":%b}' % (key, number), {}
        yield CHAT, b'{"model":"auto","messages":[{"role":"user","content":[{"n":%b}]}]}' % number, {}
        yield "/v1/load", b'{"model":"alpha","ctx_size":%b}' % number, {}
        yield "/v1/load", b'{"model":"alpha","tensor_split":[1,%b]}' % number, {}
        yield "/internal/set", b'{"max_loaded_models":%b}' % number, {}
        yield "/v1/routing/validate", b'{"policy":{"version":%b}}' % number, {}
    for top_n in (0, -1, 1.5, "2", True, []):
        yield "/v1/rerank", msgspec.json.encode({**GOOD["/v1/rerank"], "top_n": top_n}), {}
    # As deep as can just be read, and a little deeper: where one reader gives up, none may fail.
    for depth in (2_000, 200_000):
        for opening in (b"[", b'{"a":'):
            yield CHAT, b'{"model":"auto","messages":[{"role":"user"}],"x":' + opening * depth, {}


def _odd_names() -> Iterator[Case]:
    long = "a" * 1_000_000
    for name in ("alpha\0", "alpha\r\nX-Evil: 1", "\u202ealpha", "../alpha", "alpha ", "ALPHA\x7f", long):
        for path, good in GOOD.items():
            key = next((key for key in ("model", "model_name") if key in good), None)
            if key is not None:
                yield path, msgspec.json.encode({**good, key: name}), {}
    for path in ("/v1/load", "/v1/plan", "/v1/delete", "/v1/unload", "/internal/pin"):
        yield path, b'{"model":"alpha","model_name":"beta"}', {}
        yield path, b'{"model_name":"alpha","model":" "}', {}
        yield path, b'{"model_name":"alpha","model":7}', {}
    for path, body in (("/v1/load", {"model": "alpha", long: 1}), ("/internal/set", {long: 1})):
        yield path, msgspec.json.encode(body), {}


CASES = list(_cases())


class _Turns:
    """How long the loop was held up.

    Attributes:
        worst_s: by the clock, the longest that it took to come back to a task that always runs; other
            programs count, too.
        busiest_s: the longest that it computed without going round. On no machine does that depend on others.
    """

    def __init__(self) -> None:
        self.worst_s = self.busiest_s = 0.0

    @contextlib.contextmanager
    def counted(self, patch: pytest.MonkeyPatch) -> Iterator[None]:
        run = asyncio.Handle._run

        def timed(handle: asyncio.Handle) -> None:
            began = time.thread_time()
            run(handle)
            self.busiest_s = max(self.busiest_s, time.thread_time() - began)

        gc.collect()
        gc.disable()  # What other tests left behind is not looked through at our expense.
        watching = asyncio.ensure_future(self._watch())
        try:
            with patch.context() as patched:
                patched.setattr(asyncio.Handle, "_run", timed)
                yield
        finally:
            gc.enable()
            watching.cancel()

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            await asyncio.sleep(0.001)
            self.worst_s = max(self.worst_s, loop.time() - began - 0.001)


async def test_hundreds_of_wrong_bodies(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, record_property: Any
) -> None:
    assert len(CASES) >= 200
    turns = _Turns()
    async with site(reply) as s:
        async with s.client() as client:
            # The first ones of a process take their time.
            assert (await client.ask("POST", CHAT, b"{x")).status == 400
            assert (await client.ask("POST", "/internal/set", b'{"x":1}')).status == 400
        async with s.client() as client:
            with turns.counted(monkeypatch):
                await _refused(client)
            # The connection has stayed usable all the time.
            assert (await client.ask("POST", CHAT, chat())).status == 200
        # Only the good one at the end came so far.
        assert len(s.api.asked) == len(s.worker.requests) == 1
        assert not [call for call in s.api.calls if call[0] != "delete"]
    assert not [record for record in caplog.records if record.exc_info]
    record_property("worst_lag_ms", round(turns.worst_s * 1000, 1))
    record_property("busiest_turn_ms", round(turns.busiest_s * 1000, 1))
    assert turns.busiest_s < 0.05


async def _refused(client: Client) -> None:
    for path, body, headers in CASES:
        answer = await client.ask("POST", path, body, headers)
        case = (path, body[:80], headers)
        assert 400 <= answer.status < 500, (case, answer.status, bytes(answer.body[:500]))
        assert answer.error["message"], case
        if not path.startswith("/v1/messages"):
            assert answer.error["type"] == "invalid_request_error", case
        # What was sent is not sent back at length.
        assert len(answer.body) < 20_000, case
