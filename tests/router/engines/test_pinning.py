"""Which devices a worker sees, and what it calls them."""

from __future__ import annotations

from typing import Any

import pytest

from router.engines.base import EngineDevice
from router.engines.pinning import Pin, Unreachable, pin
from tests.router.engines.conftest import spec_of

REACH = {
    "big": EngineDevice("CUDA1", "cuda", "Big", 0, pin="GPU-b"),
    "small": EngineDevice("CUDA0", "cuda", "Small", 0, pin="GPU-s"),
    "red": EngineDevice("ROCm1", "rocm", "Red", 0),
    "green": EngineDevice("Vulkan2", "vulkan", "Green", 0),
    "blue": EngineDevice("Vulkan0", "vulkan", "Blue", 0),
    "apple": EngineDevice("MTL0", "metal", "Apple", 0),
}


def pinned(
    *devices: str, takes_names: bool = True, environ: dict[str, str] | None = None, **rest: Any
) -> Pin:
    spec = spec_of(devices=devices, **({"n_gpu_layers": -1} | rest))
    return pin(spec, REACH, environ or {}, takes_names=takes_names)


@pytest.mark.parametrize("takes_names", [True, False])
def test_without_devices_no_gpu_is_seen(takes_names: bool) -> None:
    found = pinned(takes_names=takes_names)
    assert found.names == {}
    assert found.environ == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "-1",
        "HIP_VISIBLE_DEVICES": "-1",
        "GGML_VK_VISIBLE_DEVICES": "",
    }


@pytest.mark.parametrize("takes_names", [True, False])
def test_cuda_cards_are_named_by_uuid_and_numbered_anew(takes_names: bool) -> None:
    found = pinned("big", "small", takes_names=takes_names, tensor_split=(3.0, 1.0))
    assert found.environ["CUDA_VISIBLE_DEVICES"] == "GPU-b,GPU-s"
    assert list(found.names.items()) == [("CUDA0", "big"), ("CUDA1", "small")]
    assert found.tensor_split == (3.0, 1.0)
    assert found.split_mode == "layer"
    assert pinned("big", takes_names=takes_names).names == {"CUDA0": "big"}


def test_rocm_cards_are_numbered_anew_within_what_was_visible() -> None:
    assert pinned("red").environ["HIP_VISIBLE_DEVICES"] == "1"
    assert pinned("red").names == {"ROCm0": "red"}
    assert pinned("red", environ={"HIP_VISIBLE_DEVICES": "3,2"}).environ["HIP_VISIBLE_DEVICES"] == "2"


def test_vulkan_devices_keep_their_names_where_names_are_taken() -> None:
    found = pinned("green", "blue", environ={"GGML_VK_VISIBLE_DEVICES": "5,6,7"})
    assert "GGML_VK_VISIBLE_DEVICES" not in found.environ
    assert list(found.names.items()) == [("Vulkan2", "green"), ("Vulkan0", "blue")]


def test_vulkan_devices_are_made_visible_by_number_where_they_are_not() -> None:
    found = pinned("green", "blue", takes_names=False, environ={"GGML_VK_VISIBLE_DEVICES": "5,6,7"})
    assert found.environ["GGML_VK_VISIBLE_DEVICES"] == "7,5"
    assert list(found.names.items()) == [("Vulkan0", "green"), ("Vulkan1", "blue")]


def test_with_split_none_the_others_are_hidden() -> None:
    found = pinned("small", "big", split_mode="none", main_gpu=1)
    assert found.environ["CUDA_VISIBLE_DEVICES"] == "GPU-b"
    assert found.names == {"CUDA0": "big"}
    assert found.split_mode == "none"


def test_one_device_is_no_split() -> None:
    found = pinned("apple", tensor_split=(1.0,))
    assert found.names == {"MTL0": "apple"}
    assert (found.split_mode, found.tensor_split) == ("none", ())


def test_a_device_that_the_engine_lacks() -> None:
    with pytest.raises(Unreachable, match="gone"):
        pinned("big", "gone")
