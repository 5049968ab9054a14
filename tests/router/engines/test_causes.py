"""How engines say that memory is short, and what only sounds like it."""

from __future__ import annotations

import pytest

from router.engines.base import Exit
from router.engines.causes import find_cause, says_out_of_memory


@pytest.mark.fault("F30")
@pytest.mark.parametrize(
    "line",
    [
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 9.0 MiB: cudaMalloc failed: out of memory",
        "0.00.01 E alloc_tensor_range: failed to allocate CUDA0 buffer of size 1048576",
        "0.00.01 E llama_model_load: error loading model: unable to allocate CUDA0 buffer",
        "CUDA error: out of memory",
        "hipMalloc failed: hipErrorOutOfMemory",
        "ggml_vulkan: vk::Device::allocateMemory: ErrorOutOfDeviceMemory",
        "terminate called: what():  vk::Queue::submit: ErrorOutOfHostMemory",
        "ggml_vulkan: Requested buffer size (4294967296) exceeds device buffer size limit",
        "ggml_metal_buffer_init: error: failed to allocate buffer, size = 9999.00 MiB",
        "error: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
        "ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 99999999",
        "ggml_gallocr_reserve_n_impl: failed to allocate Vulkan0 buffer of size 1",
        "MemoryError: std::bad_alloc",
        "UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY",
    ],
)
def test_words_for_too_little_memory(line: str) -> None:
    found = find_cause(["0.00.1 I fine", line, "0.00.2 I bye"], 1)
    assert found.is_memory
    assert found.text.startswith("out of memory (")


@pytest.mark.parametrize(
    "line",
    [
        "ggml_cuda_host_malloc: failed to allocate 99.00 MiB of pinned memory: out of memory",
        "0.00.1 W warning: failed to mlock 99-byte buffer (after 0): Cannot allocate memory",
        "0.00.1 I llama_params: checking whether the model fits into memory",
    ],
)
def test_words_that_only_sound_alike(line: str) -> None:
    assert not says_out_of_memory(line)
    assert not find_cause([line, "0.00.2 E load: missing tensor"], 1).is_memory


def test_a_build_for_another_processor() -> None:
    assert "another kind of processor" in find_cause([], -4).text


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["0.12.345.678 I slot init_sampler: id  3 | task 0 | init sampler, took 0.00 ms"], ""),
        (["slot print_timing: id  3 | task 0 | prompt eval time = 1.00 ms"], ""),
        (["0.01.2 E srv    send_error: task id = 0, error: the request exceeds the context"], ""),
        (["/src/ggml.c:7: GGML_ASSERT(n > 0) failed", "./lib.so(+0x1)[0x2]"], "GGML_ASSERT(n > 0) failed"),
        (["CUDA error: an illegal memory access was encountered", "0.1 I bye"], "CUDA error: an illegal"),
        (["  what():  basic_string::at"], "what():  basic_string::at"),
        (
            ["cudaMalloc failed: out of memory", "0.1 I slot release: id 0"],
            "out of memory (cudaMalloc failed",
        ),
        (["0.1 E srv   update_slots: decode failed."], "decode failed"),
    ],
)
def test_last_words_are_those_that_tell_of_the_end(lines: list[str], words: str) -> None:
    said = Exit(-11, ("0.00.1 I fine", *lines)).last_words
    assert words in said
    assert bool(said) == bool(words)


def test_chatter_is_no_cause_of_a_failed_load() -> None:
    chatter = "0.00.2 I slot init_sampler: id 3 | task 0 | init sampler"
    assert find_cause(["wrong argument: --frob", chatter], 1).text == "wrong argument: --frob"
    assert find_cause([chatter], 1).text == "its process ended by itself with status 1"
    assert find_cause([chatter], -11).text == "its process was ended by signal 11"
