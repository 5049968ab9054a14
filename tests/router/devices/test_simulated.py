"""Pretend devices: sizes, bookings, lag, and changes by hand."""

from __future__ import annotations

from typing import Any

import pytest

from router.devices.base import DeviceReading
from router.devices.host import HOST
from router.devices.simulated import SimulatedDevices, parse_sizes
from router.errors import BadRequest
from router.units import GIB, MIB, parse_size


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def devices(clock: Clock) -> SimulatedDevices:
    return SimulatedDevices([24 * GIB, 8 * GIB], clock)


async def free(devices: SimulatedDevices) -> list[int | None]:
    return [reading.free for reading in await devices.read()]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24GiB", 24 * GIB),
        ("24 gib", 24 * GIB),
        (" 1.5GiB ", 3 * GIB // 2),
        ("500MiB", 500 * MIB),
        ("1KiB", 1024),
        ("1TiB", 1 << 40),
        ("12345", 12345),
        ("7B", 7),
        ("0", 0),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "GiB", "-1GiB", "1e9", "nan", "inf", "24 bananas", "1,5GiB", "9" * 30, "2048TiB"]
)
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match=r"size|more than"):
        parse_size(text)


@pytest.mark.parametrize(("text", "unit"), [("24GB", "GiB"), ("24G", "GiB"), ("500mb", "MiB"), ("1T", "TiB")])
def test_decimal_units_are_refused_and_the_binary_one_named(text: str, unit: str) -> None:
    with pytest.raises(ValueError, match=f"use [0-9.]+{unit}"):
        parse_size(text)


def test_a_list_of_sizes() -> None:
    assert parse_sizes("24GiB,8GiB") == (24 * GIB, 8 * GIB)
    assert parse_sizes("24GiB") == (24 * GIB,)
    assert parse_sizes("1GiB, 2GiB") == (GIB, 2 * GIB)


@pytest.mark.parametrize(
    ("text", "told"), [("", "''"), ("24GiB,", "''"), ("24GiB,x", "'x'"), ("0", "0 bytes")]
)
def test_a_wrong_list_names_its_entry(text: str, told: str) -> None:
    with pytest.raises(BadRequest, match="--simulate") as caught:
        parse_sizes(text)
    assert told in caught.value.message


def test_too_many_devices() -> None:
    with pytest.raises(BadRequest, match="17 devices"):
        parse_sizes(",".join(["1GiB"] * 17))


async def test_identity_and_first_reading(devices: SimulatedDevices) -> None:
    first, second = await devices.read()
    assert (first.device.id, first.device.label, first.device.name) == ("sim0", "SIM0", "Simulated GPU 0")
    assert (second.device.id, second.device.label, second.device.kind) == ("sim1", "SIM1", "gpu")
    assert (first.total, first.free, first.started) == (24 * GIB, 24 * GIB, 100.0)
    assert (second.total, second.free) == (8 * GIB, 8 * GIB)


async def test_bookings_take_memory_on_their_device_only(devices: SimulatedDevices) -> None:
    a, b = object(), object()
    devices.allocate(a, {"sim0": GIB})
    devices.allocate(b, {"sim0": 2 * GIB, "sim1": GIB, "host": 5 * GIB})
    assert await free(devices) == [21 * GIB, 7 * GIB]
    devices.allocate(b, {"sim1": 3 * GIB})
    assert await free(devices) == [23 * GIB, 5 * GIB]
    devices.free(a)
    devices.free(a)
    devices.free(b)
    assert await free(devices) == [24 * GIB, 8 * GIB]


async def test_a_process_is_named_once_it_is_known(devices: SimulatedDevices) -> None:
    devices.allocate("a", {"sim0": GIB})
    assert (await devices.read())[0].by_pid == {}
    devices.allocate("a", {"sim0": GIB}, 42)
    devices.allocate("b", {"sim0": GIB}, 42)
    assert (await devices.read())[0].by_pid == {42: 2 * GIB}


async def test_more_than_there_is_leaves_nothing_and_never_less(devices: SimulatedDevices) -> None:
    devices.allocate("a", {"sim1": 100 * GIB})
    assert (await devices.read())[1].free == 0


async def test_other_programs_memory(devices: SimulatedDevices) -> None:
    devices.change({"device": "SIM0", "others_bytes": "3GiB"})
    assert await free(devices) == [21 * GIB, 8 * GIB]
    devices.change({"device": "sim0", "others_bytes": 0})
    devices.change({"others_bytes": GIB})
    assert await free(devices) == [23 * GIB, 7 * GIB]


