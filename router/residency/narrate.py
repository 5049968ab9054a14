"""Decisions in plain words: each one entry in the feed and one line in the log.

Past tense for what is done, present for what goes on; who, which model, where, how much, why, in that order.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from router.devices.base import HOST_ID, DeviceReading
from router.engines.base import Exit
from router.errors import RouterError
from router.residency.desire import Desired
from router.residency.feed import Feed
from router.residency.table import Resident
from router.residency.world import Drain, Wait, Why
from router.settings.schema import UNLIMITED
from router.snapshot import PoolView, Severity
from router.units import gib

log = logging.getLogger("router.residency")

LEVELS = {Severity.INFO: logging.INFO, Severity.WARNING: logging.WARNING, Severity.ERROR: logging.ERROR}


class Narrator:
    """Writes the feed."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._labels: dict[str, str] = {}
        self._refused: dict[str, str] = {}
        self._deferred: dict[str, set[str]] = {}

    def _tell(
        self,
        code: str,
        message: str,
        *,
        severity: Severity = Severity.INFO,
        model: str | None = None,
        device: str | None = None,
        reason: str | None = None,
        log_as: str = "",
    ) -> None:
        """One entry of the feed, and one line of the log: the same sentence, or `log_as`."""
        self._feed.add(code, message, severity=severity, model=model, device=device, reason=reason)
        extra = {"event": code, "model": model, "reason": reason}
        log.log(LEVELS[severity], "%s", log_as or message, extra=extra)

    def _tell_of(
        self,
        resident: Resident,
        code: str,
        message: str,
        *,
        severity: Severity = Severity.INFO,
        reason: str | None = None,
        log_as: str = "",
    ) -> None:
        name = resident.model.name
        device = next(iter(_where_it_counts(resident.spec.booking)), None)
        self._tell(code, message, severity=severity, model=name, device=device, reason=reason, log_as=log_as)

    # Residents

    def loading(self, resident: Resident, readings: Iterable[DeviceReading]) -> None:
        self._labels.update({r.device.id: r.device.label for r in readings})
        self._refused.pop(resident.model.name, None)
        self._deferred.pop(resident.model.name, None)
        needs = sum(_where_it_counts(resident.spec.booking).values())
        self._tell_of(
            resident,
            "admit",
            f"Loading {resident.model.name}{self._on(resident)}: needs {gib(needs)}.",
        )

    def proceeding(self, resident: Resident, lacks: Mapping[str, int]) -> None:
        short = ", ".join(
            f"{gib(size)} on {self._labels.get(device, device)}" for device, size in lacks.items()
        )
        self._tell_of(
            resident,
            "proceeds_short",
            f"Loading {resident.model.name} although {short} are missing: admission=proceed.",
            severity=Severity.WARNING,
        )

    def ran_short(self, resident: Resident, error: RouterError) -> None:
        self._tell_of(
            resident,
            "out_of_memory",
            f"{resident.model.name} ran out of memory{self._on(resident)}; it is tried once more when idle "
            f"models have left. {error.message}",
            severity=Severity.WARNING,
        )

    def outgrown(self, resident: Resident, device: str, held: int, planned: int) -> None:
        where = self._labels.get(device, device)
        self._tell(
            "outgrown",
            f"{resident.model.name} holds {gib(held)} on {where}; {gib(planned)} were planned.",
            severity=Severity.WARNING,
            model=resident.model.name,
            device=device,
        )

    def ready(self, resident: Resident) -> None:
        self._feed.loaded(resident.load_s)
        self._tell_of(
            resident,
            "ready",
            f"Loaded {resident.model.name}{self._on(resident)} in {resident.load_s:.1f} s.",
        )

    def unloaded(self, resident: Resident, drain: Drain) -> None:
        size = gib(sum(_where_it_counts(resident.charged).values()))
        where = self._where(resident)
        self._tell_of(
            resident,
            "evict",
            f"Unloaded {resident.model.name}{f' from {where}' if where else ''} ({size}){_reason(drain)}.",
            reason=drain.why,
        )

    def draining(self, resident: Resident, drain: Drain) -> None:
        count = len(resident.leases)
        running = "1 request is" if count == 1 else f"{count} requests are"
        self._tell(
            "drain",
            f"{resident.model.name} takes no new request{_reason(drain)}: {running} still running.",
            model=resident.model.name,
            reason=drain.why,
        )

    def load_cancelled(self, resident: Resident, drain: Drain) -> None:
        self._tell(
            "load_cancelled",
            f"Cancelled loading {resident.model.name}{_reason(drain)}.",
            model=resident.model.name,
            reason=drain.why,
        )

    def kept_as_helper(self, resident: Resident, why: Why) -> None:
        self._tell(
            "kept_as_helper",
            f"{resident.model.name} stays loaded only for routing decisions now.",
            model=resident.model.name,
            reason=why,
        )

    def load_failed(self, model: str, error: RouterError) -> None:
        self._tell(
            "load_failed",
            error.message if error.message.startswith(model) else f"Could not load {model}: {error.message}",
            severity=Severity.ERROR,
            model=model,
            reason=error.code,
        )

    def died(self, resident: Resident, exit: Exit) -> None:
        count = len(resident.leases)
        hurt = "" if not count else f"; {count} request{'s' if count != 1 else ''} got an error"
        said = f" It said: {exit.last_words}." if exit.last_words else ""
        message = f"The worker of {resident.model.name} ended with {exit.words}{hurt}.{said}"
        # The log has the engine's own words, which people seldom need.
        last = "" if said or not exit.log_tail else f" Its last line: {exit.log_tail[-1].strip()}"
        self._tell_of(resident, "worker_died", message, severity=Severity.ERROR, log_as=message + last)

    def unreachable(self, resident: Resident) -> None:
        self._tell_of(
            resident,
            "worker_unreachable",
            f"The worker of {resident.model.name} runs but refuses connections; it is to be replaced.",
            severity=Severity.ERROR,
        )

    def stuck(self, resident: Resident) -> None:
        self._tell_of(
            resident,
            "worker_stuck",
            f"The worker of {resident.model.name} cannot be killed; its memory stays counted.",
            severity=Severity.ERROR,
        )

    # Waiters

    def refused(self, model: str, error: RouterError) -> None:
        """Told when the reason changes: a client that asks again every second is not news."""
        if self._refused.get(model) == error.code:
            return
        self._refused[model] = error.code
        self._tell(
            "refuse",
            f"Refused {model}: {error.message}",
            severity=Severity.WARNING,
            model=model,
            reason=error.code,
        )

    def blocked(self, waits: Mapping[str, Wait]) -> None:
        """Told once for what a model waits for, until it loads or nobody waits for it; a wait that ends by
        itself is no news."""
        for model in self._deferred.keys() - waits.keys():
            del self._deferred[model]
        for model, wait in waits.items():
            if wait.brief:
                continue
            told = self._deferred.setdefault(model, set())
            kind = wait.kind or wait.sentence
            if kind not in told:
                told.add(kind)
                self._tell("defer", f"{wait.sentence}.", model=model)

    # The whole

    def desired_changed(self, before: Desired, after: Desired) -> None:
        old, new = before.settings, after.settings
        if old.max_loaded_models != new.max_loaded_models:
            self._tell(
                "limit_changed",
                f"Your limit went from {_limit(old.max_loaded_models)} to {_limit(new.max_loaded_models)}.",
                reason="max_loaded_models",
            )
        if old.llm_pool_autosize != new.llm_pool_autosize:
            self._tell(
                "limit_changed",
                f"Autosize is {'on' if new.llm_pool_autosize else 'off'} now: {_room(after)}.",
                reason="llm_pool_autosize",
            )
        elif before.floor != after.floor:
            self._tell(
                "limit_changed",
                f"The policies name {after.floor} language model{'s' if after.floor != 1 else ''} now: "
                f"{_room(after)}.",
                reason="policies",
            )
        for policy, candidate in after.unresolved:
            if (policy, candidate) not in before.unresolved:
                self._tell(
                    "unresolved",
                    f"No model answers to {candidate}, a candidate of the policy {policy}.",
                    severity=Severity.WARNING,
                    model=candidate,
                    reason="unresolved",
                )
        self._warn_of_risk(pool_of(before), pool_of(after))

    def _warn_of_risk(self, before: PoolView, after: PoolView) -> None:
        """On transitions only: when the risk arises, and when its number changes."""
        if after.at_risk and not (before.at_risk and before.effective_limit == after.effective_limit):
            self._tell(
                "exceeds_limit",
                f"Up to {after.effective_limit} language models may now stay loaded; your limit says "
                f"{after.configured_limit}.",
                severity=Severity.WARNING,
                reason="at_risk",
                log_as=after.advisory,
            )

    def paused(self, paused: bool) -> None:
        self._tell("paused" if paused else "resumed", "Loading is paused." if paused else "Loading goes on.")

    def degraded(self, error: Exception) -> None:
        self._tell(
            "degraded",
            f"The router cannot decide at the moment: {type(error).__name__}: {error}",
            severity=Severity.ERROR,
        )

    def recovered(self) -> None:
        self._tell("recovered", "The router can decide again.")

    # Where

    def _where(self, resident: Resident) -> str:
        return " + ".join(self._labels.get(d, d) for d in _where_it_counts(resident.spec.booking))

    def _on(self, resident: Resident) -> str:
        where = self._where(resident)
        return f" on {where}" if where else ""


