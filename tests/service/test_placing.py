"""Where a model is loaded."""

from __future__ import annotations

from router.devices.base import DeviceInfo, DeviceReading
from router.service.placing import is_usable, place
from router.units import GIB

HOST = DeviceReading(DeviceInfo("host", "Host memory", "CPU", "host"), 32 * GIB, 30 * GIB, 0.0)


def card(id: str, free: int | None, backend: str = "simulated") -> DeviceReading:
    total = None if free is None else 24 * GIB
    return DeviceReading(DeviceInfo(id, id, id, "gpu", backend=backend), total, free, 0.0)


def test_the_card_with_the_most_left_counting_what_is_booked_and_not_visible_yet():
    readings = (card("a", 20 * GIB), card("b", 22 * GIB), HOST)
    assert place(readings, {}) == "b"
    assert place(readings, {"b": 10 * GIB}) == "a"


def test_without_a_card_that_can_be_used_it_is_the_host():
    assert place((HOST,), {}) == "host"
    assert place((card("lost", None), HOST), {}) == "host"
    assert place((card("real", 20 * GIB, "cuda"), HOST), {}) == "host"
    assert not is_usable(card("real", 0, "cuda").device)
    assert is_usable(HOST.device)
