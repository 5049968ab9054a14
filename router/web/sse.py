"""Server-sent events seen from beside: where one ends, how the stream ended, what it reported.

A line ends with LF, CR or CRLF and with nothing else; an event ends with an empty line. Text is never split
by Unicode's idea of a line, and bytes are never changed by looking at them.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from router.web.upstream import BadAnswer

COMMENT: Final = b": keep-alive\n\n"

_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_FIRST_DATA: Final = re.compile(rb"(?:\A|[\r\n])data:[ ]?[ \t]*\{[ \t]*(?=[^ \t])")
_DONE: Final = b"[DONE]"
_FINAL_TYPES: Final = frozenset(
    {
        "response.completed",
        "response.incomplete",
        "response.failed",
        "response.cancelled",
        "message_stop",
        "error",
    }
)


class Usage(Struct, frozen=True):
    """What an answer reported. `seconds` is the time spent generating `tokens`, `prompt_seconds` that spent
    on the part of the prompt that was not in the cache; 0 where it is not told. `seconds` is not a number for
    one token alone: the prompt's last step makes it, and engines time what follows."""

    tokens: int = 0
    prompt_tokens: int = 0
    seconds: float = 0.0
    prompt_seconds: float = 0.0
    prompt_computed: int = 0


class Ending(Struct, frozen=True):
    """How a stream ended. `final` is true after `[DONE]`, an error event, the last event of the Responses or
    the Messages API or of the engine's own form, and where too little of the last event was kept to tell."""

    final: bool
    usage: Usage


class Counts(Struct, frozen=True):
    """Tokens, by the names that the protocols have for them."""

    completion_tokens: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens: int | None = None
    total_tokens: int | None = None


class Timings(Struct, frozen=True):
    """The engine's own report: tokens and milliseconds."""

    predicted_n: float = 0
    predicted_ms: float = 0
    prompt_n: float = 0
    prompt_ms: float = 0
    cache_n: float = 0


class _Response(Struct, frozen=True):
    usage: Counts | None = None


class _Answer(Struct, frozen=True):
    usage: Counts | None = None
    timings: Timings | None = None
    response: _Response | None = None
    type: str | None = None
    error: Raw | UnsetType = UNSET
    # In the engine's own form, with which a stream of an infill ends.
    stop: Raw | UnsetType = UNSET


_decode_answer: Final = msgspec.json.Decoder(_Answer).decode


def usage_in(answer: bytes) -> Usage:
    """What a whole JSON answer reports; all zero where it reports nothing."""
    return _usage(_read(answer)) or Usage()


class Scanner:
    """Watches a stream go by. It keeps the last bytes only: at most `keep` and one fragment more."""

    __slots__ = ("_end", "_keep", "_recent", "_size", "_trimmed")

    def __init__(self, keep: int = 64 << 10) -> None:
        self._keep = keep
        self._recent: deque[bytes] = deque()
        self._size = 0
        self._trimmed = False
        self._end = b""

    def feed(self, data: bytes) -> None:
        """Note a fragment that goes to the client."""
        self._end = data[-4:] if len(data) >= 4 else (self._end + data)[-4:]
        recent = self._recent
        recent.append(data)
        self._size += len(data)
        while self._size - len(recent[0]) >= self._keep:
            self._size -= len(recent.popleft())
            self._trimmed = True

    @property
    def at_boundary(self) -> bool:
        """Whether an event of our own may come next: nothing was sent yet, or a whole event just ended."""
        # Two line ends take at most four bytes, so these four decide.
        return not self._end or _LINE_END.sub(b"\n", self._end).endswith(b"\n\n")

    def to_boundary(self) -> bytes:
        """The bytes that end an event that is under way; empty at a boundary."""
        return b"" if self.at_boundary else b"\n\n"

    def ending(self) -> Ending:
        """How the stream ended and what it reported, from its last events."""
        final, usage, seen = False, None, False
        for event in _events(b"".join(self._recent), self._trimmed):
            seen = True
            if event == _DONE:
                final = True
                continue
            answer = _read(event)
            if answer is None:
                final = False
                continue
            failed = answer.error is not UNSET and bytes(answer.error) != b"null"
            stopped = answer.stop is not UNSET and bytes(answer.stop) == b"true"
            final = failed or stopped or answer.type in _FINAL_TYPES
            usage = _usage(answer) or usage
        return Ending(final or (self._trimmed and not seen), usage or Usage())


