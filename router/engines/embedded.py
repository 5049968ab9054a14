"""The engine that comes with the program: llama.cpp, by xllamacpp, in a worker process for each model.

This process never loads the engine itself: a mere list of its devices would hold memory on every card.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from router.engines.base import Capabilities, WorkerSpec
from router.engines.configuration import for_worker
from router.engines.llama import Launch, LlamaEngine
from router.engines.pinning import Pin
from router.engines.probing import PACKAGE, Prober, package_version, worker_command
from router.engines.process import StopLimits


class EmbeddedEngine(LlamaEngine):
    """Starts and stops workers of the engine that comes with the program.

    It takes no names of devices: its workers are pinned by their environment alone.
    """

    def __init__(
        self,
        *,
        logs_dir: Path | None = None,
        state_dir: Path | None = None,
        command: Sequence[str] = (),
        limits: StopLimits | None = None,
        found: Capabilities | None = None,
        prober: Prober | None = None,
    ) -> None:
        """As every engine. `command` is started for a worker in place of the program's own.

        `found` is what is known of the engine already; else `prober` finds out.
        """
        super().__init__(logs_dir=logs_dir, state_dir=state_dir, limits=limits)
        self._command = tuple(command) or worker_command()
        self._found = found
        self._prober = prober or Prober()
        self._version = package_version() or "unknown"

    def capabilities(self) -> Mapping[str, Any]:
        """Name, version and reachable devices."""
        devices = [device.name for device in self._found.devices] if self._found is not None else []
        return {
            "name": self.name,
            "package": PACKAGE,
            "version": self._version,
            "devices": ["host", *devices],
        }

    async def probe(self) -> Capabilities:
        """What it is and reaches: found out in a child, once."""
        if self._found is None:
            self._found = await self._prober(None)
        return self._found

    def _launch(self, spec: WorkerSpec, pin: Pin, api_key: str) -> Launch:
        return Launch(self._command, config=for_worker(spec, pin, api_key))
