"""The state of the whole in one word, from everything that a snapshot shows."""

from __future__ import annotations

from router.snapshot import ResidentState, Snapshot, Status


def status_of(snapshot: Snapshot) -> Status:
    """The state of the whole: error before warning before loading before ready."""
    if snapshot.degraded or any(r.stuck for r in snapshot.residents):
        return Status.ERROR
    if (
        snapshot.pool.at_risk
        or snapshot.problems
        or any(p.enabled and p.unresolved for p in snapshot.policies)
        or snapshot.failures
    ):
        return Status.WARNING
    if any(r.state is ResidentState.LOADING for r in snapshot.residents):
        return Status.LOADING
    return Status.READY
