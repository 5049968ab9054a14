"""GPU builds: fetched from a place of releases on this machine, unpacked, tried, kept, deleted."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import signal
import stat
import sys
import tarfile
from collections import namedtuple
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from router import fetch as fetch_module
from router.engines import builds as builds_module
from router.engines.base import Capabilities, EngineDevice
from router.engines.builds import MANIFEST, PART_KEPT_S, Builds
from router.engines.releases import Machine
from router.errors import Conflict, NotFound, RouterError
from router.instance import FileLock
from tests.router.engines.release_server import (
    LINUX,
    PROGRAM,
    TAG,
    GitHub,
    entry,
    good_tar,
    good_zip,
    tar,
    zipped,
)

pytestmark = [
    pytest.mark.fault("F39"),
    pytest.mark.skipif(os.name != "posix", reason="the program in the archives is a script"),
]

NAME = f"llama-{TAG}-bin-ubuntu-vulkan-x64.tar.gz"
PART = f".{NAME}.part"
ID = f"{TAG}-vulkan"
#: What a folder of builds holds besides builds.
EVER = {".lock"}


async def run(program: Path) -> Capabilities:
    """Run it, as the real look at an engine does."""
    process = await asyncio.create_subprocess_exec(
        str(program), "--version", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    text = output.decode()
    problem = "" if process.returncode == 0 else f"it exits with {process.returncode}"
    cards = (EngineDevice("Vulkan0", "vulkan", "a card", 1 << 33),) if "Vulkan0" in text else ()
    version = next((line for line in text.splitlines() if line.startswith("version:")), "")
    return Capabilities(str(program), "llama-server", version, str(program), cards, problem)


@pytest.fixture
async def github() -> GitHub:
    server = GitHub()
    server.publish(TAG, {NAME: good_tar(), f"llama-{TAG}-bin-ubuntu-x64.tar.gz": b"another"})
    return server


@pytest.fixture
async def base(github: GitHub) -> AsyncIterator[str]:
    async with TestServer(github.application(), shutdown_timeout=0.1) as server:
        yield str(server.make_url("/api"))


Make = Callable[..., Builds]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data" / "engines"


@pytest.fixture
async def make(folder: Path, base: str) -> AsyncIterator[Make]:
    async with aiohttp.ClientSession() as session:

        def build(**more: Any) -> Builds:
            given: dict[str, Any] = {
                "folder": folder,
                "machine": LINUX,
                "try_out": run,
                "base": base,
                "session": session,
                "pauses_s": (0, 0, 0),
                **more,
            }
            return Builds(given.pop("folder"), given.pop("machine"), given.pop("try_out"), **given)

        yield build


def left(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - EVER if folder.exists() else set()


async def test_it_is_fetched_checked_unpacked_and_tried(folder: Path, make: Make, github: GitHub) -> None:
    builds = make()
    await builds.load()
    assert (builds.installed, builds.offers, builds.suitable) == ((), (), ("vulkan",))
    told: list[tuple[int, int]] = []
    build = await builds.get(progress=lambda done, total: told.append((done, total)))
    assert build.id == ID
    assert build.version == "version: 100 (abcdef) whole"
    assert builds.installed == (build,)
    assert left(folder) == {ID}
    assert os.access(builds.program(ID), os.X_OK)
    size = len(github.files[NAME])
    assert told[0] == (0, size)
    assert told[-1] == (size, size)
    assert told == sorted(told)
    manifest = json.loads((folder / ID / MANIFEST).read_text())
    assert manifest["id"] == ID
    assert manifest["tag"] == TAG
    assert manifest["backend"] == "vulkan"
    assert manifest["program"] == f"llama-{TAG}/llama-server"
    assert manifest["size"] > 2_500_000
    assert f"sha256:{manifest['digests'][NAME]}" == github.releases[0]["assets"][0]["digest"]
    again = make(session=None)
    await again.load()
    assert again.installed == (build,)
    assert (await run(again.program(ID))).devices


async def test_what_is_here_and_works_is_not_fetched_again(make: Make, github: GitHub) -> None:
    builds = make(session=None)
    first = await builds.get()
    for wanted in (None, "vulkan", ID):
        assert await builds.get(wanted) == first
    assert len(github.ranges) == 1
    github.api_status = 500
    assert await builds.get(ID) == first


async def test_a_build_that_broke_is_fetched_anew(folder: Path, make: Make, github: GitHub) -> None:
    builds = make()
    await builds.get()
    builds.program(ID).write_text("#!/bin/sh\nexit 3\n")
    await builds.get(ID)
    assert len(github.ranges) == 2
    assert not (await run(builds.program(ID))).problem
    assert left(folder) == {ID}


async def test_a_newer_release_comes_beside_the_older(folder: Path, make: Make, github: GitHub) -> None:
    builds = make()
    await builds.get()
    newer = "llama-b101-bin-ubuntu-vulkan-x64.tar.gz"
    github.publish("b101", {newer: good_tar(tag="b101")})
    assert (await builds.get()).id == "b101-vulkan"
    assert [build.id for build in builds.installed] == ["b101-vulkan", ID]
    assert left(folder) == {"b101-vulkan", ID}
    await builds.remove("b101-vulkan")
    assert (await builds.get(ID)).id == ID
    github.publish("b102", {})
    assert (await make().get("b101-vulkan")).id == "b101-vulkan"
    assert "releases/tags/b101" in github.asked


async def test_a_zip_serves_as_well(folder: Path, make: Make, github: GitHub) -> None:
    github.releases.clear()
    github.publish(TAG, {NAME.replace(".tar.gz", ".zip"): good_zip()})
    builds = make()
    await builds.get()
    assert builds.program(ID) == folder / ID / "llama-server"
    assert (await run(builds.program(ID))).version == "version: 100 (abcdef) whole"


async def test_libraries_of_a_second_archive_lie_beside_the_program(make: Make, github: GitHub) -> None:
    github.publish(
        "b200",
        {
            "llama-b200-bin-win-cuda-12.4-x64.zip": zipped(
                {"build/bin/llama-server.exe": PROGRAM.encode(), "build/bin/ggml-cuda.dll": b"x"}
            ),
            "cudart-llama-bin-win-cuda-12.4-x64.zip": zipped(
                {"cudart64_12.dll": b"x", "sub/cublas.dll": b"y"}
            ),
        },
    )
    builds = make(machine=Machine("win32", "x86_64", frozenset({"cuda"})))
    told: list[tuple[int, int]] = []
    build = await builds.get(progress=lambda done, total: told.append((done, total)))
    assert build.id == "b200-cuda-12.4"
    assert {path.name for path in builds.program(build.id).parent.iterdir()} == {
        "llama-server.exe",
        "ggml-cuda.dll",
        "cudart64_12.dll",
        "cublas.dll",
    }
    assert len(build.digests) == 2
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1] == sum(a["size"] for a in github.releases[0]["assets"])


@pytest.mark.fault("F34")
@pytest.mark.parametrize("name", ["山 月 ü 'q' \"d\" $HOME ;x", "e\u0301 é", "x" * 120])
async def test_the_folder_may_have_any_name(tmp_path: Path, make: Make, name: str) -> None:
    folder = tmp_path / name / "engines"
    builds = make(folder=folder)
    await builds.get()
    again = make(folder=folder)
    await again.load()
    assert (await run(again.program(ID))).devices
    await again.remove(ID)
    assert left(folder) == set()


# What is wrong is not kept


@pytest.mark.fault("F26")
async def test_another_file_than_published_is_refused(folder: Path, make: Make, github: GitHub) -> None:
    right = github.files[NAME]
    github.files[NAME] = right[:-1] + bytes([right[-1] ^ 1])
    builds = make()
    with pytest.raises(RouterError, match="SHA-256 differs") as caught:
        await builds.get()
    assert caught.value.code == "download_corrupt"
    assert builds.installed == ()
    assert left(folder) == set()
    github.files[NAME] = right
    assert (await builds.get()).id == ID


@pytest.mark.fault("F26")
async def test_a_file_of_another_length_is_refused(folder: Path, make: Make, github: GitHub) -> None:
    github.files[NAME] = b"<html>sign in to the network</html>"
    with pytest.raises(RouterError, match="has not the length"):
        await make().get()
    assert left(folder) == set()


async def test_without_a_published_digest_nothing_is_fetched(
    folder: Path, make: Make, github: GitHub
) -> None:
    github.releases.clear()
    github.publish(TAG, {NAME: good_tar()}, digests=False)
    builds = make()
    await builds.refresh_offers()
    assert builds.offers[0].problem
    for wanted in (None, ID, "vulkan"):
        with pytest.raises(RouterError, match="could not be checked") as caught:
            await builds.get(wanted)
        assert caught.value.code == "no_digest"
    assert github.ranges == []
    assert left(folder) == set()


HOSTILE = {
    "traversal": tar(entry("../../evil", b"x"), entry("llama-server", PROGRAM.encode(), mode=0o755)),
    "absolute": tar(entry("/tmp/evil", b"x"), entry("llama-server", PROGRAM.encode(), mode=0o755)),
    "link out": tar(
        entry("lib", kind=tarfile.SYMTYPE, to="../../.."), entry("llama-server", PROGRAM.encode(), mode=0o755)
    ),
    "through a link": tar(
        entry("lib", kind=tarfile.SYMTYPE, to="."),
        entry("lib/llama-server", PROGRAM.encode(), mode=0o755),
    ),
    "device": tar(entry("null", kind=tarfile.CHRTYPE), entry("llama-server", PROGRAM.encode(), mode=0o755)),
    "nothing in it": tar(entry("README", b"x")),
    "only a link": tar(entry("llama-server", kind=tarfile.SYMTYPE, to="gone")),
    "no archive": b"\x1f\x8b" + bytes(500),
    "cut": good_tar()[:-5000],
}


@pytest.mark.fault("F26")
@pytest.mark.parametrize("kind", HOSTILE)
async def test_hostile_archives_leave_nothing(
    tmp_path: Path, folder: Path, make: Make, github: GitHub, kind: str
) -> None:
    github.releases.clear()
    github.publish(TAG, {NAME: HOSTILE[kind]})
    builds = make()
    with pytest.raises(RouterError, match="could not be unpacked: the archive") as caught:
        await builds.get()
    assert caught.value.code == "download_corrupt"
    assert builds.installed == ()
    assert left(folder) == set()
    assert {path.name for path in tmp_path.rglob("*")} == {"data", "engines", ".lock"}


async def test_a_build_that_does_not_run_does_not_count(folder: Path, make: Make, github: GitHub) -> None:
    builds = make()
    await builds.get()
    github.publish("b101", {"llama-b101-bin-ubuntu-vulkan-x64.tar.gz": good_tar("#!/bin/sh\nexit 7\n")})
    with pytest.raises(RouterError, match="does not run here") as caught:
        await builds.get()
    assert "it exits with 7" in caught.value.message
    assert caught.value.code == "engine_unusable"
    assert [build.id for build in builds.installed] == [ID]
    assert {name for name in left(folder) if not name.endswith(".part")} == {ID}


async def test_a_build_that_reaches_no_card_does_not_count(folder: Path, make: Make, github: GitHub) -> None:
    blind = True

    async def look(program: Path) -> Capabilities:
        found = await run(program)
        return found if not blind else Capabilities(found.id, found.title, found.version, found.path)

    builds = make(try_out=look)
    with pytest.raises(RouterError, match="reaches no GPU") as caught:
        await builds.get()
    assert "libvulkan1" in (caught.value.hint or "")
    assert builds.installed == ()
    # The archive was right: once the driver is there, it need not be fetched again.
    blind = False
    await builds.get()
    assert len(github.ranges) == 1
    assert left(folder) == {ID}


# Broken connections, cancellations, crashes


async def test_a_server_that_dies_midway_is_taken_up_again(make: Make, github: GitHub) -> None:
    github.cuts = [1_200_000, 800_000]
    build = await make().get()
    assert build.id == ID
    starts = [int(asked.removeprefix("bytes=").rstrip("-") or 0) for asked in github.ranges]
    assert starts == sorted(starts)
    assert len(starts) == 3


async def test_a_server_that_stays_dead_is_given_up_and_gone_on_with_later(
    folder: Path, make: Make, github: GitHub
) -> None:
    github.cuts = [1_500_000, 0, 0, 0, 0]
    builds = make()
    with pytest.raises(RouterError, match="could not be fetched") as caught:
        await builds.get()
    assert "goes on from there" in (caught.value.hint or "")
    assert left(folder) == {PART}
    kept = (folder / PART).stat().st_size
    assert kept > 0
    github.cuts = []
    await make().get()
    assert github.ranges[-1] == f"bytes={kept}-"
    assert left(folder) == {ID}


async def test_a_refusal_of_the_file_is_told(make: Make, github: GitHub) -> None:
    github.file_status = 403
    with pytest.raises(RouterError, match="answered 403"):
        await make().get()
    assert len(github.ranges) == 1


async def test_cancelling_keeps_what_has_arrived_and_nothing_else(
    folder: Path, make: Make, github: GitHub
) -> None:
    github.stall_at = 1_500_000
    builds = make()
    arrived = asyncio.Event()
    task = asyncio.ensure_future(builds.get(progress=lambda done, _: arrived.set() if done else None))
    await asyncio.wait_for(arrived.wait(), 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert left(folder) == {PART}
    github.stall_at = None
    github.go_on.set()
    assert (await builds.get()).id == ID
    assert github.ranges[-1].startswith("bytes=1")


async def test_cancelling_while_it_is_tried_leaves_no_build(folder: Path, make: Make) -> None:
    trying = asyncio.Event()

    async def hang(_program: Path) -> Capabilities:
        trying.set()
        await asyncio.Event().wait()
        raise AssertionError

    builds = make(try_out=hang)
    task = asyncio.ensure_future(builds.get())
    await asyncio.wait_for(trying.wait(), 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert left(folder) == {PART}
    assert builds.installed == ()
    assert (await make().get()).id == ID


async def test_cancelling_while_it_is_unpacked_leaves_no_build(
    folder: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    begun = asyncio.Event()
    real = builds_module.unpack

    def slow(archive: Path, into: Path, cancelled: Any) -> int:
        loop.call_soon_threadsafe(begun.set)
        assert cancelled.wait(30)
        return real(archive, into, cancelled)

    monkeypatch.setattr(builds_module, "unpack", slow)
    builds = make()
    task = asyncio.ensure_future(builds.get())
    await asyncio.wait_for(begun.wait(), 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert left(folder) == {PART}


async def test_what_a_crash_left_is_cleared_away(folder: Path, make: Make) -> None:
    await make().get()
    half = folder / ".new-abc" / "b101-vulkan"
    half.mkdir(parents=True)
    (half / "llama-server").write_text(PROGRAM)
    (folder / ".old-x" / ID).mkdir(parents=True)
    (folder / ".fresh.part").write_bytes(b"x")
    (folder / ".stale.part").write_bytes(b"x")
    ago = (folder / ".stale.part").stat().st_mtime - PART_KEPT_S - 60
    os.utime(folder / ".stale.part", (ago, ago))
    builds = make()
    await builds.load()
    assert [build.id for build in builds.installed] == [ID]
    assert left(folder) == {ID, ".fresh.part"}


async def test_what_another_process_works_on_is_left_alone(folder: Path, make: Make) -> None:
    builds = make()
    await builds.get()
    lock = FileLock(folder / ".lock")
    assert lock.acquire()
    try:
        (folder / ".new-theirs").mkdir()
        await builds.load()
        assert ".new-theirs" in left(folder)
        with pytest.raises(Conflict, match="Another Lemon Tray"):
            await builds.get("vulkan")
    finally:
        lock.release()
    await builds.load()
    assert left(folder) == {ID}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: (folder / MANIFEST).unlink(),
        lambda folder: (folder / MANIFEST).write_bytes(b"{"),
        lambda folder: (folder / MANIFEST).write_bytes(b"\xff\xfe"),
        lambda folder: _edit(folder, id="b999-vulkan"),
        lambda folder: _edit(folder, program="../../../bin/sh"),
        lambda folder: _edit(folder, program="/bin/sh"),
        lambda folder: _edit(folder, program="gone"),
        lambda folder: shutil.rmtree(folder / f"llama-{TAG}"),
    ],
)
async def test_a_folder_that_is_no_build_does_not_count(
    folder: Path, make: Make, spoil: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    builds = make()
    await builds.get()
    spoil(folder / ID)
    await builds.load()
    assert builds.installed == ()
    assert "is no build that can be used" in caplog.text
    # It is in the way of the right one, and replaced.
    await builds.get()
    assert [build.id for build in builds.installed] == [ID]


def _edit(folder: Path, **changes: str) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**manifest, **changes}))


# One at a time


async def test_two_at_once_fetch_once(make: Make, github: GitHub) -> None:
    builds = make()
    first, second = await asyncio.gather(builds.get(), builds.get("vulkan"))
    assert first == second
    assert len(github.ranges) == 1


async def test_a_second_goes_on_when_the_first_is_cancelled(make: Make, github: GitHub) -> None:
    github.stall_at = 1_500_000
    builds = make()
    first = asyncio.ensure_future(builds.get())
    second = asyncio.ensure_future(builds.get())
    await asyncio.wait_for(github.stalled.wait(), 30)
    github.stall_at = None
    first.cancel()
    github.go_on.set()
    assert (await second).id == ID
    assert first.cancelled() or first.done()
    with pytest.raises(asyncio.CancelledError):
        await first


# Room


async def test_no_space_is_said_before_anything_is_fetched(
    make: Make, github: GitHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(fetch_module.shutil, "disk_usage", lambda _: usage(10, 9, 1))
    with pytest.raises(RouterError, match=r"The GPU build needs .* is free") as caught:
        await make().get()
    assert caught.value.code == "disk_full"
    assert github.ranges == []


async def test_a_disk_that_fills_up_while_it_arrives(
    folder: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_part: object, _data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fetch_module.Part, "write", full)
    with pytest.raises(RouterError, match="no space left") as caught:
        await make().get()
    assert caught.value.code == "disk_full"
    assert left(folder) == set()


async def test_a_disk_that_fills_up_while_it_is_unpacked(
    folder: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_archive: Path, into: Path, _cancelled: object) -> int:
        (into / "half").write_bytes(b"x")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(builds_module, "unpack", full)
    with pytest.raises(RouterError, match="no space left") as caught:
        await make().get()
    assert caught.value.code == "disk_full"
    assert left(folder) == {PART}


@pytest.mark.skipif(os.name == "posix" and os.geteuid() == 0, reason="root may write everywhere")
async def test_a_folder_that_cannot_be_written(tmp_path: Path, make: Make) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(RouterError, match="could not be kept"):
        await make(folder=closed / "engines").get()


async def test_a_file_in_place_of_the_folder(tmp_path: Path, make: Make) -> None:
    (tmp_path / "file").write_text("x")
    builds = make(folder=tmp_path / "file")
    await builds.load()
    assert builds.installed == ()
    with pytest.raises(RouterError, match="could not be kept"):
        await builds.get()


# Deleting


async def test_a_build_is_deleted_whole(folder: Path, make: Make) -> None:
    builds = make()
    await builds.get()
    await builds.remove(ID)
    assert builds.installed == ()
    assert left(folder) == set()
    with pytest.raises(NotFound, match=f"no build {ID}"):
        await builds.remove(ID)
    with pytest.raises(NotFound):
        builds.program(ID)


@pytest.mark.parametrize("id", ["..", ".", "", "../engines", ".lock", "/", "nothing"])
async def test_only_builds_are_deleted(folder: Path, make: Make, id: str) -> None:
    builds = make()
    await builds.get()
    with pytest.raises(NotFound):
        await builds.remove(id)
    assert left(folder) == {ID}


async def test_a_build_in_use_is_not_deleted(folder: Path, make: Make) -> None:
    used = {ID}
    builds = make(in_use=lambda id: id in used)
    await builds.get()
    with pytest.raises(Conflict, match="is in use") as caught:
        await builds.remove(ID)
    assert "Unload" in (caught.value.hint or "")
    assert left(folder) == {ID}
    used.clear()
    await builds.remove(ID)
    assert left(folder) == set()


async def test_a_build_that_cannot_be_deleted_stays(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    builds = make()
    await builds.get()

    def busy(*_: object) -> None:
        raise PermissionError(errno.EACCES, "The process cannot access the file")

    monkeypatch.setattr(builds_module.os, "replace", busy)
    with pytest.raises(RouterError, match="cannot be deleted"):
        await builds.remove(ID)
    assert [build.id for build in builds.installed] == [ID]
    monkeypatch.undo()
    assert (await run(builds.program(ID))).devices


# What there is


async def test_offers_are_asked_for_and_kept(make: Make, github: GitHub) -> None:
    builds = make()
    assert [offer.id for offer in await builds.refresh_offers()] == [ID]
    assert builds.offers[0].title == "llama.cpp b100 (Vulkan)"
    github.api_status = 429
    with pytest.raises(RouterError, match="answers no more questions"):
        await builds.refresh_offers()
    assert [offer.id for offer in builds.offers] == [ID]
    # What was offered can still be fetched.
    assert (await builds.get(ID)).id == ID


async def test_a_machine_without_a_gpu_is_offered_nothing(make: Make, github: GitHub) -> None:
    builds = make(machine=Machine("linux", "x86_64"))
    assert await builds.refresh_offers() == ()
    with pytest.raises(NotFound, match="No GPU was found") as caught:
        await builds.get()
    assert caught.value.code == "no_build"
    assert github.asked == []


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ("metal", "no build for metal"),
        ("b100-cuda-12.4", "has no build b100-cuda-12.4 for this machine"),
        ("b77-vulkan", r"no release b77\."),
        ("nonsense", "no build nonsense"),
        ("../x-vulkan", "no build"),
        ("/usr/bin/llama-server", "no build"),
    ],
)
async def test_a_build_that_does_not_exist_is_named(make: Make, wanted: str, words: str) -> None:
    with pytest.raises(NotFound, match=words):
        await make().get(wanted)


async def test_a_machine_that_no_build_suits_is_told_so(make: Make, github: GitHub) -> None:
    with pytest.raises(NotFound, match="no build for linux on riscv64 and a GPU of kind vulkan"):
        await make(machine=Machine("linux", "riscv64", frozenset({"vulkan"}))).get()
    github.releases.clear()
    github.publish("b1", {"llama-b1-bin-macos-arm64.tar.gz": b"x"})
    with pytest.raises(NotFound, match="linux on x86_64"):
        await make().get()


async def test_without_a_network_it_is_said_so(folder: Path, make: Make) -> None:
    builds = make(base="http://127.0.0.1:1/api")
    with pytest.raises(RouterError, match="GitHub cannot be asked"):
        await builds.get()
    assert left(folder) == set()


# A crash at any moment

DIES = """
import asyncio, os, signal, sys
from pathlib import Path
from router.engines import builds
from router.engines.base import Capabilities, EngineDevice
from router.engines.releases import Machine

