"""Pretended GPUs: a driver's library that is compiled here, and a made-up /sys."""

from __future__ import annotations

import ctypes
import os
import shutil
from pathlib import Path

import pynvml
import pytest

import dev
from router.devices import nvml
from router.devices.base import DeviceInfo, DeviceReading
from router.devices.host import HOST
from router.units import GIB
from tests.support.fake_nvml import FakeNvml, compile_library


class Host:
    """Host memory with figures of a test's choice; with None it cannot be read."""

    devices: tuple[DeviceInfo, ...] = (HOST,)

    def __init__(self) -> None:
        self.total: int | None = 64 * GIB
        self.free = 40 * GIB

    def sample(self, started: float) -> tuple[DeviceReading, ...]:
        if self.total is None:
            raise OSError("no memory today")
        return (DeviceReading(HOST, self.total, self.free, started),)


class Sysfs:
    """A made-up /sys, and /proc for what NVIDIA's driver tells there."""

    def __init__(self, folder: Path) -> None:
        self.root, self.proc = folder / "sys", folder / "proc"

    def nvidia(self, address: str, status: str = "active") -> None:
        """A card that NVIDIA's driver has taken."""
        self.put(f"bus/pci/drivers/nvidia/{address}/power/runtime_status", status)
        self.put(f"bus/pci/devices/{address}/vendor", "0x10de")

    def card(self, number: int, address: str, vendor: str, **attributes: object) -> Path:
        """A graphics card with its attributes, `in0_label` becoming a file of its sensor."""
        folder = f"class/drm/card{number}/device"
        self.put(f"{folder}/vendor", vendor)
        self.put(f"{folder}/uevent", f"DRIVER=some\nPCI_SLOT_NAME={address}")
        for name, value in attributes.items():
            place = f"hwmon/hwmon3/{name}" if name.endswith("_label") else name
            self.put(f"{folder}/{place}", value)
        return self.root / folder

    def put(self, path: str, value: object) -> None:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"{value}\n")


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def sysfs(tmp_path: Path) -> Sysfs:
    return Sysfs(tmp_path)


@pytest.fixture(scope="session")
def nvml_libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The pretended libraries: of today's driver, and of an old one."""
    missing = dev.missing_compiler()
    if missing and not os.environ.get("CI"):
        pytest.skip(f"NVIDIA's driver cannot be pretended: {', '.join(missing)} not installed")
    folder = tmp_path_factory.mktemp("nvml")
    return {
        "today": compile_library(folder / "today.so"),
        "old": compile_library(folder / "old.so", "-DOLD_DRIVER"),
    }


@pytest.fixture(params=["today"])
def fake(
    request: pytest.FixtureRequest,
    nvml_libraries: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> FakeNvml:
    """A driver's library, loaded by the real binding, in this process. It has no cards yet."""
    # A file of its own, so that the loader keeps no state of the test before.
    library = Path(shutil.copy(nvml_libraries[request.param], tmp_path / "libnvidia-ml.so.1"))
    machine = FakeNvml(tmp_path)
    for name, value in machine.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(nvml, "LIBRARY", str(library))
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(library)))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    return machine
