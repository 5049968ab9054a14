"""The lock of an instance on a disk that fills."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import pytest

from router.errors import InstanceError
from router.instance import InstanceLock, read_holder


def fill(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Path, data: bytes) -> int:
        self.touch()  # as on a full disk: the name is there, its contents are not
        raise OSError(errno.ENOSPC, "No space left on device", str(self))

    monkeypatch.setattr(Path, "write_bytes", fail)


def test_a_full_disk_is_told_and_leaves_the_lock_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = InstanceLock(tmp_path)
    with monkeypatch.context() as full:
        fill(full)
        with pytest.raises(InstanceError, match=r"instance\.json cannot be written: No space left on device"):
            lock.acquire()
    assert not lock.held
    assert sorted(path.name for path in tmp_path.iterdir()) == ["instance.lock"]
    assert lock.acquire()
    lock.release()


def test_a_disk_that_fills_meanwhile_does_not_end_what_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lock = InstanceLock(tmp_path)
    assert lock.acquire()
    with monkeypatch.context() as full, caplog.at_level(logging.WARNING):
        fill(full)
        lock.set_endpoint("http://127.0.0.1:1/v1")
    assert "--endpoint http://127.0.0.1:1/v1" in caplog.text
    holder = read_holder(tmp_path)
    assert holder is not None
    assert holder.endpoint == ""
    lock.release()
