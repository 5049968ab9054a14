"""Pulling models from a hub on this machine, whatever goes wrong on the way."""

from __future__ import annotations

import asyncio
import errno
import random
from collections import namedtuple
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from router import fetch as fetching
from router.catalog.hub import parse_reference
from router.catalog.hub_api import TOKEN_NAME, Hub
from router.catalog.hub_cache import INCOMPLETE, HubCache
from router.catalog.places import Place, PlaceKind
from router.catalog.pull import Pulled, Puller, PullProgress
from router.catalog.survey import survey
from router.errors import Conflict, RouterError
from router.fetch import seconds_of
from router.instance import FileLock
from tests.support.hub import COMMIT, NEWER, TOKEN, LocalHub, local_hub, sha256

SAFETY_S = 60.0
REPO = "acme/Tiny-GGUF"
MODEL = random.Random(1).randbytes(3_000_000)
OTHER = random.Random(2).randbytes(40_000)
PROJECTOR = random.Random(3).randbytes(50_000)


@pytest.fixture
async def hub() -> AsyncIterator[LocalHub]:
    async with local_hub({REPO: {"Tiny-Q4_K_M.gguf": MODEL, "README.md": b"# Tiny"}}) as hub:
        yield hub


class Keyring:
    """A keyring that counts how often it is asked."""

    def __init__(self, token: str | None = None) -> None:
        self.token = token
        self.asked = 0

    def get_password(self, service: str, username: str) -> str | None:
        self.asked += 1
        return self.token if username == TOKEN_NAME else None

    def set_password(self, service: str, username: str, password: str) -> None:
        self.token = password

    def delete_password(self, service: str, username: str) -> None:
        self.token = None


class Site:
    """A cache, and a puller that fills it from the hub."""

    def __init__(self, root: Path, hub: LocalHub, environ: dict[str, str], keyring: Keyring) -> None:
        self.root = root
        self.keyring = keyring
        self.told: list[PullProgress] = []
        self.on_tell: Callable[[PullProgress], None] = lambda _progress: None
        front = Hub({**hub.environ, **environ}, find_keyring=lambda: keyring, pauses_s=(0, 0, 0))
        self.puller = Puller(front, root, pauses_s=(0, 0, 0))

    async def pull(self, name: str = REPO) -> Pulled:
        def tell(progress: PullProgress) -> None:
            self.told.append(progress)
            self.on_tell(progress)

        async with asyncio.timeout(SAFETY_S):
            return await self.puller.pull(parse_reference(name), tell)

    @property
    def cache(self) -> HubCache:
        return HubCache(self.root, REPO)

    def listed(self) -> dict[str, bytes]:
        """What a look at the cache finds, by path within the revision."""
        found = survey([Place(self.root, PlaceKind.HUGGING_FACE, own=False)]).files
        assert not any(file.fault for file in found)
        return {str(Path(file.inside, file.path.name)): file.path.read_bytes() for file in found}

    def blobs(self) -> set[str]:
        return {path.name for path in self.cache.blobs.iterdir()}


@pytest.fixture
def make_site(tmp_path: Path, hub: LocalHub) -> Callable[..., Site]:
    def make(token: str | None = None, **environ: str) -> Site:
        return Site(tmp_path / "hub", hub, environ, Keyring(token))

    return make


@pytest.fixture
def site(make_site: Callable[..., Site]) -> Site:
    return make_site()


async def test_a_model_is_fetched_checked_and_placed_as_others_look_for_it(site: Site, hub: LocalHub) -> None:
    pulled = await site.pull()
    path = site.root / "models--acme--Tiny-GGUF" / "snapshots" / COMMIT / "Tiny-Q4_K_M.gguf"
    assert (pulled.path, pulled.size, pulled.commit) == (path, len(MODEL), COMMIT)
    assert path.read_bytes() == MODEL
    assert path.readlink() == Path("../../blobs") / sha256(MODEL)
    assert (site.cache.folder / "refs" / "main").read_text() == COMMIT
    assert site.listed() == {"Tiny-Q4_K_M.gguf": MODEL}
    assert site.blobs() == {sha256(MODEL)}
    stages = list(dict.fromkeys(progress.stage for progress in site.told))
    assert stages == ["resolving", "downloading", "placing"]
    done = [progress.done for progress in site.told]
    assert done == sorted(done)
    assert done[-1] == len(MODEL)
    assert {p.total for p in site.told if p.stage != "resolving"} == {len(MODEL)}
    assert not site.keyring.asked


