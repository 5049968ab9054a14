"""Tiny models that the real engine loads in a moment."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.service.live import write_models


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three tiny language models: alpha, beta and gamma."""
    return write_models(tmp_path_factory.mktemp("tiny"))
