"""Embeddings in both forms, from workers that know one or both."""

from __future__ import annotations

import base64
import struct
from typing import Any

import msgspec
import openai
import pytest

from router.web.embeddings import in_base64
from router.web.options import WebOptions
from tests.router.web.fakes import Peer, Script, reply, site

pytestmark = pytest.mark.fault("F33")

PATH = "/v1/embeddings"
# As single precision holds them, so that both forms can be compared.
VECTORS = [
    [struct.unpack("<f", struct.pack("<f", v))[0] for v in row] for row in ([0.1, -2.5e-7, 3.0], [1.0])
]


def packed(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def answer_of(vectors: list[Any]) -> bytes:
    data = [
        {"object": "embedding", "embedding": vector, "index": i, "extra": i / 4}
        for i, vector in reversed(list(enumerate(vectors)))
    ]
    usage = {"prompt_tokens": 5, "total_tokens": 5}
    return msgspec.json.encode({"object": "list", "model": "embed", "data": data, "usage": usage})


async def only_floats(peer: Peer) -> None:
    """A worker that has never heard of other forms."""
    await peer.answer(answer_of(VECTORS))


async def both_forms(peer: Peer) -> None:
    wants = msgspec.json.decode(peer.body).get("encoding_format") == "base64"
    await peer.answer(answer_of([packed(v) if wants else v for v in VECTORS]))


async def refuses_the_field(peer: Peer) -> None:
    if "encoding_format" in msgspec.json.decode(peer.body):
        await peer.answer(b'{"error":{"message":"unknown field encoding_format"}}', 400)
    else:
        await only_floats(peer)


WORKERS = [only_floats, both_forms, refuses_the_field]


@pytest.mark.parametrize("script", WORKERS)
@pytest.mark.parametrize(
    "options", [WebOptions(), WebOptions(inline_body=0, max_held=10)], ids=["held", "large"]
)
async def test_both_forms_are_equal_whatever_the_worker_knows(script: Script, options: WebOptions) -> None:
    async with site(script, options) as s:
        answers = {}
        for form in ("float", "base64", None):
            got = await s.post(PATH, {"model": "embed", "input": ["a", "b"], "encoding_format": form})
            assert got.status == 200
            assert [item["index"] for item in got.json()["data"]] == [1, 0]
            assert [item["extra"] for item in got.json()["data"]] == [0.25, 0.0]
            assert got.json()["usage"] == {"prompt_tokens": 5, "total_tokens": 5}
            answers[form] = [item["embedding"] for item in got.json()["data"]]
        assert answers["float"] == answers[None] == VECTORS[::-1]
        assert answers["base64"] == [packed(v) for v in VECTORS[::-1]]
        assert all(lease.released.is_set() for lease in s.api.leases)


@pytest.mark.parametrize("script", WORKERS)
async def test_openais_client_gets_floats_by_its_own_default(script: Script) -> None:
    async with (
        site(script) as s,
        openai.AsyncOpenAI(base_url=f"{s.endpoint.url}/v1", api_key="none", max_retries=0) as client,
    ):
        answer = await client.embeddings.create(model="embed", input=["a", "b"])
        # It asks for base64 and unpacks it.
        assert msgspec.json.decode(s.worker.requests[0].body)["encoding_format"] == "base64"
        assert [list(item.embedding) for item in answer.data] == VECTORS[::-1]


async def test_what_a_worker_gives_in_base64_keeps_its_bytes() -> None:
    async with site(both_forms) as s:
        got = await s.post(PATH, {"model": "embed", "input": "a", "encoding_format": "base64"})
        assert bytes(got.body) == answer_of([packed(v) for v in VECTORS])


@pytest.mark.parametrize("form", ["hex", "", "BASE64", 7, ["base64"]])
async def test_another_form_is_a_400(form: Any) -> None:
    async with site(only_floats) as s:
        got = await s.post(PATH, {"model": "embed", "input": "a", "encoding_format": form})
        assert got.status == 400
        assert got.error["param"] == "encoding_format"
        assert not s.api.asked


@pytest.mark.parametrize("given", ["a", ["a", "b"], [1, 2, 3], [[1, 2], [3]]])
async def test_every_form_of_input_goes_on_as_it_is(given: Any) -> None:
    async with site(only_floats) as s:
        assert (await s.post(PATH, {"model": "embed", "input": given})).status == 200
        assert msgspec.json.decode(s.worker.requests[0].body)["input"] == given


@pytest.mark.parametrize("given", ["", [], None])
async def test_no_input_is_a_400(given: Any) -> None:
    async with site(only_floats) as s:
        got = await s.post(PATH, {"model": "embed", "input": given})
        assert (got.status, got.error["param"]) == (400, "input")
        assert not s.api.asked


async def test_embeddings_asked_of_a_chat_model() -> None:
    async with site(only_floats) as s:
        got = await s.post(PATH, {"model": "alpha", "input": "a"})
        assert got.status == 400
        assert got.error["param"] == "model"
        assert "a language model" in got.error["message"]
        assert not s.api.asked


async def test_another_refusal_is_passed_on_and_asked_once() -> None:
    async def script(peer: Peer) -> None:
        await peer.answer(b'{"error":{"message":"input is too long"}}', 400)

    async with site(script) as s:
        got = await s.post(PATH, {"model": "embed", "input": "a", "encoding_format": "base64"})
        assert (got.status, got.error["message"]) == (400, "input is too long")
        assert len(s.worker.requests) == 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"data":7}',
        b'{"data":[7]}',
        b'{"data":[{"index":0}]}',
        b'{"data":[{"embedding":["x"]}]}',
        b'{"data":[{"embedding":[[1.0],[2.0]]}]}',
        b'{"data":[{"embedding":"AAAA"}],"x":1.50}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_list_of_vectors_stays_as_it_is(body: bytes) -> None:
    assert in_base64(body) == body


async def test_ranking_reaches_a_ranking_model() -> None:
    async with site(reply) as s:
        body = {"model": "rank", "query": "q", "documents": ["a", "b"], "top_n": 1}
        assert (await s.post("/v1/rerank", body)).status == 200
        assert msgspec.json.decode(s.worker.requests[0].body) == body
