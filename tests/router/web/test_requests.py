"""What is read of a request body, and what a bad one is answered."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from router.errors import BadRequest
from router.web.options import WebOptions
from router.web.requests import decode_fields, decode_object, keep_alive_s, rewritten
from tests.router.web.fakes import CHAT, SAFETY_S, chat, reply, site

OPTIONS = WebOptions()
ON_A_THREAD = WebOptions(inline_body=0)

BAD: list[tuple[bytes, str | None]] = [
    (b"", None),
    (b"   ", None),
    (b"{x", None),
    (b"[]", None),
    (b'"hi"', None),
    (b"null", None),
    (b"{}", "model"),
    (b'{"messages":[]}', "model"),
    (b'{"model":123,"messages":[]}', "model"),
    (b'{"model":null}', "model"),
    (b'{"model":"  ","messages":[{}]}', "model"),
    (b'{"model":"alpha"}', "messages"),
    (b'{"model":"alpha","messages":null}', "messages"),
    (b'{"model":"alpha","messages":[]}', "messages"),
    (b'{"model":"alpha","messages":"hi"}', "messages"),
    (b'{"model":"alpha","messages":[1]}', "messages[0]"),
    (b'{"model":"alpha","messages":[{"role":7}]}', "messages[0].role"),
    (b'{"model":"alpha","messages":[{}],"stream":"yes"}', "stream"),
    (b'{"model":"alpha","messages":[{}],"stream":1}', "stream"),
    (b'{"model":"alpha","messages":[{}],"route_trace":"yes"}', "route_trace"),
    (b'{"model":"alpha","messages":[{}],"keep_alive":"soon"}', "keep_alive"),
    (b'{"model":"alpha","messages":[{}],"keep_alive":[]}', "keep_alive"),
    (b'{"model":"alpha","messages":[{"content":"\xe9"}]}', None),
    (b'{"model":"alpha","messages":[{}],"x":"\xe9"}', None),
    (b"[" * 200_000, None),
    (b'{"model":"alpha","messages":' + b"[" * 200_000, "messages[0]"),
    (b'{"model":"alpha","x":' + b'{"a":' * 200_000, None),
    (b'{"model":"alpha","messages":[{"content":"\\ud800"}]}', None),
    (b'{"model":"alpha","messages":[{"content":"\\ud800 and more"}]}', None),
    (b'{"model":"alpha","messages":[{"content":"\\udc00\\ud800"}]}', None),
    (b'{"model":"alpha","messages":[{}],"temperature":NaN}', None),
    (b'{"model":"alpha","messages":[{}],"temperature":Infinity}', None),
    (b'\xef\xbb\xbf{"model":"alpha","messages":[{}]}', None),
    (b'{"model":"alpha","messages":[{}]} tail', None),
    (b'{"model":"alpha","messages":[{}],}', None),
    ('{"model":"alpha","messages":[{}]}'.encode("utf-16"), None),
]


@pytest.mark.fault("F04")
@pytest.mark.parametrize("options", [OPTIONS, ON_A_THREAD], ids=["inline", "thread"])
@pytest.mark.parametrize(("body", "param"), BAD, ids=[repr(body[:50]) for body, _ in BAD])
async def test_a_bad_body_is_a_400_that_names_the_field(
    body: bytes, param: str | None, options: WebOptions, caplog: pytest.LogCaptureFixture
) -> None:
    async with site(reply, options) as s:
        answer = await s.ask("POST", CHAT, body)
        assert answer.status == 400
        assert answer.error["param"] == param
        assert answer.error["type"] == "invalid_request_error"
        if param:
            assert f"`{param}`" in answer.error["message"]
        assert not s.api.asked
        assert not s.worker.requests
    assert not [r for r in caplog.records if r.exc_info]


@pytest.mark.fault("F04")
@pytest.mark.parametrize(
    "declared",
    [
        "application/json; charset=nope",
        "application/json; charset=utf-16",
        "multipart/form-data; boundary=x",
    ],
)
async def test_a_body_that_is_declared_wrong_is_a_400(declared: str) -> None:
    async with site(reply) as s:
        answer = await s.ask("POST", CHAT, chat(), {"Content-Type": declared})
        assert answer.status == 400
        assert answer.error["param"] == "Content-Type"
        assert not s.api.asked


@pytest.mark.parametrize(
    "declared",
    [
        "application/json",
        'application/json; charset="UTF-8"',
        "application/x-www-form-urlencoded",
        "text/plain",
    ],
)
async def test_what_clients_really_declare_passes(declared: str) -> None:
    async with site(reply) as s:
        assert (await s.ask("POST", CHAT, chat(), {"Content-Type": declared})).status == 200


@pytest.mark.fault("F04")
async def test_duplicate_keys_are_tolerated_and_the_last_counts() -> None:
    body = b'{"model":"embed","model":"alpha","messages":[{}]}'
    async with site(reply) as s:
        assert (await s.ask("POST", CHAT, body)).status == 200
        assert s.api.asked[0]["model"] == "alpha"
        assert s.worker.requests[0].body == body


@pytest.mark.parametrize(
    "content", [b'"\\ud83d\\ude42"', b'"a\\\\ud800"', "北🙂é\u2028\u0085".encode().join([b'"', b'"'])]
)
async def test_text_that_only_looks_bad_passes(content: bytes) -> None:
    body = b'{"model":"alpha","messages":[{"role":"user","content":' + content + b"}]}"
    async with site(reply) as s:
        assert (await s.ask("POST", CHAT, body)).status == 200
        assert s.worker.requests[0].body == body


@pytest.mark.fault("F04")
async def test_a_body_over_the_limit_is_a_413_in_the_same_shape() -> None:
    async with site(reply, WebOptions(max_body=1 << 20)) as s:
        answer = await s.ask("POST", CHAT, b"x" * ((1 << 20) + 1))
        assert answer.status == 413
        assert "1 MiB" in answer.error["message"]
        assert not s.api.asked


async def test_a_chunked_body_over_the_limit_is_a_413_too() -> None:
    async with site(reply, WebOptions(max_body=1000)) as s, s.client() as client:
        await client.send("POST", CHAT, None, {"Transfer-Encoding": "chunked"})
        for _ in range(3):
            client.writer.write(b"3e8\r\n" + b"x" * 1000 + b"\r\n")
        client.writer.write(b"0\r\n\r\n")
        answer = await client.answer()
        assert answer.status == 413
        assert answer.error["code"] == "request_too_large"


async def test_a_client_is_told_to_keep_its_body_that_is_too_large() -> None:
    async with site(reply, WebOptions(max_body=1000)) as s, s.client() as client:
        headers = {"Expect": "100-continue", "Content-Length": "5000"}
        await client.send("POST", CHAT, None, headers)
        answer = await client.answer()
        assert answer.status == 413
        assert not answer.interim


async def test_a_client_that_asks_first_may_send() -> None:
    body = chat()
    async with site(reply) as s, s.client() as client:
        await client.send("POST", CHAT, None, {"Expect": "100-continue", "Content-Length": str(len(body))})
        answer = await client.answer(lambda a: bool(a.interim))
        assert answer.interim == [100]
        client.writer.write(body)
        await client.more(answer)
        assert answer.status == 200


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"model": "alpha"}, "prompt"),
        ("/v1/responses", {"model": "alpha"}, "input"),
        ("/v1/embeddings", {"model": "embed"}, "input"),
        ("/v1/rerank", {"model": "rank", "documents": []}, "query"),
        ("/v1/rerank", {"model": "rank", "query": "q"}, "documents"),
        ("/v1/embeddings", {"model": "alpha", "input": "x"}, "model"),
        (CHAT, {"model": "embed", "messages": [{}]}, "model"),
        ("/v1/reranking", {"model": "embed", "query": "q", "documents": []}, "model"),
    ],
)
async def test_what_a_path_needs(path: str, body: dict[str, Any], param: str) -> None:
    async with site(reply) as s:
        answer = await s.post(path, body)
        assert answer.status == 400
        assert answer.error["param"] == param
        assert not s.api.asked


async def test_the_wrong_type_of_model_is_told_where_to_go() -> None:
    async with site(reply) as s:
        answer = await s.post(CHAT, {"model": "embed", "messages": [{}]})
        assert "an embedding model" in answer.error["message"]
        assert "/v1/embeddings" in answer.error["message"]


@pytest.mark.parametrize(
    ("path", "body", "worker_path"),
    [
        ("/v1/completions", {"model": "alpha", "prompt": "x"}, "/v1/completions"),
        ("/api/v1/responses", {"model": "a", "input": "x"}, "/v1/responses"),
        ("/v0/embeddings", {"model": "embed", "input": ["x"]}, "/v1/embeddings"),
        ("/api/v0/rerank", {"model": "rank", "query": "q", "documents": ["d"]}, "/v1/rerank"),
        ("/v1/reranking", {"model": "rank", "query": "q", "texts": ["d"]}, "/v1/rerank"),
    ],
)
async def test_every_path_reaches_the_worker(path: str, body: dict[str, Any], worker_path: str) -> None:
    async with site(reply) as s:
        assert (await s.post(path, body)).status == 200
        assert s.worker.requests[0].path == worker_path


async def test_an_unknown_model_is_a_404() -> None:
    async with site(reply) as s:
        answer = await s.ask("POST", CHAT, chat(model="nope"))
        assert answer.status == 404
        assert answer.error["code"] == "model_not_found"
        assert not s.api.asked


@pytest.mark.fault("F04")
async def test_a_large_body_does_not_hold_the_loop() -> None:
    body = chat(text="é" * (8 << 20))
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    ticker = asyncio.ensure_future(tick())
    try:
        async with asyncio.timeout(SAFETY_S):
            await asyncio.sleep(0)
            before = ticks
            assert (await decode_fields(body, OPTIONS)).model == "alpha"
            # The loop went round while a thread read the body.
            assert ticks > before + 1
    finally:
        ticker.cancel()


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (msgspec.UNSET, None),
        (None, None),
        (0, 0.0),
        (30, 30.0),
        (1.5, 1.5),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("250ms", 0.25),
        ("10", 10.0),
        ("0", 0.0),
        (-1, -1.0),
        ("-1", -1.0),
        ("-5m", -1.0),
    ],
)
def test_keep_alive(given: Any, seconds: float | None) -> None:
    assert keep_alive_s(given) == seconds


@pytest.mark.parametrize("given", ["", "soon", "5 m", "5x", "nan", "inf", "1h-3m", float("inf")])
def test_keep_alive_that_is_none(given: Any) -> None:
    with pytest.raises(BadRequest, match="keep_alive"):
        keep_alive_s(given)


async def test_keep_alive_reaches_the_router_and_not_the_worker() -> None:
    async with site(reply) as s:
        assert (await s.ask("POST", CHAT, chat(keep_alive="2m", temperature=0.5))).status == 200
        assert s.api.asked[0]["keep_alive_s"] == 120.0
        sent = msgspec.json.decode(s.worker.requests[0].body)
        assert "keep_alive" not in sent
        assert sent["temperature"] == 0.5


@pytest.mark.parametrize("options", [OPTIONS, ON_A_THREAD])
async def test_what_is_rewritten_keeps_all_other_bytes(options: WebOptions) -> None:
    body = b'{ "model" : "auto", "x" : 1.500 , "route_trace":true, "y": [1,  2], "z":"\\u00e9\xc3\xa9" }'
    assert (
        await rewritten(body, options, model='al"pha')
        == b'{"model":"al\\"pha","x":1.500,"y":[1,  2],"z":"\\u00e9\xc3\xa9"}'
    )
    assert await rewritten(body, options, model=None) == (
        b'{"model":"auto","x":1.500,"y":[1,  2],"z":"\\u00e9\xc3\xa9"}'
    )


BLOCKS = "QUJD" * (1 << 19)


@pytest.mark.fault("F04")
@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("", "", None),
        ("x, y", ", z", None),
        ("\\u00", "\\n", None),
        ("\\ud83d\\ude42", "\\\\", None),
        ("\\ud83d", "", "surrogate"),
        ("", "\\x", "not valid JSON"),
        ("", '"', "not valid JSON"),
        ("é", "é", None),
    ],
)
async def test_long_texts_are_left_out_where_only_the_form_matters(
    before: str, after: str, fault: str | None
) -> None:
    content = before + ("E9" if before.endswith("00") else "") + BLOCKS + after
    text = f'{{"model":"alpha","messages":[{{"role":"user","content":"{content}"}}],"stream":true}}'
    body = text.encode()
    if fault is None:
        fields = await decode_fields(body, OPTIONS)
        assert (fields.model, fields.stream) == ("alpha", True)
        assert isinstance(fields.messages, list)
        assert fields.messages[0].role == "user"
        msgspec.json.decode(body)
    else:
        with pytest.raises(BadRequest, match=fault):
            await decode_fields(body, OPTIONS)


async def test_nothing_is_left_out_of_a_body_that_is_read_whole() -> None:
    assert await decode_object(msgspec.json.encode({"x": BLOCKS}), OPTIONS) == {"x": BLOCKS}


async def test_an_image_reaches_the_worker_whole() -> None:
    body = chat(text="data:image/png;base64," + BLOCKS)
    async with site(reply) as s:
        assert (await s.ask("POST", CHAT, body)).status == 200
        assert s.worker.requests[0].body == body
