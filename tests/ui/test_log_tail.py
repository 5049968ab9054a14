"""The end of a log file: growing, rotated, cut, not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lemon_tray.log_tail import FIRST_BYTES, rank_of, read_news, wanted


def test_it_reads_what_is_there_and_then_what_comes(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert read_news(path, None).lines == ()
    path.write_text("one\ntwo\nhalf of")
    news = read_news(path, None)
    assert news.lines == ("one", "two")
    with path.open("a") as file:
        file.write(" three\nfour\n")
    news = read_news(path, news.place)
    assert (news.lines, news.fresh) == (("half of three", "four"), False)
    assert read_news(path, news.place).lines == ()


def test_a_rotated_file_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("old\n" * 10)
    place = read_news(path, None).place
    os.replace(path, tmp_path / "log.1")
    assert read_news(path, place).lines == ()
    path.write_text("new\n")
    news = read_news(path, place)
    assert (news.lines, news.fresh) == (("new",), True)
    path.write_text("cut\n")
    with path.open("a") as file:
        file.write("x" * 100)
    assert read_news(path, news.place).lines == ()  # the same length: nothing new in whole lines


def test_a_cut_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("old\n" * 10)
    place = read_news(path, None).place
    with path.open("r+") as file:
        file.truncate(0)
        file.write("new\n")
    assert read_news(path, place).lines == ("new",)


def test_of_a_long_file_only_the_end_is_read_in_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(f"{n:09}\n" for n in range(100_000)))
    news = read_news(path, None)
    assert len(news.lines) <= FIRST_BYTES // 10
    assert news.lines[-1] == "000099999"
    assert all(len(line) == 9 for line in news.lines)


def test_bytes_that_are_no_text_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"\xff\xfe broken\nfine\n")
    assert read_news(path, None).lines[1] == "fine"


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        ("2026-01-31T12:00:00.000 INFO router.catalog: ERROR is a word", 0),
        ("2026-01-31T12:00:00.000 WARNING router.catalog: x", 1),
        ("2026-01-31T12:00:00.000 ERROR router.catalog: x", 2),
        ("2026-01-31T12:00:00.000 CRITICAL x: y", 2),
        ('{"time": "t", "level": "warning", "message": "x"}', 1),
        ("anything", 0),
    ],
)
def test_levels(line: str, rank: int) -> None:
    assert rank_of(line) == rank


def test_a_filter_wants_the_level_and_every_word() -> None:
    line = "2026-01-31T12:00:00.000 WARNING router.catalog: The file moved"
    assert wanted(line, "", 0)
    assert wanted(line, "FILE catalog", 1)
    assert not wanted(line, "file gone", 1)
    assert not wanted(line, "", 2)
