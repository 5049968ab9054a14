"""NVIDIA GPUs, through the driver's management library. No GPU context is opened: docs/adr/0004-nvml.md."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import logging
import math
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from msgspec import Struct

from router.devices.base import DeviceInfo, DeviceReading
from router.devices.host import HostMemory, shared_memory
from router.devices.roster import ASLEEP, GONE, Roster, in_order
from router.devices.sampler import Source
from router.devices.sysfs import SYS, Card, cards_of_driver, has_maker, text

log = logging.getLogger(__name__)

LIBRARY = "libnvidia-ml.so.1"
REOPEN_S: Final = 5.0
"""Seconds between two attempts to open the library anew: with a broken driver one can take long."""

NVIDIA: Final = "0x10de"

INVALID_ARGUMENT: Final = 2
NOT_SUPPORTED: Final = 3
NO_PERMISSION: Final = 4
NOT_FOUND: Final = 6
LIBRARY_NOT_FOUND: Final = 12
FUNCTION_NOT_FOUND: Final = 13
ARGUMENT_VERSION_MISMATCH: Final = 25

_TOLERATED: Final = (NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH)
"""Answers that will be the same next time, so that opening the library anew would not help."""

_WORDS: Final = {
    1: "the driver's library was closed",
    INVALID_ARGUMENT: "the driver does not know it any more",
    NOT_SUPPORTED: "its driver does not report memory",
    NO_PERMISSION: "this program has no permission to read it",
    NOT_FOUND: "the driver does not find it",
    8: "a power cable is missing",
    9: "the NVIDIA driver is not loaded",
    10: "the driver did not answer in time",
    11: "the driver has a problem with its interrupts",
    LIBRARY_NOT_FOUND: "the driver's library is not installed",
    FUNCTION_NOT_FOUND: "the NVIDIA driver is too old for this",
    14: "the card's own memory of its settings is damaged",
    15: "the card has stopped responding or was unplugged; restarting the machine may help",
    16: "the card must be reset; restarting the machine does that",
    17: "the operating system denies access to the driver",
    18: "the NVIDIA driver was updated and the old one is still running; restart the machine",
    19: "the card is in use in a way that keeps others out",
    20: "the driver has run out of memory",
    23: "the driver has run out of resources",
    ARGUMENT_VERSION_MISMATCH: "the NVIDIA driver is too old for this",
    27: "the card is not ready",
    28: "the driver does not find it",
    29: "the card is in a state that does not allow reading it",
    999: "the NVIDIA driver reports an unknown error, as it may after sleep; restarting the machine may help",
}


def explain(code: int) -> str:
    """An NVML error in plain words, with its code."""
    return f"{_WORDS.get(code, 'the NVIDIA driver reports an error')} (NVML error {code})"


class Refused(Exception):
    """The library answered with an error code."""

    def __init__(self, code: int) -> None:
        super().__init__(explain(code))
        self.code = code


class _Gpu(Struct, frozen=True):
    """A GPU as the library lists it now. `pci` and `uuid` are "" if it does not tell."""

    handle: Any
    name: str
    uuid: str
    pci: str


class _Fault(Struct, frozen=True):
    """A GPU that the library lists but does not give access to. `pci` is "" if unknown."""

    index: int
    pci: str
    code: int


class Nvml:
    """A source of readings of NVIDIA GPUs; MIG instances are devices of their own, in place of their GPU.

    Attributes:
        problem: why there are no readings although there may be a GPU, in plain words for a banner; "" if all
            is well, and if the machine has no NVIDIA driver at all.

    Not for use from several threads; `devices` and `problem` may be read from any.
    """

    def __init__(
        self,
        host: Source | None = None,
        sysfs: Path = SYS,
        proc: Path = Path("/proc"),
        system: str = sys.platform,
    ) -> None:
        """`host` is read for GPUs that share the host's memory."""
        self.problem = ""
        self._host = host or HostMemory()
        self._sysfs = sysfs
        self._proc = proc
        self._system = system
        self._roster = Roster()
        self._binding: ModuleType | None = None
        self._is_open = False
        self._is_stale = False
        self._next_open = -math.inf
        self._refusal = LIBRARY_NOT_FOUND
        self._addresses: tuple[str, ...] = ()

    @property
    def devices(self) -> tuple[DeviceInfo, ...]:
        """Those that were last known."""
        return self._roster.devices

    def sample(self, started: float) -> tuple[DeviceReading, ...]:
        """One reading of each GPU, in the order of their addresses. Blocks as long as the driver does."""
        cards = cards_of_driver("nvidia", self._sysfs)
        asleep = [card for card in cards if card.is_asleep]
        if cards and len(asleep) == len(cards):
            # An open library can keep cards from staying asleep.
            self._close()
            gpus, faults = list[_Gpu](), list[_Fault]()
        else:
            try:
                self._open(started, tuple(card.address for card in cards))
                gpus, faults = self._gpus(cards, asleep)
            except Refused as refused:
                self._fail(refused.code)
                return self._roster.complete((), started, explain(refused.code))
        self.problem = ""
        return self._readings(gpus, faults, asleep, started)

    # --- the library ---------------------------------------------------------------------------------

    def _ask(self, function: str, *arguments: object) -> Any:
        """Call a function of the binding.

        Raises:
            Refused: with the library's error code.
        """
        assert self._binding is not None
        try:
            return getattr(self._binding, function)(*arguments)
        except self._binding.NVMLError as error:
            code = int(error.value)
        if code not in (*_TOLERATED, NOT_FOUND):
            self._is_stale = True
        raise Refused(code)

    def _open(self, started: float, addresses: tuple[str, ...]) -> None:
        """Open the library; open it anew after an error and when a card came or went.

        Raises:
            Refused: it cannot be opened.
        """
        is_due = started >= self._next_open
        if self._is_open and (addresses != self._addresses or (self._is_stale and is_due)):
            self._close()
            is_due = True
        if self._is_open:
            return
        if not is_due:
            raise Refused(self._refusal)
        self._next_open = started + REOPEN_S
        self._addresses = addresses
        self._is_stale = False
        if self._binding is None:
            # The binding takes a noticeable time to import: only where there is a library for it.
            if self._system == "linux" and not _loads(LIBRARY):
                raise Refused(LIBRARY_NOT_FOUND)
            self._binding = importlib.import_module("pynvml")
        self._ask("nvmlInit")
        self._is_open = True

    def _close(self) -> None:
        if self._is_open:
            self._is_open = False
            with contextlib.suppress(Refused):
                self._ask("nvmlShutdown")

    def _fail(self, code: int) -> None:
        """Close the library and note why it is of no use now."""
        self._close()
        self._refusal = code
        problem = ""
        if code != LIBRARY_NOT_FOUND and (self._roster.devices or self._may_have_gpu()):
            problem = explain(code)
        if problem and problem != self.problem:
            log.warning("NVIDIA GPUs cannot be read: %s", problem)
        self.problem = problem

    def _may_have_gpu(self) -> bool:
        """False if the driver is installed on a machine that surely has no card for it."""
        is_listed = self._system == "linux" and (self._sysfs / "bus" / "pci" / "devices").is_dir()
        return not is_listed or has_maker(NVIDIA, self._sysfs)

    # --- what there is -------------------------------------------------------------------------------

    def _gpus(self, cards: tuple[Card, ...], asleep: list[Card]) -> tuple[list[_Gpu], list[_Fault]]:
        """The GPUs that are awake.

        Raises:
            Refused: the driver does not even count them.
        """
        gpus, faults = [], []
        if asleep:
            # By address: going through the indices would wake those that sleep.
            places = [(index, card.address) for index, card in enumerate(cards) if card not in asleep]
        else:
            places = [(index, "") for index in range(int(self._ask("nvmlDeviceGetCount")))]
        for index, address in places:
            try:
                handle = (
                    self._ask("nvmlDeviceGetHandleByPciBusId", address)
                    if address
                    else self._ask("nvmlDeviceGetHandleByIndex", index)
                )
            except Refused as refused:
                # In a container the kernel lists cards that are not the container's.
                if not (address and refused.code == NOT_FOUND):
                    faults.append(_Fault(index, address, refused.code))
                continue
            pci = address or self._pci(handle)
            try:
                uuid = str(self._ask("nvmlDeviceGetUUID", handle))
            except Refused as refused:
                if not pci:
                    faults.append(_Fault(index, "", refused.code))
                    continue
                uuid = next((device.uuid for device in self._roster.devices if device.pci == pci), "")
            gpus.append(_Gpu(handle, self._name(handle, uuid or pci), uuid, pci))
        return gpus, faults

    def _name(self, handle: Any, known_as: str) -> str:
        known = (device.name for device in self._roster.devices if device.id == known_as)
        return self._told("nvmlDeviceGetName", handle) or next(known, "NVIDIA GPU")

    def _told(self, function: str, handle: Any) -> str:
        try:
            return str(self._ask(function, handle))
        except Refused:
            return ""

    def _pci(self, handle: Any) -> str:
        """The address in the kernel's form: the library writes the domain with eight digits."""
        try:
            told = self._ask("nvmlDeviceGetPciInfo", handle).busId
        except Refused:
            return ""
        whole = (told.decode() if isinstance(told, bytes) else str(told)).lower()
        domain, _, rest = whole.partition(":")
        return f"{int(domain, 16):04x}:{rest}"

    # --- readings ------------------------------------------------------------------------------------

    def _readings(
        self, gpus: list[_Gpu], faults: list[_Fault], asleep: list[Card], started: float
    ) -> tuple[DeviceReading, ...]:
        # CUDA_DEVICE_ORDER=PCI_BUS_ID, which workers are started with, counts by address. The library's own
        # order can differ.
        addresses = sorted(
            [gpu.pci for gpu in gpus] + [fault.pci for fault in faults] + [card.address for card in asleep],
            key=lambda address: (not address, address),
        )
        labels = {address: f"CUDA{index}" for index, address in enumerate(addresses) if address}
        found = [
            reading for gpu in gpus for reading in self._of_gpu(gpu, labels.get(gpu.pci, "CUDA?"), started)
        ]
        strangers = []
        for card in asleep:
            known = self._roster.asleep(card.address, started)
            found.extend(known)
            if not known:
                strangers.append(self._sleeper(card.address, labels[card.address], started))
        reason = explain(faults[0].code) if faults else GONE
        known_ids = {reading.device.id for reading in found}
        missing = sum(device.id not in known_ids for device in self._roster.devices)
        for fault in faults[missing:]:
            device = DeviceInfo(
                f"nvidia-{fault.index}", "NVIDIA GPU", labels.get(fault.pci, "CUDA?"), "gpu", "cuda"
            )
            strangers.append(DeviceReading(device, None, None, started, reason=explain(fault.code)))
        return in_order((*self._roster.complete(found, started, reason), *strangers))

    def _sleeper(self, address: str, label: str, started: float) -> DeviceReading:
        """A card that has slept since before the start. The driver's own text tells what it is."""
        told = text(self._proc / "driver" / "nvidia" / "gpus" / address / "information")
        name = re.search(r"^Model:\s*(.+)$", told, re.MULTILINE)
        uuid = re.search(r"^GPU UUID:\s*(GPU-[0-9a-f-]+)$", told, re.MULTILINE)
        device = DeviceInfo(
            uuid[1] if uuid else address,
            name[1].strip() if name else "NVIDIA GPU",
            label,
            "gpu",
            "cuda",
            uuid[1] if uuid else "",
            address,
        )
        return DeviceReading(device, None, None, started, reason=ASLEEP)

    def _of_gpu(self, gpu: _Gpu, label: str, started: float) -> list[DeviceReading]:
        if not self._has_mig(gpu.handle):
            return [self._reading(gpu, label, started)]
        instances = self._instances(gpu)
        if not instances:
            device = _device(gpu, label)
            reason = "MIG is on, and it has no instance: nothing can run on it"
            return [DeviceReading(device, None, None, started, reason=reason)]
        return [self._reading(part, f"{label}:{number}", started) for number, part in instances]

    def _has_mig(self, handle: Any) -> bool:
        try:
            current, _pending = self._ask("nvmlDeviceGetMigMode", handle)
        except Refused:
            return False
        return bool(current)

    def _instances(self, gpu: _Gpu) -> list[tuple[int, _Gpu]]:
        """The MIG instances of a GPU with their numbers; these can have gaps."""
        instances = []
        try:
            most = int(self._ask("nvmlDeviceGetMaxMigDeviceCount", gpu.handle))
        except Refused:
            return []
        for number in range(most):
            try:
                handle = self._ask("nvmlDeviceGetMigDeviceHandleByIndex", gpu.handle, number)
            except Refused:
                continue
            name = self._told("nvmlDeviceGetName", handle) or f"{gpu.name} MIG {number}"
            uuid = self._told("nvmlDeviceGetUUID", handle) or f"{gpu.uuid or gpu.pci}/{number}"
            instances.append((number, _Gpu(handle, name, uuid, gpu.pci)))
        return instances

    def _reading(self, gpu: _Gpu, label: str, started: float) -> DeviceReading:
        # Processes first: what arrives in between is then counted twice rather than not at all.
        by_pid = self._by_pid(gpu.handle)
        is_unified = False
        try:
            total, free = self._memory(gpu.handle)
        except Refused as refused:
            if refused.code != NOT_SUPPORTED:
                return DeviceReading(_device(gpu, label), None, None, started, by_pid, explain(refused.code))
            is_unified = True
            total, free = shared_memory(self._host, started)
        device = _device(gpu, label, is_unified)
        if total is None or free is None or not 0 <= free <= total or not total:
            reason = explain(NOT_SUPPORTED)
            if total is not None:
                reason = f"its driver reports {free} of {total} bytes free, which cannot be"
            return DeviceReading(device, None, None, started, by_pid, reason)
        return DeviceReading(
            device, total, free, started, {pid: size for pid, size in by_pid.items() if size <= total}
        )

    def _memory(self, handle: Any) -> tuple[int | None, int | None]:
        """Total and free bytes. Used bytes mean different things in the call's two versions: not taken."""
        try:
            memory = self._ask("nvmlDeviceGetMemoryInfo", handle, self._newest_memory)
        except Refused as refused:
            if refused.code not in (NOT_SUPPORTED, FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH):
                raise
            memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
        return int(memory.total), int(memory.free)

    @property
    def _newest_memory(self) -> int:
        assert self._binding is not None
        return int(self._binding.nvmlMemory_v2)

    def _by_pid(self, handle: Any) -> dict[int, int]:
        """Bytes of each process of which the driver tells them. Some appear late, some drivers tell none."""
        sizes: dict[int, int] = {}
        for kind in ("Compute", "Graphics"):
            for process in self._processes(kind, handle):
                if process.usedGpuMemory is not None:
                    pid, size = int(process.pid), int(process.usedGpuMemory)
                    # A process can be in both lists, each time with all that it holds.
                    sizes[pid] = max(size, sizes.get(pid, 0))
        return sizes

    def _processes(self, kind: str, handle: Any) -> list[Any]:
        for version in ("_v3", "_v2"):
            try:
                return list(self._ask(f"nvmlDeviceGet{kind}RunningProcesses{version}", handle))
            except Refused as refused:
                if refused.code != FUNCTION_NOT_FOUND:
                    break
        return []


def _device(gpu: _Gpu, label: str, is_unified: bool = False) -> DeviceInfo:
    return DeviceInfo(gpu.uuid or gpu.pci, gpu.name, label, "gpu", "cuda", gpu.uuid, gpu.pci, is_unified)


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
