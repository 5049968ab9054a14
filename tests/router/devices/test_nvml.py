"""NVIDIA GPUs, read by the real binding from a pretended driver, and from a real one where there is one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pynvml
import pytest

from router.devices import nvml
from router.devices.base import DeviceReading
from router.devices.nvml import Nvml, explain
from router.devices.roster import GONE_S
from router.devices.sysfs import has_maker
from router.units import GIB
from tests.router.devices.conftest import Host, Sysfs
from tests.support.fake_nvml import FakeNvml

SMALL, LARGE = "GPU-aaaa-0001", "GPU-bbbb-0002"
ROOT = Path(__file__).resolve().parents[3]


class Clock:
    """Samples a source at later and later times, so far apart that nothing is put off."""

    def __init__(self, source: Nvml) -> None:
        self.source = source
        self.now = 100.0

    def read(self, later_s: float = 10.0) -> dict[str, DeviceReading]:
        """Readings by id."""
        self.now += later_s
        readings = self.source.sample(self.now)
        assert all(reading.started == self.now for reading in readings)
        assert tuple(reading.device.id for reading in readings) == tuple({r.device.id: 0 for r in readings})
        return {reading.device.id: reading for reading in readings}


@pytest.fixture
def gpus(fake: FakeNvml, host: Host, sysfs: Sysfs) -> Clock:
    """Two unlike cards. The library counts them in the other order than their addresses."""
    fake.card(0, name="Large Card", uuid=LARGE, bus="00000000:81:00.0", total=48 * GIB, free=40 * GIB)
    fake.card(1, name="Small Card", uuid=SMALL, bus="00000000:21:00.0", total=8 * GIB, free=7 * GIB)
    return Clock(Nvml(host, sysfs.root, sysfs.proc))


def known(reading: DeviceReading) -> tuple[int | None, int | None, str]:
    return reading.total, reading.free, reading.reason


# --- identity and figures ----------------------------------------------------------------------------


@pytest.mark.parametrize("fake", ["today", "old"], indirect=True)
def test_identity_is_by_uuid_and_labels_follow_the_bus(fake: FakeNvml, gpus: Clock) -> None:
    readings = gpus.read()
    assert list(readings) == [SMALL, LARGE]
    small, large = (reading.device for reading in readings.values())
    assert (small.name, small.label, small.pci) == ("Small Card", "CUDA0", "0000:21:00.0")
    assert (large.name, large.label, large.pci) == ("Large Card", "CUDA1", "0000:81:00.0")
    assert {(d.kind, d.backend, d.unified) for d in (small, large)} == {("gpu", "cuda", False)}
    assert (small.uuid, large.uuid) == (SMALL, LARGE)
    assert gpus.source.devices == (small, large)
    assert known(readings[SMALL]) == (8 * GIB, 7 * GIB, "")
    assert known(readings[LARGE]) == (48 * GIB, 40 * GIB, "")
    assert gpus.source.problem == ""


@pytest.mark.parametrize("fake", ["today", "old"], indirect=True)
def test_bytes_are_told_of_the_right_card_when_the_orders_differ(fake: FakeNvml, gpus: Clock) -> None:
    fake.card(1, free=2 * GIB)
    fake.use(f"1 4711 {5 * GIB}", f"0 4712 {3 * GIB}")
    readings = gpus.read()
    assert readings[SMALL].by_pid == {4711: 5 * GIB}
    assert readings[SMALL].device.label == "CUDA0"
    assert readings[LARGE].by_pid == {4712: 3 * GIB}
    assert readings[SMALL].free == 2 * GIB
    assert readings[LARGE].free == 40 * GIB


def test_addresses_are_ordered_by_domain_first(fake: FakeNvml, gpus: Clock) -> None:
    fake.card(2, name="Far", uuid="GPU-cccc", bus="00010000:01:00.0", total=GIB, free=GIB)
    fake.card(3, name="Near", uuid="GPU-dddd", bus="00000000:0A:00.0", total=GIB, free=GIB)
    readings = gpus.read().values()
    assert [(r.device.label, r.device.pci) for r in readings] == [
        ("CUDA0", "0000:0a:00.0"),
        ("CUDA1", "0000:21:00.0"),
        ("CUDA2", "0000:81:00.0"),
        ("CUDA3", "10000:01:00.0"),
    ]


def test_other_programs_are_seen_at_once(fake: FakeNvml, gpus: Clock) -> None:
    assert gpus.read()[SMALL].free == 7 * GIB
    fake.card(1, free=GIB)
    assert gpus.read(0.25)[SMALL].free == GIB


def test_a_driver_that_lags_is_read_as_it_answers(fake: FakeNvml, gpus: Clock) -> None:
    fake.card(1, lag=2)
    assert gpus.read()[SMALL].free == 7 * GIB
    fake.card(1, free=GIB)
    assert [gpus.read()[SMALL].free for _ in range(3)] == [7 * GIB, 7 * GIB, GIB]


@pytest.mark.parametrize("code", [3, 13, 25])
def test_the_older_memory_call_is_used_where_the_newer_is_refused(
    fake: FakeNvml, gpus: Clock, code: int
) -> None:
    fake.card(1, mem2=code)
    assert known(gpus.read()[SMALL]) == (8 * GIB, 7 * GIB, "")


# --- processes ---------------------------------------------------------------------------------------


def test_a_process_that_appears_late(fake: FakeNvml, gpus: Clock) -> None:
    fake.card(1, free=3 * GIB)
    reading = gpus.read()[SMALL]
    assert (reading.free, reading.by_pid) == (3 * GIB, {})
    fake.use(f"1 4711 {4 * GIB}")
    assert gpus.read()[SMALL].by_pid == {4711: 4 * GIB}


def test_a_process_whose_memory_is_not_told_is_left_out(fake: FakeNvml, gpus: Clock) -> None:
    fake.use("1 4711 na", f"1 4712 {GIB}", f"1 4713 {9000 * GIB}")
    reading = gpus.read()[SMALL]
    assert reading.by_pid == {4712: GIB}
    assert reading.reason == ""


@pytest.mark.parametrize("code", [3, 4, 13])
def test_a_driver_that_tells_of_no_process(fake: FakeNvml, gpus: Clock, code: int) -> None:
    fake.card(1, procs=code)
    fake.use(f"1 4711 {GIB}")
    reading = gpus.read()[SMALL]
    assert (reading.free, dict(reading.by_pid), reading.reason) == (7 * GIB, {}, "")


def test_a_process_in_both_lists_counts_once(fake: FakeNvml, gpus: Clock) -> None:
    fake.use(f"1 7 {GIB}", f"1 7 {2 * GIB} graphics", f"1 8 {GIB} graphics")
    assert gpus.read()[SMALL].by_pid == {7: 2 * GIB, 8: GIB}


def test_processes_are_asked_before_memory(
    fake: FakeNvml, gpus: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else bytes that arrive in between would count neither as used nor as arrived."""
    asked: list[str] = []

    def note(name: str) -> Any:
        call = getattr(pynvml, name)

        def noted(*arguments: object) -> Any:
            asked.append(name)
            return call(*arguments)

        return noted

    for name in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetMemoryInfo"):
        monkeypatch.setattr(pynvml, name, note(name))
    gpus.read()
    assert asked == ["nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetMemoryInfo"] * 2


