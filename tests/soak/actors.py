"""Those who act in a soak: clients that ask, a user who edits, a world that does harm, and who looks on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import aiohttp

from tests.service.live import policy
from tests.soak.choices import Ask, Deed
from tests.soak.tally import REFUSALS, Kill, Tally

PATIENCE_S: Final = 240.0
"""No answer takes so long, on a busy machine either: requests wait 15 s for a model; answers are short."""

AGAIN_S: Final = 0.3
"""Seconds after which somebody who was refused asks again."""

HEALTH_S: Final = 5.0
"""The health check is answered within this, whatever goes on. Far more than it ever takes."""

_KINDS: Final = {
    "chat": "/v1/chat/completions",
    "stream": "/v1/chat/completions",
    "embed": "/v1/embeddings",
    "count": "/v1/messages/count_tokens",
}


class Stage:
    """What the actors share: the endpoint, its process, and the tally."""

    def __init__(self, session: aiohttp.ClientSession, url: str, pid: int, fake: Path) -> None:
        self.session = session
        self.url = url
        self.pid = pid
        self.fake = fake
        self.tally = Tally()
        self.over = asyncio.Event()
        self.rss: list[tuple[float, float]] = []

    async def rest(self, seconds: float) -> bool:
        """Wait so long, or until it is over; whether it goes on."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.over.wait()
        return not self.over.is_set()

    async def call(self, path: str, body: Mapping[str, Any]) -> tuple[int, str]:
        """Ask; the status, and the error's code, "" if it is none."""
        async with self.session.post(self.url + path, json=body) as answer:
            return answer.status, _code(await answer.read()) if answer.status >= 400 else ""


def _code(body: bytes) -> str:
    """The code in an error's body; a sentence about the body if there is none."""
    try:
        error = json.loads(body)["error"]
        return str(error["code"])
    except (ValueError, LookupError, TypeError):
        return f"no error object: {body[:200]!r}"


async def client(stage: Stage, asks: Iterator[Ask]) -> None:
    """Ask one thing after the other until it is over."""
    for ask in asks:
        refused = stage.tally.refused.total()
        await _ask(stage, ask)
        # Who is refused does not ask again at once: else most requests would be refusals.
        is_refused = stage.tally.refused.total() > refused
        if not await stage.rest(max(ask.then_s, AGAIN_S) if is_refused else ask.then_s):
            return


async def _ask(stage: Stage, ask: Ask) -> None:
    tally, began = stage.tally, time.monotonic()
    tally.asked += 1
    text = f"please {ask.misdeed}" if ask.misdeed else "Tell me something."
    body: dict[str, Any] = {"model": ask.model}
    if ask.kind == "embed":
        body["input"] = text
    else:
        body |= {"messages": [{"role": "user", "content": text}], "max_tokens": ask.tokens}
        body |= {"ignore_eos": True, "temperature": 1.0}
    if ask.kind == "stream":
        body["stream"] = True
    if ask.trace:
        body["route_trace"] = True
    try:
        async with (
            asyncio.timeout(PATIENCE_S),
            stage.session.post(stage.url + _KINDS[ask.kind], json=body) as answer,
        ):
            if answer.status >= 400:
                code = _code(await answer.read())
                if answer.status == 502 and ask.misdeed == "refuse" and code not in REFUSALS:
                    code = "500"
            elif ask.kind == "stream":
                code = await _read(ask, answer)
            else:
                json.loads(await answer.read())
                code = ""
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        ended = time.monotonic()
        tally.lost.append(f"{ask.kind} of {ask.model} after {ended - began:.1f} s: {error!r}")
        return
    match code:
        case "":
            tally.answered += 1
        case "left":
            tally.left += 1
        case _:
            tally.refuse(code, ask.model, ask.misdeed, began, time.monotonic())


async def _read(ask: Ask, answer: aiohttp.ClientResponse) -> str:
    """Read a stream; "" if it was whole, "left" if the client left, else the code of its error.

    Raises:
        ValueError: it ended without its end.
    """
    events, last = 0, ""
    if ask.stays == 0:
        return "left"
    async for line in answer.content:
        if not line.startswith(b"data: "):
            continue
        last = line.removeprefix(b"data: ").decode().strip()
        events += 1
        if ask.stays is not None and events >= ask.stays:
            return "left"
        if ask.pause_s:
            await asyncio.sleep(ask.pause_s)
    if last == "[DONE]":
        return ""
    if '"error"' in last:
        return _code(last.encode())
    raise ValueError(f"the stream ended with {last[:200]!r} after {events} events")


async def user(stage: Stage, edits: Iterator[Deed]) -> None:
    """Edit, pin, load and unload until it is over."""
    for deed in edits:
        path, body = _as_call(deed, stage.fake)
        await _do(stage, deed.name, path, body)
        if not await stage.rest(deed.then_s):
            return


