"""What answers in OpenAI's form become in Ollama's."""

from __future__ import annotations

import itertools
import json
import math
from datetime import UTC, datetime
from typing import Any

import pytest

from router.errors import RouterError, Unavailable
from router.web.ollama_answers import TextAnswer, VectorAnswer, timestamp
from router.web.sse import Events
from router.web.upstream import BadAnswer

TIMINGS = {"cache_n": 4, "prompt_n": 6, "prompt_ms": 12.5, "predicted_n": 3, "predicted_ms": 30.25}
USAGE = {"prompt_tokens": 10, "completion_tokens": 3}


def answer(**more: Any) -> TextAnswer:
    ticks = itertools.count(0, 1000)
    return TextAnswer("m", **{"of_chat": True, "clock": lambda: next(ticks), **more})


def event(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> bytes:
    choices = [{"index": 0, "delta": delta or {}, "finish_reason": finish}] if delta is not None else []
    return b"data: " + json.dumps({"choices": choices, **more}, ensure_ascii=False).encode() + b"\n\n"


def lines(data: bytes) -> list[dict[str, Any]]:
    assert data == b"" or data.endswith(b"\n")
    return [json.loads(line) for line in data.split(b"\n") if line]


def stream(*events: bytes) -> bytes:
    return b"".join([event({"role": "assistant", "content": None}), *events, b"data: [DONE]\n\n"])


WHOLE = stream(
    event({"content": "Hel"}),
    event({"content": "lo"}),
    event({}, "stop", timings=TIMINGS),
    event(usage=USAGE),
)


def feed_all(made: TextAnswer | Events, pieces: list[bytes]) -> None:
    for piece in pieces:
        made.feed(piece)


def told(data: bytes, made: TextAnswer | None = None) -> list[dict[str, Any]]:
    made = made or answer()
    made.begin()
    return lines(made.feed(data) + made.ending())


def test_a_stream_becomes_lines_and_ends_with_the_counts() -> None:
    first, second, last = told(WHOLE)
    assert first["message"] == {"role": "assistant", "content": "Hel"}
    assert (first["done"], first["model"]) == (False, "m")
    assert second["message"]["content"] == "lo"
    assert last["message"] == {"role": "assistant", "content": ""}
    assert (last["done"], last["done_reason"]) == (True, "stop")
    assert last["prompt_eval_count"] == 10
    assert last["prompt_eval_duration"] == 12_500_000
    assert last["eval_count"] == 3
    assert last["eval_duration"] == 30_250_000
    assert (last["load_duration"], last["total_duration"]) == (1000, 2000)


@pytest.mark.fault("F28")
@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_it_does_not_matter_how_the_bytes_come(size: int, end: bytes) -> None:
    text = "北🙂é\u2028x\u0085y"
    data = stream(event({"content": text}), b": a comment\n\n", event({}, "length")).replace(b"\n", end)
    made = answer()
    out = b"".join(made.feed(data[at : at + size]) for at in range(0, len(data), size))
    [first, last] = lines(out + made.ending())
    assert first["message"]["content"] == text
    assert last["done_reason"] == "length"


@pytest.mark.fault("F28")
def test_an_event_goes_on_as_soon_as_it_is_whole() -> None:
    made = answer()
    part = event({"content": "x"})
    assert made.feed(part[:-1]) == b""
    assert lines(made.feed(part[-1:]))[0]["message"]["content"] == "x"


def test_a_large_event_comes_through_and_a_boundless_one_does_not() -> None:
    text = "y" * (5 << 20)
    [first, _] = told(stream(event({"content": text}), event({}, "stop")))
    assert first["message"]["content"] == text
    for piece in (b"x" * 1000, b"data: " + b"x" * 1000 + b"\n"):
        events = Events(limit=10_000)
        with pytest.raises(BadAnswer):
            feed_all(events, [piece] * 11)


def test_data_in_several_lines_and_other_fields() -> None:
    events = Events()
    assert events.feed(b"event: x\nid: 5\ndata: a\ndata:b\n\n: c\n\ndata: last") == [b"a\nb"]
    assert events.flush() == [b"last"]
    assert events.flush() == []


@pytest.mark.fault("F28")
@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_a_line_end_that_is_cut_in_two_is_one(size: int) -> None:
    data, events = b"data: a\r\ndata: b\r\n\r\ndata: c\r\n\r\n", Events()
    found = [event for at in range(0, len(data), size) for event in events.feed(data[at : at + size])]
    assert found == [b"a\nb", b"c"]


def test_generate_has_its_text_in_another_place() -> None:
    first, *_, last = told(WHOLE, answer(of_chat=False))
    assert first["response"] == "Hel"
    assert "message" not in first
    assert last["response"] == ""


def test_a_raw_text_and_an_infill() -> None:
    raw = b'data: {"choices":[{"text":"ab","finish_reason":null}]}\n\n'
    raw += b'data: {"choices":[{"text":"","finish_reason":"length"}]}\n\ndata: [DONE]\n\n'
    assert [line["response"] for line in told(raw, answer(of_chat=False))] == ["ab", ""]
    infill = b'data: {"content":"ab","stop":false}\n\n'
    infill += b'data: {"content":"","stop":true,"stop_type":"limit","timings":{"predicted_n":2}}\n\n'
    first, last = told(infill, answer(of_chat=False))
    assert first["response"] == "ab"
    assert (last["done_reason"], last["eval_count"]) == ("length", 2)


def call(index: int, arguments: str, name: str | None = None, id: str | None = None) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, "id": id, "function": {"name": name, "arguments": arguments}}]}


