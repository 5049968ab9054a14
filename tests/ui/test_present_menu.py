"""What the tray's menu says."""

from __future__ import annotations

import msgspec

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
