"""The official releases of llama.cpp on GitHub, and which of their files suits a machine."""

from __future__ import annotations

import asyncio
import math
import platform
import re
import sys
import time
import urllib.parse
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeVar

import aiohttp
import msgspec
from msgspec import Struct

from router.errors import NotFound, RouterError
from router.fetch import describe, without_secrets
from router.version import __version__

T = TypeVar("T")

GITHUB: Final = "https://api.github.com/repos/ggml-org/llama.cpp"
#: Releases come several times a day, and a new one has no files yet: so far it is looked back.
RECENT: Final = 15
BACKENDS: Final = ("cuda", "rocm", "vulkan", "metal")
_ANSWER_LIMIT: Final = 32 << 20
_HEADERS: Final = {
    "Accept": "application/vnd.github+json",
    "X-GitHub-Api-Version": "2022-11-28",
    "User-Agent": f"lemon-tray/{__version__}",
}
_DIGEST: Final = re.compile(r"sha256:([0-9a-fA-F]{64})")
_KNOWN_PROCESSORS: Final = {
    "amd64": "x86_64",
    "x64": "x86_64",
    "x86_64": "x86_64",
    "aarch64": "arm64",
    "arm64": "arm64",
}


class Machine(Struct, frozen=True):
    """What a build has to suit.

    Attributes:
        system: as `sys.platform`.
        processor: `x86_64`, `arm64`, or what the system calls it.
        backends: of its GPUs: `cuda`, `rocm`, `vulkan` or `metal`.
        cuda: the newest version of CUDA that the driver runs, if that is known.
    """

    system: str
    processor: str
    backends: frozenset[str] = frozenset()
    cuda: tuple[int, int] | None = None

    @classmethod
    def here(cls, backends: Iterable[str] = (), cuda: tuple[int, int] | None = None) -> Machine:
        """This machine."""
        processor = platform.machine()
        return cls(
            sys.platform, _KNOWN_PROCESSORS.get(processor.lower(), processor), frozenset(backends), cuda
        )


class Asset(Struct, frozen=True):
    """A file of a release. `digest` is `sha256:...`; older releases have none."""

    name: str
    browser_download_url: str
    size: int
    digest: str | None = None
    state: str = "uploaded"

    @property
    def sha256(self) -> str:
        """Its hash in hex; "" if none is published."""
        match = _DIGEST.fullmatch(self.digest or "")
        return match[1].lower() if match else ""


class Release(Struct, frozen=True):
    """A release, such as `b6543`."""

    tag_name: str
    assets: tuple[Asset, ...] = ()
    draft: bool = False
    prerelease: bool = False


class Offer(Struct, frozen=True):
    """A build that can be fetched: one archive, and another with the libraries that it needs, if any.

    Attributes:
        id: `b6543-vulkan`, `b6543-cuda-12.4`.
        backend: what it reaches: `cuda`, `rocm`, `vulkan` or `metal`.
    """

    id: str
    tag: str
    backend: str
    assets: tuple[Asset, ...]

    @property
    def title(self) -> str:
        """For people."""
        return title_of(self.tag, self.backend)

    @property
    def size(self) -> int:
        """Bytes to fetch."""
        return sum(asset.size for asset in self.assets)

    @property
    def problem(self) -> str:
        """Why it cannot be fetched; "" if it can."""
        bare = next((asset.name for asset in self.assets if not asset.sha256), None)
        return f"the release publishes no SHA-256 of {bare}" if bare else ""


class _Kind(Struct, frozen=True):
    """A kind of build, and how its archive is named between the tag and the suffix."""

    system: str
    processor: str
    backend: str
    pattern: str
    libraries: str = ""