def _as_call(deed: Deed, fake: Path) -> tuple[str, dict[str, Any]]:
    given = dict(deed.given)
    match deed.name:
        case "set":
            if given.get("engine") == "FAKE":
                given["engine"] = str(fake)
            return "/internal/set", given
        case "register":
            return "/v1/pull", policy(given["name"], *given["candidates"])
        case "switch":
            return f"/internal/policies/{given['name']}", {"enabled": given["enabled"]}
        case "pin" | "pause" | "simulate":
            return f"/internal/{deed.name}", given
    return f"/v1/{deed.name}", given


async def _do(stage: Stage, name: str, path: str, body: Mapping[str, Any]) -> None:
    """One call that may be refused only for reasons that are known."""
    tally = stage.tally
    tally.deeds[name] += 1
    try:
        async with asyncio.timeout(PATIENCE_S):
            status, code = await stage.call(path, body)
    except (aiohttp.ClientError, TimeoutError) as error:
        tally.lost.append(f"{name} {dict(body)}: {error!r}")
        return
    waits = name in ("load", "plan", "unload")
    unknown = name in ("switch", "delete") and code == "model_not_found"
    if code and not unknown and not (waits and code in {*REFUSALS, "worker_died"}):
        tally.faults.append(f"{name} {dict(body)} was answered {status}, {code}")


async def world(stage: Stage, harms: Iterator[Deed]) -> None:
    """Kill, halt, and change the pretended devices until it is over."""
    for deed in harms:
        match deed.name:
            case "simulate":
                await _do(stage, "simulate", "/internal/simulate", deed.given)
            case "kill_starting":
                stage.tally.deeds["kill_starting"] += _kill_starting(stage)
            case _:
                await _harm_worker(stage, deed)
        if not await stage.rest(deed.then_s):
            break
    # What is left behind must not keep anybody waiting.
    await _do(stage, "simulate", "/internal/simulate", {"others_bytes": 0, "lost": False, "lag_s": 0})


async def _harm_worker(stage: Stage, deed: Deed) -> None:
    async with stage.session.get(stage.url + "/v1/health") as answer:
        loaded = (await answer.json())["all_models_loaded"]
    workers = sorted((m["model_name"], m["pid"]) for m in loaded if m["pid"])
    if not workers:
        return
    name, pid = workers[int(deed.share * len(workers))]
    stage.tally.deeds[deed.name] += 1
    now = time.monotonic()
    with contextlib.suppress(ProcessLookupError):
        if deed.name == "kill":
            stage.tally.kills.append(Kill(name, now, now + 2.0))
            os.kill(pid, signal.SIGKILL)
            return
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(deed.given["seconds"])
        os.kill(pid, signal.SIGCONT)


def _kill_starting(stage: Stage) -> int:
    """Kill a worker that is coming up, if there is one: how many were."""
    for pid in children(stage.pid):
        with contextlib.suppress(OSError):
            age_s = time.time() - Path(f"/proc/{pid}").stat().st_ctime
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if age_s < 1.0 and (b"--model" in command or b"worker.py" in command):
                now = time.monotonic()
                stage.tally.kills.append(Kill("", now, now + 2.0))
                os.kill(pid, signal.SIGKILL)
                return 1
    return 0


def children(pid: int) -> list[int]:
    """Processes that this one has started and not reaped."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found += map(int, (task / "children").read_text().split())
    return sorted(found)


def rss(pid: int) -> int:
    """Bytes of memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def looker(stage: Stage, every_s: float) -> None:
    """Ask for health and metrics again and again, and note how long that takes and what memory is used."""
    number = 0
    while await stage.rest(every_s):
        began = time.monotonic()
        path = "/metrics" if number % 10 == 9 else "/v1/health"
        number += 1
        try:
            async with (
                asyncio.timeout(HEALTH_S),
                stage.session.get(stage.url + path) as answer,
            ):
                await answer.read()
                if answer.status != 200:
                    stage.tally.faults.append(f"{path} was answered {answer.status}")
        except (aiohttp.ClientError, TimeoutError) as error:
            stage.tally.faults.append(f"{path} was not answered within {HEALTH_S} s: {error!r}")
            continue
        stage.tally.health_s.append(time.monotonic() - began)
        stage.rss.append((float(stage.tally.asked), float(rss(stage.pid))))


async def follower(stage: Stage) -> None:
    """Read the event stream: entries of the feed come once each and in order, also after a break."""
    newest = 0
    while not stage.over.is_set():
        headers = {"Last-Event-ID": str(newest)} if newest else {}
        with contextlib.suppress(TimeoutError):
            async with (
                asyncio.timeout(4.0),
                stage.session.get(stage.url + "/v1/events", headers=headers) as answer,
            ):
                async for line in answer.content:
                    if line.startswith(b"id: "):
                        number = int(line.removeprefix(b"id: "))
                        if number <= newest:
                            stage.tally.faults.append(f"event {number} came after {newest}")
                        newest = number
                    if stage.over.is_set():
                        return
