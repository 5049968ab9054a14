"""AMD's, Intel's and Apple's devices, from made-up trees and answers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from router.devices.amd import Amd
from router.devices.apple import UnifiedMemory
from router.devices.base import HOST_ID, DeviceReading
from router.devices.host import HostMemory
from router.devices.intel import Intel
from router.devices.machine import problems, sources
from router.devices.nvml import Nvml
from router.devices.roster import GONE_S, Roster
from router.devices.sysfs import Card, name_of
from router.units import GIB, MIB
from tests.router.devices.conftest import Host, Sysfs

AMD, INTEL = "0x1002", "0x8086"


def figures(*readings: DeviceReading) -> list[tuple[int | None, int | None, str]]:
    return [(reading.total, reading.free, reading.reason) for reading in readings]


# --- AMD ---------------------------------------------------------------------------------------------


@pytest.fixture
def amd(host: Host, sysfs: Sysfs) -> Amd:
    return Amd(host, sysfs.root)


def add_amd(sysfs: Sysfs, number: int, address: str, total: int, used: int, **more: object) -> Path:
    return sysfs.card(
        number, address, AMD, mem_info_vram_total=total, mem_info_vram_used=used, device="0x744c", **more
    )


def test_cards_are_read_in_the_order_of_their_addresses(amd: Amd, sysfs: Sysfs) -> None:
    add_amd(sysfs, 0, "0000:43:00.0", 16 * GIB, GIB, product_name="Radeon B", unique_id="ab12")
    add_amd(sysfs, 1, "0000:03:00.0", 24 * GIB, 2 * GIB, product_name="Radeon A")
    sysfs.put("class/drm/card0-DP-1/status", "connected")
    sysfs.card(2, "0000:00:02.0", INTEL)
    first, second = amd.sample(5.0)
    assert figures(first, second) == [(24 * GIB, 22 * GIB, ""), (16 * GIB, 15 * GIB, "")]
    assert [(d.id, d.name, d.label, d.uuid) for d in amd.devices] == [
        ("0000:03:00.0", "Radeon A", "ROCm0", ""),
        ("0000:43:00.0", "Radeon B", "ROCm1", "GPU-ab12"),
    ]
    assert {(d.kind, d.backend, d.unified) for d in amd.devices} == {("gpu", "rocm", False)}
    assert (first.started, second.started) == (5.0, 5.0)


def test_changes_are_seen_at_once(amd: Amd, sysfs: Sysfs) -> None:
    folder = add_amd(sysfs, 0, "0000:03:00.0", 24 * GIB, GIB)
    assert amd.sample(0)[0].free == 23 * GIB
    (folder / "mem_info_vram_used").write_text(f"{5 * GIB}\n")
    assert amd.sample(1)[0].free == 19 * GIB


@pytest.mark.fault("F19")
def test_an_apu_has_its_own_memory_and_a_part_of_the_hosts(amd: Amd, sysfs: Sysfs, host: Host) -> None:
    add_amd(
        sysfs,
        0,
        "0000:c4:00.0",
        512 * MIB,
        112 * MIB,
        mem_info_gtt_total=32 * GIB,
        mem_info_gtt_used=2 * GIB,
        in0_label="vddgfx",
        in1_label="vddnb",
    )
    (reading,) = amd.sample(0)
    assert figures(reading) == [(32 * GIB + 512 * MIB, 30 * GIB + 400 * MIB, "")]
    assert reading.device.unified
    host.free = GIB
    assert amd.sample(1)[0].free == GIB + 400 * MIB
    host.total = None
    assert amd.sample(2)[0].free == 400 * MIB


def test_a_card_of_its_own_does_not_count_the_hosts_memory(amd: Amd, sysfs: Sysfs) -> None:
    more = {"mem_info_gtt_total": 32 * GIB, "mem_info_gtt_used": 0, "in0_label": "vddgfx"}
    add_amd(sysfs, 0, "0000:03:00.0", 4 * GIB, GIB, **more)
    (reading,) = amd.sample(0)
    assert figures(reading) == [(4 * GIB, 3 * GIB, "")]
    assert not reading.device.unified


@pytest.mark.fault("F19")
@pytest.mark.parametrize(("total", "used"), [("", ""), ("[N/A]", "0"), ("0", "0"), ("5", "6"), ("5", "")])
def test_a_driver_that_tells_no_memory(amd: Amd, sysfs: Sysfs, total: str, used: str) -> None:
    sysfs.card(0, "0000:03:00.0", AMD, mem_info_vram_total=total, mem_info_vram_used=used)
    assert figures(*amd.sample(0)) == [(None, None, "its driver does not report memory")]


def test_a_card_that_is_being_pulled_is_unknown_then_gone(amd: Amd, sysfs: Sysfs) -> None:
    folder = add_amd(sysfs, 0, "0000:03:00.0", 8 * GIB, GIB)
    amd.sample(0)
    (folder / "mem_info_vram_used").unlink()
    assert figures(*amd.sample(1)) == [(None, None, "its driver does not report memory")]
    shutil.rmtree(folder)
    assert figures(*amd.sample(2)) == [(None, None, "it is no longer there")]
    assert amd.sample(1 + GONE_S) == ()
    assert amd.devices == ()


def test_a_card_that_sleeps_shows_its_last_reading(amd: Amd, sysfs: Sysfs) -> None:
    folder = add_amd(sysfs, 0, "0000:03:00.0", 8 * GIB, GIB)
    sysfs.put("class/drm/card0/device/power/runtime_status", "suspended")
    assert figures(*amd.sample(0)) == [(None, None, "it sleeps to save power")]
    sysfs.put("class/drm/card0/device/power/runtime_status", "active")
    amd.sample(1)
    sysfs.put("class/drm/card0/device/power/runtime_status", "suspended")
    (folder / "mem_info_vram_used").write_text("0\n")
    (reading,) = amd.sample(2)
    assert (reading.total, reading.free, reading.started) == (8 * GIB, 7 * GIB, 2)
    assert "sleeps" in reading.reason


# --- Intel -------------------------------------------------------------------------------------------


def test_intels_cards_are_named_and_their_memory_is_unknown(host: Host, sysfs: Sysfs) -> None:
    sysfs.card(0, "0000:03:00.0", INTEL, device="0x56a0")
    intel = Intel(host, sysfs.root)
    (reading,) = intel.sample(3.0)
    assert figures(reading) == [(None, None, "its driver does not report memory")]
    device = reading.device
    assert (device.id, device.label, device.backend, device.unified) == (
        "0000:03:00.0",
        "INTEL0",
        "vulkan",
        False,
    )
    assert device.name.startswith("Intel")
    assert intel.devices == (device,)


def test_the_gpu_inside_an_intel_processor_has_the_hosts_memory(host: Host, sysfs: Sysfs) -> None:
    sysfs.card(1, "0000:00:02.0", INTEL)
    intel = Intel(host, sysfs.root)
    (reading,) = intel.sample(0)
    assert figures(reading) == [(64 * GIB, 40 * GIB, "")]
    assert reading.device.unified
    host.total = None
    assert figures(*intel.sample(1)) == [(None, None, "its driver does not report memory")]


# --- names -------------------------------------------------------------------------------------------

IDS = """# a list
1001  Someone Else
\t744c  Wrong Card
1002  Advanced Micro Devices, Inc. [AMD/ATI]
\t1234  Plain Name
\t744c  Navi 31 [Radeon RX 7900 XT]
\t\t1002 0e3b  A Board
# a remark
\t9999  Last
1003  Next Maker
\t5555  Other
"""


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("0x744c", "AMD Radeon RX 7900 XT"),
        ("0x1234", "AMD Plain Name"),
        ("0x9999", "AMD Last"),
        ("0x5555", "AMD GPU 5555"),
        ("", "AMD GPU"),
    ],
)
def test_names_come_from_the_systems_list(sysfs: Sysfs, tmp_path: Path, device: str, name: str) -> None:
    ids = tmp_path / "pci.ids"
    ids.write_text(IDS)
    folder = sysfs.card(0, "0000:03:00.0", AMD, device=device)
    assert name_of(Card("0000:03:00.0", folder), "AMD GPU", (tmp_path / "none", ids)) == name


# --- Apple -------------------------------------------------------------------------------------------


def apple(host: Host, **values: str) -> UnifiedMemory:
    def read(name: str) -> str:
        if name.replace(".", "_") not in values:
            raise subprocess.CalledProcessError(1, "sysctl")
        return values[name.replace(".", "_")]

    return UnifiedMemory(host, read)


@pytest.mark.parametrize(
    ("memory", "limit", "total"),
    [(64, "0", 48 * GIB), (24, "0", 16 * GIB), (64, "16384", 16 * GIB), (64, "", 48 * GIB)],
)
def test_apples_processors_have_one_device(host: Host, memory: int, limit: str, total: int) -> None:
    host.total, host.free = memory * GIB, memory * GIB - MIB
    source = apple(host, machdep_cpu_brand_string="Apple M4", iogpu_wired_limit_mb=limit)
    (reading,) = source.sample(1.0)
    assert (reading.total, reading.free, reading.started) == (total, total, 1.0)
    device = reading.device
    assert (device.id, device.kind, device.backend, device.unified) == (HOST_ID, "host", "metal", True)
    assert device.name == "Apple M4, unified memory"
    assert source.devices == (device,)
    host.free = GIB
    assert source.sample(2.0)[0].free == GIB


def test_an_apple_that_tells_nothing_of_itself(host: Host) -> None:
    host.total = 64 * GIB
    (reading,) = apple(host).sample(0)
    assert (reading.device.name, reading.total) == ("Unified memory", 48 * GIB)


# --- the machine -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("system", "processor", "kinds"),
    [
        ("linux", "x86_64", [Nvml, Amd, Intel, HostMemory]),
        ("win32", "AMD64", [Nvml, HostMemory]),
        ("darwin", "arm64", [UnifiedMemory]),
        ("darwin", "x86_64", [HostMemory]),
        ("freebsd14", "amd64", [HostMemory]),
    ],
)
def test_each_system_has_its_sources_host_last(system: str, processor: str, kinds: list[type]) -> None:
    assert [type(source) for source in sources(system, processor)] == kinds


def test_problems_of_all_sources_are_collected(host: Host) -> None:
    broken = Nvml(host)
    broken.problem = "the driver is broken"
    assert problems([broken, Nvml(host), host]) == ("the driver is broken",)


# --- the roster --------------------------------------------------------------------------------------


def test_a_device_that_is_missing_for_another_reason_stays(host: Host) -> None:
    roster = Roster()
    (reading,) = host.sample(0)
    roster.complete([reading], 0)
    for now in (10.0, 1000.0):
        assert figures(*roster.complete([], now, "the driver is away")) == [
            (None, None, "the driver is away")
        ]
    assert len(roster.complete([], 1000 + GONE_S - 1)) == 1
    assert roster.complete([], 1000 + GONE_S) == ()