# --- faults of one card ------------------------------------------------------------------------------


@pytest.mark.fault("F19")
@pytest.mark.parametrize("code", [1, 2, 4, 9, 10, 15, 16, 17, 18, 20, 29, 777, 999])
def test_a_card_that_cannot_be_read_is_unknown_and_the_other_goes_on(
    fake: FakeNvml, gpus: Clock, code: int
) -> None:
    gpus.read()
    fake.card(1, mem=code, mem2=code)
    readings = gpus.read()
    assert known(readings[SMALL]) == (None, None, explain(code))
    assert f"(NVML error {code})" in readings[SMALL].reason
    assert known(readings[LARGE]) == (48 * GIB, 40 * GIB, "")
    assert gpus.source.problem == ""
    fake.card(1, mem=0, mem2=0)
    assert known(gpus.read()[SMALL]) == (8 * GIB, 7 * GIB, "")


@pytest.mark.parametrize("field", ["handle", "info", "mem2"])
def test_a_lost_card_keeps_its_identity_whatever_the_driver_still_tells(
    fake: FakeNvml, gpus: Clock, field: str
) -> None:
    before = gpus.read()[SMALL].device
    fake.card(1, **{"mem": 15, "mem2": 15, field: 15})
    readings = gpus.read()
    assert list(readings) == [SMALL, LARGE]
    assert readings[SMALL].device.name == before.name
    assert readings[SMALL].total is None
    assert "stopped responding" in readings[SMALL].reason
    assert readings[LARGE].free == 40 * GIB