# `version` is the toolkit's. On Linux there is no CUDA build; NVIDIA's driver has Vulkan.
_KINDS: Final = (
    _Kind("linux", "x86_64", "vulkan", "ubuntu-vulkan-x64"),
    _Kind("linux", "arm64", "vulkan", "ubuntu-vulkan-arm64"),
    _Kind("linux", "x86_64", "rocm", r"ubuntu-rocm-(?P<version>\d+(?:\.\d+)*)-x64"),
    _Kind(
        "win32",
        "x86_64",
        "cuda",
        r"win-cuda-(?:cu)?(?P<version>\d+(?:\.\d+)*)-x64",
        r"cudart-llama-bin-win-(?:cuda-)?(?:cu)?{version}-x64",
    ),
    _Kind("win32", "x86_64", "vulkan", "win-vulkan-x64"),
    _Kind("win32", "x86_64", "rocm", "win-hip-radeon-x64"),
    _Kind("darwin", "arm64", "metal", "macos-arm64"),
)
_SUFFIX: Final = r"\.(?:zip|tar\.gz|tgz)"
_NAMES: Final = {"cuda": "CUDA", "rocm": "ROCm", "vulkan": "Vulkan", "metal": "Metal"}


def title_of(tag: str, backend: str) -> str:
    """`llama.cpp b6543 (Vulkan)`; without a tag for the newest."""
    return f"llama.cpp {tag} ({_NAMES.get(backend, backend)})".replace("  ", " ")


def suitable(machine: Machine) -> tuple[str, ...]:
    """The back ends of builds that suit the machine, the best first. None without a GPU."""
    cards = machine.backends & set(BACKENDS)
    order: list[str] = []
    if "metal" in cards:
        order.append("metal")
    if "cuda" in cards and machine.system == "win32":
        order.append("cuda")
    if cards & {"cuda", "rocm", "vulkan"}:
        order.append("vulkan")
    if "rocm" in cards:
        # Behind Vulkan: it knows fewer cards, and needs AMD's libraries on the machine.
        order.append("rocm")
    return tuple(backend for backend in order if _kinds(machine, backend))


def _kinds(machine: Machine, backend: str) -> list[_Kind]:
    return [
        kind
        for kind in _KINDS
        if (kind.system, kind.processor, kind.backend) == (machine.system, machine.processor, backend)
    ]


def offers_of(release: Release, machine: Machine, backends: Sequence[str]) -> tuple[Offer, ...]:
    """What a release has for a machine, one build for each back end at most, in the order of `backends`."""
    found = (_best(list(_matching(release, machine, backend)), machine) for backend in backends)
    return tuple(offer for offer in found if offer is not None)


def find_offer(release: Release, machine: Machine, build: str) -> Offer | None:
    """The build of that id, whichever card the machine has."""
    for backend in BACKENDS:
        for offer, _ in _matching(release, machine, backend):
            if offer.id == build:
                return offer
    return None


def _matching(release: Release, machine: Machine, backend: str) -> Iterator[tuple[Offer, tuple[int, ...]]]:
    """Builds for a back end, each with the version of its toolkit."""
    assets = [asset for asset in release.assets if asset.state == "uploaded"]
    # Both kinds of archive serve; the one that the system's own tools make goes first.
    assets.sort(key=lambda asset: asset.name.endswith(".zip") != (machine.system == "win32"))
    for kind in _kinds(machine, backend):
        wanted = re.compile(rf"llama-{re.escape(release.tag_name)}-bin-{kind.pattern}{_SUFFIX}")
        for asset in assets:
            match = wanted.fullmatch(asset.name)
            if match is None:
                continue
            version = match.groupdict().get("version") or ""
            parts = [asset]
            if kind.libraries:
                library = kind.libraries.replace("{version}", re.escape(version)) + _SUFFIX
                parts += [other for other in assets if re.fullmatch(library, other.name)][:1]
                if len(parts) == 1:
                    continue
            id = "-".join(filter(None, (release.tag_name, backend, version)))
            numbers = tuple(int(number) for number in version.split(".") if number)
            yield Offer(id, release.tag_name, backend, tuple(parts)), numbers


