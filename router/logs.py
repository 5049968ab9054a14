"""The log: one line an event, to stderr and to a file, written by a thread: no disk stalls the loop.

Requests are logged, too, so a line must cost little where it happens: there its text is made and put on a
list, or, for a line that `tell` is given, only what the text is made of. The thread writes what has gathered
in a tenth of a second at once; a warning it writes without waiting.
"""

from __future__ import annotations

import contextlib
import json
import logging
import logging.handlers
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TextIO

LOG_NAME: Final = "lemon-tray.log"
FILE_BYTES: Final = 2 << 20
FILE_COUNT: Final = 3
QUEUE_LENGTH: Final = 10_000
STOP_S: Final = 2.0
GATHER_S: Final = 0.1

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
# What every secret-looking text has in it: a text without any of these needs no closer look.
_TELLTALES: Final = ("auth", "bearer", "key", "token", "password", "secret", "://")
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
    if not _has_telltale(text.lower()):
        return text
    return _SECRETS.sub(lambda match: match["before"] + HIDDEN, text)


def _has_telltale(text: str) -> bool:
    for telltale in _TELLTALES:  # noqa: SIM110  # `any` takes twice as long, and each line comes here
        if telltale in text:
            return True
    return False


class _Line(NamedTuple):
    """An event, its texts finished."""

    created: float
    level: str
    logger: str
    message: str
    exception: str


class _Parts(NamedTuple):
    """An event whose text the thread makes."""

    created: float
    level: int
    logger: str
    form: Callable[..., str]
    parts: tuple[Any, ...]

    def line(self) -> _Line:
        message = redact(self.form(*self.parts))
        return _Line(self.created, logging.getLevelName(self.level), self.logger, message, "")


def tell(logger: logging.Logger, level: int, form: Callable[..., str], *parts: Any) -> None:
    """Log a line of which there are very many.

    Args:
        form: makes the text of `parts`, on another thread and a moment later: these must not change.
    """
    if not logger.isEnabledFor(level):
        return
    writer = _only_writer
    if writer is not None and len(logging.root.handlers) == 1 and level < logging.WARNING:
        writer.put(_Parts(time.time(), level, logger.name, form, parts), at_once=False)
    else:
        logger.log(level, "%s", form(*parts))


class _Clock:
    """Writes moments as `2026-01-31T12:00:00.000`, in local time."""

    def __init__(self) -> None:
        self._second = -1
        self._text = ""

    def write(self, moment: float) -> str:
        second = int(moment)
        if second != self._second:
            self._second = second
            self._text = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(second))
        return f"{self._text}.{int(moment % 1 * 1000):03d}"


class _Plain:
    """`2026-01-31T12:00:00.000 WARNING router.catalog: message`, on one line."""

    def __init__(self) -> None:
        self._clock = _Clock()

    def write(self, line: _Line) -> str:
        text = f"{self._clock.write(line.created)} {line.level} {line.logger}: {line.message}"
        return _one_line(f"{text} | {line.exception}" if line.exception else text)


class _Json:
    """One JSON object a line."""

    def __init__(self) -> None:
        self._clock = _Clock()

    def write(self, line: _Line) -> str:
        event: dict[str, Any] = {
            "time": self._clock.write(line.created),
            "level": line.level.lower(),
            "logger": line.logger,
            "message": line.message,
        }
        if line.exception:
            event["exception"] = line.exception
        return json.dumps(event)


def _one_line(text: str) -> str:
    if text.isprintable():
        return text
    writable = text.encode("utf-8", "backslashreplace").decode()
    return " | ".join(part.rstrip() for part in re.split(r"[\r\n\v\f\x85\u2028\u2029]+", writable) if part)


class _Rotating(logging.handlers.RotatingFileHandler):
    """Written to by text instead of by record."""

    def append(self, text: str) -> None:
        """Write whole lines. A file is begun anew between two lines, before it gets too long."""
        while text:
            if self.stream is None:
                self.stream = self._open()
            written = self.stream.tell()
            room = max(self.maxBytes - written, 0)
            cut = len(text) if len(text) <= room else text.rfind("\n", 0, room) + 1
            if not cut and written:
                self.doRollover()
                continue
            # A line that is longer than a file has one to itself.
            cut = cut or text.find("\n") + 1 or len(text)
            self.stream.write(text[:cut])
            self.stream.flush()
            text = text[cut:]


