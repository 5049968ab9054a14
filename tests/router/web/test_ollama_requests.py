"""What requests in Ollama's form become."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest

from router.errors import BadRequest
from router.web.ollama_requests import (
    Chat,
    Embed,
    Embeddings,
    Generate,
    chat_body,
    embed_body,
    embeddings_body,
    generate_body,
    infill_body,
    raw_body,
)

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(60)).decode()
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}


def chat(**given: Any) -> dict[str, Any]:
    asked = {"model": "m:latest", "messages": [{"role": "user", "content": "hi"}], **given}
    return chat_body(msgspec.convert(_through_json(asked), Chat), "m")


def generate(make: Any = generate_body, **given: Any) -> dict[str, Any]:
    asked = {"model": "m", "prompt": "hi", **given}
    return dict(make(msgspec.json.decode(msgspec.json.encode(asked), type=Generate), "m"))


def _through_json(value: Any) -> Any:
    """As it comes, with what is passed on unread still unread."""
    made = msgspec.json.decode(msgspec.json.encode(value))
    if "format" in made:
        made["format"] = msgspec.Raw(msgspec.json.encode(made["format"]))
    return made


def test_a_chat_streams_unless_told_otherwise() -> None:
    assert chat() == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert chat(stream=None)["stream"] is True
    assert "stream" not in chat(stream=False)
    assert "stream_options" not in chat(stream=False)


def test_options_have_the_engines_names() -> None:
    made = chat(
        options={
            "num_predict": 7,
            "num_keep": 5,
            "temperature": 0,
            "top_k": 3,
            "top_p": 0.5,
            "min_p": 0.1,
            "typical_p": 0.7,
            "seed": 42,
            "stop": ["a", "b"],
            "repeat_penalty": 1.2,
            "repeat_last_n": 33,
            "presence_penalty": 0.3,
            "frequency_penalty": 0.4,
            "mirostat": 2,
            "mirostat_tau": 5.5,
            "mirostat_eta": 0.2,
            "num_ctx": 4096,
            "num_gpu": 99,
            "num_thread": 8,
            "use_mmap": True,
            "main_gpu": 0,
        }
    )
    for key in ("model", "messages", "stream", "stream_options"):
        del made[key]
    assert made == {
        "max_tokens": 7,
        "n_keep": 5,
        "temperature": 0,
        "top_k": 3,
        "top_p": 0.5,
        "min_p": 0.1,
        "typical_p": 0.7,
        "seed": 42,
        "stop": ["a", "b"],
        "repeat_penalty": 1.2,
        "repeat_last_n": 33,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.4,
        "mirostat": 2,
        "mirostat_tau": 5.5,
        "mirostat_eta": 0.2,
    }


@pytest.mark.parametrize(
    ("options", "absent"),
    [
        ({"num_predict": -1}, "max_tokens"),
        ({"num_predict": -2}, "max_tokens"),
        ({"num_predict": 0}, "max_tokens"),
        ({"seed": -1}, "seed"),
        ({"stop": []}, "stop"),
        ({"temperature": None}, "temperature"),
    ],
)
def test_options_that_mean_the_default(options: dict[str, Any], absent: str) -> None:
    assert absent not in chat(options=options)


def test_whole_numbers_may_be_written_with_a_point() -> None:
    made = chat(options={"num_predict": 5.0, "top_k": 40.0, "seed": 2.0, "num_keep": -1.0})
    assert [(key, repr(made[key])) for key in ("max_tokens", "top_k", "seed", "n_keep")] == [
        ("max_tokens", "5"),
        ("top_k", "40"),
        ("seed", "2"),
        ("n_keep", "-1"),
    ]


def test_one_stop_word_may_be_a_text() -> None:
    assert chat(options={"stop": "end"})["stop"] == ["end"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("json", {"type": "json_object"}),
        (
            SCHEMA,
            {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": SCHEMA}},
        ),
        ("", None),
        (None, None),
    ],
)
def test_formats(given: Any, expected: Any) -> None:
    assert chat(format=given).get("response_format") == expected


@pytest.mark.parametrize("given", ["yaml", 5, ["json"], True])
def test_a_format_that_is_none(given: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        chat(format=given)
    assert caught.value.param == "format"


@pytest.mark.parametrize(
    ("think", "expected"),
    [
        (None, None),
        (True, {"enable_thinking": True}),
        (False, {"enable_thinking": False}),
        ("high", {"enable_thinking": True, "reasoning_effort": "high"}),
    ],
)
def test_thinking(think: Any, expected: Any) -> None:
    assert chat(think=think).get("chat_template_kwargs") == expected


def test_an_effort_that_is_none() -> None:
    with pytest.raises(BadRequest) as caught:
        chat(think="very hard")
    assert caught.value.param == "think"


def test_images_become_parts_before_the_text() -> None:
    said = {"role": "user", "content": "what is it?", "images": [PNG, "/9j/" + "A" * 40]}
    [message] = chat(messages=[said])["messages"]
    kinds = [part["type"] for part in message["content"]]
    assert kinds == ["image_url", "image_url", "text"]
    assert message["content"][0]["image_url"]["url"] == f"data:image/png;base64,{PNG}"
    assert message["content"][1]["image_url"]["url"].startswith("data:image/jpeg;base64,/9j/")
    assert message["content"][2]["text"] == "what is it?"
    assert "images" not in message


def test_an_image_may_come_as_an_address_with_its_data() -> None:
    [message] = chat(messages=[{"role": "user", "images": [f"data:image/png;base64,{PNG}"]}])["messages"]
    assert message["content"] == [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}]


@pytest.mark.parametrize("image", ["", "C:\\photo.png", "https://example.org/a.png", "not base64!"])
def test_an_image_that_is_no_base64_is_named(image: str) -> None:
    with pytest.raises(BadRequest) as caught:
        chat(messages=[{"role": "user", "content": "x"}, {"role": "user", "images": [image]}])
    assert caught.value.param == "messages[1].images"


def test_calls_of_tools_and_their_results_belong_together() -> None:
    def call(name: str, **arguments: Any) -> dict[str, Any]:
        return {"function": {"name": name, "arguments": arguments}}

    made = chat(
        messages=[
            {"role": "user", "content": "weather?"},
            {
                "role": "assistant",
                "tool_calls": [call("weather", city="北京"), call("time"), call("weather")],
            },
            {"role": "tool", "tool_name": "time", "content": "noon"},
            {"role": "tool", "name": "weather", "content": "sunny"},
            {"role": "tool", "content": "rain"},
            {"role": "assistant", "tool_calls": [{"id": "x9", **call("again")}]},
            {"role": "tool", "tool_call_id": "x9", "content": "done"},
        ]
    )["messages"]
    calls = made[1]["tool_calls"]
    assert [c["id"] for c in calls] == ["call_0", "call_1", "call_2"]
    assert calls[0]["type"] == "function"
    assert msgspec.json.decode(calls[0]["function"]["arguments"]) == {"city": "北京"}
    assert [m.get("tool_call_id") for m in made[2:5]] == ["call_1", "call_0", "call_2"]
    assert made[5]["tool_calls"][0]["id"] == made[6]["tool_call_id"] == "x9"


def test_a_result_without_its_call_is_passed_on_all_the_same() -> None:
    made = chat(messages=[{"role": "tool", "content": "noon"}])["messages"]
    assert made == [{"role": "tool", "content": "noon", "tool_call_id": "call_0"}]


def test_tools_keep_their_form_and_get_what_is_missing() -> None:
    given = [
        {"function": {"name": "now", "description": None}},
        {"type": "function", "function": {"name": "a"}},
    ]
    made = chat(tools=given)["tools"]
    assert made[0] == {
        "type": "function",
        "function": {"name": "now", "parameters": {"type": "object", "properties": {}}},
    }
    assert "tools" not in chat(tools=[])


@pytest.mark.parametrize("tool", [{}, {"function": {}}, {"function": "now"}, {"function": {"name": 5}}])
def test_a_tool_without_a_name(tool: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        chat(tools=[tool])
    assert caught.value.param == "tools[0]"


def test_thoughts_go_back_to_the_model() -> None:
    [message] = chat(messages=[{"role": "assistant", "content": "4", "thinking": "2+2"}])["messages"]
    assert message == {"role": "assistant", "content": "4", "reasoning_content": "2+2"}


def test_probabilities_of_tokens() -> None:
    assert "logprobs" not in chat(top_logprobs=3)
    made = chat(logprobs=True, top_logprobs=3)
    assert (made["logprobs"], made["top_logprobs"]) == (True, 3)
    assert generate(raw_body, raw=True, logprobs=True)["logprobs"] == 1
    with pytest.raises(BadRequest):
        chat(logprobs=True, top_logprobs=21)


def test_keep_alive_goes_along() -> None:
    assert chat(keep_alive="5m")["keep_alive"] == "5m"
    assert chat(keep_alive=None)["keep_alive"] is None
    assert "keep_alive" not in chat()


def test_generate_is_a_chat_of_one_message() -> None:
    made = generate(system="be brief", images=[PNG])
    assert made["messages"][0] == {"role": "system", "content": "be brief"}
    assert [part["type"] for part in made["messages"][1]["content"]] == ["image_url", "text"]
    assert generate(system="")["messages"] == [{"role": "user", "content": "hi"}]


def test_a_raw_prompt_goes_as_it_stands() -> None:
    made = generate(raw_body, raw=True, system="unused", format=SCHEMA, options={"num_predict": 3})
    assert made["prompt"] == "hi"
    assert made["json_schema"] == SCHEMA
    assert made["max_tokens"] == 3
    assert "messages" not in made
    assert generate(raw_body, format="json")["json_schema"] == {"type": "object"}


def test_what_stands_between_two_texts() -> None:
    made = generate(infill_body, prompt="def f(", suffix="return 1", options={"num_predict": 3})
    assert (made["input_prefix"], made["input_suffix"], made["prompt"]) == ("def f(", "return 1", "")
    assert made["n_predict"] == 3
    assert "max_tokens" not in made


@pytest.mark.parametrize(
    ("make", "given", "param"),
    [
        (generate_body, {"template": "{{ .Prompt }}"}, "template"),
        (generate_body, {"context": [1, 2]}, "context"),
        (raw_body, {"images": [PNG]}, "images"),
        (infill_body, {"images": [PNG], "suffix": "x"}, "images"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(make: Any, given: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        generate(make, **given)
    assert caught.value.param == param


def test_what_only_loads() -> None:
    assert Generate("m").is_empty
    assert Generate("m", prompt="").is_empty
    assert not Generate("m", prompt="x").is_empty
    assert not Generate("m", suffix="x").is_empty
    assert not Generate("m", images=[PNG]).is_empty


def test_embeddings() -> None:
    assert embed_body(Embed("m", input="one"), "m")["input"] == ["one"]
    assert embed_body(Embed("m", input=["one", ""]), "m")["input"] == ["one", ""]
    assert Embed("m", input="").texts == Embed("m").texts == Embed("m", input=[]).texts == []
    old = embeddings_body(Embeddings("m", prompt="one"), "m")
    assert (old["input"], old["embd_normalize"]) == ("one", -1)
    with pytest.raises(BadRequest):
        Embed("m", input="one", dimensions=-1)
