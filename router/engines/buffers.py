"""What a worker has allocated, from the lines in which the engine tells the size of each buffer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from router.units import MIB

#: The id under which memory of the host is counted.
HOST: Final = "host"
_LINE: Final = re.compile(
    r"(?:[\d.]+ \w (?:\w+ +(?=\S+: ))?)?(?P<source>\w+):\s+(?P<buffer>[A-Za-z]\w*) +(?P<kind>\w+) "
    r"buffer size\s*=\s*(?P<mib>\d+(?:\.\d+)?) MiB"
)
#: Such as `Vulkan1`, and `MTL0_Mapped`, which is memory of the host that the device reads in place.
_DEVICE: Final = re.compile(r"(?P<name>[A-Za-z]+\d*)(?:_(?P<rest>\w+))?$")
_ON_HOST: Final = frozenset({"CPU", "AMX", "BLAS", "KleidiAI"})


class BufferSizes:
    """Adds up the sizes of one worker's buffers as its lines come."""

    def __init__(self) -> None:
        self._sizes: dict[tuple[str, str, str], int] = {}

    def feed(self, line: str) -> None:
        """Take note of a line of the engine's output, if it is about a buffer."""
        if "buffer size" not in line or not (match := _LINE.match(line)):
            return
        key = match["buffer"], match["kind"], match["source"]
        size = round(float(match["mib"]) * MIB)
        # Scratch memory is planned anew at times, and the line comes again. The others are told once a part.
        known = self._sizes.get(key, 0)
        self._sizes[key] = max(known, size) if match["kind"] == "compute" else known + size

    def parts(self) -> dict[tuple[str, str], int]:
        """Bytes by the engine's name of the buffer, such as `CUDA0` or `CPU_Mapped`, and kind."""
        parts: dict[tuple[str, str], int] = {}
        for (buffer, kind, _), size in self._sizes.items():
            parts[buffer, kind] = parts.get((buffer, kind), 0) + size
        return parts

    def by_device(self, names: Mapping[str, str]) -> dict[str, int]:
        """Bytes by device id, for the ids that `names` gives for the engine's names of devices.

        What lies in no device of these is the host's. Bytes, rounded as the engine rounds its figures: to
        hundredths of a MiB.
        """
        sizes: dict[str, int] = {}
        for (buffer, _), size in self.parts().items():
            device = device_of(buffer, names)
            sizes[device] = sizes.get(device, 0) + size
        return sizes


def device_of(buffer: str, names: Mapping[str, str]) -> str:
    """The id of the device that a buffer lies in, by the buffer's name."""
    match = _DEVICE.match(buffer)
    if match is None or match["name"] in _ON_HOST or match["rest"] == "Host":
        return HOST
    # Earlier versions call Apple's GPU `Metal` and say so in its buffers, whatever they list it as.
    if match["name"] == "Metal":
        return next((device for name, device in names.items() if name.startswith(("Metal", "MTL"))), HOST)
    return names.get(match["name"], HOST)
