"""What to read on this machine."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence

from router.devices.amd import Amd
from router.devices.apple import UnifiedMemory
from router.devices.host import HostMemory
from router.devices.intel import Intel
from router.devices.nvml import Nvml
from router.devices.sampler import Source


def sources(system: str = sys.platform, processor: str | None = None) -> list[Source]:
    """The sources of all devices of this machine, the host's memory last. Nothing is read yet."""
    if system == "darwin" and (processor or platform.machine()) == "arm64":
        return [UnifiedMemory()]
    host = HostMemory()
    if system == "linux":
        return [Nvml(host), Amd(host), Intel(host), host]
    if system == "win32":
        return [Nvml(host), host]
    return [host]


def problems(sources: Sequence[Source]) -> tuple[str, ...]:
    """Why devices that may be there cannot be read at all, one phrase each, for a banner."""
    return tuple(source.problem for source in sources if isinstance(source, Nvml) and source.problem)
