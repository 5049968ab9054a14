"""Output of workers: cut into lines, kept in memory and in files of bounded size."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from router.engines import output
from router.engines.output import MAX_LINE, ROTATE_BYTES, Lines, LogFiles, Tail


@pytest.mark.parametrize("step", [1, 2, 3, 7, 100])
def test_lines_do_not_depend_on_how_the_bytes_arrive(step: int) -> None:
    data = "one\ntwo 模型\r\n\n\xffx".encode() + b"\xff\nrest"
    lines = Lines()
    told = [line for at in range(0, len(data), step) for line in lines.feed(data[at : at + step])]
    assert told == ["one", "two 模型", "", "ÿx\N{REPLACEMENT CHARACTER}"]
    assert lines.end() == ["rest"]
    assert lines.end() == []


def test_a_line_without_end_is_cut() -> None:
    lines = Lines()
    told = [line for _ in range(100) for line in lines.feed(b"x" * 1000)]
    assert {len(line) for line in told} == {MAX_LINE}
    assert len("".join(told)) + len(lines.end()[0]) == 100_000


def test_a_long_line_in_one_piece_is_cut() -> None:
    told = Lines().feed(b"x" * (2 * MAX_LINE + 5) + b"\n\n")
    assert [len(line) for line in told] == [MAX_LINE, MAX_LINE, 5, 0]


def test_the_tail_is_bounded() -> None:
    tail = Tail(100)
    for number in range(1000):
        tail.add([f"line {number}"])
    assert tail.lines[-1] == "line 999"
    assert sum(len(line) + 1 for line in tail.lines) <= 100
    tail.add(["x" * 1000])
    assert tail.lines == ()


async def test_output_is_kept_by_model(tmp_path: Path) -> None:
    logs = LogFiles(tmp_path / "new" / "folder")
    logs.write("a", b"1\n")
    logs.write("b", b"2\n")
    logs.write("a", b"3\n")
    await logs.aclose()
    assert logs.path("a").read_bytes() == b"1\n3\n"
    assert logs.path("b").read_bytes() == b"2\n"
    logs.write("a", b"4\n")
    await logs.aclose()
    assert logs.path("a").read_bytes() == b"1\n3\n4\n"


async def test_files_are_rotated_and_one_older_is_kept(tmp_path: Path) -> None:
    logs = LogFiles(tmp_path)
    for number in range(5):
        logs.write("a", bytes([48 + number]) * (ROTATE_BYTES * 3 // 4))
    await logs.aclose()
    files = {path.name: path.read_bytes()[:1] for path in tmp_path.iterdir()}
    assert files == {"a.log": b"4", "a.log.1": b"3"}


@pytest.mark.parametrize("name", ["../../etc/passwd", "/abs", "", "..", "a/b\\c:d\n", "模型 🙂", "x" * 500])
def test_a_model_s_name_stays_one_plain_file_name(tmp_path: Path, name: str) -> None:
    path = LogFiles(tmp_path).path(name)
    assert path.parent == tmp_path
    assert path.name not in (".log", "..log")
    assert len(path.name) < 100


async def test_a_disk_that_cannot_keep_up_costs_output_and_not_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, append = threading.Event(), LogFiles._append

    def slow(self: LogFiles, path: Path, data: bytes) -> None:
        gate.wait()
        append(self, path, data)

    monkeypatch.setattr(LogFiles, "_append", slow)
    monkeypatch.setattr(output, "MAX_WAITING", 1000)
    logs = LogFiles(tmp_path)
    for _ in range(100):
        logs.write("a", b"x" * 100)
    gate.set()
    await logs.aclose()
    logs.write("a", b"after\n")
    await logs.aclose()
    kept = logs.path("a").read_bytes()
    assert kept.count(b"x") == 1100
    assert b"[8900 bytes of output left out" in kept
    assert kept.endswith(b"after\n")


async def test_a_folder_that_cannot_be_written_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    logs = LogFiles(tmp_path / "file")
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            logs.write("a", b"x")
        await logs.aclose()
    assert len(caplog.records) == 1
