"""How many of the models that policies name the memory holds at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from router.catalog.model import LLM, Model
from router.catalog.options import CTX_AUTO, NO_OPTIONS, LoadOptions
from router.devices.base import HOST_ID
from router.errors import RouterError
from router.residency.admission import UNBOUNDED, emptied, others_on
from router.residency.desire import Desired
from router.residency.placement import Placement
from router.residency.world import World
from router.units import MIB

#: What other programs hold counts in steps, so that the number does not flicker.
_STEP: Final = 256 * MIB


class Capacity:
    """Computes the number anew only when something that it depends on has changed."""

    def __init__(self) -> None:
        self._key: object = None
        self._room_for: int | None = None

    def room_for(self, desired: Desired, world: World) -> int | None:
        """How many of the active policies' language models fit beside each other, were nothing else of ours
        loaded; None if they name none, or a device's memory is not known."""
        active = [policy for policy in desired.policies if policy.enabled]
        named = {name for policy in active for name in policy.candidates}
        wanted = tuple(sorted(name for name in named if _is_local(desired.models.get(name))))
        room = _emptied(desired, world) if wanted else ()
        key = (wanted, room, desired.settings, desired.models, dict(world.options))
        if key != self._key:
            self._key = key
            self._room_for = _Packing(dict(room), desired, world).count(wanted) if room else None
        return self._room_for


def _is_local(model: Model | None) -> bool:
    return model is not None and model.type == LLM and not model.remote and not model.broken


def _emptied(desired: Desired, world: World) -> tuple[tuple[str, int], ...]:
    """Room by device without any model of ours; empty if it cannot be told."""
    settings = desired.settings
    room = []
    for reading in world.readings:
        device = reading.device.id
        if device != HOST_ID and not world.placer.reaches(reading.device):
            continue
        if reading.total is None:
            return ()
        others = -(-others_on(reading, world.residents) // _STEP) * _STEP
        room.append((device, emptied(reading.total, settings, others)))
    return tuple(room)


class _Packing:
    def __init__(self, room: Mapping[str, int], desired: Desired, world: World) -> None:
        self._room = room
        self._desired = desired
        self._world = world

    def count(self, wanted: Sequence[str]) -> int:
        """Largest first shows whether all fit; if not, smallest first shows how many."""
        needs = {name: self._needs(name) for name in wanted}
        falling = sorted(wanted, key=lambda name: -needs[name])
        packed = self._pack(falling)
        return packed if packed == len(wanted) else max(packed, self._pack(falling[::-1]))

    def _pack(self, names: Sequence[str]) -> int:
        left = dict(self._room)
        count = 0
        for name in names:
            for layout in self._layouts(name, left):
                if all(size <= left.get(device, UNBOUNDED) for device, size in layout.booking.items()):
                    for device, size in layout.booking.items():
                        left[device] = left.get(device, UNBOUNDED) - size
                    count += 1
                    break
        return count

    def _needs(self, name: str) -> int:
        return max((sum(layout.booking.values()) for layout in self._layouts(name, self._room)), default=0)

    def _layouts(self, name: str, room: Mapping[str, int]) -> list[Placement]:
        """The whole ones. A model that cannot be laid out has none; why is told where it is asked for."""
        model = self._desired.models[name]
        found = []
        try:
            for layout in self._world.placer.placements(
                model, _options(model, self._world), self._desired.settings, room
            ):
                if not layout.is_whole:
                    break
                found.append(layout)
        except RouterError:
            return []
        return found


def _options(model: Model, world: World) -> LoadOptions:
    """As it would be loaded. An automatic context takes what others leave: it counts as the default one."""
    options = world.options.get(model.name, NO_OPTIONS).over(model.options)
    return LoadOptions(ctx_size=0).over(options) if options.ctx_size == CTX_AUTO else options
