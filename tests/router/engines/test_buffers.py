"""What workers say they took."""

from __future__ import annotations

import pytest

from router.engines.buffers import BufferSizes
from router.units import MIB

NAMES = {"Vulkan0": "vulkan:0:llvmpipe", "Vulkan1": "GPU-1", "CUDA0": "GPU-2", "MTL0": "apple"}

LOG = """\
0.00.067.311 I srv         start: binding port with default address family
0.00.069.710 I llama_model_loader: - kv  11:   general.name str = x: CUDA0 KV buffer size = 99.00 MiB
0.00.078.181 I load_tensors:   CPU_Mapped model buffer size =     0.04 MiB
0.00.078.181 I load_tensors:   CPU_Mapped model buffer size =     1.00 MiB
0.00.078.182 I load_tensors:      Vulkan0 model buffer size =    92.10 MiB
0.00.078.183 I load_tensors:      Vulkan1 model buffer size =     0.04 MiB
0.00.078.951 I llama_context: Vulkan_Host  output buffer size =     0.19 MiB
0.00.079.042 I llama_kv_cache:    Vulkan0 KV buffer size =    22.50 MiB
0.00.079.042 I llama_kv_cache:    Vulkan0 KV buffer size =     2.50 MiB
0.00.079.050 I llama_memory_recurrent:    Vulkan1 RS buffer size =     3.00 MiB
0.00.081.980 I sched_reserve:    Vulkan0 compute buffer size =    10.00 MiB
0.00.081.989 I sched_reserve:    Vulkan0 compute buffer size =    12.26 MiB
0.00.081.990 I sched_reserve:    Vulkan0 compute buffer size =     9.00 MiB
0.00.081.990 I alloc_compute_meta:    Vulkan0 compute buffer size =     1.00 MiB
"""


def test_sizes_are_added_up_by_device() -> None:
    sizes = BufferSizes()
    for line in LOG.splitlines():
        sizes.feed(line)
    assert sizes.by_device(NAMES) == {
        "host": round(0.04 * MIB) + MIB + round(0.19 * MIB),
        "vulkan:0:llvmpipe": round(92.10 * MIB) + 25 * MIB + round(12.26 * MIB) + MIB,
        "GPU-1": round(0.04 * MIB) + 3 * MIB,
    }
    assert sizes.parts()["Vulkan0", "compute"] == round(12.26 * MIB) + MIB


@pytest.mark.parametrize(
    ("line", "device"),
    [
        ("load_tensors:        CUDA0 model buffer size =  1.00 MiB", "GPU-2"),
        ("load_tensors: CUDA0_Split model buffer size =  1.00 MiB", "GPU-2"),
        ("load_tensors:    CUDA_Host model buffer size =  1.00 MiB", "host"),
        ("load_tensors:   CPU_REPACK model buffer size =  1.00 MiB", "host"),
        ("load_tensors:          AMX model buffer size =  1.00 MiB", "host"),
        ("load_tensors:  MTL0_Mapped model buffer size =  1.00 MiB", "apple"),
        ("load_tensors: Metal_Mapped model buffer size =  1.00 MiB", "apple"),
        ("llama_kv_cache_unified:      Metal KV buffer size =  1.00 MiB", "apple"),
        ("0.1 I llama_kv_cache:        CUDA7 KV buffer size =  1.00 MiB", "host"),
    ],
)
def test_whose_a_buffer_is(line: str, device: str) -> None:
    sizes = BufferSizes()
    sizes.feed(line)
    assert sizes.by_device(NAMES) == {device: MIB}


@pytest.mark.parametrize(
    "line",
    [
        "",
        "buffer size",
        "load_tensors: CUDA0 model buffer size = x MiB",
        "load_tensors: CUDA0 model buffer size = 1.0 GiB",
        "user said: load_tensors: CUDA0 model buffer size = 1.00 MiB",
    ],
)
def test_other_lines_say_nothing(line: str) -> None:
    sizes = BufferSizes()
    sizes.feed(line)
    assert sizes.by_device(NAMES) == {}
