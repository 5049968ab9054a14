"""What everybody does in a soak: endless rows of decisions, the same for the same seed.

A decision names what is chosen among things that change by a share from 0 to 1, so that the row does not
depend on what happens.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

LANGUAGE: Final = ("ash", "birch", "cedar", "demo", "elm")
EMBEDDING: Final = "words"
POLICIES: Final = ("assistant", "writer")
DEVICES: Final = ("SIM0", "SIM1")
SIMULATE: Final = "3GiB,2GiB"
#: What a prompt asks the fake llama-server to do; other engines take it for text.
MISDEEDS: Final = ("die", "cut", "refuse", "rubbish")

#: What the settings are before anybody edits them. Slots share a context: with a smaller one, answers at the
#: same time would end each other.
FIRST: Final[Mapping[str, Any]] = {
    "max_loaded_models": 2,
    "load_queue_timeout_s": 15,
    "helper_wait_s": 5,
    "load_stall_timeout_s": 20,
    "vram_margin": "128MiB",
    "ctx_size": 2048,
    "parallel": 2,
    "model_sources": [],
}


class Ask(Struct, frozen=True):
    """One request. `stays` events of a stream are read before the client leaves; None: to the end."""

    kind: str
    model: str
    tokens: int = 4
    stays: int | None = None
    pause_s: float = 0.0
    misdeed: str = ""
    trace: bool = False
    then_s: float = 0.0


class Deed(Struct, frozen=True):
    """Something else that is done: a call of the endpoint or a harm, what is given, and a pause after."""

    name: str
    given: Mapping[str, Any] = {}
    share: float = 0.0
    then_s: float = 0.0


def asks(seed: int, client: int, haste: float = 1.0) -> Iterator[Ask]:
    """What one client asks. A larger `haste` shortens the pauses."""
    rng = random.Random(f"{seed} client {client}")
    model = LANGUAGE[client % len(LANGUAGE)]
    while True:
        # Who has begun with a model mostly stays with it.
        if rng.random() < 0.25:
            model = rng.choices((*LANGUAGE, *POLICIES), (4, 3, 2, 1, 1, 5, 3))[0]
        then_s = rng.choice((0.0, 0.0, 0.0, rng.uniform(0.0, 0.1), rng.uniform(0.0, 1.0))) / haste
        kind = rng.choices(("stream", "chat", "embed", "leave", "slow", "count"), (6, 5, 3, 3, 1, 1))[0]
        if kind == "embed":
            yield Ask("embed", EMBEDDING, then_s=then_s)
            continue
        misdeed = rng.choice(MISDEEDS) if rng.random() < 0.08 else ""
        tokens = rng.choices((1, 4, 16, 64), (4, 4, 2, 1))[0]
        trace = rng.random() < 0.1
        match kind:
            case "leave":
                yield Ask("stream", model, 400, rng.choice((0, 0, 1, 5)), 0.0, "", trace, then_s)
            case "slow":
                yield Ask("stream", model, 24, None, rng.uniform(0.02, 0.2), "", trace, then_s)
            case _:
                yield Ask(kind, model, tokens, None, 0.0, misdeed, trace, then_s)


def edits(seed: int, haste: float = 1.0) -> Iterator[Deed]:
    """What the user does."""
    rng = random.Random(f"{seed} user")
    makers: tuple[tuple[int, Callable[[random.Random], tuple[str, Mapping[str, Any]]]], ...] = (
        (8, _setting),
        (4, _policy),
        (3, lambda r: ("pin", {"model_name": r.choice(LANGUAGE), "pinned": r.random() < 0.3})),
        (3, _load),
        (3, lambda r: ("unload", {"model_name": r.choice(LANGUAGE), "force": False, "wait": False})),
        (1, lambda r: ("unload", {"model_name": r.choice(LANGUAGE), "force": True})),
        (1, lambda r: ("plan", {"model_name": r.choice(LANGUAGE), "ctx_size": r.choice((512, 1 << 20))})),
        (1, lambda r: ("pause", {"paused": True})),
    )
    weights = [weight for weight, _ in makers]
    while True:
        make = rng.choices(makers, weights)[0][1]
        name, given = make(rng)
        yield Deed(name, given, rng.random(), rng.uniform(0.05, 4.0) / haste)
        if name == "delete":
            candidates = rng.sample(LANGUAGE, 2)
            again = {"name": given["model"], "candidates": candidates}
            yield Deed("register", again, 0.0, rng.uniform(0.05, 1.0) / haste)
        if name == "pause":
            yield Deed("pause", {"paused": False}, 0.0, rng.uniform(0.05, 0.5) / haste)


def _setting(rng: random.Random) -> tuple[str, Mapping[str, Any]]:
    values: dict[str, tuple[Any, ...]] = {
        "max_loaded_models": (1, 1, 2, 3, -1),
        "llm_pool_autosize": (True, True, False),
        "auto_evict": (True, False),
        "auto_evict_threshold_pct": (0.6, 0.9),
        "evict_idle_timeout_s": (-1, 0, 2, 60, 1800, 1800),
        "max_parallel_loads": (1, 2, 4),
        "admission": ("wait", "wait", "reject", "proceed"),
        "unknown_device": ("proceed", "refuse"),
        "vram_margin": ("0", "128MiB", "512MiB"),
        "vram_cap": (0, 0, "1GiB", "2GiB"),
        "parallel": (1, 2, 4),
        "ctx_size": (2048, 4096),
        "max_queue": (2, 64, 512),
        "engine": ("embedded", "embedded", "FAKE"),
        "allow_partial_offload": (True, False),
    }
    chosen = rng.sample(sorted(values), rng.choice((1, 1, 2)))
    return "set", {key: rng.choice(values[key]) for key in chosen}


def _policy(rng: random.Random) -> tuple[str, Mapping[str, Any]]:
    name = rng.choice(POLICIES)
    match rng.choices(("register", "switch", "delete"), (5, 3, 1))[0]:
        case "register":
            candidates = rng.sample(LANGUAGE, rng.choice((1, 2, 3)))
            return "register", {"name": name, "candidates": candidates}
        case "switch":
            return "switch", {"name": name, "enabled": rng.random() < 0.75}
    return "delete", {"model": name}


def _load(rng: random.Random) -> tuple[str, Mapping[str, Any]]:
    given: dict[str, Any] = {"model_name": rng.choice(LANGUAGE)}
    if rng.random() < 0.5:
        given["ctx_size"] = rng.choice((2048, 4096))
    if rng.random() < 0.3:
        given["device"] = rng.choice(DEVICES)
    if rng.random() < 0.2:
        given["pinned"] = True
    return "load", given


def harms(seed: int, haste: float = 1.0) -> Iterator[Deed]:
    """What goes wrong: workers die or stand still, devices fail and lag, other programs take memory.

    Lags stay below what the router allows drivers, so that memory that is overrun is the router's fault.
    """
    rng = random.Random(f"{seed} world")
    while True:
        rest_s = rng.uniform(0.2, 8.0) / haste
        device = rng.choice(DEVICES)
        match rng.choices(("kill", "kill_starting", "halt", "hog", "lose", "lag"), (4, 1, 1, 4, 1, 2))[0]:
            case "halt":
                yield Deed("halt", {"seconds": rng.uniform(0.1, 1.5)}, rng.random(), rest_s)
            case "hog":
                size = rng.choice(("0", "256MiB", "1GiB", "1800MiB"))
                yield Deed("simulate", {"device": device, "others_bytes": size}, 0.0, rest_s)
                if rng.random() < 0.7:
                    yield Deed("simulate", {"device": device, "others_bytes": "0"}, 0.0, rest_s)
            case "lose":
                yield Deed("simulate", {"device": device, "lost": True}, 0.0, rng.uniform(0.1, 2.0))
                yield Deed("simulate", {"device": device, "lost": False}, 0.0, rest_s)
            case "lag":
                lag_s = rng.choice((0.0, 0.5, 1.5))
                yield Deed("simulate", {"device": device, "lag_s": lag_s}, 0.0, rest_s)
            case name:
                yield Deed(name, {}, rng.random(), rest_s)
