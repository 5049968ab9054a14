"""Models that other programs keep: found where they are, and nothing of theirs is touched."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.catalog import ollama
from router.catalog.catalog import Catalog
from router.catalog.model import Model
from router.catalog.places import LABELS, Place, PlaceKind, stores
from tests.router.catalog.conftest import Reader, put, type_of

Q4 = "tiny-Q4_K_M.gguf"


class Hub:
    """A Hugging Face cache under construction."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True)

    def add(self, repo: str, revision: str, file: str, text: str = "llama", *, blob: str = "") -> Path:
        """A file of a revision, kept as a blob, which two revisions may share by its name."""
        folder = self.path / f"models--{repo.replace('/', '--')}"
        kept = put(folder / "blobs" / (blob or f"{revision}-{Path(file).stem}"), text)
        link = folder / "snapshots" / revision / file
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(kept, link.parent))
        return link

    def main(self, repo: str, revision: str) -> None:
        put(self.path / f"models--{repo.replace('/', '--')}" / "refs" / "main", revision)


class OllamaStore:
    """A store of Ollama under construction."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "manifests").mkdir(parents=True)

    def blob(self, number: int, text: str = "llama") -> str:
        digest = f"{number:064x}"
        put(self.path / "blobs" / f"sha256-{digest}", text)
        return f"sha256:{digest}"

    def manifest(self, where: str, model: str = "", projector: str = "", adapter: str = "") -> Path:
        kinds = {"model": model, "projector": projector, "adapter": adapter, "license": f"sha256:{9:064x}"}
        layers = [
            {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": digest, "size": 5}
            for kind, digest in kinds.items()
            if digest
        ]
        text = json.dumps({"schemaVersion": 2, "config": {"digest": "sha256:0"}, "layers": layers})
        return put(self.path / "manifests" / where, text)


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    return Hub(tmp_path / "hub")


@pytest.fixture
def store(tmp_path: Path) -> OllamaStore:
    return OllamaStore(tmp_path / "ollama")


def place(path: Path, kind: PlaceKind) -> Place:
    return Place(path, kind, LABELS[kind], own=False)


def looking(reader: Reader, *places: Place, folders: tuple[Path, ...] = ()) -> Catalog:
    return Catalog(folders, stores=places, read=reader, type_of=type_of, interval_s=0.01)


async def found(reader: Reader, *places: Place, folders: tuple[Path, ...] = ()) -> dict[str, Model]:
    return dict(await looking(reader, *places, folders=folders).scan())


# The Hugging Face cache


@pytest.mark.fault("F32")
async def test_a_cached_model_is_named_by_repository_and_quantization(hub: Hub, reader: Reader) -> None:
    link = hub.add("owner/repo", "aaa", "sub/tiny-Q4_K_M.gguf")
    hub.add("owner/repo", "aaa", "tiny-UD-IQ2_XXS.gguf", blob="other")
    hub.add("gpt2", "aaa", "gpt2.gguf")
    models = await found(reader, place(hub.path, PlaceKind.HUGGING_FACE))
    assert list(models) == ["gpt2:gpt2", "owner/repo:Q4_K_M", "owner/repo:UD-IQ2_XXS"]
    model = models["owner/repo:Q4_K_M"]
    assert (model.path, model.identity.path) == (str(link), os.path.realpath(link))
    assert (model.aliases, model.source, model.size_bytes) == (("tiny-Q4_K_M",), "Hugging Face", 5)


@pytest.mark.fault("F32")
async def test_two_revisions_that_share_blobs_are_counted_once(hub: Hub, reader: Reader) -> None:
    for revision in ("aaa", "bbb"):
        for number in (1, 2):
            hub.add("o/r", revision, f"m-Q8_0-{number:05d}-of-00002.gguf", blob=f"blob{number}")
    models = await found(reader, place(hub.path, PlaceKind.HUGGING_FACE))
    assert list(models) == ["o/r:Q8_0"]
    assert (models["o/r:Q8_0"].size_bytes, models["o/r:Q8_0"].broken) == (10, "")
    assert reader.read == ["m-Q8_0-00001-of-00002.gguf"]


@pytest.mark.fault("F32")
async def test_the_main_revision_goes_first_then_the_newest(hub: Hub, reader: Reader) -> None:
    links = {
        revision: hub.add("o/r", revision, Q4, f"llama {revision}") for revision in ("old", "new", "mid")
    }
    for age_s, revision in enumerate(("new", "mid", "old")):
        os.utime(links[revision].parent, (1e9 - age_s, 1e9 - age_s))
    only_old = hub.add("o/r", "old", "tiny-Q8_0.gguf")
    os.utime(links["old"].parent, (1e8, 1e8))
    shown = await found(reader, place(hub.path, PlaceKind.HUGGING_FACE))
    assert shown["o/r:Q4_K_M"].path == str(links["new"])
    assert shown["o/r:Q8_0"].path == str(only_old)
    hub.main("o/r", "mid\n")
    shown = await found(reader, place(hub.path, PlaceKind.HUGGING_FACE))
    assert shown["o/r:Q4_K_M"].path == str(links["mid"])
    assert len(shown) == 2


async def test_an_older_revision_stands_in_for_one_that_is_incomplete(hub: Hub, reader: Reader) -> None:
    for number in (1, 2):
        hub.add("o/r", "old", f"m-Q8_0-{number:05d}-of-00002.gguf")
    hub.add("o/r", "new", "m-Q8_0-00001-of-00002.gguf")
    hub.main("o/r", "new")
    models = await found(reader, place(hub.path, PlaceKind.HUGGING_FACE))
    assert models["o/r:Q8_0"].broken == ""
    assert "/old/" in models["o/r:Q8_0"].path


@pytest.mark.fault("F32")
async def test_links_of_the_cache_that_lead_nowhere_out_or_round(
    hub: Hub, reader: Reader, tmp_path: Path
) -> None:
    folder = hub.add("o/r", "aaa", Q4).parent
    (folder / "gone-Q8_0.gguf").symlink_to("../../blobs/none")
    (folder / "round-Q5_0.gguf").symlink_to("round-Q5_0.gguf")
    (folder / "out-Q6_K.gguf").symlink_to(put(tmp_path / "private.gguf"))
    (folder / "loop").symlink_to("..")
    put(tmp_path / "outside" / "other.gguf")
    (folder / "elsewhere").symlink_to(tmp_path / "outside")
    (hub.path / "models--loop").symlink_to(hub.path)
    models = await found(reader, place(hub.path, PlaceKind.HUGGING_FACE))
    assert {name: model.broken for name, model in models.items()} == {
        "o/r:Q4_K_M": "",
        "o/r:Q8_0": "a link to a file that is missing: ../../blobs/none",
        "o/r:Q5_0": "a link that leads back to itself",
        "o/r:Q6_K": "a link that leads out of its store",
    }
    assert models["o/r:Q8_0"].aliases == ("gone-Q8_0",)


async def test_equal_quantizations_of_one_repository_are_told_apart(hub: Hub, reader: Reader) -> None:
    hub.add("o/r", "aaa", "big-Q4_0.gguf")
    hub.add("o/r", "aaa", "small-Q4_0.gguf")
    models = await found(reader, place(hub.path, PlaceKind.HUGGING_FACE))
    assert list(models) == ["o/r:Q4_0", "o/r:small-Q4_0"]


async def test_a_file_of_the_users_folder_and_of_the_cache_is_one_model(
    hub: Hub, reader: Reader, folder: Path
) -> None:
    link = hub.add("o/r", "aaa", Q4)
    (folder / "mine.gguf").symlink_to(link)
    models = await found(reader, place(hub.path, PlaceKind.HUGGING_FACE), folders=(folder,))
    assert list(models) == ["mine"]
    assert models["mine"].aliases == ("o/r:Q4_K_M", "tiny-Q4_K_M")
    assert models["mine"].source == "models"


async def test_the_cache_named_as_a_folder_too(hub: Hub, reader: Reader) -> None:
    hub.add("o/r", "aaa", Q4)
    models = await found(reader, place(hub.path, PlaceKind.HUGGING_FACE), folders=(hub.path,))
    assert list(models) == ["tiny-Q4_K_M"]
    assert models["tiny-Q4_K_M"].aliases == ("o/r:Q4_K_M",)


# LM Studio


async def test_models_of_lm_studio(tmp_path: Path, reader: Reader) -> None:
    put(tmp_path / "lm" / "publisher" / "repo" / Q4)
    put(tmp_path / "lm" / "publisher" / "repo" / "mmproj-model-f16.gguf", "clip")
    models = await found(reader, place(tmp_path / "lm", PlaceKind.LM_STUDIO))
    assert list(models) == ["tiny-Q4_K_M"]
    assert models["tiny-Q4_K_M"].source == "LM Studio"
    assert models["tiny-Q4_K_M"].mmproj.endswith("mmproj-model-f16.gguf")


# Ollama


async def test_models_of_ollama_are_named_by_their_manifests(store: OllamaStore, reader: Reader) -> None:
    model, other, projector = store.blob(1), store.blob(2, "bert"), store.blob(3, "clip")
    store.manifest("registry.ollama.ai/library/llama3.2/1b", model)
    store.manifest("registry.ollama.ai/library/llama3.2/latest", model)
    store.manifest("registry.ollama.ai/someone/embed/v1", other)
    store.manifest("hf.co/owner/repo/Q4_K_M", store.blob(4), projector)
    store.manifest("registry.ollama.ai/library/cloud/120b")
    models = await found(reader, place(store.path, PlaceKind.OLLAMA))
    assert list(models) == ["hf.co/owner/repo:Q4_K_M", "llama3.2:1b", "someone/embed:v1"]
    assert models["llama3.2:1b"].aliases == ("llama3.2:latest", "llama3.2")
    assert models["llama3.2:1b"].path == str(store.path / "blobs" / f"sha256-{1:064x}")
    assert (models["llama3.2:1b"].source, models["llama3.2:1b"].size_bytes) == ("Ollama", 5)
    assert models["someone/embed:v1"].type == "embedding"
    assert models["hf.co/owner/repo:Q4_K_M"].mmproj == str(store.path / "blobs" / f"sha256-{3:064x}")
    assert models["hf.co/owner/repo:Q4_K_M"].mmproj_bytes == 4
    assert models["llama3.2:1b"].mmproj == ""


@pytest.mark.fault("F26")
async def test_a_broken_manifest_or_blob_breaks_no_other(
    store: OllamaStore, reader: Reader, tmp_path: Path
) -> None:
    library = "registry.ollama.ai/library"
    store.manifest(f"{library}/good/latest", store.blob(1))
    put(store.path / "manifests" / library / "syntax" / "latest", '{"layers": [')
    put(store.path / "manifests" / library / "shape" / "latest", '{"layers": {"a": 1}}')
    put(store.path / "manifests" / library / "deep" / "latest", "[" * 100_000)
    put(store.path / "manifests" / library / "large" / "latest", " " * (ollama.MAX_BYTES + 1))
    put(store.path / "manifests" / library / "empty" / "latest", "")
    os.mkfifo(store.path / "manifests" / library / "empty" / "pipe")
    store.manifest(f"{library}/traversal/latest", "sha256:../../../../etc/passwd")
    store.manifest(f"{library}/gone/latest", f"sha256:{77:064x}")
    store.manifest(f"{library}/blind/latest", store.blob(2), f"sha256:{78:064x}")
    store.manifest(f"{library}/adapted/latest", store.blob(3), adapter=store.blob(4))
    store.manifest(f"{library}/rubbish/latest", store.blob(5, "bad"))
    (store.path / "blobs" / f"sha256-{6:064x}").symlink_to(put(tmp_path / "private.gguf"))
    store.manifest(f"{library}/out/latest", f"sha256:{6:064x}")
    catalog = looking(reader, place(store.path, PlaceKind.OLLAMA))
    models = await catalog.scan()
    reasons = {name.removesuffix(":latest"): model.broken for name, model in models.items()}
    assert reasons.pop("good") == ""
    for name, words in {
        "syntax": "no manifest",
        "shape": "no manifest",
        "deep": "no manifest",
        "large": "larger than 1 MiB",
        "empty": "no manifest",
        "empty:pipe": "no regular file",
        "traversal": "no SHA-256",
        "gone": f"its file sha256-{77:064x} is missing",
        "blind": f"its projector: its file sha256-{78:064x} is missing",
        "adapted": "an adapter",
        "rubbish": "no GGUF file",
        "out": "leads out of its store",
    }.items():
        assert words in reasons.pop(name), name
    assert reasons == {}
    assert catalog.problems == ()


@given(st.binary(max_size=80) | st.text(max_size=40).map(str.encode))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_manifest_is_read_or_refused(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "manifest"
    for text in (raw, b'{"layers": [%s]}' % raw):
        path.write_bytes(text)
        try:
            read = ollama.read_manifest(path)
        except ValueError:
            continue
        assert read.model == "" or read.model.startswith("sha256-")


async def test_the_watch_sees_a_pulled_model(store: OllamaStore, reader: Reader) -> None:
    catalog = looking(reader, place(store.path, PlaceKind.OLLAMA))
    await catalog.scan()
    store.manifest("registry.ollama.ai/library/new/latest", store.blob(1))
    await catalog._look_again()
    assert list(catalog.models) == ["new:latest"]
    await catalog._look_again()
    (store.path / "blobs" / f"sha256-{1:064x}").unlink()
    await catalog._look_again()
    assert "is missing" in catalog.models["new:latest"].broken


# Stores as a whole


async def test_a_store_of_another_user_is_no_problem_but_a_closed_folder_is(
    tmp_path: Path, reader: Reader, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(folder / "m.gguf")
    closed = tmp_path / "closed"
    closed.mkdir()
    scandir = os.scandir

    def refusing(path: Path) -> Any:
        if path == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    for kind in LABELS:
        catalog = looking(reader, place(closed, kind), folders=(folder,))
        assert list(await catalog.scan()) == ["m"]
        assert catalog.problems == ()
    catalog = looking(reader, folders=(closed, folder))
    assert list(await catalog.scan()) == ["m"]
    assert catalog.problems == (f"{closed}: it cannot be searched (Permission denied)",)


async def test_stores_that_are_not_there_or_no_folders(tmp_path: Path, reader: Reader, folder: Path) -> None:
    put(folder / "m.gguf")
    put(tmp_path / "file")
    places = [place(tmp_path / name, kind) for name in ("none", "file") for kind in LABELS]
    catalog = looking(reader, *places, folders=(folder,))
    assert list(await catalog.scan()) == ["m"]
    assert catalog.problems == ()


async def test_nothing_is_written_into_a_store(hub: Hub, store: OllamaStore, reader: Reader) -> None:
    hub.add("o/r", "aaa", Q4)
    store.manifest("registry.ollama.ai/library/a/latest", store.blob(1))

    def state() -> list[tuple[str, int, int]]:
        return sorted(
            (str(path), path.lstat().st_mtime_ns, stat.S_IMODE(path.lstat().st_mode))
            for root in (hub.path, store.path)
            for path in root.rglob("*")
        )

    before = state()
    await found(reader, place(hub.path, PlaceKind.HUGGING_FACE), place(store.path, PlaceKind.OLLAMA))
    assert state() == before


async def test_a_source_that_is_switched_off_and_on(store: OllamaStore, reader: Reader) -> None:
    store.manifest("registry.ollama.ai/library/a/latest", store.blob(1))
    catalog = looking(reader, place(store.path, PlaceKind.OLLAMA))
    assert list(await catalog.scan()) == ["a:latest"]
    places, catalog.stores = catalog.stores, ()
    assert dict(await catalog.scan(settle=False)) == {}
    catalog.stores = places
    assert list(await catalog.scan()) == ["a:latest"]


# Where they are


def where(environ: dict[str, str], system: str, kind: PlaceKind) -> list[str]:
    return [place.path.as_posix() for place in stores((kind,), environ, system)]


@pytest.mark.parametrize("system", ["linux", "darwin", "win32"])
def test_default_places(system: str) -> None:
    home = {"HOME" if system != "win32" else "USERPROFILE": "/home/me"}
    assert where(home, system, PlaceKind.HUGGING_FACE) == ["/home/me/.cache/huggingface/hub"]
    assert where(home, system, PlaceKind.LM_STUDIO) == [
        "/home/me/.lmstudio/models",
        "/home/me/.cache/lm-studio/models",
    ]
    service = ["/usr/share/ollama/.ollama/models", "/var/lib/ollama"] if system == "linux" else []
    assert where(home, system, PlaceKind.OLLAMA) == ["/home/me/.ollama/models", *service]
    assert [place.label for place in stores(environ=home, system="darwin")] == [
        "Hugging Face",
        "LM Studio",
        "LM Studio",
        "Ollama",
    ]
    assert stores((), home, system) == ()


def test_places_moved_by_the_programs_own_variables() -> None:
    home = {"HOME": "/home/me"}
    for more, expected in (
        ({"HF_HUB_CACHE": "/big/hub"}, "/big/hub"),
        ({"HUGGINGFACE_HUB_CACHE": "/big/hub"}, "/big/hub"),
        ({"HF_HOME": "/big"}, "/big/hub"),
        ({"HF_HOME": "~/big"}, "/home/me/big/hub"),
        ({"HF_HOME": "/big", "HF_HUB_CACHE": "/hub"}, "/hub"),
        ({"HF_HOME": "relative"}, "/home/me/.cache/huggingface/hub"),
        ({"XDG_CACHE_HOME": "/cache"}, "/cache/huggingface/hub"),
    ):
        assert where({**home, **more}, "linux", PlaceKind.HUGGING_FACE) == [expected]
    assert where({**home, "OLLAMA_MODELS": "/big/ollama"}, "linux", PlaceKind.OLLAMA) == ["/big/ollama"]


@pytest.mark.fault("F34")
def test_without_a_home_folder_only_what_variables_name() -> None:
    assert stores(environ={}) == ()
    assert [place.path.as_posix() for place in stores(environ={"HOME": "", "OLLAMA_MODELS": "/o"})] == ["/o"]
