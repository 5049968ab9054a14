"""The state machine, clean and with known faults put in."""

from __future__ import annotations

import logging

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.router.residency.machine import ResidencyMachine
from tests.router.residency.memory_machine import MemoryMachine

FEW = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
MANY = settings(FEW, max_examples=5000, derandomize=False)


@pytest.fixture(autouse=True)
def _quiet():
    """Thousands of decisions are told in these runs."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.fault("F23")
def test_everything_holds_whatever_happens():
    run_state_machine_as_test(ResidencyMachine, settings=FEW)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_everything_holds_in_five_thousand_runs():
    run_state_machine_as_test(ResidencyMachine, settings=MANY)


@pytest.mark.fault("F01")
def test_memory_holds_whatever_happens():
    run_state_machine_as_test(MemoryMachine, settings=settings(FEW, max_examples=100, stateful_step_count=30))


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_memory_holds_in_five_thousand_runs():
    run_state_machine_as_test(MemoryMachine, settings=settings(MANY, stateful_step_count=30))
