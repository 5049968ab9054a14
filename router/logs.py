"""The log: one line an event, to stderr and to a file, written by a thread: no disk stalls the loop."""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import logging.handlers
import queue
import re
import sys
import time
from pathlib import Path
from typing import Any, Final, TextIO

LOG_NAME: Final = "lemon-tray.log"
FILE_BYTES: Final = 2 << 20
FILE_COUNT: Final = 3
QUEUE_LENGTH: Final = 10_000
STOP_S: Final = 2.0

_SECRETS: Final = re.compile(
    r"""
    (?P<before>
        \bAuthorization["']?\s*[:=]\s*["']?(?:(?:Bearer|Basic)\s+)?
        | \bBearer\s+
        | \b(?:api[-_]?key|token|password|secret)["']?\s*[:=]\s*["']?
        | --[a-z-]*(?:key|token|password|secret)\s+
        | ://[^/\s:@]*:(?=[^/\s@]+@)
    )
    [^\s"',}@]+
    """,
    re.IGNORECASE | re.VERBOSE,
)
HIDDEN: Final = "***"
_hidden: set[str] = set()


def hide(secret: str) -> None:
    """Never let this text into the log, wherever it turns up."""
    if secret:
        _hidden.add(secret)


def redact(text: str) -> str:
    """The text without secrets: those told to `hide`, and what looks like a key or a password."""
    for secret in _hidden:
        text = text.replace(secret, HIDDEN)
    return _SECRETS.sub(lambda match: match["before"] + HIDDEN, text)


class _Formatter(logging.Formatter):
    """`2026-01-31T12:00:00.000 WARNING router.catalog: message`, on one line."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(record.created))
        return f"{moment}.{int(record.msecs):03d}"

    def format(self, record: logging.LogRecord) -> str:
        line = f"{self.formatTime(record)} {record.levelname} {record.name}: {record.message}"
        if record.exc_text:
            line = f"{line} | {record.exc_text}"
        return _one_line(line)


class _JsonFormatter(_Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, Any] = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.message,
        }
        if record.exc_text:
            event["exception"] = record.exc_text
        return json.dumps(event)


def _one_line(text: str) -> str:
    writable = text.encode("utf-8", "backslashreplace").decode()
    return " | ".join(part.rstrip() for part in re.split(r"[\r\n\v\f\x85\u2028\u2029]+", writable) if part)


class _Handler(logging.handlers.QueueHandler):
    """Finishes the texts where the event happens, and hands them over without ever waiting."""

    dropped = 0

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        ready = copy.copy(record)
        ready.message = redact(record.getMessage())
        if record.exc_info and not record.exc_text:
            ready.exc_text = logging.Formatter().formatException(record.exc_info)
        if ready.exc_text:
            ready.exc_text = redact(ready.exc_text)
        ready.msg, ready.args, ready.exc_info, ready.stack_info = ready.message, None, None, None
        return ready

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            self.dropped += 1


class Logs:
    """Logging that is set up. `stop` writes what is waiting and puts the root logger back as it was."""

    def __init__(self, handler: _Handler, listener: logging.handlers.QueueListener, level: int) -> None:
        self._handler = handler
        self._listener = listener
        self._level_before = level

    @property
    def dropped(self) -> int:
        """Events lost because they came faster than they could be written."""
        return self._handler.dropped

    def stop(self) -> None:
        """Idempotent. Waits for the writing thread a while: a full pipe must not hold up an exit."""
        root = logging.getLogger()
        if self._handler not in root.handlers:
            return
        root.removeHandler(self._handler)
        root.setLevel(self._level_before)
        thread = self._listener._thread
        with contextlib.suppress(queue.Full):
            self._listener.enqueue_sentinel()
        if thread is not None:
            thread.join(STOP_S)
            if thread.is_alive():
                return
        for handler in self._listener.handlers:
            if isinstance(handler, logging.FileHandler):
                handler.close()


def set_up(
    log_dir: Path | None,
    *,
    as_json: bool = False,
    level: int = logging.INFO,
    stream: TextIO | None = None,
) -> Logs:
    """Send the log to a stream (stderr by default) and, with `log_dir`, to a rotating file there.

    A file that cannot be opened is said so on the stream, and does without.
    """
    formatter = _JsonFormatter() if as_json else _Formatter()
    outputs: list[logging.Handler] = []
    target = stream if stream is not None else sys.stderr
    if target is not None:  # a windowed program on Windows has none
        outputs.append(logging.StreamHandler(target))
    failure: OSError | None = None
    if log_dir is not None:
        try:
            log_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            outputs.append(
                logging.handlers.RotatingFileHandler(
                    log_dir / LOG_NAME,
                    maxBytes=FILE_BYTES,
                    backupCount=FILE_COUNT,
                    encoding="utf-8",
                    errors="backslashreplace",
                )
            )
        except OSError as error:
            failure = error
    for output in outputs:
        output.setFormatter(formatter)
    events: queue.Queue[Any] = queue.Queue(QUEUE_LENGTH)
    handler = _Handler(events)
    listener = logging.handlers.QueueListener(events, *outputs)
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(level)
    listener.start()
    if failure is not None:
        logging.getLogger(__name__).warning("No log file in %s: %s.", log_dir, failure.strerror or failure)
    return Logs(handler, listener, before)