@pytest.mark.fault("F21")
def test_calls_of_tools_come_as_a_whole_with_their_arguments_as_objects() -> None:
    data = stream(
        event({"content": "Let me see."}),
        event(call(0, "", "weather", "c1")),
        event(call(0, '{"ci')),
        event(call(1, '{"n": 1}', "count", "c2")),
        event(call(0, 'ty": "北京"}')),
        event({}, "tool_calls"),
    )
    text, calls, last = told(data)
    assert text["message"]["content"] == "Let me see."
    assert calls["message"]["tool_calls"] == [
        {"id": "c1", "function": {"index": 0, "name": "weather", "arguments": {"city": "北京"}}},
        {"id": "c2", "function": {"index": 1, "name": "count", "arguments": {"n": 1}}},
    ]
    assert calls["done"] is False
    assert last["done_reason"] == "stop"
    assert "tool_calls" not in last["message"]


def test_a_call_without_arguments() -> None:
    made = told(stream(event(call(0, "", "now")), event({}, "tool_calls")))
    assert made[0]["message"]["tool_calls"] == [{"function": {"index": 0, "name": "now", "arguments": {}}}]


@pytest.mark.parametrize("arguments", ["[1]", '"x"', '{"a":', "no"])
def test_what_is_no_call_is_told_as_text(arguments: str) -> None:
    made = told(stream(event(call(0, arguments, "now")), event({}, "tool_calls")))
    assert made[0]["message"] == {"role": "assistant", "content": f"now({arguments})"}


def test_a_call_that_the_limit_cut_off_is_left_out() -> None:
    [last] = told(stream(event(call(0, '{"a":', "now")), event({}, "length")))
    assert (last["done_reason"], last["message"]["content"]) == ("length", "")


def test_calls_without_end() -> None:
    made = answer()
    with pytest.raises(BadAnswer):
        feed_all(made, [event(call(index, "", "x")) for index in range(1000)])


def test_thoughts() -> None:
    data = stream(event({"reasoning_content": "hm"}), event({"content": "4"}), event({}, "stop"))
    first, second, _ = told(data)
    assert first["message"] == {"role": "assistant", "content": "", "thinking": "hm"}
    assert "thinking" not in second["message"]
    assert told(data, answer(of_chat=False))[0]["thinking"] == "hm"
    assert [line["message"]["content"] for line in told(data, answer(with_thinking=False))] == ["4", ""]


def test_probabilities_of_tokens() -> None:
    tokens = [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}]
    choice = {"index": 0, "delta": {"content": "a"}, "finish_reason": None, "logprobs": {"content": tokens}}
    data = b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"
    assert told(data + event({}, "stop"))[0]["logprobs"] == tokens


def test_the_candidate_that_answers_is_named() -> None:
    made = answer()
    made.begin("candidate")
    assert {line["model"] for line in lines(made.feed(WHOLE) + made.ending())} == {"candidate"}


