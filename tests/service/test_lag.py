"""The lag probe."""

from __future__ import annotations

import logging

import pytest

from router.service.lag import LagProbe


def test_lag_is_remembered_for_a_minute_and_logged_when_it_would_be_noticed(
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level(logging.WARNING, "router.service.lag")
    probe = LagProbe()
    assert probe.worst_s == 0.0
    probe.note(-0.0005)
    probe.note(0.02)
    assert probe.worst_s == 0.02
    assert not caplog.records
    probe.note(0.12)
    assert probe.worst_s == 0.12
    assert "120 ms" in caplog.text
    for _ in range(240):
        probe.note(0.001)
    assert probe.worst_s == 0.001
