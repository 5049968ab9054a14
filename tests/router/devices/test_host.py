"""Host memory, within the limits of control groups of both versions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from router.devices.host import HostMemory
from router.units import GIB, MIB

MEMINFO = f"""MemTotal: {16 * GIB >> 10} kB
MemFree:  1 kB
MemAvailable:   {10 * GIB >> 10} kB
HugePages_Total:  0
"""


class Machine:
    """A pretend /proc and /sys/fs/cgroup."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.cgroups = folder / "proc", folder / "cgroup"
        self.put(self.proc / "meminfo", MEMINFO)

    def put(self, path: Path, text: object) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    def member(self, text: str) -> None:
        self.put(self.proc / "self" / "cgroup", text)

    def v2(self, group: str, limit: object, used: int, inactive: int = 0) -> None:
        folder = self.cgroups / group
        self.put(folder / "memory.max", limit)
        self.put(folder / "memory.current", used)
        self.put(folder / "memory.stat", f"anon 5\ninactive_file {inactive}\nactive_file 7")

    def v1(self, group: str, limit: int, used: int, inactive: int = 0) -> None:
        folder = self.cgroups / "memory" / group
        self.put(folder / "memory.limit_in_bytes", limit)
        self.put(folder / "memory.usage_in_bytes", used)
        self.put(folder / "memory.stat", f"inactive_file 1\ntotal_inactive_file {inactive}")

    def read(self) -> tuple[int | None, int | None]:
        (reading,) = HostMemory(self.proc, self.cgroups).sample(3.0)
        assert (reading.device.id, reading.device.label, reading.started) == ("host", "CPU", 3.0)
        return reading.total, reading.free


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_without_control_groups(machine: Machine) -> None:
    assert machine.read() == (16 * GIB, 10 * GIB)


def test_without_limits(machine: Machine) -> None:
    machine.member("0::/user.slice")
    machine.v2("user.slice", "max", GIB)
    assert machine.read() == (16 * GIB, 10 * GIB)


def test_a_limit_of_version_2(machine: Machine) -> None:
    machine.member("0::/app")
    machine.v2("app", 4 * GIB, 3 * GIB, GIB)
    assert machine.read() == (4 * GIB, 2 * GIB)


def test_the_tightest_of_nested_limits_binds(machine: Machine) -> None:
    machine.member("0::/outer/inner")
    machine.v2("outer/inner", 8 * GIB, GIB)
    machine.v2("outer", 4 * GIB, 4 * GIB - 5 * MIB)
    assert machine.read() == (4 * GIB, 5 * MIB)


def test_the_machine_may_be_tighter_than_the_group(machine: Machine) -> None:
    machine.member("0::/app")
    machine.v2("app", 15 * GIB, 0)
    assert machine.read() == (15 * GIB, 10 * GIB)


def test_use_beyond_the_limit_leaves_nothing(machine: Machine) -> None:
    machine.member("0::/app")
    machine.v2("app", GIB, 2 * GIB)
    assert machine.read() == (GIB, 0)


def test_in_a_container_the_root_of_its_own_view_counts(machine: Machine) -> None:
    machine.member("0::/../../system.slice/docker-1.scope")
    machine.v2("", 2 * GIB, GIB)
    assert machine.read() == (2 * GIB, GIB)


def test_a_limit_of_version_1_with_nesting(machine: Machine) -> None:
    machine.member("4:cpu,memory:/a/b\n1:name=systemd:/\n2:cpuset:/a")
    machine.v1("a/b", 9223372036854771712, GIB)
    machine.v1("a", 3 * GIB, 2 * GIB, GIB)
    assert machine.read() == (3 * GIB, 2 * GIB)


def test_both_versions_side_by_side(machine: Machine) -> None:
    machine.member("4:memory:/a\n0::/b")
    machine.v1("a", 3 * GIB, GIB)
    machine.v2("unified/b", 2 * GIB, GIB)
    assert machine.read() == (2 * GIB, GIB)


def test_meminfo_that_tells_nothing_is_an_error(machine: Machine) -> None:
    machine.put(machine.proc / "meminfo", "MemTotal: 5 kB")
    with pytest.raises(ValueError, match="MemAvailable"):
        machine.read()


@pytest.mark.skipif(os.name != "posix", reason="compares with the system's own figure")
def test_the_real_machine() -> None:
    (reading,) = HostMemory().sample(0.0)
    assert reading.total is not None
    assert reading.free is not None
    assert 0 < reading.free <= reading.total <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
