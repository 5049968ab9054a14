"""The formula against the engine's own planner: weights and cache to the byte, compute never under."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Struct

from router.memory.header import read_header
from router.memory.placement import EXACT, HOST, PlacementOptions, device_demand
from router.units import GIB, MIB
from tests.oracle.models import Shape, write
from tests.support import gguf

pytestmark = pytest.mark.oracle

PROGRAM = Path(__file__).with_name("planner.py")
#: The program's status where the engine cannot be asked.
UNUSABLE = 3
PATIENCE_S = 100
#: With so many slots and blocks on the host the engine copies most of their caches; how many is not bounded.
MANY = 32
UNASKABLE = "the engine's planner cannot be asked"
FREE = 80 * GIB

DENSE = Shape(kind=gguf.Q4_0, output_kind=gguf.Q8_0)
#: Models of the sizes that people use. Their files are holes.
MODELS: dict[str, Shape] = {
    "tiny": Shape(layers=2, embd=64, heads=4, head_dim=16, ff=128),
    "dense": DENSE,
    "odd": Shape(layers=7, embd=576, heads=9, kv_heads=3, ff=1536, kind=gguf.Q8_0, vocab=4096, tied=True),
    "rotary": Shape(layers=5, rotary=True),
    "by-block": Shape("deci", layers=4, kv_heads=[8, 2, 4, 1]),
    "many": Shape(heads=8, kv_heads=8, kind=gguf.Q8_0),
    "llama-8b": Shape(
        layers=32, embd=4096, heads=32, kv_heads=8, head_dim=128, ff=14_336, vocab=128_256,
        kind=gguf.Q4_K, output_kind=gguf.Q6_K, rotary=True,
    ),
    "llama-experts": Shape(
        layers=32, embd=4096, heads=32, kv_heads=8, head_dim=128, ff=14_336, experts=8, vocab=4096,
        kind=gguf.Q4_K, output_kind=gguf.Q6_K,
    ),
    "qwen2": Shape(
        "qwen2", layers=28, embd=1536, heads=12, head_dim=128, ff=8960, vocab=4096, tied=True,
        kind=gguf.Q4_K, output_kind=gguf.Q6_K,
    ),
    "qwen2moe": Shape(
        "qwen2moe", layers=24, embd=2048, heads=16, kv_heads=16, head_dim=128, ff=1408, experts=60,
        experts_used=4, shared_ff=5632, vocab=4096, kind=gguf.Q8_0, output_kind=gguf.Q8_0,
    ),
    "qwen3": Shape(
        "qwen3", layers=36, embd=2560, heads=32, kv_heads=8, head_dim=128, ff=9728, vocab=4096, tied=True,
        kind=gguf.Q4_K, output_kind=gguf.Q6_K,
    ),
    "qwen3moe": Shape(
        "qwen3moe", layers=48, embd=2048, heads=32, kv_heads=4, head_dim=128, ff=768, experts=128,
        experts_used=8, vocab=4096, kind=gguf.Q4_K, output_kind=gguf.Q6_K,
    ),
    "gemma": Shape(
        "gemma", layers=18, embd=2048, heads=8, kv_heads=1, head_dim=256, ff=16_384, vocab=4096, tied=True,
        kind=gguf.Q4_K, output_kind=gguf.Q6_K,
    ),
    "gemma2": Shape(
        "gemma2", layers=26, embd=2304, heads=8, kv_heads=4, head_dim=256, ff=9216, vocab=4096,
        window=4096, tied=True, kind=gguf.Q4_K, output_kind=gguf.Q6_K,
    ),
    "gemma3": Shape(
        "gemma3", layers=26, embd=1152, heads=4, kv_heads=1, head_dim=256, ff=6912, vocab=262_144,
        window=512, tied=True, kind=gguf.Q4_0, output_kind=gguf.Q8_0,
    ),
    "gpt-oss": Shape(
        "gpt-oss", layers=24, embd=2880, heads=64, kv_heads=8, ff=2880, experts=32, experts_used=4,
        vocab=4096, window=128, kind=gguf.MXFP4, output_kind=gguf.Q8_0,
    ),
    "cohere2": Shape(
        "cohere2", layers=32, embd=4096, heads=32, kv_heads=8, head_dim=128, ff=14_336, vocab=4096,
        window=4096, tied=True, kind=gguf.Q4_K, output_kind=gguf.Q6_K, extra={"cohere2.logit_scale": 0.25},
    ),
    "phi": Shape(
        "phi3", layers=32, embd=3072, heads=32, kv_heads=32, head_dim=96, ff=8192, vocab=4096, window=2047,
        kind=gguf.Q8_0, output_kind=gguf.Q8_0,
    ),
    "granite": Shape(
        "granite", layers=40, embd=2048, heads=32, kv_heads=8, ff=8192, vocab=4096, tied=True,
        kind=gguf.Q4_K, output_kind=gguf.Q6_K, extra={"granite.logit_scale": 8.0},
    ),
    "smollm3": Shape(
        "smollm3", layers=36, embd=2048, heads=16, kv_heads=4, head_dim=128, ff=11_008, vocab=4096,
        tied=True, kind=gguf.Q4_K, output_kind=gguf.Q6_K,
    ),
    "qwen3-embedding": Shape(
        "qwen3", layers=28, embd=1024, heads=16, kv_heads=8, head_dim=128, ff=3072, vocab=32_000, tied=True,
        kind=gguf.Q8_0, output_kind=gguf.Q8_0, extra={"qwen3.pooling_type": 3},
    ),
}  # fmt: skip
ENCODER = "bert"
CACHES = ("q8_0", "q4_0", "q5_1", "bf16", "f32")


class Case(Struct, frozen=True):
    """A model with options."""

    model: str
    options: PlacementOptions

    def __str__(self) -> str:
        plain = PlacementOptions()
        differing = [
            f"{name}={value}"
            for name in PlacementOptions.__struct_fields__
            if (value := getattr(self.options, name)) != getattr(plain, name)
            and name not in ("devices", "repack")
        ]
        return " ".join([self.model, f"gpus={len(self.options.devices)}", *differing])


def case(model: str, gpus: int, **options: Any) -> Case:
    names = tuple(f"FAKE{number}" for number in range(gpus))
    return Case(model, PlacementOptions(devices=names, repack=False, **options))


CASES = [
    *(case(model, gpus, ctx_size=16_384) for model in (*MODELS, ENCODER) for gpus in (0, 1, 2)),
    *(case(model, 1, ctx_size=16_384, n_gpu_layers=1) for model in MODELS),
    *(case(model, 1, ctx_size=16_384, flash_attn="off") for model in MODELS if model != "gemma2"),
    *(case(model, 1, parallel=16, ctx_size=4096) for model in MODELS),
    *(case(model, 1, n_gpu_layers=0) for model in ("dense", "llama-8b", "qwen3moe")),
    *(case(model, 3, n_gpu_layers=layers) for model in ("dense", "llama-8b") for layers in (1, 2, 4, 5, 20)),
    *(case("odd", 3, tensor_split=split) for split in ((1, 1, 1), (3, 1, 2), (0.1, 0.2, 0.7), (1, 0, 1))),
    *(case("llama-8b", 2, tensor_split=split) for split in ((24, 8), (0, 1), (1, 3), (0.97, 0.03))),
    *(case("rotary", 2, split_mode="none", main_gpu=gpu) for gpu in (0, 1)),
    case("gemma3", 2, split_mode="none", main_gpu=1, n_gpu_layers=13),
    *(case("dense", 1, cache_type_k=kind, cache_type_v=kind) for kind in CACHES),
    case("odd", 1, cache_type_k="q8_0", cache_type_v="q5_0"),
    case("odd", 0, cache_type_k="q4_1", cache_type_v="iq4_nl"),
    case("by-block", 1, flash_attn="off"),
    case("by-block", 2, cache_type_k="q8_0"),
    *(
        case(model, 1, ctx_size=5000, parallel=3, kv_unified=unified)
        for model in ("dense", "gemma3", "gpt-oss", "odd")
        for unified in (True, False)
    ),
    *(case("gemma3", 2, ctx_size=ctx_size, swa_full=True) for ctx_size in (300, 8192)),
    *(case(model, 1, ctx_size=size) for model in ("dense", "gemma2", "qwen3") for size in (1, 257, 131_072)),
    *(
        case(model, gpus, n_cpu_moe=5, ctx_size=8192)
        for model in ("llama-experts", "qwen3moe", "gpt-oss", "qwen2moe")
        for gpus in (1, 2)
    ),
    case("qwen3moe", 1, n_cpu_moe=48, n_gpu_layers=20),
    case("llama-8b", 1, ubatch=2048, ctx_size=32_768),
    case("llama-8b", 2, ubatch=128),
    case("qwen3", 1, parallel=64, ctx_size=65_536),
    case("cohere2", 1, parallel=64, ctx_size=65_536, n_gpu_layers=8),
]  # fmt: skip


header_of = functools.cache(read_header)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    written = {name: write(folder / f"{name}.gguf", shape) for name, shape in MODELS.items()}
    return written | {ENCODER: gguf.write_encoder(folder / "bert.gguf")}


@pytest.fixture(scope="session")
def planned(models: dict[str, Path]) -> Callable[[Case], dict[str, dict[str, int]]]:
    """What the planner says of a case. All cases with as many GPUs are asked of one child."""
    answers: dict[int, dict[Case, dict[str, dict[str, int]]] | str] = {}

    def ask(wanted: Case) -> dict[str, dict[str, int]]:
        gpus = len(wanted.options.devices)
        if gpus not in answers:
            answers[gpus] = "the planner did not answer"
            answers[gpus] = _ask_all(gpus, models)
        answer = answers[gpus]
        if isinstance(answer, str):
            pytest.skip(answer) if answer.startswith(UNASKABLE) else pytest.fail(answer)
        return answer[wanted]

    return ask


def _ask_all(gpus: int, models: dict[str, Path]) -> dict[Case, dict[str, dict[str, int]]] | str:
    """The answers, or why there are none."""
    cases = [one for one in dict.fromkeys(CASES) if len(one.options.devices) == gpus]
    request = {
        "frees": [FREE] * gpus,
        "cases": [
            msgspec.structs.asdict(one.options)
            | {"path": str(models[one.model]), "ubatch": _ubatch(one), "embedding": _embeds(one)}
            for one in cases
        ],
    }
    ran = subprocess.run(
        [sys.executable, str(PROGRAM)],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        errors="replace",
        timeout=PATIENCE_S,
        check=False,
    )
    if ran.returncode == UNUSABLE:
        return f"{UNASKABLE}: {ran.stdout.strip()}"
    if ran.returncode:
        return f"the planner ended with {ran.returncode}: {ran.stderr[-2000:]}"
    return dict(zip(cases, json.loads(ran.stdout), strict=True))


def _embeds(one: Case) -> bool:
    return one.model in (ENCODER, "qwen3-embedding")


def _ubatch(one: Case) -> int:
    return one.options.ubatch or (2048 if _embeds(one) else 512)


@pytest.mark.fault("F30")
@pytest.mark.parametrize("one", dict.fromkeys(CASES), ids=str)
def test_the_formula_agrees_with_the_planner(
    one: Case, models: dict[str, Path], planned: Callable[[Case], dict[str, dict[str, int]]]
) -> None:
    truth = planned(one)
    demand = device_demand(header_of(models[one.model]), one.options)
    ours = demand.per_device
    assert set(ours) == set(truth)
    assert {device: (parts.weights, parts.kv_cache) for device, parts in ours.items()} == {
        device: (row["weights"], row["kv_cache"]) for device, row in truth.items()
    }
    assert not demand.estimate
    # Where the host has blocks too, it may have to compute them itself; the planner supposes it need not.
    whole = one.options.n_gpu_layers < 0 and not one.options.n_cpu_moe
    for device, row in truth.items():
        compute = ours[device].compute
        assert compute >= row["compute"], f"{device}: {compute / MIB:.1f} < {row['compute'] / MIB:.1f} MiB"
        if whole or (device != HOST and one.options.parallel < MANY):
            over = compute - row["compute"]
            assert over <= max(row["compute"] // 4, 64 * MIB), (
                f"{device}: {compute / MIB:.1f} for {row['compute'] / MIB:.1f} MiB"
            )


def test_every_architecture_that_is_called_exact_is_compared() -> None:
    assert {MODELS[one.model].architecture if one.model in MODELS else ENCODER for one in CASES} == EXACT