class _Writer:
    """The thread and what it writes to."""

    def __init__(self, form: _Plain | _Json, stream: TextIO | None, file: _Rotating | None) -> None:
        self._form = form
        self._stream = stream
        self._file = file
        self._lines: deque[_Line | _Parts] = deque()
        self._is_due = threading.Event()
        self._hurry = threading.Event()
        self._is_awake = False
        self._ends = False
        self.dropped = 0
        # It must not keep an ending process alive when an output is stuck.
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def put(self, line: _Line | _Parts, *, at_once: bool) -> None:
        """Never waits. Called on any thread."""
        if len(self._lines) >= QUEUE_LENGTH:
            self.dropped += 1
            return
        self._lines.append(line)
        if not self._is_awake:
            self._is_awake = True
            self._is_due.set()
        if at_once:
            self._hurry.set()

    def stop(self) -> bool:
        """Write what is waiting; False if that takes too long."""
        self._ends = True
        self._hurry.set()
        self._is_due.set()
        self._thread.join(STOP_S)
        if self._thread.is_alive():
            return False
        if self._file is not None:
            # What a full disk did not take is tried once more here, and given up.
            with contextlib.suppress(OSError):
                self._file.close()
        return True

    def _run(self) -> None:
        while True:
            self._is_due.wait()
            self._is_due.clear()
            while self._lines:
                self._write(self._text(self._lines.popleft()) for _ in range(len(self._lines)))
                if not self._ends:
                    self._hurry.wait(GATHER_S)
                self._hurry.clear()
            # A line that comes between the two is seen here, or sets the event.
            self._is_awake = False
            if self._lines:
                self._is_due.set()
            elif self._ends:
                return

    def _text(self, line: _Line | _Parts) -> str:
        return self._form.write(line.line() if isinstance(line, _Parts) else line)

    def _write(self, lines: Iterable[str]) -> None:
        text = "".join(f"{line}\n" for line in lines)
        for output in (self._to_stream, self._to_file):
            try:
                output(text)
            except (OSError, ValueError):
                # A terminal that closed, a full disk: what else could be told, and where?
                self.dropped += text.count("\n")

    def _to_stream(self, text: str) -> None:
        if self._stream is not None:
            try:
                self._stream.write(text)
            except UnicodeEncodeError:
                self._stream.write(text.encode("ascii", "backslashreplace").decode())
            self._stream.flush()

    def _to_file(self, text: str) -> None:
        if self._file is not None:
            self._file.append(text)


class _Open:
    """A lock that anybody may pass at any time."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        return None

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *_: object) -> None:
        return None


class _Handler(logging.Handler):
    """Finishes the texts where the event happens, and hands them over without ever waiting."""

    def __init__(self, writer: _Writer) -> None:
        super().__init__()
        self._writer = writer

    def createLock(self) -> None:
        """None is needed: putting on the list is one step. From Python 3.13 on there has to be one."""
        self.lock = _Open()  # type: ignore[assignment]  # all that a handler asks of a lock

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = redact(record.getMessage())
            exception = record.exc_text or ""
            if record.exc_info and not exception:
                exception = logging.Formatter().formatException(record.exc_info)
            line = _Line(
                record.created, record.levelname, record.name, message, redact(exception) if exception else ""
            )
        except Exception:
            self.handleError(record)
            return
        self._writer.put(line, at_once=record.levelno >= logging.WARNING)


class _Frugal:
    """Has no record look for what is not written: the caller's place, its thread and its process."""

    _NAMES: Final[Sequence[str]] = ("logThreads", "logProcesses", "logMultiprocessing", "logAsyncioTasks")

    def __init__(self) -> None:
        self._before = {name: getattr(logging, name) for name in self._NAMES if hasattr(logging, name)}
        self._before["_srcfile"] = logging._srcfile
        for name in self._before:
            setattr(logging, name, None if name == "_srcfile" else False)

    def undo(self) -> None:
        for name, value in self._before.items():
            setattr(logging, name, value)


#: Where lines go while the log is set up.
_only_writer: _Writer | None = None


class Logs:
    """Logging that is set up. `stop` writes what is waiting and puts the root logger back as it was."""

    def __init__(self, handler: _Handler, writer: _Writer, level: int) -> None:
        self._handler = handler
        self._writer = writer
        self._level_before = level
        self._frugal = _Frugal()

    @property
    def dropped(self) -> int:
        """Events lost because they came faster than they could be written, or could not be written."""
        return self._writer.dropped

    def stop(self) -> None:
        """Idempotent. Waits for the writing thread a while: a full pipe must not hold up an exit."""
        root = logging.getLogger()
        if self._handler not in root.handlers:
            return
        global _only_writer
        _only_writer = None
        root.removeHandler(self._handler)
        root.setLevel(self._level_before)
        self._frugal.undo()
        self._writer.stop()


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
    target = stream if stream is not None else sys.stderr  # a windowed program on Windows has none
    file: _Rotating | None = None
    failure: OSError | None = None
    if log_dir is not None:
        try:
            log_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = _Rotating(
                log_dir / LOG_NAME,
                maxBytes=FILE_BYTES,
                backupCount=FILE_COUNT,
                encoding="utf-8",
                errors="backslashreplace",
            )
        except OSError as error:
            failure = error
    writer = _Writer(_Json() if as_json else _Plain(), target, file)
    handler = _Handler(writer)
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(level)
    global _only_writer
    _only_writer = writer
    made = Logs(handler, writer, before)
    if failure is not None:
        logging.getLogger(__name__).warning("No log file in %s: %s.", log_dir, failure.strerror or failure)
    return made
