"""Runs the benchmarks one after the other and writes one table of ratios: `python3 dev.py bench`.

Each is a program of its own; one that fails leaves the others theirs, and the table says so. What a row needs
of a benchmark's numbers is declared here.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

ROOT: Final = Path(__file__).resolve().parents[2]
HERE: Final = ROOT / "tests" / "bench"
PAGE: Final = ROOT / "docs" / "benchmarks.md"
#: Seconds that a benchmark may take; the sum of all is well below twelve minutes.
LIMIT_S: Final = {"relay": 360}
OTHERS_S: Final = 180
#: What a smoke run leaves out: programs of others, a screen, and what has no short form.
NOT_QUICK: Final = ("relay",)

INTRODUCTION: Final = """\
# Benchmarks

Ratios, measured by `python3 dev.py bench` in one run and written here by it (`--write`). What is compared
runs in turn on the same machine, so that a change of the machine's mood meets all alike; a ratio is the
median over the rounds. Times are those of that machine and tell little about yours. What each benchmark does
stands at the top of its file in `tests/bench`.
"""

Numbers = Mapping[str, Any]


class Row(Struct, frozen=True):
    """One line of the table."""

    what: str
    value: str
    note: str = ""


class Done(Struct, frozen=True):
    """One benchmark: its numbers, or why there are none."""

    name: str
    seconds: float
    numbers: dict[str, Any] = {}
    line: str = ""
    problem: str = ""


def _endpoint(n: Numbers) -> Iterator[Row]:
    for text, value in n["goals"].items():
        # A goal says what is measured, and its bound: "requests/s, times LiteLLM's, at least 80".
        what, _, bound = text.rpartition(", at ")
        yield Row(what, "not measured" if value is None else f"{value:.2f}", f"the goal is at {bound}")
    for name, m in n["medians"].items():
        yield Row(
            f"{name}: requests a second",
            f"{m['rps']:.0f}",
            f"{m['cpu_s_per_1000']:.2f} CPU s for 1,000; an event is passed on in {m['event_p50_us']:.0f} us "
            f"(99 %: {m['event_p99_us']:.0f}); {m['rss_mib']:.0f} MiB",
        )


def _alternation(n: Numbers) -> Iterator[Row]:
    yield Row(
        "three models in turn, autosize off to on",
        f"{n['off_to_on']:.1f}",
        f"{n['off_ms']:.0f} ms and {n['on_ms']:.1f} ms a request, tiny models",
    )


def _swap(n: Numbers) -> Iterator[Row]:
    yield Row(
        "a swap, to the engine's own load",
        f"{n['swap_to_load']:.2f}",
        f"{n['beyond_ms']:+.0f} ms beyond {n['load_ms']:.0f} ms",
    )


def _first_token(n: Numbers) -> Iterator[Row]:
    yield Row(
        "from start to first token, to the bare engine",
        f"{n['ratio']:.2f}",
        f"{n['product_median_s']:.2f} s and {n['bare_median_s']:.2f} s; answers at all after "
        f"{n['product_answers_median_s']:.2f} s",
    )


def _reconcile(n: Numbers) -> Iterator[Row]:
    for count, found in n["residents"].items():
        yield Row(
            f"a pass with {count} models and {n['waiters']} waiting",
            f"{found['pass']['median_ms']:.2f} ms",
            f"the plan alone {found['plan']['median_ms']:.2f}; a snapshot "
            f"{found['snapshot']['median_ms']:.2f}",
        )
    for key, value in n.items():
        if key.startswith("decision_with"):
            for name, found in value.items():
                yield Row(f"who goes, 8 full devices, {name}", f"{found['median_ms']:.2f} ms")
    edits = n["internal_set"]["one_by_one"]
    yield Row("an edit of a setting, on disk and answered", f"{edits['median_ms']:.1f} ms")
    yield Row(
        "from the last answer of a draining model to its end", f"{n['drain_to_evict']['median_ms']:.2f} ms"
    )


def _policy(n: Numbers) -> Iterator[Row]:
    yield Row(
        f"a decision of {n['rules']} rules on 2 kB",
        f"{n['decision_2kB']['median_ms']:.3f} ms",
        f"on 1 MiB {n['decision_1MiB']['median_ms']:.1f} ms; a routed request takes "
        f"{n['routed_2kB']['difference_median_ms']:+.2f} ms more",
    )


def _header(n: Numbers) -> Iterator[Row]:
    yield Row(
        "a plan of a large model, kept header to cold",
        f"{n['plan_ms'] / n['cold_plan_ms']:.4f}",
        f"{n['plan_ms']:.2f} ms and {n['cold_plan_ms']:.0f} ms",
    )


def _catalog(n: Numbers) -> Iterator[Row]:
    yield Row(
        f"finding {n['models']:.0f} models, after a restart to the first time",
        f"{n['restart_to_cold']:.2f}",
        f"{n['restart_scan_ms']:.0f} ms and {n['cold_scan_ms']:.0f} ms; listing {n['listing_ms']:.1f} ms",
    )


def _growth(n: Numbers) -> Iterator[Row]:
    for name, power in n["exponents"].items():
        points = ", ".join(f"{value:.3g} at {count:.0f}" for count, value in n["points"][name])
        note = f"{points}; between the last two {n['last_step'][name]:.2f}"
        yield Row(f"growth of {name}: the power", f"{power:.2f}", note)


def _idle(n: Numbers) -> Iterator[Row]:
    yield Row(
        "the tray app at rest, panel shown",
        f"{n['cpu_percent']:.2f} % of a core",
        f"{n['rss_bytes'] / (1 << 20):.0f} MiB, {n['pss_bytes'] / (1 << 20):.0f} of them its own share; live "
        f"{n['start_to_live_s']:.1f} s after its start",
    )


def _panel(n: Numbers) -> Iterator[Row]:
    yield Row(
        f"the panel following {n['snapshots_per_s']} snapshots a second",
        f"{n['cpu_share']:.0%} of a core",
        f"opens in {n['open_median_ms']:.0f} ms; the loop lags {n['worst_lag_ms']:.0f} ms at worst",
    )


#: The benchmarks in the order of the table: what a section is called, and its rows.
SECTIONS: Final[Mapping[str, tuple[str, Callable[[Numbers], Iterator[Row]]]]] = {
    "relay": ("The endpoint beside other relays", _endpoint),
    "alternation": ("Alternating between models", _alternation),
    "swap": ("Swapping models", _swap),
    "first_token": ("The first token", _first_token),
    "reconcile": ("Plans and decisions", _reconcile),
    "policy": ("Routing", _policy),
    "header": ("Model files", _header),
    "catalog": ("Many models", _catalog),
    "growth": ("Growth", _growth),
    "idle": ("At rest", _idle),
    "panel": ("The panel", _panel),
}


def run(name: str, *, quick: bool, limit_s: float | None = None) -> Done:
    """Run one benchmark to its end."""
    environment = {**os.environ, "LEMON_BENCH_QUICK": "1" if quick else "0"}
    began = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, str(HERE / f"{name}.py")],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s or LIMIT_S.get(name, OTHERS_S),
            check=False,
        )
    except subprocess.TimeoutExpired as over:
        return Done(name, time.monotonic() - began, problem=f"it took longer than {over.timeout:.0f} s")
    return read(name, time.monotonic() - began, done.returncode, done.stdout, done.stderr)


def read(name: str, seconds: float, status: int, out: str, err: str) -> Done:
    """What a benchmark printed: a line of JSON, and lines for people."""
    lines = out.strip().splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith("{")), None)
    if status != 0 or start is None:
        said = [line for line in err.strip().splitlines() if line.strip()]
        # What a child wrote stands after the error as a note.
        errors = [line for line in said if re.match(r"[\w.]*(Error|Exception|Interrupt|Exit)\b", line)]
        last = (errors or said or ["it said nothing"])[-1]
        return Done(name, seconds, problem=f"exit status {status}: {last[:200]}")
    try:
        numbers = json.loads(lines[start])
    except ValueError as error:
        return Done(name, seconds, problem=f"its numbers cannot be read: {error}")
    return Done(name, seconds, numbers, "\n".join(lines[start + 1 :]))


def rows(done: Done) -> list[Row]:
    """The lines of a benchmark in the table; one that says so, if there are no numbers."""
    title, make = SECTIONS.get(done.name, (done.name, _other))
    if done.problem:
        return [Row(title, "failed", done.problem)]
    try:
        return list(make(done.numbers))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        return [Row(title, "failed", f"its numbers have another form: {error!r}")]


def _other(n: Numbers) -> Iterator[Row]:
    for key, value in n.items():
        yield Row(key, str(value))


def machine() -> str:
    """The machine, for people."""
    model = platform.processor() or platform.machine()
    memory = ""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
        kib = int(Path("/proc/meminfo").read_text().split()[1])
        memory = f", {kib / (1 << 20):.0f} GiB of memory"
    except (OSError, ValueError):
        pass  # not Linux: the name alone
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    kernel = platform.release().partition("-")[0]
    return (
        f"{model}, {os.cpu_count()} cores{memory}; {platform.system()} {kernel}, "
        f"Python {platform.python_version()}; load averages {load}"
    )


def markdown(results: Sequence[Done], where: str, when: str, *, quick: bool) -> str:
    """The page."""
    parts = [INTRODUCTION]
    if quick:
        parts.append("**A smoke run: these numbers mean nothing.**\n")
    total = sum(done.seconds for done in results)
    parts.append(f"Measured {when} on {where}. It took {total / 60:.1f} minutes.\n")
    for done in results:
        title = SECTIONS.get(done.name, (done.name, _other))[0]
        lines = [f"## {title}\n", "| what | value | |", "| --- | --- | --- |"]
        lines += [
            f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in (row.what, row.value, row.note))} |"
            for row in rows(done)
        ]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def known() -> list[str]:
    """All benchmarks, those of the table first, in its order."""
    there = {path.stem for path in HERE.glob("*.py") if not path.stem.startswith("_")}
    return [*(name for name in SECTIONS if name in there), *sorted(there - set(SECTIONS))]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="dev.py bench", description="Run benchmarks; write one table.")
    parser.add_argument("names", metavar="NAME", nargs="*", help=f"of {', '.join(known())}; default: all")
    parser.add_argument("--quick", action="store_true", help="a smoke run; its numbers mean nothing")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench", help="folder for the tables")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.names if name not in known()]
    if unknown:
        parser.error(f"there is no benchmark {', '.join(unknown)}; there are {', '.join(known())}")
    names = given.names or [name for name in known() if not (given.quick and name in NOT_QUICK)]
    where, when = machine(), time.strftime("%Y-%m-%d")
    results = []
    for number, name in enumerate(names, 1):
        print(f"[{number}/{len(names)}] {name} ...", file=sys.stderr, flush=True)
        done = run(name, quick=given.quick)
        results.append(done)
        print(f"    {done.seconds:.0f} s: {done.problem or done.line}", file=sys.stderr, flush=True)
    text = markdown(results, where, when, quick=given.quick)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "benchmarks.md").write_text(text, encoding="utf-8")
    told = {
        "machine": where,
        "date": when,
        "quick": given.quick,
        "benchmarks": {
            done.name: {"seconds": round(done.seconds, 1), "problem": done.problem, "numbers": done.numbers}
            for done in results
        },
    }
    (given.out / "benchmarks.json").write_text(json.dumps(told, indent=1), encoding="utf-8")
    if given.write:
        PAGE.write_text(text, encoding="utf-8")
    print(text)
    return 1 if any(row.value == "failed" for done in results for row in rows(done)) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
