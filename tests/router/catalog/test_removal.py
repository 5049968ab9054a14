"""Deleting models: all that belongs to one, and nothing that another needs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec import structs

from router.catalog.catalog import Catalog
from router.catalog.model import Model
from router.catalog.places import Place, PlaceKind
from router.catalog.removal import plan_removal, remove
from router.errors import Forbidden
from tests.router.catalog.conftest import Reader, put, type_of

REPO = "models--o--r"


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    return tmp_path / "hub"


@pytest.fixture
def both(folder: Path, hub: Path, reader: Reader) -> Catalog:
    store = Place(hub, PlaceKind.HUGGING_FACE, "Hugging Face", own=False)
    return Catalog([folder], stores=[store], read=reader, type_of=type_of)


def link(hub: Path, commit: str, name: str, blob: str, text: str | None = None) -> Path:
    path = hub / REPO / "snapshots" / commit / name
    path.parent.mkdir(parents=True, exist_ok=True)
    target = put(hub / REPO / "blobs" / blob, text or f"llama {blob}")
    path.symlink_to(os.path.relpath(target, path.parent))
    return path


async def delete(catalog: Catalog, name: str, folder: Path, hub: Path) -> int:
    models = await catalog.scan(settle=False)
    model = catalog.resolve(name)
    assert model is not None
    others = [other for other in models.values() if other.name != model.name]
    removal = plan_removal(model, others, folder, hub)
    remove(removal)
    await catalog.scan(settle=False)
    return removal.freed


def left(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


async def test_a_file_of_the_apps_folder_goes_with_its_shards_and_projector(
    folder: Path, hub: Path, both: Catalog
) -> None:
    for number in (1, 2):
        put(folder / "big" / f"Big-0000{number}-of-00002.gguf")
    put(folder / "big" / "mmproj-Big.gguf", "clip kind=mmproj")
    put(folder / "Small.gguf")
    freed = await delete(both, "Big", folder, hub)
    assert left(folder) == {"Small.gguf"}
    assert freed == 2 * len("llama") + len("clip kind=mmproj")
    assert list(both.models) == ["Small"]


async def test_a_projector_that_another_model_uses_stays(folder: Path, hub: Path, both: Catalog) -> None:
    for quant in ("Q4_0", "Q8_0"):
        put(folder / "v" / f"V-{quant}.gguf", f"llama {quant}")
    put(folder / "v" / "mmproj-V.gguf", "clip kind=mmproj")
    await delete(both, "V-Q4_0", folder, hub)
    assert left(folder) == {"v/V-Q8_0.gguf", "v/mmproj-V.gguf"}
    await delete(both, "V-Q8_0", folder, hub)
    assert left(folder) == set()


async def test_of_a_link_only_the_link_goes(folder: Path, hub: Path, both: Catalog, tmp_path: Path) -> None:
    elsewhere = put(tmp_path / "elsewhere" / "Far.gguf")
    (folder / "Near.gguf").symlink_to(elsewhere)
    assert await delete(both, "Near", folder, hub) == 0
    assert elsewhere.exists()
    assert left(folder) == set()


async def test_files_of_others_are_left_alone(
    folder: Path, hub: Path, reader: Reader, tmp_path: Path
) -> None:
    theirs = tmp_path / "theirs"
    put(theirs / "Theirs.gguf")
    catalog = Catalog([folder, theirs], read=reader, type_of=type_of)
    with pytest.raises(Forbidden, match=r"Theirs\.gguf is not a file that Lemon Tray keeps") as caught:
        await delete(catalog, "Theirs", folder, hub)
    assert caught.value.code == "foreign_file"
    assert (theirs / "Theirs.gguf").exists()


@pytest.mark.fault("F32")
async def test_in_the_hubs_cache_links_and_contents_go(folder: Path, hub: Path, both: Catalog) -> None:
    link(hub, "c1", "M-Q4_0.gguf", "four")
    link(hub, "c1", "M-Q8_0.gguf", "eight")
    link(hub, "c1", "mmproj-F16.gguf", "eye", "clip kind=mmproj")
    put(hub / REPO / "refs" / "main", "c1")
    freed = await delete(both, "o/r:Q4_0", folder, hub)
    assert freed == len("llama four")
    assert left(hub / REPO / "blobs") == {"eight", "eye"}
    assert list(both.models) == ["o/r:Q8_0"]
    await delete(both, "o/r:Q8_0", folder, hub)
    assert not (hub / REPO).exists()


@pytest.mark.fault("F32")
async def test_an_older_revision_does_not_take_its_place(folder: Path, hub: Path, both: Catalog) -> None:
    link(hub, "c1", "M-Q4_0.gguf", "old")
    link(hub, "c2", "M-Q4_0.gguf", "new")
    put(hub / REPO / "refs" / "main", "c2")
    put(hub / REPO / "blobs" / "other.incomplete")
    await delete(both, "o/r:Q4_0", folder, hub)
    assert not both.models
    # What has arrived of something else is still there to go on with.
    assert left(hub / REPO) == {"blobs/other.incomplete", "refs/main"}


async def test_contents_that_another_name_leads_to_stay(folder: Path, hub: Path, both: Catalog) -> None:
    link(hub, "c1", "A-Q4_0.gguf", "same")
    put(hub / REPO / "refs" / "main", "c1")
    path = hub / REPO / "snapshots" / "c1" / "config.json"
    path.symlink_to("../../blobs/same")
    models = await both.scan()
    model = models["o/r:Q4_0"]
    removal = plan_removal(structs.replace(model), [], folder, hub)
    # It is another name of the same contents: they belong to the model, and go with it.
    assert {file.name for file in removal.files} == {"A-Q4_0.gguf", "config.json"}
    other = Model("x", str(path), "llm", 1, model.identity)
    removal = plan_removal(model, [other], folder, hub)
    assert {file.name for file in removal.files} == {"A-Q4_0.gguf"}
    assert removal.blobs == ()
