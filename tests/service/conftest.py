"""Tiny models that the real engine loads in a moment."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.service.live import PATIENCE_S, write_models


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three tiny language models: alpha, beta and gamma."""
    return write_models(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(autouse=True)
def looked_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A router answers only once it has looked for its models, however long a busy machine takes."""
    monkeypatch.setattr("router.service.wiring.FIRST_LOOKS_S", PATIENCE_S)
