"""Which of the machine's devices is which of an engine's.

A device has one stable id, and a name for each engine: `CUDA0`, `Vulkan1`. A driver's own order, CUDA's
default order and Vulkan's order all differ. Here they are brought together by what both sides tell: the back
end, the place on the PCI bus, the name.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol, TypeVar

from msgspec import Struct, structs

from router.engines.base import EngineDevice
from router.engines.pinning import RENUMBERED

#: Back ends that are the maker's own: a card that one of these reaches is used by it.
_NATIVE: Final = ("cuda", "rocm", "metal", "sycl")
#: Makers, by the words that tell them in names and descriptions.
_MAKERS: Final = {
    "nvidia": re.compile(r"nvidia|geforce|quadro|tesla|\brtx\b", re.IGNORECASE),
    "amd": re.compile(r"\bamd\b|radeon|radv|advanced micro devices|instinct", re.IGNORECASE),
    "intel": re.compile(r"\bintel\b|\barc\b", re.IGNORECASE),
    "apple": re.compile(r"\bapple\b", re.IGNORECASE),
}
_MAKER_OF: Final = {"cuda": "nvidia", "rocm": "amd", "metal": "apple", "sycl": "intel"}
_NOISE: Final = re.compile(
    r"\([^)]*\)|\b(?:nvidia|amd|ati|intel|corporation|advanced micro devices|inc|graphics)\b|[^a-z0-9]+"
)


class Known(Protocol):
    """A device of the machine, as this needs it."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def backend(self) -> str: ...
    @property
    def uuid(self) -> str: ...
    @property
    def pci(self) -> str: ...


_K = TypeVar("_K", bound=Known)


class Reach(Struct, frozen=True):
    """What an engine reaches.

    Attributes:
        devices: the engine's device by the id of the machine's.
        unknown: the engine's devices that no reader knows, by an id made up for each, such as
            `vulkan:0:llvmpipe`.
    """

    devices: Mapping[str, EngineDevice]
    unknown: Mapping[str, EngineDevice]

    @property
    def all(self) -> dict[str, EngineDevice]:
        """Both: what `use` of an engine takes."""
        return {**self.devices, **self.unknown}


def match_devices(
    known: Iterable[Known], listed: Iterable[EngineDevice], environ: Mapping[str, str] | None = None
) -> Reach:
    """Bring the machine's GPUs and an engine's list together.

    `environ` is the environment that the engine was probed in, this process's own if None: a variable of
    visible devices there says which of the machine's it listed, and in what order. `known` may hold the host,
    which is passed over.

    A device that an engine lists under two back ends is used by the maker's own. One that cannot be told for
    sure is left among the unknown, rather than booked on another's account.
    """
    by_backend: dict[str, list[EngineDevice]] = defaultdict(list)
    for device in listed:
        by_backend[device.backend].append(device)
    gpus = sorted((device for device in known if device.backend), key=lambda device: (device.pci, device.id))
    found: dict[str, EngineDevice] = {}
    unknown: dict[str, EngineDevice] = {}
    ordered = sorted(by_backend, key=lambda name: (name not in _NATIVE, name))
    for backend in ordered:
        devices = sorted(by_backend[backend], key=_number)
        candidates = [gpu for gpu in gpus if _may_be(gpu, backend)]
        candidates = _visible(candidates, backend, os.environ if environ is None else environ)
        pairs = _pair(candidates, devices, by_bus=backend in RENUMBERED)
        for device in devices:
            gpu = pairs.get(device.name)
            if gpu is None:
                unknown[_made_up(device)] = device
            elif gpu.id not in found:
                found[gpu.id] = structs.replace(device, pin=gpu.uuid if backend == "cuda" else "")
    return Reach(found, unknown)


