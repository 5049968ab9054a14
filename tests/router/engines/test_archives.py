"""Unpacking: what belongs there is there, and nothing else, whatever the archive says."""

from __future__ import annotations

import gzip
import os
import stat
import tarfile
import threading
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.engines.archives import Abandoned, BadArchive, Limits, safe_parts, unpack
from tests.router.engines.release_server import entry, good_tar, good_zip, tar, zipped

pytestmark = pytest.mark.skipif(os.name != "posix", reason="run bits and links are those of POSIX")


def unpacked(tmp_path: Path, data: bytes, limits: Limits | None = None) -> Path:
    """Unpack into a folder with neighbours, and see that those are as before."""
    archive = tmp_path / "archive"
    archive.write_bytes(data)
    into = tmp_path / "outer" / "inner"
    into.mkdir(parents=True)
    (tmp_path / "outer" / "neighbour").write_text("untouched")
    try:
        unpack(archive, into, limits=limits)
    finally:
        assert {path.name for path in tmp_path.iterdir()} == {"archive", "outer"}
        assert {path.name for path in (tmp_path / "outer").iterdir()} == {"inner", "neighbour"}
        assert (tmp_path / "outer" / "neighbour").read_text() == "untouched"
        for path in into.rglob("*"):
            assert Path(os.path.realpath(path)).is_relative_to(os.path.realpath(into))
            assert stat.S_ISREG(path.stat().st_mode) or path.is_dir()
    return into


def test_a_tar_keeps_links_and_run_bits(tmp_path: Path) -> None:
    into = unpacked(tmp_path, good_tar())
    top = into / "llama-b100"
    assert os.access(top / "llama-server", os.X_OK)
    assert not os.access(top / "LICENSE", os.X_OK)
    assert (top / "libllama.so").read_text() == "whole"
    assert os.readlink(top / "libllama.so") == "libllama.so.0"


def test_a_zip_does_too(tmp_path: Path) -> None:
    into = unpacked(tmp_path, good_zip())
    assert (into / "libllama.so").read_text() == "whole"
    assert (into / "llama-server").is_file()


def test_only_run_bits_are_taken(tmp_path: Path) -> None:
    into = unpacked(tmp_path, tar(entry("a", b"x", mode=0o6777), entry("b", b"x", mode=0)))
    assert stat.S_IMODE((into / "a").stat().st_mode) == 0o755
    assert stat.S_IMODE((into / "b").stat().st_mode) == 0o644


def test_a_hard_link_is_a_copy(tmp_path: Path) -> None:
    into = unpacked(
        tmp_path, tar(entry("d/a", b"same", mode=0o755), entry("b", kind=tarfile.LNKTYPE, to="d/a"))
    )
    assert (into / "b").read_bytes() == b"same"
    assert os.access(into / "b", os.X_OK)


OUTSIDE = ["../evil", "/evil", "a/../../evil", "..\\evil", "C:\\evil", "c:evil", "\\\\host\\evil", "a/../b"]


@pytest.mark.parametrize("name", OUTSIDE)
def test_names_that_lead_out_are_refused(tmp_path: Path, name: str) -> None:
    for number, data in enumerate((tar(entry(name, b"x")), zipped({name: b"x"}))):
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(BadArchive, match="leads out"):
            unpacked(folder, data)


@pytest.mark.parametrize("name", ["a:b", "NUL", "con.txt", "lpt1", "x\ny", "d/" * 20 + "f"])
def test_names_that_are_none_everywhere_are_refused(name: str) -> None:
    with pytest.raises(BadArchive):
        safe_parts(name)


@pytest.mark.parametrize("to", [*OUTSIDE, "", "."])
def test_links_that_lead_out_are_refused(tmp_path: Path, to: str) -> None:
    link = tar(entry("ok", b"x"), entry("a/link", kind=tarfile.SYMTYPE, to=to))
    zip_link = zipped({"link": to.encode()}, modes={"link": stat.S_IFLNK | 0o777})
    for number, data in enumerate((link, zip_link)):
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(BadArchive):
            unpacked(folder, data)


@pytest.mark.parametrize("to", ["../outer/neighbour", "/etc/passwd", "missing", "later"])
def test_hard_links_to_what_is_not_in_it_are_refused(tmp_path: Path, to: str) -> None:
    data = tar(entry("link", kind=tarfile.LNKTYPE, to=to), entry("later", b"x"))
    with pytest.raises(BadArchive):
        unpacked(tmp_path, data)


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    through = tar(
        entry("inside/file", b"x"),
        entry("link", kind=tarfile.SYMTYPE, to="inside"),
        entry("link/file", b"evil"),
    )
    with pytest.raises(BadArchive, match="needs a folder"):
        unpacked(tmp_path, through)


def test_a_link_in_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    data = tar(entry("a/file", b"x"), entry("b", b"y"), entry("a", kind=tarfile.SYMTYPE, to="b"))
    with pytest.raises(BadArchive, match="two entries"):
        unpacked(tmp_path, data)


