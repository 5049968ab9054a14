"""Runs the real program for some minutes under clients, edits and harms, and tells what came of it.

    python3 dev.py soak --minutes 20 --seed 7

The same seed makes everybody decide the same; what comes of it depends on the machine's mood. Exit status 1
if anything did not hold: a request without an answer, a snapshot that contradicts itself, a device over its
memory, something left behind.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import re
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
from msgspec import Struct

from tests.bench._all import machine
from tests.service.live import policy, write_models
from tests.soak import choices
from tests.soak.actors import PATIENCE_S, Stage, children, client, follower, looker, rss, user, world
from tests.soak.program import SOCKET
from tests.soak.tally import slope, table
from tests.support import gguf
from tests.support.demo_model import cache_folder, fetch
from tests.support.processes import is_running

ROOT: Final = Path(__file__).parents[2]
ENDS_WITHIN_S: Final = 30.0
#: Growth of the router's memory, in bytes for each thousand requests, that a run of some minutes may show.
GROWTH_MAX: Final = 4 << 20
GROWTH_AFTER_S: Final = 300.0
#: What the log never says. Faults of workers, which are brought about, are told without these.
FAULTS: Final = re.compile(r"Traceback|never awaited|Task exception|Unclosed|loop stopped| CRITICAL ")


PAGE: Final = ROOT / "docs" / "soak.md"
INTRODUCTION: Final = """\
# A long run

`python3 dev.py soak --minutes 20` runs the real program with real workers on pretended devices. Clients
stream, leave and read slowly; settings and policies are edited; models are pinned, loaded and unloaded;
workers are killed and halted; devices fail and lag, and other programs take their memory. All along it
is looked whether each snapshot is consistent, the limits and the floor hold, no device is over its
memory, the health check answers, and every request is answered. This table is what came of one such run.
"""


class Soak(Struct, frozen=True):
    """How to soak. `haste` shortens all pauses; requests wait at most `queue_s` for a model."""

    seconds: float
    seed: int
    clients: int = 8
    haste: float = 1.0
    demo: bool = True
    queue_s: int = 15


class Outcome(Struct, frozen=True):
    """What came of it."""

    rows: tuple[tuple[str, Any], ...]
    faults: tuple[str, ...]


def environment(home: Path) -> dict[str, str]:
    """The user's, with folders of its own below `home`."""
    found = {name: value for name, value in os.environ.items() if not name.startswith("LEMON_TRAY_")}
    for kind in ("config", "data", "state", "cache"):
        found[f"XDG_{kind.upper()}_HOME"] = str(home / kind)
    (home / "run").mkdir(mode=0o700)
    return found | {
        "HOME": str(home),
        "XDG_RUNTIME_DIR": str(home / "run"),
        "PYTHON_KEYRING_BACKEND": "keyring.backends.null.Keyring",
        "PYTHONUNBUFFERED": "1",
        SOCKET: str(home / "socket"),
    }


def furnish(home: Path, soak: Soak) -> tuple[Path, Path]:
    """Models, settings, policies, and the fake llama-server. Returns the folder of models, and that."""
    models = home / "models"
    write_models(models, [name for name in choices.LANGUAGE if name != "demo"])
    gguf.write_encoder(models / f"{choices.EMBEDDING}.gguf")
    if soak.demo:
        shutil.copyfile(fetch(cache_folder(), os.environ), models / "demo.gguf")
    else:
        gguf.write_model(models / "demo.gguf", seed=99, layers=6, context=131_072)
    config = home / "config" / "lemon-tray"
    (config / "policies").mkdir(parents=True)
    (config / "config.json").write_text(json.dumps({**choices.FIRST, "load_queue_timeout_s": soak.queue_s}))
    for name, candidates in zip(choices.POLICIES, (("ash", "birch", "cedar"), ("demo", "elm")), strict=True):
        (config / "policies" / f"{name}.json").write_text(json.dumps(policy(name, *candidates)))
    bin = home / "bin"
    (bin / "loads").mkdir(parents=True)
    (bin / "seed").write_text(str(soak.seed))
    fake = bin / "llama-server"
    source = Path(__file__).with_name("fake_server.py").read_text()
    fake.write_text(f"#!{sys.executable} -IS\n{source}")
    fake.chmod(0o755)
    return models, fake


def start(home: Path, models: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.soak.program", "serve", "--port", "0"]
    command += ["--models-dir", str(models), "--simulate", choices.SIMULATE]
    with (home / "log").open("w") as log:
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment(home),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )


@asynccontextmanager
async def running(home: Path, models: Path) -> AsyncIterator[tuple[subprocess.Popen[str], str]]:
    """The program, and where it answers. Killed in the end if it still runs."""
    process = start(home, models)
    try:
        assert process.stdout is not None
        line = await asyncio.to_thread(process.stdout.readline)
        found = re.search(r"http://\S+", line)
        if found is None:
            raise RuntimeError(f"it did not start: {(home / 'log').read_text()[-2000:]}")
        yield process, found[0].removesuffix("/v1")
    finally:
        process.kill()
        await asyncio.to_thread(process.communicate)


