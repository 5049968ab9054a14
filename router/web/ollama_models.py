"""Models and policies as Ollama's clients list them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from router.catalog.model import EMBEDDING, LLM, Model
from router.memory.gguf import Scalar
from router.policy.document import Policy
from router.snapshot import ResidentState, ResidentView, Snapshot
from router.version import __version__
from router.web.ollama_answers import timestamp
from router.web.ollama_requests import LATEST

#: The version of Ollama whose calls these are. Clients ask for it to know what they may use.
VERSION: Final = "0.12.11"

_SERVING: Final = frozenset({ResidentState.READY, ResidentState.DRAINING})
#: A time that is never reached, where a model is not unloaded by itself.
_NEVER_S: Final = 100 * 365 * 86_400.0
_SIZE_IN_NAME: Final = re.compile(r"(?<![A-Za-z0-9.])(\d{1,4}(?:\.\d{1,3})?)([BbMm])(?![A-Za-z0-9])")
_TEMPLATE: Final = "tokenizer.chat_template"
_INFILL: Final = ("tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.prefix_token_id")
_THINKS: Final = re.compile(r"enable_thinking|reasoning_content|<think>|reasoning_effort")
_FILE_TYPES: Final = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4",
}


def tagged(name: str) -> str:
    """A name with a tag, as clients of Ollama expect every name to have one."""
    return name if ":" in name.rpartition("/")[2] else name + LATEST


def spellings(name: str) -> tuple[str, ...]:
    """What a name that a client sent may be in the catalog, the likeliest first."""
    plain = name.strip()
    if plain.endswith(LATEST):
        return (plain, plain.removesuffix(LATEST))
    return (plain, tagged(plain)) if tagged(plain) != plain else (plain,)


def version() -> dict[str, Any]:
    """`GET /api/version`"""
    return {"version": VERSION, "lemon_tray": __version__}


def tags(listing: Iterable[Model | Policy]) -> dict[str, Any]:
    """`GET /api/tags`"""
    return {"models": [_listed(item) for item in listing]}


def running(snapshot: Snapshot, known: Mapping[str, Model], windows: Mapping[str, int]) -> dict[str, Any]:
    """`GET /api/ps`: models that answer now. `windows` are the tokens of context that each has."""
    shown = [r for r in snapshot.residents if r.state in _SERVING]
    hosts = frozenset(d.id for d in snapshot.devices if d.kind == "host")
    return {"models": [_running(r, known.get(r.model), windows.get(r.model, 0), hosts) for r in shown]}


def shown(item: Model | Policy, values: Mapping[str, Scalar], window: int, loaded: bool) -> dict[str, Any]:
    """`POST /api/show`. `values` are those of the model's file."""
    if isinstance(item, Policy):
        return {
            "modelfile": f"# A policy that chooses among: {', '.join(item.candidates)}\n",
            "parameters": "",
            "template": "",
            "details": _details(item),
            "model_info": {"general.architecture": "router", "router.candidates": list(item.candidates)},
            "capabilities": ["completion", "tools"],
            "modified_at": timestamp(0),
        }
    template = str(values.get(_TEMPLATE) or "")
    info: dict[str, Any] = {key: value for key, value in values.items() if key != _TEMPLATE}
    if item.header is not None:
        info.setdefault("general.architecture", item.header.architecture)
        info.setdefault(f"{item.header.architecture}.context_length", item.header.context_length)
    if item.remote:
        # Clients look here for the context, under the architecture's name.
        info = {"general.architecture": "remote", "general.basename": item.remote_id}
        info |= {"remote.context_length": item.context_length} if item.context_length else {}
    parameters = {**({"num_ctx": window} if window else {})}
    return {
        "modelfile": f"# {item.source or 'A file of yours'}\nFROM {item.path or item.name}\n",
        "parameters": "\n".join(f"{key:<30} {value}" for key, value in parameters.items()),
        "template": template,
        "details": _details(item),
        "model_info": info,
        "capabilities": capabilities(item, values),
        "modified_at": timestamp(item.identity.mtime_ns / 1e9),
        **({"license": values["general.license"]} if "general.license" in values else {}),
        "loaded": loaded,
    }


def capabilities(model: Model, values: Mapping[str, Scalar]) -> list[str]:
    """What a model can do, in Ollama's words."""
    if model.type == EMBEDDING:
        return ["embedding"]
    if model.type != LLM:
        return []
    # The engine lets every model that has a template call tools, if need be by a form of its own.
    made = ["completion", "tools"]
    if any(key in values for key in _INFILL):
        made.append("insert")
    if model.mmproj and model.options.mmproj != "":
        made.append("vision")
    if _THINKS.search(str(values.get(_TEMPLATE) or "")):
        made.append("thinking")
    return made


def digest(item: Model | Policy) -> str:
    """64 hex digits that change when the model's file does. They are no hash of its contents."""
    identity = item.identity if isinstance(item, Model) else item.candidates
    return hashlib.sha256(f"{item.name}\n{identity}".encode("utf-8", "surrogateescape")).hexdigest()


def _listed(item: Model | Policy) -> dict[str, Any]:
    name = tagged(item.name)
    modified = item.identity.mtime_ns / 1e9 if isinstance(item, Model) else 0
    return {
        "name": name,
        "model": name,
        "modified_at": timestamp(modified),
        "size": item.size_bytes if isinstance(item, Model) else 0,
        "digest": digest(item),
        "details": _details(item),
    }


def _running(
    resident: ResidentView, model: Model | None, window: int, hosts: frozenset[str]
) -> dict[str, Any]:
    name = tagged(resident.model)
    stays = resident.keep_alive_s < 0 or resident.pinned
    # Clients may ask for longer than there are dates.
    until = resident.last_use + (_NEVER_S if stays else min(resident.keep_alive_s, _NEVER_S))
    return {
        "name": name,
        "model": name,
        "size": resident.bytes,
        "size_vram": sum(size for device, size in resident.devices.items() if device not in hosts),
        "digest": digest(model) if model is not None else "",
        "details": _details(model) if model is not None else {},
        "expires_at": timestamp(until),
        "context_length": window,
    }


def _details(item: Model | Policy) -> dict[str, Any]:
    if isinstance(item, Policy):
        family, size, quantization, form = "router", "", "", "policy"
    else:
        family = item.header.architecture if item.header else ""
        names = (item.name, item.header.name if item.header else "")
        found = next(filter(None, map(_SIZE_IN_NAME.search, names)), None)
        size = f"{found[1]}{found[2].upper()}" if found else ""
        quantization, form = _quantization(item), "gguf"
    return {
        "parent_model": "",
        "format": form,
        "family": family,
        "families": [family] if family else [],
        "parameter_size": size,
        "quantization_level": quantization,
    }


def _quantization(model: Model) -> str:
    kind = model.header.file_type if model.header else None
    return _FILE_TYPES.get(kind, "unknown") if kind is not None else "unknown"
