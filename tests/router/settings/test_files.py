"""Small files: what a broken write leaves behind, and what is said of a file that cannot be read."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from router.settings import files
from router.settings.files import LEFT_S, read_object, remove_leftovers, write_atomically


def test_what_broken_writes_left_behind_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(source: object, target: object) -> None:
        raise KeyboardInterrupt  # stands for the end of the process: nothing after it happens

    target = tmp_path / "config.json"
    write_atomically(target, b"1")
    monkeypatch.setattr(files.os, "replace", die)
    monkeypatch.setattr(files.os, "unlink", lambda path: None)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            write_atomically(target, b"2")
    monkeypatch.undo()
    old, young = sorted(path for path in tmp_path.iterdir() if path != target)
    long_ago = time.time() - LEFT_S - 60
    os.utime(old, (long_ago, long_ago))
    kept = [target, young]
    for name in ("config.json.v1.bak", ".config.json.tmp", ".hidden", "a.tmp", "config.json.corrupt-1"):
        other = tmp_path / name
        other.touch()
        os.utime(other, (long_ago, long_ago))
        kept.append(other)
    remove_leftovers([tmp_path / "missing", tmp_path])
    assert sorted(tmp_path.iterdir()) == sorted(kept)
    assert target.read_bytes() == b"1"


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "it is empty"),
        (b" \r\n", "it is empty"),
        (b"\0" * 20, "it is no JSON, from line 1, column 1 on"),
        (b'{"a": 1,\n// why\n}', "it is no JSON, from line 2, column 1 on"),
        (b'{"a": "\xff"}', "it is no text in UTF-8, from byte 7 on"),
        (b"[]", "it is no JSON object"),
        (b"[" * 100_000, "it is nested too deeply"),
        (b'{"a": 1, "a": 2}', 'it names "a" twice'),
    ],
)
def test_what_is_wrong_is_said_where(data: bytes, told: str) -> None:
    with pytest.raises(ValueError, match="it ") as caught:
        read_object(data)
    assert str(caught.value).startswith(told)


@pytest.mark.parametrize("data", [b'\xef\xbb\xbf{"a": 1}\r\n', '{"a": 1}'.encode("utf-16"), b'\n{"a":\r\n1}'])
def test_how_an_editor_writes_does_not_matter(data: bytes) -> None:
    assert read_object(data) == {"a": 1}
