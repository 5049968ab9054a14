"""Options of one model on the command line."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any, Final

from router.catalog.options import option_of_text, read_options
from router.errors import BadRequest

_HELP: Final = {
    "type": ("TYPE", "llm, embedding or reranking, in place of what the file says"),
    "device": ("NAMES", "GPUs to use, in order, such as CUDA0,CUDA1; cpu for none"),
    "split_mode": ("MODE", "layer: spread over the devices; none: all on one"),
    "main_gpu": ("N", "place in --device of the one that split mode none uses"),
    "tensor_split": ("SHARES", "shares of the devices, such as 3,1"),
    "n_gpu_layers": ("N", "layers on GPUs: a number, all or auto"),
    "n_cpu_moe": ("N", "keep the experts of so many of the first layers on the host"),
    "ctx_size": ("N", "context in tokens, or auto for the largest that fits"),
    "parallel": ("N", "requests at the same time"),
    "cache_type_k": ("TYPE", "element type of the cache's keys, such as q8_0"),
    "cache_type_v": ("TYPE", "element type of the cache's values"),
    "mmproj": ("PATH", "projector for images, or none"),
    "keep_alive": ("TIME", "unload after so long without use, such as 24h; 0: when idle, -1: never"),
    "evict_weight": ("X", "how much dearer than others it is to unload; 1 is ordinary"),
    "llamacpp_args": ("ARGS", "further arguments of llama-server: --llamacpp-args='--threads 8'"),
}


def add_model_options(command: argparse.ArgumentParser) -> None:
    """Give a command one switch for each option of a model."""
    for key, (placeholder, text) in _HELP.items():
        command.add_argument(f"--{key.replace('_', '-')}", metavar=placeholder, type=_reader(key), help=text)


def given_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options that the command line names, as a request has them."""
    found = {key: getattr(arguments, key) for key in _HELP}
    return {key: value for key, value in found.items() if value is not None}


def _reader(key: str) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        value = option_of_text(key, text)
        if key == "mmproj" and value not in ("", "none"):
            value = os.path.abspath(os.path.expanduser(value))
        faults: dict[str, BadRequest]
        _, faults = read_options({key: value})
        if faults:
            raise argparse.ArgumentTypeError(faults[key].message)
        return value

    return read
