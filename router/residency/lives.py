"""The lives of workers: each is one supervised task; what becomes of it is booked in the table at once."""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from msgspec import structs

from router.catalog.model import Model
from router.catalog.options import NO_OPTIONS
from router.devices.base import DeviceReading
from router.engines.base import OUT_OF_MEMORY, Engine, Exit, Worker
from router.errors import LoadFailed, RouterError
from router.residency.desire import Desired, desire
from router.residency.feed import Feed
from router.residency.narrate import Narrator
from router.residency.placement import Placer
from router.residency.table import Resident, Table, Waiter
from router.residency.world import Drain, Freed, Load
from router.settings.schema import Settings
from router.snapshot import ResidentState
from router.tasks import Tasks

log = logging.getLogger("router.residency")


class Lives(ABC):
    """Starts and stops workers, and books their outcomes. What comes next, a pass decides.

    Args:
        engine: starts workers.
        placer: knows what models need, how they can be laid out, and what starts a worker with a layout.
        wall: Unix seconds, for what people see; decisions use the loop's monotonic clock.
    """

    def __init__(
        self, engine: Engine, placer: Placer, settings: Settings, wall: Callable[[], float] = time.time
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._engine = engine
        self._placer = placer
        self._wall = wall
        self._tasks = Tasks()
        self.table = Table()
        self.feed = Feed(wall=wall)
        self._say = Narrator(self.feed)
        self.readings: tuple[DeviceReading, ...] = ()
        self.desired: Desired = desire(settings, (), {}, {})

    @abstractmethod
    def _pass(self) -> None:
        """See at once what a change means."""

    @abstractmethod
    def kick(self) -> None:
        """Ask for a pass as soon as the loop is free. Kicks coalesce."""

    @abstractmethod
    def _desire(self) -> None:
        """See anew what is desired, now that another model is loaded."""

    @abstractmethod
    def _progressed(self) -> None:
        """A load came on: worth showing, but nothing to decide."""

    # Starting and stopping

    def _answer(self, waiter: Waiter, error: RouterError) -> None:
        self.table.waiters.pop(waiter.id, None)
        if not waiter.future.done():
            waiter.future.set_exception(error)

    def _touch(self, resident: Resident) -> None:
        resident.last_use = self._loop.time()
        resident.last_use_wall = self._wall()
        resident.use_order = self.table.next_id()

    def _begin(self, action: Load) -> None:
        model = self.desired.models[action.model]
        try:
            spec = self._placer.spec(model, action.options, self.desired.settings, action.placement)
        except Exception as error:
            self._book_failure(model, _as_router_error(model.name, error))
            return
        if action.asked != NO_OPTIONS:
            # What a load was asked for with holds for the loads that requests cause later.
            self.table.options[model.name] = action.asked
        resident = Resident(
            self.table.next_id(),
            model,
            spec,
            structs.replace(action.options, ctx_size=spec.ctx_size, parallel=spec.parallel),
            action.options,
            action.standard,
            self._loop.time(),
            self._loop.create_future(),
        )
        self._touch(resident)
        self.table.residents[resident.id] = resident
        self._say.loading(resident, self.readings)
        if action.lacks:
            self._say.proceeding(resident, action.lacks)
        resident.task = self._tasks.spawn(self._life(resident), f"worker of {model.name}")
        resident.task.add_done_callback(lambda _: self._life_ended(resident))

    def _evict(self, resident: Resident, drain: Drain) -> None:
        loading = resident.state is ResidentState.LOADING
        resident.state = ResidentState.EVICTING
        resident.evicted = drain
        resident.drain = None
        self._unboard(resident)
        if loading:
            self._say.load_cancelled(resident, drain)
            if resident.task is not None:
                resident.task.cancel()
        else:
            resident.stop.set()

    # A worker's life

    async def _life(self, resident: Resident) -> None:
        """Start, serve, stop. The only place where a resident's process changes."""
        try:
            worker = await self._engine.start(
                resident.spec,
                lambda share: self._progress(resident, share),
                lambda pid: self._launched(resident, pid),
            )
        except asyncio.CancelledError:
            self._book_gone(resident)
            if resident.state is not ResidentState.EVICTING:
                raise
            return
        except Exception as error:
            failure = _as_router_error(resident.model.name, error)
            self._book_gone(resident, then_pass=False)
            if not self._is_to_be_tried_again(resident, failure):
                self._book_failure(resident.model, failure)
            self._pass()
            return
        try:
            self._book_ready(resident, worker)
            await resident.stop.wait()
            if not await worker.stop():
                self._book_stuck(resident)
            await asyncio.wait([worker.exited])
        except asyncio.CancelledError:
            await worker.stop()
            raise
        finally:
            if worker.exited.done():
                self._book_gone(resident)

    def _life_ended(self, resident: Resident) -> None:
        # A task that is cancelled before its first step runs nothing, not even what books its end.
        if resident.worker is None:
            self._book_gone(resident)

    def _is_to_be_tried_again(self, resident: Resident, failure: RouterError) -> bool:
        """A load that died for want of memory is tried once more, with a higher demand, when everybody idle
        has left its devices."""
        name = resident.model.name
        again = failure.code == OUT_OF_MEMORY and name not in self.table.short
        if failure.code == OUT_OF_MEMORY:
            self._placer.ran_short(resident.spec)
        if again and self.table.waiting_for(name):
            self.table.short.add(name)
            self._say.ran_short(resident, failure)
            return True
        self.table.short.discard(name)
        return False

    def _launched(self, resident: Resident, pid: int) -> None:
        """From now on, samples tell what the process has taken."""
        resident.pid = pid

    def _progress(self, resident: Resident, share: float) -> None:
        resident.progress = max(resident.progress, min(1.0, share))
        self._progressed()

    def _book_ready(self, resident: Resident, worker: Worker) -> None:
        """A load has ended. What to do with it in the world as it is now is judged in the same step."""
        now = self._loop.time()
        resident.worker = worker
        resident.load_s = now - resident.load_started
        resident.ready_at = now
        resident.pid = worker.pid
        for device, size in worker.measured.items():
            resident.measure(device, size)
        self._placer.measured(resident.spec, worker.measured)
        self.table.short.discard(resident.model.name)
        self._touch(resident)
        resident.progress = 1.0
        worker.exited.add_done_callback(lambda done: self._exited(resident, done.result()))
        if resident.state is not ResidentState.LOADING:
            # Cancelled in the moment in which it became ready: it is stopped like any other.
            resident.stop.set()
            return
        resident.state = ResidentState.READY
        resident.newcomer = True
        for waiter in self.table.waiting_for(resident.model.name):
            waiter.boarded = resident.id
        self._say.ready(resident)
        self._pass()

    def _exited(self, resident: Resident, exit: Exit) -> None:
        """The process ended, whoever wanted it."""
        if resident.id not in self.table.residents:
            return
        unasked = resident.state is ResidentState.READY
        resident.stop.set()
        self._book_gone(resident, then_pass=False)
        if unasked:
            self._say.died(resident, exit)
            for lease in list(resident.leases):
                lease.end("worker_died")
            error = self.table.failures.judge_death(
                resident.model,
                f"ended with {exit.words}",
                self._loop.time(),
                of_first_request=bool(resident.leases) and not resident.served,
                last_words=exit.last_words,
            )
            if error is not None:
                self._fail_waiters(resident.model, error)
        self._pass()

    def _condemned(self, resident: Resident) -> None:
        """Its worker refuses connections: as good as dead, though answers under way may end."""
        if resident.state is not ResidentState.READY or resident.unreachable:
            return
        resident.unreachable = True
        self._say.unreachable(resident)
        error = self.table.failures.judge_death(resident.model, "refused connections", self._loop.time())
        if error is not None:
            self._fail_waiters(resident.model, error)
        self.kick()

    def _book_stuck(self, resident: Resident) -> None:
        resident.stuck = True
        if not resident.gone.done():
            resident.gone.set_result(None)
        self._say.stuck(resident)
        self._pass()

    def _book_gone(self, resident: Resident, *, then_pass: bool = True) -> None:
        if self.table.residents.pop(resident.id, None) is None:
            return
        self._unboard(resident)
        unsettled = {device: resident.charged[device] for device in resident.reserves}
        self.table.freed.append(Freed(self._loop.time(), dict(resident.charged), unsettled))
        if not resident.gone.done():
            resident.gone.set_result(None)
        self._desire()
        if resident.evicted is not None and resident.worker is not None:
            self._say.unloaded(resident, resident.evicted)
        if then_pass:
            self._pass()

    def _unboard(self, resident: Resident) -> None:
        for waiter in self.table.waiters.values():
            if waiter.boarded == resident.id:
                waiter.boarded = 0

    def _book_failure(self, model: Model, error: RouterError) -> None:
        """Remember it, so that the next requests do not try again at once, and tell those who wait."""
        self._say.load_failed(model.name, error)
        self.table.failures.note(model, error.message, self._loop.time())
        self._fail_waiters(model, error)

    def _fail_waiters(self, model: Model, error: RouterError) -> None:
        for waiter in self.table.waiting_for(model.name):
            self._answer(waiter, error)


def _as_router_error(model: str, error: Exception) -> RouterError:
    if isinstance(error, RouterError):
        return error
    log.error("Loading %s failed", model, exc_info=error)
    return LoadFailed(f"{model} failed to load: {type(error).__name__}: {error}")