class Events:
    """Takes a stream apart into the data of its events, as it comes. What is held back is bounded."""

    __slots__ = ("_after_cr", "_data", "_limit", "_line", "_size")

    def __init__(self, limit: int = 32 << 20) -> None:
        self._limit = limit
        self._line: list[bytes] = []
        self._data: list[bytes] = []
        self._size = 0
        self._after_cr = False

    def feed(self, data: bytes) -> list[bytes]:
        """The data of the events that a fragment completes.

        Raises:
            BadAnswer: one event is too large.
        """
        if self._after_cr and data[:1] == b"\n":
            data = data[1:]
        if data:
            self._after_cr = data[-1:] == b"\r"
        *lines, rest = _LINE_END.split(data)
        events: list[bytes] = []
        for line in lines:
            if self._take(line):
                continue
            events += self.flush()
        if rest:
            self._line.append(rest)
            self._grow(len(rest))
        return events

    def flush(self) -> list[bytes]:
        """The data of the event under way, if there is any: the stream may end without an empty line."""
        self._take(b"")
        data, self._data, self._size = self._data, [], 0
        return [b"\n".join(data)] if data else []

    def _take(self, end: bytes) -> bool:
        """Take a line, of which this is the end; whether there is anything in it."""
        line = b"".join([*self._line, end]) if self._line else end
        self._line = []
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
            self._grow(len(end))
        return bool(line)

    def _grow(self, more: int) -> None:
        self._size += more
        if self._size > self._limit:
            raise BadAnswer("One event of the worker's stream is too large.")


class FirstEvent:
    """Puts one more member into the first JSON object of a stream; all other bytes pass as they are."""

    __slots__ = ("_held", "_limit", "_member")

    def __init__(self, name: str, value: Any, limit: int = 64 << 10) -> None:
        self._member: bytes | None = msgspec.json.encode(name) + b":" + msgspec.json.encode(value)
        self._held = b""
        self._limit = limit

    def feed(self, data: bytes) -> bytes:
        """The bytes that may go on. What comes before the first object is held back until it is seen."""
        if self._member is None:
            return data
        self._held += data
        found = _FIRST_DATA.search(self._held)
        if found is None:
            return self.flush() if len(self._held) > self._limit else b""
        start = found.end()
        comma = b"" if self._held[start : start + 1] == b"}" else b","
        whole = self._held[:start] + self._member + comma + self._held[start:]
        self._member, self._held = None, b""
        return whole

    def flush(self) -> bytes:
        """Give up on it: the bytes held back."""
        self._member, held, self._held = None, self._held, b""
        return held


def _events(tail: bytes, trimmed: bool) -> Iterator[bytes]:
    """The data of the events in `tail`, an unfinished last one too; the first is left out if it was cut."""
    lines = _LINE_END.split(tail)
    if trimmed:
        blank = next((i for i, line in enumerate(lines) if not line), len(lines))
        lines = lines[blank:]
    data: list[bytes] = []
    for line in lines:
        if not line:
            if data:
                yield b"\n".join(data)
                data = []
        elif line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
    if data:
        yield b"\n".join(data)


def _read(event: bytes) -> _Answer | None:
    try:
        return _decode_answer(event)
    except (msgspec.MsgspecError, RecursionError):
        return None


def _usage(answer: _Answer | None) -> Usage | None:
    if answer is None:
        return None
    counts = answer.usage or (answer.response.usage if answer.response else None)
    timings = answer.timings
    if counts is None and timings is None:
        return None
    tokens = prompt = 0
    if counts is not None:
        tokens = counts.completion_tokens or counts.output_tokens or 0
        prompt = counts.prompt_tokens or counts.input_tokens or 0
    seconds = prompt_seconds = 0.0
    computed = 0
    if timings is not None:
        tokens = tokens or int(timings.predicted_n)
        prompt = prompt or int(timings.prompt_n + timings.cache_n)
        seconds = max(0.0, timings.predicted_ms / 1000)
        prompt_seconds = max(0.0, timings.prompt_ms / 1000)
        computed = max(0, int(timings.prompt_n))
    if tokens == 1:
        seconds = math.nan
    return Usage(max(0, tokens), max(0, prompt), seconds, prompt_seconds, computed)