def test_links_of_links_stay_inside(tmp_path: Path) -> None:
    data = tar(
        entry("d/e/f", b"deep"),
        entry("one", kind=tarfile.SYMTYPE, to="d"),
        entry("two", kind=tarfile.SYMTYPE, to="one/e"),
        entry("three", kind=tarfile.SYMTYPE, to="two/f"),
    )
    assert (unpacked(tmp_path, data) / "three").read_bytes() == b"deep"


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_devices_and_pipes_are_refused(tmp_path: Path, kind: bytes) -> None:
    with pytest.raises(BadArchive, match="no file"):
        unpacked(tmp_path, tar(entry("node", kind=kind)))


def test_devices_in_a_zip_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadArchive, match="no file"):
        unpacked(tmp_path, zipped({"node": b""}, modes={"node": stat.S_IFIFO | 0o644}))


@pytest.mark.parametrize("second", ["a", "A", "./a", "a/b"])
def test_names_that_clash_somewhere_are_refused(tmp_path: Path, second: str) -> None:
    with pytest.raises(BadArchive):
        unpacked(tmp_path, tar(entry("a", b"1"), entry(second, b"2")))


def test_composed_and_decomposed_names_clash(tmp_path: Path) -> None:
    with pytest.raises(BadArchive, match="two entries"):
        unpacked(tmp_path, zipped({"\u00e9": b"1", "e\u0301": b"2"}))


def test_too_much_is_refused_before_it_is_written(tmp_path: Path) -> None:
    bomb = tar(entry("a", bytes(3 << 20)), entry("b", bytes(3 << 20)))
    assert len(bomb) < 100_000
    with pytest.raises(BadArchive, match="more than 5 MiB"):
        unpacked(tmp_path, bomb, Limits(size=5 << 20))
    assert not (tmp_path / "outer/inner/b").exists()


def test_too_many_entries_are_refused(tmp_path: Path) -> None:
    for number, data in enumerate(
        (
            tar(*(entry(f"d{i}/", kind=tarfile.DIRTYPE) for i in range(30))),
            zipped({f"{i}": b"" for i in range(30)}),
        )
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(BadArchive, match="20 entries"):
            unpacked(folder, data, Limits(entries=20))


def test_a_huge_header_is_not_taken_into_memory(tmp_path: Path) -> None:
    info = tarfile.TarInfo("long")
    info.type = tarfile.XHDTYPE
    info.size = 64 << 20
    data = gzip.compress(info.tobuf() + bytes(info.size), 1)
    with pytest.raises(BadArchive, match="between its files"):
        unpacked(tmp_path, data)


@pytest.mark.parametrize(
    "data", [b"", b"x", b"<html>sign in</html>", b"PK", b"PK\x03\x04", b"\x1f\x8b\x08", b"\x1f\x8b" * 99]
)
def test_what_is_no_archive_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(BadArchive):
        unpacked(tmp_path, data)


@pytest.mark.parametrize("make", [good_tar, good_zip])
def test_a_cut_or_altered_archive_is_refused(tmp_path: Path, make: object) -> None:
    data: bytes = make()  # type: ignore[operator]  # either of two functions without arguments
    for number, bad in enumerate((data[: len(data) // 2], data[:100] + bytes(50) + data[150:])):
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(BadArchive):
            unpacked(folder, bad)


def test_an_encrypted_zip_is_refused(tmp_path: Path) -> None:
    data = bytearray(zipped({"a": b"secret"}))
    for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(mark) + at] |= 1
    with pytest.raises(BadArchive, match="not known"):
        unpacked(tmp_path, bytes(data))


def test_it_ends_when_told_to(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    archive.write_bytes(good_tar())
    cancelled = threading.Event()
    cancelled.set()
    (tmp_path / "into").mkdir()
    with pytest.raises(Abandoned):
        unpack(archive, tmp_path / "into", cancelled)


@given(st.text(max_size=60))
def test_safe_parts_never_lead_out(name: str) -> None:
    try:
        parts = safe_parts(name)
    except BadArchive:
        return
    assert ".." not in parts
    path = os.path.normpath(os.path.join("/root/of/it", *parts))
    assert path == "/root/of/it" or path.startswith("/root/of/it/")


@given(st.binary(max_size=400), st.integers(0, 3))
def test_damage_is_always_told(tmp_path_factory: pytest.TempPathFactory, noise: bytes, kind: int) -> None:
    base = (b"PK\x03\x04", b"\x1f\x8b\x08\x00", zipped({"a": b"x"})[:40], gzip.compress(b"x" * 600)[:30])[
        kind
    ]
    folder = tmp_path_factory.mktemp("noise")
    archive = folder / "archive"
    archive.write_bytes(base + noise)
    (folder / "into").mkdir()
    try:
        unpack(archive, folder / "into")
    except BadArchive:
        return
    assert not any((folder / "into").iterdir())


def test_its_names_survive(tmp_path: Path) -> None:
    names = ["山 月/ü 'q' \"d\" $HOME ;x", "plain"]
    into = unpacked(tmp_path, tar(*(entry(name, b"x") for name in names)))
    assert all((into / name).is_file() for name in names)
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr(names[0], "x")
    (tmp_path / "zip").mkdir()
    unpack(tmp_path / "x.zip", tmp_path / "zip")
    assert (tmp_path / "zip" / names[0]).is_file()