async def test_the_hubs_own_library_finds_it(site: Site) -> None:
    pulled = await site.pull()
    from huggingface_hub import scan_cache_dir, try_to_load_from_cache

    found = try_to_load_from_cache(REPO, "Tiny-Q4_K_M.gguf", cache_dir=site.root)
    assert found == str(pulled.path)
    info = scan_cache_dir(site.root)
    assert not info.warnings
    assert info.size_on_disk == len(MODEL)


async def test_what_is_there_is_not_fetched_again(site: Site, hub: LocalHub) -> None:
    await site.pull()
    again = await site.pull(f"{REPO}:q4_k_m")
    assert again.path.read_bytes() == MODEL
    assert hub.fetched() == ["Tiny-Q4_K_M.gguf"]


async def test_a_new_revision_with_the_same_file_needs_no_second_copy(site: Site, hub: LocalHub) -> None:
    await site.pull()
    hub.commits["main"] = NEWER
    pulled = await site.pull()
    assert pulled.commit == NEWER
    assert len(hub.fetched()) == 1
    assert site.listed() == {"Tiny-Q4_K_M.gguf": MODEL}
    assert (site.cache.folder / "refs" / "main").read_text() == NEWER


async def test_a_kept_file_that_is_damaged_is_fetched_anew(site: Site, hub: LocalHub) -> None:
    site.cache.blobs.mkdir(parents=True)
    (site.cache.blobs / sha256(MODEL)).write_bytes(bytes(len(MODEL)))
    assert (await site.pull()).path.read_bytes() == MODEL


async def test_other_revisions_are_asked_for_and_kept_by_their_names(site: Site, hub: LocalHub) -> None:
    hub.commits["refs/pr/1"] = NEWER
    assert (await site.pull(f"{REPO}@refs/pr/1")).commit == NEWER
    assert (site.cache.folder / "refs" / "refs" / "pr" / "1").read_text() == NEWER
    hub.commits[COMMIT] = COMMIT
    await site.pull(f"{REPO}@{COMMIT}")
    assert not (site.cache.folder / "refs" / COMMIT).exists()
    with pytest.raises(RouterError, match="no revision nowhere"):
        await site.pull(f"{REPO}@nowhere")


async def test_shards_of_a_subfolder_and_the_projector_come_along(site: Site, hub: LocalHub) -> None:
    shards = {f"Q8_0/Big-Q8_0-0000{n}-of-00003.gguf": bytes([n]) * 1000 for n in (1, 2, 3)}
    hub.repos[REPO] = {**shards, "mmproj-F16.gguf": PROJECTOR, "mmproj-BF16.gguf": OTHER}
    hub.stall_at = 10
    task = asyncio.ensure_future(site.pull(f"{REPO}:q8_0"))
    async with asyncio.timeout(SAFETY_S):
        await hub.stalled.wait()
    assert site.listed() == {}
    hub.stall_at = None
    hub.go_on.set()
    pulled = await task
    assert pulled.path.name == "Big-Q8_0-00001-of-00003.gguf"
    assert site.listed() == {**shards, "mmproj-F16.gguf": PROJECTOR}
    assert pulled.size == 3000 + len(PROJECTOR)


async def test_a_broken_connection_is_taken_up_where_it_broke(site: Site, hub: LocalHub) -> None:
    hub.cuts = [2_000_000, 500_000]
    assert (await site.pull()).path.read_bytes() == MODEL
    assert hub.ranges[0] == ""
    assert all(asked.startswith("bytes=") for asked in hub.ranges[1:])
    assert len(hub.ranges) == 3


