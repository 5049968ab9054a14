"""Which of the suggestions fit this machine, as the snapshot tells it."""

from __future__ import annotations

from pathlib import Path

from router.units import GIB
from tests.service.live import live


async def test_they_are_sized_for_the_devices_there_are(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    async with live(tmp_path / "home", tmp_path / "models", simulate=(24 * GIB,)) as router:
        snapshot = await router.until(lambda s: s.suggestions and s.suggestions[0].needs)
        found = {view.title: view for view in snapshot.suggestions}
        assert found["Qwen3 8B"].fits
        assert 5 * GIB < found["Qwen3 8B"].needs < 12 * GIB
        assert found["Gemma 3 4B"].size_bytes > 3 * GIB
        assert not any(view.here for view in snapshot.suggestions)
    async with live(tmp_path / "other", tmp_path / "models", simulate=(2 * GIB,)) as router:
        snapshot = await router.until(lambda s: s.suggestions and s.suggestions[0].needs)
        found = {view.title: view for view in snapshot.suggestions}
        assert found["Qwen3 0.6B"].fits
        assert not found["gpt-oss 120B"].fits
