"""What each model of the catalog needs, and whether this machine could hold it: worked out off the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

from router.catalog.model import Model
from router.devices.base import HOST_ID, DeviceReading
from router.errors import RouterError
from router.residency.admission import UNBOUNDED, emptied
from router.service.placing import Placing
from router.settings.schema import Settings
from router.tasks import Tasks


class Size(Struct, frozen=True):
    """Bytes that a model needs, all devices together; whether an empty machine holds it, None if unknown."""

    needs: int = 0
    fits: bool | None = None


def capacity(readings: Iterable[DeviceReading], placing: Placing, settings: Settings) -> dict[str, int]:
    """Bytes by device that models could have, were nothing else there. A device that is not known is left
    out, unless it may be used nevertheless."""
    room = {}
    for reading in readings:
        if reading.device.id != HOST_ID and not placing.reaches(reading.device):
            continue
        if reading.total is not None:
            room[reading.device.id] = emptied(reading.total, settings)
        elif settings.unknown_device == "proceed":
            room[reading.device.id] = UNBOUNDED
    return room


def size_of(model: Model, placing: Placing, settings: Settings, room: Mapping[str, int]) -> Size:
    """The size of one model as it would be loaded."""
    if model.broken or model.header is None:
        return Size()
    needs = 0
    try:
        for layout in placing.placements(model, model.options, settings, room):
            needs = needs or sum(layout.booking.values())
            if all(size <= room.get(device, 0) for device, size in layout.booking.items()):
                return Size(sum(layout.booking.values()), True)
    except RouterError:
        return Size(needs, False if needs else None)
    return Size(needs, False)


class _Wanted(Struct):
    models: Mapping[str, Model]
    placing: Placing
    settings: Settings
    room: dict[str, int]

    def is_like(self, other: _Wanted) -> bool:
        return (
            self.models is other.models
            and self.placing.is_like(other.placing)
            and (self.settings, self.room) == (other.settings, other.room)
        )

    def sizes(self) -> dict[str, Size]:
        return {n: size_of(m, self.placing, self.settings, self.room) for n, m in self.models.items()}


class Sizing:
    """Keeps the sizes of all models current. Everything runs on one loop, the work in a thread.

    Args:
        on_change: called when `sizes` has changed.

    Attributes:
        sizes: by name.
        sized: the models that `sizes` are of.
    """

    def __init__(self, tasks: Tasks, on_change: Callable[[], None]) -> None:
        self._tasks = tasks
        self._on_change = on_change
        self._wanted: _Wanted | None = None
        self._done: _Wanted | None = None
        self._task: asyncio.Task[None] | None = None
        self.sizes: Mapping[str, Size] = {}
        self.sized: Mapping[str, Model] = {}

    def look(
        self,
        models: Mapping[str, Model],
        placing: Placing,
        settings: Settings,
        readings: tuple[DeviceReading, ...],
    ) -> None:
        """Work out the sizes for these, unless that was done. The last call counts."""
        room = capacity(readings, placing, settings)
        wanted = _Wanted(models, placing, settings, room)
        if self._wanted is not None and wanted.is_like(self._wanted):
            return
        self._wanted = _Wanted(models, placing.copy(), settings, room)
        if self._task is None or self._task.done():
            self._task = self._tasks.spawn(self._run(), "sizes of models")

    async def _run(self) -> None:
        while (wanted := self._wanted) is not self._done and wanted is not None:
            sizes = await asyncio.to_thread(wanted.sizes)
            self._done = wanted
            self.sized = wanted.models
            if sizes != self.sizes:
                self.sizes = sizes
                self._on_change()
