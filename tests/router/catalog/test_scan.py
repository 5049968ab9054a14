"""Which models a folder holds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from router.catalog.catalog import Catalog
from router.errors import ConfigError
from router.memory.header import ModelHeader
from tests.router.catalog.conftest import Clock, Reader, age, header, put
from tests.support import gguf


async def test_models_by_name_with_what_their_headers_say(catalog: Catalog, folder: Path) -> None:
    put(folder / "b.gguf", "bert")
    put(folder / "sub" / "Deep.Q4_K_M.GGUF", "llama 123")
    put(folder / "notes.txt")
    models = await catalog.scan()
    assert list(models) == ["Deep.Q4_K_M", "b"]
    deep = models["Deep.Q4_K_M"]
    assert (deep.type, deep.size_bytes, deep.context_length, deep.broken) == ("llm", 9, 4096, "")
    assert deep.path == str(folder / "sub" / "Deep.Q4_K_M.GGUF")
    assert deep.identity.path == os.path.realpath(deep.path)
    assert models["b"].type == "embedding"
    assert catalog.scanned


@pytest.mark.fault("F26")
async def test_what_is_no_model_file_is_ignored(catalog: Catalog, folder: Path) -> None:
    for name in (
        "a.gguf.part",
        "b.gguf.incomplete",
        "c.gguf.tmp",
        ".hidden.gguf",
        ".cache/x.gguf",
        "mmproj-model-f16.gguf",
        "Model-MMPROJ.gguf",
        "config.json",
    ):
        put(folder / name)
    put(folder / "projector.gguf", "clip")
    assert dict(await catalog.scan()) == {}


@pytest.mark.fault("F26")
async def test_broken_files_are_listed_with_the_reason_and_harm_no_other(
    catalog: Catalog, folder: Path, reader: Reader
) -> None:
    put(folder / "good.gguf")
    put(folder / "bad.gguf", "bad")
    put(folder / "empty.gguf", "")
    os.mkfifo(folder / "pipe.gguf")
    (folder / "dangling.gguf").symlink_to(folder / "gone")
    (folder / "loop.gguf").symlink_to("loop.gguf")
    models = await catalog.scan()
    broken = {name: model.broken for name, model in models.items() if model.broken}
    assert broken == {
        "bad": "bad.gguf is no GGUF file.",
        "empty": "empty.gguf is no GGUF file.",
        "pipe": "it is no regular file",
        "dangling": f"a link to a file that is missing: {folder / 'gone'}",
        "loop": "a link that leads back to itself",
    }
    assert not models["good"].broken
    assert "pipe.gguf" not in reader.read
    assert all(models[name].header is None for name in broken)


@pytest.mark.fault("F26")
async def test_a_file_that_grows_while_it_is_read_is_not_ready_yet(
    catalog: Catalog, folder: Path, reader: Reader
) -> None:
    put(folder / "m.gguf")

    def grow(path: Path) -> None:
        with path.open("a") as file:
            file.write(" more")

    reader.before = grow
    assert (await catalog.scan())["m"].broken == "it is still being written"
    reader.before = lambda _path: None
    assert (await catalog.scan())["m"].broken == ""


@pytest.mark.fault("F26")
async def test_a_file_that_goes_away_during_the_scan_is_left_out(
    catalog: Catalog, folder: Path, reader: Reader
) -> None:
    put(folder / "m.gguf")
    put(folder / "n.gguf")
    reader.before = lambda path: path.unlink() if path.name == "m.gguf" else None
    assert list(await catalog.scan()) == ["n"]


@pytest.mark.fault("F26")
async def test_a_header_is_read_once_and_again_when_the_file_changed(
    catalog: Catalog, folder: Path, reader: Reader
) -> None:
    put(folder / "m.gguf", "bad")
    assert (await catalog.scan())["m"].broken
    await catalog.scan()
    assert reader.read == ["m.gguf"]
    put(folder / "m.gguf", "llama now whole")
    assert not (await catalog.scan())["m"].broken
    assert reader.read == ["m.gguf"] * 2


async def test_a_file_that_could_not_be_opened_is_tried_again(folder: Path) -> None:
    answers: list[OSError | ModelHeader] = [PermissionError(13, "Permission denied"), header()]

    def read(paths: Sequence[Path]) -> ModelHeader:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise ConfigError(f"{paths[0].name} cannot be read: {answer.strerror}.") from answer
        return answer

    put(folder / "m.gguf")
    catalog = Catalog([folder], read=read, type_of=lambda _: "llm")
    assert (await catalog.scan())["m"].broken == "m.gguf cannot be read: Permission denied."
    assert not (await catalog.scan())["m"].broken


# Links


@pytest.mark.fault("F32")
async def test_the_hugging_face_layout(catalog: Catalog, folder: Path) -> None:
    repo = folder / "models--o--r"
    blobs = [put(repo / "blobs" / f"{number:064x}", f"llama {number}") for number in (1, 2)]
    for revision in ("aaa", "bbb"):
        for number, blob in enumerate(blobs, 1):
            link = repo / "snapshots" / revision / f"m-{number:05d}-of-00002.gguf"
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(Path("../../blobs") / blob.name)
    models = await catalog.scan()
    assert list(models) == ["m"]
    model = models["m"]
    assert model.path == str(repo / "snapshots" / "aaa" / "m-00001-of-00002.gguf")
    assert model.identity.path == str(blobs[0])
    assert model.size_bytes == 14
    assert (model.aliases, model.broken) == ((), "")


@pytest.mark.fault("F32")
async def test_one_file_under_several_names_is_one_model(
    catalog: Catalog, folder: Path, tmp_path: Path
) -> None:
    real = put(folder / "z.gguf")
    (folder / "a.gguf").symlink_to(real)
    os.link(real, folder / "zz.gguf")
    outside = put(tmp_path / "elsewhere" / "blob")
    (folder / "out.gguf").symlink_to(outside)
    models = await catalog.scan()
    assert list(models) == ["out", "z"]
    assert models["z"].aliases == ("zz", "a")
    assert catalog.resolve("a") is catalog.resolve("z") is models["z"]
    assert models["out"].path == str(folder / "out.gguf")
    assert models["out"].identity.path == str(outside)


@pytest.mark.fault("F32")
async def test_loops_of_folders_are_cut(catalog: Catalog, folder: Path) -> None:
    put(folder / "sub" / "m.gguf")
    (folder / "sub" / "up").symlink_to(folder)
    (folder / "again").symlink_to(folder / "sub")
    assert list(await catalog.scan()) == ["m"]


async def test_depth_is_bounded(folder: Path, reader: Reader) -> None:
    put(folder / "1" / "2" / "in.gguf")
    put(folder / "1" / "2" / "3" / "out.gguf")
    catalog = Catalog([folder], read=reader, type_of=lambda _: "llm", max_depth=2)
    assert list(await catalog.scan()) == ["in"]


# Shards


async def test_shards_are_one_model(catalog: Catalog, folder: Path) -> None:
    for number in (1, 2, 3):
        put(folder / f"big-{number:05d}-of-00003.gguf", f"llama {'x' * number}")
    models = await catalog.scan()
    assert list(models) == ["big"]
    big = models["big"]
    assert big.path.endswith("big-00001-of-00003.gguf")
    assert big.size_bytes == 7 + 8 + 9
    assert big.header is not None
    assert big.header.weights_bytes == 7 + 8 + 9


@pytest.mark.parametrize(
    ("present", "fault"),
    [
        ((1, 3), "big-00002-of-00003.gguf is missing"),
        ((2, 3), "big-00001-of-00003.gguf is missing"),
        ((1, 2), "big-00003-of-00003.gguf is missing"),
        ((1, 2, 3, 4), "big-00004-of-00003.gguf is numbered beyond its count"),
    ],
)
async def test_an_incomplete_set_names_what_is_missing(
    catalog: Catalog, folder: Path, present: tuple[int, ...], fault: str
) -> None:
    for number in present:
        put(folder / f"big-{number:05d}-of-00003.gguf")
    assert {name: model.broken for name, model in (await catalog.scan()).items()} == {"big": fault}


# Names


async def test_equal_names_in_two_folders_are_told_apart(
    folder: Path, tmp_path: Path, reader: Reader
) -> None:
    other = tmp_path / "other"
    put(folder / "m.gguf", "llama 1")
    put(folder / "x" / "m.gguf", "llama 2")
    put(other / "m.gguf", "llama 3")
    put(other / "x" / "m.gguf", "llama 4")
    catalog = Catalog([folder, other], read=reader, type_of=lambda _: "llm")
    models = await catalog.scan()
    assert {name: Path(model.path).relative_to(tmp_path).as_posix() for name, model in models.items()} == {
        "m": "models/m.gguf",
        "m@other": "other/m.gguf",
        "m@x": "models/x/m.gguf",
        "m@x-2": "other/x/m.gguf",
    }


@pytest.mark.fault("F34")
async def test_odd_names(catalog: Catalog, folder: Path) -> None:
    put(folder / "山 月 ü 'q' \"d\" $HOME ;x" / "e\u0301 b.gguf")
    put(folder / "esc\x1b[2J.gguf")
    raw = os.fsencode(folder) + b"/\xff\xfe.gguf"
    with open(raw, "wb") as file:
        file.write(b"llama")
    models = await catalog.scan()
    assert set(models) == {"é b", "esc\ufffd[2J", "\ufffd\ufffd"}
    assert not models["é b"].broken
    assert catalog.resolve("e\u0301 b") is models["é b"]
    assert "not valid UTF-8" in models["\ufffd\ufffd"].broken


async def test_near_matches(catalog: Catalog, folder: Path) -> None:
    put(folder / "Llama-3.2-1B-Instruct.gguf")
    put(folder / "qwen2.gguf")
    await catalog.scan()
    assert catalog.near("llama-3.2-1b-instruct") == ["Llama-3.2-1B-Instruct"]
    assert catalog.near("zzzzz") == []
    assert catalog.resolve("llama") is None


# Keeping current


async def test_a_missing_folder_is_a_problem_and_not_an_end(
    folder: Path, tmp_path: Path, reader: Reader
) -> None:
    put(folder / "m.gguf")
    catalog = Catalog([tmp_path / "none", folder], read=reader, type_of=lambda _: "llm")
    assert list(await catalog.scan()) == ["m"]
    assert str(tmp_path / "none") in catalog.problems[0]


async def test_a_removal_settles_and_a_change_does_not(catalog: Catalog, folder: Path, clock: Clock) -> None:
    file = put(folder / "m.gguf")
    put(folder / "n.gguf")
    await catalog.scan()
    file.unlink()
    assert list(await catalog.scan()) == ["m", "n"]
    clock.now = 1.0
    put(file, "bert again")
    assert (await catalog.scan())["m"].type == "embedding"
    file.unlink()
    await catalog.scan()
    clock.now = 2.9
    assert list(await catalog.scan()) == ["m", "n"]
    clock.now = 3.0
    assert list(await catalog.scan()) == ["n"]
    (folder / "n.gguf").unlink()
    assert list(await catalog.scan(settle=False)) == []


async def test_on_change_is_called_for_changes_only(catalog: Catalog, folder: Path) -> None:
    calls: list[list[str]] = []
    catalog.on_change = lambda models: calls.append(list(models))
    await catalog.scan()
    await catalog.scan()
    put(folder / "m.gguf")
    await catalog.scan()
    await catalog.scan()
    assert calls == [[], ["m"]]


async def test_nothing_is_walked_again_while_nothing_changed(catalog: Catalog, folder: Path) -> None:
    put(folder / "m.gguf")
    age(folder)
    await catalog.scan()
    scans = 0
    scan = catalog.scan

    async def counted() -> object:
        nonlocal scans
        scans += 1
        return await scan()

    catalog.scan = counted  # type: ignore[method-assign,assignment]  # a spy
    await catalog._look_again()
    assert scans == 0
    put(folder / "m.gguf", "llama longer")
    await catalog._look_again()
    assert scans == 1
    put(folder / "n.gguf")
    await catalog._look_again()
    assert scans == 2


async def test_the_watch_sees_files_and_folders_come(catalog: Catalog, folder: Path, tmp_path: Path) -> None:
    import asyncio

    seen: asyncio.Queue[list[str]] = asyncio.Queue()
    catalog.on_change = lambda models: seen.put_nowait(list(models))
    watch = asyncio.create_task(catalog.watch())
    assert await asyncio.wait_for(seen.get(), 30) == []
    put(folder / "m.gguf")
    assert await asyncio.wait_for(seen.get(), 30) == ["m"]
    put(tmp_path / "more" / "n.gguf")
    catalog.folders = (folder, tmp_path / "more")
    assert await asyncio.wait_for(seen.get(), 30) == ["m", "n"]
    watch.cancel()
    await asyncio.wait([watch])


async def test_real_headers(folder: Path) -> None:
    gguf.write_header_only(folder / "m.gguf", context=8192, weights_bytes=1 << 20)
    put(folder / "page.gguf", "<html>not found</html>")
    models = await Catalog([folder]).scan()
    assert (models["m"].context_length, models["m"].type, models["m"].broken) == (8192, "llm", "")
    assert models["page"].broken