def test_a_card_that_was_lost_before_the_start_is_shown(fake: FakeNvml, gpus: Clock) -> None:
    fake.card(1, handle=15)
    readings = gpus.read()
    assert list(readings) == [LARGE, "nvidia-1"]
    assert known(readings["nvidia-1"]) == (None, None, explain(15))
    fake.card(1, handle=0)
    assert list(gpus.read()) == [SMALL, LARGE]


def test_a_card_that_tells_nothing_but_its_memory(fake: FakeNvml, gpus: Clock) -> None:
    fake.card(1, info=3)
    readings = gpus.read()
    assert list(readings) == [LARGE, "nvidia-1"]
    assert readings["nvidia-1"].total is None


@pytest.mark.fault("F19")
def test_memory_that_the_driver_does_not_support_is_the_hosts(
    fake: FakeNvml, gpus: Clock, host: Host
) -> None:
    fake.card(1, mem=3, mem2=3)
    fake.use(f"1 7 {GIB}")
    readings = gpus.read()
    assert known(readings[SMALL]) == (64 * GIB, 40 * GIB, "")
    assert readings[SMALL].device.unified
    assert readings[SMALL].by_pid == {7: GIB}
    assert not readings[LARGE].device.unified
    host.total = None
    reading = gpus.read()[SMALL]
    assert known(reading) == (None, None, explain(3))


@pytest.mark.fault("F19")
@pytest.mark.parametrize(("total", "free"), [(0, 0), (8, 9), (0, 5)])
def test_figures_that_cannot_be_are_no_figures(fake: FakeNvml, gpus: Clock, total: int, free: int) -> None:
    fake.card(1, total=total, free=free)
    reading = gpus.read()[SMALL]
    assert reading.total is None
    assert "cannot be" in reading.reason


def test_an_error_opens_the_library_anew_but_not_again_and_again(fake: FakeNvml, gpus: Clock) -> None:
    gpus.read()
    fake.card(1, mem=999, mem2=999)
    fake.take_touched()
    gpus.read()
    assert fake.take_touched().count("open") == 0
    gpus.read(0.25)
    assert fake.take_touched().count("open") == 1
    for _ in range(8):
        gpus.read(0.25)
    assert fake.take_touched().count("open") == 0
    gpus.read()
    assert fake.take_touched().count("open") == 1


def test_answers_that_will_stay_do_not_open_the_library_anew(fake: FakeNvml, gpus: Clock) -> None:
    fake.card(1, procs=3, mem2=25)
    gpus.read()
    gpus.read()
    gpus.read()
    assert fake.take_touched().count("open") == 1


def test_a_card_that_was_pulled_is_told_and_then_forgotten(fake: FakeNvml, gpus: Clock) -> None:
    gpus.read()
    fake.pull(1)
    readings = gpus.read()
    assert list(readings) == [SMALL, LARGE]
    assert known(readings[SMALL]) == (None, None, "it is no longer there")
    assert readings[LARGE].device.label == "CUDA0"
    assert list(gpus.read(GONE_S - 30)) == [SMALL, LARGE]
    assert list(gpus.read(30)) == [LARGE]
    assert [device.id for device in gpus.source.devices] == [LARGE]
    fake.card(1, name="Small Card", uuid=SMALL, bus="00000000:21:00.0", total=8 * GIB, free=8 * GIB)
    assert gpus.read()[SMALL].free == 8 * GIB


