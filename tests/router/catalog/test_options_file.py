"""The file with options of single models: hostile text, edits by others, and what the catalog makes of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.catalog.catalog import Catalog
from router.catalog.model import Identity, Model
from router.catalog.options import CTX_AUTO, LoadOptions
from router.catalog.options_file import MAX_BYTES, OptionsFile
from router.errors import RouterError
from router.memory.header import ModelHeader
from router.memory.store import HeaderStore
from router.settings.store import DiskIO
from router.settings.watching import Settling
from tests.router.catalog.conftest import Clock, Reader, put, type_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config" / "models.json"


@pytest.fixture
def file(path: Path, clock: Clock) -> OptionsFile:
    return OptionsFile(path, settling=Settling(2.0, clock), interval_s=0.01)


@pytest.fixture
def listed(folder: Path, reader: Reader, file: OptionsFile) -> Catalog:
    return Catalog([folder], read=reader, type_of=type_of, options=file, interval_s=0.01)


def write(path: Path, value: Any) -> None:
    put(path, value if isinstance(value, str) else json.dumps(value))


async def test_models_have_the_options_of_their_name_or_alias(
    listed: Catalog, folder: Path, path: Path
) -> None:
    put(folder / "a.gguf")
    put(folder / "b.gguf")
    (folder / "bee.gguf").symlink_to(folder / "b.gguf")
    put(folder / "e\u0301.gguf")
    write(path, {"a": {"ctx_size": "auto", "type": "embedding"}, "bee": {"parallel": 4}, "\u00e9": {}})
    models = await listed.scan()
    assert models["a"].options == LoadOptions(type="embedding", ctx_size=CTX_AUTO)
    assert models["a"].type == "embedding"
    assert models["b"].options == LoadOptions(parallel=4)
    assert listed.problems == ()


@pytest.mark.fault("F20")
async def test_every_problem_is_named_with_file_model_and_option(
    listed: Catalog, folder: Path, path: Path
) -> None:
    put(folder / "a.gguf")
    put(folder / "b.gguf")
    write(
        path,
        {
            "a": {"ctx_size": "8192", "paralel": 2, "parallel": 2},
            "b": [],
            "c": {"device": "A,B", "tensor_split": "1,1,1"},
        },
    )
    models = await listed.scan()
    assert models["a"].options == LoadOptions(parallel=2)
    assert listed.problems == (
        f"{path}: a: ctx_size: expected a whole number from 1 to 16777216, 0 for the model's own, or auto; "
        'got "8192"; it is not used',
        f"{path}: a: paralel: no such option (did you mean parallel?); it is kept, and does nothing",
        f'{path}: b: expected an object of options such as {{"ctx_size": 8192}}; got []; it is not used',
        f"{path}: c: tensor_split: it has 3 shares, but device names 2; give one share for each device; "
        "it is not used",
    )


async def test_a_name_that_is_almost_a_models_is_told(listed: Catalog, folder: Path, path: Path) -> None:
    put(folder / "Llama-3.2-1B-Instruct.gguf")
    write(path, {"llama-3.2-1B-Instruct": {}, "on another drive": {"parallel": 2}})
    await listed.scan()
    (problem,) = listed.problems
    assert problem.endswith(
        "llama-3.2-1B-Instruct: there is no such model (did you mean Llama-3.2-1B-Instruct?)"
    )


@pytest.mark.fault("F20")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"a": {"parallel": 4},}',
        "[]",
        '{"a": {"parallel": 4}, "a": {}}',
        '{"a": ' * 50_000,
        b"\xff\xfe".decode("latin-1"),
        " " * (MAX_BYTES + 1),
        '{"a": {"parallel": ' + "9" * 5000 + "}}",
    ],
)
async def test_a_bad_edit_keeps_what_ran_and_the_file(file: OptionsFile, path: Path, text: str) -> None:
    write(path, {"a": {"parallel": 4}})
    await file.reload()
    write(path, text)
    await file.reload()
    assert dict(file.options) == {"a": LoadOptions(parallel=4)}
    assert str(path) in file.problems[0]
    with pytest.raises(RouterError, match="mend the file first"):
        await file.save(_model("a"), LoadOptions(parallel=2))
    assert path.read_text("utf-8") == text
    assert dict(file.options) == {"a": LoadOptions(parallel=4)}
    write(path, {"a": {"parallel": 1}})
    await file.reload()
    assert (file.options["a"].parallel, file.problems) == (1, ())


async def test_an_entry_with_a_fault_stays_as_it_was_and_others_change(file: OptionsFile, path: Path) -> None:
    write(path, {"a": {"parallel": 4, "n_cpu_moe": 1}, "b": {"parallel": 1}})
    await file.reload()
    write(path, {"a": {"parallel": 8, "n_cpu_moe": -1}, "b": {"parallel": 2}, "c": {"parallel": 3, "x": 1}})
    await file.reload()
    assert dict(file.options) == {
        "a": LoadOptions(parallel=4, n_cpu_moe=1),
        "b": LoadOptions(parallel=2),
        "c": LoadOptions(parallel=3),
    }
    assert len(file.problems) == 2


async def test_what_is_no_file_is_refused_without_waiting(file: OptionsFile, path: Path) -> None:
    path.parent.mkdir()
    os.mkfifo(path)
    await file.reload()
    assert file.problems == (f"{path}: it is no regular file; the options in force stay as they are",)


# Watching


async def test_the_watch_takes_edits_over_and_a_removal_settles(
    file: OptionsFile, path: Path, clock: Clock
) -> None:
    write(path, {"a": {"parallel": 4}})
    await file._look()
    assert file.options["a"].parallel == 4
    path.unlink()
    await file._look()
    assert file.options["a"].parallel == 4
    clock.now += 3
    await file._look()
    assert dict(file.options) == {}
    write(path, {"a": {"parallel": 2}})
    await file._look()
    assert file.options["a"].parallel == 2


async def test_an_edit_reaches_the_catalog(listed: Catalog, folder: Path, path: Path, reader: Reader) -> None:
    put(folder / "a.gguf")
    await listed.scan()
    assert listed._options is not None
    write(path, {"a": {"parallel": 4}})
    await listed._options._look()
    await listed._look_again()
    assert listed.models["a"].options.parallel == 4
    assert reader.read == ["a.gguf"]


async def test_problems_are_told_when_they_come_and_when_they_go(
    listed: Catalog, folder: Path, path: Path
) -> None:
    told: list[tuple[str, ...]] = []
    listed.on_problems = lambda: told.append(listed.problems)
    put(folder / "a.gguf")
    await listed.scan()
    assert listed._options is not None
    for text in ("[1]", "[22]", '{"a": {"parallel": 0}}', "{}", "{}"):
        write(path, text)
        await listed._options._look()
        await listed._look_again()
    assert [len(problems) for problems in told] == [1, 1, 0]
    assert "parallel: expected" in told[1][0]


# Saving


def _model(name: str, *aliases: str) -> Model:
    return Model(name, f"/{name}.gguf", "llm", 1, Identity(f"/{name}.gguf", 1, 1), aliases=aliases)


async def test_saved_options_are_in_force_and_in_the_file(listed: Catalog, folder: Path, path: Path) -> None:
    put(folder / "a.gguf")
    await listed.scan()
    options = LoadOptions(device=("GPU-1", "GPU-2"), ctx_size=CTX_AUTO, keep_alive=-1.0, mmproj="")
    await listed.save_options(listed.models["a"], options)
    assert listed.models["a"].options == options
    assert json.loads(path.read_text()) == {
        "a": {"device": ["GPU-1", "GPU-2"], "ctx_size": "auto", "mmproj": "none", "keep_alive": -1}
    }
    assert (path.stat().st_mode & 0o777) == 0o600 or os.name == "nt"
    await listed.save_options(listed.models["a"], LoadOptions())
    assert json.loads(path.read_text()) == {}
    assert listed.problems == ()


async def test_saving_keeps_what_others_wrote(file: OptionsFile, path: Path) -> None:
    write(path, {"zz": {"parallel": 9}, "bee": {"parallel": 1, "note": "mine"}})
    await file.reload()
    write(path, {"zz": {"parallel": 2}, "bee": {"parallel": 1, "note": "mine"}, "odd": 5})
    await file.save(_model("b", "bee"), LoadOptions(n_gpu_layers=-1))
    assert json.loads(path.read_text()) == {
        "zz": {"parallel": 2},
        "bee": {"note": "mine", "n_gpu_layers": "all"},
        "odd": 5,
    }
    assert file.options["bee"] == LoadOptions(n_gpu_layers=-1)


async def test_options_that_cannot_be_written_change_nothing(path: Path) -> None:
    class Full(DiskIO):
        def write(self, path: Path, data: bytes) -> None:
            raise OSError(28, "No space left on device")

    file = OptionsFile(path, io=Full())
    write(path, {"a": {"parallel": 4}})
    await file.reload()
    with pytest.raises(RouterError, match="No space left on device") as caught:
        await file.save(_model("a"), LoadOptions(parallel=2))
    assert caught.value.code == "options_not_saved"
    assert file.options["a"].parallel == 4
    with pytest.raises(RouterError, match="not kept here"):
        await Catalog().save_options(_model("a"), LoadOptions())


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)
OPTION = st.dictionaries(st.sampled_from(["ctx_size", "device", "main_gpu", "tensor_split", "x"]), ANY)


@given(st.dictionaries(st.text(max_size=4), ANY | OPTION, max_size=3))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_object_gives_options_and_sentences(tmp_path: Path, value: dict[str, Any]) -> None:
    path = tmp_path / "models.json"
    path.write_text(json.dumps(value), "utf-8")
    document = OptionsFile(path)._read()
    assert all(problem.isprintable() and str(path) in problem for problem in document.problems)
    assert document.faulty <= document.options.keys()


# Projectors by option


async def test_a_projector_by_option(listed: Catalog, folder: Path, path: Path, tmp_path: Path) -> None:
    for name in ("own", "none", "other", "gone"):
        put(folder / name / f"{name}.gguf")
        put(folder / name / f"mmproj-{name}.gguf", "clip")
    chosen = put(tmp_path / "chosen.gguf", "clip longer")
    gone = tmp_path / "gone.gguf"
    write(path, {"none": {"mmproj": None}, "other": {"mmproj": str(chosen)}, "gone": {"mmproj": str(gone)}})
    models = await listed.scan()
    assert {name: (model.mmproj, model.mmproj_bytes) for name, model in models.items()} == {
        "own": (str(folder / "own" / "mmproj-own.gguf"), 4),
        "none": ("", 0),
        "other": (str(chosen), 11),
        "gone": (str(gone), 0),
    }


# Headers on disk


async def test_after_a_restart_no_header_is_read_again(folder: Path, tmp_path: Path, reader: Reader) -> None:
    for number in range(30):
        put(folder / f"m{number}.gguf")
    for number in (1, 2):
        put(folder / f"big-{number:05d}-of-00002.gguf")

    async def restart() -> list[ModelHeader | None]:
        reader.read.clear()
        catalog = Catalog([folder], read=HeaderStore(tmp_path / "headers", reader).get, type_of=type_of)
        return [model.header for model in (await catalog.scan()).values()]

    first = await restart()
    assert len(reader.read) == 31
    assert await restart() == first
    assert reader.read == []
    put(folder / "m7.gguf", "llama and more")
    await restart()
    assert reader.read == ["m7.gguf"]
    put(folder / "big-00002-of-00002.gguf", "llama and more")
    await restart()
    assert reader.read == ["big-00001-of-00002.gguf"]
