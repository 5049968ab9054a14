"""Remote providers in the panel."""

from __future__ import annotations

import pytest

from lemon_tray.panel import Panel
from router.snapshot import ProviderView
from tests.ui.canned import snapshot
from tests.ui.conftest import view_of

READY = ProviderView("cloud", "https://api.example.com/v1", "ready", models=12, in_use=2)
DOWN = ProviderView("gpubox", "http://gpubox:8000/v1", "down", "The provider gpubox cannot be reached.", 1)


@pytest.mark.parametrize(
    ("provider", "state", "is_error"),
    [
        (READY, "12 models · 2 running", False),
        (ProviderView("a", "u", "ready", models=1), "1 model", False),
        (ProviderView("a", "u", "checking"), "Being looked at", False),
        (ProviderView("a", "u", "refused", "wrong key"), "Refuses the key", True),
        (DOWN, "Does not answer", True),
    ],
)
def test_what_is_told_of_one(provider: ProviderView, state: str, is_error: bool) -> None:
    (row,) = view_of(snapshot(providers=(provider,))).providers
    assert (row.state, row.is_error, row.problem) == (state, is_error, provider.problem)
    assert row.name in row.accessible
    assert state in row.accessible
    assert provider.problem in row.accessible


def test_the_section_is_there_while_there_are_providers(panel: Panel) -> None:
    panel.show_view(view_of(snapshot()))
    panel.open()
    assert panel.providers.isHidden()
    alone = panel.body.height()
    panel.show_view(view_of(snapshot(providers=(DOWN, READY))))
    assert panel.providers.isVisible()
    assert panel.body.height() > alone
    shown = [text.text() for line in panel.providers._lines for text in line if text.isVisible()]
    assert shown == ["gpubox", "Does not answer", DOWN.problem, "cloud", "12 models · 2 running"]
    panel.show_view(view_of(snapshot(providers=(READY,))))
    shown = [text.text() for line in panel.providers._lines for text in line if text.isVisible()]
    assert shown == ["cloud", "12 models · 2 running"]
    panel.show_view(view_of(snapshot()))
    assert panel.providers.isHidden()
    assert panel.body.height() == alone


def test_texts_of_others_cannot_steer_the_panel() -> None:
    hostile = ProviderView("a\u202eb", "u", "down", "x\ny" * 1000)
    (row,) = view_of(snapshot(providers=(hostile,))).providers
    assert "\n" not in row.problem
    assert len(row.problem) < 400