async def interrupt(site: Site, hub: LocalHub, chance: random.Random) -> None:
    """Cancel a pull at some byte, and see to it that what is there is nothing, or right so far."""
    hub.stalled.clear()
    hub.go_on.clear()
    hub.stall_at = chance.randrange(0, len(MODEL))
    task = asyncio.ensure_future(site.pull())
    reached = asyncio.ensure_future(hub.stalled.wait())
    async with asyncio.timeout(SAFETY_S):
        await asyncio.wait((task, reached), return_when=asyncio.FIRST_COMPLETED)
    reached.cancel()
    task.cancel()
    await asyncio.gather(task, reached, return_exceptions=True)
    hub.go_on.set()
    part = site.cache.blobs / f"{sha256(MODEL)}{INCOMPLETE}"
    assert site.listed() == {}
    if part.exists():
        assert MODEL.startswith(part.read_bytes())


async def test_that_the_beginning_is_read_again_is_told(site: Site, hub: LocalHub) -> None:
    """Of a large file that takes minutes."""
    part = site.cache.blobs / f"{sha256(MODEL)}{INCOMPLETE}"
    part.parent.mkdir(parents=True)
    part.write_bytes(MODEL[:1_000_000])
    await site.pull()
    told = [progress for progress in site.told if progress.stage == "checking"]
    assert [(each.done, each.total, each.file_done) for each in told] == [(1_000_000, len(MODEL), 1_000_000)]
    assert site.told[-1].stage == "placing"


async def interrupted(site: Site, hub: LocalHub, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(chance.randrange(1, 4)):
        await interrupt(site, hub, chance)
    hub.stall_at = None
    hub.cuts = [chance.randrange(0, len(MODEL)) for _ in range(chance.randrange(0, 3))]
    kept = site.cache.blobs / f"{sha256(MODEL)}{INCOMPLETE}"
    before = kept.stat().st_size if kept.exists() else 0
    asked = len(hub.ranges)
    assert (await site.pull()).path.read_bytes() == MODEL
    assert site.blobs() == {sha256(MODEL)}
    if len(hub.ranges) > asked:
        assert hub.ranges[asked] == (f"bytes={before}-" if before else "")


@pytest.mark.fault("F26")
@pytest.mark.parametrize("seed", range(8))
async def test_a_pull_that_is_interrupted_ends_whole(site: Site, hub: LocalHub, seed: int) -> None:
    await interrupted(site, hub, seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 150))
async def test_a_pull_that_is_interrupted_ends_whole_in_the_long_run(
    site: Site, hub: LocalHub, seed: int
) -> None:
    await interrupted(site, hub, seed)


