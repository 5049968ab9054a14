"""What a worker is told: one plan, as the worker program takes it and as llama-server takes it."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import to_builtins

from router.engines.arguments import check_arguments, embedded_settings
from router.engines.base import WorkerSpec
from router.engines.pinning import Pin
from router.errors import BadRequest

HOST: Final = "127.0.0.1"
#: Tokens computed at once by models that embed or rank; they must see a whole text at once.
WHOLE_TEXT: Final = 2048
#: More layers than any model has: the engine's own word for all of them differs between versions.
_ALL_LAYERS: Final = 9999
#: The level of its log at which the engine tells the sizes of its buffers, and no prompts yet.
LOG_LEVEL: Final = 4


def for_worker(spec: WorkerSpec, pin: Pin, api_key: str) -> dict[str, Any]:
    """The line of configuration of the worker program.

    Raises:
        BadRequest: an argument that the embedded engine does not take.
    """
    return {
        "parent": os.getpid(),
        "host": HOST,
        "api_key": api_key,
        "model": spec.model,
        "path": spec.path,
        "type": spec.type,
        "ctx_size": spec.ctx_size,
        "parallel": spec.parallel,
        "n_gpu_layers": _layers(spec, pin),
        "split_mode": pin.split_mode,
        "tensor_split": list(pin.tensor_split),
        "cache_type_k": spec.cache_type_k,
        "cache_type_v": spec.cache_type_v,
        "overrides": ",".join(f"{_experts(block)}=CPU" for block in range(_on_host(spec, pin))),
        "mmproj": spec.mmproj,
        "mmproj_on_gpu": bool(pin.names),
        "batch": _batch(spec),
        "verbosity": LOG_LEVEL,
        "settings": to_builtins(embedded_settings(spec.args)),
    }


def for_server(program: Path, spec: WorkerSpec, pin: Pin, known: Collection[str]) -> list[str]:
    """The command line of a llama-server.

    `known` are the names of its arguments, so that one that it lacks is left out; empty if that is not known.
    The key of its interface is not in here.

    Raises:
        BadRequest: one of the model's own arguments is unknown to that program.
    """

    def has(name: str) -> bool:
        return not known or name in known

    def with_value(name: str, value: object) -> list[str]:
        return [name, str(value)] if has(name) else []

    def flag(*names: str) -> list[str]:
        return next(([name] for name in names if has(name)), [])

    names = list(pin.names)
    command = [os.fspath(program), "--model", spec.path, "--host", HOST, "--port", "0"]
    # The engine takes a list there; a name with a comma would become two.
    command += with_value("--alias", spec.model.replace(",", "_"))
    command += ["--ctx-size", str(spec.ctx_size), "--parallel", str(spec.parallel)]
    command += ["--device", ",".join(names) or "none", "--n-gpu-layers", str(_layers(spec, pin))]
    command += ["--split-mode", pin.split_mode]
    if pin.tensor_split:
        command += ["--tensor-split", ",".join(f"{share:.9g}" for share in pin.tensor_split)]
    if _on_host(spec, pin):
        command += ["--n-cpu-moe", str(spec.n_cpu_moe)]
    command += ["--cache-type-k", spec.cache_type_k, "--cache-type-v", spec.cache_type_v]
    if spec.mmproj:
        command += ["--mmproj", spec.mmproj]
        command += [] if names else flag("--no-mmproj-offload")
    if batch := _batch(spec):
        command += ["--batch-size", str(batch), "--ubatch-size", str(batch)]
    if spec.type != "llm":
        command += ["--embedding"] if spec.type == "embedding" else ["--reranking"]
    # The plan is made by the router; the engine must not change it, nor keep prompts in memory beyond it.
    command += with_value("--fit", "off") + flag("--kv-unified") + with_value("--cache-ram", 0)
    command += flag("--no-cache-idle-slots") + flag("--offline") + flag("--no-ui", "--no-webui")
    command += flag("--metrics") + flag("--slots") + flag("--no-cors-credentials")
    command += with_value("--cors-origins", f"http://{HOST}")
    command += flag("--log-prefix") + flag("--log-timestamps") + with_value("--log-colors", "off")
    # Earlier versions tell the sizes at their usual level, and much more at this one.
    if has("--log-prompts-dir") or has("--fit-ctx"):
        command += with_value("--log-verbosity", LOG_LEVEL)
    return command + _extra(spec.args, known)


def _extra(given: Sequence[str], known: Collection[str]) -> list[str]:
    arguments = check_arguments(given)
    for name in arguments:
        if known and name.startswith("--") and name not in known:
            raise BadRequest(f"This version of the engine does not know {name}.", param="llamacpp_args")
    return list(arguments)


def _layers(spec: WorkerSpec, pin: Pin) -> int:
    if not pin.names:
        return 0
    return _ALL_LAYERS if spec.n_gpu_layers < 0 else spec.n_gpu_layers


def _on_host(spec: WorkerSpec, pin: Pin) -> int:
    """Blocks whose experts are kept on the host though blocks go to a GPU."""
    return spec.n_cpu_moe if pin.names else 0


def _experts(block: int) -> str:
    """A pattern for the names of a block's expert tensors."""
    return rf"blk\.{block}\.ffn_(up|down|gate|gate_up)_(ch|)exps"


def _batch(spec: WorkerSpec) -> int:
    """Tokens at once; 0 for the engine's own choice."""
    return max(min(spec.ctx_size, WHOLE_TEXT), 1) if spec.type != "llm" else 0
