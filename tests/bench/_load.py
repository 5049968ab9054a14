"""The two ends of the relay benchmark, each a process: a fake engine, and what asks.

    _load.py engine PORT
    _load.py closed PORT CONNECTIONS SECONDS      requests one after the other on each connection
    _load.py stream PORT STREAMS TOKENS           streams of TOKENS events at 50 a second each

Both are raw protocols on uvloop, so that they cost as little as Python can. Asking prints one line of JSON.
Each event of a stream carries the moment at which the engine wrote it, by the clock that all processes share.
"""

from __future__ import annotations

import asyncio
import gc
import json
import re
import sys
import time
from collections.abc import Sequence
from typing import cast

import uvloop

RATE_HZ = 50
MODEL = "alpha"
_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_STAMP = re.compile(rb"@(\d+)@")
_WORDS = "The quick brown fox jumps over the lazy dog. " * 5
_ANSWER = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": _WORDS},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 20, "completion_tokens": 50, "total_tokens": 70},
    }
).encode()
_WHOLE = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(_ANSWER)
    + _ANSWER
)
_BEGIN = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def _event(content: str | None, finish: str | None = None) -> bytes:
    chunk = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": MODEL,
        "choices": [{"index": 0, "delta": {"content": content} if content else {}, "finish_reason": finish}],
    }
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


_TOKEN = _event("@STAMP@")
_LAST = _chunk(_event(None, "stop") + b"data: [DONE]\n\n") + b"0\r\n\r\n"


class Engine(asyncio.Protocol):
    """Answers at once, or with a stream of as many events as `max_tokens` says."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.loop = asyncio.get_running_loop()
        self.buffer = b""
        self.timer: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self.timer is not None:
            self.timer.cancel()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head = self.buffer.find(b"\r\n\r\n")
        if head < 0:
            return
        found = _LENGTH.search(self.buffer, 0, head + 2)
        end = head + 4 + (int(found[1]) if found else 0)
        if len(self.buffer) < end:
            return
        body, self.buffer = self.buffer[head + 4 : end], self.buffer[end:]
        streams = re.search(rb'"stream": ?true', body)
        if not streams:
            self.transport.write(_WHOLE)
            return
        tokens = re.search(rb'"max_tokens": ?(\d+)', body)
        self.left = int(tokens[1]) if tokens else 10
        self.due = self.loop.time()
        self.transport.write(_BEGIN)
        self.tell()

    def tell(self) -> None:
        if self.left <= 0:
            self.transport.write(_LAST)
            return
        self.left -= 1
        stamp = b"@%d@" % time.monotonic_ns()
        self.transport.write(_chunk(_TOKEN.replace(b"@STAMP@", stamp)))
        self.due += 1 / RATE_HZ
        self.timer = self.loop.call_at(self.due, self.tell)


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Engine, "127.0.0.1", port, backlog=1024)
    print(f"http://127.0.0.1:{port}", flush=True)
    await server.serve_forever()


def request(port: int, tokens: int = 0) -> bytes:
    body: dict[str, object] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": _WORDS}],
        "max_tokens": tokens or 50,
    }
    if tokens:
        body["stream"] = True
    sent = json.dumps(body).encode()
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"
        b"Accept: application/json\r\nUser-Agent: bench\r\nAuthorization: Bearer sk-bench-0123456789\r\n"
        b"Content-Length: %d\r\n\r\n" % (port, len(sent)) + sent
    )


class Asker(asyncio.Protocol):
    """One connection; its answers are found by their length, or by their last chunk."""

    def __init__(self, sent: bytes) -> None:
        self.sent = sent
        self.times: list[int] = []
        self.delays: list[int] = []
        self.wrong = 0
        self.stop_at = 0
        self.done = asyncio.get_running_loop().create_future()
        self.buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def ask(self, stop_at: int) -> None:
        self.stop_at = stop_at
        self.began = time.perf_counter_ns()
        self.transport.write(self.sent)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.wrong += 1
            self.done.set_result(None)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        buffer = self.buffer = self.buffer + data
        for stamp in _STAMP.findall(data):
            self.delays.append(now - int(stamp))
        head = buffer.find(b"\r\n\r\n")
        if head < 0:
            return
        found = _LENGTH.search(buffer, 0, head + 2)
        if found is None:
            if not buffer.endswith(b"0\r\n\r\n"):
                # The head is all that is looked at again.
                self.buffer = buffer[: head + 4] + buffer[-5:] if len(buffer) > head + 9 else buffer
                return
        elif len(buffer) < head + 4 + int(found[1]):
            return
        ended = time.perf_counter_ns()
        if not buffer.startswith(b"HTTP/1.1 200"):
            self.wrong += 1
        self.times.append(ended - self.began)
        self.buffer = b""
        if ended < self.stop_at:
            self.began = ended
            self.transport.write(self.sent)
        else:
            self.done.set_result(None)


async def ask(port: int, connections: int, seconds: float, tokens: int = 0) -> None:
    loop = asyncio.get_running_loop()
    made: list[Asker] = []
    for _ in range(connections):
        _, protocol = await loop.create_connection(lambda: Asker(request(port, tokens)), "127.0.0.1", port)
        made.append(protocol)
    gc.disable()
    began = time.perf_counter_ns()
    for number, asker in enumerate(made):
        asker.ask(began + int(seconds * 1e9))
        if tokens:  # Spread over the time between two events, as real streams are.
            await asyncio.sleep(1 / RATE_HZ / len(made) if number % 2 else 0)
    await asyncio.wait([asker.done for asker in made], timeout=seconds + tokens / RATE_HZ + 60)
    took = (time.perf_counter_ns() - began) / 1e9
    times = sorted(t for asker in made for t in asker.times)
    delays = sorted(d for asker in made for d in asker.delays)
    for asker in made:
        asker.transport.abort()
    told = {
        "requests": len(times),
        "seconds": took,
        "rps": len(times) / took,
        "wrong": sum(asker.wrong for asker in made) + sum(not asker.done.done() for asker in made),
        "p50_us": _at(times, 0.5) / 1000,
        "p99_us": _at(times, 0.99) / 1000,
        "events": len(delays),
        "delay_p50_us": _at(delays, 0.5) / 1000,
        "delay_p99_us": _at(delays, 0.99) / 1000,
    }
    print(json.dumps(told), flush=True)


def _at(ordered: Sequence[int], share: float) -> float:
    return float(ordered[min(len(ordered) - 1, int(share * len(ordered)))]) if ordered else 0.0


def main(arguments: list[str]) -> None:
    what, port = arguments[0], int(arguments[1])
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if what == "engine":
            runner.run(serve(port))
        elif what == "closed":
            runner.run(ask(port, int(arguments[2]), float(arguments[3])))
        else:
            runner.run(ask(port, int(arguments[2]), 0.0, int(arguments[3])))


if __name__ == "__main__":
    main(sys.argv[1:])
