"""Why a load failed or a worker died, in plain words, from what it printed and how it ended."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

_ERROR_LINE: Final = re.compile(
    r"[\d.]+ E (?:\w+ +(?=\S+: ))?(?:[^\s:]+: )?(?:error loading model: )?(?P<text>.+)"
)
#: How CUDA, ROCm, Vulkan, Metal, SYCL and the C++ and Python run times say it.
_OUT_OF_MEMORY: Final = re.compile(
    r"out[ _]of[ _]?(?:device|host|video|gpu)?[ _]?memory|erroroutof(?:device|host)?memory|bad_alloc"
    r"|cannot allocate memory|insufficient memory|(?:failed|unable) to (?:re)?allocate"
    r"|(?:cuda|hip|musa)malloc\w* failed|exceeds device (?:memory|buffer)",
    re.IGNORECASE,
)
#: What sounds alike and is no fault: the engine does without that memory.
_HARMLESS: Final = re.compile(r"pinned|mlock|\bwarning\b|[\d.]+ W ", re.IGNORECASE)
#: What it tells of its daily work, with a level or without one: it says nothing of the end.
_CHATTER: Final = re.compile(r"[\d.]+ [A-DF-Z] |(?:slot|srv|que|sched_\w+|graph_\w+) ")
#: What engines and run times say with their last breath, on lines that have no level.
_LAST_BREATH: Final = re.compile(
    r"GGML_(?:ASSERT|ABORT)|\b(?:cuda|hip|rocm|vulkan|metal|sycl) error\b|\bwhat\(\)|\bterminate called"
    r"|\b\w*(?:Error|Exception): |\bfatal\b|\bsegmentation fault\b|vk::\S+: \w*Error",
    re.IGNORECASE,
)
#: An error that was answered to a client: the worker lived on.
_ANSWERED: Final = re.compile(r"\bsend_error\b")
_LAST_LINES: Final = 20
_MAX_WORDS: Final = 300


class Cause(Struct, frozen=True):
    """`text` has no full stop; `is_memory` tells whether memory was what the load lacked."""

    text: str
    is_memory: bool = False


def find_cause(lines: Sequence[str], code: int) -> Cause:
    """The cause, from a process's last lines and its exit code, negative for a signal."""
    errors = [match["text"].strip() for line in lines if (match := _ERROR_LINE.match(line))]
    # The first error is the cause; the others follow from it.
    plain = (line.strip() for line in reversed(lines) if not _CHATTER.match(line))
    said = errors[0] if errors else next(filter(None, plain), "")
    if shortage := next((line for line in lines if says_out_of_memory(line)), None):
        match = _ERROR_LINE.match(shortage)
        text = match["text"].strip() if match else shortage.strip()
        return Cause(f"out of memory ({text.rstrip('.')})", is_memory=True)
    if code == -signal.SIGKILL and not errors:
        return Cause("its process was killed, most likely by the system for want of memory")
    if code == -signal.SIGILL:
        return Cause("the engine is built for another kind of processor than this machine's")
    if errors or (said and code > 0):
        return Cause(said.rstrip("."))
    what = f"was ended by signal {-code}" if code < 0 else f"ended by itself with status {code}"
    return Cause(f"its process {what}" + (f" ({said.rstrip('.')})" if said else ""))


def find_last_words(lines: Sequence[str]) -> str:
    """What a worker that had been running said of its end, without full stop; "" for nothing but chatter."""
    for line in reversed(lines[-_LAST_LINES:]):
        if says_out_of_memory(line):
            return find_cause([line], 1).text
        match = _ERROR_LINE.match(line)
        if (match or _LAST_BREATH.search(line)) and not (_ANSWERED.search(line) or _CHATTER.match(line)):
            return (match["text"] if match else line).strip().rstrip(".")[:_MAX_WORDS]
    return ""


def says_out_of_memory(line: str) -> bool:
    """Whether a line of an engine's output tells of memory that it did not get and could not do without."""
    return bool(_OUT_OF_MEMORY.search(line)) and not _HARMLESS.search(line)
