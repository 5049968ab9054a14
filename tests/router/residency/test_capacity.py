"""How many of the policies' models the memory holds at once."""

from __future__ import annotations

from msgspec import structs

from router.catalog.model import EMBEDDING, Model, by_every_name
from router.catalog.options import LoadOptions
from router.devices.base import DeviceInfo, DeviceReading
from router.policy.document import Policy
from router.residency.capacity import Capacity
from router.residency.desire import desire
from router.residency.world import ResidentRow, World
from router.settings.schema import Settings
from router.snapshot import ResidentState
from router.units import GIB
from tests.support.simulation import SimPlacer, model, policy

HOST = DeviceInfo("host", "Host memory", "CPU", "host")


def sized(name: str, gib: float, **changes: object) -> Model:
    return structs.replace(model(name), size_bytes=int(gib * GIB), **changes)


def card(number: int, total: int | None, free: int | None = None) -> DeviceReading:
    info = DeviceInfo(f"gpu{number}", f"GPU {number}", f"CUDA{number}", "gpu", "cuda")
    size = None if total is None else total * GIB
    return DeviceReading(info, size, size if free is None or size is None else free * GIB, 0.0)


def room_for(
    models: list[Model],
    *cards: DeviceReading,
    policies: tuple[Policy, ...] | None = None,
    residents: tuple[ResidentRow, ...] = (),
    **settings: object,
) -> int | None:
    asked = policies if policies is not None else (policy("p", *(m.name for m in models)),)
    desired = desire(Settings(vram_margin=0, **settings), asked, by_every_name(models), {})
    host = DeviceReading(HOST, 64 * GIB, 64 * GIB, 0.0)
    world = World(SimPlacer(), residents=residents, readings=(*cards, host))
    return Capacity().room_for(desired, world)


def test_all_of_them_where_they_fit_beside_each_other() -> None:
    three = [sized("A", 8), sized("B", 8), sized("C", 7)]
    assert room_for(three, card(0, 24)) == 3
    assert room_for(three, card(0, 20)) == 2
    assert room_for(three, card(0, 7)) == 1
    assert room_for(three, card(0, 4)) == 0
    assert room_for(three, card(0, 12), card(1, 12)) == 3


def test_two_cards_are_not_one_large_one_but_models_may_be_spread() -> None:
    # 10 + 10 + 10 on two cards of 16: the third is spread over what the others leave.
    assert room_for([sized(n, 10) for n in "ABC"], card(0, 16), card(1, 16)) == 3
    assert room_for([sized(n, 10) for n in "ABC"], card(0, 14), card(1, 14)) == 2


def test_the_small_ones_count_where_a_large_one_would_take_all() -> None:
    assert room_for([sized("A", 20), sized("B", 8), sized("C", 8)], card(0, 24)) == 2


def test_margin_cap_and_other_programs_lessen_it() -> None:
    three = [sized(n, 8) for n in "ABC"]
    assert room_for(three, card(0, 24)) == 3
    assert room_for(three, card(0, 24), vram_cap=17 * GIB) == 2
    assert room_for(three, card(0, 24, free=16)) == 2
    assert room_for(three, card(0, 24), auto_evict=True) == 2


def test_what_our_own_models_hold_is_theirs_to_give() -> None:
    loaded = ResidentRow(
        id=1,
        model="A",
        type="llm",
        state=ResidentState.READY,
        standard=True,
        leases=0,
        helper_leases=0,
        slots=1,
        last_use=0.0,
        use_order=1,
        load_s=1.0,
        options=LoadOptions(),
        asked=LoadOptions(),
        bytes={"gpu0": 8 * GIB},
    )
    assert room_for([sized(n, 8) for n in "ABC"], card(0, 24, free=16), residents=(loaded,)) == 3


def test_only_local_language_models_of_active_policies_count() -> None:
    models = [
        sized("A", 8),
        sized("B", 8, aliases=("bee",)),
        sized("E", 8, type=EMBEDDING),
        sized("R", 8, remote=True),
        sized("X", 8, broken="it is cut short"),
    ]
    both = (policy("p", "A", "B", "E", "R", "X"), policy("q", "bee", "A"))
    assert room_for(models, card(0, 64), policies=both) == 2
    off = (policy("p", "A", "B", enabled=False),)
    assert room_for(models, card(0, 64), policies=off) is None
    assert room_for(models, card(0, 64), policies=()) is None


def test_it_is_not_told_while_a_device_is_not_known() -> None:
    assert room_for([sized("A", 8)], card(0, None), card(1, 24)) is None


def test_it_is_worked_out_again_only_when_something_has_changed() -> None:
    models = [sized("A", 8), sized("B", 8)]
    desired = desire(Settings(vram_margin=0), (policy("p", "A", "B"),), by_every_name(models), {})
    asked: list[str] = []

    class Counting(SimPlacer):
        def placements(self, model, *rest):  # type: ignore[no-untyped-def]  # as the one it counts
            asked.append(model.name)
            return super().placements(model, *rest)

    capacity, placer = Capacity(), Counting()
    host = DeviceReading(HOST, 64 * GIB, 64 * GIB, 0.0)
    for free, expected in ((24, 2), (24, 2), (8, 1)):
        before = len(asked)
        world = World(placer, readings=(card(0, 24, free=free), host))
        assert capacity.room_for(desired, world) == expected
        assert (len(asked) > before) is ((free, before) in ((24, 0), (8, before)))
