"""Which engine loads models, by table."""

from __future__ import annotations

import pytest

from router.engines.base import Capabilities, EngineDevice
from router.engines.choice import choose, kind_of


def card(backend: str, name: str = "") -> EngineDevice:
    return EngineDevice(f"{backend}0", backend, name or f"a {backend} card", 1 << 33)


EMBEDDED = Capabilities("embedded", "Embedded", "1")
METAL = Capabilities("embedded", "Embedded", "1", devices=(card("metal"),))
OLD = Capabilities("b9-vulkan", "llama.cpp b9", "9", "/e/b9/llama-server", (card("vulkan"),))
NEW = Capabilities("b10-vulkan", "llama.cpp b10", "10", "/e/b10/llama-server", (card("vulkan"),))
CUDA = Capabilities("b8-cuda-12.4", "llama.cpp b8", "8", "/e/b8/llama-server", (card("cuda"),))
BLIND = Capabilities("b11-vulkan", "llama.cpp b11", "11", "/e/b11/llama-server")
BROKEN = Capabilities(
    "b12-vulkan", "llama.cpp b12", "", "/e/b12/llama-server", (card("vulkan"),), problem="it exits with 127"
)
FOUND = Capabilities("/usr/bin/llama-server", "llama-server", "7", "/usr/bin/llama-server", (card("vulkan"),))
FOUND_CUDA = Capabilities("/opt/llama-server", "llama-server", "7", "/opt/llama-server", (card("cuda"),))
FOUND_BLIND = Capabilities("/bin/llama-server", "llama-server", "7", "/bin/llama-server")


@pytest.mark.parametrize(
    ("setting", "engines", "expected", "problem"),
    [
        ("auto", [], "embedded", ""),
        ("auto", [EMBEDDED], "embedded", ""),
        ("auto", [METAL], "embedded", ""),
        ("auto", [EMBEDDED, FOUND_BLIND], "embedded", ""),
        ("auto", [EMBEDDED, FOUND], FOUND.id, ""),
        ("auto", [METAL, FOUND], FOUND.id, ""),
        ("auto", [EMBEDDED, FOUND, FOUND_CUDA], FOUND_CUDA.id, ""),
        ("auto", [EMBEDDED, FOUND, OLD], OLD.id, ""),
        ("auto", [EMBEDDED, FOUND_CUDA, OLD], OLD.id, ""),
        ("auto", [EMBEDDED, OLD, NEW], NEW.id, ""),
        ("auto", [EMBEDDED, NEW, OLD], NEW.id, ""),
        ("auto", [EMBEDDED, NEW, CUDA], CUDA.id, ""),
        ("auto", [EMBEDDED, OLD, BLIND, BROKEN], OLD.id, ""),
        ("auto", [EMBEDDED, BLIND, BROKEN, FOUND], FOUND.id, ""),
        ("auto", [EMBEDDED, BLIND, BROKEN], "embedded", ""),
        ("embedded", [EMBEDDED, NEW], "embedded", ""),
        ("embedded", [], "embedded", ""),
        (OLD.id, [EMBEDDED, OLD, NEW], OLD.id, ""),
        (BLIND.id, [EMBEDDED, BLIND, NEW], BLIND.id, ""),
        (FOUND_BLIND.id, [EMBEDDED, FOUND_BLIND, NEW], FOUND_BLIND.id, ""),
        (BROKEN.id, [EMBEDDED, BROKEN, NEW], NEW.id, "it exits with 127. In its place b10-vulkan is used."),
        (BROKEN.id, [EMBEDDED, BROKEN], "embedded", "In its place the embedded engine is used."),
        ("b1-vulkan", [EMBEDDED, NEW], NEW.id, "There is no engine b1-vulkan."),
        ("/gone/llama-server", [EMBEDDED], "embedded", "There is no engine /gone/llama-server."),
    ],
)
def test_choice(setting: str, engines: list[Capabilities], expected: str, problem: str) -> None:
    choice = choose(setting, engines)
    assert choice.id == expected
    assert choice.reason.endswith(".")
    assert bool(choice.problem) == bool(problem)
    assert problem in choice.problem


def test_an_embedded_engine_that_fails_is_told_of() -> None:
    broken = Capabilities("embedded", "Embedded", "", problem="its library does not load")
    assert choose("embedded", [broken]).problem == (
        "The embedded engine cannot be used: its library does not load."
    )


def test_the_reason_names_the_card() -> None:
    assert choose("auto", [EMBEDDED, NEW]).reason == "b10-vulkan reaches a vulkan card."
    two = Capabilities("b3-cuda-12.4", "x", "3", "/x", (card("cuda", "RTX 1"), card("cuda", "RTX 2")))
    assert choose("auto", [two]).reason == "b3-cuda-12.4 reaches 2 GPUs (RTX 1, RTX 2)."


def test_kinds() -> None:
    assert [kind_of(engine) for engine in (EMBEDDED, NEW, FOUND)] == ["embedded", "build", "found"]
