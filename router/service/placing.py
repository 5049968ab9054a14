"""What models need, how they can be laid out on the devices, and what a worker is started with."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from msgspec import Struct, structs

from router.catalog.model import Model
from router.catalog.options import CTX_AUTO, NO_GPU, LoadOptions
from router.devices.base import HOST_ID, DeviceInfo, DeviceReading
from router.engines.base import EngineDevice, WorkerSpec
from router.errors import LoadFailed
from router.memory.demand import UNKNOWN_CTX, default_ctx
from router.memory.header import ModelHeader
from router.memory.measured import Measured, Seen, key_of
from router.memory.placement import DeviceDemand, PlacementOptions, device_demand
from router.residency.admission import UNBOUNDED
from router.residency.placement import Placement
from router.settings.schema import Settings
from router.units import MIB

SIMULATED: Final = "simulated"

#: Back ends whose processes hold a context on a card before they load anything.
_CONTEXTS: Final = frozenset({"cuda", "rocm", SIMULATED})
#: What a worker holds on a device of another kind, at most.
_OTHER: Final = 256 * MIB
#: Shares of a split, and rooms that an automatic context is fitted to, are counted in steps: so that what
#: moves on a device by a little does not make another layout each time.
_STEP: Final = 256 * MIB
#: An automatic context is not made smaller than this.
_LEAST_AUTO_CTX: Final = 4096
_CTX_GRAIN: Final = 1024
_REMEMBERED: Final = 4096
#: Stands for a GPU whose memory is the host's, as on Apple's machines.
_SHARED: Final = "shared"


class Layout(Struct, frozen=True):
    """Everything about one way to load a model.

    Attributes:
        options: what the demand was computed for, and what the engine is told.
        demand: bytes by part and device, by formula.
        layers: blocks on GPUs, the output being one more, of how many.
        key: names the model, its options and this layout in what was measured.
    """

    options: PlacementOptions
    demand: DeviceDemand
    layers: tuple[int, int]
    key: str


class Placing:
    """The placer of the real world. Use it on one loop.

    Attributes:
        devices: the machine's, as last read.
        reach: those that the engine in use can load on, by device id.
    """

    def __init__(
        self, measured: Measured, *, check_args: Callable[[Sequence[str]], tuple[str, ...]] = tuple
    ) -> None:
        self._measured = measured
        self._check_args = check_args
        self._layouts: dict[tuple[object, ...], Placement] = {}
        self._unread: set[str] = set()
        self.devices: tuple[DeviceInfo, ...] = ()
        self.reach: Mapping[str, EngineDevice] = {}

    def copy(self) -> Placing:
        """One more, for use in another thread."""
        other = Placing(self._measured, check_args=self._check_args)
        other.devices, other.reach, other._unread = self.devices, self.reach, self._unread
        return other

    def is_like(self, other: Placing) -> bool:
        """Whether it lays models out in the same way."""
        return self.devices == other.devices and self.reach == other.reach

    def observe(self, readings: Iterable[DeviceReading]) -> None:
        """Take the devices of new readings."""
        readings = tuple(readings)
        self._unread = {reading.device.id for reading in readings if reading.free is None}
        devices = tuple(reading.device for reading in readings)
        if devices != self.devices:
            self.devices = devices
            self._layouts.clear()

    def use(self, reach: Mapping[str, EngineDevice]) -> None:
        """From now on the engine reaches these, by device id."""
        self.reach = dict(reach)
        self._layouts.clear()

    def reaches(self, device: DeviceInfo) -> bool:
        """Whether models can be loaded on the device."""
        return device.kind != "gpu" or device.backend == SIMULATED or device.id in self.reach

    # What a plan asks for

    def canonical(self, options: LoadOptions) -> LoadOptions:
        """The same options, devices by their ids as far as their names are known."""
        if not options.device or options.device == (NO_GPU,):
            return options
        ids = tuple(found.id if (found := self._find(name)) else name for name in options.device)
        return options if ids == options.device else structs.replace(options, device=ids)

    def placements(
        self, model: Model, options: LoadOptions, settings: Settings, room: Mapping[str, int]
    ) -> Iterator[Placement]:
        """Layouts worth trying: one GPU, the emptiest first; several, the fewest first, in proportion to what
        they have; then, if that is allowed, as many layers as fit and the rest on the host.

        A model with a device has one layout. Without any GPU, or with `n_gpu_layers` 0, it is the host.

        Raises:
            RouterError: the model's file or its options cannot be used here.
        """
        job = _Job(self, model, options, settings)
        asked = job.asked()
        gpus = self.gpus(room)
        if asked is not None:
            yield job.on(asked, room)
            return
        if not gpus or options.n_gpu_layers == 0:
            yield job.on((), room)
            return
        for name in gpus:
            yield job.on((name,), room)
        if len(gpus) > 1 and options.split_mode != "none":
            needs = job.least_on_gpus(job.on((gpus[0],), room))
            for count in range(2, len(gpus) + 1):
                if sum(max(room[name], 0) for name in gpus[:count]) >= needs:
                    yield job.on(tuple(gpus[:count]), room)
        if settings.allow_partial_offload and options.n_gpu_layers is None:
            yield from job.partial(gpus, room)

    def spec(
        self, model: Model, options: LoadOptions, settings: Settings, placement: Placement
    ) -> WorkerSpec:
        """What to start a worker with.

        Raises:
            RouterError: an argument of the engine is not allowed, though it was when the placement was made.
        """
        layout = placement.details
        chosen: PlacementOptions = layout.options
        return WorkerSpec(
            model=model.name,
            path=model.path,
            type=model.type,
            ctx_size=chosen.ctx_size,
            parallel=chosen.parallel,
            booking=placement.booking,
            load_stall_s=settings.load_stall_timeout_s,
            devices=tuple(_real(name) for name in chosen.devices),
            split_mode=chosen.split_mode,
            main_gpu=chosen.main_gpu,
            tensor_split=chosen.tensor_split,
            n_gpu_layers=chosen.n_gpu_layers if chosen.devices else 0,
            n_cpu_moe=chosen.n_cpu_moe,
            cache_type_k=chosen.cache_type_k,
            cache_type_v=chosen.cache_type_v,
            mmproj=_projector(model, options)[0],
            args=self.arguments(model, options),
            key=layout.key,
        )

    def arguments(self, model: Model, options: LoadOptions) -> tuple[str, ...]:
        """Further arguments of the engine, checked.

        Raises:
            RouterError: one is not allowed, or the engine in use does not take it.
        """
        given = (*_pooling(model), *(options.llamacpp_args or ()))
        return self._check_args(given) if given else ()

    def measured(self, spec: WorkerSpec, held: Mapping[str, int]) -> None:
        """Remember what a worker said it took."""
        if held:
            self._measured.note(spec.key, held)
            self._layouts.clear()

    def ran_short(self, spec: WorkerSpec) -> None:
        """Plan more the next time."""
        self._measured.ran_short(spec.key)
        self._layouts.clear()

    # Devices

    def gpus(self, room: Mapping[str, int]) -> list[str]:
        """Ids of the GPUs that can be used: that with the most room first, those that cannot be read last."""
        usable = [d.id for d in self.devices if d.id in room and self._is_gpu(d)]
        return sorted(usable, key=lambda name: (name in self._unread, -room[name]))

    def named(self, name: str) -> str:
        """The id of the GPU of that id, label, UUID, PCI address or name in the engine.

        Raises:
            LoadFailed: there is none, or the engine cannot reach it.
        """
        device = self._find(name)
        if device is not None:
            if not self._is_gpu(device):
                raise LoadFailed(
                    f"The engine in use cannot reach {device.name} ({name}).",
                    code="device_unreachable",
                    status=400,
                    param="device",
                    hint="Choose another engine, or leave the device open.",
                )
            return device.id
        known = ", ".join(d.label for d in self.devices if self._is_gpu(d)) or "none"
        raise LoadFailed(
            f"There is no GPU {name}; those that the engine can use: {known}.",
            code="unknown_device",
            status=400,
            param="device",
        )

    def _find(self, name: str) -> DeviceInfo | None:
        wanted = name.casefold()
        for device in self.devices:
            engine = self.reach.get(device.id)
            names = (device.id, device.label, device.uuid, device.pci, engine.name if engine else "")
            if wanted in (known.casefold() for known in names if known):
                return device
        return None

    def overhead(self, device: str, settings: Settings) -> int:
        """Bytes that a worker takes on a device before it loads anything."""
        backend = next((d.backend for d in self.devices if d.id == device), "")
        return settings.worker_overhead if backend in _CONTEXTS else min(settings.worker_overhead, _OTHER)

    def _is_gpu(self, device: DeviceInfo) -> bool:
        return self.reaches(device) and (device.kind == "gpu" or device.id in self.reach)

    def shares_host(self, device: str) -> bool:
        """Whether what is put on the device takes from the host's memory too."""
        return any(d.id == device and d.unified for d in self.devices)

    def seen(self, key: str) -> Seen | None:
        """What loads with this layout were seen to take."""
        return self._measured.get(key)

    def remembered(self, key: tuple[object, ...], make: Callable[[], Placement]) -> Placement:
        """A placement that was made before for the same key, or a new one."""
        found = self._layouts.get(key)
        if found is None:
            if len(self._layouts) >= _REMEMBERED:
                self._layouts.clear()
            found = self._layouts[key] = make()
        return found


