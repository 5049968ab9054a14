"""Where a model goes, as admission sees it, and who knows how models can be laid out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from msgspec import Struct

from router.catalog.model import Model
from router.catalog.options import LoadOptions
from router.devices.base import DeviceInfo
from router.engines.base import WorkerSpec
from router.settings.schema import Settings


class Placement(Struct, frozen=True):
    """Where a model's bytes go, fixed before its worker starts.

    Attributes:
        booking: bytes by device id, the host's too.
        is_whole: nothing stays on the host that the user wanted on a GPU.
        details: what the placer makes a worker's specification of; of no concern here.
    """

    booking: Mapping[str, int]
    is_whole: bool = True
    details: Any = None


class Placer(Protocol):
    """Knows what models need and how they can be laid out. Pure as far as a plan can tell."""

    def reaches(self, device: DeviceInfo) -> bool:
        """Whether models can be loaded on the device."""

    def canonical(self, options: LoadOptions) -> LoadOptions:
        """The same options, devices by their ids as far as their names are known: so that they compare."""

    def placements(
        self, model: Model, options: LoadOptions, settings: Settings, room: Mapping[str, int]
    ) -> Iterable[Placement]:
        """Layouts worth trying with so many bytes of room by device id, best first, whether they fit or not.

        Those that keep layers on the host for want of room come last.

        Raises:
            RouterError: the model cannot be laid out at all.
        """

    def spec(
        self, model: Model, options: LoadOptions, settings: Settings, placement: Placement
    ) -> WorkerSpec:
        """What to start a worker with, for one of the placements.

        Raises:
            RouterError: the model cannot be started with these options.
        """

    def measured(self, spec: WorkerSpec, held: Mapping[str, int]) -> None:
        """A worker told what it has taken, in bytes by device id; nothing if it told nothing."""

    def ran_short(self, spec: WorkerSpec) -> None:
        """A worker died for want of memory: it needs more than was planned."""