async def told(home: Path) -> dict[str, Any]:
    """What the program knows of itself."""
    reader, writer = await asyncio.open_unix_connection(str(home / "socket"), limit=1 << 24)
    try:
        found: dict[str, Any] = json.loads(await reader.read())
        return found
    finally:
        writer.close()


async def still(home: Path, pid: int) -> dict[str, Any]:
    """Wait until no model is loaded, no process of a worker is left, and nothing else goes on; what is told
    then."""
    last: dict[str, Any] = {}
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ENDS_WITHIN_S):
            while True:
                before, last = last, await told(home)
                same = before.get("tasks") == last["tasks"] and before["descriptors"] == last["descriptors"]
                if same and not last["pids"] and not last["waiting"] and not children(pid):
                    break
                await asyncio.sleep(0.3)
    return last


async def act(stage: Stage, soak: Soak) -> None:
    """Everybody acts until the time is over, and until what was asked is answered."""
    rows: list[tuple[Any, Iterator[Any]]] = [
        (client, choices.asks(soak.seed, number, soak.haste)) for number in range(soak.clients)
    ]
    rows += [(user, choices.edits(soak.seed, soak.haste)), (world, choices.harms(soak.seed, soak.haste))]
    acting = [asyncio.create_task(play(stage, row)) for play, row in rows]
    acting += [asyncio.create_task(looker(stage, 0.25)), asyncio.create_task(follower(stage))]

    async def tell() -> None:
        began = time.monotonic()
        for minute in itertools.count(1):
            if not await stage.rest(60.0):
                return
            tally = stage.tally
            print(
                f"{minute} min: {tally.asked} asked, {tally.answered} answered, {len(tally.cuts)} cut, "
                f"{len(tally.lost)} lost, {len(tally.faults)} faults, {rss(stage.pid) >> 20} MiB, "
                f"{time.monotonic() - began:.0f} s",
                file=sys.stderr,
                flush=True,
            )

    acting.append(asyncio.create_task(tell()))
    ending = asyncio.get_running_loop().call_later(soak.seconds, stage.over.set)
    try:
        done, _ = await asyncio.wait(acting, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        ending.cancel()
        for task in acting:
            task.cancel()
        await asyncio.gather(*acting, return_exceptions=True)


async def empty(stage: Stage) -> None:
    """Take back what keeps models, and unload them all."""
    await stage.call("/internal/set", {"admission": "wait", "engine": "embedded"})
    for name in choices.LANGUAGE:
        await stage.call("/internal/pin", {"model_name": name, "pinned": False})
    await stage.call("/internal/pause", {"paused": False})
    await stage.call("/v1/unload", {})


async def warm_up(stage: Stage) -> None:
    """Use everything once, so that what is made once only is there."""
    for model in (choices.LANGUAGE[0], choices.POLICIES[0]):
        for stream in (False, True):
            body = {"model": model, "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
            status, code = await stage.call("/v1/chat/completions", {**body, "stream": stream})
            if status != 200:
                raise RuntimeError(f"{model} was answered {status}, {code}")
    await stage.call("/v1/embeddings", {"model": choices.EMBEDDING, "input": "x"})


def session() -> aiohttp.ClientSession:
    # A stream that is left is closed; all else may be used again.
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
    )


async def run(soak: Soak, home: Path) -> Outcome:
    """One soak in that folder.

    Raises:
        RuntimeError: the program did not start.
    """
    models, fake = furnish(home, soak)
    async with running(home, models) as (process, url):
        async with session() as asking:
            stage = Stage(asking, url, process.pid, fake)
            async with asyncio.timeout(PATIENCE_S):
                await warm_up(stage)
                await empty(stage)
        first = await still(home, process.pid)
        async with session() as asking:
            stage.session = asking
            began = time.monotonic()
            await act(stage, soak)
            took_s = time.monotonic() - began
            async with asyncio.timeout(PATIENCE_S):
                await empty(stage)
        last = await still(home, process.pid)
        left = children(process.pid)
        process.send_signal(signal.SIGTERM)
        status = await asyncio.to_thread(process.wait, ENDS_WITHIN_S)
        left = [pid for pid in left if is_running(pid)]
    return judged(soak, stage, took_s, (first, last), left, status, (home / "log").read_text())


def judged(
    soak: Soak,
    stage: Stage,
    took_s: float,
    states: tuple[dict[str, Any], dict[str, Any]],
    left: Sequence[int],
    status: int,
    log: str,
) -> Outcome:
    """The table, and what must not be."""
    first, last = states
    tally = stage.tally
    # The first third fills caches and pools.
    growth = slope(stage.rss[len(stage.rss) // 3 :]) * 1000
    faults = [*last["faults"], *tally.faults, *(f"lost: {each}" for each in tally.lost)]
    faults += [f"cut without a reason: {cut}" for cut in tally.unexplained(choices.POLICIES)]
    ended = tally.answered + tally.left + tally.refused.total() + tally.misdone.total() + len(tally.cuts)
    # What only calls of the user lost is no request.
    if ended != tally.asked - sum(" of " in each for each in tally.lost):
        faults.append(f"{tally.asked} were asked and {ended} ended")
    tasks, descriptors = (last[key] - first[key] for key in ("tasks", "descriptors"))
    if tasks > 0:
        faults.append(f"tasks left: {sorted(set(last['names']) - set(first['names'])) or last['names']}")
    if descriptors > 0:
        faults.append(f"{descriptors} file descriptors left")
    if left:
        faults.append(f"processes left: {left}")
    if status != 0:
        faults.append(f"it ended with status {status}")
    if took_s >= GROWTH_AFTER_S and growth > GROWTH_MAX:
        faults.append(f"memory grows by {growth / (1 << 20):.1f} MiB per 1,000 requests")
    faults += [f"logged: {line}" for line in log.splitlines() if FAULTS.search(line)]
    health = sorted(tally.health_s) or [0.0]
    counts = {(code, reason): count for code, reason, count in last["counts"]}
    rows: list[tuple[str, Any]] = [
        ("seed", soak.seed),
        ("seconds", round(took_s)),
        ("requests", tally.asked),
        ("answered", tally.answered),
        ("left by the client", tally.left),
        *((f"refused: {code}", count) for code, count in sorted(tally.refused.items())),
        ("ended as the fake engine was told", tally.misdone.total()),
        ("cut by a killed worker", len(tally.cuts)),
        ("lost", len(tally.lost)),
        ("edits and calls", sum(tally.deeds.values())),
        ("workers killed", tally.deeds["kill"] + tally.deeds["kill_starting"]),
        ("loads", sum(count for (code, _), count in counts.items() if code == "ready")),
        ("unloads", sum(count for (code, _), count in counts.items() if code == "evict")),
        ("snapshots looked at", last["snapshots"]),
        ("health, median ms", round(statistics.median(health) * 1000, 1)),
        ("health, 99th percentile ms", round(health[int(len(health) * 0.99)] * 1000, 1)),
        ("health, worst ms", round(health[-1] * 1000, 1)),
        ("leaked processes", len(left)),
        ("leaked tasks", max(tasks, 0)),
        ("leaked descriptors", max(descriptors, 0)),
        ("memory at the end, MiB", round(stage.rss[-1][1] / (1 << 20)) if stage.rss else 0),
        ("memory growth, KiB per 1,000 requests", round(growth / 1024)),
        ("faults", len(faults)),
    ]
    return Outcome(tuple(rows), tuple(dict.fromkeys(faults)))


def page(outcome: Outcome, where: str, when: str) -> str:
    """The page of the documentation."""
    state = "Nothing was found amiss." if not outcome.faults else f"{len(outcome.faults)} faults were found."
    return f"{INTRODUCTION}\nRun {when} on {where}. {state}\n\n{table(outcome.rows)}\n"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="dev.py soak", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1.0, help="how long (default 1)")
    parser.add_argument("--seed", type=int, default=None, help="decide as that run did")
    parser.add_argument(
        "--clients", type=int, default=8, help="clients that ask at the same time (default 8)"
    )
    parser.add_argument("--haste", type=float, default=1.0, help="shorten all pauses by this factor")
    parser.add_argument("--keep", type=Path, help="keep the program's files in this new folder")
    parser.add_argument("--json", type=Path, help="write the table there, too")
    parser.add_argument("--write", action="store_true", help="write docs/soak.md")
    given = parser.parse_args(arguments)
    seed = secrets.randbelow(1_000_000) if given.seed is None else given.seed
    print(f"seed {seed}", file=sys.stderr, flush=True)
    soak = Soak(given.minutes * 60, seed, given.clients, given.haste)
    with contextlib.ExitStack() as stack:
        if given.keep is not None:
            given.keep.mkdir(parents=True)
            home = given.keep.resolve()
        else:
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lemon-tray-soak-")))
        outcome = asyncio.run(run(soak, home))
    text = page(outcome, machine(), time.strftime("%Y-%m-%d"))
    print(text)
    if given.write:
        PAGE.write_text(text, encoding="utf-8")
    for fault in outcome.faults[:40]:
        print(f"FAULT: {fault}")
    if given.json is not None:
        given.json.write_text(json.dumps({"rows": outcome.rows, "faults": outcome.faults}, indent=1))
    return 1 if outcome.faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