def _pair(gpus: Sequence[Known], devices: Sequence[EngineDevice], *, by_bus: bool) -> dict[str, Known]:
    """The machine's device for each of the engine's names. Both are in the order of their bus or number."""
    if by_bus and len(gpus) == len(devices) and _agree(gpus, devices):
        return {device.name: gpu for device, gpu in zip(devices, gpus, strict=True)}
    pairs: dict[str, Known] = {}
    rest_gpus, rest_devices = list(gpus), list(devices)
    for alike, is_sure in (
        (_same_name, True),
        (_same_model, True),
        (_like_model, False),
        (_same_maker, False),
    ):
        groups = [(device, [gpu for gpu in rest_gpus if alike(gpu, device)]) for device in rest_devices]
        for device, mine in groups:
            rivals = [its for _, its in groups if any(gpu in its for gpu in mine)]
            # Likeness alone proves something only with as many of the one as of the other.
            if not is_sure and (len(rivals) != len(mine) or any(its != mine for its in rivals)):
                continue
            left = [gpu for gpu in mine if gpu in rest_gpus]
            if left:
                pairs[device.name] = left[0]
                rest_gpus.remove(left[0])
        rest_devices = [device for device in rest_devices if device.name not in pairs]
    return pairs


def _agree(gpus: Sequence[Known], devices: Sequence[EngineDevice]) -> bool:
    """No name speaks against the order: each is alike, or tells nothing that both sides have."""
    if all(_same_model(gpu, device) for gpu, device in zip(gpus, devices, strict=True)):
        return True
    return not any(_same_model(gpu, device) for gpu in gpus for device in devices)


def _may_be(gpu: Known, backend: str) -> bool:
    """Whether an engine's device of that back end may be this one."""
    if gpu.backend == backend:
        return True
    if backend in _NATIVE:
        return backend == "sycl" and _maker(gpu.name) == "intel"
    return gpu.backend != "simulated"


def _visible(gpus: list[_K], backend: str, environ: Mapping[str, str]) -> list[_K]:
    """Those that the back end's variable shows, in its order."""
    value = environ.get(RENUMBERED.get(backend, ""), "").strip()
    if not value or backend not in RENUMBERED:
        return gpus
    chosen: list[_K] = []
    for part in (text.strip() for text in value.split(",")):
        if part.isdecimal():
            match = gpus[int(part) : int(part) + 1]
        else:
            match = [gpu for gpu in gpus if gpu.uuid and part and gpu.uuid.startswith(part)]
        # The first that is not there ends the list.
        if len(match) != 1:
            break
        chosen += match
    return chosen


def _same_name(gpu: Known, device: EngineDevice) -> bool:
    return bool(gpu.name) and gpu.name.casefold() == device.description.casefold()


def _same_model(gpu: Known, device: EngineDevice) -> bool:
    """The same but for makers' names, marks, and what drivers add in brackets."""
    plain = _plain(gpu.name)
    return bool(plain) and plain == _plain(device.description)


def _like_model(gpu: Known, device: EngineDevice) -> bool:
    """One name has all the words of the other, a number among them: lists of names give several at once."""
    ours, its = set(_plain(gpu.name).split()), set(_plain(device.description).split())
    return (ours <= its or its <= ours) and any(any(map(str.isdigit, word)) for word in ours & its)


def _same_maker(gpu: Known, device: EngineDevice) -> bool:
    maker = _MAKER_OF.get(gpu.backend) or _maker(gpu.name)
    return bool(maker) and maker == (_MAKER_OF.get(device.backend) or _maker(device.description))


def _maker(name: str) -> str:
    return next((maker for maker, pattern in _MAKERS.items() if pattern.search(name)), "")


def _plain(name: str) -> str:
    lower = re.sub(r"\((?:r|tm|c)\)|[®™©]", "", name.casefold())
    return _NOISE.sub(" ", lower).strip().replace("  ", " ")


def _number(device: EngineDevice) -> int:
    digits = re.search(r"\d+$", device.name)
    return int(digits[0]) if digits else 0


def _made_up(device: EngineDevice) -> str:
    words = re.findall(r"[a-z0-9]+", device.description.casefold())
    return f"{device.backend}:{_number(device)}:{words[0] if words else device.name.casefold()}"
