"""What the benchmarks share: clean surroundings, child processes, one streamed request, a process's cost."""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.support.demo_model import cache_folder, fetch

PATIENCE_S = 120
#: A smoke run: the least that still goes through everything.
QUICK = os.environ.get("LEMON_BENCH_QUICK") == "1"


def often(rounds: int, quick: int = 2) -> int:
    """How many rounds to do: so many, or few in a smoke run."""
    return quick if QUICK else rounds


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """The power with which the second number grows with the first: the slope of a line through the
    logarithms, by least squares."""
    xs, ys = ([math.log(max(point[axis], 1e-12)) for point in points] for axis in (0, 1))
    mean_x, mean_y = statistics.fmean(xs), statistics.fmean(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    return sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread


def demo_model() -> Path:
    """The demo model's GGUF file.

    Raises:
        RouterError: it could not be fetched.
    """
    return fetch(cache_folder(), os.environ)


@contextlib.contextmanager
def clean_environment() -> Iterator[dict[str, str]]:
    """An environment whose user folders are new and empty, and gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="lemon-tray-bench-") as folder:
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("LEMON_TRAY_")
        }
        for kind in ("CONFIG", "DATA", "STATE", "CACHE", "RUNTIME"):
            path = Path(folder) / kind.lower()
            path.mkdir(mode=0o700)
            environment["XDG_RUNTIME_DIR" if kind == "RUNTIME" else f"XDG_{kind}_HOME"] = str(path)
        environment["PYTHONUNBUFFERED"] = "1"
        yield environment


@contextlib.contextmanager
def child(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A running program, stopped in the end: asked first, killed after 20 s."""
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            errors="replace",
        )
        try:
            yield process
        except BaseException as error:
            log.seek(0)
            error.add_note(f"{command[0]} wrote:\n{log.read()[-2000:]}")
            raise
        finally:
            process.terminate()
            try:
                process.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()


def wait_for_url(process: subprocess.Popen[str]) -> str:
    """The first address that the program prints, without a path.

    Raises:
        RuntimeError: it ended, or said nothing in time.
    """
    # A hung program closes its output when it is killed, which ends the reading below.
    killer = threading.Timer(PATIENCE_S, process.kill)
    killer.start()
    try:
        assert process.stdout is not None
        for line in process.stdout:
            for word in line.replace('"', " ").split():
                if word.startswith("http://"):
                    parts = urllib.parse.urlsplit(word.rstrip(".,"))
                    return f"http://{parts.hostname}:{parts.port}"
    finally:
        killer.cancel()
    raise RuntimeError(f"{process.args!r} ended without printing its address")


def first_token(url: str, model: str) -> float:
    """The monotonic time at which the first text of a streamed answer has come.

    Raises:
        RuntimeError: the answer was an error, or ended without text.
    """
    host = urllib.parse.urlsplit(url).netloc
    connection = http.client.HTTPConnection(host, timeout=PATIENCE_S)
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Say hello."}],
        "max_tokens": 8,
        "temperature": 0,
        "stream": True,
    }
    with contextlib.closing(connection):
        connection.request(
            "POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"}
        )
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"{url} answered {response.status}: {response.read(2000)!r}")
        for raw in response:
            line = raw.strip()
            if not line.startswith(b"data: {"):
                continue
            choices = json.loads(line.removeprefix(b"data: ")).get("choices")
            if choices and choices[0]["delta"].get("content"):
                return time.monotonic()
    raise RuntimeError(f"{url} ended its answer without any text")


def family(pid: int) -> list[int]:
    """The process and all below it."""
    found = [pid]
    for each in found:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for task in Path(f"/proc/{each}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


def memory(pid: int) -> dict[str, int]:
    """Bytes of memory: `rss`, and `pss`, which shares out what several processes map."""
    sums = {"rss": 0, "pss": 0}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        key = line.partition(":")[0].lower()
        if key in sums:
            sums[key] += int(line.split()[1]) * 1024
    return sums


def cpu_s(pid: int) -> float:
    """Seconds of processor time that the process has used, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def report(numbers: Mapping[str, object], line: str) -> None:
    """Print the numbers as one line of JSON, and a line for people."""
    print(json.dumps(numbers))
    print(line, flush=True)


PYTHON = sys.executable