async def test_a_lost_device_is_unknown_with_its_reason_and_comes_back(devices: SimulatedDevices) -> None:
    devices.allocate("a", {"sim0": GIB})
    devices.change({"device": "SIM0", "lost": True})
    lost, other = await devices.read()
    assert (lost.total, lost.free) == (None, None)
    assert lost.reason
    assert other.free == 8 * GIB
    devices.change({"device": "SIM0", "lost": False})
    assert await free(devices) == [23 * GIB, 8 * GIB]


@pytest.mark.fault("F09")
async def test_readings_lag_by_the_clock(devices: SimulatedDevices, clock: Clock) -> None:
    devices.change({"device": "SIM0", "lag_s": 2})
    devices.allocate("a", {"sim0": 4 * GIB, "sim1": GIB}, 7)
    assert await free(devices) == [24 * GIB, 7 * GIB]
    clock.now = 101.9
    assert await free(devices) == [24 * GIB, 7 * GIB]
    clock.now = 102.0
    assert await free(devices) == [20 * GIB, 7 * GIB]
    assert (await devices.read())[0].by_pid == {7: 4 * GIB}
    devices.free("a")
    assert await free(devices) == [20 * GIB, 8 * GIB]
    clock.now = 104.0
    assert await free(devices) == [24 * GIB, 8 * GIB]


async def test_ending_the_lag_shows_the_present_at_once(devices: SimulatedDevices) -> None:
    devices.change({"lag_s": 60.5})
    devices.allocate("a", {"sim0": GIB})
    assert await free(devices) == [24 * GIB, 8 * GIB]
    devices.change({"lag_s": 0})
    assert await free(devices) == [23 * GIB, 8 * GIB]


async def test_the_past_is_forgotten_but_not_too_early(devices: SimulatedDevices, clock: Clock) -> None:
    devices.change({"lag_s": 3600})
    for _ in range(20):
        devices.allocate("a", {"sim0": GIB})
        clock.now += 1000
        devices.free("a")
        clock.now += 1000
    assert await free(devices) == [23 * GIB, 8 * GIB]


def test_the_state_is_told_after_a_change(devices: SimulatedDevices) -> None:
    devices.allocate("a", {"sim1": GIB})
    state = devices.change({"device": "SIM1", "others_bytes": 5, "lag_s": 1.5, "lost": True})
    assert state["devices"][1] == {
        "device": "sim1",
        "label": "SIM1",
        "total_bytes": 8 * GIB,
        "others_bytes": 5,
        "ours_bytes": GIB,
        "lost": True,
        "lag_s": 1.5,
    }
    assert state["devices"][0]["lost"] is False


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"colour": "red"}, "colour"),
        ({"device": "SIM7"}, "device"),
        ({"device": None}, "device"),
        ({"device": ["SIM0"]}, "device"),
        ({"others_bytes": -1}, "others_bytes"),
        ({"others_bytes": True}, "others_bytes"),
        ({"others_bytes": 1.5}, "others_bytes"),
        ({"others_bytes": None}, "others_bytes"),
        ({"others_bytes": "3GB"}, "others_bytes"),
        ({"others_bytes": 1 << 60}, "others_bytes"),
        ({"lost": 1}, "lost"),
        ({"lost": None}, "lost"),
        ({"lag_s": "2"}, "lag_s"),
        ({"lag_s": -1}, "lag_s"),
        ({"lag_s": float("nan")}, "lag_s"),
        ({"lag_s": float("inf")}, "lag_s"),
        ({"lag_s": True}, "lag_s"),
    ],
)
def test_a_wrong_field_is_named_and_nothing_changes(
    devices: SimulatedDevices, change: dict[str, Any], param: str
) -> None:
    before = devices.state()
    with pytest.raises(BadRequest) as caught:
        devices.change({"others_bytes": 1, "lost": True, "lag_s": 3} | change)
    assert caught.value.param == param
    assert param in caught.value.message
    assert devices.state() == before


async def test_the_host_comes_last(clock: Clock) -> None:
    class Host:
        is_closed = False

        async def read(self) -> tuple[DeviceReading, ...]:
            return (DeviceReading(HOST, 2, 1, 0.0),)

        async def close(self) -> None:
            self.is_closed = True

    host = Host()
    devices = SimulatedDevices([GIB], clock, host)
    assert [reading.device.id for reading in await devices.read()] == ["sim0", "host"]
    await devices.close()
    assert host.is_closed
