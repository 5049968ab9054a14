"""How models are laid out on devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from router.catalog.model import Identity, Model
from router.catalog.options import CTX_AUTO, LoadOptions
from router.devices.base import DeviceInfo, DeviceReading
from router.engines.arguments import check_arguments
from router.engines.base import EngineDevice
from router.errors import BadRequest, LoadFailed
from router.memory.measured import Measured
from router.memory.placement import device_demand
from router.residency.placement import Placement
from router.service.placing import Placing
from router.settings.schema import Settings
from router.units import GIB, MIB
from tests.router.memory.test_placement import header

HOST = DeviceInfo("host", "Host memory", "CPU", "host")
CARDS = tuple(
    DeviceInfo(
        f"GPU-{letter}", f"Card {letter}", f"CUDA{number}", "gpu", "cuda", f"GPU-{letter}", f"0:{number}"
    )
    for number, letter in enumerate("abc")
)
A, B, C = (card.id for card in CARDS)
PLENTY = {"host": 64 * GIB}


def model(**changes: Any) -> Model:
    return Model("m", "/m.gguf", "llm", 3800 * MIB, Identity("/m.gguf", 3800 * MIB, 1), header(**changes))


def reading(device: DeviceInfo) -> DeviceReading:
    return DeviceReading(device, 24 * GIB, 24 * GIB, 0.0)


def placing(*devices: DeviceInfo, backend: str = "cuda") -> Placing:
    """Of an engine that reaches all of these by their labels."""
    made = Placing(Measured(), check_args=check_arguments)
    made.observe([reading(device) for device in (*devices, HOST)])
    made.use({d.id: EngineDevice(d.label, backend, d.name, 24 * GIB) for d in devices})
    return made


def layouts(
    on: Placing,
    room: dict[str, int],
    *,
    asked: LoadOptions | None = None,
    of: Model | None = None,
    **settings: Any,
) -> list[Placement]:
    found = on.placements(of or model(), asked or LoadOptions(), Settings(**settings), {**PLENTY, **room})
    return list(found)


def gpus(layout: Placement) -> dict[str, int]:
    return {device: size for device, size in layout.booking.items() if device != "host"}


def test_one_card_the_emptiest_first_then_the_fewest_in_proportion() -> None:
    room = {A: 6 * GIB, B: 12 * GIB, C: 3 * GIB}
    found = [p for p in layouts(placing(*CARDS), room) if p.is_whole]
    assert [tuple(gpus(p)) for p in found] == [(B,), (A,), (C,), (B, A), (B, A, C)]
    split = found[3]
    assert split.details.options.tensor_split == (48, 24)
    parts = split.details.demand.per_device
    # The output, as large as some blocks, goes to the last.
    assert 1.5 < parts[B].weights / parts[A].weights < 2.1


def test_cards_that_do_not_hold_it_together_are_not_tried() -> None:
    found = layouts(placing(*CARDS), {A: GIB, B: GIB, C: GIB}, allow_partial_offload=False)
    assert [tuple(gpus(p)) for p in found] == [(A,), (B,), (C,)]


def test_as_many_layers_as_fit_come_last_and_at_the_very_last_none() -> None:
    of = model(expert_used_count=0)
    *whole, part, none = layouts(placing(CARDS[0]), {A: 3 * GIB}, of=of)
    assert [p.is_whole for p in whole] == [True]
    assert not part.is_whole
    assert 0 < part.details.layers[0] < 33
    assert part.booking[A] <= 3 * GIB
    on = placing(CARDS[0])
    job_more = replace(part.details.options, n_gpu_layers=part.details.layers[0] + 1)
    spec = on.spec(of, LoadOptions(), Settings(), part)
    assert (spec.devices, spec.n_gpu_layers) == ((A,), part.details.layers[0])
    assert device_demand(of.header, job_more).bytes_by_device()[A] > 3 * GIB
    assert gpus(none) == {}
    assert on.spec(of, LoadOptions(), Settings(), none).n_gpu_layers == 0


def test_of_a_mixture_experts_go_to_the_host_before_layers_do() -> None:
    of = model(expert_used_count=2, expert_feed_forward_length=1024)
    asked = LoadOptions(ctx_size=2048)
    found = [p for p in layouts(placing(CARDS[0]), {A: 4 * GIB}, of=of, asked=asked) if not p.is_whole]
    assert found[0].details.options.n_cpu_moe > 0
    assert found[0].details.layers == (33, 33)
    assert found[0].booking[A] <= 4 * GIB
    assert layouts(placing(CARDS[0]), {A: 4 * GIB}, of=of, allow_partial_offload=False)[-1].is_whole


def test_a_pinned_model_has_one_layout_in_its_own_order() -> None:
    asked = LoadOptions(device=("cuda1", "GPU-a"), tensor_split=(3.0, 1.0))
    (only,) = layouts(placing(*CARDS), {A: GIB, B: GIB}, asked=asked)
    spec = placing(*CARDS).spec(model(), asked, Settings(), only)
    assert (spec.devices, spec.tensor_split, spec.n_gpu_layers) == ((B, A), (3.0, 1.0), -1)
    assert only.is_whole
    one = LoadOptions(device=("CUDA1", "CUDA0"), split_mode="none", main_gpu=1)
    (only,) = layouts(placing(*CARDS), {A: GIB, B: GIB}, asked=one)
    assert tuple(gpus(only)) == (A,)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (LoadOptions(device=("CUDA9",)), "no GPU CUDA9; those that the engine can use: CUDA0, CUDA1, CUDA2"),
        (LoadOptions(device=("CUDA0",), main_gpu=3), "main_gpu"),
        (LoadOptions(device=("CUDA0", "CUDA1"), tensor_split=(1.0, 1.0, 1.0)), "tensor_split"),
        (LoadOptions(device=("CUDA0",), cache_type_k="q9"), "q9"),
        (LoadOptions(mmproj="/nowhere/mmproj.gguf"), "/nowhere/mmproj.gguf"),
    ],
)
def test_options_that_cannot_be_are_refused_by_name(asked: LoadOptions, words: str) -> None:
    with pytest.raises(LoadFailed, match=words.replace("(", r"\(")) as refused:
        layouts(placing(*CARDS), {A: 20 * GIB, B: 20 * GIB}, asked=asked)
    assert refused.value.status == 400


def test_a_card_that_the_engine_cannot_reach_is_not_used() -> None:
    on = placing(CARDS[0])
    on.observe([reading(device) for device in (*CARDS, HOST)])
    assert {tuple(gpus(p)) for p in layouts(on, {A: 20 * GIB, B: 20 * GIB})} == {(A,), ()}
    with pytest.raises(LoadFailed, match="cannot reach"):
        layouts(on, {A: 20 * GIB}, asked=LoadOptions(device=("CUDA1",)))


def test_without_a_card_or_without_layers_for_one_it_is_the_host() -> None:
    for on, asked in (
        (placing(), LoadOptions()),
        (placing(*CARDS), LoadOptions(device=("cpu",))),
        (placing(*CARDS), LoadOptions(n_gpu_layers=0)),
    ):
        (only,) = layouts(on, {A: 20 * GIB}, asked=asked)
        assert tuple(only.booking) == ("host",)
        assert on.spec(model(), asked, Settings(), only).n_gpu_layers == 0


def test_a_device_that_cannot_be_read_comes_last() -> None:
    on = placing(*CARDS)
    on.observe([DeviceReading(CARDS[0], 24 * GIB, None, 0.0), *map(reading, (*CARDS[1:], HOST))])
    found = layouts(on, {A: 20 * GIB, B: 6 * GIB, C: 12 * GIB})
    assert [tuple(gpus(p)) for p in found[:3]] == [(C,), (B,), (A,)]


def test_shared_memory_is_booked_on_the_host_too() -> None:
    apu = replace(CARDS[0], unified=True, backend="vulkan")
    found = layouts(placing(apu, backend="vulkan"), {A: 20 * GIB})[0]
    assert found.booking["host"] > found.booking[A] > 3 * GIB
    chip = DeviceInfo("host", "Chip, unified memory", "CPU", "host", "metal", unified=True)
    on = Placing(Measured())
    on.observe([reading(chip)])
    on.use({"host": EngineDevice("MTL0", "metal", "Chip", 16 * GIB)})
    found = layouts(on, {})[0]
    assert tuple(found.booking) == ("host",)
    assert found.booking["host"] > 3 * GIB
    spec = on.spec(model(), LoadOptions(), Settings(), found)
    assert (spec.devices, spec.n_gpu_layers) == (("host",), -1)


def test_what_was_measured_in_shared_memory_counts_once() -> None:
    chip = DeviceInfo("host", "Chip, unified memory", "CPU", "host", "metal", unified=True)
    on = Placing(Measured())
    on.observe([reading(chip)])
    on.use({"host": EngineDevice("MTL0", "metal", "Chip", 16 * GIB)})
    before = layouts(on, {})[0]
    on.measured(on.spec(model(), LoadOptions(), Settings(), before), {"host": before.booking["host"] - GIB})
    # All of it is the host's: what was seen is what the two parts are together, and it is less than planned.
    assert layouts(on, {})[0].booking == before.booking


def test_the_largest_context_that_fits() -> None:
    auto = LoadOptions(ctx_size=CTX_AUTO)
    on = placing(CARDS[0])
    contexts = []
    for room in (6 * GIB, 8 * GIB, 64 * GIB):
        first = layouts(on, {A: room}, asked=auto)[0]
        contexts.append(first.details.options.ctx_size)
        assert first.booking[A] <= room
        more = LoadOptions(ctx_size=contexts[-1] + 4096)
        if contexts[-1] < 131_072:
            assert layouts(on, {A: room}, asked=more)[0].booking[A] > room - 256 * MIB
    assert contexts == sorted(set(contexts))
    assert contexts[-1] == 131_072
    # It does not fall below what a chat needs; whether that fits is judged like any other.
    assert layouts(on, {A: GIB}, asked=auto)[0].details.options.ctx_size == 4096


def test_a_small_move_of_memory_makes_no_other_layout() -> None:
    on = placing(*CARDS[:2])
    room = {A: 6 * GIB + 10 * MIB, B: 12 * GIB}
    moved = {A: 6 * GIB + 90 * MIB, B: 12 * GIB + 40 * MIB}
    auto = LoadOptions(ctx_size=CTX_AUTO)
    assert layouts(on, room, asked=auto)[:3] == layouts(on, moved, asked=auto)[:3]


@pytest.mark.fault("F30")
def test_what_was_measured_goes_before_the_formula_where_it_is_more(tmp_path: Path) -> None:
    on = placing(CARDS[0])
    before = layouts(on, {A: 20 * GIB})[0]
    spec = on.spec(model(), LoadOptions(), Settings(), before)
    on.measured(spec, {A: 1 * GIB, "host": MIB})
    assert layouts(on, {A: 20 * GIB})[0].booking == before.booking
    on.measured(spec, {A: before.booking[A] + GIB})
    # What the process holds besides the buffers that an engine tells of comes on top.
    assert layouts(on, {A: 20 * GIB})[0].booking[A] == before.booking[A] + GIB + 512 * MIB
    # Another context is another matter.
    other = layouts(on, {A: 20 * GIB}, asked=LoadOptions(ctx_size=4096))[0]
    assert other.booking[A] < before.booking[A]


def test_a_load_that_ran_short_is_planned_with_more_and_not_without_end() -> None:
    on = placing(CARDS[0])
    first = layouts(on, {A: 20 * GIB})[0]
    sizes = [first.booking[A]]
    for _ in range(6):
        on.ran_short(on.spec(model(), LoadOptions(), Settings(), first))
        sizes.append(layouts(on, {A: 20 * GIB})[0].booking[A])
    assert sizes[1] == pytest.approx(sizes[0] * 1.25)
    assert sizes[-1] == sizes[-2] == pytest.approx(sizes[0] * 2)


def test_an_overhead_is_for_back_ends_that_hold_a_context() -> None:
    cuda = layouts(placing(CARDS[0]), {A: 20 * GIB})[0].booking[A]
    more = layouts(placing(CARDS[0]), {A: 20 * GIB}, worker_overhead=GIB)[0].booking[A]
    assert more - cuda == 512 * MIB
    vulkan = replace(CARDS[0], backend="vulkan")
    assert cuda - layouts(placing(vulkan, backend="vulkan"), {A: 20 * GIB})[0].booking[A] == 256 * MIB


def test_arguments_are_checked_and_an_embedding_model_without_pooling_gets_one() -> None:
    on = placing()
    embedder = replace(model(), type="embedding")
    (only,) = layouts(on, {}, of=embedder)
    asked = LoadOptions(llamacpp_args=("--threads", "2"))
    assert on.spec(embedder, asked, Settings(), only).args == ("--pooling", "mean", "--threads", "2")
    assert on.spec(model(), asked, Settings(), only).args == ("--threads", "2")
    with pytest.raises(BadRequest, match="ctx_size"):
        on.spec(model(), LoadOptions(llamacpp_args=("--ctx-size", "9")), Settings(), only)


def test_a_model_with_an_argument_that_no_engine_gets_is_not_laid_out() -> None:
    """Else others would unload for a load that cannot begin."""
    with pytest.raises(BadRequest, match="--nonsense"):
        layouts(placing(*CARDS), {A: 20 * GIB}, asked=LoadOptions(llamacpp_args=("--nonsense",)))


def test_names_of_devices_become_ids() -> None:
    on = placing(*CARDS)
    assert on.canonical(LoadOptions(device=("cuda1", "gpu-A"))).device == (B, A)
    unchanged = LoadOptions(device=("CUDA9",), parallel=2)
    assert on.canonical(unchanged) == unchanged
    assert on.canonical(LoadOptions(device=("cpu",))).device == ("cpu",)


def test_a_projector_counts_on_the_main_device(tmp_path: Path) -> None:
    file = tmp_path / "mmproj.gguf"
    file.write_bytes(bytes(3 * MIB))
    on = placing(CARDS[0])
    plain = layouts(on, {A: 20 * GIB})[0].booking[A]
    own = replace(model(), mmproj="/beside.gguf", mmproj_bytes=100 * MIB)
    with_own = layouts(on, {A: 20 * GIB}, of=own)[0]
    assert with_own.booking[A] - plain == (100 + 512) * MIB
    assert on.spec(own, LoadOptions(), Settings(), with_own).mmproj == "/beside.gguf"
    other = LoadOptions(mmproj=str(file))
    assert layouts(on, {A: 20 * GIB}, of=own, asked=other)[0].booking[A] - plain == (3 + 512) * MIB
    none = LoadOptions(mmproj="")
    assert layouts(on, {A: 20 * GIB}, of=own, asked=none)[0].booking[A] == plain
