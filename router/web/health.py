"""What `GET /v1/health` and `GET /v1/models` tell: pure functions of the snapshot and the listing."""

from __future__ import annotations

import os
import platform
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from router.catalog.model import EMBEDDING, LLM, RERANKING, TYPES, Model
from router.policy import parse
from router.policy.document import Policy
from router.snapshot import (
    DeviceView,
    EngineView,
    ModelView,
    ProviderView,
    ResidentState,
    ResidentView,
    Snapshot,
)
from router.web.tally import Last

RECIPE: Final = "llamacpp"
HELPER: Final = "helper"
REMOTE: Final = "remote"

_LABELS: Final = {LLM: (), EMBEDDING: ("embeddings",), RERANKING: ("reranking",)}
_SERVING: Final = frozenset({ResidentState.READY, ResidentState.DRAINING})


def health(snapshot: Snapshot) -> dict[str, Any]:
    """The health document. `status` is "ok" while requests are answered; `state` is the snapshot's status."""
    shown = [resident_entry(r) for r in snapshot.residents if r.state is not ResidentState.EVICTING]
    pinned = [r for r in snapshot.residents if r.pinned]
    return {
        "status": "ok",
        "state": snapshot.status.value,
        "version": snapshot.version,
        "endpoint": snapshot.endpoint,
        "ollama_endpoint": snapshot.ollama_endpoint or None,
        "uptime_s": snapshot.uptime_s,
        "generation": snapshot.generation,
        "degraded": snapshot.degraded or None,
        "paused": snapshot.paused,
        "simulated": snapshot.simulated,
        "model_loaded": last_used(snapshot),
        "all_models_loaded": shown,
        "max_models": effective_limits(snapshot),
        "pinned_models": [r.model for r in pinned if not helper_only(r)],
        "pinned_helper_models": [r.model for r in pinned if helper_only(r)],
        "llm_pool_autosize": autosize(snapshot),
        "devices": [device_entry(d) for d in snapshot.devices],
        "queue": {
            "waiting": snapshot.queue.waiting,
            "waiting_bytes": snapshot.queue.waiting_bytes,
            "by_model": snapshot.queue.by_model,
        },
        "providers": [provider_entry(p) for p in snapshot.providers],
    }


def stats(last: Last | None) -> dict[str, Any]:
    """How the newest answer went, also under the names that Lemonade gives these numbers."""
    if last is None:
        return {}
    return {
        "model": last.model,
        "path": last.path,
        "time_to_first_token": last.time_to_first_token_s,
        "tokens_per_second": last.tokens_per_s,
        "prompt_tokens_per_second": last.prompt_tokens_per_s,
        "input_tokens": last.prompt_tokens,
        "output_tokens": last.tokens,
        "total_s": last.total_s,
    }


def system_info(snapshot: Snapshot) -> dict[str, Any]:
    """The machine as far as it matters here: system, devices and engines."""
    return {
        "version": snapshot.version,
        "os": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "python": platform.python_version(),
        "processors": os.cpu_count(),
        "simulated": snapshot.simulated,
        "devices": [device_entry(d) for d in snapshot.devices],
        "engines": [engine_entry(e) for e in snapshot.engines],
    }


def engine_entry(engine: EngineView) -> dict[str, Any]:
    """One engine that is there or can be had; `size` are the bytes to fetch."""
    return {
        "id": engine.id,
        "title": engine.title,
        "kind": engine.kind,
        "version": engine.version or None,
        "backends": list(engine.backends),
        "devices": list(engine.devices),
        "in_use": engine.in_use,
        "size": engine.size or None,
        "problem": engine.problem or None,
    }


def provider_entry(provider: ProviderView) -> dict[str, Any]:
    """One remote provider; `looked_at` is in Unix seconds, null before the first look."""
    return {
        "name": provider.name,
        "url": provider.url,
        "state": provider.state,
        "problem": provider.problem or None,
        "models": provider.models,
        "models_left_out": provider.more,
        "in_use": provider.in_use,
        "key": provider.key,
        "looked_at": provider.looked_at or None,
    }


def last_used(snapshot: Snapshot) -> str | None:
    """The model that answered last among those that can answer; language models before others."""
    serving = [r for r in snapshot.residents if r.state in _SERVING]
    return max(serving, key=lambda r: (r.type == LLM, r.last_use)).model if serving else None


def helper_only(resident: ResidentView) -> bool:
    """Whether only policies use it."""
    return bool(resident.memberships) and all(m == HELPER for m in resident.memberships)


