"""Importing without the collector, and what `serve` is not to import before it answers."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from router.loading import uncollected

#: Needed by other commands only, by what is fetched, or by what a client may ask for later.
LATER = (
    "fastjsonschema",
    "prometheus_client",
    "regex",
    "router.cli.engine",
    "router.cli.importing",
    "router.cli.policy",
    "router.cli.pull",
    "PySide6",
    "xllamacpp",
    "keyring",
    "unittest",
)


def test_nothing_is_collected_while_importing_and_something_after_it() -> None:
    assert gc.isenabled()
    seen = []

    def load() -> None:
        with uncollected():
            seen.append(gc.isenabled())
            raise ImportError

    with pytest.raises(ImportError):
        load()
    assert seen == [False]
    assert gc.isenabled()
    gc.unfreeze()


def test_what_the_first_answer_does_not_need_is_not_imported_before_it() -> None:
    code = (
        "import sys; from router.cli.main import parser; parser(only_serve=True).parse_args(['serve']);"
        f"import router.cli.serve; print(*sorted(set({LATER!r}) & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
