"""The state of a provider, by what happens to it."""

from __future__ import annotations

from router.errors import RouterError
from router.providers.health import BACKOFF_S, CHECK_S, FAULTS, MAX_BLOCK_S, Health, State

ERROR = RouterError("it failed", retry_after_s=5)


def test_it_is_looked_at_again_sooner_while_it_does_not_answer() -> None:
    health, now = Health(), 100.0
    assert (health.state, health.due) == (State.CHECKING, 0.0)
    assert health.looked(now)
    assert (health.state, health.due) == (State.READY, now + CHECK_S)
    pauses = []
    for _ in range(len(BACKOFF_S) + 2):
        health.failed(now, "gone")
        pauses.append(health.due - now)
        now = health.due
    assert pauses == [*BACKOFF_S, BACKOFF_S[-1], BACKOFF_S[-1]]
    assert health.is_down
    assert health.looked(now)
    assert (health.state, health.problem, health.due) == (State.READY, "", now + CHECK_S)


def test_requests_that_fail_together_count_as_one() -> None:
    health = Health()
    health.looked(0.0)
    for _ in range(50):
        health.failed(10.0, "gone")
    assert health.due == 10.0 + BACKOFF_S[0]


def test_a_wrong_key_is_no_dead_provider() -> None:
    health = Health()
    assert health.failed(0.0, "wrong key", refused=True)
    assert (health.state, health.is_down) == (State.REFUSED, False)


def test_a_list_for_everybody_says_nothing_of_a_key() -> None:
    health = Health()
    health.looked(0.0)
    assert health.key_refused("wrong key")
    assert not health.looked(1.0)
    assert (health.state, health.problem) == (State.REFUSED, "wrong key")
    assert health.answered("m")
    assert (health.state, health.problem) == (State.READY, "")


def test_a_model_that_fails_again_and_again_is_left_alone_for_longer_and_longer() -> None:
    health = Health()
    for _ in range(FAULTS - 1):
        health.fault("m", 0.0, ERROR)
        assert health.block("m", 0.0) is None
    waits = []
    now = 0.0
    for _ in range(8):
        health.fault("m", now, ERROR)
        block = health.block("m", now)
        assert block is not None
        assert not block.asked
        waits.append(block.until - now)
        now = block.until
        assert health.block("m", now) is None
    assert waits == [2, 4, 8, 16, 32, MAX_BLOCK_S, MAX_BLOCK_S, MAX_BLOCK_S]
    assert health.block("other", now) is None
    health.answered("m")
    health.fault("m", now, ERROR)
    assert health.block("m", now) is None


def test_what_a_provider_asks_for_is_granted_within_a_bound() -> None:
    health = Health()
    health.busy("m", 0.0, ERROR)
    block = health.block("m", 0.0)
    assert block is not None
    assert (block.until, block.asked) == (5.0, True)
    health.busy("m", 0.0, RouterError("", retry_after_s=9_999))
    block = health.block("m", 0.0)
    assert block is not None
    assert block.until == MAX_BLOCK_S


def test_what_is_remembered_is_bounded() -> None:
    health = Health()
    for number in range(3_000):
        health.busy(f"m{number}", 0.0, ERROR)
        health.fault(f"m{number}", 0.0, ERROR)
    assert len(health._blocks) <= 1_000
    assert len(health._faults) <= 1_000
