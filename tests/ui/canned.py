"""Snapshots as the design's pictures show them."""

from __future__ import annotations

from typing import Any

import msgspec

from router.snapshot import (
    DeviceState,
    DeviceView,
    DownloadView,
    EngineView,
    FeedEntry,
    ModelView,
    NoticeView,
    PolicyView,
    PoolView,
    ResidentState,
    ResidentView,
    SegmentView,
    Severity,
    Snapshot,
    Status,
)

GIB = 1 << 30
MIB = 1 << 20
ENDPOINT = "http://127.0.0.1:13305"
NOON = 1_770_000_000.0


def gib(value: float) -> int:
    return int(value * GIB)


def pool(**changes: Any) -> PoolView:
    base = PoolView(
        autosize=True,
        configured_limit=1,
        effective_limit=3,
        candidate_floor=3,
        loaded=2,
        loading=0,
        auto_evict=True,
    )
    return msgspec.structs.replace(base, **changes)


def resident(model: str, size: float, devices: dict[str, float], **changes: Any) -> ResidentView:
    base = ResidentView(
        model=model,
        type="llm",
        state=ResidentState.READY,
        bytes=gib(size),
        devices={d: gib(s) for d, s in devices.items()},
        memberships=(),
        pinned=False,
        in_use=0,
        waiting=0,
        slots=1,
        last_use=NOON,
    )
    return msgspec.structs.replace(base, **changes)


def device(
    number: int, name: str, segments: dict[str, tuple[float, float]], others: float = 0.0, **changes: Any
) -> DeviceView:
    ours = sum(size - reserved for size, reserved in segments.values())
    reserved = sum(reserved for _, reserved in segments.values())
    base = DeviceView(
        id=f"gpu{number}",
        name=name,
        label=f"CUDA{number}",
        kind="gpu",
        total=gib(24),
        free=gib(24 - ours - others),
        ours=gib(ours),
        reserved=gib(reserved),
        others=gib(others),
        margin=gib(1),
        state=DeviceState.OK,
        segments=tuple(SegmentView(m, gib(s), gib(r)) for m, (s, r) in segments.items()),
    )
    return msgspec.structs.replace(base, **changes)


def host(total: float, segments: dict[str, float], others: float, **changes: Any) -> DeviceView:
    ours = sum(segments.values())
    base = DeviceView(
        id="host",
        name="Host memory",
        label="CPU",
        kind="host",
        total=gib(total),
        free=gib(total - ours - others),
        ours=gib(ours),
        reserved=0,
        others=gib(others),
        margin=gib(2),
        state=DeviceState.OK,
        segments=tuple(SegmentView(m, gib(s)) for m, s in segments.items()),
    )
    return msgspec.structs.replace(base, **changes)


def entry(number: int, minutes: int, message: str, **changes: Any) -> FeedEntry:
    base = FeedEntry(id=number, time=NOON + 60 * minutes, code="event", message=message)
    return msgspec.structs.replace(base, **changes)


MODELS = (
    ModelView("Gemma-3-4B", "llm", gib(3.2), 8192),
    ModelView("Llama-3.3-70B", "llm", gib(39.6), 8192),
    ModelView("Mistral-7B", "llm", gib(4.4), 8192),
    ModelView("Qwen3-8B", "llm", gib(5.0), 8192),
)
POLICIES = (
    PolicyView("chat", True, ("Qwen3-8B", "Gemma-3-4B"), 2, "Qwen3-8B"),
    PolicyView("code", True, ("Qwen3-8B", "Llama-3.3-70B"), 2, "Qwen3-8B"),
)
WITH_UNKNOWN = (
    POLICIES[0],
    PolicyView("code", True, ("Qwen3-8B", "Llama-3.3-70B", "phi-5"), 2, "Qwen3-8B", ("phi-5",)),
)


def snapshot(**changes: Any) -> Snapshot:
    base = Snapshot(
        generation=1,
        version="0.1.0",
        status=Status.READY,
        endpoint=ENDPOINT,
        uptime_s=60.0,
        settings={"models_dirs": [], "llm_pool_autosize": True, "auto_evict": True, "max_loaded_models": 1},
        pool=pool(),
        models=MODELS,
        policies=POLICIES,
        scanned=True,
    )
    return msgspec.structs.replace(base, **changes)


