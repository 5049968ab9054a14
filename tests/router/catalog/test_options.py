"""Options of one model: what each takes, and what contradicts what."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.catalog.options import (
    CTX_AUTO,
    NO_OPTIONS,
    LoadOptions,
    apply_options,
    as_mapping,
    check_options,
    option_of_text,
)
from router.errors import BadRequest


@pytest.mark.parametrize(
    ("key", "value", "held"),
    [
        ("type", "embedding", "embedding"),
        ("device", "CUDA0,CUDA1", ("CUDA0", "CUDA1")),
        ("device", "CUDA0, Vulkan1", ("CUDA0", "Vulkan1")),
        ("device", ["GPU-6f2a"], ("GPU-6f2a",)),
        ("device", "CPU", ("cpu",)),
        ("split_mode", "layer", "layer"),
        ("main_gpu", 1, 1),
        ("tensor_split", "3,1", (3.0, 1.0)),
        ("tensor_split", [3, 1.5], (3.0, 1.5)),
        ("n_gpu_layers", 20, 20),
        ("n_gpu_layers", 0, 0),
        ("n_gpu_layers", "all", -1),
        ("n_gpu_layers", "auto", None),
        ("n_cpu_moe", 12, 12),
        ("ctx_size", 8192, 8192),
        ("ctx_size", "auto", CTX_AUTO),
        ("ctx_size", 0, None),
        ("parallel", 4, 4),
        ("cache_type_k", "q8_0", "q8_0"),
        ("cache_type_v", "iq4_nl", "iq4_nl"),
        ("mmproj", "/models/mmproj 山.gguf", "/models/mmproj 山.gguf"),
        ("mmproj", "", ""),
        ("mmproj", None, ""),
        ("mmproj", "none", ""),
        ("keep_alive", "24h", 86_400.0),
        ("keep_alive", 0, 0.0),
        ("keep_alive", -1, -1.0),
        ("keep_alive", "-5m", -1.0),
        ("keep_alive", 90.5, 90.5),
        ("evict_weight", 2, 2.0),
        ("llamacpp_args", ["--no-mmap"], ("--no-mmap",)),
        ("llamacpp_args", "--rope-scale 2 --override 'a b'", ("--rope-scale", "2", "--override", "a b")),
        ("parallel", None, None),
    ],
)
def test_values(key: str, value: Any, held: Any) -> None:
    assert getattr(check_options({key: value}), key) == held


@pytest.mark.fault("F20")
@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("type", "chat", "llm, embedding or reranking"),
        ("device", "", "CUDA0,CUDA1"),
        ("device", "CUDA0,,CUDA1", "CUDA0,CUDA1"),
        ("device", [0], "CUDA0,CUDA1"),
        ("device", "cpu,CUDA0", "cpu stands alone"),
        ("device", "CUDA0,cuda0", "twice"),
        ("device", [], "CUDA0,CUDA1"),
        ("split_mode", "row", "row is not offered"),
        ("split_mode", "tensor", "tensor is not offered"),
        ("split_mode", "Layer", "none or layer"),
        ("main_gpu", -1, "from 0"),
        ("main_gpu", True, "from 0"),
        ("tensor_split", "1,0", "name the others in device"),
        ("tensor_split", "1,-1", "a share above 0"),
        ("tensor_split", "1,nan", "a share above 0"),
        ("tensor_split", "half", "a share above 0"),
        ("tensor_split", [], "a share above 0"),
        ("tensor_split", 3, "a share above 0"),
        ("n_gpu_layers", "20", "all or auto"),
        ("n_gpu_layers", -2, "all or auto"),
        ("n_gpu_layers", True, "all or auto"),
        ("n_gpu_layers", 1.0, "all or auto"),
        ("n_cpu_moe", -1, "a whole number from 0"),
        ("ctx_size", "8192", "or auto"),
        ("ctx_size", -1, "or auto"),
        ("ctx_size", 8192.0, "or auto"),
        ("ctx_size", True, "or auto"),
        ("ctx_size", 1 << 40, "or auto"),
        ("parallel", 0, "from 1 to 64"),
        ("parallel", 65, "from 1 to 64"),
        ("cache_type_k", "q2_k", "f16"),
        ("cache_type_v", ["f16"], "f16"),
        ("mmproj", "mmproj.gguf", "full path"),
        ("mmproj", 7, "full path"),
        ("mmproj", "/a\nb", "full path"),
        ("keep_alive", "soon", "24h"),
        ("keep_alive", float("inf"), "24h"),
        ("keep_alive", 10**400, "24h"),
        ("keep_alive", True, "24h"),
        ("evict_weight", 0, "above 0"),
        ("evict_weight", float("nan"), "above 0"),
        ("evict_weight", 1e300, "above 0"),
        ("llamacpp_args", "--a 'b", "quotation mark"),
        ("llamacpp_args", [1], "llama-server"),
        ("llamacpp_args", ["--a\0"], "llama-server"),
    ],
)
def test_a_wrong_value_is_named_with_the_expected_form(key: str, value: Any, words: str) -> None:
    with pytest.raises(BadRequest) as caught:
        check_options({key: value})
    assert caught.value.param == key
    assert caught.value.message.startswith(f"{key}: expected ")
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"device": "A,B", "main_gpu": 2}, "main_gpu"),
        ({"device": "A,B", "tensor_split": "1,1,1"}, "tensor_split"),
        ({"device": "A", "split_mode": "none", "tensor_split": "1"}, "tensor_split"),
        ({"split_mode": "layer", "main_gpu": 0}, "main_gpu"),
        ({"device": "cpu", "n_gpu_layers": 3}, "n_gpu_layers"),
        ({"device": "cpu", "n_gpu_layers": "all"}, "n_gpu_layers"),
        ({"device": "cpu", "split_mode": "none"}, "split_mode"),
        ({"device": "cpu", "main_gpu": 0}, "main_gpu"),
        ({"device": "cpu", "tensor_split": "1"}, "tensor_split"),
    ],
)
def test_contradictions(given: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        check_options(given)
    assert caught.value.param == param


def test_what_agrees() -> None:
    check_options({"device": "A,B", "split_mode": "none", "main_gpu": 1, "n_gpu_layers": 3})
    check_options({"device": "A,B", "tensor_split": "3,1", "cache_type_v": "q4_0"})
    check_options({"device": "cpu", "n_gpu_layers": 0})
    assert check_options({}) == NO_OPTIONS


def test_every_fault_is_named_and_unknown_options_get_a_suggestion() -> None:
    with pytest.raises(BadRequest) as caught:
        check_options({"ctx_sise": 8192, "parallel": 0, "nonsense": 1})
    assert "ctx_sise: no such option (did you mean ctx_size?)" in caught.value.message
    assert "parallel: expected" in caught.value.message
    assert "nonsense: no such option (known are type, device," in caught.value.message
    assert caught.value.code == "unknown_option"


def test_options_over_others() -> None:
    base = LoadOptions(device=("A", "B"), tensor_split=(3.0, 1.0), n_gpu_layers=4)
    assert apply_options(base, {"n_gpu_layers": "auto", "parallel": 2}) == LoadOptions(
        device=("A", "B"), tensor_split=(3.0, 1.0), parallel=2
    )
    with pytest.raises(BadRequest, match=r"tensor_split: it has 2 shares, but device names 1"):
        apply_options(base, {"device": "A"})
    assert apply_options(base, {"device": "A", "tensor_split": None}).tensor_split is None


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("ctx_size", "8192", 8192),
        ("ctx_size", " auto ", CTX_AUTO),
        ("n_gpu_layers", "all", -1),
        ("n_gpu_layers", "20", 20),
        ("evict_weight", "1.5", 1.5),
        ("keep_alive", "300", 300.0),
        ("tensor_split", "3,1", (3.0, 1.0)),
        ("mmproj", "none", ""),
    ],
)
def test_options_on_a_command_line(key: str, text: str, value: Any) -> None:
    assert getattr(check_options({key: option_of_text(key, text)}), key) == value


def test_an_unknown_option_on_a_command_line() -> None:
    with pytest.raises(BadRequest, match="did you mean parallel"):
        option_of_text("paralel", "2")


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
LIKELY = st.sampled_from(
    [
        "auto",
        "all",
        "none",
        "cpu",
        "A,B",
        "3,1",
        "24h",
        "layer",
        "q8_0",
        "llm",
        0,
        1,
        2,
        -1,
        8192,
        [1, 2],
        ["A"],
    ]
)


@given(
    st.dictionaries(st.sampled_from([*LoadOptions.__struct_fields__, "other"]), ANY_JSON | LIKELY, max_size=6)
)
@settings(max_examples=80, deadline=None)
def test_anything_is_taken_or_refused_by_name_and_what_is_taken_can_be_written(given: dict[str, Any]) -> None:
    fault: BadRequest | None
    try:
        options = check_options(given)
    except BadRequest as caught:
        fault = caught
    else:
        fault = None
    if fault is not None:
        assert fault.param in given
        return
    written = json.loads(json.dumps(as_mapping(options)))
    assert check_options(written) == options
