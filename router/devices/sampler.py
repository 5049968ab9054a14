"""Readings taken off the loop: a driver that hangs stops neither the loop nor quitting."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Sequence
from typing import Final, Protocol

from router.devices.base import HOST_ID, DeviceInfo, DeviceReading

log = logging.getLogger(__name__)

TIMEOUT_S: Final = 2.0


class Source(Protocol):
    """Something that reads devices and may block: a driver, a file system."""

    @property
    def devices(self) -> tuple[DeviceInfo, ...]:
        """Those that it last knew: they are shown as unknown while it does not answer."""

    def sample(self, started: float) -> tuple[DeviceReading, ...]:
        """One reading of each of its devices, stamped with `started`. May raise anything."""


class Sampler:
    """A provider that reads each source on a daemon thread of its own.

    A source that does not answer in time, or fails, makes its devices unknown with the reason; the others go
    on. A hung source is not asked again until it has answered.
    """

    def __init__(self, sources: Sequence[Source], timeout_s: float = TIMEOUT_S) -> None:
        self._readers = [_Reader(source) for source in sources]
        self._timeout_s = timeout_s

    async def read(self) -> tuple[DeviceReading, ...]:
        """One sample of every device, host last. Calls at the same time share a sample that is under way."""
        samples = await asyncio.gather(*(reader.read(self._timeout_s) for reader in self._readers))
        readings = [reading for sample in samples for reading in sample]
        return tuple(sorted(readings, key=lambda reading: reading.device.id == HOST_ID))

    async def close(self) -> None:
        """Let the threads end. One that hangs is not waited for; it cannot keep the program from ending."""
        for reader in self._readers:
            reader.close()


class _Reader:
    """One source and its thread, which starts with the first reading."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._requests: queue.SimpleQueue[tuple[float, asyncio.AbstractEventLoop, _Answer] | None]
        self._requests = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._pending: _Answer | None = None
        self._started = 0.0
        self._is_late = False
        self._is_closed = False

    async def read(self, timeout_s: float) -> tuple[DeviceReading, ...]:
        loop = asyncio.get_running_loop()
        if self._is_closed:
            return self._unknown(loop.time(), "no more readings are taken")
        if self._pending is None or self._pending.done():
            self._is_late = False
            self._pending = loop.create_future()
            self._started = loop.time()
            self._requests.put((self._started, loop, self._pending))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="device-reader", daemon=True)
                self._thread.start()
        pending = self._pending
        if not self._is_late:
            await asyncio.wait([pending], timeout=timeout_s)
        if not pending.done():
            if not self._is_late:
                log.warning("%s: no reading within %g s", self._name, timeout_s)
            self._is_late = True
            return self._unknown(self._started, "its driver does not answer")
        answer = pending.result()
        if isinstance(answer, str):
            return self._unknown(self._started, answer)
        return answer

    def close(self) -> None:
        self._is_closed = True
        self._requests.put(None)

    @property
    def _name(self) -> str:
        return ", ".join(device.name for device in self._source.devices) or type(self._source).__name__

    def _unknown(self, started: float, reason: str) -> tuple[DeviceReading, ...]:
        return tuple(
            DeviceReading(device, None, None, started, reason=reason) for device in self._source.devices
        )

    def _run(self) -> None:
        while (request := self._requests.get()) is not None:
            started, loop, answer = request
            result: tuple[DeviceReading, ...] | str
            try:
                result = self._source.sample(started)
            except Exception as error:
                # Whatever a driver raises makes its devices unknown and nothing else.
                result = f"it cannot be read: {error}"
            try:
                loop.call_soon_threadsafe(_settle, answer, result)
            except RuntimeError:
                # The loop was closed meanwhile: nobody waits any more.
                return


_Answer = asyncio.Future[tuple[DeviceReading, ...] | str]


def _settle(answer: _Answer, result: tuple[DeviceReading, ...] | str) -> None:
    if not answer.done():
        answer.set_result(result)