def test_a_card_that_is_plugged_in_opens_the_library_anew(fake: FakeNvml, gpus: Clock, sysfs: Sysfs) -> None:
    sysfs.nvidia("0000:21:00.0")
    gpus.read()
    fake.take_touched()
    sysfs.nvidia("0000:81:00.0")
    gpus.read(0.25)
    assert "open" in fake.take_touched()


# --- faults of the driver ----------------------------------------------------------------------------


@pytest.mark.parametrize("code", [4, 9, 13, 18, 999])
def test_a_driver_problem_is_told_once_for_a_banner_and_mends(
    fake: FakeNvml, gpus: Clock, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    fake.fail(code)
    assert gpus.read() == {}
    assert gpus.read() == {}
    assert gpus.source.problem == explain(code)
    assert len(caplog.records) == 1
    fake.fail(0)
    assert list(gpus.read()) == [SMALL, LARGE]
    assert gpus.source.problem == ""


@pytest.mark.parametrize("code", [9, 18, 999])
def test_a_driver_that_fails_while_running_makes_its_cards_unknown(
    fake: FakeNvml, gpus: Clock, code: int
) -> None:
    before = gpus.read()
    fake.fail(code)
    for later_s in (0.25, 0.25, 500, 0.25):
        readings = gpus.read(later_s)
        assert list(readings) == [SMALL, LARGE]
        assert {known(reading) for reading in readings.values()} == {(None, None, explain(code))}
    fake.fail(0)
    after = gpus.read()
    assert [r.device for r in after.values()] == [r.device for r in before.values()]
    assert after[SMALL].free == 7 * GIB


def test_a_driver_without_any_card_on_the_bus_is_no_problem(
    fake: FakeNvml, gpus: Clock, sysfs: Sysfs
) -> None:
    sysfs.put("bus/pci/devices/0000:00:02.0/vendor", "0x8086")
    fake.fail(9)
    assert gpus.read() == {}
    assert gpus.source.problem == ""
    sysfs.put("bus/pci/devices/0000:01:00.0/vendor", "0x10de")
    gpus.read()
    assert gpus.source.problem == explain(9)


def test_without_the_library_there_is_nothing_to_say(
    sysfs: Sysfs, host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml, "LIBRARY", str(tmp_path / "libnvidia-ml.so.1"))
    sysfs.nvidia("0000:01:00.0")
    source = Nvml(host, sysfs.root, sysfs.proc)
    assert source.sample(0) == source.sample(10) == ()
    assert (source.problem, source.devices) == ("", ())


def test_every_code_has_words_and_its_number() -> None:
    for code in (*range(1, 31), 999, 12345):
        words = explain(code)
        assert words.endswith(f"(NVML error {code})")
        assert words[0].islower() or words.startswith("NVIDIA")


# --- MIG ---------------------------------------------------------------------------------------------


@pytest.mark.fault("F19")
def test_mig_instances_are_devices_in_place_of_their_card(fake: FakeNvml, gpus: Clock) -> None:
    fake.card(0, mig=1, mem=3, mem2=3)
    fake.part(0, 0, name="Large MIG 3g", uuid="MIG-one", total=20 * GIB, free=19 * GIB)
    fake.part(0, 3, name="Large MIG 1g", uuid="MIG-two", total=10 * GIB, free=2 * GIB)
    fake.use(f"0.3 7 {8 * GIB}")
    readings = gpus.read()
    assert list(readings) == [SMALL, "MIG-one", "MIG-two"]
    one, two = readings["MIG-one"], readings["MIG-two"]
    assert known(one) == (20 * GIB, 19 * GIB, "")
    assert known(two) == (10 * GIB, 2 * GIB, "")
    assert (one.by_pid, two.by_pid) == ({}, {7: 8 * GIB})
    assert (one.device.label, two.device.label) == ("CUDA1:0", "CUDA1:3")
    assert (two.device.uuid, two.device.pci, two.device.name) == ("MIG-two", "0000:81:00.0", "Large MIG 1g")


def test_a_card_with_mig_and_no_instance_is_unknown(fake: FakeNvml, gpus: Clock) -> None:
    fake.card(0, mig=1)
    reading = gpus.read()[LARGE]
    assert reading.total is None
    assert "no instance" in reading.reason


def test_switching_mig_on_while_running(fake: FakeNvml, gpus: Clock) -> None:
    gpus.read()
    fake.part(0, 0, name="Part", uuid="MIG-one", total=20 * GIB, free=19 * GIB)
    fake.card(0, mig=1)
    readings = gpus.read()
    assert set(readings) == {SMALL, LARGE, "MIG-one"}
    assert readings[LARGE].reason == "it is no longer there"
    assert set(gpus.read(GONE_S)) == {SMALL, "MIG-one"}


# --- sleep -------------------------------------------------------------------------------------------


@pytest.fixture
def laptop(gpus: Clock, sysfs: Sysfs) -> Clock:
    sysfs.nvidia("0000:21:00.0")
    sysfs.nvidia("0000:81:00.0")
    return gpus


@pytest.mark.parametrize("status", ["suspended", "suspending"])
def test_a_card_that_sleeps_is_not_woken_and_shows_its_last_reading(
    fake: FakeNvml, laptop: Clock, sysfs: Sysfs, status: str
) -> None:
    fake.use(f"0 7 {GIB}")
    laptop.read()
    fake.take_touched()
    sysfs.nvidia("0000:81:00.0", status)
    fake.card(1, free=GIB)
    readings = laptop.read()
    assert "00000000:81:00.0" not in fake.take_touched()
    assert list(readings) == [SMALL, LARGE]
    assert [r.device.label for r in readings.values()] == ["CUDA0", "CUDA1"]
    assert readings[SMALL].free == GIB
    assert (readings[LARGE].total, readings[LARGE].free) == (48 * GIB, 40 * GIB)
    assert "sleeps" in readings[LARGE].reason
    assert readings[LARGE].by_pid == {}
    sysfs.nvidia("0000:81:00.0")
    assert laptop.read()[LARGE].reason == ""


def test_a_card_that_failed_before_it_slept_shows_its_last_figures(
    fake: FakeNvml, laptop: Clock, sysfs: Sysfs
) -> None:
    laptop.read()
    fake.card(0, mem=10, mem2=10)
    assert laptop.read()[LARGE].free is None
    sysfs.nvidia("0000:81:00.0", "suspended")
    assert laptop.read()[LARGE].free == 40 * GIB


def test_when_all_cards_sleep_the_library_is_left_alone(fake: FakeNvml, laptop: Clock, sysfs: Sysfs) -> None:
    laptop.read()
    sysfs.nvidia("0000:21:00.0", "suspended")
    sysfs.nvidia("0000:81:00.0", "suspended")
    fake.take_touched()
    laptop.read()
    assert fake.take_touched() == ["close"]
    fake.fail(999)
    readings = laptop.read()
    assert fake.take_touched() == []
    assert [reading.free for reading in readings.values()] == [7 * GIB, 40 * GIB]
    fake.fail(0)
    sysfs.nvidia("0000:21:00.0")
    assert laptop.read(0.25)[SMALL].reason == ""


def test_a_card_that_slept_before_the_start_is_unknown_until_it_wakes(
    fake: FakeNvml, laptop: Clock, sysfs: Sysfs
) -> None:
    sysfs.nvidia("0000:81:00.0", "suspended")
    readings = laptop.read()
    assert list(readings) == [SMALL, "0000:81:00.0"]
    reading = readings["0000:81:00.0"]
    assert (reading.device.name, reading.device.label) == ("NVIDIA GPU", "CUDA1")
    assert known(reading) == (None, None, "it sleeps to save power")
    sysfs.nvidia("0000:81:00.0")
    assert list(laptop.read()) == [SMALL, LARGE]


def test_the_drivers_own_text_names_a_card_that_sleeps(laptop: Clock, sysfs: Sysfs) -> None:
    sysfs.nvidia("0000:81:00.0", "suspended")
    told = sysfs.proc / "driver" / "nvidia" / "gpus" / "0000:81:00.0" / "information"
    told.parent.mkdir(parents=True)
    told.write_text("Model: \t\t Large Card\nIRQ:   \t\t 5\nGPU UUID: \t GPU-????????-????\n")
    assert laptop.read()["0000:81:00.0"].device.name == "Large Card"
    told.write_text(f"Model: \t\t Large Card\nGPU UUID: \t {LARGE}\n")
    assert list(laptop.read()) == [SMALL, LARGE]


def test_cards_that_only_the_kernel_sees_are_another_containers(laptop: Clock, sysfs: Sysfs) -> None:
    sysfs.nvidia("0000:a1:00.0")
    sysfs.nvidia("0000:81:00.0", "suspended")
    assert list(laptop.read()) == [SMALL, "0000:81:00.0"]


# --- the pretended library itself --------------------------------------------------------------------


def test_no_call_sees_a_state_that_is_half_written(fake: FakeNvml, gpus: Clock) -> None:
    gpus.read()
    is_done = threading.Event()
    seen: list[DeviceReading] = []

    def keep_reading() -> None:
        while not is_done.is_set():
            seen.extend(gpus.source.sample(200.0))

    reader = threading.Thread(target=keep_reading)
    reader.start()
    for number in range(300):
        fake.card(1, free=number)
    is_done.set()
    reader.join()
    assert seen
    assert {reading.reason for reading in seen} == {""}


def test_a_state_that_is_half_written_would_be_seen(fake: FakeNvml, gpus: Clock) -> None:
    gpus.read()
    fake.state.write_text(fake.state.read_text().removesuffix("end\n"))
    assert {reading.reason for reading in gpus.read().values()} == {explain(888)}


CHILD = """
import asyncio, json, sys
from router.devices import machine
from router.devices.sampler import Sampler

async def main():
    sources = machine.sources()
    before = "pynvml" in sys.modules
    sampler = Sampler(sources)
    readings = await sampler.read()
    await sampler.close()
    told = [(r.device.id, r.device.label, r.total, r.free, dict(r.by_pid)) for r in readings]
    print(json.dumps([told, before, "pynvml" in sys.modules, machine.problems(sources)]))

asyncio.run(main())
"""


def in_child(environment: dict[str, str]) -> list[object]:
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert isinstance(answer, list)
    return answer


@pytest.mark.skipif(sys.platform != "linux", reason="pretends the library of Linux")
def test_the_whole_in_a_process_that_finds_the_library_by_itself(fake: FakeNvml, gpus: Clock) -> None:
    fake.use(f"1 4711 {GIB}")
    told, before, after, problems = in_child({"LD_LIBRARY_PATH": str(Path(nvml.LIBRARY).parent)})
    assert isinstance(told, list)
    assert told[:2] == [
        [SMALL, "CUDA0", 8 * GIB, 7 * GIB, {"4711": GIB}],
        [LARGE, "CUDA1", 48 * GIB, 40 * GIB, {}],
    ]
    assert told[-1][0] == "host"
    assert (before, after, problems) == (False, True, [])
    fake.fail(18)
    told, _, _, problems = in_child({"LD_LIBRARY_PATH": str(Path(nvml.LIBRARY).parent)})
    assert told[-1][0] == "host"
    # Without a card on the bus, a driver that does not work is no news.
    assert problems == ([explain(18)] if has_maker(nvml.NVIDIA) else [])


@pytest.mark.skipif(sys.platform != "linux", reason="only there the binding is imported late")
def test_a_machine_without_the_library_does_not_import_the_binding() -> None:
    if nvml._loads("libnvidia-ml.so.1"):
        pytest.skip("this machine has an NVIDIA driver")
    told, before, after, problems = in_child({})
    assert isinstance(told, list)
    assert told[-1][0] == "host"
    assert (before, after, problems) == (False, False, [])


# --- a real card -------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_a_real_card() -> None:
    if not nvml._loads("libnvidia-ml.so.1"):
        pytest.skip("this machine has no NVIDIA driver")
    source = Nvml()
    readings = source.sample(1.0)
    if not readings:
        pytest.skip(f"this machine has no NVIDIA GPU that can be read: {source.problem or 'none is listed'}")
    for reading in readings:
        assert reading.device.id.startswith(("GPU-", "MIG-"))
        assert reading.device.label.startswith("CUDA")
        assert reading.total is not None, reading.reason
        assert reading.free is not None
        assert 0 < reading.free <= reading.total
    assert [r.device for r in source.sample(2.0)] == [r.device for r in readings]
