"""How a worker is kept to its devices: by environment, and by the engine's own names where it takes names.

A GPU that a process merely lists may cost hundreds of MiB there. So every GPU that a worker is not meant to
use is hidden from it by its back end's own variable, wherever listing costs memory:

- CUDA: `CUDA_VISIBLE_DEVICES` with UUIDs, which no renumbering can confuse; the worker's `CUDA0` is then the
  first of its own.
- ROCm: `HIP_VISIBLE_DEVICES` with numbers, for the same reason and with the same effect.
- Vulkan: listing costs nothing there, and the numbers in `GGML_VK_VISIBLE_DEVICES` are the driver's, not the
  engine's. A program that takes names is given them, under the environment that it was probed in; only a
  worker without such names gets numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from router.engines.base import EngineDevice, WorkerSpec

CUDA: Final = "CUDA_VISIBLE_DEVICES"
HIP: Final = "HIP_VISIBLE_DEVICES"
VULKAN: Final = "GGML_VK_VISIBLE_DEVICES"
#: Numbers as NVML, `nvidia-smi` and the plan have them.
CUDA_ORDER: Final = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
#: Shows no device to CUDA and HIP. An empty value would do, but is no value at all on Windows.
_NOTHING: Final = "-1"
#: Back ends whose order is that of the PCI bus, and the variable of each that shows some devices in an order.
RENUMBERED: Final = {"cuda": CUDA, "rocm": HIP}


class Pin(Struct, frozen=True):
    """Where one worker runs.

    Attributes:
        environ: variables to set.
        names: the worker's own name of each of its devices, in order, and the device's id.
        tensor_split: shares of these; empty if there are fewer than two.
        split_mode: `none` or `layer`.
    """

    environ: Mapping[str, str]
    names: Mapping[str, str]
    tensor_split: tuple[float, ...]
    split_mode: str


class Unreachable(ValueError):
    """A device that the engine does not reach; `str()` is its id."""


def pin(
    spec: WorkerSpec, reach: Mapping[str, EngineDevice], environ: Mapping[str, str], *, takes_names: bool
) -> Pin:
    """Pin a worker to the devices of its spec.

    `environ` is the environment that the engine was probed in; `takes_names` tells whether the worker can be
    given names of devices.

    Raises:
        Unreachable: a device that is not in `reach`.
    """
    devices, mode = spec.devices, spec.split_mode
    if mode == "none":
        # The others are not just left empty but hidden.
        devices = devices[spec.main_gpu : spec.main_gpu + 1]
    found: list[EngineDevice] = []
    for device in devices:
        if device not in reach:
            raise Unreachable(device)
        found.append(reach[device])
    names: dict[str, str] = {}
    shown: dict[str, list[str]] = {"cuda": [], "rocm": [], "vulkan": []}
    for device, target in zip(devices, found, strict=True):
        name = target.name
        if target.backend in shown:
            mine = shown[target.backend]
            if target.backend in RENUMBERED or not takes_names:
                prefix, number = _parts(name)
                name = f"{prefix}{len(mine)}"
                mine.append(target.pin or _visible(target.backend, number, environ))
            else:
                mine.append("")
        names[name] = device
    result = dict(CUDA_ORDER)
    for backend, variable in RENUMBERED.items():
        result[variable] = ",".join(shown[backend]) or _NOTHING
    if not shown["vulkan"]:
        result[VULKAN] = ""
    elif not takes_names:
        result[VULKAN] = ",".join(shown["vulkan"])
    return Pin(
        environ=result,
        names=names,
        tensor_split=spec.tensor_split if len(names) > 1 else (),
        split_mode=mode if len(names) > 1 else "none",
    )


def _parts(name: str) -> tuple[str, int]:
    prefix = name.rstrip("0123456789")
    return prefix, int(name[len(prefix) :] or 0)


def _visible(backend: str, number: int, environ: Mapping[str, str]) -> str:
    """The value for the back end's variable that shows its device of that number in this environment."""
    variable = VULKAN if backend == "vulkan" else RENUMBERED[backend]
    listed = [part.strip() for part in environ.get(variable, "").split(",") if part.strip()]
    return listed[number] if number < len(listed) else str(number)
