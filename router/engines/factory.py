"""From what was found out about an engine to the engine itself."""

from __future__ import annotations

from pathlib import Path

from router.engines.base import Capabilities
from router.engines.embedded import EmbeddedEngine
from router.engines.external import ExternalEngine
from router.engines.llama import LlamaEngine
from router.engines.process import StopLimits


def make_engine(
    found: Capabilities,
    *,
    logs_dir: Path | None = None,
    state_dir: Path | None = None,
    limits: StopLimits | None = None,
) -> LlamaEngine:
    """The engine that was probed: the embedded one if it has no path, else the program at that path.

    It reaches no GPU until `use` was called. Make and close it on one loop.
    """
    if not found.path:
        return EmbeddedEngine(logs_dir=logs_dir, state_dir=state_dir, limits=limits, found=found)
    program = Path(found.path)
    return ExternalEngine(program, logs_dir=logs_dir, state_dir=state_dir, limits=limits, found=found)
