"""What is told of models that are not loaded: what they need, and whether they fit at all."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec.structs import replace

from router.catalog.model import Model
from router.devices.base import DeviceReading
from router.residency.admission import UNBOUNDED
from router.service.sizing import Size, Sizing, capacity, size_of
from router.settings.schema import Settings
from router.tasks import Tasks
from router.units import GIB
from tests.service.test_placing import CARDS, HOST, A, model, placing

CARD = CARDS[0]


def readings(card: int | None, host: int = 64 * GIB) -> tuple[DeviceReading, ...]:
    return (
        DeviceReading(CARD, card, None if card is None else card // 2, 0.0),
        DeviceReading(HOST, host, host, 0.0),
    )


def size(card: int | None, host: int = 64 * GIB, of: Model | None = None, **changes: Any) -> Size:
    settings = Settings(allow_partial_offload=False, **changes)
    on = placing(CARD)
    return size_of(of or model(), on, settings, capacity(readings(card, host), on, settings))


def test_it_fits_what_an_empty_machine_holds() -> None:
    assert size(24 * GIB).fits is True
    assert size(24 * GIB).needs > 5 * GIB
    assert size(4 * GIB).fits is False
    assert size(4 * GIB).needs > 5 * GIB
    assert size(24 * GIB, vram_cap=4 * GIB).fits is False
    assert size(7 * GIB).fits is True
    assert size(7 * GIB, vram_margin=2 * GIB).fits is False


def test_a_part_of_it_may_stay_on_the_host() -> None:
    on = placing(CARD)
    room = capacity(readings(4 * GIB), on, Settings())
    assert size_of(model(), on, Settings(), room).fits is True
    assert size_of(model(), on, Settings(), {**room, "host": GIB}).fits is False


def test_a_device_that_is_not_known_counts_as_the_setting_says() -> None:
    on = placing(CARD)
    assert capacity(readings(None), on, Settings())[A] == UNBOUNDED
    assert A not in capacity(readings(None), on, Settings(unknown_device="refuse"))
    assert A not in capacity(readings(8 * GIB), placing(), Settings())


def test_a_broken_model_and_one_with_wrong_options_have_none() -> None:
    assert size(24 * GIB, of=replace(model(), header=None, broken="it is cut short")) == Size()
    wrong = replace(model().options, device=("CUDA9",))
    assert size(24 * GIB, of=replace(model(), options=wrong)) == Size()


async def test_sizes_follow_what_they_depend_on() -> None:
    tasks, changed = Tasks(), asyncio.Event()
    sizing = Sizing(tasks, changed.set)
    models, on, settings = {"m": model()}, placing(CARD), Settings(allow_partial_offload=False)

    async def looked(card: int, of: dict[str, Model] | None = None) -> Size:
        changed.clear()
        sizing.look(of or models, on, settings, readings(card))
        async with asyncio.timeout(10):
            await changed.wait()
        return sizing.sizes["m"]

    assert (await looked(24 * GIB)).fits is True
    assert (await looked(4 * GIB)).fits is False
    # In a burst the last one counts.
    changed.clear()
    for card in (24, 8, 4, 24):
        sizing.look(models, on, settings, readings(card * GIB))
    async with asyncio.timeout(10):
        while sizing.sizes["m"].fits is not True:
            await changed.wait()
            changed.clear()
    # What has not changed is not worked out again.
    running = tasks.running
    sizing.look(models, on, settings, readings(24 * GIB))
    assert tasks.running == running
    await tasks.cancel()
