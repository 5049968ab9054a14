"""Any llama-server as an engine: a process of it for each model, living as the embedded one's workers do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from router.engines.base import Capabilities, WorkerSpec
from router.engines.configuration import for_server
from router.engines.guard import guarded, program_environ
from router.engines.llama import Launch, LlamaEngine
from router.engines.pinning import Pin
from router.engines.probing import Prober
from router.engines.process import StopLimits

#: Makes it tell its state on standard output, and end when standard input does. It only has to be a number.
_REPORT: Final = "LLAMA_SERVER_ROUTER_PORT"
_KEY: Final = "LLAMA_API_KEY"
#: Where a projector goes; by itself it would take the first GPU that the program sees.
_PROJECTOR: Final = "MTMD_BACKEND_DEVICE"


class ExternalEngine(LlamaEngine):
    """Starts and stops workers of one program."""

    takes_names = True

    def __init__(
        self,
        program: Path,
        *,
        logs_dir: Path | None = None,
        state_dir: Path | None = None,
        limits: StopLimits | None = None,
        found: Capabilities | None = None,
        prober: Prober | None = None,
    ) -> None:
        """As every engine. `found` is what is known of the program already; else `prober` finds out."""
        super().__init__(logs_dir=logs_dir, state_dir=state_dir, limits=limits)
        self.program = program
        self._found = found
        self._prober = prober or Prober()

    def capabilities(self) -> Mapping[str, Any]:
        """Name, path, version and reachable devices, as far as the program has been asked."""
        found = self._found
        devices = [device.name for device in found.devices] if found is not None else []
        version = found.version if found is not None else ""
        return {
            "name": self.name,
            "path": str(self.program),
            "version": version,
            "devices": ["host", *devices],
        }

    async def probe(self) -> Capabilities:
        """What it is and reaches: found out in a child, once."""
        if self._found is None:
            self._found = await self._prober(self.program)
        return self._found

    def _launch(self, spec: WorkerSpec, pin: Pin, api_key: str) -> Launch:
        known = self._found.options if self._found is not None else ()
        command = for_server(self.program, spec, pin, frozenset(known))
        environ = {_REPORT: "1", _KEY: api_key, **program_environ()}
        if pin.names:
            environ[_PROJECTOR] = next(iter(pin.names))
        return Launch(guarded(command), tuple(command), environ, is_server=True)