QWEN = resident("Qwen3-8B", 9.1, {"gpu0": 9.1}, tokens_per_s=78.4)
GEMMA = resident("Gemma-3-4B", 5.2, {"gpu0": 5.2}, state=ResidentState.LOADING, progress=0.43, waiting=1)
LLAMA = resident("Llama-3.3-70B", 40.4, {"gpu1": 18.4, "host": 22.0}, tokens_per_s=2.6, pinned=True)
HOST = host(62.7, {"Llama-3.3-70B": 22.0}, 17.0)


def loading() -> Snapshot:
    """One model ready, one loading, one split between a card and the host."""
    return snapshot(
        status=Status.LOADING,
        pool=pool(loading=1),
        residents=(QWEN, LLAMA, msgspec.structs.replace(GEMMA, waiting=0)),
        devices=(
            device(0, "RTX 4090", {"Qwen3-8B": (9.1, 0), "Gemma-3-4B": (5.2, 3.0)}, 3.0),
            device(1, "RTX 3090", {"Llama-3.3-70B": (18.4, 0)}),
            HOST,
        ),
        feed=(
            entry(
                1,
                0,
                "Put 36 of 80 layers of Llama-3.3-70B on CUDA1; the rest stays in host memory (22.0 GiB).",
            ),
            entry(2, 5, "Unloaded Mistral-7B from CUDA0 (7.4 GiB) to make room for Gemma-3-4B."),
            entry(3, 5, "Loading Gemma-3-4B on CUDA0: needs 5.2 GiB, 10.9 GiB is usable."),
        ),
    )


def warning() -> Snapshot:
    """The pool may exceed the limit and nothing makes idle models go."""
    return snapshot(
        status=Status.WARNING,
        pool=pool(auto_evict=False),
        residents=(QWEN, LLAMA),
        devices=(
            device(0, "RTX 4090", {"Qwen3-8B": (9.1, 0)}, 3.0),
            device(1, "RTX 3090", {"Llama-3.3-70B": (18.4, 0)}),
            HOST,
        ),
        feed=(
            entry(
                1,
                0,
                "Put 36 of 80 layers of Llama-3.3-70B on CUDA1; the rest stays in host memory (22.0 GiB).",
            ),
            entry(2, 8, "The pool may now hold 3 models; your limit is 1."),
            entry(3, 8, "Auto-evict was switched off from the command line."),
            entry(4, 9, "Answered 12 requests."),
        ),
    )


def notice() -> Snapshot:
    """As `warning`, after an upgrade."""
    text = (
        "Up to 3 language models may now stay loaded; your limit says 1. Your policies name 3 local models, "
        "and this version makes room for all. Idle models are not unloaded when other programs need VRAM."
    )
    return msgspec.structs.replace(
        warning(), notices=(NoticeView("pool-autosize", "More models may now stay loaded", text),)
    )


def empty(**changes: Any) -> Snapshot:
    """First run."""
    return snapshot(
        **{
            "models": (),
            "policies": (),
            "pool": pool(loaded=0, candidate_floor=0, effective_limit=1, auto_evict=False),
            "devices": (
                device(0, "RTX 4090", {}, 3.0),
                device(1, "RTX 3090", {}, 0.4),
            ),
            "feed": (
                entry(1, 0, "Found 2 GPUs: RTX 4090 and RTX 3090, 24.0 GiB each."),
                entry(2, 0, "Listening on 127.0.0.1:13305."),
            ),
            **changes,
        }
    )


def downloading() -> Snapshot:
    return empty(downloads=(DownloadView("SmolLM2-135M-Instruct.Q4_1", "running", 41 * MIB, 94 * MIB),))


