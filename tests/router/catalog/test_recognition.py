"""What is a model, what is only a part of one, and which projector belongs to which."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.catalog.catalog import Catalog
from router.memory.header import read_header, read_shards
from tests.router.catalog.conftest import Reader, put
from tests.support import gguf


@pytest.mark.fault("F26")
async def test_parts_of_models_are_not_listed(catalog: Catalog, folder: Path) -> None:
    put(folder / "lora.gguf", "llama kind=adapter")
    put(folder / "projector.gguf", "clip")
    put(folder / "vision.gguf", "other kind=mmproj")
    put(folder / "matrix.gguf", "llama kind=imatrix")
    put(folder / "steer.gguf", "controlvector")
    put(folder / "guess.gguf", "eagle3")
    put(folder / "mtp-model-Q8_0.gguf")
    put(folder / "model-draft-Q4_0.gguf")
    put(folder / "mmproj-model-f16.gguf", "bad")
    put(folder / "Coder-DRAFT-0.6B.gguf")
    put(folder / "GLM-MTP-Q4_0.gguf")
    put(folder / "said.gguf", "llama kind=model")
    assert list(await catalog.scan()) == ["Coder-DRAFT-0.6B", "GLM-MTP-Q4_0", "said"]


async def test_a_file_of_nothing_but_further_prediction_is_a_part(folder: Path) -> None:
    values: dict[str, gguf.Value] = {
        "general.architecture": "glm4moe",
        "glm4moe.block_count": 3,
        "glm4moe.nextn_predict_layers": 1,
    }
    names = ("token_embd.weight", "blk.2.attn_q.weight")
    gguf.write_gguf(folder / "sidecar.gguf", values, [gguf.Tensor(name, (32, 4)) for name in names])
    names = ("token_embd.weight", "blk.0.attn_q.weight", "blk.1.attn_q.weight", "blk.2.attn_q.weight")
    gguf.write_gguf(folder / "whole.gguf", values, [gguf.Tensor(name, (32, 4)) for name in names])
    assert list(await Catalog([folder]).scan()) == ["whole"]


def test_what_a_header_says_of_its_kind(tmp_path: Path) -> None:
    path = tmp_path / "p.gguf"
    values: dict[str, gguf.Value] = {
        "general.architecture": "clip",
        "general.type": "mmproj",
        "clip.vision.projection_dim": 2048,
    }
    gguf.write_gguf(path, values, [gguf.Tensor("v.patch_embd.weight", (32, 4))])
    header = read_header(path)
    assert (header.kind, header.projection_length, header.weights_bytes) == ("mmproj", 2048, 256)


def test_shards_that_were_merged_say_a_count_of_none(tmp_path: Path) -> None:
    path = tmp_path / "merged.gguf"
    gguf.write_gguf(path, {"general.architecture": "llama", "split.count": 0, "split.no": 0})
    assert read_shards([path]).shard_count == 1


# Projectors


async def beside(catalog: Catalog) -> dict[str, str]:
    return {name: Path(model.mmproj).name for name, model in (await catalog.scan()).items()}


async def test_a_projector_in_a_models_own_folder(catalog: Catalog, folder: Path) -> None:
    put(folder / "gemma" / "gemma-3-4b-it-Q4_K_M.gguf")
    put(folder / "gemma" / "gemma-3-4b-it-Q8_0.gguf")
    put(folder / "gemma" / "mmproj-F16.gguf", "clip")
    put(folder / "other" / "other.gguf")
    assert await beside(catalog) == {
        "gemma-3-4b-it-Q4_K_M": "mmproj-F16.gguf",
        "gemma-3-4b-it-Q8_0": "mmproj-F16.gguf",
        "other": "",
    }
    assert catalog.models["gemma-3-4b-it-Q8_0"].mmproj_bytes == 4
    assert catalog.models["gemma-3-4b-it-Q8_0"].size_bytes == 5


async def test_among_many_models_only_the_name_tells(catalog: Catalog, folder: Path) -> None:
    put(folder / "gemma-3-4b-it-Q4_K_M.gguf")
    put(folder / "Qwen2.5-VL-7B-Instruct-Q4_K_M.gguf")
    put(folder / "plain-Q4_0.gguf")
    put(folder / "mmproj-gemma-3-4b-it-f16.gguf", "clip")
    put(folder / "Qwen2.5-VL-7B-Instruct.mmproj-Q8_0.gguf", "clip")
    put(folder / "mmproj-F16.gguf", "clip")
    assert await beside(catalog) == {
        "gemma-3-4b-it-Q4_K_M": "mmproj-gemma-3-4b-it-f16.gguf",
        "Qwen2.5-VL-7B-Instruct-Q4_K_M": "Qwen2.5-VL-7B-Instruct.mmproj-Q8_0.gguf",
        "plain-Q4_0": "",
    }


async def test_a_projector_for_another_width_does_not_fit(catalog: Catalog, folder: Path) -> None:
    put(folder / "m" / "m-Q4_0.gguf", "llama width=2048")
    put(folder / "m" / "mmproj-m-f16.gguf", "clip projects=4096")
    assert await beside(catalog) == {"m-Q4_0": ""}
    put(folder / "m" / "mmproj-m-bf16.gguf", "clip projects=2048")
    assert await beside(catalog) == {"m-Q4_0": "mmproj-m-bf16.gguf"}


async def test_a_folder_of_several_families_is_told_apart_by_name(catalog: Catalog, folder: Path) -> None:
    put(folder / "vision" / "a-7b-Q4_0.gguf")
    put(folder / "vision" / "b-7b-Q4_0.gguf")
    put(folder / "vision" / "mmproj-a-7b.gguf", "clip")
    assert await beside(catalog) == {"a-7b-Q4_0": "mmproj-a-7b.gguf", "b-7b-Q4_0": ""}


async def test_a_broken_projector_is_left_out(catalog: Catalog, folder: Path, reader: Reader) -> None:
    put(folder / "m" / "m.gguf")
    put(folder / "m" / "mmproj-m.gguf", "bad")
    assert await beside(catalog) == {"m": ""}
    assert catalog.models["m"].broken == ""
    assert await catalog.projector_bytes(str(folder / "m" / "mmproj-m.gguf")) == 0
    assert await catalog.projector_bytes(str(folder / "none.gguf")) == 0
    assert await catalog.projector_bytes("") == 0
    assert await catalog.projector_bytes(str(put(folder / "p.gguf", "clip"))) == 4
