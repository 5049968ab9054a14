"""The reconciler: keeps what is at what is desired, by passes that apply plans to the table.

A pass never awaits. It freezes the table, plans, books every action's effect, starts the slow parts as tasks
and publishes. A task's end is booked in the same way and followed by another pass.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from router.catalog.model import Model
from router.catalog.options import NO_OPTIONS, LoadOptions
from router.devices.base import DeviceReading
from router.engines.base import Engine
from router.errors import (
    LoadFailed,
    ModelNotFound,
    RouterError,
    ShuttingDown,
    Unavailable,
)
from router.policy.document import Policy
from router.residency.admitting import Preview
from router.residency.desire import Desired, desire
from router.residency.lives import Lives
from router.residency.pace import Pace
from router.residency.placement import Placer
from router.residency.plan import plan, preview
from router.residency.table import Lease, Resident, Waiter
from router.residency.world import (
    Action,
    BeginStandard,
    Drain,
    EndStandard,
    Evict,
    Grant,
    Load,
    Plan,
    Refuse,
    Wait,
    Wants,
    Why,
)
from router.settings.schema import Settings
from router.snapshot import ResidentState

log = logging.getLogger("router.residency")

REPLAN_FIRST_S, REPLAN_MAX_S = 0.1, 5.0

OUTGROWN = 1.1
"""A worker that is seen to hold so many times what was planned for it is worth a warning."""


class Reconciler(Lives):
    """Keeps the actual state at the desired one. Everything runs on one event loop.

    Args:
        engine: starts workers.
        placer: knows what models need, how they can be laid out, and what starts a worker with a layout.
        publish: called after every change, synchronously; it must not raise.
        wall: Unix seconds, for what people see; decisions use the loop's monotonic clock.
        planner: the plan function; tests pass broken ones to see them caught.
        want_sample: called when a decision waits for newer readings; `observe` takes them.
    """

    def __init__(
        self,
        engine: Engine,
        placer: Placer,
        settings: Settings,
        publish: Callable[[], None],
        *,
        wall: Callable[[], float] = time.time,
        planner: Callable[[Desired, Any, float], Plan] = plan,
        want_sample: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(engine, placer, settings, wall)
        self._want_sample = want_sample
        self._publish = publish
        self._planner = planner
        self._policies: tuple[Policy, ...] = ()
        self._lookup: Mapping[str, Model] = {}
        self.blocked: Mapping[str, Wait] = {}
        self.claims: Mapping[str, int] = {}
        self.degraded = ""
        self.passes = 0
        self._pace = Pace(self._loop, self._pass, publish, self._slept)
        self._replan_s = REPLAN_FIRST_S
        self._in_pass = False
        self._pass_again = False
        #: Whether the last pass knew all that there is to decide. Any kick ends that.
        self._is_settled = False
        self._sampled = True
        self._idle = asyncio.Event()

    def _slept(self, seconds: float) -> None:
        """That time is nobody's idle time, and counts against nobody's patience."""
        for resident in self.table.residents.values():
            resident.last_use += seconds
        for waiter in self.table.waiters.values():
            waiter.deadline += seconds
        self.kick()

    # What is desired

    def configure(
        self,
        *,
        settings: Settings | None = None,
        policies: Iterable[Policy] | None = None,
        lookup: Mapping[str, Model] | None = None,
    ) -> None:
        """Take new inputs, publish the new desired state in the same step, and see to it soon."""
        if policies is not None:
            self._policies = tuple(policies)
        if lookup is not None:
            self._lookup = lookup
            self.table.failures.forget_changed(lookup)
        self._desire(settings)
        self._publish()
        self._is_settled = False
        self._pace.kick_for_edit()

    def observe(self, readings: tuple[DeviceReading, ...], changed: bool = True) -> None:
        """Take new readings of the devices; publish them if they differ noticeably from those shown."""
        self.readings = readings
        self.table.observe(readings, self._loop.time())
        self._warn_of_outgrown()
        if changed:
            self._publish()
        self._sampled = True
        if self.desired.settings.auto_evict or self.table.intents or self.table.wanted_since < math.inf:
            self.kick()

    def _warn_of_outgrown(self) -> None:
        for resident in self.table.residents.values():
            for device, planned in resident.spec.booking.items():
                held = resident.charged.get(device, 0)
                if held > planned * OUTGROWN and device not in resident.outgrown:
                    resident.outgrown.add(device)
                    self._say.outgrown(resident, device, held, planned)

    def _desire(self, settings: Settings | None = None) -> None:
        before = self.desired
        self.desired = desire(
            settings or before.settings, self._policies, self._lookup, self.table.resident_types()
        )
        self._say.desired_changed(before, self.desired)

    def preview(self, model: str, options: LoadOptions) -> Preview:
        """What a request to load the model with these options would do now. Nothing is done.

        Raises:
            RouterError: the model cannot be laid out with them.
        """
        world = self.table.world(self.readings, self._placer)
        canonical = self._placer.canonical(options)
        return preview(self.desired, world, self._loop.time(), model, canonical)

    def _progressed(self) -> None:
        self._pace.publish_soon()

    # Asking

    async def acquire(
        self,
        model: str,
        *,
        wants: Wants = Wants.REQUEST,
        policy: str | None = None,
        body_bytes: int = 0,
        keep_alive_s: float | None = None,
        options: LoadOptions = NO_OPTIONS,
    ) -> Lease:
        """Wait for a lease on a model, by its own name. `options` are for a load, should it need one.

        Raises:
            RouterError: what stands in the way. If the caller is cancelled, nothing is held.
        """
        if wants is Wants.REQUEST and options == NO_OPTIONS:
            free = self.lease_at_once(model, keep_alive_s)
            if free is not None:
                return free
        bound = (
            self.desired.settings.helper_wait_s
            if wants is Wants.HELPER
            else self.desired.settings.load_queue_timeout_s
        )
        waiter = self._enqueue(
            model,
            wants,
            bound,
            options=options,
            policy=policy,
            body_bytes=body_bytes,
            keep_alive_s=keep_alive_s,
        )
        lease = await self._wait(waiter)
        if lease is None:
            raise RuntimeError(f"waiter {waiter.id} for {model} was answered without a lease")
        return lease

    def lease_at_once(self, model: str, keep_alive_s: float | None = None) -> Lease | None:
        """A lease for a request, by the model's own name, if it needs no pass and no wait; else None."""
        free = self._free_at_once(model)
        if free is None:
            return None
        self._publish()
        return self._lease(free, helper=False, keep_alive_s=keep_alive_s)

    async def load(
        self, model: str, options: LoadOptions = NO_OPTIONS, *, pinned: bool | None = None
    ) -> None:
        """Load a model, or reload it if it is loaded with other options, and wait until it is ready.

        Asking explicitly clears what earlier failures hold against the model.

        Raises:
            RouterError: what stands in the way.
        """
        options = self._placer.canonical(options)
        self.table.failures.forget(model)
        self.table.short.discard(model)
        if pinned is not None:
            self.pin(model, pinned)
        waiter = self._enqueue(model, Wants.LOAD, self.desired.settings.load_queue_timeout_s, options=options)
        await self._wait(waiter)

    def _enqueue(
        self,
        model: str,
        wants: Wants,
        bound_s: float,
        *,
        options: LoadOptions = NO_OPTIONS,
        policy: str | None = None,
        body_bytes: int = 0,
        keep_alive_s: float | None = None,
    ) -> Waiter:
        if self.table.closing:
            raise ShuttingDown("Lemon Tray is shutting down.")
        if self.degraded:
            raise _undecided(self.degraded)
        known = self.desired.models.get(model)
        if known is None and model not in self.table.resident_types():
            raise ModelNotFound(f"There is no model {model}.", param="model")
        if known is not None and known.broken:
            raise LoadFailed(
                f"{model} cannot be loaded: {known.broken}", code="model_broken", status=400, param="model"
            )
        settings = self.desired.settings
        if len(self.table.waiters) >= settings.max_queue:
            raise _queue_full(f"{settings.max_queue} requests wait already (max_queue)")
        if self.table.waiting_bytes + body_bytes > settings.max_queue_bytes:
            raise _queue_full("the waiting requests are too large together (max_queue_bytes)")
        if self.table.resumes_on_request:
            self.pause(False)
        waiter = Waiter(
            self.table.next_id(),
            model,
            wants,
            self._loop.time() + bound_s,
            self._loop.create_future(),
            options=options,
            policy=policy,
            body_bytes=body_bytes,
            keep_alive_s=keep_alive_s,
        )
        self.table.waiters[waiter.id] = waiter
        self.kick()
        return waiter

    def _free_at_once(self, model: str) -> Resident | None:
        """A resident that the next pass would certainly grant to a request that comes now, if there is one.

        The last pass left nothing to be done and nothing has changed since, nobody waits, and the model is
        ready with a slot free. Most requests find it so, and need no pass of their own.
        """
        table = self.table
        if not self._is_settled or table.waiters or table.intents or table.closing or self.degraded:
            return None
        known = self.desired.models.get(model)
        if known is None or known.broken or table.resumes_on_request:
            return None
        for resident in table.of_model(model):
            if resident.state is ResidentState.READY:
                return resident if resident.can_lease else None
        return None

    async def _wait(self, waiter: Waiter) -> Lease | None:
        try:
            return await waiter.future
        except asyncio.CancelledError:
            # The grant and the cancellation may have come in the same step: then the lease goes back.
            if waiter.future.done() and not waiter.future.cancelled() and not waiter.future.exception():
                lease = waiter.future.result()
                if lease is not None:
                    lease.release()
            if self.table.waiters.pop(waiter.id, None):
                self.kick()
            raise

    def _released(self, lease: Lease, tokens: int, seconds: float) -> None:
        resident = lease.resident
        resident.leases.discard(lease)
        self._touch(resident)
        if tokens and seconds > 0:
            resident.tokens_per_s = tokens / seconds
        if resident.id in self.table.residents and not resident.unreachable:
            resident.served += 1
            self.table.failures.answered(resident.model.name)
        if not resident.leases and not self._is_leased():
            self._idle.set()
        keep_s = self.desired.keep_s(resident.wanted_keep_alive_s)
        settled = self._is_settled and not self.table.waiters and not lease.helper
        if settled and resident.can_lease and keep_s != 0:
            # Nobody has waited for it. All that a pass has to do is to set the timer of its idle time.
            self._publish()
            self._pace.kick_lazily()
        else:
            self.kick()

    # Telling

    def pin(self, model: str, pinned: bool) -> None:
        """Protect a model from being chosen as a victim, or stop doing so. It need not be loaded."""
        if pinned:
            self.table.pinned.add(model)
        else:
            self.table.pinned.discard(model)
        self._publish()
        self.kick()

    def pause(self, paused: bool, *, until_request: bool = False) -> None:
        """Refuse, or again allow, loads that nobody asks for explicitly.

        Args:
            until_request: the next request, which is then served, ends the pause.
        """
        self.table.resumes_on_request = paused and until_request
        if self.table.paused is not paused:
            self.table.paused = paused
            self._say.paused(paused)
        self._publish()
        self.kick()

    async def free_all(self) -> None:
        """Unload everything, pinned models too, and load nothing before somebody asks for a model again.

        Answers that run may end. Returns when the processes have gone.

        Raises:
            RouterError: a process cannot be killed.
        """
        self.pause(True, until_request=True)
        await self.unload()

    async def unload(self, model: str | None = None, *, wait: bool = True, force: bool = False) -> None:
        """Send a model away, or all of them, pinned ones too. Its waiters are answered `unloaded`.

        Args:
            wait: return when the processes have gone; else at once.
            force: cut the answers that are running instead of letting them end.

        Raises:
            RouterError: a process that was waited for cannot be killed.
        """
        going = [r for r in self.table.residents.values() if model in (None, r.model.name)]
        for waiter in list(self.table.waiters.values()):
            if model in (None, waiter.model):
                self._answer(waiter, _unloaded(waiter.model))
        for resident in going:
            resident.unload = True
            if force:
                self._cut(resident, "unloaded")
        self._pass()
        if wait and going:
            await asyncio.wait([r.gone for r in going])
            stuck = dict.fromkeys(r.model.name for r in going if r.id in self.table.residents)
            if stuck:
                raise RouterError(
                    f"The worker of {', '.join(stuck)} cannot be killed; its memory stays counted.",
                    code="worker_stuck",
                )

    def _cut(self, resident: Resident, why: str) -> None:
        for lease in list(resident.leases):
            lease.end(why)
            resident.leases.discard(lease)

    # The pass

    def kick(self) -> None:
        """Ask for a pass as soon as the loop is free. Kicks coalesce."""
        self._is_settled = False
        self._pace.kick()

    def _pass(self) -> None:
        """One pass, or one more after the one that is going on."""
        if self._in_pass:
            self._pass_again = True
            return
        self._in_pass = True
        self._is_settled = True
        try:
            while True:
                self._pass_again = False
                self._one_pass()
                if not self._pass_again:
                    break
        finally:
            self._in_pass = False
        self._publish()

    def _one_pass(self) -> None:
        self.passes += 1
        now = self._loop.time()
        world = self.table.world(self.readings, self._placer)
        try:
            made = self._planner(self.desired, world, now)
        except Exception as error:
            log.exception("The plan failed on %r with %r", world, self.desired)
            self._degrade(error)
            return
        if self.degraded:
            self._say.recovered()
        self.degraded = ""
        self._replan_s = REPLAN_FIRST_S
        for resident in self.table.residents.values():
            resident.newcomer = False
        self.blocked = made.blocked
        self.claims = made.claims
        self.table.intents = made.intents
        if not made.wants_sample:
            self.table.wanted_since = math.inf
        elif self._sampled:
            # What has arrived did not do, or has been used: only one that begins from now on is newer.
            self.table.wanted_since, self._sampled = now, False
        for action in made.actions:
            try:
                self._apply(action)
            except Exception:
                # A fault in one action stays there: the others and the next pass go on.
                log.exception("Could not apply %r", action)
        # After the grants, which the counts of requests that are still running include.
        for resident in self.table.residents.values():
            self._set_drain(resident, made.draining.get(resident.id))
        self._say.blocked(made.blocked)
        self._pace.ran(made.next_deadline)
        if made.wants_sample:
            self._want_sample()

    def _degrade(self, error: Exception) -> None:
        if not self.degraded:
            self._say.degraded(error)
        self.degraded = f"{type(error).__name__}: {error}"
        for waiter in list(self.table.waiters.values()):
            if waiter.boarded == 0:
                self._answer(waiter, _undecided(self.degraded))
        self._pace.ran(self._loop.time() + self._replan_s)
        self._replan_s = min(self._replan_s * 2, REPLAN_MAX_S)

    def _set_drain(self, resident: Resident, drain: Drain | None) -> None:
        if drain is not None and resident.drain is None:
            self._say.draining(resident, drain)
        resident.drain = drain

    # Actions

    def _apply(self, action: Action) -> None:
        match action:
            case Grant():
                self._grant(self.table.waiters[action.waiter], self.table.residents[action.resident])
            case Refuse():
                waiter = self.table.waiters[action.waiter]
                self._say.refused(waiter.model, action.error)
                self._answer(waiter, action.error)
            case Load():
                self._begin(action)
            case Evict():
                self._evict(self.table.residents[action.resident], Drain(action.why, action.room_for))
            case BeginStandard():
                self.table.residents[action.resident].standard = True
            case EndStandard():
                resident = self.table.residents[action.resident]
                resident.standard = False
                self._say.kept_as_helper(resident, action.why)

    def _grant(self, waiter: Waiter, resident: Resident) -> None:
        self.table.waiters.pop(waiter.id, None)
        if waiter.future.done():
            return
        if waiter.wants is not Wants.HELPER:
            resident.standard = True
        if waiter.wants is Wants.LOAD:
            waiter.future.set_result(None)
            return
        helper = waiter.wants is Wants.HELPER
        waiter.future.set_result(self._lease(resident, helper=helper, keep_alive_s=waiter.keep_alive_s))

    def _lease(self, resident: Resident, *, helper: bool, keep_alive_s: float | None) -> Lease:
        lease = Lease(resident, helper, self._loop.create_future(), self._released, self._condemned)
        resident.leases.add(lease)
        self._touch(resident)
        if keep_alive_s is not None:
            resident.keep_alive_s = keep_alive_s
        return lease

    # The end

    async def shutdown(self, grace_s: float = 5.0) -> None:
        """Refuse who waits, cancel loads, give answers `grace_s` to end, then cut them; stop every worker.

        Returns when no task and no worker is left, or only workers that cannot be killed.
        """
        self.table.closing = True
        self._pass()
        for resident in list(self.table.residents.values()):
            if resident.state is ResidentState.LOADING:
                self._evict(resident, Drain(Why.SHUTDOWN))
        await self._until_released(grace_s)
        for resident in list(self.table.residents.values()):
            self._cut(resident, "shutting_down")
            if resident.state is ResidentState.READY:
                self._evict(resident, Drain(Why.SHUTDOWN))
        running = self._tasks.running
        while running and not all(r.stuck for r in self.table.residents.values()):
            await asyncio.wait(running, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
        await self._tasks.cancel(timeout_s=1.0)
        self._pace.stop()

    def _is_leased(self) -> bool:
        return any(r.leases for r in self.table.residents.values())

    async def _until_released(self, bound_s: float) -> None:
        """Until no lease is held, but no longer than `bound_s`."""
        if not self._is_leased():
            return
        self._idle.clear()
        try:
            async with asyncio.timeout(bound_s):
                await self._idle.wait()
        except TimeoutError:
            log.info("Some answers did not end within the grace and are ended now.")


def _undecided(cause: str) -> RouterError:
    return Unavailable(f"The router cannot decide at the moment ({cause}).", code="degraded", retry_after_s=5)


def _queue_full(why: str) -> RouterError:
    return Unavailable(f"The queue is full: {why}.", code="queue_full", retry_after_s=10)


def _unloaded(model: str) -> RouterError:
    return Unavailable(
        f"{model} was unloaded while this request waited for it.", code="unloaded", retry_after_s=1
    )