@pytest.mark.fault("F07")
def test_an_error_of_the_engine_ends_it_and_nothing_is_made_up() -> None:
    data = stream(event({"content": "x"}), b'data: {"error":{"message":"out of memory","code":500}}\n\n')
    made = told(data)
    assert [set(line) & {"error", "done"} for line in made] == [{"done"}, {"error"}]
    assert made[-1] == {"error": "out of memory"}


@pytest.mark.fault("F07")
def test_a_failure_is_a_line() -> None:
    made = answer()
    made.feed(stream(event({"content": "x"})))
    assert lines(made.failure(Unavailable("It is gone.", hint="Try again."))) == [
        {"error": "It is gone. Try again."}
    ]
    assert made.failure(RouterError("twice")) == b""


@pytest.mark.parametrize("data", [b"data: {\n\n", b'data: {"choices":5}\n\n', b"data: \xff\n\n"])
def test_a_stream_that_is_none(data: bytes) -> None:
    with pytest.raises(BadAnswer):
        answer().feed(data)


def whole(message: dict[str, Any], finish: str = "stop") -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    return json.dumps({"choices": [choice], "usage": USAGE, "timings": TIMINGS}).encode()


def test_a_whole_answer() -> None:
    made = json.loads(answer().whole(whole({"content": "北🙂", "reasoning_content": "hm"}, "length")))
    assert made["message"] == {"role": "assistant", "content": "北🙂", "thinking": "hm"}
    assert (made["done"], made["done_reason"]) == (True, "length")
    assert (made["prompt_eval_count"], made["eval_count"], made["eval_duration"]) == (10, 3, 30_250_000)


def test_a_whole_answer_with_calls() -> None:
    calls = [
        {"id": f"c{n}", "type": "function", "function": {"name": n, "arguments": '{"x": 1}'}} for n in "ab"
    ]
    made = json.loads(answer().whole(whole({"content": None, "tool_calls": calls}, "tool_calls")))
    assert [c["function"]["name"] for c in made["message"]["tool_calls"]] == ["a", "b"]
    assert made["message"]["tool_calls"][1]["function"]["arguments"] == {"x": 1}
    assert (made["message"]["content"], made["done_reason"]) == ("", "stop")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"choices":[]}'])
def test_a_whole_answer_that_says_nothing(body: bytes) -> None:
    with pytest.raises(BadAnswer):
        answer().whole(body)


def vectors(*items: list[float]) -> bytes:
    data = [{"index": at, "embedding": item} for at, item in enumerate(items)]
    return json.dumps({"data": data, "usage": {"prompt_tokens": 5}}).encode()


def test_embeddings() -> None:
    made = json.loads(VectorAnswer("m").whole(vectors([0.6, 0.8], [1.0, 0.0])))
    assert made["embeddings"] == [[0.6, 0.8], [1.0, 0.0]]
    assert (made["model"], made["prompt_eval_count"]) == ("m", 5)
    assert made["total_duration"] >= 0
    assert json.loads(VectorAnswer("m", single=True).whole(vectors([3.5, 4.0]))) == {"embedding": [3.5, 4.0]}


def test_fewer_dimensions_are_as_long_as_all() -> None:
    [made] = json.loads(VectorAnswer("m", dimensions=2).whole(vectors([0.3, 0.4, 0.5])))["embeddings"]
    assert made == pytest.approx([0.6, 0.8])
    assert math.hypot(*made) == pytest.approx(1)
    [zero] = json.loads(VectorAnswer("m", dimensions=1).whole(vectors([0.0, 1.0])))["embeddings"]
    assert zero == [0.0]
    [same] = json.loads(VectorAnswer("m", dimensions=9).whole(vectors([0.3, 0.4])))["embeddings"]
    assert same == [0.3, 0.4]


@pytest.mark.parametrize("body", [b"{}", b'{"data":[{}]}', b"["])
def test_embeddings_that_are_none(body: bytes) -> None:
    with pytest.raises(BadAnswer):
        VectorAnswer("m").whole(body)


def test_times_are_in_utc() -> None:
    assert timestamp(0) == "1970-01-01T00:00:00.000000Z"
    now = datetime.fromisoformat(timestamp())
    assert abs((datetime.now(UTC) - now).total_seconds()) < 3600