def cpu() -> Snapshot:
    """A machine without a GPU."""
    return snapshot(
        pool=pool(loaded=1, effective_limit=1, candidate_floor=0),
        policies=(),
        models=(
            ModelView("Qwen3-4B", "llm", gib(2.5), 8192),
            ModelView("nomic-embed", "embedding", gib(0.3), 2048),
        ),
        residents=(
            resident("Qwen3-4B", 3.4, {"host": 3.4}, tokens_per_s=11.8),
            resident("nomic-embed", 0.3, {"host": 0.3}, type="embedding"),
        ),
        devices=(host(62.7, {"Qwen3-4B": 3.4, "nomic-embed": 0.3}, 17.0),),
        feed=(
            entry(1, 0, "Listening on 127.0.0.1:13305."),
            entry(2, 0, "No GPU driver answered; using host memory."),
            entry(3, 1, "Loaded Qwen3-4B on the CPU in 2.1 s."),
        ),
    )


def lost() -> Snapshot:
    """One card fell off the bus."""
    gone = device(
        1,
        "RTX 3090",
        {},
        state=DeviceState.UNKNOWN,
        reason="GPU is lost (NVML error 15)",
        free=None,
        total=None,
    )
    return snapshot(
        status=Status.ERROR,
        pool=pool(loaded=1),
        residents=(QWEN,),
        devices=(device(0, "RTX 4090", {"Qwen3-8B": (9.1, 0)}, 3.0), gone, HOST),
        feed=(
            entry(1, 0, "Loaded Llama-3.3-70B on CUDA1 and host in 21 s."),
            entry(
                2,
                4,
                "The worker of Llama-3.3-70B ended; 1 request got an error.",
                severity=Severity.ERROR,
                code="worker_died",
                model="Llama-3.3-70B",
                reason="worker_died",
            ),
            entry(3, 4, "RTX 3090 stopped answering (GPU is lost). Its memory is unknown."),
        ),
    )


def unresolved() -> Snapshot:
    """A policy names a model that does not exist."""
    return msgspec.structs.replace(loading(), policies=WITH_UNKNOWN, status=Status.WARNING)


def full() -> Snapshot:
    """Two cards full: a load in flight on one, memory kept for a load that waits on the other."""
    mistral = resident("Mistral-7B", 6.0, {"gpu1": 6.0}, state=ResidentState.EVICTING)
    qwen = resident("Qwen3-32B", 14.2, {"gpu1": 14.2}, in_use=2, tokens_per_s=31.0)
    gemma = resident("Gemma-3-4B", 11.4, {"gpu0": 11.4}, state=ResidentState.LOADING, progress=0.43)
    return snapshot(
        status=Status.LOADING,
        pool=pool(loaded=2, loading=1, room_for=2),
        residents=(QWEN, gemma, qwen, mistral),
        models=(*MODELS, ModelView("Qwen3-32B", "llm", gib(12.8), 32768)),
        devices=(
            device(0, "RTX 4090", {"Qwen3-8B": (9.1, 0), "Gemma-3-4B": (11.4, 6.5)}, 2.4),
            device(1, "RTX 3090", {"Qwen3-32B": (14.2, 0), "Mistral-7B": (6.0, 0)}, 1.0, claimed=gib(7.9)),
            HOST,
        ),
        feed=(
            entry(1, 4, "Llama-3.3-70B waits for Qwen3-32B on CUDA1: 2 requests are still running."),
            entry(2, 5, "Unloading Mistral-7B from CUDA1 (6.0 GiB) to make room for Llama-3.3-70B."),
            entry(3, 5, "Loading Gemma-3-4B on CUDA0: needs 11.4 GiB, 11.5 GiB is usable."),
        ),
    )


def model(name: str, size: float, needs: float, fits: bool | None = True, **changes: Any) -> ModelView:
    base = ModelView(name, "llm", gib(size), 8192, needs=gib(needs), fits=fits, source="Models")
    return msgspec.structs.replace(base, **changes)


FOREIGN = "/home/me/models/m.gguf is not a file that Lemon Tray keeps ({})."


