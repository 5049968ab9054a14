"""The log."""

from __future__ import annotations

import errno
import io
import json
import logging
import threading
from pathlib import Path

import pytest

from router import logs

SECRET = "k3y-of-a-worker"


def lines(stream: io.StringIO) -> list[str]:
    return stream.getvalue().splitlines()


def test_one_line_an_event_on_the_stream_and_in_the_file(tmp_path: Path) -> None:
    stream = io.StringIO()
    handle = logs.set_up(tmp_path / "log", stream=stream)
    logger = logging.getLogger("router.test")
    logger.info("first\nsecond %s", "x")
    logger.debug("not shown")
    try:
        raise ValueError("it\u2028broke")
    except ValueError:
        logger.exception("a fault in %r", "\udcff")
    handle.stop()
    handle.stop()
    first, second = lines(stream)
    assert first.endswith(" INFO router.test: first | second x")
    assert "ERROR router.test: a fault in '\\udcff' | Traceback" in second
    assert second.endswith("ValueError: it | broke")
    assert (tmp_path / "log" / logs.LOG_NAME).read_text("utf-8").splitlines() == [first, second]


def test_json(tmp_path: Path) -> None:
    stream = io.StringIO()
    handle = logs.set_up(None, as_json=True, stream=stream)
    logging.getLogger("router.test").warning("two\nlines")
    try:
        raise KeyError("k")
    except KeyError:
        logging.getLogger("router.test").exception("no")
    handle.stop()
    first, second = map(json.loads, lines(stream))
    assert (first["level"], first["logger"], first["message"]) == ("warning", "router.test", "two\nlines")
    assert second["exception"].endswith("KeyError: 'k'")


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer s3cr3t-value",
        "headers={'Authorization': 'Bearer s3cr3t-value'}",
        '{"api_key": "s3cr3t-value", "x": 1}',
        "--api-key s3cr3t-value --port 1",
        "GET https://user:s3cr3t-value@host/simple",
        "token=s3cr3t-value",
        f"started with {SECRET}",
    ],
)
def test_secrets_never_come_out(text: str) -> None:
    logs.hide(SECRET)
    stream = io.StringIO()
    handle = logs.set_up(None, stream=stream)
    logging.getLogger("router.test").warning("%s", text)
    handle.stop()
    assert "s3cr3t-value" not in stream.getvalue()
    assert SECRET not in stream.getvalue()
    assert logs.HIDDEN in stream.getvalue()


def test_ordinary_text_is_left_alone() -> None:
    for text in (
        "12 tokens in 3 s, 4.0 tokens/s",
        "GET http://127.0.0.1:13305/v1/models",
        "key max_queue: 3",
    ):
        assert logs.redact(text) == text


class StuckStream(io.StringIO):
    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()

    def write(self, text: str) -> int:
        self.gate.wait(60)
        return super().write(text)


def test_a_stuck_stream_holds_up_neither_the_program_nor_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "QUEUE_LENGTH", 10)
    monkeypatch.setattr(logs, "STOP_S", 0.01)
    stream = StuckStream()
    handle = logs.set_up(None, stream=stream)
    for number in range(100):
        logging.getLogger("router.test").warning("%d", number)
    # What is being written, and what waits.
    assert handle.dropped >= 80
    handle.stop()
    stream.gate.set()


def test_a_folder_that_cannot_be_used_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    stream = io.StringIO()
    handle = logs.set_up(tmp_path / "file" / "log", stream=stream)
    handle.stop()
    assert "No log file in" in stream.getvalue()


def test_lines_come_however_python_locks_a_handler() -> None:
    """Up to 3.12 it asks whether there is a lock, and takes it; from 3.13 on it enters it unasked."""
    stream = io.StringIO()
    handle = logs.set_up(None, stream=stream)
    handler = handle._handler
    record = logging.LogRecord("router.test", logging.INFO, "", 0, "from %s", ("3.13",), None)
    with handler.lock:  # type: ignore[union-attr]  # what is tested is that there is one
        handler.emit(record)
    handler.acquire()
    handler.release()
    logging.getLogger("router.test").info("from this one")
    handle.stop()
    assert [line.rpartition(": ")[2] for line in lines(stream)] == ["from 3.13", "from this one"]


def test_a_full_disk_is_no_fault_of_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not written is tried once more by the file's close."""

    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self) -> None:
            super().close()
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(logs._Rotating, "_open", lambda self: Full())
    stream = io.StringIO()
    handle = logs.set_up(tmp_path / "log", stream=stream)
    logging.getLogger("router.test").warning("lost in the file")
    handle.stop()
    assert handle.dropped == 1
    assert lines(stream)[0].endswith("lost in the file")


def test_many_lines_come_in_order_and_roll_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "FILE_BYTES", 2000)
    stream = io.StringIO()
    handle = logs.set_up(tmp_path, stream=stream)
    for number in range(1000):
        logging.getLogger("router.test").log(
            logging.WARNING if number % 100 == 0 else logging.INFO, "%d", number
        )
    handle.stop()
    assert handle.dropped == 0
    assert [line.rpartition(" ")[2] for line in lines(stream)] == [str(number) for number in range(1000)]
    kept = sorted(tmp_path.iterdir())
    assert [file.name for file in kept] == [logs.LOG_NAME, *(f"{logs.LOG_NAME}.{n}" for n in (1, 2, 3))]
    assert kept[0].read_text().splitlines()[-1].endswith(" 999")
    assert all(0 < file.stat().st_size <= 2000 for file in kept)
    # Nothing is lost from one file to the next older one.
    numbers = [
        int(line.rpartition(" ")[2]) for file in reversed(kept) for line in file.read_text().splitlines()
    ]
    assert numbers == list(range(numbers[0], 1000))


def test_a_warning_is_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "GATHER_S", 60.0)
    written = threading.Event()

    class Stream(io.StringIO):
        def write(self, text: str) -> int:
            if "now" in text:
                written.set()
            return super().write(text)

    handle = logs.set_up(None, stream=Stream())
    logging.getLogger("router.test").info("one that is followed by a pause")
    logging.getLogger("router.test").info("two")
    logging.getLogger("router.test").warning("now")
    assert written.wait(20)
    handle.stop()


def test_logging_is_afterwards_as_it_was() -> None:
    before = (logging._srcfile, logging.logThreads)
    handle = logs.set_up(None, stream=io.StringIO())
    assert logging._srcfile is None
    handle.stop()
    assert (logging._srcfile, logging.logThreads) == before


def test_a_line_that_is_told_in_parts_is_made_later_and_keeps_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])  # pytest's own, for which lines are made at once
    stream = io.StringIO()
    makers: list[str] = []

    def form(what: str, number: int) -> str:
        makers.append(threading.current_thread().name)
        return f"{what} {number} token={SECRET}"

    handle = logs.set_up(None, stream=stream)
    logger = logging.getLogger("router.test")
    logs.tell(logger, logging.INFO, form, "first", 1)
    logs.tell(logger, logging.DEBUG, form, "unseen", 2)
    logger.info("second")
    logs.tell(logger, logging.WARNING, form, "third", 3)
    handle.stop()
    first, second, third = lines(stream)
    assert first.endswith(" INFO router.test: first 1 token=***")
    assert second.endswith("second")
    assert third.endswith(" WARNING router.test: third 3 token=***")
    assert sorted(makers) == ["MainThread", "log"]


def test_a_line_told_in_parts_goes_to_other_handlers_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    logs.tell(logging.getLogger("router.test"), logging.INFO, "{} and {}".format, "this", "that")
    assert caplog.messages == ["this and that"]
