"""The table of the benchmarks: what is run, what is read, and what becomes of one that fails."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parent / "bench"


def load(name: str) -> ModuleType:
    """A program of tests/bench as a module: the folder is no package."""
    spec = importlib.util.spec_from_file_location(f"bench{name}", BENCH / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


table = load("_all")
common = load("_common")


def test_a_smoke_run_writes_one_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert table.main(["--quick", "--out", str(tmp_path), "header", "growth"]) == 0
    text = (tmp_path / "benchmarks.md").read_text()
    assert text == capsys.readouterr().out.removesuffix("\n")
    assert "a smoke run" in text.lower()
    assert "| growth of a plan, by waiting requests: the power |" in text
    told = json.loads((tmp_path / "benchmarks.json").read_text())
    assert set(told["benchmarks"]) == {"header", "growth"}
    assert told["benchmarks"]["growth"]["numbers"]["points"]
    assert str(__import__("os").cpu_count()) in told["machine"]


def test_every_benchmark_has_its_rows() -> None:
    assert set(table.known()) == set(table.SECTIONS)
    for name in table.SECTIONS:
        assert (BENCH / f"{name}.py").exists()


def test_one_that_fails_is_told_and_leaves_the_others_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "header.py").write_text("raise SystemExit('no disk')")
    (tmp_path / "panel.py").write_text("print('{\"open_median_ms\": 1}')")
    (tmp_path / "swap.py").write_text("import time; time.sleep(600)")
    (tmp_path / "new.py").write_text("print('{\"things\": 3}'); print('three things')")
    monkeypatch.setattr(table, "HERE", tmp_path)
    monkeypatch.setitem(table.LIMIT_S, "swap", 0.2)
    assert table.known() == ["swap", "header", "panel", "new"]
    assert table.main(["--out", str(tmp_path / "out")]) == 1
    text = (tmp_path / "out" / "benchmarks.md").read_text()
    assert "| Model files | failed | exit status 1: no disk |" in text
    assert "| The panel | failed | its numbers have another form: KeyError" in text
    assert "| Swapping models | failed | it took longer than 0 s |" in text
    assert "| things | 3 |" in text


def test_what_a_benchmark_prints_is_read() -> None:
    done = table.read("swap", 1.0, 0, 'warming up\n{"a": 1}\nfine\nvery\n', "")
    assert (done.numbers, done.line, done.problem) == ({"a": 1}, "fine\nvery", "")
    assert "cannot be read" in table.read("swap", 1.0, 0, "{oops\n", "").problem
    assert table.read("swap", 1.0, 0, "", "").problem == "exit status 0: it said nothing"
    failed = "Traceback\n  a line\nRuntimeError: Xvfb did not start\nXvfb wrote:\n  server already running\n"
    assert table.read("idle", 1.0, 1, "", failed).problem == "exit status 1: RuntimeError: Xvfb did not start"


def test_an_unknown_one_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        table.main(["nothing"])
    assert "no benchmark nothing" in capsys.readouterr().err


@pytest.mark.parametrize("power", [-0.5, 0.0, 1.0, 2.0])
def test_a_power_is_fitted(power: float) -> None:
    points = [(count, 3.0 * count**power) for count in (1, 10, 100, 1000)]
    assert common.exponent(points) == pytest.approx(power)


def test_goals_stand_beside_what_was_measured() -> None:
    goals = {"headless, MiB, at most 60": 52.5, "tray, requests/s, times LiteLLM's, at least 40": None}
    done = table.Done("relay", 1.0, {"goals": goals, "medians": {}})
    assert [(row.what, row.value, row.note) for row in table.rows(done)] == [
        ("headless, MiB", "52.50", "the goal is at most 60"),
        ("tray, requests/s, times LiteLLM's", "not measured", "the goal is at least 40"),
    ]
