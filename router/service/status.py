"""The state of the whole in one word, from everything that a snapshot shows."""

from __future__ import annotations

from router.snapshot import ResidentState, Severity, Snapshot, Status


def status_of(snapshot: Snapshot) -> Status:
    """The state of the whole: error before warning before loading before ready."""
    if snapshot.degraded or any(r.stuck for r in snapshot.residents):
        return Status.ERROR
    if (
        snapshot.pool.at_risk
        or snapshot.problems
        or any(p.enabled and p.unresolved for p in snapshot.policies)
        or last_failures(snapshot)
    ):
        return Status.WARNING
    if any(r.state is ResidentState.LOADING for r in snapshot.residents):
        return Status.LOADING
    return Status.READY


def last_failures(snapshot: Snapshot) -> tuple[str, ...]:
    """A sentence for each model of which the last thing that happened was a failure."""
    last = {e.model: e for e in snapshot.feed if e.code in ("load_failed", "worker_died", "ready", "admit")}
    return tuple(entry.message for entry in last.values() if entry.severity is Severity.ERROR)
