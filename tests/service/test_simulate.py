"""Pretend devices, with real workers on them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from router.snapshot import DeviceState, DeviceView, ResidentState, Snapshot
from router.units import GIB
from tests.service.live import Live, live

pytestmark = pytest.mark.engine

TWO = (24 * GIB, 24 * GIB)


def device(snapshot: Snapshot, label: str) -> DeviceView:
    return next(d for d in snapshot.devices if d.label == label)


async def entry(router: Live, label: str) -> Any:
    """The device as the endpoint tells it."""
    return next(d for d in (await router.health())["devices"] if d["label"] == label)


async def test_memory_arrives_with_a_load_and_goes_with_its_worker(tmp_path: Path, tiny_models: Path) -> None:
    async with live(tmp_path, tiny_models, simulate=TWO) as router:
        assert (await router.health())["simulated"] is True
        go = router.hold_loads(at=0.5)
        loading = asyncio.create_task(router.post("/v1/load", {"model_name": "alpha"}))
        snapshot = await router.until(lambda s: s.residents)
        (where, planned), (rest, on_host) = snapshot.residents[0].devices.items()
        assert rest == "host"
        assert 0 < on_host < GIB
        (label,) = (d.label for d in snapshot.devices if d.id == where)
        assert label in ("SIM0", "SIM1")

        snapshot = await router.until(lambda s: device(s, label).free == 24 * GIB - planned // 2)
        half = await router.until(lambda s: device(s, label).ours == planned // 2)
        assert device(half, label).reserved == planned - planned // 2
        assert device(half, label).others == 0
        assert snapshot.residents[0].state is ResidentState.LOADING

        go.set()
        await loading
        full = await router.until(lambda s: device(s, label).free == 24 * GIB - planned)
        assert (device(full, label).ours, device(full, label).reserved) == (planned, 0)
        other = "SIM1" if label == "SIM0" else "SIM0"
        assert device(full, other).free == 24 * GIB

        await router.post("/v1/unload", {"model_name": "alpha"})
        await router.until(lambda s: device(s, label).free == 24 * GIB)


async def test_a_second_model_goes_where_there_is_more_room(tmp_path: Path, tiny_models: Path) -> None:
    settings = {"max_loaded_models": 2}
    async with live(tmp_path, tiny_models, simulate=TWO, settings=settings) as router:
        await router.post("/internal/simulate", {"device": "SIM0", "others_bytes": "20GiB"})
        await router.until(lambda s: device(s, "SIM0").free == 4 * GIB)
        await router.chat("alpha")
        assert list(router.router.snapshot.residents[0].devices) == ["sim1", "host"]
        await router.post("/internal/simulate", {"device": "SIM1", "others_bytes": "22GiB"})
        await router.until(lambda s: (device(s, "SIM1").free or 0) < 2 * GIB)
        await router.chat("beta")
        assert list(router.router.snapshot.residents[1].devices) == ["sim0", "host"]


@pytest.mark.fault("F19")
async def test_a_device_is_lost_and_comes_back(tmp_path: Path, tiny_models: Path) -> None:
    async with live(tmp_path, tiny_models, simulate=TWO) as router:
        told = await router.post("/internal/simulate", {"device": "sim0", "lost": True})
        assert [d["lost"] for d in told["devices"]] == [True, False]
        await router.until(lambda s: device(s, "SIM0").state is DeviceState.UNKNOWN)
        lost, fine = await entry(router, "SIM0"), await entry(router, "SIM1")
        assert (lost["state"], lost["total"], lost["free"], lost["others"]) == ("unknown", None, None, 0)
        assert "simulated" in lost["reason"]
        assert (fine["state"], fine["total"], fine["reason"]) == ("ok", 24 * GIB, None)
        await router.chat("alpha")
        assert list(router.router.snapshot.residents[0].devices) == ["sim1", "host"]
        await router.post("/internal/simulate", {"device": "sim0", "lost": False})
        back = await router.until(lambda s: device(s, "SIM0").state is DeviceState.OK)
        assert device(back, "SIM0").free == 24 * GIB


async def test_readings_lag(tmp_path: Path, tiny_models: Path) -> None:
    async with live(tmp_path, tiny_models, simulate=TWO) as router:
        await router.post("/internal/simulate", {"device": "SIM1", "lag_s": 3600})
        told = await router.post("/internal/simulate", {"others_bytes": 5 * GIB})
        assert [d["others_bytes"] for d in told["devices"]] == [5 * GIB] * 2
        await router.until(lambda s: device(s, "SIM0").free == 19 * GIB)
        assert router.router._devices is not None
        readings = {r.device.label: r.free for r in await router.router._devices.read()}
        assert (readings["SIM0"], readings["SIM1"]) == (19 * GIB, 24 * GIB)
        await router.post("/internal/simulate", {"lag_s": 0})
        await router.until(lambda s: device(s, "SIM1").free == 19 * GIB)


async def test_pressure_from_others_unloads_an_idle_model(tmp_path: Path, tiny_models: Path) -> None:
    async with live(tmp_path, tiny_models, simulate=(24 * GIB,), settings={"auto_evict": True}) as router:
        await router.chat("alpha")
        await router.until(lambda s: device(s, "SIM0").free != 24 * GIB)
        await router.post("/internal/simulate", {"others_bytes": "23GiB"})
        await router.until_loaded()
        assert [e.reason for e in router.router.feed_since(0) if e.code == "evict"] == ["memory_pressure"]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"device": "SIM0", "lost": True, "vram": 1}, "vram"),
        ({"device": "SIM2", "lost": True}, "device"),
        ({"device": "SIM0", "others_bytes": "3GB"}, "others_bytes"),
        ({"others_bytes": -1, "lost": True}, "others_bytes"),
        ({"lost": "yes"}, "lost"),
        ({"lost": True, "lag_s": -1}, "lag_s"),
    ],
)
async def test_a_wrong_change_is_refused_whole(
    change: dict[str, Any], param: str, tmp_path: Path, tiny_models: Path
) -> None:
    async with live(tmp_path, tiny_models, simulate=TWO) as router:
        before = await router.post("/internal/simulate", {})
        answer = await router.post("/internal/simulate", change, status=400)
        assert answer["error"]["param"] == param
        assert await router.post("/internal/simulate", {}) == before


async def test_without_pretence_there_is_nothing_to_change(tmp_path: Path, tiny_models: Path) -> None:
    async with live(tmp_path, tiny_models) as router:
        answer = await router.post("/internal/simulate", {"lost": True}, status=404)
        assert "--simulate" in answer["error"]["hint"]
        assert (await router.health())["simulated"] is False
