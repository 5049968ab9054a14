"""Engines that are asked what they are, and what comes of those that cannot say."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from router.engines.base import Capabilities, EngineDevice
from router.engines.probing import Prober
from router.units import MIB
from tests.router.engines.conftest import Server, children, ended

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def asked(program: Path) -> list[str]:
    log = program.with_name("asked")
    return log.read_text().split() if log.exists() else []


async def problem_of(path: Path, limit_s: float = 30.0) -> str:
    before = children(os.getpid())
    found = await Prober(limit_s=limit_s)(path)
    assert children(os.getpid()) <= before
    assert found.problem
    assert found.devices == ()
    assert found.path == str(path)
    return found.problem


async def test_what_a_program_is_and_reaches(server: Server) -> None:
    program = server("good")
    found = await Prober()(program)
    assert found.problem == found.note == ""
    assert found.id == found.path == str(program)
    assert found.version == "9999 (abcdef0)"
    assert found.devices == (
        EngineDevice("CUDA0", "cuda", "NVIDIA GeForce RTX 3060", 12288 * MIB),
        EngineDevice("CUDA1", "cuda", "NVIDIA GeForce RTX 4090 (D)", 24564 * MIB),
    )
    assert found.backends == {"cuda"}
    assert {"--parallel", "-np", "--no-ui", "--fit-ctx"} <= set(found.options)


async def test_it_is_asked_once_and_again_when_it_has_changed(server: Server, tmp_path: Path) -> None:
    program, cache = server("good"), tmp_path / "cache"
    first = Prober(cache)
    one, other = await asyncio.gather(first(program), first(program))
    assert one == other == await Prober(cache)(program)
    once = ["--version", "--help", "--list-devices"]
    assert asked(program) == once
    with program.open("a") as out:
        out.write("\n")
    assert await Prober(cache)(program) == one
    assert asked(program) == once * 2
    await first(program, again=True)
    assert asked(program) == once * 3


async def test_it_is_asked_again_when_the_environment_has_changed(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, prober = server("good"), Prober(tmp_path)
    await prober(program)
    monkeypatch.setenv("UNRELATED", "1")
    await prober(program)
    assert len(asked(program)) == 3
    monkeypatch.setenv("GGML_VK_VISIBLE_DEVICES", "0,0")
    await prober(program)
    assert len(asked(program)) == 6


async def test_a_damaged_cache_is_no_answer(server: Server, tmp_path: Path) -> None:
    program, cache = server("good"), tmp_path / "cache"
    found = await Prober(cache)(program)
    (kept,) = cache.iterdir()
    for damage in (b"{", b'{"format":99,"key":"","found":{"id":"","title":"","version":""}}'):
        kept.write_bytes(damage)
        assert await Prober(cache)(program) == found
        assert kept.read_bytes() != damage


async def test_a_cache_that_cannot_be_written_is_done_without(server: Server, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert (await Prober(blocked / "cache")(server("good"))).problem == ""


@pytest.mark.parametrize(
    ("mode", "told"),
    [
        ("crashes", "signal 11"),
        ("wrong processor", "another kind of processor"),
        ("no library", "libcudart.so.12"),
        ("rubbish", "no llama-server"),
        ("script", "No such file or directory: '/no/such/setup'"),
    ],
)
async def test_broken_programs(server: Server, mode: str, told: str) -> None:
    assert told in await problem_of(server(mode))


async def test_a_program_that_hangs_is_killed(server: Server) -> None:
    program = server("hangs")
    assert await problem_of(program, limit_s=3.0) == "it did not answer within 3 s"
    assert asked(program) == ["--version"]


async def test_a_cancelled_probe_leaves_no_process(server: Server) -> None:
    program = server("hangs")
    before = children(os.getpid())
    probe = asyncio.create_task(Prober()(program))
    while not asked(program):  # noqa: ASYNC110  # another process writes it
        await asyncio.sleep(0.005)
    (pid,) = children(os.getpid()) - before
    probe.cancel()
    with pytest.raises(asyncio.CancelledError):
        await probe
    assert await ended(pid)


async def test_what_is_no_program(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("hello")
    assert await problem_of(plain) == "it is not executable"
    plain.chmod(0o755)
    assert "cannot be started" in await problem_of(plain)
    assert await problem_of(tmp_path) == "it is a folder"
    assert await problem_of(tmp_path / "nothing") == "there is no such file"
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert await problem_of(fifo) == "it is no file"
    assert await problem_of(Path("/bin/true")) == "it is no llama-server"


async def test_a_problem_is_not_kept_on_the_disk(server: Server, tmp_path: Path) -> None:
    await Prober(tmp_path / "cache")(server("crashes"))
    assert not (tmp_path / "cache").exists()


async def test_why_no_gpu_is_reached_is_told(server: Server) -> None:
    found = await Prober()(server("no devices"))
    assert (found.problem, found.devices) == ("", ())
    assert "driver version is insufficient" in found.note


@pytest.mark.engine
async def test_the_embedded_engine(tmp_path: Path) -> None:
    found = await Prober(tmp_path)()
    assert (found.id, found.path, found.problem) == ("embedded", "", "")
    assert found.version
    assert "xllamacpp" not in sys.modules
    assert await Prober(tmp_path, command=["/nowhere"])() == found


async def test_an_embedded_engine_that_cannot_be_asked() -> None:
    async def told(*command: str) -> Capabilities:
        return await Prober(command=command)()

    assert "cannot be started" in (await told("/nowhere")).problem
    assert "ModuleNotFoundError" in (await told(sys.executable, "-c", "import no_such_module")).problem
    code = "print('worker:devices:[{}]')"
    assert "cannot be read" in (await told(sys.executable, "-c", code)).problem
    assert (await told(sys.executable, "-c", "pass")).problem == "the engine told nothing"
    code = 'print(\'worker:devices:[{"name": "CUDA0", "description": "Big", "total": 7}]\')'
    assert (await told(sys.executable, "-c", code)).devices == (EngineDevice("CUDA0", "cuda", "Big", 7),)
