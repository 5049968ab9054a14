"""Which of the machine's devices is which of the engine's."""

from __future__ import annotations

import pytest

from router.devices.base import DeviceInfo
from router.engines.base import EngineDevice
from router.engines.reach import match_devices

HOST = DeviceInfo("host", "Host", "Host", "host")


def card(number: int, name: str, backend: str = "cuda") -> DeviceInfo:
    return DeviceInfo(
        f"GPU-{number}",
        name,
        "",
        "gpu",
        backend,
        f"GPU-{number}" if backend == "cuda" else "",
        f"0000:0{number}:00.0",
    )


def listed(*names: str, backend: str = "cuda", prefix: str = "CUDA") -> list[EngineDevice]:
    return [EngineDevice(f"{prefix}{at}", backend, name, 0) for at, name in enumerate(names)]


def names(known: list[DeviceInfo], engine: list[EngineDevice], **environ: str) -> dict[str, str]:
    found = match_devices([*known, HOST], engine, environ)
    return {id: device.name for id, device in found.all.items()}


BIG, SMALL = "NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 3060"


@pytest.mark.fault("F10")
@pytest.mark.parametrize("turn", [1, -1])
@pytest.mark.parametrize("engine_turn", [1, -1])
def test_two_unlike_cards_in_any_order(turn: int, engine_turn: int) -> None:
    """The driver's order, CUDA's own and that of the bus may all differ; the bytes go to the right card."""
    known = [card(1, SMALL), card(2, BIG)][::turn]
    engine = listed(*[SMALL, BIG][::engine_turn])
    told = {id: device.description for id, device in match_devices(known, engine).devices.items()}
    assert told == {"GPU-1": SMALL, "GPU-2": BIG}


def test_equal_cards_go_by_the_bus() -> None:
    assert names([card(3, BIG), card(1, BIG)], listed(BIG, BIG)) == {"GPU-1": "CUDA0", "GPU-3": "CUDA1"}


def test_cuda_cards_are_pinned_by_uuid() -> None:
    found = match_devices([card(1, BIG)], listed(BIG))
    assert found.devices["GPU-1"].pin == "GPU-1"
    assert (
        match_devices([card(1, "AMD x", "rocm")], listed("AMD x", backend="rocm", prefix="ROCm"))
        .devices["GPU-1"]
        .pin
        == ""
    )


@pytest.mark.parametrize(
    ("visible", "told"),
    [
        ("1", {"GPU-2": "CUDA0"}),
        ("GPU-2,GPU-1", {"GPU-2": "CUDA0", "GPU-1": "CUDA1"}),
        ("1,0", {"GPU-2": "CUDA0", "GPU-1": "CUDA1"}),
    ],
)
def test_cards_that_the_user_hides_or_turns_round(visible: str, told: dict[str, str]) -> None:
    count = len(told)
    assert names([card(1, BIG), card(2, BIG)], listed(*[BIG] * count), CUDA_VISIBLE_DEVICES=visible) == told


def test_a_vulkan_engine_reaches_cards_of_every_maker_by_name() -> None:
    known = [
        card(1, "AMD Navi 31 [Radeon RX 7900 XT/7900 XTX/7900M]", "rocm"),
        card(2, BIG),
        card(3, "Intel DG2 [Arc A770]", "level_zero"),
    ]
    engine = listed(
        BIG,
        "AMD Radeon RX 7900 XTX (RADV NAVI31)",
        "Intel(R) Arc(tm) A770 Graphics (DG2)",
        "llvmpipe (LLVM 15.0.6, 256 bits)",
        backend="vulkan",
        prefix="Vulkan",
    )
    assert names(known, engine) == {
        "GPU-2": "Vulkan0",
        "GPU-1": "Vulkan1",
        "GPU-3": "Vulkan2",
        "vulkan:3:llvmpipe": "Vulkan3",
    }


def test_equal_cards_of_a_vulkan_engine_go_by_the_bus() -> None:
    engine = listed(SMALL, BIG, BIG, backend="vulkan", prefix="Vulkan")
    known = [card(7, BIG), card(4, SMALL), card(2, BIG)]
    assert names(known, engine) == {"GPU-4": "Vulkan0", "GPU-2": "Vulkan1", "GPU-7": "Vulkan2"}


def test_a_card_that_two_back_ends_reach_is_the_makers() -> None:
    engine = [*listed(BIG, backend="vulkan", prefix="Vulkan"), *listed(BIG)]
    assert names([card(1, BIG)], engine) == {"GPU-1": "CUDA0"}


def test_names_that_say_nothing_go_by_order_with_equal_counts() -> None:
    known = [card(1, "AMD 744c", "rocm"), card(2, "AMD 73df", "rocm")]
    engine = listed("AMD Radeon RX 7900 XTX", "AMD Radeon RX 6700", backend="rocm", prefix="ROCm")
    assert names(known, engine) == {"GPU-1": "ROCm0", "GPU-2": "ROCm1"}
    # One of three: which, nobody knows.
    known.append(card(3, "AMD 73ff", "rocm"))
    assert names(known, engine[:1]) == {"rocm:0:amd": "ROCm0"}


def test_a_longer_name_is_another_card() -> None:
    known = [card(1, SMALL), card(2, f"{SMALL} Ti")]
    engine = listed(f"{SMALL} Ti", SMALL, backend="vulkan", prefix="Vulkan")
    assert names(known, engine) == {"GPU-1": "Vulkan1", "GPU-2": "Vulkan0"}


def test_apples_gpu() -> None:
    known = [DeviceInfo("apple", "Apple M2 Pro", "", "gpu", "metal", unified=True)]
    assert names(known, listed("Apple M2 Pro", backend="metal", prefix="MTL")) == {"apple": "MTL0"}


def test_simulated_cards_are_no_engines() -> None:
    known = [DeviceInfo("sim", BIG, "", "gpu", "simulated")]
    assert names(known, listed(BIG)) == {"cuda:0:nvidia": "CUDA0"}


def test_nothing_at_all() -> None:
    assert names([], []) == {}
    assert names([card(1, BIG)], []) == {}
