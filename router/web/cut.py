"""What ends an answer before its own end: the lease is cut, since the worker goes or has gone."""

from __future__ import annotations

import asyncio

from router.errors import RouterError, ShuttingDown, Unavailable, WorkerDied
from router.providers.live import REMOVED
from router.web.api import Lease
from router.web.relay import Exchange
from router.web.stream import EventStream


class EndedByCut:
    """While it lasts, the lease's cut ends the exchange, and a client that does not read ends with it."""

    __slots__ = ("_exchange", "_lease", "_over", "_stalled_s", "_stream")

    def __init__(
        self, lease: Lease, exchange: Exchange, stream: EventStream | None, stalled_s: float
    ) -> None:
        self._lease = lease
        self._exchange = exchange
        self._stream = stream
        self._stalled_s = stalled_s
        self._over = False

    def __enter__(self) -> None:
        self._lease.cut.add_done_callback(self._end)

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._lease.cut.remove_done_callback(self._end)

    def _end(self, cut: asyncio.Future[str]) -> None:
        if not self._over and not cut.cancelled():
            self._exchange.fail(cut_error(self._lease, cut.result()))
            if self._stream is not None:
                self._stream.expire(self._stalled_s)


def cut_error(lease: Lease, why: str) -> RouterError:
    """What a client is told whose answer has been cut."""
    name = lease.model.name
    if why == "shutting_down":
        return ShuttingDown("The router is shutting down.")
    if why == "worker_died":
        return died(lease)
    if why == REMOVED:
        return Unavailable(f"The provider of {name} was removed before its answer was complete.", code=why)
    return Unavailable(f"{name} was unloaded before its answer was complete.", code=why)


def died(lease: Lease) -> WorkerDied:
    """What a client is told whose model's worker has ended."""
    exited = lease.worker.exited
    how = ""
    if exited.done() and not exited.cancelled():
        end = exited.result()
        how = f" (signal {-end.code})" if end.code < 0 else f" (exit status {end.code})"
        if end.last_words:
            how += f". It said: {end.last_words}"
    return WorkerDied(f"The worker of {lease.model.name} ended before the answer was complete{how}.")