def _best(found: list[tuple[Offer, tuple[int, ...]]], machine: Machine) -> Offer | None:
    """The one with the newest toolkit; of CUDA the newest that the driver runs, the oldest if unknown."""
    if not found:
        return None
    ordered = sorted(found, key=lambda item: item[1])
    if ordered[0][0].backend == "cuda":
        fitting = [item for item in ordered if machine.cuda is not None and item[1] <= machine.cuda]
        return (fitting[-1] if fitting else ordered[0])[0]
    newest = ordered[-1][1]
    return next(offer for offer, version in ordered if version == newest)


class Releases:
    """Asks GitHub. `base` is the repository's address in its API."""

    def __init__(self, base: str = GITHUB) -> None:
        self._base = base.rstrip("/")

    async def newest(
        self, session: aiohttp.ClientSession, machine: Machine, backends: Sequence[str]
    ) -> tuple[Offer, ...]:
        """The builds of the newest release that has one for the first of the back ends, or for any.

        Raises:
            RouterError: GitHub cannot be asked, or asks to wait.
        """
        offers = offers_of(await self._get(session, "releases/latest", Release), machine, backends)
        if offers and offers[0].backend == backends[0]:
            return offers
        recent = await self._get(session, f"releases?per_page={RECENT}", tuple[Release, ...])
        for release in recent:
            if release.draft or release.prerelease:
                continue
            older = offers_of(release, machine, backends)
            if older and older[0].backend == backends[0]:
                return older
            offers = offers or older
        return offers

    async def tagged(self, session: aiohttp.ClientSession, tag: str) -> Release:
        """One release.

        Raises:
            NotFound: there is none of that tag.
            RouterError: as `newest`.
        """
        return await self._get(session, f"releases/tags/{urllib.parse.quote(tag, safe='')}", Release)

    async def _get(self, session: aiohttp.ClientSession, path: str, kind: type[T]) -> T:
        url = f"{self._base}/{path}"
        body = bytearray()
        try:
            async with session.get(url, headers=_HEADERS) as response:
                if response.status == 404:
                    raise NotFound(f"llama.cpp has no release {path.rpartition('/')[2]}.", param="id")
                if response.status in (403, 429):
                    raise _rate_limited(response)
                response.raise_for_status()
                async for chunk in response.content.iter_chunked(1 << 16):
                    body += chunk
                    if len(body) > _ANSWER_LIMIT:
                        raise _unreachable(url, "its answer is too long")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _unreachable(url, describe(error)) from error
        try:
            return await asyncio.to_thread(msgspec.json.decode, bytes(body), type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise _unreachable(url, "its answer is not the list of a release's files") from error


def _rate_limited(response: aiohttp.ClientResponse) -> RouterError:
    wait = 0.0
    try:
        if "Retry-After" in response.headers:
            wait = float(response.headers["Retry-After"])
        elif response.headers.get("X-RateLimit-Remaining") == "0":
            wait = float(response.headers["X-RateLimit-Reset"]) - time.time()
    except (KeyError, ValueError):
        wait = 0.0
    wait = min(max(wait, 0.0), 86_400.0)
    minutes = math.ceil(wait / 60)
    when = f" Try again in {minutes} minute{'s' if minutes > 1 else ''}." if minutes else " Try again later."
    return RouterError(
        f"GitHub answers no more questions from this network for now (it answered {response.status})." + when,
        code="rate_limited",
        status=503,
        retry_after_s=wait or None,
        hint="It allows so many questions an hour for each address. A build that is here works on.",
    )


def _unreachable(url: str, reason: str) -> RouterError:
    return RouterError(
        f"GitHub cannot be asked which builds there are ({without_secrets(url)}): {reason}.",
        code="download_failed",
        status=502,
        hint="A llama-server that is on this machine needs no network: lemon-tray engine use PATH.",
    )
