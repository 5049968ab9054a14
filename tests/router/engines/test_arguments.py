"""Arguments of the engine that a model may have, and those that it may not."""

from __future__ import annotations

import pytest

from router.engines.arguments import Setting, check_arguments, embedded_settings
from router.errors import BadRequest


def refusal(given: object) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        check_arguments(given)  # type: ignore[arg-type]  # the wrong types are meant
    assert caught.value.status == 400
    assert caught.value.param == "llamacpp_args"
    return caught.value


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        ("", ()),
        ((), ()),
        ("--temp 0.5 --top-k=20", ("--temp", "0.5", "--top-k", "20")),
        (["--temp", "0.5", "-t", "8"], ("--temp", "0.5", "--threads", "8")),
        (["--temp 0.5", "--jinja"], ("--temp", "0.5", "--jinja")),
        ("--seed -1", ("--seed", "-1")),
        (
            """--chat-template-kwargs '{"enable_thinking": false}'""",
            ("--chat-template-kwargs", '{"enable_thinking": false}'),
        ),
        (["--chat-template-kwargs", '{"a": 1}'], ("--chat-template-kwargs", '{"a": 1}')),
        ("--reasoning-format deepseek-legacy", ("--reasoning-format", "deepseek-legacy")),
        ("--rope-scaling yarn --rope-scale 4", ("--rope-scaling", "yarn", "--rope-scale", "4")),
        ("--grammar 'root ::= \"$(rm -rf /)\"'", ("--grammar", 'root ::= "$(rm -rf /)"')),
    ],
)
def test_safe_ones_are_passed_on_by_their_long_names(given: str, passed: tuple[str, ...]) -> None:
    assert check_arguments(given) == passed
    assert check_arguments(passed) == passed


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ("-c 4096", "ctx_size"),
        ("--ctx-size=4096", "ctx_size"),
        ("-np 4", "parallel"),
        ("-ngl 99", "n_gpu_layers"),
        ("--gpu-layers 99", "n_gpu_layers"),
        ("--device CUDA0", "device"),
        ("-ts 1,1", "tensor_split"),
        ("-sm row", "split_mode"),
        ("-mg 1", "main_gpu"),
        ("-ot exps=CPU", "n_cpu_moe"),
        ("--cpu-moe", "n_cpu_moe"),
        ("-ctk q8_0", "cache_type_k"),
        ("--mmproj /x", "mmproj"),
        ("--embedding", "type"),
    ],
)
def test_what_places_memory_names_the_option(given: str, option: str) -> None:
    error = refusal(given)
    assert given.split()[0].partition("=")[0] in error.message
    assert option in error.message
    assert option in (error.hint or "")


@pytest.mark.parametrize(
    "name",
    [
        "-b",
        "--ubatch-size",
        "--mlock",
        "--no-mmap",
        "-fa",
        "--swa-full",
        "--fit",
        "-cram",
        "--no-kv-offload",
        "--rpc",
        "--sleep-idle-seconds",
        "--override-kv",
    ],
)
def test_what_moves_memory_otherwise(name: str) -> None:
    assert "memory" in refusal([name, "1"]).message


@pytest.mark.parametrize(
    "name",
    [
        *("--slot-save-path", "--log-file", "--grammar-file", "-jf", "--chat-template-file", "--lora"),
        *("--control-vector", "--hf-repo", "-hf", "--model-url", "--docker-repo", "--models-dir", "--tools"),
        *("--mcp-servers-config", "--agent", "--path", "--ssl-key-file", "--media-path", "--api-key-file"),
        *("--model-draft", "-md", "--gpt-oss-20b-default"),
    ],
)
def test_what_reaches_outside(name: str) -> None:
    assert "besides the model" in refusal([name, "/x"]).message


@pytest.mark.parametrize(
    "name",
    [
        "--model",
        "-m",
        "--host",
        "--port",
        "--api-key",
        "--alias",
        "-a",
        "--verbose",
        "-v",
        "--log-disable",
        "--metrics",
        "--nonsense",
        "--cors-origins",
        "--help",
        "-lv",
    ],
)
def test_what_the_router_sets_or_nobody_knows(name: str) -> None:
    assert name in refusal([name, "1"]).message


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("0.5", "begin with a dash"),
        ("--temp", "needs a value"),
        ("--temp hot", "a number"),
        ("--temp nan", "a number"),
        ("--temp inf", "a number"),
        ("--top-k 1.5", "a whole number"),
        ("--jinja=1", "takes no value"),
        ("--numa always", "one of distribute"),
        ("--chat-template-kwargs [1]", "an object"),
        ("--chat-template-kwargs {", "an object"),
        ("--temp '0.5", "taken apart"),
        ("--samplers --model", "begins with a dash"),
        ("--temp 1 " * 60, "the most"),
        (["--grammar", "x" * 70_000], "too long"),
        (["--grammar", "a\0b"], "zero byte"),
        ([1], "list of texts"),
        (["--chat-template-kwargs", "[" * 60_000], "an object"),
    ],
)
def test_bad_values_are_named(given: object, told: str) -> None:
    assert told in refusal(given).message


def test_what_the_embedded_engine_is_told() -> None:
    given = ["--temp", "0.5", "--threads", "2", "--seed", "-1", "--no-warmup", "--pooling", "mean",
             "--chat-template-kwargs", '{"a": true, "b": "x"}', "--no-perf"]  # fmt: skip
    assert embedded_settings(given) == (
        Setting("sampling.temp", 0.5),
        Setting("cpuparams.n_threads", 2),
        Setting("sampling.seed", (1 << 32) - 1),
        Setting("warmup", False),
        Setting("pooling_type", "LLAMA_POOLING_TYPE_MEAN", "llama_pooling_type"),
        Setting("default_template_kwargs", {"a": "true", "b": '"x"'}),
        Setting("no_perf", True),
    )


@pytest.mark.parametrize("name", ["--cpu-mask", "--grammar", "--rope-scale"])
def test_what_the_embedded_engine_does_not_take(name: str) -> None:
    check_arguments([name, "1"])
    with pytest.raises(BadRequest, match=f"does not take {name}"):
        embedded_settings([name, "1"])


@pytest.mark.engine
def test_the_embedded_engine_has_all_that_it_is_told() -> None:
    """Each attribute is there, and each name of a member: asked in a child."""
    import subprocess
    import sys

    code = """
import xllamacpp
from router.engines.arguments import _SAFE
params = xllamacpp.CommonParams()
for argument in _SAFE:
    if argument.attribute:
        target = params
        for step in argument.attribute.split("."):
            target = getattr(target, step)
    kind, prefix = argument.enum
    for choice in argument.choices if kind else ():
        getattr(getattr(xllamacpp, kind), prefix + choice.upper().replace("-", "_"))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