def die(*_args, **_more):
    os.kill(os.getpid(), signal.SIGKILL)

async def look(program):
    if where == "trying":
        die()
    return Capabilities("x", "x", "1", "x", (EngineDevice("Vulkan0", "vulkan", "a card", 1),))

async def main():
    got = builds.Builds(Path(folder), Machine("linux", "x86_64", frozenset({"vulkan"})), look, base=base)
    await got.load()
    await got.get("b101-vulkan", lambda done, total: die() if where == "fetching" and done else None)

where, folder, base = sys.argv[1:]
unpack, replace = builds.unpack, os.replace
if where == "unpacking":
    builds.unpack = lambda *args: (unpack(*args), die())
if where == "naming":
    os.replace = lambda a, b: die() if str(b).endswith("b101-vulkan") else replace(a, b)
if where == "tidying":
    Path.unlink = die
asyncio.run(main())
"""


@pytest.mark.parametrize("where", ["fetching", "unpacking", "trying", "naming", "tidying"])
async def test_a_crash_at_any_moment_leaves_no_half_build(
    folder: Path, make: Make, github: GitHub, base: str, where: str
) -> None:
    await make().get()
    newer = "llama-b101-bin-ubuntu-vulkan-x64.tar.gz"
    github.publish("b101", {newer: good_tar(tag="b101")})
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", DIES, where, str(folder), base)
    assert await process.wait() == -signal.SIGKILL
    builds = make()
    await builds.load()
    whole = {ID, "b101-vulkan"} if where == "tidying" else {ID}
    assert {build.id for build in builds.installed} == whole
    assert left(folder) == whole | {f".{newer}.part"}
    fetched = len(github.ranges)
    assert (await builds.get("b101-vulkan")).id == "b101-vulkan"
    # Only what had not arrived is asked for.
    assert github.ranges[fetched:] == ([github.ranges[-1]] if where == "fetching" else [])
    assert (await run(builds.program("b101-vulkan"))).devices


async def test_a_build_that_cannot_be_replaced_stays(
    folder: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    builds = make()
    await builds.get()
    builds.program(ID).write_text("#!/bin/sh\necho old; exit 3\n")
    real = os.replace

    def busy(old: Path, new: Path) -> None:
        if Path(new) == folder / ID and ".new-" in str(old):
            raise PermissionError(errno.EACCES, "The process cannot access the file")
        real(old, new)

    monkeypatch.setattr(builds_module.os, "replace", busy)
    with pytest.raises(RouterError, match="could not be kept"):
        await builds.get(ID)
    assert "echo old" in builds.program(ID).read_text()
