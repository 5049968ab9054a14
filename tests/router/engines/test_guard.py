"""What a program of the system's gets to see of the app that starts it."""

from __future__ import annotations

import sys

import pytest

from router.engines.guard import outside_environ

PACKAGED = {"_PYI_PARENT_PROCESS_LEVEL": "1", "LD_LIBRARY_PATH": "/app/_internal", "HOME": "/home/me"}


@pytest.mark.parametrize(
    ("before", "found"),
    [
        ({}, {"HOME": "/home/me"}),
        ({"LD_LIBRARY_PATH_ORIG": ""}, {"HOME": "/home/me"}),
        ({"LD_LIBRARY_PATH_ORIG": "/opt/cuda"}, {"HOME": "/home/me", "LD_LIBRARY_PATH": "/opt/cuda"}),
    ],
)
def test_a_packaged_app_leads_other_programs_to_none_of_its_libraries(
    before: dict[str, str], found: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert outside_environ({**PACKAGED, **before}) == found


def test_without_a_package_nothing_changes() -> None:
    assert outside_environ(PACKAGED) == PACKAGED
