"""What the tray's menu says."""

from __future__ import annotations

import msgspec

from lemon_tray.present_devices import Reading
from router.units import NBSP
from tests.ui import canned
from tests.ui.canned import snapshot
from tests.ui.conftest import view_of


def test_menu_says_what_the_panel_says() -> None:
    menu = view_of(canned.loading()).menu
    assert menu.status == (
        f"Loading Gemma-3-4B · 43{NBSP}%",
        f"RTX 4090 (CUDA0): 17.3 of 24.0{NBSP}GiB",
        f"RTX 3090 (CUDA1): 18.4 of 24.0{NBSP}GiB",
        "LLM pool: 2 loaded, room for 3, your limit 1, floor 3",
    )
    assert [m.label for m in menu.residents] == [
        f"Qwen3-8B: ready, 9.1{NBSP}GiB, 78.4{NBSP}tok/s",
        f"Llama-3.3-70B: ready, pinned, 40.4{NBSP}GiB, 2.6{NBSP}tok/s",
        f"Gemma-3-4B: loading 43{NBSP}%",
    ]
    assert [name for name, _ in menu.loadable] == ["Mistral-7B"]


def test_a_broken_model_is_not_offered() -> None:
    broken = msgspec.structs.replace(canned.MODELS[2], broken="no header")
    assert view_of(snapshot(models=(broken,))).menu.loadable == ()


def test_what_is_kept_for_a_load_is_in_the_menu_too() -> None:
    status = view_of(canned.full()).menu.status
    assert status[2] == f"RTX 3090 (CUDA1): 24.0 of 24.0{NBSP}GiB, 7.9{NBSP}GiB kept for a load that waits"
    assert status[-1] == "LLM pool: 2 loaded, room for 2 of 3, your limit 1, floor 3"


def test_the_last_reading_of_a_lost_device_is_in_the_menu_too() -> None:
    readings = {"gpu1": Reading(canned.NOON, 24 << 30, 18 << 30)}
    status = view_of(canned.lost(), readings=readings).menu.status
    assert status[2:4] == (
        "RTX 3090 (CUDA1): GPU is lost (NVML error 15)",
        f"Last reading 02:40: 18.0{NBSP}GiB used, 6.0{NBSP}GiB free",
    )
