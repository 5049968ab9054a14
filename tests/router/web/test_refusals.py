"""What a worker refuses: whose fault it is, and which field."""

from __future__ import annotations

import msgspec
import pytest

from router.errors import BadRequest
from router.policy.classify import is_too_long
from router.web.refusals import error_of
from tests.router.web.fakes import CHAT, Peer, chat, reply, site

TOO_LONG = (
    "input (40002 tokens) is too large to process. increase the physical batch size (current batch size: 512)"
)


def _said(message: str, status: int = 500) -> bytes:
    return msgspec.json.encode({"error": {"message": message, "code": status, "type": "server_error"}})


@pytest.mark.fault("F04")
@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("Failed to parse tools: Expected 'tools' to be an array, got 1; tools = 1", "tools"),
        ("Failed to parse messages: Missing 'role' in message: {}", "messages"),
        ("image input is not supported - hint: you may need to provide the mmproj", "messages"),
        ("audio input is not supported", "messages"),
        (TOO_LONG, "input"),
        ("Cannot use both json_schema and grammar", None),
    ],
)
async def test_a_fault_of_the_client_is_a_400_whatever_the_engine_calls_it(
    message: str, param: str | None
) -> None:
    async def script(peer: Peer) -> None:
        await peer.answer(_said(message), 500)

    async with site(script) as s:
        for stream in (False, True):
            answer = await s.ask("POST", CHAT, chat(stream))
            assert answer.status == 400
            assert answer.error["type"] == "invalid_request_error"
            assert answer.error["param"] == param
        assert all(lease.released.is_set() for lease in s.api.leases)


@pytest.mark.parametrize(
    ("said", "param", "told", "hint"),
    [
        (
            "Field 'max_tokens': [json.exception.type_error.302] type must be number, but is string",
            "max_tokens",
            "`max_tokens` is wrong: type must be number, but is string",
            None,
        ),
        (
            "Field 'top_k': Value must be between 0 <= value <= 9, but got -5",
            "top_k",
            "`top_k` is wrong: value must be between 0 <= value <= 9, but got -5",
            None,
        ),
        (
            "Field 'n': Value must be between 1 <= value <= 1, but got 3",
            "n",
            "`n` is 3, but alpha is loaded with 1 slot, and each answer takes one.",
            "Load it with parallel=3 or more, or ask several times.",
        ),
        ("request (9 tokens) exceeds the available context size", None, None, None),
    ],
)
def test_the_field_that_an_engine_finds_wrong_is_named(
    said: str, param: str | None, told: str | None, hint: str | None
) -> None:
    error = error_of(400, _said(said, 400), model="alpha", path=CHAT)
    assert (error.status, error.message) == (400, told or said)
    body = error.body()["error"]
    assert (body["param"], body["message"], body["hint"]) == (param, told or said, hint)
    assert body["code"] == 400  # What else the engine says stays.


@pytest.mark.parametrize(
    "message", ["Failed to parse the state file: gone", "out of memory", "vector::_M_default_append", ""]
)
async def test_a_fault_of_the_engine_stays_one(message: str) -> None:
    error = error_of(500, _said(message), model="alpha", path=CHAT)
    assert error.status == 502
    assert error.message == (message or "The worker gave no reason.")


def test_a_model_for_text_says_so() -> None:
    error = error_of(500, _said("image input is not supported - hint"), model="alpha", path=CHAT)
    assert "alpha takes no images" in error.message
    assert error.code == "unsupported_content"
    assert "mmproj" in (error.hint or "")


def test_a_text_that_is_too_long_tells_the_limit_and_is_known_as_such() -> None:
    error = error_of(500, _said(TOO_LONG), model="embed", path="/v1/embeddings")
    assert isinstance(error, BadRequest)
    assert "40002" in error.message
    assert "512" in error.message
    assert "batch size" not in error.message
    assert is_too_long(error)


@pytest.mark.parametrize("status", [401, 403, 404, 405, 429, 500, 503])
async def test_words_of_other_statuses_are_no_fault_of_the_client(status: int) -> None:
    error = error_of(status, _said("Failed to parse tools: x", status), model="alpha", path=CHAT)
    assert error.status == {401: 502, 403: 502, 404: 501, 405: 501, 500: 400}.get(status, status)


def test_a_body_that_is_too_large_for_the_engine_says_so() -> None:
    """The embedded engine gives no reason."""
    error = error_of(413, b"", model="alpha", path=CHAT)
    assert error.status == 413
    assert error.code == "request_too_large"
    assert "alpha" in error.message


async def test_a_number_of_results_below_one_does_not_reach_the_engine() -> None:
    async with site(reply) as s:
        body = {"model": "rank", "query": "q", "documents": ["a"], "top_n": -1}
        answer = await s.post("/v1/rerank", body)
        assert (answer.status, answer.error["param"]) == (400, "top_n")
        assert not s.worker.requests
        for fine in (1, 5, None):
            assert (await s.post("/v1/rerank", {**body, "top_n": fine})).status == 200