def catalog() -> Snapshot:
    """A model browser with every kind of verdict."""
    of = loading()
    cards = tuple(
        msgspec.structs.replace(
            d, available=max(0, (d.total or 0) - d.ours - d.reserved - d.others - d.margin)
        )
        for d in of.devices
    )
    return msgspec.structs.replace(
        of,
        devices=cards,
        models=(
            model("Gemma-3-4B", 3.9, 5.2, source="LM Studio", foreign=FOREIGN.format("LM Studio")),
            model("Llama-3.3-70B", 39.6, 40.4, source="Hugging Face"),
            model("Mistral-7B", 7.2, 7.4, source="Ollama", foreign=FOREIGN.format("Ollama")),
            model("Phi-4-mini", 3.0, 3.9, aliases=("phi", "phi-4"), options={"ctx_size": 16384}),
            model("Qwen3-32B", 18.8, 52.1, False, context_length=131072),
            model("Qwen3-8B", 6.2, 9.1),
            model("half-a-file", 1.2, 0.0, None, broken="The file ends within the tensor data."),
            model("new-arrival", 4.0, 0.0, None),
            model("nomic-embed", 0.26, 0.3, type="embedding", context_length=2048),
        ),
    )


EMBEDDED = EngineView("embedded", "Built-in llama.cpp", "embedded", "b6740", backends=("CPU",), in_use=True)
OFFER = EngineView(
    "llama.cpp-b6740-cuda",
    "llama.cpp b6740 for CUDA",
    "offer",
    "b6740",
    backends=("CUDA",),
    size=431 * MIB,
)


def engine(**changes: Any) -> Snapshot:
    """A card that the engine of this machine cannot use, and a build that can."""
    cards = (device(0, "RTX 4090", {}, usable=False),)
    base = {"devices": (*cards, *cpu().devices), "engines": (EMBEDDED, OFFER), **changes}
    return msgspec.structs.replace(cpu(), **base)


def fetching() -> Snapshot:
    return engine(downloads=(DownloadView(f"GPU build {OFFER.id}", "running", 118 * MIB, 431 * MIB),))


def right_to_left() -> Snapshot:
    """Models whose names are written from right to left."""
    shalom = resident("שלום-8B-Q4_K_M", 9.1, {"gpu0": 9.1}, tokens_per_s=78.4)
    salam = resident("سلام-4B", 5.2, {"gpu0": 5.2}, state=ResidentState.LOADING, progress=0.43)
    return snapshot(
        status=Status.LOADING,
        pool=pool(loaded=1, loading=1),
        residents=(shalom, salam),
        models=(
            ModelView(shalom.model, "llm", gib(5.0), 8192),
            ModelView(salam.model, "llm", gib(3.2), 8192),
        ),
        policies=(PolicyView("צ'אט", True, (shalom.model, salam.model), 2, shalom.model),),
        devices=(device(0, "RTX 4090", {shalom.model: (9.1, 0), salam.model: (5.2, 3.0)}, 3.0),),
        feed=(
            entry(1, 5, "Loading سلام-4B on CUDA0: needs 5.2 GiB, 10.9 GiB is usable."),
            entry(2, 5, "Unloaded שלום-8B-Q4_K_M from CUDA0 (7.4 GiB) to make room for سلام-4B."),
        ),
    )


def routed() -> Snapshot:
    """Policies at work."""
    night = msgspec.structs.replace(POLICIES[0], name="night", enabled=False)
    feed = (
        entry(1, 1, "chat sent a request to Gemma-3-4B as its default.", code="route"),
        entry(2, 3, "code sent 12 requests to Qwen3-8B by the rule python.", code="route"),
        entry(
            3,
            4,
            "chat sent a request to Qwen3-8B by the rule long; Gemma-3-4B gave way (its context is too "
            "small).",
            code="fallback",
        ),
    )
    return msgspec.structs.replace(loading(), policies=(*WITH_UNKNOWN, night), feed=feed)


STATES = {
    "loading": loading,
    "warning": warning,
    "notice": notice,
    "empty": empty,
    "downloading": downloading,
    "cpu": cpu,
    "lost": lost,
    "unresolved": unresolved,
    "full": full,
    "engine": engine,
    "fetching": fetching,
    "right-to-left": right_to_left,
}
