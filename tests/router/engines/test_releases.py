"""Which file of a release suits which machine, and what is said when there is no answer."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from router.engines.releases import (
    Asset,
    Machine,
    Release,
    Releases,
    find_offer,
    offers_of,
    suitable,
)
from router.errors import NotFound, RouterError
from tests.router.engines.release_server import LINUX, GitHub

DIGEST = f"sha256:{'0a' * 32}"

#: As the project names them.
FILES = (
    "cudart-llama-bin-win-cuda-12.4-x64.zip",
    "cudart-llama-bin-win-cuda-13.3-x64.zip",
    "llama-b9000-bin-310p-openEuler-x86.tar.gz",
    "llama-b9000-bin-android-arm64.tar.gz",
    "llama-b9000-bin-macos-arm64.tar.gz",
    "llama-b9000-bin-macos-x64.tar.gz",
    "llama-b9000-bin-ubuntu-arm64.tar.gz",
    "llama-b9000-bin-ubuntu-openvino-2026.0-x64.tar.gz",
    "llama-b9000-bin-ubuntu-rocm-7.2-x64.tar.gz",
    "llama-b9000-bin-ubuntu-vulkan-arm64.tar.gz",
    "llama-b9000-bin-ubuntu-vulkan-x64.tar.gz",
    "llama-b9000-bin-ubuntu-x64.tar.gz",
    "llama-b9000-bin-win-cpu-arm64.zip",
    "llama-b9000-bin-win-cpu-x64.zip",
    "llama-b9000-bin-win-cuda-12.4-x64.zip",
    "llama-b9000-bin-win-cuda-13.3-x64.zip",
    "llama-b9000-bin-win-hip-radeon-x64.zip",
    "llama-b9000-bin-win-opencl-adreno-arm64.zip",
    "llama-b9000-bin-win-sycl-x64.zip",
    "llama-b9000-bin-win-vulkan-x64.zip",
    "llama-b9000-ui.tar.gz",
    "llama-b9000-xcframework.zip",
)


def release(files: tuple[str, ...] = FILES, tag: str = "b9000", **more: str) -> Release:
    given = {"digest": DIGEST, **more}
    return Release(tag, tuple(Asset(name, f"https://x/{name}", 100, **given) for name in files))


def machine(system: str, processor: str, *cards: str, cuda: tuple[int, int] | None = None) -> Machine:
    return Machine(system, processor, frozenset(cards), cuda)


@pytest.mark.parametrize(
    ("here", "expected"),
    [
        (machine("linux", "x86_64", "cuda"), ["b9000-vulkan"]),
        (machine("linux", "x86_64", "vulkan"), ["b9000-vulkan"]),
        (machine("linux", "x86_64", "rocm"), ["b9000-vulkan", "b9000-rocm-7.2"]),
        (machine("linux", "arm64", "cuda"), ["b9000-vulkan"]),
        (machine("linux", "arm64", "rocm"), ["b9000-vulkan"]),
        (machine("linux", "riscv64", "vulkan"), []),
        (machine("linux", "x86_64"), []),
        (machine("win32", "x86_64", "cuda"), ["b9000-cuda-12.4", "b9000-vulkan"]),
        (machine("win32", "x86_64", "cuda", cuda=(13, 0)), ["b9000-cuda-12.4", "b9000-vulkan"]),
        (machine("win32", "x86_64", "cuda", cuda=(13, 3)), ["b9000-cuda-13.3", "b9000-vulkan"]),
        (machine("win32", "x86_64", "cuda", cuda=(14, 0)), ["b9000-cuda-13.3", "b9000-vulkan"]),
        (machine("win32", "x86_64", "cuda", cuda=(11, 8)), ["b9000-cuda-12.4", "b9000-vulkan"]),
        (machine("win32", "x86_64", "rocm"), ["b9000-vulkan", "b9000-rocm"]),
        (machine("win32", "x86_64", "vulkan"), ["b9000-vulkan"]),
        (machine("win32", "arm64", "vulkan"), []),
        (machine("darwin", "arm64", "metal"), ["b9000-metal"]),
        (machine("darwin", "x86_64", "metal"), []),
        (machine("freebsd14", "x86_64", "vulkan"), []),
    ],
)
def test_what_suits(here: Machine, expected: list[str]) -> None:
    offers = offers_of(release(), here, suitable(here))
    assert [offer.id for offer in offers] == expected
    for offer in offers:
        system = {"linux": "ubuntu", "win32": "win", "darwin": "macos"}[here.system]
        assert all(f"-{system}-" in asset.name for asset in offer.assets)
        assert find_offer(release(), here, offer.id) == offer


def test_cuda_comes_with_its_libraries() -> None:
    here = machine("win32", "x86_64", "cuda")
    (offer, _) = offers_of(release(), here, suitable(here))
    assert [asset.name for asset in offer.assets] == [
        "llama-b9000-bin-win-cuda-12.4-x64.zip",
        "cudart-llama-bin-win-cuda-12.4-x64.zip",
    ]
    assert offer.size == 200
    without = tuple(name for name in FILES if not name.startswith("cudart"))
    assert [o.id for o in offers_of(release(without), here, suitable(here))] == ["b9000-vulkan"]


def test_older_names_are_known() -> None:
    here = machine("win32", "x86_64", "cuda")
    old = ("llama-b4000-bin-win-cuda-cu12.4-x64.zip", "cudart-llama-bin-win-cu12.4-x64.zip")
    assert offers_of(release(old, "b4000"), here, ("cuda",))[0].id == "b4000-cuda-12.4"
    zips = ("llama-b4000-bin-ubuntu-vulkan-x64.zip",)
    assert offers_of(release(zips, "b4000"), LINUX, ("vulkan",))[0].id == "b4000-vulkan"


def test_of_two_archives_the_systems_own_is_taken() -> None:
    both = ("llama-b1-bin-ubuntu-vulkan-x64.zip", "llama-b1-bin-ubuntu-vulkan-x64.tar.gz")
    (offer,) = offers_of(release(both, "b1"), LINUX, ("vulkan",))
    assert offer.assets[0].name.endswith(".tar.gz")


@pytest.mark.parametrize(
    "name",
    [
        "llama-b9001-bin-ubuntu-vulkan-x64.tar.gz",
        "llama-b9000-bin-ubuntu-vulkan-x64.tar.gz.sha256",
        "evil-llama-b9000-bin-ubuntu-vulkan-x64.tar.gz",
        "llama-b9000-bin-ubuntu-vulkan-x64.exe",
    ],
)
def test_other_names_are_not_taken(name: str) -> None:
    assert offers_of(release((name,)), LINUX, ("vulkan",)) == ()


def test_what_is_still_being_uploaded_is_not_there_yet() -> None:
    assert offers_of(release(state="starter"), LINUX, ("vulkan",)) == ()


@pytest.mark.parametrize("digest", [None, "", "sha512:" + "0" * 128, "sha256:xyz", "sha256:" + "0" * 63])
def test_without_a_digest_there_is_a_problem(digest: str | None) -> None:
    names = ("llama-b9000-bin-ubuntu-vulkan-x64.tar.gz",)
    bare = Release("b9000", tuple(Asset(name, "https://x", 1, digest) for name in names))
    (offer,) = offers_of(bare, LINUX, ("vulkan",))
    assert "no SHA-256 of llama-b9000" in offer.problem
    (good,) = offers_of(release(names), LINUX, ("vulkan",))
    assert good.problem == ""


def test_this_machine_is_known() -> None:
    here = Machine.here(["cuda"])
    assert here.processor in ("x86_64", "arm64")
    assert here.backends == {"cuda"}


# GitHub


@pytest.fixture
async def github() -> GitHub:
    return GitHub()


@pytest.fixture
async def releases(github: GitHub) -> AsyncIterator[Releases]:
    async with TestServer(github.application(), shutdown_timeout=0.1) as server:
        yield Releases(str(server.make_url("/api/")))


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as opened:
        yield opened


def publish(github: GitHub, tag: str, **more: bool) -> None:
    github.publish(tag, {f"llama-{tag}-bin-ubuntu-vulkan-x64.tar.gz": b"x"}, **more)


async def test_the_newest_is_found(
    github: GitHub, releases: Releases, session: aiohttp.ClientSession
) -> None:
    publish(github, "b1")
    publish(github, "b2")
    offers = await releases.newest(session, LINUX, ("vulkan",))
    assert [offer.id for offer in offers] == ["b2-vulkan"]
    assert github.asked == ["releases/latest"]


async def test_a_release_whose_files_are_not_there_yet_is_passed_over(
    github: GitHub, releases: Releases, session: aiohttp.ClientSession
) -> None:
    publish(github, "b1")
    publish(github, "b2")
    publish(github, "b3", draft=True)
    publish(github, "b4", prerelease=True)
    github.publish("b5", {"llama-b5-bin-macos-arm64.tar.gz": b"x"})
    offers = await releases.newest(session, LINUX, ("vulkan",))
    assert [offer.id for offer in offers] == ["b2-vulkan"]


async def test_the_best_kind_of_an_older_release_goes_before_another_of_the_newest(
    github: GitHub, releases: Releases, session: aiohttp.ClientSession
) -> None:
    here = machine("linux", "x86_64", "rocm")
    publish(github, "b1")
    github.publish("b2", {"llama-b2-bin-ubuntu-rocm-7.2-x64.tar.gz": b"x"})
    assert [o.id for o in await releases.newest(session, here, suitable(here))] == ["b1-vulkan"]
    github.releases.pop()
    assert [o.id for o in await releases.newest(session, here, suitable(here))] == ["b2-rocm-7.2"]


async def test_a_release_that_does_not_exist_is_named(
    github: GitHub, releases: Releases, session: aiohttp.ClientSession
) -> None:
    publish(github, "b1")
    assert (await releases.tagged(session, "b1")).tag_name == "b1"
    with pytest.raises(NotFound, match=r"no release b7\."):
        await releases.tagged(session, "b7")


@pytest.mark.parametrize("status", [403, 429])
@pytest.mark.parametrize(
    ("headers", "wait", "words"),
    [
        ({"Retry-After": "90"}, 90, "in 2 minutes"),
        ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "+1800"}, 1800, "minutes"),
        ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "-5"}, None, "later"),
        ({"Retry-After": "soon"}, None, "later"),
        ({}, None, "later"),
    ],
)
async def test_a_limit_of_questions_is_told_in_words(
    github: GitHub,
    releases: Releases,
    session: aiohttp.ClientSession,
    status: int,
    headers: dict[str, str],
    wait: float | None,
    words: str,
) -> None:
    publish(github, "b1")
    github.api_status = status
    reset = headers.get("X-RateLimit-Reset")
    if reset is not None:
        headers = {**headers, "X-RateLimit-Reset": str(int(time.time()) + int(reset))}
    github.api_headers = headers
    with pytest.raises(RouterError, match="answers no more questions") as caught:
        await releases.newest(session, LINUX, ("vulkan",))
    assert (caught.value.code, caught.value.status) == ("rate_limited", 503)
    assert words in caught.value.message
    if wait is None:
        assert caught.value.retry_after_s is None
    else:
        assert caught.value.retry_after_s == pytest.approx(wait, abs=30)


@pytest.mark.parametrize("body", [b"", b"[]", b"<html>", b'{"tag_name": 1}', b"\xff", b'{"assets": []}'])
async def test_an_answer_that_is_none_is_told(
    github: GitHub, releases: Releases, session: aiohttp.ClientSession, body: bytes
) -> None:
    publish(github, "b1")
    github.api_body = body
    with pytest.raises(RouterError, match="not the list") as caught:
        await releases.newest(session, LINUX, ("vulkan",))
    assert caught.value.code == "download_failed"


async def test_without_a_network_it_is_said_so(session: aiohttp.ClientSession) -> None:
    with pytest.raises(RouterError, match=r"cannot be asked .* no connection to 127\.0\.0\.1") as caught:
        await Releases("http://127.0.0.1:1/api").newest(session, LINUX, ("vulkan",))
    assert caught.value.code == "download_failed"
    assert "engine use" in (caught.value.hint or "")