async def test_where_there_are_no_locks_a_file_that_another_program_wrote_to_gets_no_name(
    site: Site, hub: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hash of what came is right then, and that of the file is not."""

    def no_locks(_lock: FileLock) -> bool:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(FileLock, "acquire", no_locks)

    def write_too(progress: PullProgress) -> None:
        if part.exists() and progress.file_done and not spoiled:
            spoiled.append(progress.file_done)
            with part.open("r+b") as opened:
                opened.write(b"spoiled")

    part, spoiled = site.cache.blobs / f"{sha256(MODEL)}{INCOMPLETE}", list[int]()
    site.on_tell = write_too
    with pytest.raises(RouterError, match="another program") as caught:
        await site.pull()
    assert caught.value.code == "download_corrupt"
    assert (site.listed(), part.exists()) == ({}, False)
    assert (await site.pull()).path.read_bytes() == MODEL


async def test_a_full_disk_names_what_given_up_pulls_take(
    site: Site, hub: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = HubCache(site.root, "acme/Other-GGUF").blobs
    for blobs, sha, size in ((other, "0" * 64, 3 << 20), (site.cache.blobs, sha256(MODEL), 1_000)):
        blobs.mkdir(parents=True)
        (blobs / f"{sha}{INCOMPLETE}").write_bytes(bytes(size))
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(fetching.shutil, "disk_usage", lambda _folder: usage(10, 10, 0))
    with pytest.raises(RouterError) as caught:
        await site.pull()
    assert caught.value.status == 507
    assert "lemon-tray hub leftovers" in (caught.value.hint or "")


@pytest.mark.fault("F26")
@pytest.mark.parametrize("linked", [True, False])
async def test_another_file_than_was_told_never_gets_a_name(site: Site, hub: LocalHub, linked: bool) -> None:
    hub.linked = linked
    hub.told["Tiny-Q4_K_M.gguf"] = {"sha256": "0" * 64}
    with pytest.raises(RouterError) as caught:
        await site.pull()
    assert caught.value.code == "download_corrupt"
    assert site.listed() == {}
    assert site.blobs() == set()
    # A hub that names the hash gives it away before the bytes have come.
    assert len(hub.fetched()) == 1


async def test_a_file_that_changes_between_two_parts_is_fetched_whole_by_its_new_hash(
    site: Site, hub: LocalHub
) -> None:
    hub.stall_at = 2_000_000
    task = asyncio.ensure_future(site.pull())
    async with asyncio.timeout(SAFETY_S):
        await hub.stalled.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    hub.stall_at = None
    changed = MODEL[::-1]
    hub.repos[REPO]["Tiny-Q4_K_M.gguf"] = changed
    # Still told by its old hash, as by a hub in the midst of the change: refused before anything is mixed.
    hub.told["Tiny-Q4_K_M.gguf"] = {"sha256": sha256(MODEL)}
    with pytest.raises(RouterError, match="another file by now"):
        await site.pull()
    hub.told.clear()
    hub.commits["main"] = NEWER
    assert (await site.pull()).path.read_bytes() == changed
    assert site.listed() == {"Tiny-Q4_K_M.gguf": changed}


async def test_a_file_of_another_size_is_refused(site: Site, hub: LocalHub) -> None:
    hub.told["Tiny-Q4_K_M.gguf"] = {"size": 10}
    with pytest.raises(RouterError, match="has not the length"):
        await site.pull()
    assert site.listed() == {}


async def test_a_file_without_a_known_hash_is_refused(site: Site, hub: LocalHub) -> None:
    hub.told["Tiny-Q4_K_M.gguf"] = {"lfs": None}
    with pytest.raises(RouterError, match="no SHA-256") as caught:
        await site.pull()
    assert caught.value.code == "no_digest"


# Tokens


async def test_the_token_goes_to_the_hub_and_to_no_other_host(
    make_site: Callable[..., Site], hub: LocalHub
) -> None:
    hub.gated.add(REPO)
    site = make_site(HF_TOKEN=TOKEN)
    await site.pull()
    assert {token for _, token in hub.asked} == {f"Bearer {TOKEN}"}
    assert {token for _, token in hub.files_asked} == {""}
    assert not site.keyring.asked


async def test_a_gated_repository_asks_the_keyring(make_site: Callable[..., Site], hub: LocalHub) -> None:
    hub.gated.add(REPO)
    site = make_site(token=TOKEN)
    await site.pull()
    assert hub.asked[0][1] == ""
    assert hub.asked[-1][1] == f"Bearer {TOKEN}"


async def test_a_private_repository_is_looked_for_with_the_keyrings_token(
    make_site: Callable[..., Site], hub: LocalHub
) -> None:
    hub.private.add(REPO)
    assert (await make_site(token=TOKEN).pull()).size == len(MODEL)


async def test_a_gated_repository_names_the_page_to_accept(
    make_site: Callable[..., Site], hub: LocalHub
) -> None:
    hub.gated.add(REPO)
    with pytest.raises(RouterError, match=f"{hub.endpoint}/{REPO}") as caught:
        await make_site().pull()
    assert (caught.value.status, caught.value.code) == (403, "gated_repo")
    assert "hub login" in (caught.value.hint or "")
    hub.closed.add(REPO)
    with pytest.raises(RouterError, match="has no access") as caught:
        await make_site(HF_TOKEN=TOKEN).pull()
    assert f"{hub.endpoint}/{REPO}" in caught.value.message
    with pytest.raises(RouterError, match="does not take the token") as caught:
        await make_site(HF_TOKEN="hf_wrong").pull()
    assert caught.value.code == "hub_token_refused"
    for error in (caught.value.message, caught.value.hint or ""):
        assert "hf_wrong" not in error


async def test_what_does_not_exist_is_said(site: Site, hub: LocalHub) -> None:
    with pytest.raises(RouterError, match="no repository acme/Nothing") as caught:
        await site.pull("acme/Nothing")
    assert caught.value.status == 404


# The way there


async def test_a_hub_that_wants_to_be_asked_later_is_asked_later(site: Site, hub: LocalHub) -> None:
    hub.answers = [(429, {"Retry-After": "0"}), (503, {})]
    hub.file_answers = [(429, {"Retry-After": "0"}), (500, {})]
    assert (await site.pull()).path.read_bytes() == MODEL


async def test_a_host_of_files_that_names_no_time_is_asked_again(site: Site, hub: LocalHub) -> None:
    hub.file_answers = [(429, {}), (408, {})]
    assert (await site.pull()).path.read_bytes() == MODEL
    assert not hub.file_answers


@pytest.mark.parametrize("where", ["answers", "file_answers"])
async def test_a_wait_that_is_too_long_is_told_instead(site: Site, hub: LocalHub, where: str) -> None:
    setattr(hub, where, [(429, {"Retry-After": "4000"})])
    with pytest.raises(RouterError) as caught:
        await site.pull()
    assert caught.value.retry_after_s == 4000
    assert not hub.answers
    assert not hub.file_answers


def test_what_retry_after_may_say() -> None:
    assert seconds_of("120") == 120
    assert seconds_of("Thu, 01 Jan 1970 00:01:40 GMT", now=40.0) == 60
    assert seconds_of("Thu, 01 Jan 1970 00:00:10 GMT", now=40.0) == 0
    for nothing in ("", "soon", "-5", "1e3"):
        assert seconds_of(nothing) is None


async def test_a_hub_that_is_not_there_is_named(tmp_path: Path, hub: LocalHub) -> None:
    away = Hub({"HF_ENDPOINT": "http://user:secret@127.0.0.1:1"}, find_keyring=lambda: None, pauses_s=())
    with pytest.raises(RouterError, match=r"127\.0\.0\.1:1") as caught:
        await Puller(away, tmp_path).pull(parse_reference(REPO), lambda _: None)
    assert caught.value.code == "hub_unreachable"
    assert "secret" not in caught.value.message


async def test_offline_means_offline(make_site: Callable[..., Site], hub: LocalHub) -> None:
    with pytest.raises(RouterError, match="HF_HUB_OFFLINE"):
        await make_site(HF_HUB_OFFLINE="1").pull()
    assert not hub.asked


async def test_nothing_else_is_asked_of_the_hub(site: Site, hub: LocalHub) -> None:
    await site.pull()
    assert [path for path, _ in hub.asked] == [
        f"/api/models/{REPO}/revision/main",
        f"/{REPO}/resolve/{COMMIT}/Tiny-Q4_K_M.gguf",
    ]


# The disk


def free(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(fetching.shutil, "disk_usage", lambda _: usage(1 << 40, 0, count))


async def test_space_is_looked_at_first_and_what_is_there_counts(
    site: Site, hub: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    free(monkeypatch, (64 << 20) + 1_500_000)
    with pytest.raises(RouterError, match="is free") as caught:
        await site.pull()
    assert (caught.value.code, caught.value.status) == ("disk_full", 507)
    assert not hub.files_asked
    (site.cache.blobs / f"{sha256(MODEL)}{INCOMPLETE}").write_bytes(MODEL[:2_000_000])
    assert (await site.pull()).path.read_bytes() == MODEL
    assert hub.ranges == ["bytes=2000000-"]


async def test_pulls_at_once_share_the_space(
    site: Site, hub: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repos["acme/Second"] = {"Second-Q8_0.gguf": MODEL[::-1]}
    free(monkeypatch, (64 << 20) + 5_000_000)
    hub.stall_at = 10
    first = asyncio.ensure_future(site.pull())
    async with asyncio.timeout(SAFETY_S):
        await hub.stalled.wait()
    with pytest.raises(RouterError, match="is free"):
        await site.pull("acme/Second")
    hub.stall_at = None
    hub.go_on.set()
    await first
    await site.pull("acme/Second")


async def test_a_disk_that_fills_up_keeps_what_has_arrived(
    site: Site, hub: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = fetching.Part.write
    room = 2

    def full(part: Any, data: bytes) -> None:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        room -= 1
        write(part, data)

    with monkeypatch.context() as patched:
        patched.setattr(fetching.Part, "write", full)
        with pytest.raises(RouterError, match="no space left") as caught:
            await site.pull()
    assert caught.value.code == "disk_full"
    assert site.listed() == {}
    kept = (site.cache.blobs / f"{sha256(MODEL)}{INCOMPLETE}").stat().st_size
    assert kept > 0
    assert (await site.pull()).path.read_bytes() == MODEL
    assert hub.ranges[-1] == f"bytes={kept}-"


@pytest.mark.parametrize(
    "path", ["../x-Q4_K_M.gguf", "a/../../x.gguf", "/etc/x.gguf", "C:\\x.gguf", "a\\..\\x.gguf", "nul.gguf"]
)
async def test_names_that_lead_elsewhere_are_refused(site: Site, hub: LocalHub, path: str) -> None:
    hub.repos[REPO] = {path: OTHER}
    with pytest.raises(RouterError) as caught:
        await site.pull()
    assert caught.value.code == "unsafe_path"
    assert not list(site.root.parent.rglob("*.gguf"))


async def test_a_commit_that_is_none_is_refused(site: Site, hub: LocalHub) -> None:
    hub.commits["main"] = "../../../up"
    with pytest.raises(RouterError, match="no commit"):
        await site.pull()


async def test_where_there_are_no_links_the_files_themselves_lie_there(
    site: Site, hub: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_args: Any, **_kwargs: Any) -> None:
        raise OSError(errno.EPERM, "A required privilege is not held by the client")

    monkeypatch.setattr("router.catalog.hub_cache.os.symlink", refused)
    pulled = await site.pull()
    assert not pulled.path.is_symlink()
    assert site.listed() == {"Tiny-Q4_K_M.gguf": MODEL}
    assert site.blobs() == set()
    await site.pull()
    assert len(hub.fetched()) == 1


# Several at once


async def test_two_pulls_that_need_the_same_file_fetch_it_once(site: Site, hub: LocalHub) -> None:
    hub.repos[REPO] = {"A-Q4_0.gguf": MODEL, "A-Q8_0.gguf": OTHER, "mmproj-A-F16.gguf": PROJECTOR}
    hub.stall_at = 10
    first = asyncio.ensure_future(site.pull(f"{REPO}:q4_0"))
    async with asyncio.timeout(SAFETY_S):
        await hub.stalled.wait()
    waits = asyncio.Event()
    site.on_tell = lambda progress: waits.set() if progress.stage == "waiting" else None
    same = asyncio.ensure_future(site.pull(f"{REPO}:A-Q4_0.gguf"))
    async with asyncio.timeout(SAFETY_S):
        await waits.wait()
    hub.stall_at = None
    other = asyncio.ensure_future(site.pull(f"{REPO}:q8_0"))
    hub.go_on.set()
    await asyncio.gather(first, same, other)
    assert sorted(hub.fetched()) == ["A-Q4_0.gguf", "A-Q8_0.gguf", "mmproj-A-F16.gguf"]
    assert len(site.listed()) == 3


async def test_a_file_that_another_program_fetches_is_left_to_it(site: Site, hub: LocalHub) -> None:
    folder = site.root / ".locks" / site.cache.folder.name
    folder.mkdir(parents=True)
    lock = FileLock(folder / f"{sha256(MODEL)}.lock")
    assert lock.acquire()
    with pytest.raises(Conflict, match="Another program"):
        await site.pull()
    lock.release()
    assert (await site.pull()).path.read_bytes() == MODEL


async def test_cancelling_does_not_wait_for_a_hub_that_says_nothing(tmp_path: Path) -> None:
    silent = asyncio.Event()
    writers: list[asyncio.StreamWriter] = []

    async def accept(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        silent.set()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    front = Hub({"HF_ENDPOINT": f"http://127.0.0.1:{port}"}, find_keyring=lambda: None)
    task = asyncio.ensure_future(Puller(front, tmp_path).pull(parse_reference(REPO), lambda _: None))
    async with asyncio.timeout(10):  # The hub is waited for 20 s.
        await silent.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        writers[0].close()
        await writers[0].wait_closed()
    server.close()