def resident_entry(resident: ResidentView) -> dict[str, Any]:
    """One model with a process, loading or loaded."""
    return {
        "model_name": resident.model,
        "type": resident.type,
        "recipe": RECIPE,
        "state": resident.state.value,
        "progress": resident.progress,
        "reason": resident.reason or None,
        "residency": list(resident.memberships),
        "slot_pool": f"{HELPER}:{resident.type}" if helper_only(resident) else resident.type,
        "device": " ".join(resident.devices),
        "devices": resident.devices,
        "size_bytes": resident.bytes,
        "pinned": resident.pinned,
        "is_busy": resident.is_busy,
        "in_use": resident.in_use,
        "waiting": resident.waiting,
        "slots": resident.slots,
        "stuck": resident.stuck,
        "last_use": resident.last_use,
        "tokens_per_s": resident.tokens_per_s,
        "pid": resident.pid,
        "backend_url": resident.backend_url,
        "launch_command": list(resident.launch_command),
        "recipe_options": resident.options,
    }


def device_entry(device: DeviceView) -> dict[str, Any]:
    """One device, bytes as they are; `total` and `free` are null while they cannot be read."""
    return {
        "id": device.id,
        "name": device.name,
        "label": device.label,
        "kind": device.kind,
        "state": device.state.value,
        "reason": device.reason or None,
        "total": device.total,
        "free": device.free,
        "reserved": device.reserved,
        "claimed": device.claimed,
        "available": device.available,
        "ours": device.ours,
        "others": device.others,
        "margin": device.margin,
        "usable": device.usable,
    }


def effective_limits(snapshot: Snapshot) -> dict[str, int]:
    """How many models of each type may be loaded now; -1: no limit."""
    limits = dict.fromkeys(TYPES, snapshot.pool.configured_limit)
    limits[LLM] = snapshot.pool.effective_limit
    return {**limits, **snapshot.effective_limits}


def autosize(snapshot: Snapshot) -> dict[str, Any]:
    """The pool of language models, and what makes it larger than was configured."""
    pool = snapshot.pool
    active = [p for p in snapshot.policies if p.enabled]
    return {
        "enabled": pool.autosize,
        "configured_limit": pool.configured_limit,
        "effective_limit": pool.effective_limit,
        "candidate_floor": pool.candidate_floor,
        "loaded": pool.loaded,
        "loading": pool.loading,
        "policies": {p.name: p.count for p in active},
        "unresolved": [{"policy": p.name, "candidate": name} for p in active for name in p.unresolved],
        "exceeds_max_loaded_models": pool.exceeds_configured,
        "vram_backstop": pool.auto_evict,
        "advisory": pool.advisory or None,
    }


def models(snapshot: Snapshot, listing: Iterable[Model | Policy]) -> dict[str, Any]:
    """The list of models in OpenAI's shape."""
    views = {m.name: m for m in snapshot.models}
    names = {alias: m.name for m in snapshot.models for alias in (m.name, *m.aliases)}
    loaded = {r.model for r in snapshot.residents if r.state in _SERVING}
    listed = list(listing)
    answering = {p.name for p in snapshot.providers if p.state == "ready"}
    # A remote model is never loaded here: it counts as that while its provider answers.
    for item in listed:
        asked_for = item.candidates if isinstance(item, Policy) else (item.name,)
        loaded |= {name for name in asked_for if name not in names and name.partition("/")[0] in answering}
    return {"object": "list", "data": [_entry(item, views, names, loaded) for item in listed]}


def model_entry(item: Model | Policy, snapshot: Snapshot) -> dict[str, Any]:
    """One entry of the list. A policy counts as loaded when all its candidates are."""
    return models(snapshot, [item])["data"][0]  # type: ignore[no-any-return]  # made just above


def _entry(
    item: Model | Policy,
    views: Mapping[str, ModelView],
    names: Mapping[str, str],
    loaded: Collection[str],
) -> dict[str, Any]:
    if isinstance(item, Policy):
        return {
            "id": item.name,
            "object": "model",
            "created": 0,
            "owned_by": "lemon-tray",
            "type": LLM,
            "recipe": parse.RECIPE,
            "labels": ["router"],
            "size_bytes": None,
            "context_length": None,
            "loaded": all(names.get(c, c) in loaded for c in item.candidates),
            "needs_bytes": None,
            "fits": None,
            "aliases": [],
            "candidates": list(item.candidates),
        }
    if item.remote:
        return {
            "id": item.name,
            "object": "model",
            "created": item.identity.mtime_ns // 1_000_000_000,
            "owned_by": item.provider,
            "type": item.type,
            "recipe": REMOTE,
            "labels": [*_LABELS.get(item.type, ()), REMOTE],
            "size_bytes": None,
            "context_length": item.context_length or None,
            "loaded": item.name in loaded,
            "needs_bytes": None,
            "fits": None,
            "aliases": [],
            "provider": item.provider,
            "hops": item.hops,
        }
    view = views.get(item.name)
    return {
        "id": item.name,
        "object": "model",
        "created": item.identity.mtime_ns // 1_000_000_000,
        "owned_by": "lemon-tray",
        "type": item.type,
        "recipe": RECIPE,
        "labels": list(_LABELS.get(item.type, ())),
        "size_bytes": item.size_bytes,
        "context_length": item.context_length,
        "loaded": item.name in loaded,
        "needs_bytes": (view.needs or None) if view is not None else None,
        "fits": view.fits if view is not None else None,
        "aliases": list(item.aliases),
    }