class _Job:
    """The layouts of one model with one set of options."""

    def __init__(self, placing: Placing, model: Model, options: LoadOptions, settings: Settings) -> None:
        if model.header is None:
            raise LoadFailed(f"{model.name} cannot be loaded: {model.broken or 'its header is unknown'}")
        # Before anybody goes for a load that its engine would refuse.
        placing.arguments(model, options)
        self._placing = placing
        self._header: ModelHeader = model.header
        self._model = model
        self._options = options
        self._settings = settings
        self._parallel = options.parallel or settings.parallel
        self._subject = (
            model.identity,
            model.mmproj,
            options,
            settings.ctx_size,
            settings.parallel,
            settings.worker_overhead,
        )

    def asked(self) -> tuple[str, ...] | None:
        """The devices that the options name; none for the processor alone; None if they leave it open."""
        named = self._options.device
        if named is None:
            return None
        if named == (NO_GPU,):
            return ()
        return tuple(dict.fromkeys(self._placing.named(name) for name in named))

    def on(
        self,
        devices: tuple[str, ...],
        room: Mapping[str, int],
        *,
        layers: int | None = None,
        cpu_moe: int | None = None,
    ) -> Placement:
        """The layout on these devices, in this order.

        Args:
            layers, cpu_moe: in place of what the options say; the layout is not whole then.
        """
        is_whole = layers is None and cpu_moe is None
        if layers is None:
            layers = -1 if self._options.n_gpu_layers is None else self._options.n_gpu_layers
        if cpu_moe is None:
            cpu_moe = self._options.n_cpu_moe or 0
        shares = self._shares(devices, room)
        if self._options.ctx_size == CTX_AUTO:
            steps = tuple(max(room.get(name, UNBOUNDED), 0) // _STEP for name in (*devices, HOST_ID))
            return self._placing.remembered(
                (*self._subject, devices, shares, layers, cpu_moe, steps),
                lambda: self._largest(devices, shares, layers, cpu_moe, is_whole, steps),
            )
        ctx_size = default_ctx(self._header, self._options.ctx_size or self._settings.ctx_size)
        return self._placing.remembered(
            (*self._subject, devices, shares, layers, cpu_moe),
            lambda: self._make(devices, shares, layers, cpu_moe, ctx_size, is_whole),
        )

    def least_on_gpus(self, single: Placement) -> int:
        """Bytes that the GPUs must have together, however the model is split."""
        parts = single.details.demand.per_device
        return sum(p.weights + p.kv_cache for name, p in parts.items() if name != HOST_ID)

    def partial(self, gpus: Sequence[str], room: Mapping[str, int]) -> Iterator[Placement]:
        """As much as fits on the GPUs that have room: without some experts if the model has any, else without
        some layers; and at last nothing at all."""
        with_room = tuple(name for name in gpus if room[name] > 0)
        if with_room:
            blocks = self._header.block_count
            if self._header.expert_used_count:
                found = self._first_that_fits(
                    [partial(self.on, with_room, room, cpu_moe=count) for count in range(1, blocks + 1)], room
                )
                if found is not None:
                    yield found
            found = self._first_that_fits(
                [partial(self.on, with_room, room, layers=count) for count in range(blocks, 0, -1)], room
            )
            if found is not None:
                yield found
        yield structs.replace(self.on((), room), is_whole=False)

    def _first_that_fits(
        self, ways: Sequence[Callable[[], Placement]], room: Mapping[str, int]
    ) -> Placement | None:
        """The first of these that fits on the GPUs. Each takes less there than the one before."""
        low, high = 0, len(ways)
        while low < high:
            middle = (low + high) // 2
            booking = ways[middle]().booking
            if all(size <= room.get(name, 0) for name, size in booking.items() if name != HOST_ID):
                high = middle
            else:
                low = middle + 1
        return ways[low]() if low < len(ways) else None

    def _shares(self, devices: tuple[str, ...], room: Mapping[str, int]) -> tuple[float, ...]:
        if len(devices) < 2 or self._options.split_mode == "none":
            return ()
        if self._options.tensor_split:
            return self._options.tensor_split
        return tuple(float(max(room.get(name, 0) // _STEP, 1)) for name in devices)

    def _largest(
        self,
        devices: tuple[str, ...],
        shares: tuple[float, ...],
        layers: int,
        cpu_moe: int,
        is_whole: bool,
        steps: tuple[int, ...],
    ) -> Placement:
        """With the largest context for which the layout stays within so many steps of memory."""
        most = self._header.context_length or UNKNOWN_CTX
        least = min(_LEAST_AUTO_CTX, most)
        room = dict(zip((*devices, HOST_ID), (count * _STEP for count in steps), strict=True))

        def made(ctx_size: int) -> Placement:
            return self._make(devices, shares, layers, cpu_moe, ctx_size, is_whole)

        def fits(placement: Placement) -> bool:
            return all(size <= room[name] for name, size in placement.booking.items())

        whole = made(most)
        if fits(whole):
            return whole
        low, high = least // _CTX_GRAIN, most // _CTX_GRAIN
        while low < high:
            middle = (low + high + 1) // 2
            if fits(made(middle * _CTX_GRAIN)):
                low = middle
            else:
                high = middle - 1
        return made(max(low * _CTX_GRAIN, least))

    def _make(
        self,
        devices: tuple[str, ...],
        shares: tuple[float, ...],
        layers: int,
        cpu_moe: int,
        ctx_size: int,
        is_whole: bool,
    ) -> Placement:
        placing, options = self._placing, self._options
        # The demand has a name of its own for a GPU whose memory is the host's.
        names = tuple(_SHARED if name == HOST_ID else name for name in devices)
        overheads = [placing.overhead(name, self._settings) for name in devices]
        chosen = PlacementOptions(
            devices=names,
            split_mode=options.split_mode or "layer",
            main_gpu=options.main_gpu or 0,
            tensor_split=shares,
            n_gpu_layers=layers,
            n_cpu_moe=cpu_moe,
            ctx_size=ctx_size,
            parallel=self._parallel,
            cache_type_k=options.cache_type_k or "f16",
            cache_type_v=options.cache_type_v or "f16",
            projector_bytes=_projector(self._model, options)[1],
            device_overhead=max(overheads, default=0),
        )
        try:
            needs = device_demand(self._header, chosen, self._model.size_bytes)
        except ValueError as error:
            raise LoadFailed(
                f"{self._model.name} cannot be loaded with these options: {error}",
                code="invalid_options",
                status=400,
            ) from None
        offloaded = self._header.block_count + 1 if layers < 0 else layers
        key = key_of(self._model.identity, chosen)
        booking = self._booking(needs, placing.seen(key) or Seen())
        total = self._header.block_count + 1
        layout = Layout(chosen, needs, (min(offloaded, total) if devices else 0, total), key)
        return Placement(booking, is_whole, layout)

    def _booking(self, needs: DeviceDemand, seen: Seen) -> dict[str, int]:
        """What is booked: the formula's bytes or those that were seen, whichever is more.

        What an engine tells of are its buffers; what its process holds besides comes on top.
        """
        on_gpus = len(needs.per_device) > 1
        planned, besides = Counter[str](), Counter[str]()
        for name, parts in needs.per_device.items():
            device = _real(name)
            planned[device] += (
                int(parts.total * seen.factor) if name != HOST_ID or not on_gpus else parts.total
            )
            besides[device] += parts.overhead
        booking = {
            device: max(size, seen.devices[device] + besides[device]) if device in seen.devices else size
            for device, size in planned.items()
        }
        for device in needs.per_device:
            if device != HOST_ID and self._placing.shares_host(device):
                booking[HOST_ID] += booking[device]
        return booking


def _real(name: str) -> str:
    """The id of a device that a demand names."""
    return HOST_ID if name == _SHARED else name


def _pooling(model: Model) -> tuple[str, ...]:
    """A language model that is used to embed texts tells no pooling: without any there is no vector of a
    text. An argument of the user's comes later, and counts."""
    told = model.header.pooling_type if model.header is not None else None
    return ("--pooling", "mean") if model.type == "embedding" and not told else ()


def _projector(model: Model, options: LoadOptions) -> tuple[str, int]:
    """The projector's file and the bytes of its tensors."""
    if options.mmproj is None or options.mmproj == model.mmproj:
        return model.mmproj, model.mmproj_bytes
    if not options.mmproj:
        return "", 0
    # Of a file outside the catalog only the size is known without reading it here.
    try:
        return options.mmproj, os.stat(options.mmproj).st_size
    except OSError as error:
        raise LoadFailed(
            f"The projector {options.mmproj} cannot be used: {error.strerror}.",
            code="projector_missing",
            status=400,
            param="mmproj",
        ) from None