def _where_it_counts(booking: Mapping[str, int]) -> Mapping[str, int]:
    """The GPUs' part if there is one: the little that a model on a GPU keeps on the host is not told."""
    return {device: size for device, size in booking.items() if device != HOST_ID} or booking


def pool_of(desired: Desired, loaded: int = 0, loading: int = 0) -> PoolView:
    """The pool of language models, as people see it."""
    return PoolView(
        autosize=desired.settings.llm_pool_autosize,
        configured_limit=desired.settings.max_loaded_models,
        effective_limit=desired.limit("llm"),
        candidate_floor=desired.floor,
        loaded=loaded,
        loading=loading,
        auto_evict=desired.settings.auto_evict,
    )


def _room(desired: Desired) -> str:
    limit = desired.limit("llm")
    return "no limit" if limit == UNLIMITED else f"room for {limit}"


def _limit(value: int) -> str:
    return "unlimited" if value == UNLIMITED else str(value)


def _reason(drain: Drain) -> str:
    if drain.why is Why.MAKE_ROOM and drain.room_for:
        return f" to make room for {drain.room_for}"
    return _REASONS[drain.why]


_REASONS = {
    Why.COUNT_LIMIT: " to keep the limit",
    Why.MAKE_ROOM: " to make room",
    Why.UNLOADED: " on request",
    Why.IDLE: ", idle for long enough",
    Why.PRESSURE: " because memory is short",
    Why.OPTIONS: " to load it with other options",
    Why.DELETED: ", whose file is gone",
    Why.NO_MEMBERSHIP: ", which nothing needs any more",
    Why.UNREACHABLE: ", whose worker refuses connections",
    Why.SHUTDOWN: " at shutdown",
}
